#!/usr/bin/env bash
# Tests dev/bench/comm: its table, its detection of wrong results, and its options, but not its timings.
# Usage: tests/test_bench.sh COMM [STAND_IN_COMM]      STAND_IN_COMM: built with CUDA=stand-in
# shellcheck disable=SC2086,SC2016
. "$(dirname "$0")/cases.sh"
comm=$(realpath "${1:-build/bench/comm}") || exit 1
stand_in=${2:+$(realpath "$2")} || exit 1
cd "$dir" || exit 1
export OMP_NUM_THREADS=1 CUDA_STAND_IN_DEVICES=3

# bench RANKS PROGRAM OPTIONS...
bench() { timeout -k 2 $hang_limit mpirun --oversubscribe -np "$1" "${@:2}" >out 2>err </dev/null; }
benches() { bench "$@" || need "$*: $(tail -n 3 out err)" false; }
# fails PATTERN RANKS PROGRAM OPTIONS...
fails() {
    need "$* succeeds" not bench "${@:2}"
    has err "$1"
}
wrong() { awk '!/^#/ { print $8 }' out | xargs; }

# rows_hold RANKS TYPE ROWS: checks that the table has these rows, and that the numbers in each row agree to
# within rounding. A row is + or -: with or without the library's own collective.
rows_hold() {
    awk -v ranks="$1" -v type="$2" -v rows="$3" '
        BEGIN { half = 0.0051 }                             # half a unit in the last digit
        function ratio_is(r, over, over_half, under) {
            if (r < (over - over_half) / (under + half) - half) return 0
            return under <= half || r <= (over + over_half) / (under - half) + half
        }
        function hold(ok, what) { if (!ok) { print "row " n ": " what ": " $0; bad = 1 } }
        BEGIN { expected = split(rows, want, " ") }
        /^#/ { next }
        {
            n++; peer = $11 != "-"; factor = $1 == "broadcast" ? ranks > 1 : (ranks - 1) / ranks
            hold(NF == 12, "columns")
            hold((peer ? "+" : "-") == want[n], "not " want[n])
            hold($4 == type && $2 == $3 * (type == "fp32" ? 4 : 2) && $3 % (ranks * 128) == 0, "size")
            hold(ratio_is($6, $2 / 1000, 0, $5), "algbw")
            hold($7 >= $6 * factor - 2 * half && $7 <= $6 * factor + 2 * half, "busbw")
            hold($8 == 0, "#wrong")
            hold(ratio_is($10, $9, half, $5), "ratio of copy")
            hold(!peer || ratio_is($12, $11, half, $5), "ratio of the library")
        }
        END {
            if (n != expected) { print n + 0 " rows, not " expected; bad = 1 }
            exit bad
        }' out >table && return
    cat table
    return 1
}

# check_tables PROGRAM: checks the table for each input line RANKS|OPTIONS|TRANSPORT|TYPE|ROWS
check_tables() {
    local ranks options way type rows
    while IFS='|' read -r ranks options way type rows; do
        begin "table.$ranks ranks, $options"
        benches "$ranks" $1 $options
        need 'the table is wrong' rows_hold "$ranks" "$type" "$rows"
        has out "^# $ranks ranks?, .*$way.*; memory of"
        has out "# $(wc -w <<<"$rows") rows, 0 of them wrong"
        end
    done
}

# ---- tables

short='-b 64K -e 64K -n 3 -w 1'
check_tables "$comm" <<CASES
2|-b 64K -e 256K -n 3 -w 1|shared window|bf16|+ + - - + +
3|--messages --dtype fp32 $short|messages|fp32|+ + +
2|-c all-gather --dtype fp16 -b 4M -e 4M -n 1 -w 0|shared window|fp16|+
1|$short|one rank|bf16|+ - +
2|-b 256K -e 1M -r 3M -n 9|shared window|bf16|+ + - - + +
CASES
begin 'table.sizes'
benches 2 "$comm" -b 64K -e 1M -f 2 -c broadcast -n 1 -w 0
is sizes "$(awk '!/^#/ { print $2 }' out | xargs)" '65536 131072 262144 524288 1048576'
end

# ---- wrong results

# Preloads a library that changes the last byte of each long message, and makes MPI's long all-gathers do
# nothing.
cat >break.c <<'C'
#include <mpi.h>
enum { LONG = 4096 };
int MPI_Isend(const void *x, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r) {
    if (n > LONG) ((unsigned char *)x)[n - 1] ^= 1;
    return PMPI_Isend(x, n, t, to, tag, c, r);
}
int MPI_Allgather(const void *x, int n, MPI_Datatype t, void *to, int m, MPI_Datatype u, MPI_Comm c) {
    return n > LONG ? MPI_SUCCESS : PMPI_Allgather(x, n, t, to, m, u, c);
}
C
if mpicc -shared -fPIC break.c -o break.so 2>err; then
    begin "wrong.messages; MPI's all-gather, with which the window is compared"
    fails '' 2 env LD_PRELOAD="$PWD/break.so" "$comm" --messages $short
    is counts "$(wrong)" '2 2 1'
    has out '# 3 rows, 3 of them wrong'
    fails 'comm: all-gather by mpi: 65536 wrong elements' 2 env LD_PRELOAD="$PWD/break.so" "$comm" \
        -c all-gather $short
    is counts "$(wrong)" 0
    end
else skip wrong 'no mpicc'; fi

# ---- options

begin 'options'
need '--help failed' eval '"$comm" --help >out'
for o in -b -e -f -n -w -m -c --dtype --messages --device --comm --reduce; do
    has out "  $o "
done
while IFS='|' read -r options message; do
    need "$options is accepted" not eval 'timeout $hang_limit "$comm" $options >out 2>err'
    has err "$message"
done <<'CASES'
-b 12x|option -b 12x: not a whole number from 1 to
-b 4G|option -b 4G: not a whole number
-b 2M -e 1M|-b 2097152: above -e 1048576
-f 1|option -f 1: not a whole number from 2
-c gather|option -c gather: no such value
--dtype fp64|option --dtype fp64: no such value
-x 3|option -x: unknown
-n|option -n: unknown, or its value is missing
--comm nccl|add --device cuda
--device cuda --reduce nccl|--reduce nccl: add --comm nccl
--device cuda --memory nccl|--memory nccl: add --comm nccl
--device cuda --comm nccl --messages|--comm nccl: sends no messages
--device cuda -c broadcast|leave --device cuda out
CASES

need 'too few ranks are accepted' not eval 'OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 \
    timeout $hang_limit "$comm" $short >out 2>err'
has err 'comm: the launcher started 2 ranks, but MPI has 1: start with mpirun'
fails 'comm: -b 64: less than 128 elements for each of 2 ranks' 2 "$comm" -b 64
end

# ---- CUDA, on the stand-in

if [ -n "$stand_in" ]; then
    short='-b 64K -e 64K -n 1 -w 0 -m 2 --device cuda'
    check_tables "$stand_in" <<CASES
2|$short|shared window|bf16|- -
3|$short --comm nccl|nccl|bf16|+ +
CASES
    # The devices are too small for the staging buffer of sums that the plugin computes itself.
    CUDA_STAND_IN_MEMORY=$((8 << 20)) check_tables "$stand_in" \
        <<<"2|$short --comm nccl --reduce nccl --dtype fp16|nccl|fp16|+ +"
    CUDA_STAND_IN=lazy check_tables "$stand_in" <<CASES
2|$short --messages --dtype fp32|messages|fp32|- -
2|$short --comm nccl --memory nccl --dtype fp32|nccl|fp32|+ +
CASES
    begin 'errors.from NCCL'
    fails 'unhandled system error: error requested by CUDA_STAND_IN_NCCL' 2 env CUDA_STAND_IN_NCCL=error:1:1 \
        "$stand_in" $short --comm nccl
    fails 'NCCL 2.28.9 needs one' 2 env CUDA_STAND_IN_DEVICES=1 "$stand_in" $short --comm nccl
    end
fi
finish test_bench
