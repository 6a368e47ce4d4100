#!/usr/bin/env bash
# Measures this machine and writes BUILD/machine.json, for train_gpt2_zero --plan --machine. Nothing else
# should run meanwhile.
#   scripts/calibrate.sh [BUILD [FOLDER]]       build, and a folder on the disk for states (build)
#   ROUNDS=N    measures everything N times (2) and takes the shortest: other work on a machine, or on the
#               other threads of its cores, slows down whole seconds
set -eu -o pipefail
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
build=${1:-build} folder=${2:-$build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cores=$(env -u OMP_NUM_THREADS nproc) rounds=${ROUNDS:-2}
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
or() { cat "$1" >&2; echo "calibrate.sh: failed" >&2; exit 1; }

# all ARGUMENT...: runs a process of one thread for each core at once; prints what they printed
all() {
    local pids=() i
    for i in $(seq "$cores"); do
        OMP_NUM_THREADS=1 "$build/calibrate" "$@" >"$work/$i" 2>"$work/$i.err" &
        pids+=($!)
    done
    for i in "${!pids[@]}"; do
        wait "${pids[$i]}" || or "$work/$((i + 1)).err"
        cat "$work/$((i + 1))"
    done
}
# Each round has a file with the samples of all cores, ["matmul","fp32",64,64,192,SECONDS]. The slowest core
# counts, because ranks wait for each other; of the rounds the shortest counts.
# slowest FILE...: prints lines FILE["matmul","fp32",64,64,192 SECONDS, in the order of the first file
slowest() {
    awk '{ what = $0; sub(/,[^,]*$/, "", what); seconds = substr($0, length(what) + 2) + 0
           if (seconds > most[FILENAME, what]) most[FILENAME, what] = seconds
           if (!(FILENAME in rounds)) rounds[FILENAME]
           if (!(what in seen)) { seen[what]; order[++n] = what } }
         END { for (i = 1; i <= n; i++) for (r in rounds) print r, order[i], most[r, order[i]] }' "$@"
}
# least FILE...: prints lines ["matmul","fp32",64,64,192 SECONDS, with the shortest time of all rounds
least() {
    slowest "$@" | awk '!($2 in least) { order[++n] = $2; least[$2] = $3 }
        $3 < least[$2] { least[$2] = $3 }
        END { for (i = 1; i <= n; i++) print order[i], least[order[i]] }'
}
samples() {
    least "$@" | awk '{ printf "%s    %s,%.3e]", (NR > 1 ? ",\n" : ""), $1, $2 } END { print "" }'
}
# The kernels and the disk have two samples each: ["copy",0,FIXED SECONDS] and ["copy",1,SECONDS PER BYTE].
rates() {
    least "$@" | awk -F '[][", ]+' '
        $3 == 0 { fixed = $4 }
        $3 == 1 { printf "\"%s\": [%.3e, %.4e, \"measured\"],\n", $2, fixed, 1 / $4 }'
}
# Of the best round, how much longer than these shortest times its samples took.
skew() {
    slowest "$@" | awk '
        { time[$1, $2] = $3; rounds[$1]; if (!($2 in least) || $3 < least[$2]) least[$2] = $3 }
        END {
            for (r in rounds) {
                sum = n = 0
                for (what in least) { sum += log(time[r, what] / least[what]); n++ }
                if (best == "" || sum / n < best) best = sum / n
            }
            printf "\"skew\": [%.3f, \"measured: how much longer a step takes than its parts\"],\n",
                exp(best) - 1
        }'
}
# The fixed time and the rate of a collective: from the least and the largest buffer. bench/comm prints the
# time in microseconds and the bytes on a rank's link a second.
collective() {
    for _ in $(seq "$rounds"); do
        mpirun --oversubscribe -np "$cores" "$build/bench/comm" -b 16K -e 16M -f 1024 -n 9 -c "$1" \
            2>"$work/err" || or "$work/err"
    done | awk -v name="$2" -v n="$cores" '
        $1 ~ /^[a-z]/ && (!($2 in us) || $5 < us[$2]) { us[$2] = $5 }
        $1 ~ /^[a-z]/ && $2 > most { most = $2 }
        $1 ~ /^[a-z]/ && (!least || $2 < least) { least = $2 }
        END {
            printf "\"%s\": [%.3e, %.4e, \"measured\"],\n", name, us[least] * 1e-6,
                most * (n - 1) / n / (us[most] * 1e-6)
        }'
}

for i in $(seq "$rounds"); do
    all layers >"$work/layers.$i"
    OMP_NUM_THREADS=1 "$build/calibrate" layers >"$work/alone.$i" 2>"$work/err" || or "$work/err"
    OMP_NUM_THREADS=$cores "$build/calibrate" layers >"$work/threads.$i" 2>"$work/err" || or "$work/err"
    all memory >"$work/memory.$i"
    "$build/calibrate" disk "$folder" >"$work/disk.$i" 2>"$work/err" || or "$work/err"
done
{
    echo '{'
    echo "\"kind\": [\"cpu\"], \"title\": [\"$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)\"],"
    echo "\"cores\": [$cores], \"host_bytes\": [$(awk '/^MemTotal/ { print $2 * 1024 }' /proc/meminfo)],"
    echo '"flops": [0, 0, 0],'
    rates "$work"/memory.*
    if [ "$cores" -gt 1 ]; then
        OMP_NUM_THREADS=1 collective all-gather gather
        OMP_NUM_THREADS=1 collective reduce-scatter reduce
        echo '"share": [5e-5, 1e9, "assumed"],'
    else
        echo '"gather": [0, 0], "reduce": [0, 0], "share": [0, 0],'
    fi
    echo '"turn_s": [1e-3, "assumed: with more threads than cores, until a rank that others wait for runs"],'
    skew "$work"/layers.*
    echo '"between": [1e-4, 125e6, "assumed: 1 Gbit/s"],'
    rates "$work"/disk.*
    echo '"samples_1": ['
    samples "$work"/layers.*
    echo '],'
    echo '"samples_alone": ['
    samples "$work"/alone.*
    echo '],'
    echo "\"samples_$cores\": ["
    samples "$work"/threads.*
    echo ']}'
} >"$work/machine.json"
mv "$work/machine.json" "$build/machine.json"
echo "calibrate.sh: $build/machine.json, in $SECONDS s"
