#!/usr/bin/env bash
# Compares the plan's step time with runs: draws configurations from a seed, and prints for each the planned
# and the measured tokens/s; then the median and the largest error, and of how many pairs that differ by at
# least 10 % the plan knows the faster one. Needs build/machine.json (make calibrate), and an idle machine.
#   dev/bench/plan.sh [COUNT [SEED]]       60 configurations, seed 1
#   NVME=folder     also draws states on NVMe, there
#   HOSTS=1gbit     also draws two hosts (network namespaces) at this rate; needs root
. "$(dirname "$0")/common.sh"
. tests/hosts.sh
count=${1:-60} seed=${2:-1}
trap 'hosts_end; rm -rf "$work"' EXIT
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1
if [ -n "${HOSTS:-}" ]; then
    hosts_make 2 || { echo "HOSTS: $hosts_why"; exit 1; }
    hosts_rsh >"$work/rsh" && chmod +x "$work/rsh"
    hosts_limit "$HOSTS"
fi

# Prints lines "RANKS HOSTS OPTION...". A step has at most 60 GFLOP, so that a run takes seconds.
draw() {
    awk -v count="$count" -v seed="$seed" -v nvme="${NVME:-}" -v hosts="${HOSTS:+1}" '
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
                    one("fp32 bf16"), one("0 1 2 3"), one("0 1"), ranks == 1 ? one("1 2") : 1,
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
# Other work only slows a run down, so it repeats until the two fastest agree within 2 %, at most 8 times.
# measured COMMAND...: prints the median step of the fastest run, in tokens/s
measured() {
    : >"$work/log"
    for _ in {1..8}; do
        "$@" || or "$work/log"
        sed -nE 's/^([0-9.]+) tokens\/s in the median step.*/\1/p' "$work/log" | sort -gr |
            awk 'NR == 1 { best = $1 } NR == 2 { same = $1 > 0.98 * best } END { print best; exit !same }' \
                >"$work/best" && break
    done
    cat "$work/best"
}
run_here() {    # RANKS OPTION...
    timeout 300 mpirun --oversubscribe -np "$1" ./train_gpt2_zero "${@:2}" -x 15 -v 0 -s 0 -n 0 \
        >>"$work/log" 2>&1 </dev/null
}
on_hosts() {    # PROGRAM ARGUMENT...
    (hosts_run 0 timeout 300 mpirun --mca plm_rsh_agent "$work/rsh" --mca plm_rsh_no_tree_spawn 1 -np 2 \
        --host 10.77.7.1:1,10.77.7.2:1 --bind-to none "$PWD/$1" "${@:2}" </dev/null)
}
run_on_hosts() { on_hosts train_gpt2_zero "${@:2}" -x 15 -v 0 -s 0 -n 0 >>"$work/log" 2>&1; }
# The machine's file with the link between the hosts: the time of a small gather, and the rate of a large one.
machine_at() {
    on_hosts build/bench/comm -c all-gather -b 16K -e 16M -f 1024 -n 9 >"$work/link" 2>&1 || or "$work/link"
    awk 'FNR == NR && $1 == "all-gather" { fixed = fixed ? fixed : $5 * 1e-6; rate = $2 / 2 / ($5 * 1e-6) }
         FNR == NR { next }
         { sub(/"between": \[[^]]*\]/, "\"between\": [" fixed ", " rate "]") } 1' \
        "$work/link" build/machine.json
}

print_machine
[ -z "${HOSTS:-}" ] || { machine_at >"$work/between.json" && grep '"between"' "$work/between.json"; }
printf '%9s %9s %7s  %s\n' planned measured error configuration
while read -r ranks hosts options; do
    machine=build/machine.json run=run_here
    [ "$hosts" = 1 ] || machine=$work/between.json run=run_on_hosts
    # shellcheck disable=SC2086
    timeout 60 ./train_gpt2_zero --plan --machine "$machine" --plan-ranks "$ranks" -pg $((ranks / hosts)) \
        $options >"$work/plan" 2>&1 </dev/null || or "$work/plan"
    planned=$(sed -nE 's/^  step +[0-9.]+ s, ([0-9]+) tokens.*/\1/p' "$work/plan")
    # shellcheck disable=SC2086
    awk -v a="$planned" -v b="$(measured $run "$ranks" $options)" -v what="$ranks $hosts $options" \
        'BEGIN { printf "%9.0f %9.0f %+6.1f%%  %s\n", a, b, 100 * (b / a - 1), what }' | tee -a "$work/all"
done < <(draw)

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
