#!/usr/bin/env bash
# Measures how much network time overlap hides, on CPUs: runs training steps on two hosts with a slow network,
# without and with overlap, and with overlap on an unlimited network. The hosts are network namespaces on this
# machine, each with one rank of one thread, connected by mpirun. Prints the median step time; the hidden
# share of the network time, (without - with) / (without - unlimited); and, from the last trace with overlap,
# what rank 0 sends while it computes nothing. Appends JSON lines to build/bench.jsonl. Needs root, and ip and
# tc (iproute2).
#   dev/bench/overlap.sh [PROGRAM...]     default ./train_gpt2_zero; runs of several builds alternate
#   RATE=2gbit    sending rate of a host  STAGE=3    OPTIONS="--prefetch 2"    for all runs
#   ROUNDS=1      runs of each kind       STEPS=8    per run; the first two do not count
. "$(dirname "$0")/common.sh"
rate=${RATE:-2gbit} rounds=${ROUNDS:-1} steps=${STEPS:-8} stage=${STAGE:-3}
model="l6h12c768v50257t1024 -b 2 -t 256"        # 6 layers of GPT-2 124M's width
[ $# -gt 0 ] || set -- ./train_gpt2_zero
two_hosts "$rate" || { echo "overlap: skipped: $hosts_why"; exit 0; }

# run PROGRAM OVERLAP NAME: appends the steps that count to $work/NAME; leaves rank 0's trace in $work/trace
run() {
    rm -rf "$work/out" "$work"/trace*
    # shellcheck disable=SC2086
    on_hosts "$1" --threads 1 -e $model -z "$stage" --overlap "$2" -x "$steps" -v 0 -s 0 -n 0 \
        --progress lines -o "$work/out" --trace "$work/trace" ${OPTIONS:-} >"$work/log" 2>&1 || or "$work/log"
    sed -n 's/.*"ms": \([0-9.]*\).*/\1/p' "$work/out/metrics.jsonl" | tail -n +3 >>"$work/$3"
}

for _ in $(seq "$rounds"); do
    n=0
    for program in "$@"; do
        n=$((n + 1))
        run "$program" 0 without.$n
        run "$program" 1 with.$n
        dev/lessons/trace.pl time "$work/trace" >"$work/exposed.$n"
        hosts_limit unlimited
        run "$program" 1 unlimited.$n
        hosts_limit "$rate"
    done
done

# summary N PROGRAM: prints a program's row and appends it to the JSON lines
summary() {
    awk -v off="$(median <"$work/without.$1")" -v on="$(median <"$work/with.$1")" \
        -v free="$(median <"$work/unlimited.$1")" \
        -v program="$2" -v rate="$rate" -v stage="$stage" -v json="$out" '
        BEGIN {
            hidden = off > free ? (off - on) / (off - free) * 100 : 0
            printf "%-40s %10.2f %10.2f %10.2f %8.0f %%\n", program, off / 1e3, on / 1e3, free / 1e3, hidden
            printf "{\"name\": \"overlap\", \"program\": \"%s\", \"rate\": \"%s\", ", program, rate >>json
            printf "\"stage\": %d, \"without_ms\": %.1f, \"with_ms\": %.1f, ", stage, off, on >>json
            printf "\"unlimited_ms\": %.1f, \"hidden_percent\": %.1f}\n", free, hidden >>json
        }'
    sed 's/^/    /' "$work/exposed.$1"
}

printf '\noverlap: 2 hosts, %s each way, %s, stage %s %s\n' "$rate" "$model" "$stage" "${OPTIONS:-}"
printf '%-40s %10s %10s %10s %10s\n' "s per step" without with unlimited hidden
n=0
for program in "$@"; do n=$((n + 1)); summary $n "$program"; done
