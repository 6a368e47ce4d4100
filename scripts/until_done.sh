#!/usr/bin/env bash
# Runs a command of train_gpt2_zero until its run is done, whatever ends it in between: a crash, a node that
# is taken away, kill -9. The command resumes (-y 1) and names its folder (-o):
#
#     scripts/until_done.sh mpirun -np 2 ./train_gpt2_zero -e d12 -o log124M -n 1000 -nk 2 -y 1
#
# Ctrl-C, SIGTERM, SIGHUP or SIGUSR2 stops the run after its step, with a checkpoint, under mpirun too: that
# kills its ranks on any of them but SIGUSR2, which is therefore what it gets. A second one ends the run at
# once. A run that fails TRIES times in a row (3) without a new checkpoint is given up. PAUSE seconds (1) lie
# between two tries. The exit status is that of the last one. When a rank dies while it starts, mpirun itself
# can hang as it ends: one that has had no ranks for HANG seconds (30) is killed.
set -u
set -m      # jobs have process groups of their own: Ctrl-C reaches this script only
tries=${TRIES:-3} pause=${PAUSE:-1} hang=${HANG:-30}

die() { echo "until_done.sh: $*" >&2; exit 2; }
value_of() {        # OPTION WORD...: the word behind it
    local option=$1 value=
    shift
    while [ $# -gt 1 ]; do
        [ "$1" != "$option" ] || value=$2
        shift
    done
    echo "$value"
}
folder=$(value_of -o "$@")
[ -n "$folder" ] || die 'the command needs -o FOLDER'
[ "$(value_of -y "$@")" = 1 ] || die 'the command needs -y 1, to go on after an end'

newest() { ls -d "$folder"/step_*/manifest.json 2>/dev/null | tail -n 1; }
# The mpiruns in the process group JOB that have no children but zombies. For ranks on other hosts, ssh is a
# child.
without_ranks() {
    ps -A -o pid=,ppid=,pgid=,stat=,comm= | awk -v job="$1" '
        $4 !~ /^Z/ { has_child[$2] = 1 }
        $3 == job && $5 ~ /^(mpirun|mpiexec|orterun|prterun)$/ { mpirun[$1] = 1 }
        END { for (p in mpirun) if (!has_child[p]) print p }'
}
# Kills an mpirun of the process group JOB that hangs.
watch() {
    local since=0 now
    while sleep 1 && kill -0 -- "-$1" 2>/dev/null; do
        now=$(without_ranks "$1")
        [ -n "$now" ] && since=$((since + 1)) || since=0
        [ "$since" -ge "$hang" ] || continue
        echo "until_done.sh: mpirun hangs: for $hang s it has had no ranks; killing it" >&2
        kill -KILL $now
        since=0
    done
}
job= stopping= interrupted=
stop() {
    stopping=1 interrupted=1
    [ -z "$job" ] || kill -USR2 "$job" 2>/dev/null
}
trap stop INT TERM HUP USR2
run() {
    local watcher
    "$@" </dev/null &
    job=$!
    watch "$job" &
    watcher=$!
    disown              # bash reports the end of a job
    [ -z "$stopping" ] || kill -USR2 "$job" 2>/dev/null     # it came before there was a job to tell
    interrupted=1
    while [ -n "$interrupted" ]; do     # a signal ends `wait`, but not the job
        interrupted=
        wait "$job"
        status=$?
    done
    kill -- "-$watcher"
    job=
}

failures=0
while [ -z "$stopping" ]; do
    before=$(newest)
    [ -z "$stopping" ] || break
    run "$@"
    [ $status != 0 ] || [ ! -e "$folder/summary.json" ] || exit 0
    [ -z "$stopping" ] || break
    if [ "$(newest)" != "$before" ]; then
        failures=0
    else
        failures=$((failures + 1))
    fi
    if [ $failures -ge "$tries" ]; then
        echo "until_done.sh: $failures tries without a new checkpoint, the last with status $status" >&2
        [ $status != 0 ] || status=1    # it has ended well, but left no summary
        exit $status
    fi
    echo "until_done.sh: the run ended with status $status before it was done; starting it again" >&2
    sleep "$pause"
done
exit $status
