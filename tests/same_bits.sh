#!/usr/bin/env bash
# Same bits: the results of a run do not depend on how it runs. The rows of a group train with equal settings
# on different backends. Each must end with the loss, norm and digests of the first row, and must print its
# backend and its settings. The first row is the naive path, or stage 0 or 2 where that cannot be used.
# tests/mpi_bits.c draws combinations of the plugin's settings. This table has what the trainer adds: its
# options, layers and data, resuming on another backend, and how ranks are started.
# Usage: tests/same_bits.sh TRAINER [GROUP]...      groups: cpu starts cuda (cuda: the stand-in's trainer)
# shellcheck disable=SC2086
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
. tests/hosts.sh
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1
shift
export OMP_NUM_THREADS=1 TMPDIR=$dir
trap 'hosts_end; rm -rf "$dir" "$disk"' EXIT
small=(-b 2 -x 3 -k constant -u 0 -v 0 -s 0 -n 0 --threads 1 --overlap 0 --hash full --progress lines)
folder=$disk/nvme
mkdir "$folder"

# Of each backend, the arguments that select it, and the line that shows it. NP is the number of ranks.
on_nvme="--nvme $folder --offload-optimizer nvme"
declare -A selects=(
    [window]='' [mpirun]='' [sbatch]='' [hosts]='' [messages]='--messages 1' [host]='--comm host'
    [nccl]='--comm nccl CUDA_STAND_IN_DEVICES=NP' [auto]='CUDA_STAND_IN_DEVICES=NP'
    [offload]='--offload-optimizer cpu --offload-param cpu'
    [updates]="$on_nvme" [nvme]="$on_nvme --offload-param nvme"
)
inside='^ZeRO .*(shared window|one rank|self)' nccl='^ZeRO .*nccl, summed in tree order'
declare -A shows=(
    [window]=$inside [mpirun]=$inside [sbatch]=$inside
    [hosts]='^ZeRO .*shared windows of 2 ranks, messages between 2 hosts'
    [messages]='^ZeRO .*messages \(as configured\)' [host]=$inside [nccl]=$nccl [auto]=$nccl
    [offload]='^config .*offload.params cpu \(option'
    [updates]='^  model states first moment .* on NVMe' [nvme]='^  model states parameters .* on NVMe'
)

# recipe NAME BACKEND ARGUMENT...: trains four ranks with scripts/multi_node/
recipe() {
    local out=$dir/$1 script=mpi.sh on=()
    export TRY=1 TRAINER=$trainer ARGUMENTS="${data[*]} ${small[*]} -o $out ${*:3}" HOSTS=localhost GPUS=4
    case $2 in
        sbatch) script=sbatch ;;
        hosts)
            HOSTS='10.77.7.1 10.77.7.2' GPUS=2
            on=(bash -c ". tests/hosts.sh; hosts_tag=$hosts_tag; hosts_run 0 \"\$@\"" -) ;;
    esac
    rm -rf "$out"
    timeout -k 2 $hang_limit "${on[@]}" "$(echo "$PWD"/scripts/multi_node/run_gpt2_1558M?$script)" \
        >"$out.screen" 2>&1 </dev/null || need "failed: ${*:2}: $(tail -n 3 "$out.screen")" false
}
# lists NAME ARGUMENT...: checks that the run prints each setting of the plugin that an option gave it
lists() {
    local option own='bucket|prefetch|param-group|window|messages|comm.*'
    own+='|offload-.*|nvme.*|sub-.*|max-.*|delayed.*'
    for option in "${@:2}"; do
        [[ ! $option =~ ^(-w|--($own))$ ]] || screen "$1" "^config .* \(option $option\)"
    done
}
# part BACKEND[@RANKS] NP ARGUMENT...: trains in the folder "run", on RANKS or else NP ranks
part() {
    local backend=${1%@*} np=$2
    [ "$backend" = "$1" ] || np=${1#*@}
    shift 2
    set -- ${selects[$backend]//NP/$np} "$@"
    case $backend in
        mpirun | sbatch | hosts) recipe run $backend "$@" ;;
        *) trains $np run "$@" ;;
    esac
    screen run "${shows[$backend]}"
    lists run "$@"
}

# table: reads groups: a line "= NAME|RANKS|ARGUMENTS OF ALL ROWS", then rows "BACKEND[@RANKS]
# ARGUMENTS". A row may have several parts, separated by " > ". Each part resumes where the previous one
# ended.
table() {
    local line group= np common first parts i
    while read -r line; do
        case $line in
            =*)
                [ -z "$group" ] || end
                IFS='|' read -r group np common <<<"${line#= }"
                begin "bits.$group"
                first=
                continue ;;
            hosts*) [ $hosts_n != 0 ] || continue ;;
            '') continue ;;
        esac
        mapfile -t parts <<<"${line// > /$'\n'}"
        for i in "${!parts[@]}"; do
            set -- ${parts[i]}
            [ $i = 0 ] || set -- "$@" -y 1
            part "$1" "$np" $([ $((i + 1)) = ${#parts[@]} ] || echo "-n -1") $common "${@:2}"
        done
        first=${first:-$(result run)}
        is "$line" "$(result run)" "$first"
        need 'no digests' [ ${#first} -gt 40 ]
    done
    end
    begin 'bits.no files are left'
    is files "$(ls "$folder")" ''
    end
}

test_cpu() {
    data=(--device cpu -e l2h2c32v257t32)
    table <<'END'
= fp32, two ranks|2|--dtype fp32
window -z 0 --naive 1
window -z 1 --overlap 1
messages ZERO_POISON=1 -z 2 --bucket 1
nvme ZERO_POISON=1 --overlap 1 --prefetch 3 --nvme-verify
window -z 2 -x 1 > nvme -x 2 > messages -z 0 -x 3

= bf16, three ranks, recompute, with validation and samples|3|--dtype bf16 -e l4h2c32v257t32
window -z 0 --naive 1 -r 0
messages -z 0 -r 3 --comm-type fp32
window -z 1 -r 1 --overlap 1 -v 1 -m 1 -h 1 --hellaswag tests/reference_hellaswag.bin
messages ZERO_POISON=1 -z 2 -r 2 --overlap 1 --bucket 1e9
nvme -r 3 --max-in-cpu 20000
window --cpu-checkpointing -v 1 -m 2 -s 1 -g 4 -h 1 --hellaswag tests/reference_hellaswag.bin
messages -z 1 -r 3 -x 1 > offload -r 0 -x 2 > window -r 2 -x 3

= micro-batches, stages 0 and 1|2|--dtype bf16 -d 256
window -z 0 --naive 1
messages -z 1 -r 3 --overlap 1

= micro-batches, stages 2 and 3|2|--dtype bf16 -d 256 --clip 0.5
window -z 2
window --overlap 1 --bucket 1 -r 3
nvme --offload-gradients nvme --overlap 1 --sub-group-size 2048
messages -z 2 -x 1 > nvme -x 3

= micro-batches by layers, three ranks and micro-batches|3|--dtype bf16 -d 576 --accumulate layers
window -z 0 -r 0
messages ZERO_POISON=1 -z 1 -r 3 --overlap 1
window -z 2 -r 2 --bucket 1 --comm-type fp32
nvme ZERO_POISON=1 --offload-gradients nvme --overlap 1
window -z 3 -r 1 -x 1 > updates -z 2 -x 3

= parameters in groups of ranks|4|--dtype bf16 -d 512
window -z 2
messages ZERO_POISON=1 --param-group 2 --overlap 1
offload --param-group 2 -r 3 --prefetch 0 --window 65536
updates --param-group 2 -v 1 -m 1 -s 1 -g 4
window --param-group 2 -x 1 > window -z 2 -x 2 > messages --param-group 1 -x 3

= any ranks, fp32|1|--dtype fp32 -d 512 --any-ranks 1
window -z 0
window@2 -z 2 -r 3 --bucket 1e9
nvme@2 --overlap 1 -v 1 -m 1
messages@4 -z 0 -r 3 --overlap 1
offload@4 ZERO_POISON=1 -r 0
window@8 --prefetch 0
window@2 -z 2 -x 1 > nvme@4 -x 2 > window -z 0 -x 3

= any ranks, bf16|1|--dtype bf16 -d 512 --any-ranks 1 --clip 0.5
window -z 0 -r 3
window@2 -z 1 -r 0
messages@2 ZERO_POISON=1 -z 3 -r 3 --overlap 1
window@4 -z 2 -r 0 --comm-type fp32
nvme@4 --offload-gradients nvme -r 3
messages@8 --param-group 4 -r 3 --overlap 1
window@4 --param-group 2 -x 1 > window@2 --param-group 1 -x 2 > window@4 -z 1 -x 3

= units of one matrix, two ranks|2|--dtype bf16 -e l3h2c32v257t32
window -z 0 --naive 1
window --units matrix -r 0 --prefetch 0 -v 1 -m 2 -s 1 -g 4 -h 1 --hellaswag tests/reference_hellaswag.bin
messages --units matrix ZERO_POISON=1 -z 2 -r 2 --overlap 1
nvme --units matrix ZERO_POISON=1 -r 3 --prefetch 3 --overlap 1
window -x 1 > nvme --units matrix -x 2 > window -z 1 -x 3

= units of one matrix, micro-batches|2|--dtype bf16 -d 256 -e l3h2c32v257t32 --clip 0
window -z 2
nvme --units matrix -r 3 --offload-gradients nvme --overlap 1 --sub-group-size 2048

= units of one matrix, by layers|2|--dtype bf16 -d 384 -e l3h2c32v257t32 --accumulate layers
window -z 0 -r 0
messages --units matrix ZERO_POISON=1 -z 1 -r 2
window --units matrix ZERO_POISON=1 -r 3 --overlap 1
nvme --units matrix --offload-gradients nvme

= units of one matrix, any ranks|1|--dtype bf16 -d 512 -e l3h2c32v257t32 --any-ranks 1
window -z 0
window@4 --units matrix -r 3
nvme@2 --units matrix -x 1 > offload@4 -x 2 > window -z 0 --units matrix -x 3

= an update during backward|2|--dtype bf16 -d 256 --clip 0
window -z 2
nvme --offload-gradients nvme --overlap 1 --sub-group-size 2048

= a delayed update, completed by saves|2|--dtype bf16 -x 6 -n 2 --delayed-update 3
offload
nvme --offload-gradients nvme --overlap 1 -sg 1e9
offload -x 4 > nvme -x 6

= skipped steps|2|--dtype bf16 -x 6 -sg 0.1
window -z 0 --naive 1
updates -z 2
END
}

# Ranks started by the recipes for several machines, and on two hosts
test_starts() {
    data=(--device cpu)
    hosts_make 2 || skip 'bits.two hosts' "$hosts_why"
    hosts_commands
    table <<'END'
= recipes and hosts|4|--dtype fp32 -e l2h2c32v257t32
window -z 0 --naive 1
mpirun -z 1
sbatch -z 3
hosts -z 3 --overlap 1
hosts -z 3 --param-group 2 --overlap 1
hosts -z 0 --window 65536
END
}

# CUDA_STAND_IN is how the stand-in reorders operations; without it, it runs them in order.
test_cuda() {
    data=(--device cuda -e l2h2c32v257t16)
    small+=(-x 2 -v 2 -m 1 -ge 0 -f 0 --overlap auto)
    compared+=' val_loss'
    # With five blocks, three inputs go to the host and share two buffers on the device. A device with 18 MiB
    # has no room for all logits.
    table <<END
= cuda: one rank, recompute, block inputs on the host|1|--dtype bf16 -e l5h2c32v257t16
window -z 0 -r 0
window -z 1 CUDA_STAND_IN_ALIGNED=8
window -z 2 -r 2 CUDA_STAND_IN=rival
window CUDA_STAND_IN=lag --prefetch 2
window -r 3 CUDA_STAND_IN=lazy
window --cpu-checkpointing CUDA_STAND_IN=lag CUDA_STAND_IN_ORDER=backward
window --cpu-checkpointing CUDA_STAND_IN=rival ZERO_POISON=1

= cuda: two ranks, all backends|2|--dtype bf16 --clip 0.5
host -z 0
host -z 1 CUDA_STAND_IN=rival
messages --comm host ZERO_POISON=1 CUDA_STAND_IN=rival
auto -z 2 CUDA_STAND_IN=lag
nccl -z 0 CUDA_STAND_IN=rival
nccl -z 2 CUDA_STAND_IN=lazy --comm-type fp32
nccl CUDA_STAND_IN=lag
offload --comm host CUDA_STAND_IN=lazy --prefetch 2
updates --comm host -z 2 --offload-ratio 0.5 --sub-group-size 2048 CUDA_STAND_IN=lag
nvme --comm host --max-in-cpu 8000 CUDA_STAND_IN=rival
nvme --comm host -x 1 > nccl -x 2

= cuda: three micro-batches by layers, block inputs on the host|1|--dtype bf16 -d 96 --accumulate layers \
-e l5h2c32v257t16
window -z 0 -r 0
window -z 2 -r 2 CUDA_STAND_IN=rival
window --cpu-checkpointing CUDA_STAND_IN=lag ZERO_POISON=1
window --cpu-checkpointing CUDA_STAND_IN=lazy CUDA_STAND_IN_ORDER=backward

= cuda: units of one matrix, matmuls compute GELU and bias gradients|1|--dtype bf16 -e l5h2c32v257t16 \
-ge 2 CUDA_STAND_IN_FASTEST=3 --tune $dir/t.txt
window -z 0 -r 1
window --units matrix -r 3 CUDA_STAND_IN=lag
window --units matrix --cpu-checkpointing CUDA_STAND_IN=lazy ZERO_POISON=1
window --units matrix --cpu-checkpointing CUDA_STAND_IN=rival CUDA_STAND_IN_ORDER=backward

= cuda: units of one matrix, the level of recompute is chosen|1|--dtype bf16 -ge 2
window
window --units matrix

= cuda: units of one matrix, three micro-batches by layers|2|--dtype bf16 -d 192 -e l3h2c32v257t16 \
--accumulate layers -ge 2 CUDA_STAND_IN_FASTEST=3 --tune $dir/t.txt
host -z 0 -r 1
nccl --units matrix -r 2 CUDA_STAND_IN=rival
nccl --units matrix -r 3 ZERO_POISON=1 CUDA_STAND_IN=lag

= cuda: four micro-batches by layers|2|--dtype bf16 -d 256 -e l3h2c32v257t16 --accumulate layers
host -z 0 -r 1
nccl --cpu-checkpointing CUDA_STAND_IN=rival
nvme --comm host --offload-gradients nvme CUDA_STAND_IN=lag

= cuda: micro-batches, block inputs on the host|2|--dtype bf16 -d 192 -e l5h2c32v257t16
host -z 2 -r 1
nccl --cpu-checkpointing CUDA_STAND_IN=rival

= cuda: any ranks, block inputs on the host|1|--dtype bf16 -d 128 --any-ranks 1 -v 0 -e l5h2c32v257t16
window -z 0 -r 0
host@2 --cpu-checkpointing CUDA_STAND_IN=rival ZERO_POISON=1
nccl@2 -z 1 -r 2 CUDA_STAND_IN=lazy
nccl@4 --cpu-checkpointing CUDA_STAND_IN_ORDER=backward --overlap 0
nccl@4 --param-group 2 -r 3 CUDA_STAND_IN=rival
offload@4 --comm nccl CUDA_STAND_IN_DEVICES=4 --param-group 2 CUDA_STAND_IN=lazy
offload@4 --comm host --cpu-checkpointing -x 1 > nccl@2 -x 2

= cuda: fp16, micro-batches, sums in parts|1|--dtype fp16 -d 64 CUDA_STAND_IN_SPLIT=1
window -z 2
window CUDA_STAND_IN=lag

= cuda: without master weights|2|--dtype bf16 -w 0
host -z 0
host CUDA_STAND_IN=lazy

= cuda: matmuls compute GELU and bias gradients|1|--dtype bf16 -ge 2 CUDA_STAND_IN_FASTEST=3 --tune $dir/t.txt
window -z 0 -r 1
window -z 2 -r 2 CUDA_STAND_IN=rival
window -r 3 CUDA_STAND_IN=lag
window --cpu-checkpointing CUDA_STAND_IN=lazy

= cuda: logits in parts|2|--dtype bf16 -e l4h2c64v1024t32 -b 32 -x 1 -v 0 CUDA_STAND_IN_CAPABILITY=80 \
CUDA_STAND_IN_MEMORY=18874368 CUDA_STAND_IN_DEVICES=2
host -z 0
host --prefetch 3 -r 2 --comm-type fp32
END
    begin 'bits.cuda: the logits were in parts'
    screen run '^head  *logits in 2 parts of 512 rows$'
    end
}

for group in "${@:-cpu starts}"; do for g in $group; do test_$g; done; done
finish same_bits
