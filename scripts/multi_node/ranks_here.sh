#!/usr/bin/env bash
# ranks_here.sh FIRST COUNT COMMAND...: starts COUNT ranks of a job on this machine, each with -pr and its
# number, counted from FIRST. The first line of stdin is their ZERO_JOB_KEY. Ends all ranks when one of them
# fails, or when stdin closes because the parent process is gone. Used by run_gpt2_1558M_ssh.sh.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. scripts/multi_node/await.sh
first=$1 count=$2
shift 2
pids=()
end_all() {
    trap '' INT TERM HUP
    local running
    kill -9 "$watch" 2>/dev/null
    # Signals only running ranks, because the PID of an ended one may have been reused.
    mapfile -t running < <(jobs -rp)
    [ ${#running[@]} = 0 ] || kill "${running[@]}"
    await_all 30 "${running[@]}"
    mapfile -t running < <(jobs -rp)
    [ ${#running[@]} = 0 ] || kill -9 "${running[@]}"
}
trap 'end_all; exit 143' INT TERM HUP

read -r ZERO_JOB_KEY || exit 1
export ZERO_JOB_KEY
exec 8<&0
(while read -r _ <&8; do :; done; kill $$) & watch=$!
disown $watch                                           # keeps bash from reporting its end
exec 8<&-
for ((rank = first; rank < first + count; rank++)); do
    "$@" -pr "$rank" </dev/null &
    pids+=($!)
done
await "${pids[@]}"
for i in "${!pids[@]}"; do
    [ $status -le 128 ] || [ "${pids[i]}" != "$failed" ] ||
        echo "rank $((first + i)) was killed by signal $((status - 128))" >&2
done
# Gives the other ranks time to print the reason and exit. After status 2 they would only repeat it.
[ $status = 0 ] || [ $status = 2 ] || await_all 100 "${pids[@]}"
end_all
exit $status
