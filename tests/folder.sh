#!/usr/bin/env bash
# Tests the output folder: its lock, logs that contain each step once, its one history, refused checkpoints,
# and --verify. Usage: tests/folder.sh TRAINER [GROUP]...
# shellcheck disable=SC2086
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1
shift
export LC_ALL=C

small=(-e l1h2c32v257t32 -b 2 -u 0 -v 0 -s 0 -n 0 -k constant --threads 1 --overlap 0 --hash full --dtype fp32
       --device cpu --progress lines)
out=$dir/out screen=$dir/refused

# try NP ARGUMENT...: runs the trainer, with its output in $screen
try() { run "$1" $hang_limit "${small[@]}" "${@:2}" >"$screen" 2>&1; }
runs() { try "$@" || need "failed: $*: $(tail -n 3 "$screen")" false; }
trains() { runs "$1" -o "$out" "${@:2}"; }
# resumes STEP NP ARGUMENT...: trains, and checks that the run resumes at STEP
resumes() { trains "${@:2}"; prints "^resuming at step $1\$"; }
# refuses PATTERN NP ARGUMENT...: starts a run and checks that it fails with one matching message
refuses() {
    try "${@:2}"
    status=$?
    one_message "$1"
}
prints() { has "$screen" "$@"; }
# finds_bad PATH PATTERN: checks that --verify reports damage in a line that matches
finds_bad() {
    need "$1 was reported good" not try 1 --verify "$1"
    prints "^BAD .*$2"
}
verifies() { runs 1 --verify "$1"; }
fresh() { rm -rf "$out"; }
begin_fresh() { begin "$1"; fresh; }      # NAME
names() { (cd "$out" && shopt -s nullglob && echo $1); }
has_names() { is "names $1" "$(names "$1")" "$2"; }
steps_in() { sed -nE 's/^\{"step": ([0-9]+),.*/\1/p' "$1" | xargs; }
has_steps() { is "steps of $1" "$(steps_in "$out/$1")" "$2"; }
same_file() { need "$2 has changed" cmp -s "$1" "$2"; }

# ---- the lock

end_long() {
    kill -KILL "${pids[@]}"
    ends_within $hang_limit $job
} 2>/dev/null
first_runs() { any_runs "${pids[0]}"; }

test_lock() {
    local how
    begin_fresh 'folder.lock: a second run is refused, and a killed one leaves no lock'
    echo Once >"$dir/prompts"
    begin_long 2 -o "$out"
    for how in '-nk 1' '-n 1 -y 1' "--prompts $dir/prompts -g 2 -e l1h2c32v257t32"; do
        refuses "$out: another run is using this folder \(host $(hostname), process ${pids[0]}\)" \
            2 -o "$out" $how
    done
    need 'the first run ended' first_runs
    end_long
    has_names '*' 'main.log metrics.jsonl run.json run.lock tokenizer.bin'
    trains 2 -x 2 -y 1
    end
    begin_fresh 'folder.lock, replaced by a symlink'
    mkdir "$out"
    echo mine >"$dir/mine"
    ln -s "$dir/mine" "$out/run.lock"
    refuses 'run.lock: Too many levels' 2 -o "$out" -x 1
    is "the link's target" "$(<"$dir/mine")" mine
    end
    if command -v strace >/dev/null; then
        begin_fresh 'folder.lock, a file system without locks'
        wrap='exec strace -qq -o /dev/null -e inject=flock:error=ENOLCK "$0" "$@";'
        trains 1 -x 1
        wrap=
        is warnings "$(grep -c '^warning: .*run.lock: this file system has no locks' "$screen")" 1
        end
    fi
}

# ---- logs

test_logs() {
    local how file
    begin_fresh 'folder.logs without a checkpoint: only -y 1 replaces them, unless the run has finished'
    trains 2 -x 3
    refuses '-o: .*/out holds the logs of an earlier run .* -y 1, which .* replaces these' 2 -o "$out" -x 1
    refuses '-y 1: .*/out holds a finished run without checkpoints' 2 -o "$out" -x 1 -y 1
    rm "$out/summary.json"
    trains 2 -x 2 -y 1
    has_steps metrics.jsonl '1 2'
    is 'steps in main.log' "$(sed -nE 's/^s:([0-9]+) trl.*/\1/p' "$out/main.log" | xargs)" '0 1'
    end

    # Simulates a run killed while writing a log line, some steps after its checkpoint of step 4.
    for how in '-v 0' '-v 3 -m 1'; do
        begin_fresh "folder.logs have each step once after a resume, $how"
        trains 2 -x 8 $how
        rm -rf "$dir/straight" && mv "$out" "$dir/straight"
        trains 2 -x 7 -n 4 $how
        rm -rf "$out/step_00000007" "$out/model_00000007.bin"
        printf 's:7 trl:5.1' >>"$out/main.log"
        printf '{"step": 8, "loss"' >>"$out/metrics.jsonl"
        resumes 4 2 -x 8 -y 1 $how
        is main.log "$(cat "$out/main.log")" "$(cat "$dir/straight/main.log")"
        has_steps metrics.jsonl '1 2 3 4 5 6 7 8'
        has_names '*.tmp' ''
        end
    done

    begin 'folder.logs are unchanged if the checkpoint does not load'
    flip_byte "$(echo "$out"/step_00000004/rank00000-*)" 1000
    cp "$out/main.log" "$dir/main.log"
    refuses 'damaged' 2 -o "$out" -x 9 -y 1
    same_file "$dir/main.log" "$out/main.log"
    end

    begin 'folder.symlinks in place of files are not followed'
    for file in main.log metrics.jsonl; do
        fresh
        mkdir "$out"
        : >"$dir/empty"
        ln -s "$dir/empty" "$out/$file"
        refuses "$file: Too many levels" 1 -o "$out" -x 1 -n 1 -y 1
        need "$file: the link's target was written to" [ ! -s "$dir/empty" ]
    done
    echo mine >"$dir/mine"
    for file in summary.json.tmp summary.json model_00000001.bin model_00000001.bin.tmp; do
        fresh
        mkdir "$out"
        ln -s "$dir/mine" "$out/$file"
        trains 1 -x 1 -n 1
        is "$file: the link's target" "$(<"$dir/mine")" mine
    done
    end
}

# ---- one history

unchanged() { need 'the folder has changed' diff -r -x run.lock "$dir/before" "$out" >/dev/null; }
# damaged COMMAND STEP MESSAGE: damages step 6; -y 1 must be refused, change nothing and name STEP
damaged() {
    begin_fresh "folder.history, after $1: -y 1 is refused"
    trains 2 -x 6 -n 2
    (cd "$out" && eval "$1")
    rm -rf "$dir/before" && cp -r "$out" "$dir/before"
    refuses "$out/step_00000006$3; to continue from step $2, add --resume $out/step_0000000$2 and name" \
        2 -o "$out" -x 8 -n 2 -y 1
    unchanged
    end
}

test_history() {
    begin_fresh "folder.history: --resume does not go back in place"
    trains 2 -x 6 -n 2 -l 1e-3
    rm -rf "$dir/before" && cp -r "$out" "$dir/before"
    refuses "-o: $out/ holds a checkpoint at step 6; -y 1 resumes it, but" \
        2 -o "$out/" -x 8 -n 2 --resume "$out/step_00000004"
    unchanged
    resumes 6 2 -x 8 -n 8 -y 1 --resume "$out/step_00000002"       # -y 1 takes the newest
    has_steps metrics.jsonl '1 2 3 4 5 6 7 8'
    end

    damaged 'rm step_00000006/manifest.json' 4 ': damaged: it was complete, and manifest.json is missing'
    damaged 'rm step_00000004/manifest.json; truncate -s -1 step_00000006/rank00000-*' 2 \
        '/rank.*: ends at offset [0-9]+, .*'
    begin 'folder.history: no older checkpoint'
    rm -r "$out"/step_00000002
    refuses 'ends at offset .*; there is no older checkpoint in' 2 -o "$out" -x 8 -y 1
    end

    begin_fresh 'folder.history: resuming from a checkpoint in another folder'
    trains 2 -x 2 -n 2
    rm -rf "$dir/other" && mv "$out" "$dir/other"
    trains 2 -x 5 -n 1 --resume "$dir/other/step_00000002"
    refuses '-o: .*/out holds a checkpoint at step 5' 2 -o "$out" -x 6 --resume "$dir/other/step_00000002"
    # simulates a run killed before its first save
    find "$out" -mindepth 1 -maxdepth 1 ! -name metrics.jsonl -exec rm -r {} +
    resumes 2 2 -x 5 -n 1 -y 1 --resume "$dir/other/step_00000002"
    has_steps metrics.jsonl '3 4 5'
    end
}

# ---- resuming with other options

# with_room BYTES: sets room, which makes a run's disk appear to have this much space
with_room() { room=("LD_PRELOAD=$shim" "DISK_FOLDER=$out" "DISK_FREE=$1"); }

test_options() {
    local one real room
    begin_fresh 'folder.options: the end of training saves unless -n is 0, and -y 1 reports where it starts'
    trains 2 -x 3 -n -1 -y 1
    prints "^no checkpoint in $out: starting at step 1\$"
    has_names 'step_* model_*' 'step_00000003 model_00000003.bin'
    rm -rf "$dir/finished" && cp -r "$out" "$dir/finished"
    resumes 3 1 -x 3 -n -1 -y 1 -v 1 -m 1 -z 0 --tokenizer none
    prints '^all 3 steps are done; a larger -x continues the run$' '^val loss ' '^no step was run \| params_'
    need 'it changed the files of the finished run' diff -r -x run.lock "$dir/finished" "$out" >/dev/null
    resumes 3 1 -x 4 -y 1
    has_names 'step_*' 'step_00000003'
    runs 1 -x 1 -n -1
    is 'saves without -o' "$(grep -c '^writing checkpoint' "$screen")" 0
    end

    begin_fresh 'folder.options: a disk without room for the checkpoints is refused at the start'
    make_shim
    trains 1 -x 0 -n 1
    one=$(du -s -B 1 -c "$out"/step_* "$out"/model_* | tail -n 1 | cut -f1)
    real=$(du -s -B 1 "$out" | cut -f1)
    fresh
    with_room $((real - 4096))
    refuses '-o: .* MiB free, but 1 checkpoint of [0-9.]+ MiB and the logs need [0-9.]+ MiB; .* -n 0 ' \
        1 -o "$out" "${room[@]}" -n -1
    trains 1 "${room[@]}" -x 1
    fresh
    with_room $((3 * one - 4096))
    refuses 'free, but 3 checkpoints of .* MiB and the logs need .* MiB; .* lower -nk' \
        1 -o "$out" "${room[@]}" -x 4 -n 1 -nk 2
    trains 1 "${room[@]}" -x 2 -n 1 -nk 2
    with_room $((real + real / 10 + 8192))
    trains 1 "${room[@]}" -x 5 -n 1 -nk 2 -y 1      # two of the three exist already
    end

    begin_fresh 'folder.options: a different number of threads, which can change the last bits, is reported'
    trains 1 -x 2 -n 2
    trains 1 -x 3 -y 1 --threads 2
    prints '^changed since .*/step_00000002: --threads 1 -> 2$'
    end

    begin "folder.options: -e names another model's file"
    runs 1 -o "$dir/wide" -x 1 -n 1 -e l1h2c64v257t32
    refuses 'option -e .*/model_00000001.bin: .*/step_00000002 belongs to another model, L 1, NH 2, C 32' \
        1 -o "$out" -x 3 -y 1 -e "$dir/wide/model_00000001.bin"
    trains 1 -x 3 -y 1 -e "$out/model_00000002.bin"
    trains 1 -x 3 -y 1 -e "$dir/gone.bin"
    rm -r "$dir/wide"
    end

    begin 'folder.options: advice if the batch cannot be divided among the ranks'
    refuses 'option -d 64, .* not .* = 4 x 32 x 1 = 128; use -b 2, another -d with --resume-anyway, or' \
        1 -o "$out" -x 3 -y 1 -b 4
    refuses 'option -d 64, .*; use another -d with --resume-anyway, or other ranks$' \
        3 -o "$out" -x 3 -y 1
    refuses 'option --resume none: not a complete checkpoint, .* name a folder step_NNNNNNNN$' 1 --resume none
    refuses 'option -x 1: the checkpoint is already at step 2; a larger -x continues' 1 -o "$out" -x 1 -y 1
    refuses "option -e .*: this is a checkpoint; -e takes .*, and --export $out/step_00000002 --to NAME.bin" \
        1 -e "$out/step_00000002"
    end
}

# ---- NaN and Inf

# With --eps 0, AdamW divides 0 by 0 for elements without a gradient.
test_finite() {
    local before steps diverges=(2 -o "$out" -x 60 -n 1 -nk 2 -l 1000 -c 1000 --clip 0)
    begin_fresh 'folder.finite: NaN is refused, in a checkpoint and at the end'
    trains 2 -x 4 -n 2
    before=$(cd "$out" && sha256sum step_*/* model_*)
    refuses '^train_gpt2_zero: checkpoint of step 5: rank [0-9] \(host .*\) has parameters that are not '\
'finite: -?nan in [a-z]+, layer [0-9]+, element [0-9]+ \(unit .*\); .* step 4 is unchanged' \
        2 -o "$out" -x 8 -n 1 -nk 1 -y 1 --eps 0
    is files "$(cd "$out" && sha256sum step_*/* model_*)" "$before"
    has_names 'step_*' 'step_00000002 step_00000004'
    resumes 4 2 -x 5 -n 5 -nk 1 -y 1
    fresh
    refuses 'step 1: rank [0-9] .* not finite: .*; no checkpoint has been' 2 -o "$out" -x 1 --eps 0
    need 'a summary was written' [ ! -e "$out/summary.json" ]
    fresh
    refuses 'checkpoint of step 1: rank [0-9] .* not finite: .*; no checkpoint' 2 -o "$out" -x 3 -n 1 \
        --eps 0 --delayed-update 1 --offload-optimizer cpu
    has_names 'step_* model_*' ''
    end
    begin_fresh 'folder.finite: after divergence, the checkpoints kept by -nk are good'
    refuses 'rank [01]: step [0-9]+: .*not finite' "${diverges[@]}"
    steps=$(names 'step_*')
    is 'checkpoints left' "$(wc -w <<<"$steps")" 2
    prints "the checkpoint of step $((10#${steps##*_})) is unchanged"
    verifies "$out"
    fresh
    refuses '^train_gpt2_zero: rank [01]: validation after step [0-9]+: the loss is not finite' \
        "${diverges[@]}" -v 1 -m 1
    end
}

# ---- --verify

# is_good PATH FILES: checks that --verify lists FILES good files
is_good() {
    verifies "$1"
    is "good files of $1" "$(grep -c ': good, ' "$screen")" "$2"
}
# finds_damage: reads lines NAME|COMMAND|PATTERN. Runs COMMAND on a copy of $dir/good, and checks that
# --verify reports the damage in one line that matches PATTERN.
finds_damage() {
    local what command pattern
    while IFS='|' read -r what command pattern; do
        begin "folder.verify: $what"
        rm -rf "$out" && cp -r "$dir/good" "$out"
        (cd "$out" && eval "$command")
        finds_bad "$out" "$pattern"
        is 'bad lines' "$(grep -c '^BAD ' "$screen")" 1
        end
    done
    rm -rf "$out" && cp -r "$dir/good" "$out"
}

test_verify() {
    local size model damage
    fresh
    begin 'folder.verify: a good folder'
    trains 2 -x 4 -n 2
    rm -rf "$dir/good" && cp -r "$out" "$dir/good"
    is_good "$out" 8
    runs 2 --verify "$out/"
    is 'good files on two ranks' "$(grep -c ': good, ' "$screen")" 8
    is_good "$out/step_00000002" 4
    prints 'model_00000002.bin: good'
    verifies "$out/model_00000002.bin"
    need '--verify has changed the folder' diff -r "$out" "$dir/good"
    end

    states=$(cd "$out" && echo step_00000002/rank00001-*) model=model_00000004.bin
    size=$(stat -c %s "$out/$states")
    finds_damage <<END
states: a flipped bit|flip_byte $states $((size - 7))|$states: damaged: the block of [0-9]+ bytes at offset 0
truncated states|truncate -s -1 $states|$states: ends at offset $((size - 1)), .* $size
a missing file|rm $states|$states: No such file
a file from another save|cp step_00000004/rank00001-* $states|$states: damaged
a flipped bit in the manifest|flip_byte step_00000004/manifest.json 700|4/manifest.json: damaged: the checksum
a truncated model file|truncate -s -1 $model|$model: damaged, or .* bytes, but the checkpoint has
a folder named after another step|rm $model; mv step_00000004 step_00000005|step_00000005: was saved at step 4
END
    begin 'folder.verify: -e names a model file with a bad byte, or its folder'
    flip_byte "$out/$model" 50000
    refuses "$model: " 1 -e "$out/$model" -x 1
    need 'the run has trained' not grep -q '^step ' "$screen"
    runs 1 -e "$out" -x 1
    prints "$model: damaged, .*; looking for an older checkpoint"
    finds_bad "$out/step_00000004/" "$model: damaged, .*: offset 50000 has"
    flip_byte "$out/$model" 50000
    end
    begin 'folder.verify: -e names a model file beside a damaged checkpoint'
    for damage in 'truncate -s -1' ': >step_00000004/manifest.json; true'; do
        (cd "$out" && eval "$damage step_00000004/rank00001-*")
        runs 1 -e "$out/$model" -x 1
        prints "^warning: option -e .*/$model: not compared with .*: .*step_00000004/" '^step +1/1 '
        finds_bad "$out/$model" 'step_00000004/'
        need 'the export failed' "$trainer" --export "$out/$model" --to "$dir/exported.bin" >"$screen" 2>&1
        prints "^warning: option --export .*/$model: not compared with .*: .*step_00000004/"
        rm -f "$dir/exported.bin"
        rm -rf "$out" && cp -r "$dir/good" "$out"
    done
    end
    begin 'folder.verify: -e names a folder without its newest model file; a model file without a checkpoint'
    mv "$out/$model" "$out/model_00000005.bin"
    runs 1 -e "$out" -x 1
    prints '^model .*/model_00000002.bin: ' "/$model: .*No such file.*; looking for an older checkpoint\$"
    finds_bad "$out/model_00000005.bin" 'model_00000005.bin: cannot be verified: there is no checkpoint'
    mv "$out/model_00000005.bin" "$out/$model"
    end
    begin 'folder.verify: an unfinished save'
    cp -r "$out/step_00000004" "$out/step_00000006" && rm "$out/step_00000006/manifest.json"
    verifies "$out"
    prints 'step_00000006: the save did not finish'
    rm -r "$out/step_00000006"
    end

    begin 'folder.verify: nothing to verify'
    rm -rf "$out" && mkdir "$out"
    finds_bad "$out" 'there is no complete checkpoint'
    finds_bad "$out/nowhere" 'nowhere: No such file'
    finds_bad data/stories_val.bin 'stories_val.bin: neither a folder nor model_NNNNNNNN.bin'
    end
}

# A reader of the folder must not report damage while a run saves and removes checkpoints.
test_readers() {
    local i
    begin_fresh 'folder.readers while a run removes checkpoints'
    begin_long 1 -o "$out" -n 1 -nk 4
    await compgen -G "$out/model_*" >/dev/null
    for ((i = 0; i < 20; i++)); do verifies "$out"; done
    need 'the run ended' first_runs
    end_long
    end
}

# ---- names, paths, listings

test_names() {
    local file
    begin_fresh 'folder.names that only resemble those of checkpoints'
    trains 2 -x 4 -n 2
    for file in step_00000009.bak step_9 'step_ 0000009' step_000000009 step_99999999999; do
        cp -r "$out/step_00000002" "$out/$file"
    done
    touch "$out/model_00000009.bin" "$out/DONE_00000009"
    resumes 4 2 -x 5 -n 5 -nk 1 -y 1
    has_names 'step_* model_*' "step_ 0000009 step_000000009 step_00000005 step_00000009.bak step_9 \
step_99999999999 model_00000005.bin model_00000009.bin"
    end

    begin_fresh 'folder.a pipe in place of a file is refused, because opening it could wait for ever'
    trains 1 -x 1 -n 1
    mkfifo "$dir/pipe"
    for file in main.log metrics.jsonl; do
        rm "$out/$file" && mkfifo "$out/$file"
        refuses "$out/$file: " 1 -o "$out" -x 2 -y 1
        rm "$out/$file"
    done
    refuses "option --zero-config: $dir/pipe: not a regular file" 1 --zero-config "$dir/pipe"
    refuses "option --prompts: $dir/pipe: not a regular file; --prompts - " 1 --prompts "$dir/pipe"
    end

    begin_fresh 'folder.paths of --trace are checked at the start'
    for file in "$dir/nowhere/trace.json" "$dir" /dev/null/x ''; do
        refuses 'option --trace: ' 2 -x 1000000 --trace "$file"
        need 'the run has trained' not grep -q '^step ' "$screen"
    done
    mkdir "$out"
    runs 2 -x 1 --trace "$out.trace"
    is traces "$(cd "$dir" && echo out.trace*)" out.trace
    need 'a name ends in a blank' not grep -q '"name":"[^"]* "' "$out.trace"
    is processes "$(grep -oE '"pid":[0-9]+' "$out.trace" | tr -d '"' | sort -u | xargs)" 'pid:1 pid:2'
    end

}

# refuses_without PATTERN CALLS ERROR PATH: checks that a run is refused if CALLS fail with ERROR on PATH
refuses_without() {
    wrap="exec strace -f -qq -o /dev/null -P '$4' -e 'inject=$2:error=$3' \"\$0\" \"\$@\";"
    refuses "$1" 1 -o "$out" -x 4 -n 2 -y 1
    wrap=
}

# shellcheck disable=SC2012,SC2035
test_listing() {
    local before error call left other
    begin_fresh 'folder.traces of checkpoints: a run does not restart from step 0'
    trains 2 -x 4 -n 2
    cp "$out/main.log" "$dir/main.log"
    rm "$out"/step_*/manifest.json
    refuses 'out had checkpoints, but none is complete now' 2 -o "$out" -x 4 -n 2 -y 1
    rm -r "$out"/step_*
    refuses 'out had checkpoints' 2 -o "$out" -x 4 -n 2 -y 1
    same_file "$dir/main.log" "$out/main.log"
    end

    begin_fresh 'folder.traces of checkpoints: none after an unfinished first save'
    trains 2 -x 2 -n 2
    rm "$out"/step_*/manifest.json "$out/summary.json"
    refuses . 2 -o "$out" -x 2 -n 2 -y 1          # a model file exists
    rm "$out"/model_*
    trains 2 -x 2 -n 2 -y 1
    prints 'the save of step 2 did not finish; '
    is 'files of one save' "$(names 'step_00000002/rank*' | wc -w)" 2
    end

    begin_fresh 'folder.leftovers of killed runs are removed by the next run, and no other file'
    trains 1 -x 2 -n 2
    left='.one_folder.0123456789abcdef.tmp main.log.456789abcdef.tmp model_00000002.bin.0123456789abcdef.tmp'
    left+=' step_00000001/.manifest.json.0123456789abcdef step_00000009/rank00000-0123456789abcdef.states'
    left+=' summary.json.123.tmp step_123456789/rank00000-0123456789abcdef.states'
    other='model_00000002.bin.tmp notes.tmp step_9/rank00000-0123456789abcdef.states summary.json.old.tmp'
    before=$(cd "$out" && echo [!m]* main.log* metrics* model* $other | tr ' ' '\n')
    (cd "$out" && mkdir step_00000001 step_00000009 step_123456789 step_9 && touch $left $other)
    trains 1 -x 2 -y 1
    is 'files left' "$(cd "$out" && ls -d $left 2>/dev/null)" ''
    is 'other files' "$(cd "$out" && ls -d $before | wc -l)" "$(wc -w <<<"$before")"
    prints "^$out/step_00000009: removed, because its save did not finish\$"
    verifies "$out"
    end

    if ! command -v strace >/dev/null; then skip 'folder.listing' 'no strace'; return; fi
    fresh
    try 1 -o "$out" -x 4 -n 2
    before=$(cd "$out" && sha256sum m* step_*/*)
    for error in EIO EMFILE EACCES; do
        begin "folder.listing fails with $error: a run does not restart from step 0"
        for call in openat getdents64; do
            [ $call$error = getdents64EMFILE ] ||
                refuses_without 'option -o: .* cannot be searched for checkpoints' $call $error "$out"
        done
        refuses_without . access,faccessat,faccessat2 $error "$out/step_00000004/manifest.json"
        is files "$(cd "$out" && sha256sum m* step_*/*)" "$before"
        end
    done
}

# ----

for group in "${@:-lock logs history options finite verify readers names listing}"; do
    for g in $group; do "test_$g" || failed=$((failed + 1)); done
done
finish folder
