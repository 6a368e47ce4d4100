#!/usr/bin/env bash
# Tests the plan in virtual time, --plan --machine: its collectives are those of a run, in the same order;
# what it prints; and what it refuses.
# Usage: tests/virtual.sh TRAINER
# shellcheck disable=SC2086
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1

# A CPU with one sample for each layer, whose times only have to be plausible.
{
    echo '{"kind": ["cpu"], "title": ["two cores"], "cores": [2], "host_bytes": [4e9],'
    echo '"flops": [1e11, 1e11, 0],'
    for name in {copy,clear,sum,squares,update}_{1,2} gather reduce between share read write; do
        echo "\"$name\": [1e-6, 2e9],"
    done
    echo '"samples_1": ['
    for layer in matmul{,_gelu,_backward} gelu_matmul_backward head{,_backward} attention{,_backward} \
        layernorm{,_backward} gelu encoder{,_backward} softmax{,_backward}; do
        echo "[\"$layer\", \"fp32\", 64, 64, 64, 1e-4], [\"$layer\", \"bf16\", 64, 64, 64, 1e-4],"
    done | sed '$s/,$//'
    echo ']}'
} >"$dir/two.json"
# plan ARGUMENT...: writes the plan to $dir/plan
plan() { timeout $hang_limit "$trainer" --plan "$@" >"$dir/plan" 2>&1 </dev/null; }

# ---- the collectives of a run, in its order

# collectives TRACE: prints those of rank 0, a line each, in the order in which they began
collectives() {
    sed -nE '/"cat":"(gather|reduce)".*"pid":1,/s/.*"name":"([^"]*)".*"ts":([0-9.]+).*/\2 \1/p' "$1" |
        sort -n | cut -d ' ' -f 2-
}
# same_order RANKS STAGE ARGUMENT...
same_order() {
    local all=(-z "$2" -e l3h2c32v257t32 -b 1 -d $(($1 * 64)) -x 3 -v 0 -s 0 -n 0 --threads 1 "${@:3}")
    launch "$1"
    need 'the run failed' timeout $hang_limit "${launcher[@]}" "$trainer" --device cpu "${all[@]}" \
        --trace "$dir/run.json" >"$dir/log" 2>&1 </dev/null
    need 'the plan failed' plan --plan-ranks "$1" "${all[@]}" --machine "$dir/two.json" \
        --trace "$dir/plan.json"
    collectives "$dir/run.json" >"$dir/run"
    collectives "$dir/plan.json" >"$dir/planned"
    need "$*: no collectives" [ -s "$dir/run" ]
    need "$*: $(diff "$dir/run" "$dir/planned" | head -n 3)" cmp -s "$dir/run" "$dir/planned"
}

begin 'virtual.one to eight ranks have the planned collectives, in this order'
for stage in 0 1 2 3; do
    same_order 2 $stage --dtype bf16 --overlap 1
    same_order $((stage + 1)) $stage --dtype bf16 --overlap 0
done
for ranks in 2 8; do same_order $ranks 3 --dtype fp32 --accumulate layers --overlap 1; done
third=$(sed -nE 's/.*"name":"step 3",.*"dur":([0-9.]+).*/\1/p' "$dir/plan.json")
printed=$(sed -nE 's/^  step +([0-9.]+) s, .*/\1/p' "$dir/plan")
need "a step of $third us in the trace, $printed s in the plan" \
    number "0$third * 1e-6 - 0$printed < 1e-4 && 0$printed - 0$third * 1e-6 < 1e-4 && 0$printed > 0"
end

# on_nvme MACHINE: plans states on NVMe, and prints the planned time of a step
on_nvme() {
    plan --plan-ranks 2 -z 3 -e l4h2c32v257t32 -b 1 -d 64 --dtype bf16 --overlap 1 --threads 1 \
        --offload-optimizer nvme --offload-param nvme --nvme "$dir" --machine "$1" --trace "$dir/plan.json"
    sed -nE 's/^  step +([0-9.]+) s, .*/\1/p' "$dir/plan"
}
begin 'virtual.the update passes the first layers to their gathers: only the first step has to read them'
on_nvme "$dir/two.json" >"$dir/log"
for unit in 'embedding 10' 'block 0 13' 'block 1 13'; do     # in three steps; blocks for backward, too
    reads=$(grep -c "\"name\":\"read ${unit% *}\"" "$dir/plan.json")
    need "$unit, with its optimizer states, but $reads reads" [ "$reads" = "${unit##* }" ]
done
end
begin 'virtual.a disk that reports in bursts delays the first transfers'
sed 's/\("\(read\|write\)": .1e-6\), 2e9/\1, 5e7/' "$dir/two.json" >"$dir/disk.json"
sed '1s/{/{"disk_bursts": [1], /' "$dir/disk.json" >"$dir/slow.json"
usual=$(on_nvme "$dir/disk.json") bursts=$(on_nvme "$dir/slow.json")
need "$usual and $bursts s" number "0$usual > 0 && 0$bursts > 1.02 * 0$usual && 0$bursts < 2 * 0$usual"
end
# seconds THREADS OVERLAP FIGURE...: prints the planned time of a step with these figures of the machine slow
seconds() {
    local figure edits=()
    for figure in "${@:3}"; do edits+=(-e "s/\"$figure\": [^]]*]/\"$figure\": [0, 1e4]/"); done
    sed "${edits[@]}" -e '' "$dir/two.json" >"$dir/slow.json"
    plan --machine "$dir/slow.json" --plan-ranks 1 -z 2 -e l3h2c32v257t32 -b 1 -d 128 --threads "$1" \
        --overlap "$2"
    sed -nE 's/^  step +([0-9.]+) s, .*/\1/p' "$dir/plan"
}
begin 'virtual.the rates of kernels are those of the threads of a rank; lanes have one thread'
usual=$(seconds 2 0) other=$(seconds 2 0 update_1) slow=$(seconds 2 0 update_2)
need "$usual, $other and $slow s" number "0$usual > 0 && 0$other == 0$usual && 0$slow > 10 * 0$usual"
one=$(seconds 1 0)                      # all layers have samples of one thread only
need "$usual and $one s" number "0$one / 0$usual > 1.8 && 0$one / 0$usual < 2.1"
here=$(seconds 2 0 sum_2) lane=$(seconds 2 1 sum_2)
need "$here and $lane s" number "0$here > 10 * 0$usual && 0$lane / 0$here > 1.9 && 0$lane / 0$here < 2.1"
end
# crowded RANKS TURN [OVERLAP]: prints the planned time of a step of ranks with one thread each on two cores
crowded() {
    sed "1s/{/{\"turn_s\": [$2], /" "$dir/two.json" >"$dir/slow.json"
    plan --machine "$dir/slow.json" --plan-ranks "$1" -z 2 -e l3h2c32v257t32 -b 1 \
        -d $(($1 * 32)) --threads 1 --overlap "${3:-0}"
    sed -nE 's/^  step +([0-9.]+) s, .*/\1/p' "$dir/plan"
}
begin 'virtual.three ranks on two cores: the last computes while the others wait; four fill them evenly'
three=$(crowded 3 0) lag=$(crowded 3 1) four=$(crowded 4 0) even=$(crowded 4 1)
need "$three, $lag, $four and $even s" number \
    "0$lag > 1.1 * 0$three && 0$lag < 4 / 3 * 0$three && 0$four > 0 && 0$even == 0$four"
four=$(crowded 4 0 1) late=$(crowded 4 1 1)             # threads of lanes wait for a core
need "$four and $late s" number "0$four > 0 && 0$late > 1.1 * 0$four"
end
# apart CORES OVERLAP FIGURES: prints the planned time of a step of two ranks, each on a host of so many cores
apart() {
    sed "s/\"cores\": .2./\"cores\": [$1], $3/; s/\"between\": .1e-6/\"between\": [1e-3/" "$dir/two.json" \
        >"$dir/slow.json"
    plan --machine "$dir/slow.json" --plan-ranks 2 -pg 1 -z 2 -e l3h2c32v257t32 -b 1 -d 64 --threads 1 \
        --overlap "$2"
    sed -nE 's/^  step +([0-9.]+) s, .*/\1/p' "$dir/plan"
}
begin 'virtual.two hosts: a lane that shares its core waits for a turn, and takes time from the trainer'
for figures in '"turn_s": [1]' '"turn_s": [0], "between_work": [0, 1e6]'; do
    one=$(apart 1 1 '"turn_s": [0]') slow=$(apart 1 1 "$figures")
    need "$figures: $one and $slow s" number "0$one > 0 && 0$slow > 1.05 * 0$one"
    for cores_overlap in '2 1' '1 0'; do
        one=$(apart $cores_overlap '"turn_s": [0]') slow=$(apart $cores_overlap "$figures")
        need "$figures, $cores_overlap: $one and $slow s" number "0$one > 0 && 0$slow == 0$one"
    done
done
end
# longest TURN: prints how many microseconds the longest collective between two hosts of a core each takes
longest() {
    sed "s/\"cores\": .2./\"cores\": [1], \"turn_s\": [$1]/; s/\"between\": .1e-6/\"between\": [1e-5/" \
        "$dir/two.json" >"$dir/slow.json"
    plan --machine "$dir/slow.json" --plan-ranks 2 -pg 1 -z 2 -e l3h2c32v257t32 -b 1 -d 64 --threads 1 \
        --overlap 1 --trace "$dir/apart.json"
    sed -nE '/"cat":"reduce".*"pid":1,/s/.*"dur":([0-9.]+).*/\1/p' "$dir/apart.json" | sort -g | tail -n 1
}
begin 'virtual.two hosts: beside a trainer that computes, a lane waits half a turn to begin and half to end'
free=$(longest 0) busy=$(longest 2e-5)
need "$free and $busy us" number "0$busy - 0$free > 19 && 0$busy - 0$free < 21"
end
begin 'virtual.states on NVMe'
same_order 2 3 --dtype bf16 --offload-optimizer nvme --offload-param nvme --nvme "$disk"
same_order 2 3 --dtype bf16 --offload-optimizer nvme --offload-param nvme --nvme "$disk" --accumulate layers
has "$dir/plan" '^  files +[0-9.]+ % of the step, [0-9.]+ % exposed$'
end

# ---- other machines

begin 'virtual.a large model on many GPUs takes little time'
TIMEFORMAT=%R
seconds=$({ time plan --machine a100-80gx8 --plan-ranks 512 -z 3 -e d48 -b 4 -t 1024 -d 2097152 \
    --dtype bf16; } 2>&1)
has "$dir/plan" '^time of a step on NVIDIA A100 SXM 80 GB, 8 per host: a model, not measured' \
    '^  collectives +[0-9.]+ % of the step, [1-9][0-9.]* % exposed$'
plan --machine h100x8 --plan-ranks 16 -z 3 -e d12 -b 4 --dtype bf16 --param-group 8 --offload-param cpu
has "$dir/plan" '^  copies over the bus '
need "it took ${seconds:-?} s" number "${seconds:-99} < 20"        # 0.02 s on an idle machine
end

begin 'virtual.what is slower takes longer'
step() { sed -nE 's/^  step +([0-9.]+) s.*/\1/p' "$dir/plan"; }
times=()
for machine in h100x8 a100-80gx8 v100-32gx8 v100-32gx2; do
    plan --machine $machine --plan-ranks 8 -z 3 -e d12 -b 4 -t 1024 --dtype bf16 -r 1
    times+=("$(step)")
done
need "steps of ${times[*]} s" number \
    "${times[0]:-9} < ${times[1]:-0} && ${times[1]} < ${times[2]:-0} && ${times[2]} < ${times[3]:-0}"
end

begin 'virtual.a GPU: what its libraries take, in fp16 too; the machine has enough of everything, or not'
plan --machine h100x8 --plan-ranks 16 -e d12 -b 8 --dtype fp16 -z 3 --offload-optimizer cpu
has "$dir/plan" '^  working +CUDA .estimated. +572\.2$' '^  working +NCCL .estimated. +935\.6$' \
    '^  scratch of the layers: estimated' '^  a GPU +[0-9.]+ +81539\.2 fits$' \
    "^  a host's memory +[0-9.]+ +953674\\.3 fits$"
plan --machine v100-32gx8 --plan-ranks 8 -e d48 -b 8 --dtype fp16 -z 0 -r 0
has "$dir/plan" '^  a GPU +[0-9.]+ +32768\.[0-9] does not fit$' 'stage 0 does not fit: .*--fit lists'
end

begin 'virtual.plan.json'
plan --machine a100-80gx8 --plan-ranks 8 -e d12 -b 8 -t 1024 --dtype bf16 -z 3 -o "$dir/out"
for key in machine ranks device host disk fits memory step_seconds tokens_per_s mfu comm_share \
    comm_exposed_share sent_bytes disk_bytes; do
    has "$dir/out/plan.json" "\"$key\": "
done
is fits "$(json_value "$dir/out/plan.json" ' *fits' | tail -n 1)" true
is 'tokens per second' "$(json_value "$dir/out/plan.json" tokens_per_s)" \
    "$(sed -nE 's/^  step .* s, ([0-9]+) tokens.*/\1/p' "$dir/plan")"
lines=$(sed -nE 's/.*"tier": "device", "bytes": ([0-9]+).*/\1/p' "$dir/out/plan.json" | paste -sd +)
need "the lines $lines are not the bytes of the device" \
    number "$(json_value "$dir/out/plan.json" needed | head -n 1) == $lines"
end

# ---- what to run

# choices KIND: prints lines "SECONDS OPTIONS" of $dir/fit: of those that fit, or the nearest that do not
choices() {
    sed -n "/^$1/,/^[^ ]/p" "$dir/fit" |
        sed -nE 's/^  ([0-9.]+) s, [0-9]+ tokens.s:(.*) \([0-9]+ of .*/\1\2/p'
}
# fits_are WHAT ARGUMENT...: checks --fit's choices by plans
fits_are() {
    local seconds options fastest=
    timeout $hang_limit "$trainer" --fit "${@:2}" >"$dir/fit" 2>&1 </dev/null || need "$1: failed" false
    is "$1: sets of options" "$(choices 'what to run' | wc -l)" 3
    while read -r seconds options; do
        plan "${@:2}" ${options/as given/}
        has "$dir/plan" '^  stage . fits: ' '^  a .* fits$'
        is "$1: step with $options" "$(step)" "$seconds"
        need "$1: $options is not in order" number "${fastest:=$seconds} <= $seconds"
    done < <(choices 'what to run')
    while read -r seconds options; do
        plan "${@:2}" ${options/as given/}
        need "$1: $options fits" not grep -q '^  stage . fits: ' "$dir/plan"
        need "$1: $options is not faster" number "$seconds < $fastest"
    done < <(choices nearest)
}
of=(--dtype bf16 -t 1024 -e)
begin 'virtual.--fit: three that fit and faster ones that do not, as their plans say'
fits_are 1558M --machine h100x8 --plan-ranks 8 "${of[@]}" d48 -d 1048576
need 'none that does not fit' [ "$(choices nearest | wc -l)" -gt 0 ]
fits_are 'one GPU' --machine rtx4090 --plan-ranks 1 "${of[@]}" d48 -d 16384
end

begin 'virtual.--fit keeps what is given, and chooses a batch that divides the step'
fits_are given --machine h100x8 --plan-ranks 16 "${of[@]}" d24 -d 262144 -r 1 -b 4 --offload-optimizer cpu
need 'a given option changed' not grep -qE '^  [0-9].*: .*(-r|-b|--offload-optimizer) ' "$dir/fit"
fits_are 'two cores' --machine "$dir/two.json" --plan-ranks 2 --dtype bf16 -e l3h2c32v257t32 -d 512
fits_are 'few rows' --machine h100x8 --plan-ranks 512 "${of[@]}" d48 -d 524288
has "$dir/fit" ' tokens/s: -b 1 -z 1 '
fits_are 'small blocks' --machine h100x8 --plan-ranks 8 --dtype bf16 -e l12h2c128v257t64 -d 4096
has "$dir/fit" ' --bucket [1-9][0-9]* '
end

begin 'virtual.--fit of 1558M on 512 GPUs takes at most two seconds of a CPU'
TIMEFORMAT='%U'
seconds=$({ time timeout $hang_limit "$trainer" --fit --machine h100x8 --plan-ranks 512 "${of[@]}" d48 \
    -d 4194304 >"$dir/fit" 2>&1 </dev/null; } 2>&1)
need "it took ${seconds:-?} s" number "${seconds:-99} <= 2"
end

begin 'virtual.--fit prints the missing memory if nothing fits'
timeout $hang_limit "$trainer" --fit --machine rtx4090 --plan-ranks 1 "${of[@]}" d48 -z 0 -d 8192 \
    >"$dir/fit" 2>&1
has "$dir/fit" '^  nothing fits: ' '^nearest that do not fit$' ': [0-9]+ MiB too much for the GPU$'
end

begin 'virtual.--machine this is what make calibrate has measured'
mkdir "$dir/build"
(cd "$dir" && plan --machine this) && need 'planned without make calibrate' false
has "$dir/plan" 'open build/machine.json: .*make calibrate measures this machine'
cp "$dir/two.json" "$dir/build/machine.json"
need 'not planned' cd "$dir"
need 'not planned' plan --machine this --plan-ranks 1 -o "$dir/this"
cd - >"$dir/log"
has "$dir/plan" '^time of a step on two cores'
has "$dir/this/plan.json" '"device": .*"available": 4000000000, "fits": true'
end

begin 'virtual.what the machine lacks is named'
while IFS='|' read -r arguments message; do
    plan $arguments && need "$arguments: accepted" false
    has "$dir/plan" "$message"
done <<END
--fit|option --fit: needs --machine
--machine h100 --prompt 1|option --machine h100: only training has a time
--machine h1000|option --machine h1000: is none of .*h100.*make calibrate
--machine h100x0|option --machine h100x0: is none of
--machine $dir/none.json|none.json.*
END
while IFS='|' read -r figure message; do
    printf '{"like": ["h100"], "kind": ["gpu"], %s}' "$figure" >"$dir/wrong.json"
    plan --machine "$dir/wrong.json" --plan-ranks 2 && need "$figure: accepted" false
    has "$dir/plan" "$message"
done <<'END'
"ranks_a_host": [0]|ranks_a_host must be at least 1
"flops": [0, 0, 0]|flops must be above 0
"memory_bytes_per_s": [1e-320]|a step would take (inf|-?nan) s: check the file
END
echo '{"kind": ["cpu"], "cores": [2]}' >"$dir/empty.json"
plan --machine "$dir/empty.json" && need 'an empty file was accepted' false
has "$dir/plan" 'empty.json has no copy_1: make calibrate writes it'
plan --machine h100x8 --plan-ranks 8
has "$dir/plan" '^  assumed: .* gelu, .*matmul_gelu|^  assumed: .*matmul_gelu, .* gelu,'
end

begin 'virtual.samples: of a round the slowest process, of rounds the shortest; other shapes apart'
echo '["gelu","fp32",1,0,0,3e-3]' >"$dir/1.layers.1"
echo '["gelu","fp32",1,0,0,5e-3]' >"$dir/1.layers.2"
echo '["gelu","fp32",1,0,0,4e-3]' >"$dir/2.layers.1"
echo '["gelu","fp32",9,0,0,7e-3]' >"$dir/1.layers.own.1"
is samples "$(. scripts/calibrate.sh && chosen "$dir"/?.layers.* | sort | tr -d '\n')" \
    '["gelu","fp32",1,0,0,4.000e-03]["gelu","fp32",9,0,0,7.000e-03]'
end

finish virtual
