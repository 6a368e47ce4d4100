#!/usr/bin/env bash
# Runs configurations whose planned memory is 95 to 99 % of a cgroup's limit. Each must train: a refusal would
# be a wrong plan, and so would a kill. Needs root and cgroups of version 1 or 2.
#   dev/bench/limits.sh [COUNT [SEED]]       20 configurations, seed 1
. "$(dirname "$0")/common.sh"
count=${1:-20} seed=${2:-1}
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMP_NUM_THREADS=1
top=/sys/fs/cgroup/memory limit=memory.limit_in_bytes swap=memory.memsw.limit_in_bytes
[ -e $top/$limit ] || { top=/sys/fs/cgroup; limit=memory.max; swap=memory.swap.max; }
group=$top/llmc_zero_limits$$
mkdir "$group" || { echo "a cgroup cannot be made here"; exit 1; }
trap 'rmdir "$group"; rm -rf "$work"' EXIT

# Prints lines "PERCENT RANKS OPTION...". The ranks of a model take at least 1 GiB together, of which mpirun's
# few MiB are less than a percent.
draw() {
    awk -v count="$count" -v seed="$seed" '
        function one(list,    of, n) { n = split(list, of, " "); return of[1 + int(rand() * n)] }
        BEGIN {
            srand(seed)
            while (drawn < count) {
                ranks = one("1 2 2 4"); L = one("4 8 12 16"); C = one("512 768 1024"); V = one("8192 50257")
                parameters = 12 * L * C * C + V * C
                if (parameters < 80e6 / (ranks > 1 ? 1.3 : 1) || parameters > 180e6) continue
                printf "%d %d -e l%dh%dc%dv%dt128 -b 1 -z %d --dtype %s -r %d --accumulate %s -d %d\n",
                    95 + int(rand() * 5), ranks, L, C / 64, C, V, one("0 1 2 3 3"), one("bf16 fp32"),
                    one("0 1 3"), one("batches layers"), ranks * 128 * one("1 2")
                drawn++
            }
        }'
}
bad=0
while read -r percent ranks options; do
    # shellcheck disable=SC2086
    each=$(./train_gpt2_zero --plan --plan-ranks "$ranks" $options --threads 1 -s 0 |
        sed -nE 's/.*it needs ([0-9.]+) MiB per rank.*/\1/p')
    bytes=$((${each%.*} * ranks * 1048576 / percent * 100))
    # The limit on memory plus swap, if there is one, may not be below the limit on memory.
    [ "$swap" != memory.memsw.limit_in_bytes ] || echo -1 >"$group/$swap" 2>/dev/null || true
    echo $bytes >"$group/$limit"
    [ ! -e "$group/$swap" ] || echo $([ "$limit" = memory.max ] && echo 0 || echo $bytes) >"$group/$swap"
    result=trains
    # shellcheck disable=SC2086
    (echo $BASHPID >"$group/cgroup.procs" && exec timeout 300 mpirun --oversubscribe -np "$ranks" \
        ./train_gpt2_zero $options --threads 1 -x 2 -v 0 -s 0 -n 0 >"$work/log" 2>&1 </dev/null) ||
        result="FAILS: $(tail -n 1 "$work/log")"
    [ "$result" = trains ] || bad=$((bad + 1))
    printf '%s %% of %d MiB  %s  %s\n' "$percent" $((bytes >> 20)) "$result" "$ranks ranks $options"
done < <(draw)
echo "$count configurations, $bad failed"
[ $bad = 0 ]
