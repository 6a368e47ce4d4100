#!/usr/bin/env bash
# Trains GPT-2 1558M on several machines with plain ssh, without MPI or Slurm. Settings: settings.sh. It needs
# passwordless ssh to every machine. With START=fs, rank 0 uses any free port and writes it to a file in
# $SHARED. Each line of output starts with the name of its machine. All ranks end if one machine fails, or on
# Ctrl-C.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/settings.sh"
. "$here/await.sh"
case ${START:-tcp} in
    tcp) start=(-pi tcp -ps "${hosts[0]##*@}:$PORT") ;;
    fs) start=(-pi fs -pf "$SHARED/start") ;;
    *) stop "START=$START: must be tcp or fs" ;;
esac
environment=(); for name in "${passed_on[@]}"; do environment+=("$name=${!name}"); done

# The ranks of a machine run until this pipe closes. Only this process holds the write end, so the pipe closes
# even if this process is killed. The job's key goes through the pipe first, because every user of a machine
# can read command lines.
key=${ZERO_JOB_KEY:-$(new_key)}
work=$(mktemp -d) || exit 1
mkfifo "$work/alive" || exit 1
sessions=()
close_all() { trap '' INT TERM; exec 9>&-; wait "${sessions[@]}" 2>/dev/null; rm -rf "$work"; }
trap close_all EXIT
trap 'echo "$(basename "$0"): stopped" >&2; exit 130' INT TERM

for ((i = 0; i < ${#hosts[@]}; i++)); do
    command=(env "${environment[@]}" bash "$here/ranks_here.sh" $((i * GPUS)) "$GPUS"
             "$trainer" "${start[@]}" -pn "$ranks" -pg "$GPUS" "${arguments[@]}")
    ssh -o BatchMode=yes -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "${hosts[i]}" "${command[*]@Q}" \
        < <(printf '%s\n' "$key"; exec cat "$work/alive" 2>/dev/null) \
        > >(exec sed -u "s/^/${hosts[i]//\//\\/}: /") 2>&1 &
    sessions+=($!)
done
exec 9>"$work/alive"

await "${sessions[@]}"
# Gives the other machines time to print the reason and end. After status 2 they would only repeat it.
[ $status = 0 ] || [ $status = 2 ] || await_all 150 "${sessions[@]}"
exit $status
