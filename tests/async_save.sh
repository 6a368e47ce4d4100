#!/usr/bin/env bash
# --async-save from outside: the same bits and checkpoints as without, its memory in the plan, and a run that
# is killed while a checkpoint is written goes on from the one before. Usage: tests/async_save.sh TRAINER
# shellcheck disable=SC2016
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "$1") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1

# train FOLDER ARGUMENT...: what it says is in FOLDER.log
train() {
    local folder=$1
    shift
    timeout -k 2 60 mpirun --oversubscribe -np 2 "$trainer" -e l2h2c64v257t32 -b 2 -x 8 -u 0 -v 0 -s 0 \
        --device cpu --dtype bf16 --threads 1 --hash full -n 2 -nk 2 -o "$folder" "$@" >"$folder.log" 2>&1
}
hash_of() { grep -o '"state_hash": "[0-9a-f]*"' "$1/summary.json"; }
# The blocks' digests and all else that a manifest says but the files' names, and with them its own digest.
said_by() { sed -E 's/rank([0-9]{5})-[0-9a-f]{16}/rank\1/g; /^"xxh3"/d' "$1/step_00000008/manifest.json"; }

begin 'async_save.the same bits and the same checkpoints'
need 'a run without it fails' train "$dir/plain"
need 'a run with it fails' train "$dir/async" --async-save
need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/async")"
need 'other checkpoints' test "$(said_by "$dir/plain")" = "$(said_by "$dir/async")"
need 'not four that became complete' test "$(grep -c 'is complete, ' "$dir/async.log")" = 4
need 'the checkpoints that -nk keeps' test "$(cd "$dir/async" && echo step_*)" = 'step_00000006 step_00000008'
need 'no line of the copy in the plan' grep -q 'copy for checkpoints' "$dir/async.log"
need 'such a line without it' not grep -q 'copy for checkpoints' "$dir/plain.log"
end

begin 'async_save.without -n'
timeout 20 "$trainer" --async-save -x 1 >"$dir/said" 2>&1
need 'accepted' test $? != 0
need 'no advice' grep -q 'option --async-save: .* -n N' "$dir/said"
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
    for pid in $(pgrep -f "$trainer .* -o $dir/killed"); do
        [ "$(ps -o comm= -p "$pid")" != train_gpt2_zero ] || kill -9 "$pid" 2>/dev/null
    done
    wait $job 2>/dev/null
    [ -f "$dir/killed/summary.json" ] || need 'does not resume' train "$dir/killed" --async-save -y 1
    need 'other bits' test "$(hash_of "$dir/plain")" = "$(hash_of "$dir/killed")"
    end
done
finish async_save
