#!/usr/bin/env bash
# Tests --async-save: the same bits, checkpoints and model files as without it, its memory in the table,
# training during the write of a model file, and resuming after a kill during that write.
# Usage: tests/async_save.sh TRAINER
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "$1") || exit 1
export OMP_NUM_THREADS=1
make_shim
held=$dir/held screen=$dir/screen

# train FOLDER ARGUMENT...: runs the trainer, with its output in FOLDER.log; $with holds environment variables
with=()
train() {
    timeout -k 2 $hang_limit mpirun --oversubscribe -np 2 env ${with[@]+"${with[@]}"} "$trainer" \
        -e l2h2c64v257t32 -b 2 -x 8 -u 0 -v 0 -s 0 --device cpu --dtype bf16 --threads 1 --hash full \
        -n 2 -nk 2 -o "$1" "${@:2}" >"$1.log" 2>&1
}
kill_ranks() {
    pkill -KILL -f "^$trainer .* -o $held"
    ends_within $hang_limit $job
}
hash_of() { json_value "$1/summary.json" state_hash; }
same_bits() { is "state_hash of $1" "$(hash_of "$1")" "$(hash_of "$dir/plain")"; }
# Prints the manifest without what differs between runs: file names and the checksum.
facts_of() {
    sed -E 's/rank([0-9]{5})-[0-9a-f]{16}/rank\1/g; /^"xxh3"/d' \
        "$1/step_00000008/manifest.json"
}
is_good() { "$trainer" --verify "$1" >"$screen" 2>&1 || need "$1 is damaged: $(cat "$screen")" false; }
# awaits PATTERN: waits until the log of the background run, which has a time limit, contains PATTERN
awaits() {
    until grep -qE "$1" "$held.log" || ! any_runs $job; do sleep 0.01; done
    has "$held.log" "$1"
}
without() { need "$1 exists" [ ! -e "$1" ]; }

begin 'async_save.the same bits and the same checkpoints'
need 'the run without --async-save failed' train "$dir/plain"
need 'the run with --async-save failed' train "$dir/async" --async-save
same_bits "$dir/async"
is manifest "$(facts_of "$dir/async")" "$(facts_of "$dir/plain")"
is 'complete checkpoints' "$(grep -c 'is complete, ' "$dir/async.log")" 4
is 'checkpoints kept by -nk' "$(cd "$dir/async" && echo step_*)" 'step_00000006 step_00000008'
need 'the model files differ' cmp -s "$dir/plain/model_00000008.bin" "$dir/async/model_00000008.bin"
has "$dir/async.log" 'copy for checkpoints'     # in the memory table
need 'the table lists a copy without --async-save' not grep -q 'copy for checkpoints' "$dir/plain.log"
end

# holds CASE FILE: starts a run that blocks when it writes to a path containing FILE, until $dir/go exists
holds() {
    begin "async_save.$1"
    rm -rf "$held" "$dir/go" && mkdir "$held" && : >"$held.log"
    with=("LD_PRELOAD=$shim" "DISK_FOLDER=$held" "DISK_HOLD=$2:$dir/go")
    train "$held" --async-save &
    job=$!
    with=()
}
# ends: unblocks the writes, and checks that the run ends with the same bits
ends() {
    : >"$dir/go"
    ends_within $hang_limit $job
    is status $status 0
    same_bits "$held"
}

holds 'steps while the states are written' step_00000004/rank
awaits '^step  *6/8'
without "$held/step_00000004/manifest.json"
ends
is 'order: step 4 completes before the next save' "$(grep -nE 'step 4 is complete|at step 6' "$held.log" |
    sed 's/.*checkpoint.*step 4.*/4/; s/.*at step 6/6/' | xargs)" '4 6'
end

holds 'steps while a model file is written' model_00000004.bin
awaits '^step  *6/8'
awaits '^the checkpoint of step 4 is complete'
without "$held/model_00000004.bin"
is_good "$held/step_00000004"
need 'the next save has begun' not grep -q '^writing checkpoint at step 6' "$held.log"
ends
is_good "$held"
end

holds 'the end waits for the model file' model_00000008.bin
awaits '^the checkpoint of step 8 is complete'
need 'the run ended without waiting' any_runs $job
without "$held/summary.json"
ends
need 'the model files differ' cmp -s "$dir/plain/model_00000008.bin" "$held/model_00000008.bin"
end

for how in '' --async-save; do
    begin "async_save.the disk is full when the model file is written${how:+, $how}"
    rm -rf "$dir/full" && mkdir "$dir/full"
    with=("LD_PRELOAD=$shim" "DISK_FOLDER=$dir/full" DISK_FAIL=write:1+:28:model_00000004.bin)
    need 'the run succeeded' not train "$dir/full" $how
    with=()
    has "$dir/full.log" '^train_gpt2_zero: .*model_00000004.bin: .*No space left.* step 4 is complete'
    is_good "$dir/full"
    is 'model files' "$(cd "$dir/full" && echo model*)" model_00000002.bin
    need 'the run did not resume' train "$dir/full" $how -y 1
    same_bits "$dir/full"
    end
done

holds 'killed while a model file is written' model_00000004.bin
awaits '^the checkpoint of step 4 is complete'
need 'the write did not begin' await compgen -G "$held/model_00000004.bin.*.tmp" >/dev/null
kill_ranks
without "$held/model_00000004.bin"
is_good "$held"
need 'the run did not resume' train "$held" --async-save -y 1 -x 5
has "$held.log" '^resuming at step 4$'
is_good "$held/model_00000004.bin"
has "$screen" 'model_00000004.bin: good'
need 'a temporary file remains' not compgen -G "$held/*.tmp" >/dev/null
end

finish async_save
