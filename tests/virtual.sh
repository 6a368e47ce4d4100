#!/usr/bin/env bash
# Tests the plan in virtual time, --plan --machine: its collectives are those of a run, in the same order; what
# it prints; and what it refuses.
# Usage: tests/virtual.sh TRAINER
# shellcheck disable=SC2086
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1

# A CPU with one sample for each layer, whose times only have to be plausible.
{
    echo '{"kind": ["cpu"], "title": ["two cores"], "cores": [2], "host_bytes": [4e9], "flops": [1e11, 1e11, 0],'
    for name in copy clear sum squares update gather reduce between share read write; do
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
    need 'the plan failed' plan --plan-ranks "$1" "${all[@]}" --machine "$dir/two.json" --trace "$dir/plan.json"
    collectives "$dir/run.json" >"$dir/run"
    collectives "$dir/plan.json" >"$dir/planned"
    need "$*: no collectives" [ -s "$dir/run" ]
    need "$*: $(diff "$dir/run" "$dir/planned" | head -n 3)" cmp -s "$dir/run" "$dir/planned"
}

for ranks in 1 2 4 8; do
    begin "virtual.$ranks ranks have the planned collectives, in this order"
    for stage in 0 1 2 3; do
        same_order $ranks $stage --dtype bf16 --overlap $((ranks % 4 / 2))
    done
    same_order $ranks 3 --dtype fp32 --accumulate layers --overlap 1
    end
done
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

begin 'virtual.what the machine lacks is named'
while IFS='|' read -r arguments message; do
    plan $arguments && need "$arguments: accepted" false
    has "$dir/plan" "$message"
done <<END
--machine h1000|option --machine h1000: is none of .*h100.*make calibrate
--machine h100x0|option --machine h100x0: is none of
--machine $dir/none.json|none.json.*
END
echo '{"kind": ["cpu"], "cores": [2]}' >"$dir/empty.json"
plan --machine "$dir/empty.json" && need 'an empty file was accepted' false
has "$dir/plan" 'empty.json has no number for'
end

finish virtual
