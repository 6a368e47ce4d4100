#!/usr/bin/env bash
# Fuzzes each reader of tests/fuzz/, starting from its seeds; one reader per core. Inputs that break one are
# stored in build/fuzz/found; once the bug is fixed, move them to tests/fuzz/found/TARGET.
#   tests/fuzz.sh PROGRAM SECONDS_EACH [TARGET...]      PROGRAM: make SAN=fuzz CC=clang build/fuzz/tests/..
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm         # each input is written to a file
. "$(dirname "$0")/cases.sh"
program=$(realpath "${1:?Usage: tests/fuzz.sh PROGRAM SECONDS_EACH [TARGET...]}") || exit 1
seconds=${2:?Usage: tests/fuzz.sh PROGRAM SECONDS_EACH [TARGET...]}
shift 2
targets=("$@")
[ $# != 0 ] || mapfile -t targets < <(FUZZ_TARGET='' "$program")
mkdir -p build/fuzz/found

# Runs differ even with a fixed seed, because each ends after a fixed time.
limits=(-timeout=100 -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=16384)
fuzz() {            # TARGET: the log ends with "DONE" if nothing was found
    local known=()
    mkdir -p "$dir/$1/seeds" "$dir/$1/tmp"
    [ ! -d "tests/fuzz/found/$1" ] || known=("tests/fuzz/found/$1")
    FUZZ_TARGET=$1 FUZZ_SEEDS="$dir/$1/seeds" TMPDIR=$dir/$1/tmp OMP_NUM_THREADS=1 \
        timeout -k 5 $((seconds + 600)) "$program" "${limits[@]}" -seed=1 \
        -max_total_time="$seconds" -dict=tests/fuzz/words.dict -artifact_prefix="build/fuzz/found/$1-" \
        -print_final_stats=1 "$dir/$1/seeds" "${known[@]}" >"$dir/$1/log" 2>&1 && echo DONE >>"$dir/$1/log"
}

for t in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    fuzz "$t" &
done
wait
for t in "${targets[@]}"; do
    log=$dir/$t/log
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    covered=$(sed -nE 's/.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
    begin "fuzz.$t: ${inputs:-no} inputs, ${covered:-no} edges covered"
    [ "$(tail -n 1 "$log")" = DONE ] || why=$(grep -vE '^#|NEW_FUNC|^INFO' "$log" | tail -n 40)
    end
done
[ $passed != 0 ] || failed=1
finish fuzz
