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
out=$dir/out screen=$dir/refused        # the folder of most runs, and their output

# runs NP ARGUMENT...: runs the trainer. trains NP ARGUMENT...: does that in the folder.
runs() {
    run "$1" $hang_limit "${small[@]}" "${@:2}" >"$screen" 2>&1 || need "$*: $(tail -n 3 "$screen")" false
}
trains() { runs "$1" -o "$out" "${@:2}"; }
prints() { has "$screen" "$@"; }
# resumes STEP NP ARGUMENT...: trains, and checks that the run resumes at STEP
resumes() { trains "${@:2}" -y 1; prints "^resuming at step $1\$"; }
denies() { refuses "$1" "$2" -o "$out" "${@:3}"; }      # NP PATTERN ARGUMENT...: refuses, in the folder
# verifies NP PATH FILES: checks that --verify lists FILES good files. finds_bad PATH PATTERN: checks that it
# fails, and reports damage in one line that matches
verifies() { runs "$1" --verify "$2"; is "good files of $2" "$(grep -c ': good, ' "$screen")" "$3"; }
finds_bad() {
    need "$1 was reported good" not run 1 $hang_limit --verify "$1" >"$screen" 2>&1
    is "lines BAD .*$2" "$(grep -cE "^BAD .*$2" "$screen")" 1
}

# begin_fresh NAME: begins without the folder. begin_good NAME: begins with the folder of a run on two ranks
# that has saved steps 2, 4 and 6
begin_fresh() { begin "$1"; rm -rf "$out"; }
begin_good() {
    begin_fresh "$1"
    [ -d "$dir/good" ] || { trains 2 -x 6 -n 2 && mv "$out" "$dir/good"; }
    cp -r "$dir/good" "$out"
    keep
}
# keep: copies the folder. unchanged OPTION...: compares it with the copy; the options are diff's
keep() { rm -rf "$dir/kept" && cp -r "$out" "$dir/kept"; }
unchanged() { need 'the folder has changed' diff -r -x run.lock "$@" "$dir/kept" "$out" >/dev/null; }
has_names() { is "names $1" "$(cd "$out" && shopt -s nullglob && echo $1)" "$2"; }
has_steps() { is steps "$(sed -nE 's/^\{"step": ([0-9]+),.*/\1/p' "$out/metrics.jsonl" | xargs)" "$1"; }
# strace_with ARGUMENT...: starts the next runs under strace, which makes calls fail
strace_with() { wrap="exec strace -f -qq -o /dev/null $* \"\$0\" \"\$@\";"; }
end_long() { kill -KILL "${pids[@]}"; ends_within $hang_limit $job; } 2>/dev/null

test_lock() {
    local how file
    begin_fresh 'folder.lock: a second run is refused, and a killed one leaves no lock'
    echo Once >"$dir/prompts"
    begin_long 2 -o "$out"
    for how in '-nk 1' '-n 1 -y 1' "--prompts $dir/prompts -g 2 -e l1h2c32v257t32"; do
        denies 2 "$out: another run is using this folder \(host $(hostname), process ${pids[0]}\)" $how
    done
    need 'the first run ended' any_runs "${pids[0]}"
    end_long
    has_names '*' 'main.log metrics.jsonl run.json run.lock tokenizer.bin'
    trains 2 -x 2 -y 1
    end
    begin 'folder.symlinks in place of files are not followed, and no run waits for a pipe'
    echo mine >"$dir/mine"
    for file in run.lock main.log metrics.jsonl summary.json{,.tmp} model_00000001.bin{,.tmp}; do
        rm -rf "$out" && mkdir "$out" && ln -s "$dir/mine" "$out/$file"
        case $file in
            summary* | model*) trains 1 -x 1 -n 1 ;;
            *)
                denies 1 "$file: Too many levels" -x 1 -n 1 -y 1
                rm "$out/$file" && mkfifo "$out/$file"
                denies 1 "$out/$file: " -x 1 -n 1 -y 1
        esac
        is "$file: the link's target" "$(<"$dir/mine")" mine
    done
    end
    if ! command -v strace >/dev/null; then skip folder.lock 'no strace'; return; fi
    begin_fresh 'folder.lock, a file system without locks'
    strace_with -e inject=flock:error=ENOLCK
    trains 1 -x 1
    wrap=
    is warnings "$(grep -c '^warning: .*run.lock: this file system has no locks' "$screen")" 1
    end
}

test_logs() {
    begin_fresh 'folder.logs without a checkpoint: only -y 1 replaces them, unless the run has finished'
    trains 2 -x 3
    denies 2 '-o: .*/out holds the logs of an earlier run .* -y 1, which .* replaces these' -x 1
    denies 2 '-y 1: .*/out holds a finished run without checkpoints' -x 1 -y 1
    rm "$out/summary.json"
    trains 2 -x 2 -y 1
    has_steps '1 2'
    is 'steps in main.log' "$(sed -nE 's/^s:([0-9]+) trl.*/\1/p' "$out/main.log" | xargs)" '0 1'
    end
    # Simulates a run killed while writing a log line, some steps after its checkpoint of step 4.
    begin_fresh 'folder.logs have each step and validation once after a resume'
    trains 2 -x 8 -v 3 -m 1
    mv "$out/main.log" "$dir/straight.log" && rm -r "$out"
    trains 2 -x 7 -n 4 -v 3 -m 1
    rm -r "$out/step_00000007" "$out/model_00000007.bin"
    printf 's:7 trl:5.1' >>"$out/main.log"
    printf '{"step": 8, "loss"' >>"$out/metrics.jsonl"
    resumes 4 2 -x 8 -v 3 -m 1
    is main.log "$(<"$out/main.log")" "$(<"$dir/straight.log")"
    has_steps '1 2 3 4 5 6 7 8'
    has_names '*.tmp' ''
    end
}

test_history() {
    begin_good 'folder.history: --resume does not go back in place'
    refuses 2 "-o: $out/ holds .* at step 6; -y 1 resumes it" -o "$out/" -x 8 --resume "$out/step_00000004"
    unchanged
    resumes 6 2 -x 8 -n 8 --resume "$out/step_00000002"       # -y 1 takes the newest
    has_steps '1 2 3 4 5 6 7 8'
    end
    begin_fresh 'folder.history: resuming from a checkpoint in another folder'
    trains 2 -x 5 -n 1 --resume "$dir/good/step_00000002"
    denies 2 '-o: .*/out holds a checkpoint at step 5' -x 6 --resume "$dir/good/step_00000002"
    # simulates a run killed before its first save
    find "$out" -mindepth 1 -maxdepth 1 ! -name metrics.jsonl -exec rm -r {} +
    resumes 2 2 -x 5 -n 1 --resume "$dir/good/step_00000002"
    has_steps '3 4 5'
    end
}

test_options() {
    local one real on="-o $out -x 3 -y 1"
    begin_fresh 'folder.options: the end of training saves unless -n is 0, and -y 1 reports where it starts'
    trains 2 -x 3 -n -1 -y 1
    prints "^no checkpoint in $out: starting at step 1\$"
    has_names 'step_* model_*' 'step_00000003 model_00000003.bin'
    keep
    resumes 3 1 -x 3 -n -1 -v 1 -m 1 -z 0 --tokenizer none
    prints '^all 3 steps are done; a larger -x continues the run$' '^val loss ' '^no step was run \| params_'
    unchanged
    resumes 3 1 -x 4
    has_names 'step_*' 'step_00000003'
    runs 1 -x 1 -n -1
    is 'saves without -o' "$(grep -c '^writing checkpoint' "$screen")" 0
    end
    begin_fresh 'folder.options: a disk without room for the checkpoints is refused at the start'
    make_shim
    trains 1 -x 0 -n 1
    one=$(du -s -B 1 -c "$out"/step_* "$out"/model_* | tail -n 1 | cut -f1)
    real=$(du -s -B 1 "$out" | cut -f1)
    rm -r "$out"
    data=("LD_PRELOAD=$shim" "DISK_FOLDER=$out" "DISK_FREE=$((real - 4096))")
    denies 1 '-o: .* MiB free, but 1 checkpoint of [0-9.]+ MiB and the logs need [0-9.]+ MiB; .* -n 0 ' -n -1
    trains 1 -x 1
    rm -r "$out"
    data[2]=DISK_FREE=$((3 * one - 4096))
    denies 1 'free, but 3 checkpoints of .* MiB and the logs need .* MiB; .* lower -nk' -x 4 -n 1 -nk 2
    trains 1 -x 2 -n 1 -nk 2
    data[2]=DISK_FREE=$((real + real / 10 + 8192))
    trains 1 -x 5 -n 1 -nk 2 -y 1      # two of the three exist already
    data=()
    end
    begin_fresh "folder.options: -e names another model's file; a different number of threads is reported"
    trains 1 -x 2 -n 2
    runs 1 -o "$dir/wide" -x 1 -n 1 -e l1h2c64v257t32
    refuses 1 'option -e .*/model_00000001.bin: .*/step_00000002 belongs to another model, L 1, NH 2, C 32' \
        $on -e "$dir/wide/model_00000001.bin"
    trains 1 -x 3 -y 1 -e "$out/model_00000002.bin"
    trains 1 -x 3 -y 1 -e "$dir/gone.bin" --threads 2
    prints '^changed since .*/step_00000002: --threads 1 -> 2$'
    end
    refusals <<END
folder.advice, another -b|1|-d 64, .* not .* = 4 x 32 x 1 = 128; use -b 2, another -d with .*, or|$on -b 4
folder.advice, other ranks|3|option -d 64, .*; use another -d with --resume-anyway, or other ranks$|$on
folder.advice, no checkpoint|1|--resume none: not a complete .*; name a folder step_NNNNNNNN$|--resume none
folder.advice, -x|1|option -x 1: the checkpoint is already at step 2; a larger -x continues|-o $out -x 1 -y 1
folder.advice, -e|1|-e .*: this is a checkpoint; .* --export $out/step_00000002 --to|-e $out/step_00000002
END
}

# With --eps 0, AdamW divides 0 by 0 for elements without a gradient.
test_finite() {
    local steps diverges=(-x 60 -n 1 -nk 2 -l 1000 -c 1000 --clip 0)
    begin_good 'folder.finite: NaN is refused, in a checkpoint and at the end'
    denies 2 '^train_gpt2_zero: checkpoint of step 7: rank [0-9] \(host .*\) has parameters that are not '\
'finite: -?nan in [a-z]+, layer [0-9]+, element [0-9]+ .* step 6 is unchanged' -x 8 -n 1 -nk 1 -y 1 --eps 0
    unchanged -x main.log -x metrics.jsonl -x run.json -x summary.json
    resumes 6 2 -x 7 -n 7 -nk 1
    rm -r "$out"
    denies 2 'step 1: rank [0-9] .* not finite: .*; no checkpoint has been' -x 1 --eps 0
    need 'a summary was written' [ ! -e "$out/summary.json" ]
    rm -r "$out"
    denies 2 'checkpoint of step 1: rank [0-9] .* not finite: .*; no checkpoint' -x 3 -n 1 --eps 0 \
        --delayed-update 1 --offload-optimizer cpu
    has_names 'step_* model_*' ''
    end
    begin_fresh 'folder.finite: after divergence, the checkpoints kept by -nk are good'
    denies 2 'rank [01]: step [0-9]+: .*not finite' "${diverges[@]}"
    steps=$(cd "$out" && echo step_*)
    is 'checkpoints left' "$(wc -w <<<"$steps")" 2
    prints "the checkpoint of step $((10#${steps##*_})) is unchanged"
    verifies 1 "$out" 8
    rm -r "$out"
    denies 2 'rank [01]: validation after step [0-9]+: the loss is not finite' "${diverges[@]}" -v 1 -m 1
    end
}

# damages: reads lines NAME|STEP|COMMAND|PATTERN. Runs COMMAND in a good folder, and checks that --verify
# reports the damage in a line that matches PATTERN. -y 1 must change nothing and, with the same message, name
# the checkpoint of STEP (0: there is none) to continue from.
damages() {
    local what step command pattern way
    while IFS='|' read -r what step command pattern; do
        begin_good "folder.damage: $what"
        (cd "$out" && eval "$command")
        keep
        finds_bad "$out" "$pattern"
        way="; to continue from step $step, add --resume $out/step_0000000$step and name another -o"
        [ "$step" != 0 ] || way="; $out has no older checkpoint"
        denies 2 "$pattern.*$way" -x 8 -n 2 -y 1
        unchanged
        end
    done
}
test_verify() {
    local states model=model_00000006.bin damage
    begin_good 'folder.verify: a good folder, an unfinished save, and nothing to verify'
    verifies 1 "$out" 12
    verifies 2 "$out/" 12
    verifies 1 "$out/step_00000002" 4
    verifies 1 "$out/model_00000002.bin" 1
    unchanged
    cp -r "$out/step_00000006" "$out/step_00000008" && rm "$out/step_00000008/manifest.json"
    verifies 1 "$out" 12
    prints 'step_00000008: the save did not finish'
    mkdir "$out/empty"
    finds_bad "$out/empty" 'has no complete checkpoint'
    finds_bad "$out/nowhere" 'nowhere: No such file'
    finds_bad data/stories_val.bin 'stories_val.bin: neither a folder nor model_NNNNNNNN.bin'
    end
    states=$(cd "$out" && echo step_00000006/rank00001-*)
    damages <<END
a flipped bit|4|flip_byte $states 1000|$states: damaged: the block of [0-9]+ bytes at offset 0
a file from another save|4|cp step_00000004/rank00001-* $states|$states: damaged
a flipped bit in the manifest|4|flip_byte step_00000006/manifest.json 700|6/manifest.json: damaged: the
no manifest|4|rm step_00000006/manifest.json|/step_00000006: damaged: .* and manifest.json is missing
two damaged|2|rm step_00000004/manifest.json; truncate -s -1 $states|$states: ends at offset
no older checkpoint|0|rm -r step_0000000[24]; truncate -s -1 $states|$states: ends at offset
named after another step|4|rm $model; mv step_00000006 step_00000007|/step_00000007: was saved at step 6
END
    begin_good 'folder.verify: -e names a damaged or missing model file, or its folder'
    flip_byte "$out/$model" 50000
    refuses 1 "$model: " -e "$out/$model" -x 1
    need 'the run has trained' not grep -q '^step ' "$screen"
    finds_bad "$out/step_00000006/" "$model: damaged, .*: offset 50000 has"
    runs 1 -e "$out" -x 1
    prints '^model .*/model_00000004.bin: ' "/$model: damaged, .*; looking for an older checkpoint\$"
    mv "$out/$model" "$out/model_00000007.bin"
    runs 1 -e "$out" -x 1
    prints '^model .*/model_00000004.bin: ' "/$model: .*No such file.*; looking for an older checkpoint\$"
    finds_bad "$out/model_00000007.bin" 'model_00000007.bin: cannot be verified without its checkpoint'
    end
    for damage in 'truncate -s -1' ': >step_00000006/manifest.json'; do
        begin_good "folder.verify: a model file beside a damaged checkpoint, after $damage"
        (cd "$out" && eval "$damage $states")
        runs 1 -e "$out/$model" -x 1
        prints "^warning: option -e .*/$model: not compared with .*: .*step_00000006/" '^step +1/1 '
        finds_bad "$out/$model" 'step_00000006/'
        need 'no export' run 1 $hang_limit --export "$out/$model" --to "$out/exported.bin" >"$screen" 2>&1
        prints "^warning: option --export .*/$model: not compared with .*: .*step_00000006/"
        end
    done
}

# A reader of the folder must not report damage while a run saves and removes checkpoints.
test_readers() {
    local i
    begin_fresh 'folder.readers while a run removes checkpoints'
    begin_long 1 -o "$out" -n 1 -nk 4
    await compgen -G "$out/model_*" >/dev/null
    for ((i = 0; i < 20; i++)); do runs 1 --verify "$out"; done
    need 'the run ended' any_runs "${pids[0]}"
    end_long
    end
}

test_names() {
    local file f id=0123456789abcdef
    begin_good 'folder.names: the next run removes leftovers of killed runs, and no file of another name'
    (
        cd "$out" && mkdir step_{00000001,00000008,123456789}
        touch {.one_folder,main.log,model_00000002.bin}.$id.tmp summary.json.123.tmp
        touch step_00000001/.manifest.json.$id step_{00000008,123456789}/rank00000-$id.states
        touch DONE_00000009 model_00000009.bin {model_00000002.bin,notes,summary.json.old}.tmp
        for f in step_{9,00000009.bak,\ 0000009,000000009,99999999999}; do cp -r step_00000002 "$f"; done
    )
    resumes 6 2 -x 7 -n 7 -nk 1
    prints "^$out/step_00000008: removed, because its save did not finish\$"
    has_names '.o* *.tmp [Ds]*_* model*.bin' 'model_00000002.bin.tmp notes.tmp summary.json.old.tmp '\
'DONE_00000009 step_ 0000009 step_000000009 step_00000007 step_00000009.bak step_9 step_99999999999 '\
'model_00000007.bin model_00000009.bin'
    end
    begin_fresh 'folder.paths of --trace and --prompts are checked at the start'
    for file in "$dir/nowhere/trace.json" "$dir" /dev/null/x ''; do
        refuses 2 'option --trace: ' -x 1000000 --trace "$file"
    done
    mkfifo "$dir/pipe"
    refuses 1 "option --prompts: $dir/pipe: not a regular file; --prompts - " --prompts "$dir/pipe"
    runs 2 -x 1 --trace "$out.trace"
    is traces "$(cd "$dir" && echo out.trace*)" out.trace
    need 'a name ends in a blank' not grep -q '"name":"[^"]* "' "$out.trace"
    is processes "$(grep -oE '"pid":[0-9]+' "$out.trace" | tr -d '"' | sort -u | xargs)" 'pid:1 pid:2'
    end
}

test_listing() {
    local call error path
    begin_good 'folder.traces of checkpoints: only after an unfinished first save, a run restarts from step 0'
    rm "$out"/step_*/manifest.json
    keep
    denies 2 'out had checkpoints, but none is complete now' -x 4 -n 2 -y 1
    unchanged
    rm -r "$out"/{step_0000000[24],model_0000000[46].bin}
    denies 2 'out had checkpoints' -x 4 -n 2 -y 1       # a model file exists
    rm "$out"/{model_*,summary.json}
    trains 2 -x 6 -n 6 -y 1
    prints 'the save of step 6 did not finish; '
    is 'files of one save' "$(cd "$out" && echo step_*/rank* | wc -w)" 2
    end
    if ! command -v strace >/dev/null; then skip folder.listing 'no strace'; return; fi
    begin_good 'folder.listing fails: a run does not restart from step 0'
    while read -r call error path; do
        strace_with -P "$out$path" -e "inject=$call:error=$error"
        denies 2 '(cannot be searched for checkpoints|manifest.json): ' -x 8 -n 2 -y 1
    done <<'END'
openat EMFILE
getdents64 EIO
access,faccessat,faccessat2 EACCES /step_00000006/manifest.json
END
    wrap=
    unchanged
    end
}

for group in "${@:-lock logs history options finite verify readers names listing}"; do
    for g in $group; do "test_$g" || failed=$((failed + 1)); done
done
finish folder
