#!/usr/bin/env bash
# Finds the block size and queue depth that read and write model states fastest in the given NVMe folders.
# Prints a DeepSpeed "aio" section for --zero-config to stdout, and a table of measurements and options to
# stderr. Takes several minutes and MIB (1024) MiB of disk space, and measures each setting ROUNDS (3) times.
# Usage: scripts/nvme_tune.sh FOLDER[,FOLDER..] > aio.json
set -eu
cd "$(dirname "$0")/.."
fail() { echo "nvme_tune.sh: $*" >&2; exit 1; }
case ${1:-} in --help | '') sed -n '2,5s/^# //p' scripts/nvme_tune.sh; [ -n "${1:-}" ]; exit ;; esac
[ $# = 1 ] || fail "separate the folders by commas"
program=build/bench/nvme mib=${MIB:-1024} rounds=${ROUNDS:-3} most=$((64 << 20))
[ -x "$program" ] || make --no-print-directory "$program" >&2 || fail "$program is not built"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure FOLDERS BLOCK DEPTH THREADS: adds a row with its arguments and the median GB/s of reads, writes, and
# both at once. THREADS 0 uses io_uring if available.
measure() {
    local how=(--no-uring --threads "$4") read write both
    [ "$4" != 0 ] || how=()
    read -r _ _ _ read _ _ write _ _ both _ < <("$program" "$1" --block "$2" --depth "$3" --mib "$mib" \
        --rounds "$rounds" --no-fio --no-head "${how[@]}") || fail "$1 cannot be measured"
    echo "$* $read $write $both" >>"$work/rows"
    printf '%-30s %8d %6d %-10s %8s %8s %8s\n' "$1" $(($2 / 1024)) "$3" \
        "$([ "$4" = 0 ] && echo "$way" || echo "$4 threads")" "$read" "$write" "$both" >&2
}
# A training step reads and writes at once. Prints the row that is fastest at this or, among the rows within 3
# % of it, the one with the least memory in flight. Removes all rows.
best() {
    awk '{ row[NR] = $0; rate[NR] = $7; room[NR] = $2 * ($4 ? $4 : $3); if ($7 > top) top = $7 }
        END { for (i = 1; i <= NR; i++) if (rate[i] >= 0.97 * top && (!b || room[i] < room[b])) b = i
            print row[b] }' "$work/rows"
    rm "$work/rows"
}

folders=$1
head=$("$program" "$folders" --mib 128 --block 524288 --rounds 1 --no-fio) ||
    fail "$folders cannot be measured"
way=$(sed -n '1s/^# //p' <<<"$head")
echo "$way" >&2
case $way in io_uring*) way=io_uring ;; *) way=threads ;; esac
printf '%-30s %8s %6s %-10s %8s %8s %8s\n' 'GB/s' 'KiB' depth by read write both >&2

# Chooses the folders first, because a slow one slows down the rest.
if [ "$folders" != "${folders%,*}" ]; then
    for some in "$folders" ${folders//,/ }; do measure "$some" 1048576 32 0; done
    read -r folders _ < <(best)
fi
for block in 524288 1048576 2097152 4194304 8388608; do
    for depth in 4 8 16 32 64; do
        [ $((block * depth)) -gt $most ] || measure "$folders" $block $depth 0
    done
done
read -r _ block depth _ read write both < <(best)
for threads in 1 2 4 8; do measure "$folders" "$block" "$depth" $threads; done
read -r _ _ _ threads _ _ by_threads < <(best)

cat >&2 <<END
best: $folders, blocks of $((block / 1024)) KiB, depth $depth
with these settings: $read GB/s read, $write written, $both both at once
without io_uring: $threads threads, $by_threads GB/s both at once
options: --zero-config aio.json --nvme $folders --offload-optimizer nvme (and --offload-param nvme)
END
cat <<END
{
  "aio": {
    "block_size": $block,
    "queue_depth": $depth,
    "intra_op_parallelism": $threads,
    "single_submit": false,
    "overlap_events": true
  }
}
END
