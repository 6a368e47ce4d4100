#!/usr/bin/env bash
# Finds the block size and the depth with which model states on NVMe are read and written fastest, on the
# folders named. It prints a DeepSpeed "aio" section that --zero-config loads as it is, and on the screen the
# table of what was measured and the options. It takes some minutes, and MIB=1024 on the disks; ROUNDS=3.
# Usage: scripts/nvme_tune.sh FOLDER[,FOLDER..] > aio.json
set -eu
cd "$(dirname "$0")/.."
fail() { echo "nvme_tune.sh: $*" >&2; exit 1; }
case ${1:-} in --help | '') sed -n '2,5s/^# //p' scripts/nvme_tune.sh; [ -n "${1:-}" ]; exit ;; esac
[ $# = 1 ] || fail "name the folders with commas between them"
program=build/bench/nvme mib=${MIB:-1024} rounds=${ROUNDS:-3} most=$((64 << 20))
[ -x "$program" ] || make --no-print-directory "$program" >&2 || fail "$program is not built"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# add FOLDERS BLOCK DEPTH THREADS: what is to be measured. Threads 0: io_uring where there is one.
add() { echo "$@" >>"$work/list"; }
# Measures all of the list, round after round, because a disk that others use is not always as fast, and
# prints the medians: the line of the list, and GB/s read, written and both at the same time.
measure() {
    local engine folders block depth threads r numbers
    : >"$work/rows"
    for r in $(seq "$rounds"); do
        echo "round $r of $rounds, $(wc -l <"$work/list") rows ..." >&2
        while read -r folders block depth threads; do
            engine=auto
            [ "$threads" = 0 ] || engine=threads
            numbers=$("$program" "$folders" --block "$block" --depth "$depth" --mib "$mib" --rounds 1 \
                --engine $engine --threads $((threads ? threads : 4)) --no-fio --no-head) ||
                fail "$folders cannot be measured"
            echo "$folders $block $depth $threads $numbers" >>"$work/rows"
        done <"$work/list"
    done
    awk 'function median(kind,   i, j, x) {
            for (i = 1; i <= n; i++) for (j = i; j > 1 && v[kind, i] < v[kind, j - 1]; j--) {
                x = v[kind, j]; v[kind, j] = v[kind, j - 1]; v[kind, j - 1] = x }
            return v[kind, int((n + 1) / 2)] }
        function print_row() { if (n) print key, median(8), median(11), median(14) }
        { this = $1 " " $2 " " $3 " " $4 }
        this != key { print_row(); key = this; n = 0 }
        { n++; for (k = 8; k <= 14; k += 3) v[k, n] = $k + 0 }
        END { print_row() }' < <(sort -s -k1,1 -k2,2n -k3,3n -k4,4n "$work/rows") >"$work/medians"
    while read -r folders block depth threads numbers; do
        # shellcheck disable=SC2086
        printf '%-30s %8d %6d %-10s %8s %8s %8s\n' "$folders" $((block / 1024)) "$depth" \
            "$([ "$threads" = 0 ] && echo "$way" || echo "$threads threads")" $numbers >&2
    done <"$work/medians"
    : >"$work/list"
}
# Prints the row that reads and writes fastest at the same time, as a step does. Of rows within 3 % it is the
# one with the least memory under way.
best() {
    awk '{ row[NR] = $0; rate[NR] = $7; room[NR] = $2 * ($4 ? $4 : $3); if ($7 > top) top = $7 }
        END { for (i = 1; i <= NR; i++) if (rate[i] >= 0.97 * top && (!b || room[i] < room[b])) b = i
            print row[b] }' "$work/medians"
}

folders=$1
head=$("$program" "$folders" --mib 128 --block 524288 --rounds 1 --no-fio) ||
    fail "$folders cannot be measured"
way=$(sed -n '1s/^# //p' <<<"$head")
echo "$way" >&2
case $way in io_uring*) way=io_uring ;; *) way=threads ;; esac
printf '%-30s %8s %6s %-10s %8s %8s %8s\n' 'GB/s' 'KiB' depth by read write both >&2

# First the folders, since one that is much slower than the others slows all of them.
if [ "$folders" != "${folders%,*}" ]; then
    for some in "$folders" ${folders//,/ }; do add "$some" 1048576 32 0; done
    measure
    read -r folders _ < <(best)
fi
for block in 524288 1048576 2097152 4194304 8388608; do
    for depth in 4 8 16 32 64; do
        [ $((block * depth)) -gt $most ] || add "$folders" $block $depth 0
    done
done
measure
read -r _ block depth _ read write both < <(best)
for threads in 1 2 4 8; do add "$folders" "$block" "$depth" $threads; done
measure
read -r _ _ _ threads _ _ by_threads < <(best)

cat >&2 <<END
best: $folders, blocks of $((block / 1024)) KiB, depth $depth
with these: $read GB/s read, $write written, $both both at once
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
