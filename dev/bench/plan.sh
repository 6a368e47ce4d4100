#!/usr/bin/env bash
# Compares the plan's step time with runs: draws configurations from a seed, and prints for each the planned
# and the measured tokens/s; then the median and the largest error, and of how many pairs that differ by at
# least 10 % the plan knows the faster one. Needs build/machine.json (make calibrate), and an idle machine.
#   dev/bench/plan.sh [COUNT [SEED]]       60 configurations, seed 1
#   PASSES=N        goes through the configurations N times (7). Each time it runs a configuration and, before
#                   and after, times its layers at its shapes, the plugin's kernels and, for states on NVMe,
#                   the disk; once a pass the collectives. The run's median step is compared with a plan from
#                   the medians of these times, because the speed of a machine that others use changes within
#                   seconds. Of the passes' errors the median counts.
#   OWN=0           does not time them; the plans use the calibration's, and interpolate between its shapes
#   NVME=folder     also draws states on NVMe, there
#   HOSTS=1gbit     also draws two hosts (network namespaces) at this rate; needs root
. "$(dirname "$0")/common.sh"
. scripts/calibrate.sh          # its functions, and buffers
build=build count=${1:-60} seed=${2:-1} passes=${PASSES:-7} cores=$(env -u OMP_NUM_THREADS nproc) typical=0.5
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
[ -z "${HOSTS:-}" ] || two_hosts "$HOSTS" || { echo "HOSTS: $hosts_why"; exit 1; }

# Prints lines "RANKS HOSTS OPTION...". A step has at most 60 GFLOP, so that a run takes seconds.
draw() {
    awk -v count="$count" -v seed="$seed" -v cores="$cores" -v nvme="${NVME:-}" -v hosts="${HOSTS:+1}" '
        function one(list,    of, n) { n = split(list, of, " "); return of[1 + int(rand() * n)] }
        BEGIN {
            srand(seed)
            while (drawn < count) {
                ranks = one("1 1 2 2 2 2 3 4")
                L = one("2 3 4 6 8"); C = one("64 128 192 256 384 512 768"); V = one("257 257 4096 50257")
                T = one("32 64 128 256 512"); B = one("1 2 4 8"); A = one("1 1 2 4")
                flops = ranks * A * B * T * (6 * (12 * L * C * C + V * C) + 6 * L * C * T)
                if (flops > 60e9 || flops < 0.5e9) continue
                options = sprintf("-e l%dh%dc%dv%dt%d -b %d -d %d -z %d", L, C / 64, C, V, T, B,
                    ranks * A * B * T, one("0 1 2 3"))
                options = options sprintf(" --dtype %s -r %d --overlap %d --threads %d --accumulate %s",
                    one("fp32 bf16"), one("0 1 2 3"), one("0 1"), ranks == 1 ? one("1 " cores) : 1,
                    one("batches layers"))
                across = hosts && ranks == 2 && rand() < 0.4
                if (nvme && !across && rand() < 0.25) {
                    sub(/-z [0-3]/, "-z 3", options)
                    options = options " --offload-optimizer nvme --offload-param nvme --nvme " nvme
                }
                print ranks, across ? 2 : 1, options
                drawn++
            }
        }'
}
run_here() {    # RANKS OPTION...
    timeout 300 mpirun --oversubscribe -np "$1" ./train_gpt2_zero "${@:2}" -x 15 -v 0 -s 0 -n 0 2>&1 \
        </dev/null
}
run_on_hosts() { on_hosts train_gpt2_zero "${@:2}" -x 15 -v 0 -s 0 -n 0 2>&1; }

# read_line: sets number, ranks, hosts and options of a configuration, and its layers' shape, threads and mode
read_line() {
    read -r number ranks hosts options || return
    shape=$(sed -E 's/^-e l(\S*)h(\S*)c(\S*)v(\S*)t(\S*) -b (\S*) .* --dtype (\S*) .*/\6,\5,\3,\2,\4,\1,\7/' \
        <<<"$options")
    threads=$(sed -E 's/.*--threads ([0-9]+).*/\1/' <<<"$options")
    mode=$threads
    [ "$threads" -gt 1 ] || [ "$ranks" -ge "$cores" ] || mode=alone
    run=run_here
    [ "$hosts" = 1 ] || run=run_on_hosts
}
# measure_own ROUND...
measure_own() {
    local round at_once=$((ranks < cores ? ranks : cores)) name
    [ "${OWN:-1}" != 0 ] || return 0
    for round; do
        name=$work/$pass.$number.$round
        measure "$name.layers" "$threads" $at_once layers "$shape"
        measure "$name.memory" "$threads" $at_once memory "$shape"
        [[ $options != *--nvme* ]] || measure "$name.disk" 1 1 disk "$NVME"
    done
}
measure_pass() {
    while read_line; do
        measure_own 1 2
        # shellcheck disable=SC2086
        $run "$ranks" $options >"$work/log" || or "$work/log"
        sed -nE 's/^([0-9.]+) tokens\/s in the median step.*/\1/p' "$work/log" >"$work/$pass.$number.measured"
        measure_own 3 4
    done <"$work/drawn"
    [ "${OWN:-1}" = 0 ] || measure_collectives "$work/$pass"
    # shellcheck disable=SC2086
    [ -z "${HOSTS:-}" ] || OMP_NUM_THREADS=1 on_hosts build/bench/comm $buffers -c all-gather \
        >"$work/$pass.between" 2>"$work/log" || or "$work/log"
}
# Prints machine.json as it was in the pass: with other lines for some names, and more samples. The two hosts
# share this machine's cores.
machine_now() {
    local name=$work/$pass.$number
    {
        [ "$hosts" = 1 ] || sed -nE "s/^(\"cores\":) .$cores]/\1 [$((cores / hosts))]/p" build/machine.json
        [ ! -f "$work/$pass.between" ] || collective between 2 <"$work/$pass.between"
        [ ! -f "$work/$pass.all-gather" ] || collectives "$work/$pass"
        [ ! -f "$name.1.memory.1" ] || rates "_$mode" "$name".*.memory.*
        [ ! -f "$name.1.disk.1" ] || rates "" "$name".*.disk.*
    } >"$work/lines"
    [ ! -f "$name.1.layers.1" ] || chosen "$name".*.layers.* | sed 's/$/,/' >"$work/own"
    awk -F'"' -v samples="samples_$mode" 'FNR == NR { now[$2] = $0; next }
        $2 in now { $0 = now[$2] }
        { print }
        $2 == samples { while (getline line <own > 0) print line }' own="$work/own" \
        "$work/lines" build/machine.json
}
plan_pass() {
    while read_line; do
        machine_now >"$work/machine.json"
        # shellcheck disable=SC2086
        timeout 60 ./train_gpt2_zero --plan --machine "$work/machine.json" --plan-ranks "$ranks" \
            -pg $((ranks / hosts)) $options >"$work/plan" 2>&1 </dev/null || or "$work/plan"
        sed -nE 's/^  step +[0-9.]+ s, ([0-9]+) tokens.*/\1/p' "$work/plan" >"$work/$pass.$number.planned"
    done <"$work/drawn"
}
median() { sort -g | awk '{ of[NR] = $1 } END { print (of[int((NR + 1) / 2)] + of[int(NR / 2) + 1]) / 2 }'; }

print_machine
printf '%9s %9s %7s  %s\n' planned measured error 'ranks, hosts, options'
: >"$work/own"
draw | nl -ba >"$work/drawn"
for pass in $(seq "$passes"); do measure_pass; done
for pass in $(seq "$passes"); do plan_pass; done
while read_line; do
    cat "$work"/*."$number".planned >"$work/planned"
    cat "$work"/*."$number".measured >"$work/measured"
    off=$(paste "$work/planned" "$work/measured" | awk '{ print 100 * ($2 / $1 - 1) }' | median)
    printf '%9.0f %9.0f %+6.1f%%  %s\n' "$(median <"$work/planned")" "$(median <"$work/measured")" "$off" \
        "$ranks $hosts $options" | tee -a "$work/all"
done <"$work/drawn"

awk '
    { off = $3 + 0; error[NR] = off < 0 ? -off : off; planned[NR] = $1; is[NR] = $2 }
    END {
        for (i = 1; i <= NR; i++) {
            n = 0
            for (j = 1; j <= NR; j++) n += error[j] < error[i]
            rank[n] = error[i]
        }
        for (i = int(NR / 2); i >= 0 && !(i in rank); i--) continue
        median = rank[i]
        for (i = 1; i <= NR; i++) if (error[i] > most) most = error[i]
        for (i = 1; i <= NR; i++) for (j = 1; j < i; j++) {
            if (is[i] < 1.1 * is[j] && is[j] < 1.1 * is[i]) continue
            pairs++
            right += (planned[i] < planned[j]) == (is[i] < is[j])
        }
        printf "%d configurations: error %.1f %% in the median, at most %.1f %%; %d of %d pairs in order\n",
            NR, median, most, right, pairs
    }' "$work/all"
