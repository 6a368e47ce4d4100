#!/usr/bin/env bash
# --async-save from outside: the same bits, checkpoints and model files as without, its memory in the plan,
# steps while a model file is written, and a run that is killed while a checkpoint is written goes on from the
# one before. Usage: tests/async_save.sh TRAINER
# shellcheck disable=SC2016
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "$1") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1

# train FOLDER ARGUMENT...: what it says is in FOLDER.log; variables for the ranks in $with
with=()
train() {
    local folder=$1
    shift
    timeout -k 2 60 mpirun --oversubscribe -np 2 env ${with[@]+"${with[@]}"} "$trainer" \
        -e l2h2c64v257t32 -b 2 -x 8 -u 0 -v 0 -s 0 --device cpu --dtype bf16 --threads 1 --hash full \
        -n 2 -nk 2 -o "$folder" "$@" >"$folder.log" 2>&1
}
kill_ranks() {      # FOLDER
    local pid
    for pid in $(pgrep -f "$trainer .* -o $1"); do
        [ "$(ps -o comm= -p "$pid")" != train_gpt2_zero ] || kill -9 "$pid" 2>/dev/null
    done
}
hash_of() { grep -o '"state_hash": "[0-9a-f]*"' "$1/summary.json"; }
# The blocks' digests and all else that a manifest says but the names of the files and the run, and with them
# its own digest.
said_by() {
    sed -E 's/rank([0-9]{5})-[0-9a-f]{16}/rank\1/g; s/"run": ?"[0-9a-f]{16}"//; /^"xxh3"/d' \
        "$1/step_00000008/manifest.json"
}

begin 'async_save.the same bits and the same checkpoints'
need 'a run without it fails' train "$dir/plain"
need 'a run with it fails' train "$dir/async" --async-save
need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/async")"
need 'other checkpoints' test "$(said_by "$dir/plain")" = "$(said_by "$dir/async")"
need 'not four that became complete' test "$(grep -c 'is complete, ' "$dir/async.log")" = 4
need 'the checkpoints that -nk keeps' test "$(cd "$dir/async" && echo step_*)" = 'step_00000006 step_00000008'
need 'other model files' cmp -s "$dir/plain/model_00000008.bin" "$dir/async/model_00000008.bin"
need 'no line of the copy in the plan' grep -q 'copy for checkpoints' "$dir/async.log"
need 'such a line without it' not grep -q 'copy for checkpoints' "$dir/plain.log"
end

begin 'async_save.without -n'
timeout 20 "$trainer" --async-save -x 1 >"$dir/said" 2>&1
need 'accepted' test $? != 0
need 'no advice' grep -q 'option --async-save: .* -n N' "$dir/said"
end

# The disk takes nothing of a file until the test lets it.
"${CC:-cc}" -std=c11 -D_GNU_SOURCE -O1 -g -shared -fPIC tests/shim/disk.c -o "$dir/disk.so" -ldl || exit 1
sanitizer=$(ldd "$trainer" | awk '/libasan/ { print $3 }')      # ASan must be the first library
# held TEXT FOLDER ARGUMENT...: begins a run whose writes to paths with this text wait until $dir/go is there
held() {
    local text=$1 folder=$2
    rm -rf "$folder" "$dir/go" && mkdir "$folder" && : >"$folder.log"
    with=("LD_PRELOAD=$sanitizer $dir/disk.so" "DISK_FOLDER=$folder"
        "DISK_HOLD=$text:$dir/go")
    train "$folder" "${@:3}" &
    job=$!
    with=()
}
await() { until "$@" || ! kill -0 $job 2>/dev/null; do sleep 0.01; done; "$@"; }

begin 'async_save.steps while the states are written'
held step_00000004/rank "$dir/held" --async-save
need 'no step begins before they are written' await grep -q '^step  *6/8' "$dir/held.log"
need 'there is a manifest' test ! -e "$dir/held/step_00000004/manifest.json"
: >"$dir/go"
need 'it does not come to its end' wait $job
need 'it was not complete before the next' test "$(grep -nE 'step 4 is complete|at step 6' "$dir/held.log" |
    sed 's/.*checkpoint.*step 4.*/4/; s/.*at step 6/6/' | tr '\n' ' ')" = '4 6 '
need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/held")"
end

begin 'async_save.steps while a model file is written'
held model_00000004.bin "$dir/held" --async-save
need 'no step begins before it is written' await grep -q '^step  *6/8' "$dir/held.log"
need 'the checkpoint is not complete' await grep -q '^the checkpoint of step 4 is complete' "$dir/held.log"
need 'the model file is there' test ! -e "$dir/held/model_00000004.bin"
need 'the checkpoint cannot be read' "$trainer" --verify "$dir/held/step_00000004" >"$dir/said" 2>&1
need 'the next save has begun' not grep -q '^writing checkpoint at step 6' "$dir/held.log"
: >"$dir/go"
need 'it does not come to its end' wait $job
need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/held")"
need "the files: $(cat "$dir/said")" "$trainer" --verify "$dir/held" >"$dir/said" 2>&1
end

begin 'async_save.the end waits for the model file'
held model_00000008.bin "$dir/held" --async-save
need 'no checkpoint' await grep -q '^the checkpoint of step 8 is complete' "$dir/held.log"
need 'it has ended' kill -0 $job
need 'there is a summary' test ! -e "$dir/held/summary.json"
: >"$dir/go"
need 'it does not come to its end' wait $job
need 'the model file is not there' cmp -s "$dir/plain/model_00000008.bin" "$dir/held/model_00000008.bin"
end

for how in '' --async-save; do
    begin "async_save.a disk that is full when the model file is written${how:+, $how}"
    rm -rf "$dir/full" && mkdir "$dir/full"
    with=("LD_PRELOAD=$sanitizer $dir/disk.so" "DISK_FOLDER=$dir/full"
        DISK_FAIL=write:1+:28:model_00000004.bin)
    need 'it is no error' not train "$dir/full" $how
    with=()
    need "$(tail -n 1 "$dir/full.log")" grep -q \
        '^train_gpt2_zero: .*model_00000004.bin: .*No space left.*; the checkpoint of step 4 is complete' \
        "$dir/full.log"
    need "$(cat "$dir/said")" "$trainer" --verify "$dir/full" >"$dir/said" 2>&1
    need "left: $(ls "$dir/full")" [ "$(cd "$dir/full" && echo model*)" = model_00000002.bin ]
    need 'it does not resume' train "$dir/full" $how -y 1
    need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/full")"
    end
done

begin 'async_save.killed while a model file is written'
held model_00000004.bin "$dir/held" --async-save
need 'no checkpoint' await grep -q '^the checkpoint of step 4 is complete' "$dir/held.log"
need 'nothing has begun' await compgen -G "$dir/held/model_00000004.bin.*.tmp" >/dev/null
kill_ranks "$dir/held"
wait $job 2>/dev/null
need 'the model file is there' test ! -e "$dir/held/model_00000004.bin"
need 'the checkpoint is not good' "$trainer" --verify "$dir/held" >"$dir/said" 2>&1
need 'it does not resume' train "$dir/held" --async-save -y 1 -x 5
need 'not from step 4' grep -q '^resuming at step 4$' "$dir/held.log"
need 'it was not written then' "$trainer" --verify "$dir/held/model_00000004.bin" >"$dir/said" 2>&1
need "it says $(cat "$dir/said")" grep -q 'model_00000004.bin: good' "$dir/said"
need "left: $(ls "$dir/held")" not compgen -G "$dir/held/*.tmp" >/dev/null
end

# Ranks are killed at the moment at which the log says that the writing has begun.
for at in 4 6; do
    begin "async_save.killed during the save of step $at"
    rm -rf "$dir/killed" && : >"$dir/killed.log"
    train "$dir/killed" --async-save &
    job=$!
    until grep -q "writing checkpoint at step $at" "$dir/killed.log" || ! kill -0 $job 2>/dev/null; do
        sleep 0.01
    done
    kill_ranks "$dir/killed"
    wait $job 2>/dev/null
    [ -f "$dir/killed/summary.json" ] || need 'does not resume' train "$dir/killed" --async-save -y 1
    need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/killed")"
    end
done
finish async_save
