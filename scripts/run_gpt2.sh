# The recipes of run_gpt2_124M.sh, _350M.sh, _774M.sh and _1558M.sh, which set $size and source this file. The
# hyperparameters are those of llm.c (github.com/karpathy/llm.c, scripts/run_gpt2_*.sh, commit f1e2ace).
# docs/train-124m.md is the guide. Here, the recipes ran with a tiny model on CPUs only; README.md has the
# status of GPUs.
#
# Usage: scripts/run_gpt2_124M.sh [--dry-run]     --dry-run prints the commands and runs nothing
# Settings in the environment:
#   GPUS=8             ranks, one per GPU (all GPUs of this machine)
#   MEMORY=81559       MiB of each GPU (what nvidia-smi reports)
#   STAGE=1 RECOMPUTE=0 BATCH=64   instead of the plan's choice
#   OUT=folder         logs and checkpoints (log_gpt2_124M); the same command resumes from the last one
#   DATA=folder        token shards (data); missing ones are downloaded
#   ARGUMENTS="..."    more options for the trainer; the last value of an option wins
set -eu -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/mpi_env.sh
stop() { echo "run_gpt2_$size.sh: $*" >&2; exit 1; }
dry=
case ${1:-} in --dry-run) dry=1 ;; '') ;; *) stop "$1: the only option is --dry-run" ;; esac

# model, steps, tokens per step, sequences per GPU and micro-batch, learning rate, its final fraction, steps
# between checkpoints, training shards of scripts/download.sh and the beginning of their names
case $size in
    124M) recipe=(d12 18865 524288 64 6e-4 0 5000 fineweb:99 fineweb) ;;
    350M) recipe=(d24 60000 524288 64 3e-4 0 2000 fineweb-100B:315 fineweb) ;;
    774M) recipe=(d36 286102 524288 32 2.5e-4 0 4000 fineweb-100B:1030 fineweb) ;;
    1558M) recipe=(d48 32000 1048576 16 6e-4 0.1 2000 fineweb-edu:336 edu_fineweb) ;;
    *) stop "no recipe for $size" ;;
esac
read -r model steps tokens batch rate final every shards prefix <<<"${recipe[*]}"
trainer=${TRAINER:-./train_gpt2_zero} out=${OUT:-log_gpt2_$size} data=${DATA:-data}
folder=$data
case $shards in fineweb-100B*) folder=$data/fineweb100B ;; esac     # named like the shards of fineweb
[ -x "$trainer" ] || stop "$trainer does not exist: make train_gpt2_zero"

# ---- the GPUs, and the memory of the smallest
if memories=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null); then
    gpus=${GPUS:-$(wc -l <<<"$memories")} memory=${MEMORY:-$(sort -n <<<"$memories" | head -n 1)}
elif [ -n "$dry${GPUS:-}" ]; then
    gpus=${GPUS:-8} memory=${MEMORY:-81559}
    echo "# no GPU found: planned for $gpus of $memory MiB"
else
    stop 'no GPU found. --dry-run plans for eight of 80 GB'
fi
rows=$((tokens / 1024))
[ $((rows % gpus)) = 0 ] || stop "GPUS=$gpus: the $rows sequences of a step cannot be divided evenly"

# ---- stage, recompute and batch: the first that fit, according to the plan

# try LEVELS SMALLEST: sets batch, stage, recompute and mib to the first choice of these recompute levels that
# fits, for batches of `batch`, half of it, .. SMALLEST. 8 % of the memory is left to CUDA, cuDNN and NCCL.
try() {
    local b
    for ((b = batch; b >= $2; b /= 2)); do
        read -r stage recompute mib < <("$trainer" --plan --plan-ranks "$gpus" -e "$model" -b $b -t 1024 \
            -d "$tokens" | tr -d '*' | awk -v room=$((memory * 92 / 100)) -v levels="$1" \
            -v stages="${STAGE:-1 2 3}" '
            /^  [0-3]  / { for (r = 0; r <= 3; r++) mib[$1, r] = $(NF - 3 + r) }
            END {
                n = split(stages, stage, " "); m = split(levels, level, " ")
                for (i = 1; i <= n; i++)
                    for (j = 1; j <= m; j++) {
                        need = mib[stage[i], level[j]]
                        if (need + 0 < room) { print stage[i], level[j], need; exit }
                    }
            }') && batch=$b && return
    done
    return 1
}
batch=${BATCH:-$batch}
[ "$batch" -le $((rows / gpus)) ] || batch=$((rows / gpus))
# A quarter of the batch costs less than -r 3, which repeats the forward pass of each block.
try "${RECOMPUTE:-0 1 2}" "${BATCH:-$(((batch + 3) / 4))}" || try "${RECOMPUTE:-3}" "${BATCH:-1}" ||
    stop "does not fit into $memory MiB per GPU. docs/larger-than-memory.md moves states to other memory"
[ $((rows % (gpus * batch))) = 0 ] || stop "BATCH=$batch: $rows sequences cannot be divided among $gpus GPUs"
echo "# stage $stage, -r $recompute, -b $batch: $mib of $memory MiB per GPU by the plan"

# ---- data, then the run until it is done

run() {
    printf '%q ' "$@"
    echo
    [ -n "$dry" ] || "$@"
}
[ -e "$data/hellaswag_val.bin" ] || run env DATA="$data" scripts/download.sh tokenizer hellaswag
if ! compgen -G "$folder/${prefix}_train_*.bin" >/dev/null; then
    run env DATA="$folder" scripts/download.sh "$shards"
fi
read -ra further <<<"${ARGUMENTS:-}"
options=(-e "$model" -i "$folder/${prefix}_train_*.bin" -j "$folder/${prefix}_val_*.bin"
         --tokenizer "$data/gpt2_tokenizer.bin" -o "$out" -n "$every" -nk 3 -y 1
         -b "$batch" -t 1024 -d "$tokens" -x "$steps" -l "$rate" -k cosine -u 700 -q "$final" -c 0.1
         -z "$stage" -r "$recompute" -v 250 -m 20 -s 20000 -g 144
         -h 1 --hellaswag "$data/hellaswag_val.bin" "${further[@]}")
# A rank uses several threads, so it must not be bound to one core.
run scripts/until_done.sh mpirun -np "$gpus" --bind-to none "$trainer" "${options[@]}"
