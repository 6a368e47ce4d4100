#!/usr/bin/env bash
# Runs every test with a time limit and adds up the results.
# Usage: tests/run.sh BUILD_FOLDER TRAINER [short]
#   FIRST=1 make test    runs quick tests first and stops at the first failure
#   RERUN=1 make test    runs a failed test once more, alone; if it passes, it is reported as unstable
#   test_*      one process, with cmocka; *.sh: see their first lines
#   mpi_*       several ranks; tables of settings run once per number of ranks
#   cuda.*      the CUDA code, run on the CPU (tests/cuda/)
#   short       skips the shell scripts and stand-in/; used under sanitizers
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1 trainer=$2 short=${3:-}
. scripts/mpi_env.sh
# Several tests share the CPU, so ranks are not bound to cores, a waiting rank yields its core, and OpenMP's
# idle threads sleep.
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive
logs=$build/logs; mkdir -p "$logs"
rm -f "$logs"/*.sum "$logs"/*.pid
names=() queue=() unstable=()
sessions=$(mktemp -d) || exit 1
trap 'rm -rf "$sessions"' EXIT
trap 'end_tests; exit 1' INT TERM

# one NAME SECONDS COMMAND...: runs the test and prints a line with its results, wall time and CPU time. If
# the test failed, also prints the end of its output.
one() {
    local name=$1 limit=$2 log=$logs/$1.log start=$SECONDS p f s status used
    shift 2
    # An mpirun that ends can remove the folder in which another one, of a test beside it, is making its own.
    OMPI_MCA_orte_tmpdir_base=$sessions/$name timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null &
    echo $! >"$logs/$name.pid"
    wait $!; status=$?
    rm "$logs/$name.pid"
    # the final line of our tests, or cmocka's
    read -r p f s < <(awk '
        match($0, /[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/) {
            split(substr($0, RSTART), w, /[ ,]+/)
            p += w[1]; f += w[3]; s += w[5]
            seen = 1
        }
        /\[  PASSED  \] [0-9]+ test/ { p += $4; seen = 1 }
        /\[  FAILED  \] [0-9]+ test/ { f += $4 }
        /\[  SKIPPED \] [0-9]+ test/ { s += $4 }
        END { print p + 0, (seen ? f + 0 : 0), s + 0 }' "$log")
    if [ $status = 124 ] || [ $status = 137 ]; then
        f=$((f + 1))
        echo "HANG   $name: did not end within $limit s"
    elif [ $status != 0 ] && [ "$f" = 0 ]; then f=1; fi
    if [ $status = 0 ] && [ "$p" = 0 ] && [ "$s" = 0 ]; then f=1; echo "$name: ran no test" >>"$log"; fi
    if [ "$f" != 0 ] || [ $status != 0 ]; then
        echo "FAILED $name (status $status, $((SECONDS - start)) s); the end of $log:"
        tail -n 25 "$log" | sed 's/^/    /'
    else
        times >"$logs/$name.times"
        used=$(awk 'NR == 2 { split($1 $2, t, /[ms]/); printf "%.0f", 60 * (t[1] + t[3]) + t[2] + t[4] }' \
            "$logs/$name.times")
        printf 'ok     %-22s %4d passed, %d skipped, %d s, CPU %d s\n' "$name" "$p" "$s" \
            $((SECONDS - start)) "$used"
    fi
    grep -h '^skip ' "$log" | sed 's/^/       /'
    echo "$p $f $s" >"$logs/$name.sum"
}
# run NAME SECONDS COMMAND...: queues the test for run_all
run() {
    names+=("$1")
    queue+=("$(printf '%q ' "$@")")
}
# wait_until N: waits until at most N tests are running. With FIRST set, a failed test ends the run.
wait_until() {
    while [ "$(jobs -rp | wc -l)" -gt "$1" ]; do
        wait -n
        [ -z "${FIRST:-}" ] || not_failed || { end_tests; exit 1; }
    done
}
not_failed() { ! grep -qsv ' 0 [0-9]*$' "$logs"/*.sum; }
end_tests() { kill $(jobs -p) $(cat "$logs"/*.pid) 2>/dev/null; }
# Runs the queue in parallel. Tests spend about a third of their time waiting, and the longest nearly all of
# it, so three more run than there are cores.
places=$(($(nproc) + 3))
[ -z "$short" ] || places=$(($(nproc) + 1))         # make check runs something else in parallel
run_all() {
    local command
    [ -z "${FIRST:-}" ] || mapfile -t queue < <(printf '%s\n' "${queue[@]}" | tac)
    for command in "${queue[@]}"; do
        wait_until $((places - 1))
        (eval "one $command" >"$logs/${command%% *}.out" 2>&1; cat "$logs/${command%% *}.out") &
    done
    wait_until 0
    [ -z "${RERUN:-}" ] || for command in "${queue[@]}"; do rerun "${command%% *}" "$command"; done
    queue=()
}
# rerun NAME COMMAND: runs the test again if it failed
rerun() {
    grep -qsv ' 0 [0-9]*$' "$logs/$1.sum" || return
    mv "$logs/$1.out" "$logs/$1.first"
    echo "again  $1"
    (eval "one $2") >"$logs/$1.out" 2>&1
    if grep -q ' 0 [0-9]*$' "$logs/$1.sum"; then
        unstable+=("$1")
        echo "UNSTABLE $1: failed beside other tests, passed alone; the first time:"
        sed 's/^/    /' "$logs/$1.first"
    else cat "$logs/$1.out"; fi
}
on_ranks() { OMP_NUM_THREADS=1 mpirun --oversubscribe -np "$@"; }       # NP COMMAND...
export -f on_ranks
# table PROGRAM SECONDS NP...: queues the program once per number of ranks
table() {
    local np
    for np in "${@:3}"; do run "$1.$np" "$2" bash -c "on_ranks $np $build/tests/$1"; done
}

# The longest tests start first, so that all cores stay busy to the end. Limits are many times the usual
# durations, because a machine may be slow or busy.
stand_in=$build/stand-in
if [ -z "$short" ]; then
    run ranks 400 tests/ranks.sh "$trainer" "$build/tests/mpi_net" \
        refused levels ports fails lost continued hosts
    run patch 600 tests/test_patch.sh
    run cuda.trainer 600 tests/trainer_cuda.sh "$stand_in/train_gpt2_zero"
    run cuda.trainer_nccl 400 tests/trainer_nccl.sh "$stand_in/train_gpt2_zero" "$trainer"
    run cuda.same_bits 600 tests/same_bits.sh "$stand_in/train_gpt2_zero" cuda
    run same_bits 600 tests/same_bits.sh "$trainer"
    run trainer 600 tests/trainer.sh "$trainer" resume elastic files outputs hellaswag plan options \
        zero_config input_files unlike launch replay
    run trainer.tiers 400 tests/trainer.sh "$trainer" tiers
    run checkpoints 400 tests/checkpoints.sh "$build" 1 3
    for np in 4 3 2 1; do run "cuda.mpi_bits.$np" 400 bash -c "on_ranks $np $stand_in/tests/mpi_bits"; done
    for np in 2 1; do run "cuda.mpi_device.$np" 400 bash -c "on_ranks $np $stand_in/tests/mpi_device"; done
    for np in 4 3; do run "cuda.mpi_nccl.$np" 400 bash -c "on_ranks $np $stand_in/tests/mpi_nccl"; done
    table mpi_bits 600 4 3 2 1
    table mpi_zero 600 3 1
    run example 400 tests/test_example.sh "$build/mlp_zero"
    run house 400 tests/test_house.sh "$build"
    table mpi_checkpoint 400 3 1
    run multi_node 400 tests/ranks.sh "$trainer" "$build/tests/mpi_net" recipes ends
    run recipes 400 tests/test_recipes.sh "$trainer"
    run folder 400 tests/folder.sh "$trainer" lock options finite readers
    run terminal 400 tests/test_terminal.sh "$trainer"
    run trainer.prompts 400 tests/trainer.sh "$trainer" prompts
    run breaks.signals 400 tests/breaks.sh "$build" "$trainer" signals
    run bench 400 tests/test_bench.sh "$build/bench/comm" "$stand_in/bench/comm"
    run tokens 400 tests/test_tokens.sh "$build/make_tokens"
    run export 400 tests/export.sh "$trainer" trips refused
    # Runs as many blocks at once as an H200; under sanitizers, make check uses the stand-in's small default.
    for t in "$stand_in"/tests/cuda/test_* "$stand_in"/tests/test_*; do
        [ -x "$t" ] && [ -f "$t" ] &&
            run "cuda.$(basename "$t")" 400 env OMP_NUM_THREADS=1 STAND_IN_SMS=132 STAND_IN_BLOCKS=12 "$t"
    done
    run breaks.async 400 tests/breaks.sh "$build" "$trainer" async
    run virtual 400 tests/virtual.sh "$trainer"
else
    table mpi_bits 600 4 2 1
    table mpi_zero 600 4 2 1
    run checkpoints 400 tests/checkpoints.sh "$build" 1 2
    table mpi_checkpoint 400 4 1
fi
run mpi_zero.timeout 400 bash -c "on_ranks 4 $build/tests/mpi_zero timeout"
run mpi_net.3 400 bash -c "on_ranks 3 $build/tests/mpi_net"
run mpi_large.3 400 bash -c "on_ranks 3 $build/tests/mpi_large '$build'"
for np in 3 1; do run "mpi_check.$np" 400 bash -c "on_ranks $np $build/tests/mpi_check"; done
for np in 3 2; do run "mpi_same.$np" 400 bash -c "on_ranks $np $build/tests/mpi_same"; done
run mpi_async.2 400 bash -c "on_ranks 2 $build/tests/mpi_async"
for t in "$build"/tests/test_*; do
    [ -x "$t" ] && [ -f "$t" ] && run "$(basename "$t")" 400 env OMP_NUM_THREADS=2 "$t"
done
run_all
# Runs alone, because it measures the system's memory.
[ -n "$short" ] || run trainer.memory 120 tests/trainer.sh "$trainer" memory
run_all

passed=0 failed=0 skipped=0
for name in "${names[@]}"; do
    if read -r p f s <"$logs/$name.sum"; then
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    else
        failed=$((failed + 1))
    fi
done
[ ${#unstable[@]} = 0 ] || echo "${#unstable[@]} unstable: ${unstable[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
