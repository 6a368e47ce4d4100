#!/usr/bin/env bash
# Compares the speed of checkpoint saves and loads with fio's in the same folder, bypassing the page cache, on
# 1 and 2 ranks, for GPT-2 124M and a model one tenth its size. Prints medians and appends JSON lines to
# build/bench.jsonl.
#   PEERS=/path/to/python   a Python with torch (and deepspeed): also measures torch.distributed.checkpoint
#                           and DeepSpeed's save_checkpoint, on the same states
# Needs fio and make build/bench/checkpoint.
#   dev/bench/checkpoint.sh [FOLDER [ROUNDS]]       build/, 5 rounds
. "$(dirname "$0")/common.sh"
export OMP_NUM_THREADS=1
folder=${1:-build} rounds=${2:-5}
trap 'rm -rf "$work" "$folder/llmc_zero.peer"' EXIT

ours() {  # RANKS OPTIONS...
    local ranks=$1
    shift
    mpirun --oversubscribe --bind-to none -np "$ranks" build/bench/checkpoint "$folder" --rounds "$rounds" \
        "$@" >"$work/ours" || or "$work/ours"
    cat "$work/ours"
    awk '!/^#/ && $1 + 0 {
        printf "{\"name\": \"checkpoint\", \"mib\": %s, \"ranks\": %d, \"save_gb_per_s\": %s, ", $1, $2, $3
        printf "\"save_to_fio\": %s, \"save_mib\": %s, \"load_gb_per_s\": %s, ", $5, $6, $7
        printf "\"load_to_fio\": %s, \"load_mib\": %s}\n", $9, $10 }' "$work/ours" >>"$out"
}
peer_row() {  # FRAMEWORK RANKS MIB SAVE LOAD: SAVE and LOAD are our GB/s for MIB of states
    peer "$1" 900 "$2" peers_checkpoint.py "$1" "$folder" "$rounds"
    sed "s/{\"name\": \"/{\"ranks\": $2, \"name\": \"checkpoint-/" "$work/peer" >>"$out"
    tr -d '{}",:' <"$work/peer" | awk -v ranks="$2" -v mib="$3" -v save="$4" -v load="$5" '{
        for (i = 1; i < NF; i += 2) x[$i] = $(i + 1)
        bytes = mib * 1048576 / 1e9
        printf "%10.1f %6d %8.3f %24.1f %8.3f %24.1f  %s; ours: %.1f and %.1f times as fast\n", mib, ranks,
            bytes / x["save_s"], x["save_mib"], bytes / x["load_s"], x["load_mib"], x["name"],
            save * x["save_s"] / bytes, load * x["load_s"] / bytes }'
}

echo "checkpoints; $(print_machine)"
head=
for ranks in 1 2; do
    # shellcheck disable=SC2086
    ours $ranks --layers 4 --channels 192 $head
    head=--no-head
    ours $ranks $head
    [ -n "$peers" ] || continue
    read -r mib _ save _ _ _ load _ < <(tail -n 1 "$work/ours")
    for framework in dcp deepspeed; do peer_row $framework $ranks "$mib" "$save" "$load"; done
done
