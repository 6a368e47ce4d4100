#!/usr/bin/env bash
# Measures how the time and memory of a step scale with layers, sequence length and ranks, for GPT-2 with 768
# channels at stage 3. The work column gives the flops of matmuls and attention relative to the table's first
# row; time / work should stay constant or fall. Prints tables and appends JSON lines to build/bench.jsonl.
#   DTYPE=bf16|fp32   default: the trainer's choice
#   STEPS=6           steps per run
. "$(dirname "$0")/common.sh"
steps=${STEPS:-6} dtype=${DTYPE:-auto}

# row RANKS LAYERS T B: runs the model and prints a line. The first line of a table stores its work and time
# in $work/first.
row() {
    train "$1" -e "l${2}h12c768v50257t1024" -b "$4" -t "$3" -z 3 --dtype "$dtype" -x "$steps"
    awk -v np="$1" -v L="$2" -v T="$3" -v tokens="$(($1 * $3 * $4))" -v rate="$(field tokens_per_s)" \
        -v states="$(field model_state_bytes)" \
        -v working="$(field working_bytes)" -v activations="$(field activation_bytes)" \
        -v first="$work/first" -v json="$out" '
        BEGIN {
            C = 768; ms = tokens / rate * 1e3; MiB = 1048576
            # The matmuls, and causal attention, which takes half of 12 L C T.
            flops = tokens * (6 * (12 * L * C * C + 50304 * C) + 6 * L * C * T)
            if ((getline line <first) > 0) split(line, f, " ")
            else { f[1] = flops; f[2] = ms; print flops, ms >first }
            work = flops / f[1]
            time = ms / f[2]
            printf "%6d %6d %6d %10.1f %8.2f %8.2f %11.2f ", np, L, T, ms, work, time, time / work
            printf "%10.1f %10.1f %12.1f\n", states / MiB, working / MiB, activations / MiB
            printf "{\"name\": \"scale\", \"ranks\": %d, \"layers\": %d, \"T\": %d, ", np, L, T >>json
            printf "\"step_ms\": %.1f, \"work\": %.3f, \"time\": %.3f, ", ms, work, time >>json
            printf "\"state_mib\": %.1f, \"working_mib\": %.1f, \"activation_mib\": %.1f}\n",
                   states / MiB, working / MiB, activations / MiB >>json
        }'
}
table() {
    printf '\n%s\n%6s %6s %6s %10s %8s %8s %11s %10s %10s %12s\n' "$1" ranks layers T "step ms" work time \
        "time/work" "states MiB" working activations
    rm -f "$work/first"
}

table "layers: 2 ranks, 1 sequence each"
for L in 12 24 48; do row 2 $L 256 1; done
table "sequence length: 2 ranks, 1 sequence each"
for T in 64 128 256 512 1024; do row 2 12 $T 1; done
table "ranks on $(nproc) cores: 8 sequences in total"
for np in 1 2 4 8; do row $np 12 64 $((8 / np)); done
