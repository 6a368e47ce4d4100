#!/usr/bin/env bash
# Repeats a train_gpt2_zero command until its run is done, whatever interrupts it: a crash, a lost node, kill
# -9. The command must resume (-y 1) and name its folder (-o):
#
#     scripts/until_done.sh mpirun -np 2 ./train_gpt2_zero -e d12 -o log124M -n 1000 -nk 2 -y 1
#
# Ctrl-C, SIGTERM, SIGHUP or SIGUSR2 stops the run after its step, with a checkpoint. This also works under
# mpirun, which gets SIGUSR2, because it kills its ranks on the other signals. A second signal ends the run at
# once. The script gives up after TRIES (3) failures in a row without a new checkpoint. It waits PAUSE seconds
# (1) between two tries and returns the status of the last one. If a rank dies while starting, mpirun itself
# can hang: it is killed once it has had no ranks for HANG seconds (30).
set -u
set -m      # jobs get separate process groups, so that Ctrl-C reaches only this script
tries=${TRIES:-3} pause=${PAUSE:-1} hang=${HANG:-30}

die() { echo "until_done.sh: $*" >&2; exit 2; }
value_of() {        # OPTION WORD...: the word after it
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
[ "$(value_of -y "$@")" = 1 ] || die 'the command needs -y 1, to resume'

newest() { ls -d "$folder"/step_*/manifest.json 2>/dev/null | tail -n 1; }
# Prints the mpiruns in the process group JOB whose only children are zombies. For ranks on other hosts, ssh
# is a child.
without_ranks() {
    ps -A -o pid=,ppid=,pgid=,stat=,comm= | awk -v job="$1" '
        $4 !~ /^Z/ { has_child[$2] = 1 }
        $3 == job && $5 ~ /^(mpirun|mpiexec|orterun|prterun)$/ { mpirun[$1] = 1 }
        END { for (p in mpirun) if (!has_child[p]) print p }'
}
# Kills a hanging mpirun of the process group JOB.
watch() {
    local since=0 now
    while sleep 1 && kill -0 -- "-$1" 2>/dev/null; do
        now=$(without_ranks "$1")
        [ -n "$now" ] && since=$((since + 1)) || since=0
        [ "$since" -ge "$hang" ] || continue
        echo "until_done.sh: mpirun hangs: it has had no ranks for $hang s; killing it" >&2
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
    [ -z "$stopping" ] || kill -USR2 "$job" 2>/dev/null     # the signal came before the job started
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
        echo "until_done.sh: $failures tries without a new checkpoint, the last one with status $status" >&2
        [ $status != 0 ] || status=1    # it ended well, but left no summary
        exit $status
    fi
    echo "until_done.sh: the run ended with status $status before it was done; restarting it" >&2
    sleep "$pause"
done
exit $status
