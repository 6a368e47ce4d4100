#!/usr/bin/env bash
# Compares the plan's step time with runs: draws configurations from a seed, and prints for each the planned
# and the measured tokens/s; then the median and the largest error, and of how many pairs that differ by at
# least 10 % the plan knows the faster one. Needs build/machine.json (make calibrate), and an idle machine.
#   dev/bench/plan.sh [COUNT [SEED]]       60 configurations, seed 1
#   TURNS=N         a run and the timing of its layers, of the plugin's kernels at its shapes, and of the disk
#                   take N turns of a fraction of a second (30): one is stopped while the other goes on. The
#                   mean step is compared with a plan from their mean times, because the speed of a machine
#                   that others use changes within seconds. Collectives take every sixth turn.
#   OWN=0           does not time them; the plans use the calibration's, and interpolate between its shapes
#   NVME=folder     also draws states on NVMe, there
#   HOSTS=1gbit     also draws two hosts (network namespaces) at this rate; needs root
. "$(dirname "$0")/common.sh"
. scripts/calibrate.sh          # its functions, buffers and bound
build=build count=${1:-60} seed=${2:-1} turns=${TURNS:-30} cores=$(env -u OMP_NUM_THREADS nproc) middle=1
timers=() disk=() running=
mkfifo "$work/never"
exec {never}<>"$work/never"
trap 'stop_timers; stop_run KILL; rm -rf "$work"; [ $hosts_n = 0 ] || hosts_end' EXIT
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
# Ranks that have a core each stay on it, as mpirun binds two ranks by default: overlap is then faster, and
# runs differ less.
run_here() {    # RANKS OPTION...
    [ "$1" = "$cores" ] && local -x OMPI_MCA_hwloc_base_binding_policy=$bound
    timeout 580 mpirun --oversubscribe -np "$1" ./train_gpt2_zero "${@:2}" -x 1000000 -v 0 -s 0 -n 0 2>&1 \
        </dev/null
}
# A rank alone on its host does not yield while it polls: the thread that computes would keep the core.
run_on_hosts() {
    OMPI_MCA_mpi_yield_when_idle=0 on_hosts train_gpt2_zero "${@:2}" -x 1000000 -v 0 -s 0 -n 0 2>&1
}

# read_line: sets number, ranks, hosts and options of a configuration, its layers' shape, half of its states'
# bytes, threads and mode
read_line() {
    read -r number ranks hosts options || return
    shape=$(sed -E 's/^-e l(\S*)h(\S*)c(\S*)v(\S*)t(\S*) -b (\S*) .* --dtype (\S*) .*/\6,\5,\3,\2,\4,\1,\7/' \
        <<<"$options")
    threads=$(sed -E 's/.*--threads ([0-9]+).*/\1/' <<<"$options")
    memory=$(awk -F, '{ half = 8 * (12 * $6 * $3 + $5) * $3; print half < 2^27 ? half : 2^27 }' <<<"$shape")
    mode=$threads
    [ "$threads" -gt 1 ] || [ "$ranks" -ge "$cores" ] || mode=alone
    # One core may be slower than another, so a run with one computing thread and its timer use the same.
    [ "$ranks.$threads" = 1.1 ] && pinned='taskset -c 0' || pinned=
    run=run_here
    [ "$hosts" = 1 ] || run=run_on_hosts
}
time_collectives() {            # ROUND
    if [ "$hosts" -gt 1 ]; then
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=1 on_hosts build/bench/comm $buffers -c all-gather --beside >"$work/comm" \
            2>"$work/err" || or "$work/err"
        comm_samples between <"$work/comm" >"$1.between.1"
        comm_samples between_work 14 <"$work/comm" >"$1.between_work.1"
    elif [ "$ranks" -gt 1 ] && [ "$cores" -gt 1 ]; then
        measure_collectives "$1"
    fi
}
# The timers, as many processes as there are ranks at once and then one for the disk, stop after each round.
start_timers() {
    local i
    for i in $(seq $((ranks < cores ? ranks : cores))); do
        OMP_NUM_THREADS=$threads $pinned build/calibrate rounds "$shape" >"$own.rounds.$i" 2>"$work/err" &
        timers+=($!)
    done
    await "${timers[@]}"
    [[ $options = *--nvme* ]] || return 0
    mkdir -p "$NVME/timer"
    build/calibrate disk-rounds "$NVME/timer" "$shape" "$ranks" >"$own.rounds.disk" 2>"$work/err" &
    disk=($!)
    await "${disk[@]}"
}
# Without a process of its own, which would take time from the timers.
await() {               # PID...
    local pid state
    for pid in "$@"; do
        while { read -r _ _ state _ <"/proc/$pid/stat"; } 2>/dev/null || or "$work/err"; do
            [ "$state" != T ] || break
            read -r -t 0.02 -u "$never" || true
        done
    done
}
stop_timers() {
    [ ${#timers[@]} = 0 ] || kill -9 "${timers[@]}" "${disk[@]}" || true
    wait "${timers[@]}" "${disk[@]}" 2>/dev/null || true
    [ -z "${NVME:-}" ] || rm -rf "$NVME/timer"
    timers=() disk=()
}
# By name, because the ranks of a second host are in another session: no other trainer may run.
stop_run() { [ -z "$running" ] || pkill "-$1" -x train_gpt2_zero || true; running=; }      # SIGNAL
# next_step SECONDS: sets ms to the next step's time
next_step() {
    local line
    while read -r -t "$1" -u "$log" line; do
        echo "$line" >>"$work/log"
        [[ $line =~ ^step.*\|\ ([0-9.]+)\ ms ]] && ms=${BASH_REMATCH[1]} && return
    done
    return 1
}
run_in_turns() {
    local i turn log ms past tokens settle=0 until=$((SECONDS + 90))
    [[ $options != *--nvme* ]] || settle=150    # ms: a virtual disk that was idle is slower for a while
    : >"$work/log"
    running=1
    # shellcheck disable=SC2086
    exec {log}< <($run "$ranks" $options)
    for i in 1 2 3; do next_step 120 || or "$work/log"; done
    [ -z "$pinned" ] || taskset -cp 0 "$(pgrep -x train_gpt2_zero)" >/dev/null     # only its main thread
    for turn in $(seq "$turns"); do
        # The first step was stopped, and the second one finds its memory outside the caches.
        next_step 60 || or "$work/log"
        for ((past = 0; past <= settle; past += ${ms%.*} + 1)); do next_step 60 || or "$work/log"; done
        for ((past = 0; past < 150; past += ${ms%.*} + 1)); do
            next_step 60 || or "$work/log"
            echo "$ms" >>"$own.ms"
        done
        [ ${#timers[@]} -gt 0 ] || continue
        pkill -STOP -x train_gpt2_zero
        kill -CONT "${timers[@]}"
        await "${timers[@]}"
        [ ${#disk[@]} = 0 ] || kill -CONT "${disk[@]}"
        await "${disk[@]}"
        [ $((turn % 6)) != 1 ] || time_collectives "$own.$turn"
        while next_step 0.02; do :; done        # steps that had ended before
        pkill -CONT -x train_gpt2_zero
        [ $SECONDS -lt $until ] || break
    done
    stop_run TERM
    while read -r -t 60 -u "$log" _; do :; done
    exec {log}<&-
    tokens=$(sed -E 's/.* -d ([0-9]+) .*/\1/' <<<"$options")
    awk -v tokens="$tokens" '{ print tokens * 1000 / $1 }' <(middle_mean <"$own.ms") >"$own.measured"
}
# Prints the mean of the middle half of the numbers, as chosen does for the timers' rounds.
middle_mean() {
    sort -g | awk '{ of[NR] = $1 }
        END { k = int(NR / 4); for (i = k + 1; i <= NR - k; i++) sum += of[i]; print sum / (NR - 2 * k) }'
}
# Splits what the timers printed into files for chosen, a round each: samples have six fields, rates three.
split_rounds() {
    local i
    for i in "$own".rounds.*; do
        awk -F, -v name="$own" -v i="${i##*.}" '
            BEGIN { round = 1; of = i == "disk" ? "disk.1" : "memory." i }
            !NF { round++; close(layers); close(rates); next }
            { layers = name "." round ".layers." i; rates = name "." round "." of }
            NF > 3 { print >layers }
            NF == 3 { print >rates }' "$i"
    done
}
measure_all() {
    while read_line; do
        own=$work/$number
        [ "${OWN:-1}" = 0 ] || start_timers
        run_in_turns
        [ "${OWN:-1}" = 0 ] || split_rounds
        stop_timers
    done <"$work/drawn"
}
# Prints machine.json with these times in place of the calibration's. Two hosts share this machine's cores.
machine_now() {
    local name=$work/$number what sending=$((hosts > 1 ? hosts : cores))      # ranks that send
    {
        [ "$hosts" = 1 ] || sed -nE "s/^(\"cores\":) .$cores]/\1 [$((cores / hosts))]/p" build/machine.json
        for what in gather reduce between between_work; do
            [ ! -f "$name.1.$what.1" ] || collective "$sending" "$name".*."$what".1
        done
        [ ! -f "$name.1.memory.1" ] || rates "_$mode" "$name".*.memory.*
        [ ! -f "$name.1.disk.1" ] || rates "" "$name".*.disk.*
        [ ! -f "$name.1.layers.1" ] || samples "samples_$mode" "$name".*.layers.*
    } >"$work/lines"
    awk -F'"' -v lines="$work/lines" '
        FILENAME == lines && /^"/ { name = $2 }
        FILENAME == lines { now[name] = now[name] $0 "\n"; next }
        /^"/ { replaced = $2 in now; if (replaced) printf "%s", now[$2] }
        /^],?$/ && replaced { if (/,/) print ","; replaced = 0; next }  # the end of a list
        /^}/ || !replaced' "$work/lines" build/machine.json
}
plan_all() {
    while read_line; do
        machine_now >"$work/machine.json"
        # shellcheck disable=SC2086
        timeout 60 ./train_gpt2_zero --plan --machine "$work/machine.json" --plan-ranks "$ranks" \
            -pg $((ranks / hosts)) $options >"$work/plan" 2>&1 </dev/null || or "$work/plan"
        planned=$(sed -nE 's/^  step +[0-9.]+ s, ([0-9]+) tokens.*/\1/p' "$work/plan")
        awk -v options="$ranks $hosts $options" '{
            printf "%9.0f %9.0f %+6.1f%%  %s\n", $1, $2, 100 * ($2 / $1 - 1), options
        }' <<<"$planned $(cat "$work/$number.measured")" | tee -a "$work/all"
    done <"$work/drawn"
}

print_machine
printf '%9s %9s %7s  %s\n' planned measured error 'ranks, hosts, options'
draw | nl -ba >"$work/drawn"
measure_all
plan_all

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
