#!/usr/bin/env bash
# Measures this machine and writes BUILD/machine.json, for train_gpt2_zero --plan --machine. Nothing else
# should run meanwhile.
#   scripts/calibrate.sh [BUILD [FOLDER]]       build, and a folder on the disk for states (build)
#   ROUNDS=N    measures everything N times and takes the shortest: other work on a machine, or on the other
#               threads of its cores, slows down whole seconds. Without it: twice, but starts nothing again
#               after 45 seconds.
#   SHAPES="4,128,256,4,257,6 ..."  also measures the layers of these models: -b, -t, channels, heads,
#                   vocabulary, layers; the disk with pieces and a file as large as those of the first
# dev/bench/plan.sh sources it for the functions.
or() { cat "$1" >&2; echo "$(basename "$0"): failed" >&2; exit 1; }

# measure NAME THREADS PROCESSES ARGUMENT...: runs so many processes of build/calibrate at once; each
# writes a file NAME.I
measure() {
    local name=$1 pids=() i
    for i in $(seq "$3"); do
        OMP_NUM_THREADS=$2 "$build/calibrate" "${@:4}" >"$name.$i" 2>"$name.err.$i" &
        pids+=($!)
    done
    for i in "${!pids[@]}"; do wait "${pids[$i]}" || or "$name.err.$((i + 1))"; done
    rm "$name".err.*
}
# Of processes that run at once the slowest counts: ranks wait for each other, and where two virtual CPUs
# share a core, a process is faster while the other one pauses. Of all rounds the shortest counts, because
# other programs can only slow a round down; with middle=1 the mean of the middle half.
# chosen ROUND.NAME.I...: prints the samples, ["matmul","fp32",64,64,192,SECONDS], in the order of a file
chosen() {
    awk -v middle="${middle:-0}" '
        { what = $0; sub(/,[^,]*$/, "", what); seconds = substr($0, length(what) + 2) + 0
          round = FILENAME; sub(/[.][0-9]+$/, "", round); rounds[round]
          if (!(what in seen)) { seen[what]; order[++n] = what }
          if (seconds > most[round, what]) most[round, what] = seconds }
        END {
            for (i = 1; i <= n; i++) {
                m = 0
                for (r in rounds) {
                    if (!((r, order[i]) in most)) continue      # a sample of other shapes
                    seconds = most[r, order[i]]
                    for (k = m++; k && sorted[k - 1] > seconds; k--) sorted[k] = sorted[k - 1]
                    sorted[k] = seconds
                }
                first = middle ? int(m / 4) : 0
                end = middle ? m - first : 1
                sum = 0
                for (k = first; k < end; k++) sum += sorted[k]
                printf "%s,%.3e]\n", order[i], sum / (end - first)
            }
        }' "$@"
}
# samples NAME FILE...: prints a list of machine.json
samples() {
    echo "\"$1\": ["
    chosen "${@:2}" | sed '$!s/$/,/; s/^/    /'
    echo ']'
}
# The kernels and the disk have two samples each: ["copy",0,FIXED SECONDS] and ["copy",1,SECONDS PER BYTE].
# rates SUFFIX FILE...
rates() {
    chosen "${@:2}" | awk -F '[][", ]+' -v suffix="$1" '
        $3 == 0 { fixed = $4 }
        $3 == 1 { printf "\"%s%s\": [%.3e, %.4e, \"measured\"],\n", $2, suffix, fixed, 1 / $4 }'
}
# comm_samples NAME [COLUMN]: turns what bench/comm prints for a collective into samples,
# ["NAME",BYTES,MICROSECONDS]. Column 5 is its time, 14 with --beside what a computation loses.
comm_samples() {
    awk -v name="$1" -v column="${2:-5}" '$1 ~ /^(all|reduce)-/ {
        printf "[\"%s\",%s,%s]\n", name, $2, ($column > 0 ? $column : 0)
    }'
}
# collective RANKS FILE...: the fixed time and the rate of a collective: of the line through the least and the
# largest buffer. Rate 0: it does not grow with the buffer.
collective() {
    chosen "${@:2}" | awk -F '[][",]+' -v n="$1" '
        { name = $2; us[$3] = $4 }
        $3 > most { most = $3 }
        !least || $3 < least { least = $3 }
        END {
            sent = (n - 1) / n
            us_per_byte = most > least ? (us[most] - us[least]) / (most - least) / sent : 0
            if (us_per_byte < 0) us_per_byte = 0
            fixed = us[least] - us_per_byte * least * sent
            printf "\"%s\": [%.3e, %.4e, \"measured\"],\n", name, (fixed > 0 ? fixed * 1e-6 : 0),
                (us_per_byte > 0 ? 1e6 / us_per_byte : 0)
        }'
}
buffers='-b 16K -e 16M -f 1024 -n 9'
# Where a core has several threads, nproc counts each, so several ranks may be bound to one.
bound=core:overload-allowed,if-supported
# Times the collectives of a rank on each core, and writes files ROUND.gather.1 and ROUND.reduce.1. memory:
# bytes that a step uses before it comes back to a buffer.
memory=128M
measure_collectives() {         # ROUND
    local what
    local -A of=([gather]=all-gather [reduce]=reduce-scatter)
    for what in gather reduce; do
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=1 mpirun --oversubscribe --bind-to $bound -np "$cores" "$build/bench/comm" $buffers \
            -r "$memory" -c ${of[$what]} >"$work/comm" 2>"$work/err" </dev/null || or "$work/err"
        comm_samples $what <"$work/comm" >"$1.$what.1"
    done
}
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

set -eu -o pipefail
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
build=${1:-build} folder=${2:-$build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cores=$(env -u OMP_NUM_THREADS nproc) rounds=${ROUNDS:-2}
is_late() { [ -z "${ROUNDS:-}" ] && [ "$1" -gt 1 ] && [ $SECONDS -ge 45 ]; }        # ROUND
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
modes=("1 1 $cores" 'alone 1 1')        # name, threads, processes
[ "$cores" = 1 ] || modes+=("$cores $cores 1")
read -ra own <<<"${SHAPES:-}"

for i in $(seq "$rounds"); do
    for mode in "${modes[@]}"; do
        ! is_late "$i" || break 2
        read -r name threads processes <<<"$mode"
        measure "$work/$i.$name.layers" "$threads" "$processes" layers
        [ ${#own[@]} = 0 ] || measure "$work/$i.$name.layers.own" "$threads" "$processes" layers "${own[@]}"
        measure "$work/$i.$name.memory" "$threads" "$processes" memory
    done
    measure "$work/$i.disk" 1 1 disk "$folder" ${own[@]:+"${own[0]}" 1}
    [ "$cores" = 1 ] || measure_collectives "$work/$i"
done
{
    echo '{'
    echo "\"kind\": [\"cpu\"], \"title\": [\"$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)\"],"
    echo "\"cores\": [$cores], \"host_bytes\": [$(awk '/^MemTotal/ { print $2 * 1024 }' /proc/meminfo)],"
    echo '"flops": [0, 0, 0],'
    if [ "$cores" -gt 1 ]; then
        for what in gather reduce; do collective "$cores" "$work"/*.$what.1; done
        echo '"share": [5e-5, 1e9, "assumed"],'
    else
        echo '"gather": [0, 0], "reduce": [0, 0], "share": [0, 0],'
    fi
    echo '"turn_s": [4e-3, "assumed: with more threads than cores, how often the system lets others run"],'
    echo '"between": [1e-4, 125e6, "assumed: 1 Gbit/s"],'
    echo '"between_work": [2e-5, 5e8, "assumed: of a core that computes, without an idle one"],'
    rates "" "$work"/*.disk.*
    for mode in "${modes[@]}"; do rates "_${mode%% *}" "$work"/*."${mode%% *}".memory.*; done
    for mode in "${modes[@]}"; do
        samples "samples_${mode%% *}" "$work"/*."${mode%% *}".layers.*
        [ "$mode" = "${modes[-1]}" ] || echo ','
    done
    echo '}'
} >"$work/machine.json"
mv "$work/machine.json" "$build/machine.json"
echo "calibrate.sh: $build/machine.json, in $SECONDS s"
