#!/usr/bin/env bash
# The trainer with --device cuda. Where there is no card: built with the CUDA run time's stand-in
# (tests/cuda/), which runs the kernels on the processor and reorders what nothing orders. Usage:
# tests/trainer_cuda.sh TRAINER
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:-build/stand-in/train_gpt2_zero}") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1

model=(-e l2h2c64v257t16 -b 2 -x 2 -u 0 -v 2 -m 1 -s 0 -ge 0 -f 0 --threads 1 --hash full)

# train NAME NP ARGUMENT...: a run under NAME; its screen in NAME.screen. $env: variables of the stand-in.
# $through: what starts the trainer.
env='' through=()
train() {
    local out=$dir/$1 np=$2 launcher=()
    shift 2
    # a run that does not resume wants a folder of its own
    case " $* " in *' -y 1 '*) ;; *) rm -rf "$out" ;; esac
    [ "$np" = 1 ] || launcher=(mpirun --oversubscribe -np "$np")        # alone it starts faster
    # shellcheck disable=SC2086
    env $env timeout -k 2 90 "${launcher[@]}" "${through[@]}" "$trainer" "${model[@]}" -o "$out" "$@" \
        >"$out.screen" 2>&1 </dev/null && return 0
    echo "--- failed: $*"; tail -n 5 "$out.screen"
    return 1
}
value() { sed -nE "s/.*\"$2\": \"?([^\",{}]+).*/\1/p" "$dir/$1/summary.json"; }
bits() {
    echo "$(value "$1" params_hash) $(value "$1" state_hash) $(value "$1" loss) $(value "$1" \
        val_loss) $(value "$1" grad_norm)"
}
losses() { sed -nE 's/.*"loss": ([0-9.]+).*/\1/p' "$dir/$1/metrics.jsonl" | tr '\n' ' '; }
# The largest difference between two lists of numbers is below $3.
within() { awk -v a="$1" -v b="$2" -v most="$3" 'BEGIN { n = split(a, x); if (!n || n != split(b, y)) exit 1
    for (i = 1; i <= n; i++) { d = x[i] - y[i]; if (d < 0) d = -d; if (d > most) exit 1 } }'; }

# same NAME NP VARIANT...: all variants end with the bits of the first. A variant: variables of the stand-in,
# a colon, arguments.
same() {
    local np=$2 first='' now variant i=0
    begin "$1"
    shift 2
    for variant in "$@"; do
        env=${variant%%:*}; i=$((i + 1))
        # shellcheck disable=SC2086
        need "$variant: did not run" train "same$i" "$np" --device cuda ${variant#*:}
        now=$(bits "same$i"); rm -rf "$dir/same$i"
        first=${first:-$now}
        need "$variant: $now, the first had $first" [ "${#now}" -gt 50 ] &&
            need "$variant: $now, the first had $first" [ "$now" = "$first" ]
    done
    env=''
    end
}

same 'same bits on one rank: stages, modes of the device' 1 ':--dtype bf16 -z 0' \
    'ZERO_POISON=1:--dtype bf16 -z 1' \
    ':--dtype bf16 -z 2' ':--dtype bf16 -z 3' \
    'CUDA_STAND_IN=lazy:--dtype bf16 -z 3' 'CUDA_STAND_IN=rival:--dtype bf16 -z 2' \
    'CUDA_STAND_IN=lag:--dtype bf16 -z 3 --prefetch 2' \
    'CUDA_STAND_IN_ORDER=backward:--dtype bf16 -z 3 --overlap 0' ':--dtype bf16 -z 3 -r 0' \
    ':--dtype bf16 -z 3 -r 2' 'CUDA_STAND_IN=lazy:--dtype bf16 -z 3 -r 3'
# Five blocks: three inputs go to the host and take turns on two buffers of the device.
five='--dtype bf16 -e l5h2c64v257t16'
same 'same bits with the inputs of blocks on the host' 1 ":$five -z 0 -r 0" ":$five -z 3 -r 3" \
    ":$five -z 3 --cpu-checkpointing" "CUDA_STAND_IN=lazy:$five --cpu-checkpointing" \
    "CUDA_STAND_IN=rival:$five --cpu-checkpointing" "CUDA_STAND_IN=lag:$five --cpu-checkpointing" \
    "CUDA_STAND_IN=lag CUDA_STAND_IN_ORDER=backward:$five --cpu-checkpointing" \
    "CUDA_STAND_IN=rival ZERO_POISON=1:$five --cpu-checkpointing"
same 'same bits with them and accumulation' 2 ":$five -z 2 -d 192 -r 1 --comm host" \
    "CUDA_STAND_IN=rival:$five -z 3 -d 192 --cpu-checkpointing --comm host"
same 'same bits of the levels above 0 where the product computes GELU' 1 ":$five -ge 2 -r 1" \
    ":$five -ge 2 -r 2" ":$five -ge 2 -r 3" ":$five -ge 2 --cpu-checkpointing"
mkdir "$disk/nvme"
elsewhere='--dtype bf16 --comm host --clip 0.5'
in_files="$elsewhere -z 3 --nvme $disk/nvme --offload-optimizer nvme --offload-param nvme"
same 'same bits with states on the host and on NVMe' 2 ":$elsewhere -z 3" \
    "CUDA_STAND_IN=rival:$elsewhere -z 1 --offload-optimizer cpu" \
    "CUDA_STAND_IN=lag:$elsewhere -z 2 --offload-optimizer cpu --offload-ratio 0.5 --sub-group-size 2048" \
    "CUDA_STAND_IN=lazy:$elsewhere -z 3 --offload-optimizer cpu --offload-param cpu --prefetch 2" \
    ":$elsewhere -z 3 --offload-optimizer cpu --offload-param cpu --offload-gradients none --overlap 0" \
    "CUDA_STAND_IN=rival:$in_files --max-in-cpu 20000" \
    "CUDA_STAND_IN=lazy:$in_files --offload-gradients nvme --sub-group-size 4096"
same 'same bits on two ranks: stages, modes of the device' 2 ':--dtype bf16 -z 0 --comm host' \
    'CUDA_STAND_IN=rival:--dtype bf16 -z 1 --comm host' \
    'CUDA_STAND_IN=lag:--dtype bf16 -z 2 --comm host' 'CUDA_STAND_IN=lazy:--dtype bf16 -z 3 --comm host' \
    'CUDA_STAND_IN=rival ZERO_POISON=1:--dtype bf16 -z 3 --messages 1 --comm host' \
    'CUDA_STAND_IN_DEVICES=2:--dtype bf16 -z 3 --overlap 0 --comm host' \
    'CUDA_STAND_IN_DEVICES=2:--dtype bf16 -z 3 --comm nccl' \
    'CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN=rival:--dtype bf16 -z 0 --comm nccl' \
    'CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN=lag:--dtype bf16 -z 2' \
    'CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN=lazy:--dtype bf16 -z 2 --comm nccl --comm-type fp32'
begin 'NCCL is taken where it can be, and told'
need 'not by itself' grep -aq '^ZeRO  .*nccl, summed in rank order' "$dir/same9.screen"
env=CUDA_STAND_IN_DEVICES=2
need 'did not run' train ring 2 --device cuda --dtype fp32 --comm nccl --reduce nccl
need 'did not run' train ranked 2 --device cuda --dtype fp32 --comm nccl
env=''
need 'its own order is not told' grep -aq '^ZeRO  .*nccl, bits depend on it' "$dir/ring.screen"
need "loss $(value ring loss), in rank order $(value ranked loss)" within "$(value ring loss)" \
    "$(value ranked loss)" 1e-4
end
same 'same bits with fp16 and accumulation' 1 ':--dtype fp16 -z 2 -d 64' \
    'CUDA_STAND_IN=lag:--dtype fp16 -z 3 -d 64'
same 'same bits without master weights' 2 ':--dtype bf16 -w 0 -z 0 --comm host' \
    'CUDA_STAND_IN=lazy:--dtype bf16 -w 0 -z 3 --comm host'

# What follows the device's memory. Older devices have a smaller workspace for products; the stand-in's memory
# is a multiple of 2 MiB.
small='CUDA_STAND_IN_CAPABILITY=80' two_mib=$((2 << 20))
level() { sed -nE 's/^numbers .* recompute ([0-3]) \(the lowest that memory allows.*/\1/p' "$dir/$1.screen"; }
head_of() { sed -n 's/^head  *//p' "$dir/$1.screen"; }
# Bytes that a rank has on the device, with room for what its allocations are rounded up by.
on_device() {
    local sum=98304 what
    for what in model_state_bytes working_bytes activation_bytes; do sum=$((sum + $(value "$1" $what))); done
    echo $((sum - $(value "$1" host_bytes)))
}
device_of() { echo $((($1 + two_mib - 1) / two_mib * two_mib)); }
roomy() { device_of $(($1 * 32 / 31)); }        # a thirty-second of it stays free
# apart NAME VARIABLE VALUE VALUE ARGUMENT...: two ranks, each with its own value of a variable
apart() {
    local name=$1 status
    # shellcheck disable=SC2016
    printf '#!/bin/bash\nvalues=(%s %s)\nexport %s=${values[OMPI_COMM_WORLD_RANK]}\nexec "$@"\n' \
        "$3" "$4" "$2" >"$dir/apart"
    chmod +x "$dir/apart"
    through=("$dir/apart")
    train "$name" 2 "${@:5}"; status=$?
    through=()
    return $status
}
# each_with NAME BYTES BYTES ARGUMENT...: two ranks, for whom a device has so many bytes
each_with() { apart "$1" CUDA_STAND_IN_MEMORY "$2" "$3" --comm host "${@:4}"; }

begin 'the lowest level of recompute that memory allows'
deep=(--device cuda --dtype bf16 -e l24h1c16v257t32 -b 64 -x 0 -v 0)
for r in 0 1 2 3; do
    env=$small
    need "-r $r: did not run" train "level$r" 1 "${deep[@]}" -r $r
    need "-r $r: told as chosen" [ -z "$(level "level$r")" ]
    bytes[r]=$(on_device "level$r")
    env="$small CUDA_STAND_IN_MEMORY=$(roomy "${bytes[r]}")"
    need "room for $r: did not run" train "room$r" 1 "${deep[@]}"
    need "room for $r: chose '$(level "room$r")'" [ "$(level "room$r")" = $r ]
    # the device of level 3 is so small that the logits come in two parts
    equal=$([ $r = 3 ] && echo -lt || echo -eq)
    need "room for $r: other bytes than planned" [ "$(on_device "room$r")" $equal "${bytes[r]}" ]
done
env="$small CUDA_STAND_IN_MEMORY=$(device_of "${bytes[0]}")"
need 'room for 0, and nothing else: did not run' train bare 1 "${deep[@]}"
need "room for 0, and nothing else: chose '$(level bare)'" [ "$(level bare)" = 1 ]
need 'room for 0, and nothing else, -r 0: did not run' train asked 1 "${deep[@]}" -r 0
need '-r 0 is not taken' grep -aq '^numbers .* recompute 0, on ' "$dir/asked.screen"
env=''
end

# Nothing recomputed fits at stage 3 and not at stage 0: with GELU in the product both must take the same
# bits.
begin 'the level of recompute leaves the bits alone where GELU is fused'
wide=(--device cuda --dtype bf16 -e l2h2c128v257t32 -b 8 -x 1 -v 0 -ge 2 --comm host)
env="$small CUDA_STAND_IN_DEVICES=2"
for z in 0 3; do
    need "-z $z: did not run" train "fused$z" 2 "${wide[@]}" -z $z -r 0
    bytes[z]=$(roomy "$(on_device "fused$z")")
done
need "stage 3 takes ${bytes[3]}, stage 0 ${bytes[0]}" [ "${bytes[3]}" -lt "${bytes[0]}" ]
env="$small CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN_MEMORY=${bytes[3]}"
for z in 0 2 3; do
    need "-z $z, little memory: did not run" train "little$z" 2 "${wide[@]}" -z $z
    need "-z $z: $(bits little$z), not $(bits little0)" [ "$(bits little$z)" = "$(bits little0)" ]
done
env=''
end

begin 'the inputs of blocks on the host: counted there, and not on the device'
env=$small
need 'they are not told' grep -aq ', inputs of blocks on the host, ' <(train hosted 1 "${deep[@]}" \
    --cpu-checkpointing; cat "$dir/hosted.screen")
need 'no line in the table' grep -aqE 'activations +inputs of blocks .* on the host' "$dir/hosted.screen"
# of 24 blocks' outputs two stay: 22 x 64 x 32 tokens x 16 channels in bf16
less=$(($(on_device level3) - $(on_device hosted)))
need "$less bytes less on the device" [ $less = $((22 * 64 * 32 * 16 * 2)) ]
need 'others in all' [ "$(value hosted activation_bytes)" = "$(value level3 activation_bytes)" ]
need 'no plan' train planned 1 "${deep[@]}" --cpu-checkpointing --plan
need 'not in the plan' [ "$(grep -a 'inputs of blocks .* on' "$dir/planned.screen")" \
    = "$(grep -a 'inputs of blocks .* on' "$dir/hosted.screen" | tail -n 1)" ]
env=''
end

begin 'ranks agree on the level of recompute'
env="$small CUDA_STAND_IN_DEVICES=2"
for r in 0 1; do
    need "-r $r: did not run" train "pair$r" 2 "${deep[@]}" --comm host -r $r
    bytes[r]=$(roomy "$(on_device "pair$r")")
done
need 'rank 1 has less: did not run' each_with less1 "${bytes[0]}" "${bytes[1]}" "${deep[@]}"
need "rank 1 has less: chose '$(level less1)'" [ "$(level less1)" = 1 ]
need 'rank 0 has less: did not run' each_with less0 "${bytes[1]}" "${bytes[0]}" "${deep[@]}"
need "rank 0 has less: chose '$(level less0)'" [ "$(level less0)" = 1 ]
need 'both have enough: did not run' each_with both "${bytes[0]}" "${bytes[0]}" "${deep[@]}"
need "both have enough: chose '$(level both)'" [ "$(level both)" = 0 ]
env="$small CUDA_STAND_IN_DEVICES=1"
need 'on one device: did not run' each_with shared "${bytes[0]}" "${bytes[0]}" "${deep[@]}"
need "on one device, with room for one of them: chose '$(level shared)'" [ "$(level shared)" = 3 ]
env=''
end

deep=(--device cuda --dtype bf16 -e l4h2c64v1024t32 -b 32 -x 1 -v 0)
tight="$small CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN_MEMORY=$((18 << 20)):${deep[*]} --comm host"
same 'same bits where the device has no room for all logits' 2 "$tight -z 0" \
    "$tight -z 3 --prefetch 3 -r 2 --comm-type fp32"
begin 'the parts of the head follow the size of the device'
for i in 1 2; do
    need "variant $i: $(head_of same$i)" [ "$(head_of same$i)" = 'logits in 2 parts of 512 rows' ]
done
deep=(--device cuda --dtype bf16 -e l8h2c64v1024t32 -b 32 -x 0 -v 0)
env="$small CUDA_STAND_IN_MEMORY=$((40 << 20))"
need 'a larger device: did not run' train large 1 "${deep[@]}"
need "a larger device: $(head_of large)" [ "$(head_of large)" = 'logits in 1 part of 1024 rows' ]
env="$small CUDA_STAND_IN_MEMORY=$((28 << 20))"
need 'a last part: did not run' train last 1 "${deep[@]}" -b 29 -r 2
need "a last part: $(head_of last)" [ "$(head_of last)" = 'logits in 2 parts of 512 rows, the last of 416' ]
env="$small CUDA_STAND_IN_DEVICES=2"
need 'devices of two sizes: did not run' each_with sizes $((40 << 20)) $((28 << 20)) "${deep[@]}"
need "devices of two sizes: $(head_of sizes)" [ "$(head_of sizes)" = 'logits in 2 parts of 512 rows' ]
env=''
end

begin 'the scratch of attention'
wide=(--device cuda --dtype bf16 -e l1h8c64v257t128 -b 4 -x 1 -v 0 --attention cublaslt)
told() { grep -a '^attention' "$dir/$1.screen" | sed 's/.*backward takes //'; }
need 'did not run' train rows4 1 "${wide[@]}"
need "$(told rows4)" [ "$(told rows4)" \
    = '4 of 4 rows of the batch at a time: 6.0 MiB of scratch, limit 64 MiB' ]
need 'less than a row: did not run' train rows1 1 "${wide[@]}" --attention-workspace 1
need "$(told rows1)" [ "$(told rows1)" = \
    '1 of 4 rows of the batch at a time: 1.5 MiB of scratch, limit 1 MiB, which one row exceeds' ]
need 'other bits' [ "$(bits rows1)" = "$(bits rows4)" ]
end
same 'same bits with bias gradients by the products of GELU' 1 ':--dtype bf16 -z 0 -ge 2' \
    'CUDA_STAND_IN=lag:--dtype bf16 -z 3 -ge 2' \
    'CUDA_STAND_IN=rival:--dtype bf16 -z 2 -ge 2'

begin 'the losses of the processor'
for dtype in fp32 bf16; do
    need "$dtype, cpu" train "cpu_$dtype" 1 --device cpu --dtype $dtype -x 6
    need "$dtype, cuda" train "cuda_$dtype" 1 --device cuda --dtype $dtype -x 6
done
need 'cuda, GELU in the products' train cuda_ge2 1 --device cuda --dtype bf16 -x 6 -ge 2
need 'cuda, default -ge, fp16' train cuda_fp16 1 --device cuda --dtype fp16 -x 6 -ge -1
need "fp32: $(losses cuda_fp32), on a processor $(losses cpu_fp32)" within "$(losses cuda_fp32)" \
    "$(losses cpu_fp32)" 1e-4
need "bf16: $(losses cuda_bf16), on a processor $(losses cpu_bf16)" within "$(losses cuda_bf16)" \
    "$(losses cpu_bf16)" 0.02
need "-ge 2: $(losses cuda_ge2), apart $(losses cuda_bf16)" within "$(losses cuda_ge2)" \
    "$(losses cuda_bf16)" 0.01
need "fp16: $(losses cuda_fp16), fp32 $(losses cuda_fp32)" within "$(losses cuda_fp16)" \
    "$(losses cuda_fp32)" 0.01
need 'device in summary.json' [ "$(value cuda_bf16 device) $(value cpu_bf16 device)" = 'cuda cpu' ]
end

begin 'the host waits only at the end of a step, and nothing is allocated in one'
env=CUDA_STAND_IN_COUNT=1
# staging is a ring: all of it has been used then
need 'did not run' train steps6 1 --device cuda --dtype bf16 -x 6 -v 0
need 'did not run' train steps8 1 --device cuda --dtype bf16 -x 8 -v 0
env=''
count() { sed -nE "s/.*[^0-9]([0-9]+) $2.*/\1/p" "$dir/$1.screen" | tail -n 1; }
need 'no counts' [ -n "$(count steps6 launches)" ]
waits=$(($(count steps8 'host waits') - $(count steps6 'host waits')))
need "$waits waits in two steps: two calls for the loss and one for the norm, each" [ "$waits" = 6 ]
need 'allocations in a step' [ "$(count steps8 allocations)" = "$(count steps6 allocations)" ]
end

# The stand-in's algorithms have other bits by turns, and CUDA_STAND_IN_FASTEST says which is the fastest.
tuned=(--device cuda --dtype bf16 -x 1 -v 0)
begin 'tuning: the fastest is chosen and kept, and all ranks take the choice of rank 0'
env=CUDA_STAND_IN_FASTEST=3
need 'timing: did not run' train timed 1 "${tuned[@]}" -ge 2 --tune "$dir/products.txt"
need 'not algorithm 3' [ "$(grep -c ' = 03000000' "$dir/products.txt")" \
    = "$(grep -vc '^#' "$dir/products.txt")" ]
cp "$dir/products.txt" "$dir/kept.txt"
env=CUDA_STAND_IN_FASTEST=4
need 'with the file: did not run' train kept 1 "${tuned[@]}" -ge 2 --tune "$dir/kept.txt" -z 0
need 'the file has changed' cmp -s "$dir/products.txt" "$dir/kept.txt"
need "bits $(bits kept), when they were timed $(bits timed)" [ "$(bits kept)" = "$(bits timed)" ]
env=''
need 'two ranks: did not run' apart two CUDA_STAND_IN_FASTEST 3 4 "${tuned[@]}" -ge 2 --comm host \
    --tune "$dir/two.txt"
env=CUDA_STAND_IN_FASTEST=3
need 'two ranks: not the choices of rank 0' [ "$(sed 's/ [0-9.]* ms, .*//' "$dir/two.txt" | sort)" \
    = "$(sed 's/ [0-9.]* ms, .*//' "$dir/products.txt" | sort)" ]
need 'two ranks with the file: did not run' train two_kept 2 "${tuned[@]}" -ge 2 --comm host \
    --tune "$dir/two.txt" -z 2
need "two ranks: $(bits two), with the file $(bits two_kept)" [ "$(bits two)" = "$(bits two_kept)" ]
env=CUDA_STAND_IN_REFUSED=3         # all ranks take algorithm 3 by themselves
need 'algorithm 3: did not run' train two_third 2 "${tuned[@]}" -ge 2 --comm host
need "two ranks: $(bits two), with algorithm 3 $(bits two_third)" [ "$(bits two)" = "$(bits two_third)" ]
env=''
end
begin 'tuning: a rank with another library, and one without the option'
need 'another library: it runs' not apart unlike CUDA_STAND_IN_CUBLASLT 130100 130200 --device cuda \
    --dtype bf16 --comm host --tune "$dir/two.txt" >/dev/null
need "$(tail -n 2 "$dir/unlike.screen")" grep \
    -aq 'has GPU and library of --tune = "CUDA stand-in .* cuBLASLt 130200 and rank 0 ' "$dir/unlike.screen"
# shellcheck disable=SC2016
printf '#!/bin/bash\nif [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec "$@"; else exec "$@" --tune %s; fi\n' \
    "$dir/two.txt" >"$dir/odd_one"
chmod +x "$dir/odd_one"
through=("$dir/odd_one")
need 'one without the option: it runs' not train unlike 2 --device cuda --dtype bf16 --comm host >/dev/null
need "$(tail -n 2 "$dir/unlike.screen")" grep -aq 'has --tune = not given and rank 0 .* has --tune = a file' \
    "$dir/unlike.screen"
through=()
end

begin 'a checkpoint of one device goes on on the other'
need 'on cuda' train whole 2 --device cuda --comm host --dtype fp32 -x 4 -n 2 -k constant
need 'on a processor' train other 2 --device cpu --dtype fp32 -x 2 -n 2 -k constant
need 'the state of a processor, on cuda' train other 2 --device cuda --comm host --dtype fp32 -x 4 -y 1 \
    -k constant
need 'losses differ' within "$(value whole loss)" "$(value other loss)" 1e-4
end

# The types differ too little in their logits for another token to be drawn.
sampled() { sed '1,/^generating:$/d' "$dir/$1.screen" | sed '1d; /^---$/,$d' | od -An -c; }
begin 'samples'
for dtype in fp32 bf16 fp16; do
    need "$dtype: did not run" train "$dtype" 1 --device cuda --dtype $dtype -e l2h2c64v257t32 -x 3 \
        -v 0 -s 3 -g 30 --temperature 0.7
    need "$dtype: no text" [ -n "$(sampled $dtype)" ]
    need "$dtype: '$(sampled $dtype)', fp32 '$(sampled fp32)'" [ "$(sampled $dtype)" = "$(sampled fp32)" ]
done
end

# What attends over the cache is a kernel of its own, which gives other last bits than the CPU's layer.
begin 'answers'
printf 'Once upon a time\n\nThe dog\n' >"$dir/prompts"
asked=(-e l2h2c64v257t32 --prompts "$dir/prompts" -g 9 --temperature 0.7)
need 'fp32: did not run' train answered 1 --device cpu --dtype fp32 "${asked[@]}"
need 'no answers' [ "$(wc -l <"$dir/answered/answers.jsonl")" = 3 ]
for dtype in fp32 bf16 fp16; do
    for np in 1 2; do
        need "$dtype, $np ranks: did not run" train on_device $np --device cuda --comm host --dtype $dtype \
            "${asked[@]}"
        need "$dtype, $np ranks: other tokens" cmp -s "$dir/answered/answers.jsonl" \
            "$dir/on_device/answers.jsonl"
        need 'no cache in the table' grep -q '^  activations  keys and values ' "$dir/on_device.screen"
    done
done
end

# seen NAME GPUS GPUS: two ranks, each with the GPUs that it sees
seen() { apart "$1" CUDA_VISIBLE_DEVICES "$2" "$3" --device cuda; }
begin 'each rank sees one GPU only, its own'
env=CUDA_STAND_IN_DEVICES=8
need 'did not run' seen own 5 2
need 'not by NCCL' grep -aq '^ZeRO  .*nccl, summed in rank order' "$dir/own.screen"
env='CUDA_STAND_IN_DEVICES=8 CUDA_STAND_IN_MIG=1'
need 'MIG: did not run' seen mig 5 2
need 'MIG: by NCCL, which refuses that' grep \
    -aq '^ZeRO  .*shared window (no NCCL: ranks 0 and 1 are on one GPU of ' "$dir/mig.screen"
need "through the host $(bits mig), by NCCL $(bits own)" [ "$(bits mig)" = "$(bits own)" ]
end
# shared NAME RANKS WORDS: the run under NAME ended with that
shared() {
    need "$(tail -n 3 "$dir/$1.screen")" grep \
        -aqE "^train_gpt2_zero: ranks $2 are on one GPU of host [^ ]+, where $3[:;] start no more ranks "\
'there than it has GPUs, let each see only one \(CUDA_VISIBLE_DEVICES, srun .*\), or let them share with '\
'comm.nccl 0' "$dir/$1.screen"
    need "$1: more than one message" [ "$(grep -ac '^train_gpt2_zero: ' "$dir/$1.screen")" = 1 ]
}
begin 'ranks on one GPU'
env=CUDA_STAND_IN_DEVICES=1
need 'two on the only one: it runs' not train few 2 --device cuda >/dev/null
shared few '0 and 1' '2 ranks have 1 GPU'
env=CUDA_STAND_IN_DEVICES=2
need 'three on two: it runs' not train few3 3 --device cuda >/dev/null
shared few3 '0 and 2' '3 ranks have 2 GPUs'
env=CUDA_STAND_IN_DEVICES=8
need 'one number for it and the other: it runs' not seen turned 5,2 2,5 >/dev/null
shared turned '0 and 1' '2 ranks have 1 GPU'
env=''
end

# refused NAME WORD... -- ARGUMENT...: ends with a status that is not 0 and one sentence that has the words.
refused() {
    local name=$1 words=() word status
    shift
    while [ "$1" != -- ]; do words+=("$1"); shift; done
    shift
    begin "$name"
    # shellcheck disable=SC2086
    env $env timeout -k 2 60 "$trainer" "${model[@]}" -e l2h2c64v257t32 --device cuda "$@" \
        >"$dir/refused" 2>&1 </dev/null
    status=$?
    need "status $status" [ $status != 0 ] && need 'a crash or a time-out' [ $status -lt 124 ]
    for word in "${words[@]}"; do
        need "no '$word' in: $(tail -n 2 "$dir/refused")" grep -aqF -- "$word" "$dir/refused"
    done
    env=''
    end
}
odd='option -e l2h3c33v257t16: 33 channels; CUDA needs a multiple of 8: take 48, or --device cpu'
refused 'rows that are no multiple of 8' "$odd" -- -e l2h3c33v257t16
refused 'nor are they planned' "$odd" -- -e l2h3c33v257t16 --plan
env=CUDA_STAND_IN_DEVICES=0 refused 'no device' 'option --device cuda' 'no CUDA device' --
env=CUDA_STAND_IN_CAPABILITY=75 refused 'an old device' '7.5' '8.0 or newer' --
env=CUDA_STAND_IN_MEMORY=4000000 refused 'states too large for the device' 'no memory for' 'are free' \
    'What would fit' -- --dtype bf16 -b 8
env=CUDA_STAND_IN_FAIL=launch:40 refused 'a kernel that fails' 'rror' --
env=CUDA_STAND_IN_FAIL=cudaHostRegister:2 refused 'no pinned memory for the inputs of blocks' \
    'no pinned memory for inputs of blocks' 'leave out --cpu-checkpointing, or use a smaller -b' -- \
    --dtype bf16 -e l5h2c64v257t32 --cpu-checkpointing
# advised NAME MIB OPTIONS... -- ARGUMENT...: refused with so much memory and $env; these sets of options are
# the advice, and each of them runs there.
advised() {
    local name=$1 memory="$env CUDA_STAND_IN_MEMORY=$(($2 << 20))" lines=() line
    shift 2
    while [ "$1" != -- ]; do lines+=("$1"); shift; done
    shift
    env=$memory refused "$name" 'activations' 'What would fit:' "${lines[@]/%/ (}" -- --dtype bf16 "$@"
    begin "$name: what is advised fits"
    need "more sets" [ "$(grep -c '^  -.*MiB' "$dir/refused")" = ${#lines[@]} ]
    for line in "${lines[@]}"; do
        env=$memory
        # shellcheck disable=SC2086
        need "$line: did not run" train advised 1 --device cuda --dtype bf16 "$@" -x 0 -v 0 $line
    done
    env=''
    end
}
advised 'activations too large for the device' 42 '-b 32 -d 2048' -- -b 64
advised 'the level that was asked for is too large' 64 '-r 1' '--offload-optimizer cpu' -- \
    -e l6h2c64v257t32 -b 64 -r 0
env=$small advised 'the inputs of blocks are too large' 10 --cpu-checkpointing \
    '--offload-optimizer cpu' -- \
    -e l24h1c16v257t32 -b 64 -r 3
deep=(-e l24h2c64v257t32 -d 512 -z 0 -r 0)
advised 'the batch is too large' 56 '-r 3 --cpu-checkpointing' '-z 1 --offload-optimizer cpu' -- \
    "${deep[@]}" -b 8
# Buckets as large as the model take the room of activations.
advised 'buckets leave no room' 54 '-z 1 --offload-optimizer cpu -r 1' '-d 256 -r 3' -- "${deep[@]}" -b 8 \
    --bucket 1e9
sed 's/ epilogue 4 = 03/ epilogue 4 = 05/' "$dir/products.txt" >"$dir/damaged.txt"
refused 'a tuning file that is damaged' 'damaged.txt, line 2: damaged: delete the line' -- \
    --tune "$dir/damaged.txt"
refused 'a tuning file where there is no folder' 'nowhere/products.txt' 'No such file' -- \
    -e l1h1c16v257t16 -b 1 --tune "$dir/nowhere/products.txt" -x 0 -v 0
env=CUDA_STAND_IN_REFUSED=8 refused 'no algorithm of cuBLASLt works' 'no algorithm, for a matmul of' --
refused '--reduce nccl without --comm nccl' '--comm nccl' -- --reduce nccl
refused 'cuDNN where it is not built in' 'cudnn' 'without cuDNN' -- --attention cudnn

begin 'auto takes the processor where there is no device'
env=CUDA_STAND_IN_DEVICES=0
need 'did not run' train auto 1 -x 1
need "device $(value auto device)" [ "$(value auto device)" = cpu ]
env=''
end
finish trainer_cuda
