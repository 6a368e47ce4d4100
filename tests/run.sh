#!/usr/bin/env bash
# Runs every test with a time limit and adds up. A test that hangs has failed. Usage: tests/run.sh
# BUILD_FOLDER TRAINER [short]
#   test_*      one process, cmocka            mpi_zero   the table of settings, once for each number of ranks
#   trainer.sh  the trainer from outside       test_example.sh, test_patch.sh   the other two trainers
#   test_tokens.sh   text into tokens          test_terminal.sh   bar, --help, tables and pictures
#   mpi_direct  ranks that read each other's memory
#   mpi_same    ranks that are not given the same
#   mpi_states  who uses a model state opens and closes it: a store of copies shows who does not
#   start.sh    ranks that find each other without MPI, on one host and on several (network namespaces, where
#               root)
#   stand-in/   the CUDA code, run on the processor (tests/cuda/)  trainer_cuda.sh    the trainer with
#               --device cuda
#   trainer_nccl.sh  the trainer and NCCL, with the stand-in for it
#   mpi_tiers   states in files on NVMe, in every mixture with memory; mpi_tiers_device: beside a CUDA device
#   mpi_large   checkpoints of many requests to the disk, each of which may fail
#   mpi_async   saves that go on while training does; async_save.sh   the same from outside
#   mpi_checkpoint  saving and loading; checkpoints.sh   from each number of ranks to each other
#   signals.sh  runs that are stopped and made to save
#   export.sh   a checkpoint, llm.c's file and Hugging Face's folder become each other
#   mpi_good    what is saved as good, and what is found damaged; folder.sh   the output folder of a run
#   test_bench.sh    the table of dev/bench/comm                  test_multi_node.sh  the recipes for several
#                    machines
#   test_gpu_model.sh  dev/gpu_model.sh and its page               test_house.sh     who may use whom, and the
#                      format
#   short       leaves the shell scripts and stand-in/ out (for runs under sanitizers)
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1 trainer=$2 short=${3:-}
. scripts/mpi_env.sh
logs=$build/logs; mkdir -p "$logs"
passed=0 failed=0 skipped=0
trap 'exit 1' INT TERM

add() { passed=$((passed + $1)); failed=$((failed + $2)); skipped=$((skipped + $3)); }

# run NAME SECONDS COMMAND...: one line about it; its output is shown only if it failed.
run() {
    local name=$1 limit=$2 log=$logs/$1.log start=$SECONDS p f s status
    shift 2
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null; status=$?
    # our own closing line, or cmocka's
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
    if [ $status = 124 ] || [ $status = 137 ]; then f=$((f + 1)); echo "HANG   $name: no end after $limit s"
    elif [ $status != 0 ] && [ "$f" = 0 ]; then f=1; fi
    if [ $status = 0 ] && [ "$p" = 0 ] && [ "$s" = 0 ]; then f=1; echo "$name: ran no test" >>"$log"; fi
    if [ "$f" != 0 ] || [ $status != 0 ]; then \
        echo "FAILED $name (status $status, $((SECONDS - start)) s); the end of $log:"; tail -n 25 "$log" |
        sed 's/^/    /'
    else printf 'ok     %-22s %4d passed, %d skipped, %d s\n' "$name" "$p" "$s" $((SECONDS - start)); fi
    grep -h '^skip ' "$log" | sed 's/^/       /'
    add "$p" "$f" "$s"
}

# Lanes run beside the rest and report when they have ended: what takes one core, or mostly waits, and whose
# limits in seconds are wide. What computes on several ranks has the rest. All three take as long.
lane() {
    rm -f "$logs/$1.sum"
    {
        passed=0 failed=0 skipped=0
        "$1"
        echo "$passed $failed $skipped" >"$logs/$1.sum"
    } >"$logs/$1.out" 2>&1 &
}
end_lanes() {
    local p f s
    wait
    for l in "$@"; do
        cat "$logs/$l.out"
        if read -r p f s <"$logs/$l.sum"; then add "$p" "$f" "$s"; else failed=$((failed + 1)); fi
    done
}
one_core() {
    run patch 400 tests/test_patch.sh
    run cuda.trainer 240 tests/trainer_cuda.sh "$stand_in/train_gpt2_zero"
    for t in "$stand_in"/tests/cuda/test_* "$stand_in"/tests/test_*; do
        [ -x "$t" ] && [ -f "$t" ] && run "cuda.$(basename "$t")" 120 env OMP_NUM_THREADS=1 "$t"
    done
    run tokens 180 tests/test_tokens.sh "$build/make_tokens"
    run example 240 tests/test_example.sh "$build/mlp_zero"
    run trainer.prompts 180 tests/trainer.sh "$trainer" prompts
}
programs() {
    for t in "$build"/tests/test_*; do
        # half a minute of waits: make check runs them
        case $t in *test_rendezvous | *test_net) [ -n "$short" ] || continue;; esac
        [ -x "$t" ] && [ -f "$t" ] && run "$(basename "$t")" 120 env OMP_NUM_THREADS=2 "$t"
    done
}
waiting() {
    run start 180 tests/start.sh "$trainer"
    run export 120 tests/export.sh "$trainer" trips refused
    run folder 120 tests/folder.sh "$trainer" lock finite
    run signals 120 tests/signals.sh "$trainer"
    run gpu_model 60 tests/test_gpu_model.sh
    run house 120 tests/test_house.sh "$build"
    run multi_node 120 tests/test_multi_node.sh "$trainer" same refused ends
    run cuda.trainer_nccl 120 tests/trainer_nccl.sh "$stand_in/train_gpt2_zero" "$trainer"
    run cuda.mpi_nccl 120 bash -c "on_ranks 3 $stand_in/tests/mpi_nccl"
    run bench 120 tests/test_bench.sh "$build/bench/comm" "$stand_in/bench/comm"
    run trainer 300 tests/trainer.sh "$trainer" bits resume files outputs traffic plan options zero_config \
        input_files not_finite unlike disk_full dying launch tiers
    run terminal 120 tests/test_terminal.sh "$trainer"
}
on_ranks() {        # NP COMMAND...
    env OMP_NUM_THREADS=1 mpirun --oversubscribe -np "$@"
}
export -f on_ranks
# table PROGRAM SECONDS NP...: its table of settings on each number of ranks
table() {
    local np
    for np in "${@:3}"; do run "$1.$np" "$2" bash -c "on_ranks $np $build/tests/$1"; done
}
free_port() {
    local port=20000
    until port=$((20000 + RANDOM % 10000)); ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo $port
}

stand_in=$build/stand-in
if [ -z "$short" ]; then
    lane one_core
    lane waiting
    programs
else
    lane programs
fi
# make test runs the tables on up to three ranks, and make check on one, two and four under sanitizers.
if [ -z "$short" ]; then
    table mpi_zero 240 1 3
    table mpi_checkpoint 120 1 3
    table mpi_good 60 3
    run checkpoints 300 tests/checkpoints.sh "$build" 1 2 3
    table mpi_direct 60 3
    table mpi_states 240 3
    table mpi_tiers 240 2
else
    table mpi_zero 240 2 4
    table mpi_checkpoint 240 1 4
    table mpi_good 120 2
    run checkpoints 300 tests/checkpoints.sh "$build" 1 2
    table mpi_direct 60 2 4
    table mpi_states 240 1 2
    table mpi_tiers 240 1 3
fi
for np in 2 3; do run "mpi_same.$np" 60 bash -c "on_ranks $np $build/tests/mpi_same"; done
run mpi_large.3 60 bash -c "on_ranks 3 $build/tests/mpi_large '$build'"
run mpi_async.2 60 bash -c "on_ranks 2 $build/tests/mpi_async"
run mpi_same.tcp 60 bash -c "TEST_SERVER=127.0.0.1:$(free_port) on_ranks 3 $build/tests/mpi_same"
run mpi_direct.killed 30 bash -c "on_ranks 3 --enable-recovery $build/tests/mpi_direct killed"
run mpi_zero.tcp 120 bash -c "TEST_SERVER=127.0.0.1:$(free_port) on_ranks 2 $build/tests/mpi_zero 'same bits'"
run mpi_zero.timeout 60 bash -c "on_ranks 3 $build/tests/mpi_zero timeout"
if [ -z "$short" ]; then
    for np in 1 3; do run "cuda.mpi_device.$np" 300 bash -c "on_ranks $np $stand_in/tests/mpi_device"; done
    run cuda.mpi_tiers_device.2 300 bash -c "on_ranks 2 $stand_in/tests/mpi_tiers_device"
    run async_save 60 tests/async_save.sh "$trainer"
    end_lanes one_core waiting
    # alone, since it looks at what the system has
    run trainer.memory 120 tests/trainer.sh "$trainer" memory
else
    end_lanes programs
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
