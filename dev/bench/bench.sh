#!/usr/bin/env bash
# make bench: measures the speed and memory of a GPT-2 124M training step, with AdamW and clipping, on 2 ranks
# of 1 thread with batches of 2 x 256 tokens. Prints a table with ratios and writes JSON lines to
# build/bench.jsonl.
#   PEERS=/path/to/python   a Python with torch (and deepspeed): runs of FSDP2, DeepSpeed ZeRO-3, DDP and
#                           PyTorch in one process then alternate with ours; prints ratios to the fastest
#   ROUNDS=1                alternating runs of each program; prints medians
#   STEPS=8                 steps per run
#   NVME=folder[,folder]    folders on the disks to measure and to compare with fio; build/ by default
# Then it measures AdamW and the collectives relative to memory copies, the hooks alone, NVMe files and
# checkpoints relative to fio, how much network time overlap hides between two hosts (as root), and how a step
# scales with layers, sequence length and ranks.
. "$(dirname "$0")/common.sh"
rounds=${ROUNDS:-1} steps=${STEPS:-8}
model=(-e d12 -b 2 -t 256 -r 0)         # no recompute, like the peers
: >"$out"
print_machine

ours() {  # stage dtype
    train 2 "${model[@]}" -z "$1" --dtype "$2" -x "$steps"
    record "{\"name\": \"zero-$1\", \"dtype\": \"$2\", \"tokens_per_s\": $(field tokens_per_s), "\
"\"params_hash\": \"$(field params_hash)\"}"
}
step_peer() {   # framework dtype; single: one process with the threads and batch of both ranks
    local ranks=2
    [ "$1" != single ] || ranks=1
    OMP_NUM_THREADS=$((2 / ranks)) peer "$1 $2" 300 $ranks peers.py "$1" "$2" $((4 / ranks)) 256 "$steps"
    cat "$work/peer" >>"$out"
}

for round in $(seq "$rounds"); do
    for dtype in bf16 fp32; do
        echo "round $round of $rounds, $dtype ..."
        ours 0 $dtype; ours 3 $dtype
        [ -z "$peers" ] || for p in fsdp2 deepspeed ddp single; do step_peer $p $dtype; done
        ours 3 $dtype; ours 0 $dtype
        [ "$round" != 1 ] || { ours 1 $dtype; ours 2 $dtype; }
    done
done

speed() {
    sed -n "/\"name\": \"$1\", \"dtype\": \"$2\"/s/.*\"tokens_per_s\": \([0-9.]*\).*/\1/p" "$out" | median
}
printf '\n%-28s %12s %12s\n' "tokens/s, GPT-2 124M, 2 ranks" bf16 fp32
for name in zero-0 zero-1 zero-2 zero-3 fsdp2 deepspeed ddp single; do
    b=$(speed $name bf16) f=$(speed $name fp32)
    [ -z "$b$f" ] || printf '%-28s %12s %12s\n' "$name" "${b:--}" "${f:--}"
done
ratios=
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0 && b > 0) printf "%.2f", a / b; else printf "-" }'; }
# over DTYPE NAME...: prints stage 3's speed relative to the fastest of these
over() {
    ratio "$(speed zero-3 "$1")" "$(for p in "${@:2}"; do speed "$p" "$1"; done | sort -n | tail -n 1)"
}
# row KEY TITLE AIM NAME...
row() {
    local bf16 fp32
    bf16=$(over bf16 "${@:4}") fp32=$(over fp32 "${@:4}")
    printf '%-28s %12s %12s%s\n' "$2" "$bf16" "$fp32" "$3"
    ratios+=", \"$1_bf16\": \"$bf16\", \"$1_fp32\": \"$fp32\""
}
row stage3_to_stage0 'stage 3 / stage 0' '' zero-0
if [ -n "$peers" ]; then
    row stage3_to_zero3_peers 'stage 3 / fsdp2, deepspeed' '   (aim: 2.00 in bf16, 1.20 in fp32)' \
        fsdp2 deepspeed
    row stage3_to_all_peers 'stage 3 / the best of all' '   (aim: 4.00 in bf16 with AMX, 1.40 in fp32)' \
        fsdp2 deepspeed ddp single
fi
record "{\"name\": \"ratios\", \"machine\": \"$machine\"$ratios}"

# ---- memory as the system measures it: a rank's peak Pss compared with its printed table, in separate runs,
# because sampling costs time
printf '\n%-28s %12s %12s %8s\n' "memory per rank, MiB" "peak Pss" table ratio
for run in "0 bf16" "3 bf16" "0 fp32" "3 fp32"; do
    begin_train 2 "${model[@]}" -z "${run% *}" --dtype "${run#* }" -x 2
    most Pss smaps_rollup
    read -r pss table times < <(sed -n 's/.*together \([0-9.]*\) MiB.*/\1/p' "$work/log" |
        awk -v p=$peak '{ printf "%.1f %.1f %.3f\n", p / 1024, $1, p / 1024 / $1 }')
    printf '%-28s %12s %12s %8s\n' "stage ${run/ /, }" "$pss" "$table" "$times"
    record "{\"name\": \"memory\", \"stage\": ${run% *}, \"dtype\": \"${run#* }\", \"peak_pss_mib\": $pss, "\
"\"table_mib\": $table}"
done

# ---- more ranks than cores: the batch per rank is fixed, so twice the ranks do twice the work
train 2 -x 60
two=$(field tokens_per_s)
train 4 -x 60
times=$(ratio $((2 * ${two%.*})) "$(field tokens_per_s)")
printf '\nstep of 4 ranks / step of 2 ranks, small model: %s (aim: under 3)\n' "$times"
record "{\"name\": \"oversubscribed\", \"step_ratio_4_to_2\": $times}"

# ---- from the command to the first loss of a small model
begin=$(date +%s.%N)
first=$(mpirun --oversubscribe -np 2 ./train_gpt2_zero -x 1 -v 0 -s 0 | while read -r line; do
    case "$line" in
        step*)
            echo "$(date +%s.%N) - $begin" | awk '{ printf "%.2f", $1 - $3 }'
            break
            ;;
    esac
done)
echo
echo "from the command to the first loss, small model: ${first:?no loss was printed} s (aim: under 1)"
record "{\"name\": \"first_loss\", \"seconds\": $first}"

# ---- the plugin's kernels and collectives, relative to memory copies, and its hooks alone
echo
build/bench/adamw
if [ -n "$peers" ]; then
    PATH="$(dirname "$peers"):$PATH" "$peers" dev/bench/peers_adamw.py 2>"$work/err" || tail -n 3 "$work/err"
fi
echo
for dtype in bf16 fp32; do
    OMP_NUM_THREADS=1 mpirun --oversubscribe -np 2 build/bench/comm --dtype $dtype >"$work/comm" ||
        or "$work/comm"
    cat "$work/comm"
    awk '!/^#/ {
        printf "{\"name\": \"%s\", \"dtype\": \"%s\", ", $1, $4
        printf "\"bytes\": %s, \"us\": %s, \"busbw_gb_per_s\": %s, ", $2, $5, $7
        printf "\"copy_ratio\": %s, \"mpi_ratio\": %s}\n", $10, $12 == "-" ? "null" : $12
    }' "$work/comm" >>"$out"
done
echo
OMP_NUM_THREADS=1 build/bench/hooks 48

# ---- files on NVMe, alternating with fio in the same folder, if fio is installed
echo
if command -v fio >/dev/null; then
    for verify in '' --verify; do
        # shellcheck disable=SC2086
        build/bench/nvme "${NVME:-build}" $verify >>"$work/nvme" || or "$work/nvme"
    done
    cat "$work/nvme"
    awk '/^#/ { verify = /checksums/ }
        !/^#/ && $1 + 0 {
        printf "{\"name\": \"nvme\", \"verify\": %d, \"block\": %d, \"depth\": %d, ", verify, $1 * 1024, $2
        printf "\"read_gb_per_s\": %s, \"read_to_fio\": %s, \"write_gb_per_s\": %s, ", $4, $6, $7
        printf "\"write_to_fio\": %s, \"both_gb_per_s\": %s, \"both_to_fio\": %s}\n", $9, $10, $12
    }' "$work/nvme" >>"$out"
    echo
    dev/bench/offload.sh "${NVME:-build}" "$rounds" "$steps"
    echo
    dev/bench/checkpoint.sh "$(printf '%s' "${NVME:-build}" | cut -d, -f1)"
else
    echo "files on NVMe, checkpoints: not measured, because fio is missing (scripts/install_deps.sh bench)"
fi

dev/bench/overlap.sh
dev/bench/scale.sh
echo "written: $out"
