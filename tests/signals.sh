#!/usr/bin/env bash
# Tests that signals stop a run or make it save, on all ranks at the same step, and that the printed command
# resumes with the bits of an undisturbed run. Usage: tests/signals.sh TRAINER
# shellcheck disable=SC2016
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:?Usage: tests/signals.sh TRAINER}") || exit 1
ln -s "$trainer" "$dir/trainer" && trainer=$dir/trainer     # keeps pgrep from finding other tests' processes
set -m      # otherwise background jobs would ignore SIGINT
export OMP_NUM_THREADS=1 OMPI_MCA_odls_base_sigkill_timeout=0

folder="$dir/it's a run"        # a name that needs quotes
screen=$dir/screen errors=$dir/errors endless=1000000
args=(-e l1h2c32v257t32 -b 1 -u 0 -v 0 -s 0 -k constant --threads 1 --overlap 0 --device cpu --dtype fp32
    --hash full)

# begin_case NAME: begins a case and removes the files of the previous one
begin_case() {
    begin "signals.$1"
    rm -rf "$folder" "$screen" "$errors"
}
# start NP ARGUMENT...: starts a run in the background, in a separate process group; sets job
start() {
    launch "$1"
    background "${launcher[@]}" "$trainer" "${args[@]}" -x $endless "${@:2}" >"$screen" 2>"$errors"
}
background() { timeout --foreground -k 2 $hang_limit "$@" </dev/null & job=$!; }
starts() { await at_step 3 || need 'it did not start' false; }
# begin_run NAME NP ARGUMENT...: begins a case, starts a run and waits for its first steps
begin_run() {
    begin_case "$1"
    start "${@:2}"
    starts
}
at_step() { grep -aqs "^step *$1/" "$screen"; }
# Finds the ranks by their command lines. Rank 0 comes first.
ranks() { pgrep -f "^$trainer .*-x $endless"; }
rank_0() { ranks | head -n 1; }
rank_1() { ranks | tail -n 1; }
mpirun_itself() { pgrep -f "^mpirun .*$trainer .*-x $endless"; }
ends_with() {
    wait $job 2>/dev/null; status=$?
    is status $status "$1"
}
prints() { grep -aqsE -- "$1" "$screen" "$errors"; }
must_print() { await prints "$1" || need "no '$1'" false; }
# Prints the steps with a complete checkpoint.
saved() { ls -d "$folder"/step_*/manifest.json 2>/dev/null | sed -E 's,.*/step_0*([0-9]+)/.*,\1,'; }
has_saved() { is "number of checkpoints" "$(saved | wc -l)" "$1"; }

# resumes NP: checks that the printed command trains five more steps with the same bits as an undisturbed run
resumes() {
    local last
    last=$(saved | tail -n 1)
    tail -n 1 "$screen" | sed "s/-x $endless/-x $((last + 5))/" >"$dir/command"
    timeout -k 2 $hang_limit bash "$dir/command" >"$dir/resumed" 2>&1 </dev/null ||
        need 'the printed command failed' false
    has "$dir/resumed" "^resuming at step ${last:-none}$"
    launch "$1"
    timeout -k 2 $hang_limit "${launcher[@]}" "$trainer" "${args[@]}" -x $((last + 5)) \
        >"$dir/reference" 2>&1 </dev/null
    need 'no digests' [ -n "$(hashes "$dir/reference")" ]
    is digests "$(hashes "$dir/resumed")" "$(hashes "$dir/reference")"
}
# taken PID: succeeds if no signal is pending
taken() { grep -q '^ShdPnd:[[:space:]]*0*$' "/proc/$1/status"; }
grew() { sed -n '/^resuming/,$p' "$screen" | grep -q '^step '; }
has_manifest() { compgen -G "$folder/step_*/manifest.json" >/dev/null; }
end_run() {         # prints the output of a failed case
    [ -z "$why" ] || why="$why; $(tail -qn 5 "$errors" "$screen" 2>/dev/null | cut -c 1-200)"
    end
}

# ---- signals that stop the run

# stops SIGNAL TARGET NP ARGUMENT...: sends the signal to a rank or to mpirun
stops() {
    begin_run "$1 to $2 of $3 ${*:4}" "$3" -o "$folder" "${@:4}"
    kill -"$1" "$($2)"
    ends_with 0
    must_print '^stopped after step [0-9]+ of 1000000; its checkpoint is saved'
    need 'it wrote the summary of a finished run' [ ! -e "$folder/summary.json" ]
    has_saved 1
    resumes "$3"
    end_run
}
stops TERM rank_0 1
stops TERM rank_0 1 -v 1 -m 50 -s 1 -g 20       # usually during validation or sampling
stops INT rank_1 2
stops HUP rank_0 2 -z 0
stops USR2 rank_1 2 --async-save -n 1000000
stops USR2 mpirun_itself 2

# A run with --resume gets a signal while it samples, before its first step. It must save, because the printed
# command does not name the other folder.
begin_case 'USR2 before the first step of a run resumed from another folder'
need 'it did not run' \
    mpirun --oversubscribe -np 2 "$trainer" "${args[@]}" -x 3 -n 3 -o "$dir/other" >"$screen" 2>&1
start 2 -o "$folder" --resume "$dir/other/step_00000003" -s 3 -g 4000
must_print '^generating'
kill -USR2 "$(rank_1)"
ends_with 0
must_print '^stopped after step 3 of'
resumes 2
end_run

# saves_nothing REASON: checks that the run prints the reason, both on SIGUSR1 and when it stops
saves_nothing() {
    kill -USR1 "$(rank_1)"
    must_print "^SIGUSR1: no checkpoint .*$1"
    kill -TERM "$(rank_0)"
    ends_with 0
    must_print "^stopped after .*, because .*$1"
    end_run
}
begin_run 'without a folder' 1
saves_nothing 'no folder'
begin_case 'a folder that only rank 0 has'          # rank 1 would not take part in a save
background mpirun --oversubscribe -np 1 "$trainer" "${args[@]}" -x $endless -o "$folder" : \
    -np 1 "$trainer" "${args[@]}" -x $endless >"$screen" 2>"$errors"
starts
must_print "^option -o $folder: not a folder shared by all ranks, so"
saves_nothing '-o is not a folder shared'

# Rank 0 cannot act on the first signal, because it waits for rank 1, which is stopped.
begin_run 'a second SIGTERM ends the run at once' 2
kill -STOP "$(rank_1)"
kill -TERM "$(rank_0)"
must_print '^train_gpt2_zero: SIGTERM .* ends it at once$'
sleep 0.3       # signals within 0.2 s count as one
kill -TERM "$(rank_0)"
ends_with 143
end_run

# A closing terminal sends SIGHUP, and its shell may send another up to a second later.
begin_run 'a second SIGHUP is ignored' 2 -o "$folder"
kill -STOP "$(rank_1)"
kill -HUP "$(rank_0)"
must_print '^train_gpt2_zero: SIGHUP stops .*; SIGTERM .* at once$'
sleep 0.3
kill -HUP "$(rank_0)"
sleep 0.1
kill -CONT "$(rank_1)"
ends_with 0
has_saved 1
end_run

# Rank 0 has lost its terminal by the time rank 1 gets the signal. Neither may fail.
begin_case 'TERM to rank 1 while rank 0 has no stdout'
mkfifo "$dir/stdout"
cat "$dir/stdout" >"$screen" & reader=$!
background mpirun --oversubscribe -np 2 bash -c '[ $OMPI_COMM_WORLD_RANK != 0 ] || exec >"$0"; exec "$@"' \
    "$dir/stdout" "$trainer" "${args[@]}" -x $endless -o "$folder" 2>"$errors"
starts
kill -STOP "$(rank_pid "$trainer" 0)"
kill -TERM "$(rank_pid "$trainer" 1)"
need 'rank 1 did not receive the signal' await taken "$(rank_pid "$trainer" 1)"
kill -KILL $reader
wait $reader 2>/dev/null
kill -CONT "$(rank_pid "$trainer" 0)"
ends_with 0
has_saved 1
end_run

# Rank 0 waits for a rank that does not start.
takes_signals() { (((0x$(sed -n 's/^SigBlk:\t//p' "/proc/$(rank_0)/status") & 0x4000) != 0)); } 2>/dev/null
begin_case 'before the first step'
background mpirun --oversubscribe -np 2 bash -c \
    '[ $OMPI_COMM_WORLD_RANK = 0 ] || exec sleep 1000; exec "$@"' - \
    "$trainer" "${args[@]}" -x $endless >"$screen" 2>"$errors"
need 'it did not start' await takes_signals
kill -TERM "$(rank_0)"
ends_with 143
must_print '^train_gpt2_zero: SIGTERM ends the run; there is nothing to save$'
end_run

# A validation of 2^22 tokens takes much longer than the limit of 60 s.
spent() { [ "$(cut -d ' ' -f 14 "/proc/$1/stat")" -gt 50 ]; }      # half a second; startup takes less
begin_case 'during the validation before the first step'
{ head -c 8 data/stories_val.bin; printf '\0\0\100\0'; } >"$dir/endless.bin"
truncate -s $((1024 + 2 * 4194304)) "$dir/endless.bin"
start 2 -v 1 -m -1 -j "$dir/endless.bin" -o "$folder"
must_print 'plain data parallel'
need 'it does not validate' await spent "$(rank_1)"
kill -TERM "$(rank_0)"
ends_with 143
must_print '^train_gpt2_zero: SIGTERM ends the run; there is nothing to save$'
end_run

begin_case 'SIGHUP is ignored under nohup'
background nohup "$trainer" "${args[@]}" -x $endless >"$screen" 2>"$errors"
starts
kill -HUP "$(rank_0)"
kill -USR1 "$(rank_0)"
must_print '^SIGUSR1: no checkpoint'
need 'SIGHUP was not ignored' not prints 'SIGHUP'
kill -TERM "$(rank_0)"
ends_with 0
end_run

# ---- the loop that restarts a run until it is done

# After a crash the loop restarts the run. A signal to the loop stops both, and the ranks save.
begin_case 'until_done.sh restarts after a crash, and stops on a signal'
PAUSE=0 background scripts/until_done.sh mpirun --oversubscribe -np 2 "$trainer" "${args[@]}" -n 50 \
    -x $endless -o "$folder" -y 1 >"$screen" 2>"$errors"
need 'no checkpoint' await has_manifest
kill -KILL "$(rank_1)"
must_print '^resuming at step'
need 'the resumed run made no steps' await grew
kill -INT "$(pgrep -P "$job")"
ends_with 0
resumes 2
end_run

begin_case 'until_done.sh gives up and returns the status of the last try'
TRIES=2 PAUSE=0 timeout $hang_limit scripts/until_done.sh bash -c 'exit 7' -o "$folder" -y 1 2>"$errors"
is status $? 7
has "$errors" '^until_done.sh: 2 tries without .* the last .*status 7$'
end

# A fake mpirun that starts no ranks and waits forever
begin_case 'until_done.sh ends an mpirun that hangs without ranks'
mkdir "$dir/fake"
mkfifo "$dir/fake/never"
printf '%s\n' '#!/bin/sh' true 'read -r x <"${0%/*}/never"' >"$dir/fake/mpirun"
chmod +x "$dir/fake/mpirun"
PATH=$dir/fake:$PATH TRIES=2 PAUSE=0 HANG=1 timeout $hang_limit scripts/until_done.sh mpirun \
    -o "$folder" -y 1 2>"$errors"
is status $? 137
is reports "$(grep -c '^until_done.sh: mpirun hangs: .* 1 s' "$errors")" 2
end

# ---- signals that make a run save

begin_run 'USR1 saves, and the run continues' 2 -o "$folder"
kill -USR1 "$(rank_1)"
need 'no checkpoint' await has_manifest
need 'it did not continue' await at_step $(($(saved | tail -n 1) + 10))
kill -USR2 "$(mpirun_itself)"
ends_with 0
has_saved 2
resumes 2
end_run

# ---- writes that fail

begin_case 'a closed stdout is an error, after a checkpoint'
background "$trainer" "${args[@]}" -x $endless -o "$folder" > >(head -n 5 >"$dir/read") 2>"$errors"
ends_with 1
must_print '^train_gpt2_zero: stdout: Broken pipe; stopped after .*its checkpoint is saved$'
has_saved 1
end_run

# file_size KIB FILE MESSAGE ARGUMENT...: checks that a run ends with MESSAGE if a file-size limit is too
# small for FILE
file_size() {
    begin_case "file-size limit: $2"
    # shellcheck disable=SC2016
    timeout -k 2 $hang_limit bash -c 'ulimit -f "$1"; shift; exec "$@"' limited "$1" "$trainer" "${args[@]}" \
        -x $endless -o "$folder" "${@:4}" 2>&1 </dev/null | cat >"$screen"
    is status "${PIPESTATUS[0]}" 1
    must_print "^train_gpt2_zero: .*/$2.*: .*$3"
    end_run
}
file_size 64 metrics.jsonl 'File too large'
file_size 8 rank00000 'raise the limit \(ulimit -f\)' -n 1
finish signals
