# Settings of both recipes, which source this file; docs/multi-node.md is their guide. Change HOSTS, GPUS and
# SHARED. You can also set each one in the environment:
#   HOSTS="a b" GPUS=4 scripts/multi_node/run_gpt2_1558M_mpi.sh

# The machines' ssh names; rank 0 runs on the first. With Slurm only the number of names matters.
HOSTS=${HOSTS:-"node1 node2"}
GPUS=${GPUS:-8}                     # GPUs per machine; each gets one rank
# A folder for data/ and the checkpoints, at the same path on all machines
SHARED=${SHARED:-/shared/gpt2}

# The defaults below come from llm.c's run, or are common values.

# Stage 1 has the least traffic. Stage 3 partitions all model states, for GPUs with too little memory.
STAGE=${STAGE:-1}
# At most this many sequences of 1024 tokens per GPU and micro-batch: llm.c's value for 80 GB, untested here.
BATCH=${BATCH:-16}
OUT=${OUT:-$SHARED/gpt2_1558M}      # logs and checkpoints; the same command resumes from the last one
EVERY=${EVERY:-1000}                # steps between checkpoints
# 1: tests the cluster with three steps of a tiny model, with or without GPUs. Writes nothing.
TRY=${TRY:-0}
ARGUMENTS=${ARGUMENTS:-}            # more options for the trainer
# More options for mpirun, for example --mca btl_tcp_if_include eth0
MPI_OPTIONS=${MPI_OPTIONS:-}

root=${root:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
trainer=${TRAINER:-$root/train_gpt2_zero}       # at the same path on all machines
stop() { echo "$(basename "$0"): $*" >&2; exit 1; }
read -ra hosts <<<"$HOSTS"
ranks=$((${#hosts[@]} * GPUS))
[ "$ranks" -gt 0 ] || stop "HOSTS='$HOSTS', GPUS=$GPUS: no ranks"
[ -x "$trainer" ] || stop "$trainer does not exist: make train_gpt2_zero"

if [ "$TRY" = 1 ]; then
    # Runs on machines with the same CPUs or the same GPUs must end with the same params_hash.
    arguments=(-e l4h4c128v257t64 -b 4 -x 3 -u 0 -v 0 -s 0 -z "$STAGE" --comm-timeout 60 --threads 1
               --progress lines -i "$root/data/stories_train.bin" -j "$root/data/stories_val.bin")
else
    # llm.c's values for GPT-2 1558M: 2^20 tokens per step, 32000 steps
    [ $((1024 % ranks)) = 0 ] ||
        stop "$ranks ranks: the 1024 rows of a step cannot be divided evenly among them"
    [ "$BATCH" -le $((1024 / ranks)) ] || BATCH=$((1024 / ranks))
    arguments=(-e d48 -i "$SHARED/data/edu_fineweb_train_*.bin" -j "$SHARED/data/edu_fineweb_val_*.bin"
               -o "$OUT"
               -b "$BATCH" -t 1024 -d 1048576 -x 32000 -l 6e-4 -k cosine -u 700 -q 0.1 -c 0.1 -z "$STAGE"
               -v 250 -m 20 -s 5000 -n "$EVERY" -nk 3 -y 1 --progress lines)
fi

read -ra further <<<"$ARGUMENTS"
arguments+=("${further[@]}")

# start_ranks OPTION...: becomes mpirun, which passes on variables that ranks on other machines also need.
# Each rank uses several threads, so it is not bound to one core.
# shellcheck disable=SC2086
start_ranks() {
    local name passed_on=()
    for name in $(compgen -e); do
        case $name in NCCL_* | OMP_NUM_THREADS | LD_LIBRARY_PATH) passed_on+=(-x "$name") ;; esac
    done
    exec mpirun "$@" -np "$ranks" --map-by ppr:"$GPUS":node --bind-to none "${passed_on[@]}" $MPI_OPTIONS \
        "$trainer" "${arguments[@]}"
}
