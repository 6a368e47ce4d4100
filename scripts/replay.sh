#!/usr/bin/env bash
# Checks a part of a recorded run: trains it again from its checkpoint of step FROM to step TO, and compares
# the digests of the parameters with those that --hash-every wrote into RUN/metrics.jsonl.
# Usage: scripts/replay.sh RUN FROM TO [mpirun options] [-- trainer options]
#   RUN                the run's folder (-o), with run.json, metrics.jsonl and the checkpoint step_FROM
#   mpirun options     default: -np with the run's number of ranks
#   trainer options    replace the run's: another stage, tier or micro-batch, or -i with your copy of the data
#   OUT=folder         keeps the replay's files; on several machines, a folder that all share
#   TRAINER=program    another trainer
# The other options, the dtype, the device and the threads are those of the run's latest start, in run.json.
# File names are relative to the folder in which it was started, so start the script there too.
# Exit status: 0 equal; 1 a digest differs; 2 nothing was compared
set -u -o pipefail
fail() { echo "replay.sh: $*" >&2; exit 2; }
here=$(dirname "$0")
. "$here/mpi_env.sh"
[ $# -ge 3 ] || { sed -n '2,12s/^# //p' "$0" >&2; exit 2; }
run=${1%/} from=$2 to=$3 trainer=${TRAINER:-$here/../train_gpt2_zero}
shift 3
for step in "$from" "$to"; do
    case $step in '' | *[!0-9]* | ??????????*) fail "$step: not a step" ;; esac
done
from=$((10#$from)) to=$((10#$to))
launch=() further=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do launch+=("$1"); shift; done
[ $# = 0 ] || further=("${@:2}")

# ---- the record

[ -x "$trainer" ] || fail "$trainer does not exist: make train_gpt2_zero"
for file in run.json metrics.jsonl; do
    [ -f "$run/$file" ] || fail "$run/$file does not exist, so $run is not the folder (-o) of a run"
done
value() { sed -nE "s/.*\"$1\": \"?([^\",{}]+).*/\1/p" "$run/run.json"; }
checkpoint=$run/$(printf 'step_%08d' "$from")
if [ ! -f "$checkpoint/manifest.json" ]; then
    there=
    for file in "$run"/step_*/manifest.json; do
        file=${file%/*}
        [ ! -f "$file/manifest.json" ] || there+=" $((10#${file##*_}))"
    done
    fail "$checkpoint is not a complete checkpoint; $run has those of steps:${there:- none}"
fi
# recorded FOLDER: prints "STEP DIGEST" for each digest of the steps after FROM, up to TO
recorded() {
    sed -nE 's/^\{"step": ([0-9]+),.*"params_hash": "([0-9a-f]{16})".*/\1 \2/p' "$1/metrics.jsonl" |
        awk -v from=$from -v to=$to '$1 > from && $1 <= to'
}
last=$(sed -nE 's/^\{"step": ([0-9]+),.*/\1/p' "$run/metrics.jsonl" | tail -n 1)
[ "$to" -gt "$from" ] || fail "step $to is not after step $from"
[ "$to" -le "${last:-0}" ] || fail "$run/metrics.jsonl ends at step ${last:-0}, before step $to"
hashes=$(recorded "$run")
[ -n "$hashes" ] ||
    fail "$run/metrics.jsonl has no params_hash for steps $((from + 1)) to $to; --hash-every records them"
to=$(tail -n 1 <<<"$hashes" | cut -d' ' -f1)    # later steps cannot be compared
# Each option has a line "NAME=VALUE". Those about the run's folder, its start and its reports are left out.
options=()
while IFS= read -r option; do
    case ${option%%=*} in
        -o | -y | -n | -nk | -nm | -pn | -pr | -pg | -v | -m | -h | -s | --resume | --resume-anyway | \
            --async-save | --trace | --stop-after | --hellaswag | --tokenizer | --progress) ;;
        # JSON's escapes here are \\, \" and \u00XX.
        *) options+=("$(printf '%b' "${option//\\\"/\\u0022}")") ;;
    esac
done < <(sed -nE '/"options": \[/,$s/^  "(.*)",?$/\1/p' "$run/run.json")

# ---- the replay

if [ -n "${OUT:-}" ]; then out=$OUT
else
    out=$(mktemp -d) || exit 2
    trap 'rm -rf "$out"' EXIT
fi
[ ${#launch[@]} != 0 ] || launch=(-np "$(value ranks)")
screen=$(mpirun --oversubscribe "${launch[@]}" "$trainer" "${options[@]}" --dtype "$(value dtype)" \
    --device "$(value device)" --threads "$(value threads)" -n 0 -v 0 -s 0 --tokenizer none \
    "${further[@]}" -o "$out" --resume "$checkpoint" --stop-after "$to" 2>&1 </dev/null) || {
    grep -a '^train_gpt2_zero: ' <<<"$screen" >&2 || tail -n 5 <<<"$screen" >&2
    fail "the replay of $run from step $from did not reach step $to"
}

# Prints the first step whose digest the replay lacks, or has another one of, and the last equal one before.
awk -v from=$from '
    FILENAME == ARGV[1] { replayed[$1] = $2; next }
    replayed[$1] == $2 { n++; equal = $1; next }
    {
        printf "step %d differs: recorded %s, replayed %s", $1, $2, replayed[$1] ? replayed[$1] : "none"
        print n ? "; equal up to step " equal : ""
        differs = 1
        exit
    }
    END {
        if (!differs) printf "steps %d to %d: equal (%d hash%s)\n", from + 1, equal, n, n == 1 ? "" : "es"
        exit differs
    }' <(recorded "$out") - <<<"$hashes" || {
    grep -a '^changed since ' <<<"$screen"      # printed by the trainer
    exit 1
}
