#!/usr/bin/env bash
# Signals stop a run or make it save, on all ranks at one step, and the command that it prints goes on to the
# bits of a run without them. Usage: tests/signals.sh TRAINER
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:?Usage: tests/signals.sh TRAINER}") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
ln -s "$trainer" "$dir/trainer" && trainer=$dir/trainer     # a name that no other test's processes have
set -m      # what runs in the background does not ignore SIGINT
export OMP_NUM_THREADS=1 OMPI_MCA_odls_base_sigkill_timeout=0

folder="$dir/it's a run"        # its name needs quotes
endless=1000000
args=(-e l1h2c32v257t32 -b 1 -u 0 -v 0 -s 0 -k constant --threads 1 --overlap 0 --device cpu --dtype fp32
    --hash full)
launch() { case $1 in 1) launcher=() ;; *) launcher=(mpirun --oversubscribe -np "$1") ;; esac; }

# start NP ARGUMENT...: a run in the background, in a process group of its own; sets job
start() {
    launch "$1"
    shift
    start_to "$dir/screen" "$@"
}
start_to() {
    rm -f "$dir/screen" "$dir/errors"
    timeout --foreground -k 2 60 "${launcher[@]}" "$trainer" "${args[@]}" "${@:2}" >"$1" \
        2>"$dir/errors" </dev/null & job=$!
}
await() { local i; for ((i = 0; i < 600; i++)); do "$@" && return 0; sleep 0.02; done; return 1; }
at_step() { grep -aqs "^step *$1/" "$dir/screen"; }
# the ranks, by what their command lines have in common: the first is rank 0
ranks() { pgrep -f "^$trainer .*-x $endless"; }
rank_0() { ranks | head -n 1; }
rank_1() { ranks | tail -n 1; }
mpirun_itself() { pgrep -f "^mpirun .*$trainer .*-x $endless"; }
ended() { wait $job 2>/dev/null; status=$?; [ $status = "$1" ]; }
says() { grep -aqsE "$1" "$dir/screen" "$dir/errors"; }
everything() { tail -qn 5 "$dir/errors" "$dir/screen" 2>/dev/null | cut -c 1-200; echo "status $status"; }
hashes() { grep -aoE 'params_hash .*' "$1"; }
# steps with a complete checkpoint: what a killed save has left counts for nothing
saved() { ls -d "$folder"/step_*/manifest.json 2>/dev/null | sed -E 's,.*/step_0*([0-9]+)/.*,\1,'; }

# goes_on NP: the printed command, up to five steps more, comes to the bits of a run that nobody stopped
goes_on() {
    local last expected
    last=$(saved | tail -n 1)
    [ -n "$last" ] || return 1
    tail -n 1 "$dir/screen" | sed "s/-x $endless/-x $((last + 5))/" >"$dir/command"
    timeout -k 2 60 bash "$dir/command" >"$dir/went_on" 2>&1 </dev/null || return 1
    grep -q "^resuming at step $last$" "$dir/went_on" || return 1
    launch "$1"
    timeout -k 2 60 "${launcher[@]}" "$trainer" "${args[@]}" -x $((last + 5)) >"$dir/reference" 2>&1 \
        </dev/null
    expected=$(hashes "$dir/reference")
    [ -n "$expected" ] && [ "$(hashes "$dir/went_on")" = "$expected" ]
}

# ---- to stop

# stops SIGNAL WHO NP ARGUMENT...: to a rank or to mpirun
stops() {
    local signal=$1 who=$2 np=$3
    shift 3
    begin "signals.$signal to $who of $np $*"
    rm -rf "$folder"
    start "$np" -x $endless -o "$folder" "$@"
    need 'it did not start' await at_step 3
    kill -"$signal" "$($who)"
    need 'it did not end well' ended 0
    need 'nothing says so' says '^stopped after step [0-9]+ of 1000000; its checkpoint is saved, and this'
    need 'it has the summary of a run that is done' [ ! -e "$folder/summary.json" ]
    need "it has the checkpoints $(saved)" [ "$(saved | wc -l)" = 1 ]
    need 'its command does not go on, or to other bits' goes_on "$np"
    end_with_output
}
end_with_output() {
    [ -z "$why" ] || why="$why; $(everything)"
    end
}

# A run that goes on from elsewhere is stopped in the sample before its first step: its place is saved, since
# the command that goes on does not know where it came from.
elsewhere() {
    begin 'signals.USR2 before the first step of a run that goes on from another folder'
    rm -rf "$folder" "$dir/other"
    need 'it did not run' \
        mpirun --oversubscribe -np 2 "$trainer" "${args[@]}" -x 3 -n 3 -o "$dir/other" >"$dir/screen" 2>&1
    start 2 -x $endless -o "$folder" --resume "$dir/other/step_00000003" -s 3 -g 2000
    need 'it takes no sample' await says '^generating'
    kill -USR2 "$(rank_1)"
    need 'it did not end well' ended 0
    need 'it did not stop in its sample' says '^stopped after step 3 of'
    need 'its command does not go on, or to other bits' goes_on 2
    end_with_output
}

no_folder() {
    begin 'signals.without a folder'
    start 1 -x $endless
    await at_step 3
    kill -USR1 "$(rank_0)"
    need 'SIGUSR1: nothing says why nothing is saved' await says '^SIGUSR1: no checkpoint .* no folder'
    kill -TERM "$(rank_0)"
    need 'it did not end well' ended 0
    need 'nothing says why nothing is saved' says '^stopped after .*, because there is no folder'
    end_with_output
}

# Rank 1 would not take part in a save.
folder_of_rank_0() {
    begin 'signals.a folder that only rank 0 has'
    rm -rf "$folder"
    launcher=(mpirun --oversubscribe -np 1)
    start_to "$dir/screen" -x $endless -o "$folder" : -np 1 "$trainer" "${args[@]}" -x $endless
    need 'it did not start' await at_step 3
    need 'it is not told at the start' says "^option -o $folder: not one folder of all ranks, so"
    kill -USR1 "$(rank_1)"
    need 'SIGUSR1: nothing says why nothing is saved' await says '^SIGUSR1: no checkpoint .* -o is not one'
    kill -TERM "$(rank_0)"
    need 'it did not end well' ended 0
    need 'nothing says why nothing is saved' says '^stopped after .*, because -o is not one folder of all'
    end_with_output
}

# Rank 0 waits for rank 1, which is stopped, so the first one cannot be followed.
second_one() {
    begin 'signals.a second one ends the run at once'
    start 2 -x $endless
    await at_step 3
    kill -STOP "$(rank_1)"
    kill -TERM "$(rank_0)"
    need 'nothing says what a second one does' await says '^train_gpt2_zero: SIGTERM .* ends it at once$'
    sleep 0.3       # what comes within 0.2 s counts as the same one
    kill -TERM "$(rank_0)"
    need 'it ended in another way' ended 143
    end_with_output
}

# A terminal that closes sends SIGHUP, and so does its shell, up to a second later.
hup_twice() {
    begin 'signals.a second SIGHUP is none'
    rm -rf "$folder"
    start 2 -x $endless -o "$folder"
    await at_step 3
    kill -STOP "$(rank_1)"
    kill -HUP "$(rank_0)"
    need 'nothing says what it does' await says '^train_gpt2_zero: SIGHUP stops .*; SIGTERM .* at once$'
    sleep 0.3
    kill -HUP "$(rank_0)"
    sleep 0.1
    kill -CONT "$(rank_1)"
    need 'it did not end well' ended 0
    need "it has the checkpoints $(saved)" [ "$(saved | wc -l)" = 1 ]
    end_with_output
}

# The terminal of rank 0 is gone, and rank 1 gets the signal: that is no error on either.
other_rank() {
    local rank reader
    begin 'signals.TERM to rank 1 and no stdout for rank 0'
    rm -rf "$folder" "$dir/screen" "$dir/errors" "$dir/stdout"
    mkfifo "$dir/stdout"
    cat "$dir/stdout" >"$dir/screen" & reader=$!
    for rank in 1 0; do
        timeout --foreground -k 2 60 "$trainer" "${args[@]}" -x $endless -o "$folder" \
            -pi fs -pf "$dir/start" -pn 2 -pr $rank >"$dir/stdout" 2>>"$dir/errors" </dev/null & job=$!
    done
    await at_step 3
    kill -STOP "$(ranked 0)"
    kill -TERM "$(ranked 1)"
    need 'rank 1 did not take it' await taken "$(ranked 1)"
    kill -KILL $reader
    wait $reader 2>/dev/null
    kill -CONT "$(ranked 0)"
    need 'it did not end well' ended 0
    need "it has the checkpoints $(saved)" [ "$(saved | wc -l)" = 1 ]
    end_with_output
}
ranked() { pgrep -f "^$trainer .*-x $endless.* -pr $1\$"; }
taken() { grep -q '^ShdPnd:[[:space:]]*0*$' "/proc/$1/status"; }

during_set_up() {
    begin 'signals.before the first step'
    start 1 -x $endless -pi fs -pf "$dir/start" -pn 2 -pr 0
    need 'it did not start' await test -s "$dir/start"
    kill -TERM "$(rank_0)"
    need 'it ended in another way' ended 143
    need 'nothing says so' says '^train_gpt2_zero: SIGTERM before the first step ends the run$'
    end_with_output
    rm -f "$dir/start"
}

ignored() {
    begin 'signals.SIGHUP is ignored where nohup says so'
    launcher=(nohup)
    start_to "$dir/screen" -x $endless
    await at_step 3
    kill -HUP "$(rank_0)"
    kill -USR1 "$(rank_0)"
    need 'it did not go on' await says '^SIGUSR1: no checkpoint'
    need 'SIGHUP was taken' not says 'SIGHUP'
    kill -TERM "$(rank_0)"
    need 'it did not end well' ended 0
    end_with_output
}

# A rank dies, and the loop starts the run again; a signal to the loop stops both, and mpirun's ranks save.
until_done() {
    local before
    begin 'signals.until_done.sh goes on after a crash, and stops when it is told to'
    rm -rf "$folder" "$dir/screen" "$dir/errors"
    PAUSE=0 timeout -k 2 60 scripts/until_done.sh mpirun --oversubscribe -np 2 "$trainer" "${args[@]}" -n 50 \
        -x $endless -o "$folder" -y 1 >"$dir/screen" 2>"$dir/errors" </dev/null & job=$!
    need 'no checkpoint' await has_manifest
    before=$(rank_1)
    kill -KILL "$before"
    need 'it did not go on' await says '^resuming at step'
    need 'it makes no steps' await grew
    kill -INT "$(pgrep -P "$job")"
    need 'it did not end well' ended 0
    need 'its command does not go on, or to other bits' goes_on 2
    end_with_output
}
grew() { sed -n '/^resuming/,$p' "$dir/screen" | grep -q '^step '; }

gives_up() {
    begin 'signals.until_done.sh gives up with the status of the last try'
    TRIES=2 PAUSE=0 timeout 20 scripts/until_done.sh bash -c 'exit 7' -o "$folder" -y 1 2>"$dir/errors"
    need 'another status' [ $? = 7 ]
    need 'nothing says so' grep -q '^until_done.sh: 2 tries without .* the last with status 7$' "$dir/errors"
    end
}

# A fake mpirun whose ranks are gone, and that waits for what never comes.
hangs() {
    local seconds=$SECONDS
    begin 'signals.until_done.sh ends an mpirun that hangs without ranks'
    mkdir "$dir/fake"
    mkfifo "$dir/fake/never"
    printf '%s\n' '#!/bin/sh' true 'read -r x <"${0%/*}/never"' >"$dir/fake/mpirun"
    chmod +x "$dir/fake/mpirun"
    PATH=$dir/fake:$PATH TRIES=2 PAUSE=0 HANG=2 timeout 20 scripts/until_done.sh mpirun -o "$folder" -y 1 \
        2>"$dir/errors"
    need 'another status' [ $? = 137 ]
    need 'nothing says so' [ "$(grep -c '^until_done.sh: mpirun hangs: for 2 s it has ' "$dir/errors")" = 2 ]
    need "it took $((SECONDS - seconds)) s" [ $((SECONDS - seconds)) -lt 15 ]
    end
}

# ---- to save

usr1() {
    begin 'signals.USR1 saves and goes on'
    rm -rf "$folder"
    start 2 -x $endless -o "$folder"
    await at_step 3
    kill -USR1 "$(rank_1)"
    need 'no checkpoint' await has_manifest
    need 'it did not go on' await at_step $(($(saved | tail -n 1) + 10))
    kill -USR2 "$(mpirun_itself)"
    need 'it did not end well' ended 0
    need "checkpoints: $(saved)" [ "$(saved | wc -l)" = 2 ]
    need 'other bits' goes_on 2
    end_with_output
}
has_manifest() { ls "$folder"/step_*/manifest.json >/dev/null 2>&1; }

# ---- writes that fail

pipe() {
    begin 'signals.a stdout that nobody reads is an error, after a checkpoint'
    rm -rf "$folder"
    launcher=()
    start_to >(head -n 5 >"$dir/read") -x $endless -o "$folder"
    need 'it ended in another way' ended 1
    need 'no message' says '^train_gpt2_zero: stdout: Broken pipe; stopped after .*its checkpoint is saved$'
    need "it has the checkpoints $(saved)" [ "$(saved | wc -l)" = 1 ]
    end_with_output
}

# file_size KIB NAME MESSAGE ARGUMENT...: no file may be larger; the file that is
file_size() {
    local kib=$1 file=$2 message=$3
    shift 3
    begin "signals.file-size limit: $file"
    rm -rf "$folder"
    start_limited "$kib" -x $endless -o "$folder" "$@"
    need 'it ended in another way' ended 1
    need 'no message' says "^train_gpt2_zero: .*/$file.*: .*$message"
    end_with_output
}
start_limited() {
    (
        set -o pipefail
        # shellcheck disable=SC2016
        timeout -k 2 60 bash -c 'ulimit -f "$1"; shift; exec "$@"' limited "$1" "$trainer" "${args[@]}" \
            "${@:2}" 2>&1 </dev/null | cat >"$dir/screen"
    ) &
    job=$!
}

stops TERM rank_0 1
stops TERM rank_0 1 -v 1 -m 50 -s 1 -g 20       # mostly while it validates or samples
stops INT rank_1 2
stops HUP rank_0 2 -z 0
stops USR2 rank_1 2 --async-save -n 1000000
stops USR2 mpirun_itself 2
until_done
gives_up
hangs
elsewhere
no_folder
folder_of_rank_0
second_one
hup_twice
other_rank
during_set_up
ignored
usr1
pipe
file_size 64 metrics.jsonl 'File too large'
file_size 8 rank00000 'raise the limit \(ulimit -f\)' -n 1
finish signals
