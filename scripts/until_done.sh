#!/usr/bin/env bash
# Repeats a train_gpt2_zero command until its run is done, even if a crash, a lost node or kill -9 interrupts
# it. The command must resume (-y 1) and name its folder (-o):
#
#     scripts/until_done.sh mpirun -np 2 ./train_gpt2_zero -e d12 -o log124M -n 1000 -nk 2 -y 1
#
# Ctrl-C, SIGTERM, SIGHUP or SIGUSR2 stops the run after the current step, with a checkpoint. The script
# forwards each of them as SIGUSR2, because the other three make mpirun kill its ranks. A second signal ends
# the run immediately. The script waits PAUSE (1) seconds between tries, gives up after TRIES (3) consecutive
# failures without a new checkpoint, and returns the status of the last one. If a rank dies during startup,
# mpirun can hang; the script kills an mpirun that has had no ranks for HANG (30) seconds.
set -u
set -m      # puts jobs into separate process groups, so that Ctrl-C reaches only this script
tries=${TRIES:-3} pause=${PAUSE:-1} hang=${HANG:-30}

die() { echo "until_done.sh: $*" >&2; exit 2; }
value_of() {        # OPTION WORD...: prints the value of "OPTION VALUE" or "OPTION=VALUE"
    local option=$1 value=
    shift
    while [ $# -gt 0 ]; do
        case $1 in "$option") value=${2:-} ;; "$option"=*) value=${1#*=} ;; esac
        shift
    done
    echo "$value"
}
folder=$(value_of -o "$@")
[ -n "$folder" ] || die 'the command needs -o FOLDER'
[ "$(value_of -y "$@")" = 1 ] || die 'the command needs -y 1, to resume'

newest() { ls -d "$folder"/step_*/manifest.json 2>/dev/null | tail -n 1; }
# without_ranks JOB: prints the mpiruns in this process group whose only children are zombies. If ranks run on
# other hosts, mpirun has a live ssh as a child.
without_ranks() {
    ps -A -o pid=,ppid=,pgid=,stat=,comm= | awk -v job="$1" '
        $4 !~ /^Z/ { has_child[$2] = 1 }
        $3 == job && $5 ~ /^(mpirun|mpiexec|orterun|prterun)$/ { mpirun[$1] = 1 }
        END { for (p in mpirun) if (!has_child[p]) print p }'
}
# watch JOB: kills an mpirun of this process group if it hangs
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
    disown              # keeps bash from reporting its end
    [ -z "$stopping" ] || kill -USR2 "$job" 2>/dev/null     # for a signal that arrived before the job started
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
        [ $status != 0 ] || status=1    # it exited with 0, but there is no summary
        exit $status
    fi
    echo "until_done.sh: the run ended with status $status before it was done; restarting it" >&2
    sleep "$pause"
done
exit $status
