#!/usr/bin/env bash
# Checkpoints saved by each number of ranks, under many settings, load on each number, under others.
# Usage: tests/checkpoints.sh BUILD [all] NP...    all: every setting loads under every other
. "$(dirname "$0")/cases.sh"
program=$(realpath "${1:?Usage: tests/checkpoints.sh BUILD [all] NP...}/tests/mpi_checkpoint") || exit 1
shift
all=() limit=100
[ "$1" != all ] || { all=(all) limit=3000; shift; }
export OMP_NUM_THREADS=1

# ranks NP save|load: must succeed. A failure prints the ranks' messages, without mpirun's.
ranks() {
    begin "checkpoints.$2 on $1"
    timeout -k 2 $limit mpirun --oversubscribe -np "$1" "$program" "$2" "$disk/saved" "${all[@]}" \
        >"$dir/screen" 2>&1 || why="status $?: $(grep -avE \
        '^(-+|mpirun .*|the job .*| *Process name.*| *Exit code.*|)$' "$dir/screen" | tail -n 8)"
    end
    sed -n 's/^[0-9]* loaded$/   &/p' "$dir/screen"
}
mkdir "$disk/saved"
for np; do ranks "$np" save; done
# A number of ranks that has saved nothing loads too.
[ ${#all[@]} != 0 ] || set -- "$@" $((${*: -1} + 1))
for np; do ranks "$np" load; done
finish checkpoints
