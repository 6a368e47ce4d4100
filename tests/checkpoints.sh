#!/usr/bin/env bash
# Tests that a checkpoint saved by any number of ranks, under many settings, loads on any other number of
# ranks under other settings.
# Usage: tests/checkpoints.sh BUILD [all] NP...    all: loads every setting's checkpoint under every other
. "$(dirname "$0")/cases.sh"
program=$(realpath "${1:?Usage: tests/checkpoints.sh BUILD [all] NP...}/tests/mpi_checkpoint") || exit 1
shift
all=() limit=300
[ "$1" != all ] || { all=(all) limit=3000; shift; }
export OMP_NUM_THREADS=1

# ranks NP save|load: runs one case. If it fails, prints the ranks' messages without those of mpirun.
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
# Also loads on a number of ranks that did not save.
[ ${#all[@]} != 0 ] || set -- "$@" $((${*: -1} + 1))
for np; do ranks "$np" load; done
finish checkpoints
