#!/usr/bin/env bash
# Checkpoints that each number of ranks has saved, under many settings, load at each number, under others.
# Usage: tests/checkpoints.sh BUILD [all] NP...    all: every setting loads under every other
. "$(dirname "$0")/cases.sh"
program=$(realpath "${1:?Usage: tests/checkpoints.sh BUILD [all] NP...}/tests/mpi_checkpoint") || exit 1
shift
all=() limit=100
[ "$1" != all ] || { all=(all) limit=3000; shift; }
export OMP_NUM_THREADS=1

# What the ranks say of a failure is before mpirun's own sentences.
sentences() {
    grep -avE '^(-+|mpirun .*|the job .*| *Process name.*| *Exit code.*|)$' "$dir/said" | tail -n 8
}
# on NP save|load
on() {
    timeout -k 2 $limit mpirun --oversubscribe -np "$1" "$program" "$2" "$disk/saved" "${all[@]}" \
        >"$dir/said" 2>&1
}
mkdir "$disk/saved"
for np; do
    begin "checkpoints.saved by $np"
    on "$np" save || why="status $?: $(sentences)"
    end
done
# A number that has saved nothing loads too.
[ ${#all[@]} != 0 ] || set -- "$@" $((${*: -1} + 1))
for np; do
    begin "checkpoints.loaded by $np"
    on "$np" load || why="status $?: $(sentences)"
    end
    sed -n 's/^[0-9]* loaded$/   &/p' "$dir/said"
done
finish checkpoints
