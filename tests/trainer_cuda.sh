#!/usr/bin/env bash
# Tests the trainer with --device cuda: choices that depend on the device's memory, tuning, messages.
# tests/same_bits.sh compares bits. Needs no GPU: it uses the build with the stand-in for the CUDA runtime
# (tests/cuda/), which runs the kernels on the CPU and reorders operations unless an event orders them.
# Usage: tests/trainer_cuda.sh TRAINER
# shellcheck disable=SC2016,SC2086
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
trainer=$(realpath "${1:-build/stand-in/train_gpt2_zero}") || exit 1
export OMP_NUM_THREADS=1

small=(-e l2h2c64v257t16 -b 2 -x 2 -n 0 -u 0 -v 2 -m 1 -s 0 -ge 0 -f 0 --threads 1 --hash full)
compared+=' val_loss'

# ---- choices that depend on the device's memory

# Older devices have a smaller matmul workspace.
old=CUDA_STAND_IN_CAPABILITY=80
level() { sed -nE 's/^numbers .* recompute ([0-3]) \(the lowest that memory allows.*/\1/p' "$dir/$1.screen"; }
chooses() { is "level of $1" "$(level "$1")" "$2"; }
# Prints the bytes that a rank uses on the device, plus a margin for the rounding of its allocations.
on_device() {
    local sum=98304 what
    for what in model_state_bytes working_bytes activation_bytes; do sum=$((sum + $(value "$1" $what))); done
    echo $((sum - $(value "$1" host_bytes)))
}
memory() { echo "CUDA_STAND_IN_MEMORY=$1"; }
device_of() { echo $((($1 + (2 << 20) - 1) >> 21 << 21)); }     # rounds up to 2 MiB, as the stand-in requires
roomy() { device_of $(($1 * 32 / 31)); }        # leaves 1/32 of it free
# apart NAME VARIABLE VALUE VALUE ARGUMENT...: trains two ranks, each with a different value of VARIABLE
apart() {
    local ended
    wrap="values=($3 $4); export $2=\${values[rank]};"
    train 2 "$1" "${@:5}"
    ended=$?
    wrap=
    return $ended
}

begin 'the lowest level of recompute that memory allows'
deep=("$old" --device cuda --dtype bf16 -e l24h1c16v257t32 -b 64 -x 0 -v 0)
for r in 0 2 3; do
    trains 1 level$r "${deep[@]}" -r $r
    chooses level$r ''
    bytes[r]=$(on_device level$r)
    trains 1 room$r "${deep[@]}" "$(memory "$(roomy "${bytes[r]}")")"
    chooses room$r $r
    # At level 3 the device is so small that the logits are computed in two parts.
    equal=$([ $r = 3 ] && echo -lt || echo -eq)
    need "room for level $r: unexpected bytes on the device" [ "$(on_device room$r)" $equal "${bytes[r]}" ]
done
bare=$(memory "$(device_of "${bytes[0]}")")     # no room beyond level 0
trains 1 bare "${deep[@]}" "$bare"
chooses bare 1
trains 1 asked "${deep[@]}" "$bare" -r 0
screen asked '^numbers .* recompute 0, on '
end

# Without recompute, stage 3 fits and stage 0 does not. With GELU in the matmul, both must end with the same
# bits.
begin 'the level of recompute does not change the bits if GELU is fused'
wide=("$old" CUDA_STAND_IN_DEVICES=2 --device cuda --dtype bf16 -e l2h2c128v257t32 -b 8 -x 1 -v 0 -ge 2 \
    --comm host)
for z in 0 3; do
    trains 2 fused$z "${wide[@]}" -z $z -r 0
    bytes[z]=$(roomy "$(on_device fused$z)")
done
need "stage 3 takes ${bytes[3]}, stage 0 ${bytes[0]}" [ "${bytes[3]}" -lt "${bytes[0]}" ]
for z in 0 3; do
    trains 2 little$z "${wide[@]}" "$(memory "${bytes[3]}")" -z $z
    same_result little$z little0
done
end

begin 'block inputs on the host are counted there, not on the device'
trains 1 hosted "${deep[@]}" --cpu-checkpointing
inputs='activations +inputs of blocks .* on the host'
screen hosted ', inputs of blocks on the host, ' "$inputs"
# 2 of 24 block outputs stay on the device: 22 x 64 x 32 tokens x 16 channels in bf16 do not.
is 'bytes saved on the device' $(($(on_device level3) - $(on_device hosted))) $((22 * 64 * 32 * 16 * 2))
is 'activations in all' "$(value hosted activation_bytes)" "$(value level3 activation_bytes)"
trains 1 planned "${deep[@]}" --cpu-checkpointing --plan
is 'the line in the plan' "$(grep -aE "$inputs" "$dir/planned.screen")" \
    "$(grep -aE "$inputs" "$dir/hosted.screen" | tail -n 1)"
end

begin 'ranks agree on the level of recompute'
for r in 0 1; do
    trains 2 pair$r "${deep[@]}" CUDA_STAND_IN_DEVICES=2 --comm host -r $r
    bytes[r]=$(roomy "$(on_device pair$r)")
done
# columns: the levels that fit into the memory of ranks 0 and 1, the number of devices, the level chosen
while read -r first second devices chosen; do
    both=both$first$second$devices
    need "$both failed" apart $both CUDA_STAND_IN_MEMORY "${bytes[first]}" "${bytes[second]}" \
        CUDA_STAND_IN_DEVICES="$devices" --comm host "${deep[@]}"
    chooses $both "$chosen"
done <<<$'0 1 2 1\n1 0 2 1\n0 0 1 3'
end

begin "the LM head is split to fit the device's memory"
logits=(--device cuda --dtype bf16 "$old" -v 0 -e l8h2c64v1024t32 -x 0)
trains 1 large "${logits[@]}" "$(memory $((40 << 20)))" -b 32
trains 1 last "${logits[@]}" "$(memory $((28 << 20)))" -b 29 -r 2
need 'devices of two sizes: failed' apart sizes CUDA_STAND_IN_MEMORY $((40 << 20)) $((28 << 20)) \
    "${logits[@]}" CUDA_STAND_IN_DEVICES=2 --comm host -b 32
screen sizes '^head  *logits in 2 parts of 512 rows$'
screen large '^head  *logits in 1 part of 1024 rows$'
screen last '^head  *logits in 2 parts of 512 rows, the last of 416$'
end

begin 'the scratch memory of attention'
trains 1 rows --device cuda --dtype bf16 -e l1h8c64v257t128 -b 4 -x 0 -v 0 --attention cublaslt \
    --attention-workspace 1
screen rows \
    '^attention.* backward takes 1 of 4 rows of .*: 1.5 MiB of scratch, limit 1 MiB, which one row exceeds$'
end

# ---- the same losses as on the CPU, and from NCCL's sums

begin 'the losses agree with those of the CPU, and of sums by NCCL'
# columns: a run, the run to compare it with, the largest difference, and its arguments
while read -r this other most arguments; do
    trains 1 "$this" -x 6 --device $arguments
    agree "$this" "$other" "$most"
done <<'TABLE'
cpu_fp32 cpu_fp32 0 cpu --dtype fp32
cpu_bf16 cpu_bf16 0 cpu --dtype bf16
cuda_fp32 cpu_fp32 2e-5 cuda --dtype fp32 CUDA_STAND_IN_SPLIT=1
cuda_bf16 cpu_bf16 0.004 cuda --dtype bf16
cuda_ge2 cuda_bf16 0.002 cuda --dtype bf16 -ge 2
cuda_fp16 cuda_fp32 0.002 cuda --dtype fp16 -ge -1
TABLE
for reduce in nccl ranks; do
    trains 2 "$reduce" --device cuda --dtype fp32 --comm nccl CUDA_STAND_IN_DEVICES=2 --reduce "$reduce"
done
screen nccl '^ZeRO  .*nccl, bits depend on it'
agree nccl ranks 2e-5
is 'devices in summary.json' "$(value cuda_bf16 device) $(value cpu_bf16 device)" 'cuda cpu'
end

begin 'the host waits only at the end of a step, and a step allocates nothing'
# 6 steps use every slot of the staging ring.
for x in 6 8; do trains 1 steps$x CUDA_STAND_IN_COUNT=1 --device cuda --dtype bf16 -x $x -v 0; done
count() { sed -nE "s/.*[^0-9]([0-9]+) $2.*/\1/p" "$dir/$1.screen" | tail -n 1; }
need 'no counts' [ -n "$(count steps6 launches)" ]
# per step two calls for the loss and one for the norm
is 'waits in two steps' $(($(count steps8 'host waits') - $(count steps6 'host waits'))) 6
is allocations "$(count steps8 allocations)" "$(count steps6 allocations)"
end

# ---- tuning

# The stand-in's algorithms give different bits; CUDA_STAND_IN_FASTEST selects the fastest.
tuned=(--device cuda --dtype bf16 -x 1 -v 0 -ge 2)
begin 'tuning: the fastest algorithm is chosen and stored, and all ranks use the choices of rank 0'
trains 1 timed "${tuned[@]}" CUDA_STAND_IN_FASTEST=3 --tune "$dir/products.txt"
is 'choices of algorithm 3' "$(grep -c ' = 03000000' "$dir/products.txt")" \
    "$(grep -vc '^#' "$dir/products.txt")"
need 'two ranks: failed' apart two CUDA_STAND_IN_FASTEST 3 4 "${tuned[@]}" --comm host \
    --tune "$dir/two.txt"
choices() { sed 's/ [0-9.]* ms, .*//' "$1" | sort; }
is "the ranks' choices" "$(choices "$dir/two.txt")" "$(choices "$dir/products.txt")"
cp "$dir/two.txt" "$dir/kept.txt"
trains 2 kept "${tuned[@]}" CUDA_STAND_IN_FASTEST=4 --comm host --tune "$dir/kept.txt" -z 2
need 'the file has changed' cmp -s "$dir/two.txt" "$dir/kept.txt"
same_result two kept
end
begin 'tuning: a rank with a different library, and one without the option'
need 'a different library was accepted' not apart unlike CUDA_STAND_IN_CUBLASLT 130100 130200 --device cuda \
    --dtype bf16 --comm host --tune "$dir/two.txt" >/dev/null
screen unlike 'has GPU and library of --tune = "CUDA stand-in .* cuBLASLt 130200 and rank 0 '
wrap='[ $rank = 1 ] || set -- "$@" --tune "'$dir/two.txt'";'
fails 2 unlike --device cuda --dtype bf16 --comm host
wrap=
screen unlike 'has --tune = not given and rank 0 .* has --tune = a file'
end

# ---- checkpoints, answers

begin 'a checkpoint from the CPU resumes on the GPU'
steps=(--dtype fp32 -n 2 -k constant)
trains 2 whole --device cuda --comm host "${steps[@]}" -x 4
trains 2 other --device cpu "${steps[@]}" -x 2
trains 2 other --device cuda --comm host "${steps[@]}" -x 4 -y 1
agree whole other 2e-5
end

# Attention over the cache is a separate kernel. Its last bits differ from the CPU layer's.
begin 'answers'
printf 'Once upon a time\n\nThe dog\n' >"$dir/prompts"
asked=(-e l2h2c64v257t32 --prompts "$dir/prompts" --verbose -g 9 --temperature 0.7)
trains 1 answered --device cpu --dtype fp32 "${asked[@]}"
is answers "$(wc -l <"$dir/answered/answers.jsonl")" 3
for how in '1 fp32' '2 bf16' '1 fp16'; do
    trains "${how% *}" on_device --device cuda --comm host --dtype "${how#* }" "${asked[@]}"
    need "$how: different tokens" cmp -s "$dir/answered/answers.jsonl" "$dir/on_device/answers.jsonl"
    screen on_device '^  activations  keys and values '
done
end

# ---- which GPU a rank uses

# sees NAME GPUS GPUS ARGUMENT...: trains two ranks; each sees only its list of GPUs
sees() { apart "$1" CUDA_VISIBLE_DEVICES "$2" "$3" --device cuda CUDA_STAND_IN_DEVICES=8 "${@:4}"; }
begin 'each rank sees only its own GPU'
need 'failed' sees own 5 2
screen own '^ZeRO  .*nccl, summed in tree order'
need 'MIG: failed' sees mig 5 2 CUDA_STAND_IN_MIG=1        # NCCL refuses two parts of the same GPU
screen mig '^ZeRO  .*shared window \(no NCCL: ranks 0 and 1 are on one GPU of '
same_result mig own
end
# tests/mpi_nccl.c covers ranks that share a GPU.
begin 'ranks on one GPU, also if they list their GPUs in another order'
for gpus in '2 2' '5,2 2,5'; do
    need "$gpus: accepted" not sees few $gpus >/dev/null
    screen few '^train_gpt2_zero: ranks 0 and 1 are on one GPU of host [^ ]+, where 2 ranks have 1 GPU[:;] '\
'start no more ranks there than it has GPUs, let each see only one \(CUDA_VISIBLE_DEVICES, srun .*\), or '\
'let them share with comm.nccl 0'
    is messages "$(grep -ac '^train_gpt2_zero: ' "$dir/few.screen")" 1
done
end

# ---- refusals

odd='option -e l2h3c33v257t16: 33 channels; CUDA needs a multiple of 8: use 48, or --device cpu'
small+=(--device cuda -e l2h2c64v257t32)
refusals <<TABLE
channels not a multiple of 8|1|$odd|-e l2h3c33v257t16
no device|1|option --device cuda.*no CUDA device|CUDA_STAND_IN_DEVICES=0
states too large for the device|1|no memory for.*are free.*What would fit|$(memory 4000000) --dtype bf16 -b 8
a kernel of each rank that fails|2|rank [01].*illegal memory access|CUDA_STAND_IN_FAIL=kernel:90 \
CUDA_STAND_IN_DEVICES=2 --comm nccl
no pinned memory for block inputs|1|no pinned memory for inputs of blocks.*leave out --cpu-checkpointing, \
or use a smaller -b|CUDA_STAND_IN_FAIL=cudaHostRegister:2 --dtype bf16 -e l5h2c64v257t32 --cpu-checkpointing
cuDNN in a build without it|1|cudnn.*without cuDNN|--attention cudnn
TABLE
# A run on a device with this many MiB must be refused with this advice, and must fit with each advised set of
# options.
while IFS='|' read -r what mib advice arguments; do
    arguments="--dtype bf16 $(memory $((mib << 20))) $arguments"
    refused "$what" 1 'no memory for .*What would fit:' $arguments
    begin "$what: the advised options fit"
    has "$dir/refused" activations
    sed -nE 's/^  (-.*) \(.*MiB.*/\1/p' "$dir/refused" >"$dir/advice"
    is advice "$(paste -sd';' "$dir/advice")" "$advice"
    while read -r options; do
        trains 1 advised $arguments -x 0 -v 0 $options
    done <"$dir/advice"
    end
done <<TABLE
activations too large for the device|42|-b 32 -d 2048|-b 64
the requested level is too large|64|-r 1;--offload-optimizer cpu|-e l6h2c64v257t32 -b 64 -r 0
block inputs are too large|10|--cpu-checkpointing;--offload-optimizer cpu|$old -e l24h1c16v257t32 -b 64 -r 3
buckets of the model's size leave no room|54|-z 1 --offload-optimizer cpu -r 1;-d 256 -r 3|\
-e l24h2c64v257t32 -d 512 -z 0 -r 0 -b 8 --bucket 1e9
TABLE

begin '--device auto uses the CPU if no GPU is found, and says why if the GPU cannot be used'
trains 1 auto -x 1 --device auto CUDA_STAND_IN_DEVICES=0
is device "$(value auto device)" cpu
need 'a machine without a GPU needs no reason' not grep -q 'on the CPU:' "$dir/auto.screen"
trains 1 unusable -x 1 --device auto CUDA_STAND_IN_CAPABILITY=75
is device "$(value unusable device)" cpu
screen unusable '^note: the run is on the CPU: device 0 .* has compute capability 7\.5.*8\.0 or newer'
end
finish trainer_cuda
