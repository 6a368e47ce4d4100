#!/usr/bin/env bash
# What overlap hides, without a card: a training step on two hosts whose network is slow, without overlap, with it, and with it where the
# network has no limit. The hosts are network namespaces on this machine, one rank and one thread each, and the ranks use TCP. Prints the
# median step, the share of the network's time that is hidden, (without - with) / (without - unlimited), and which collectives rank 0's
# trainer still waits for, from the trace. JSON lines are added to build/bench.jsonl. Needs root, ip and tc (iproute2).
#   dev/bench/overlap.sh [PROGRAM...]      default ./train_gpt2_zero; several builds take turns and are compared
#   RATE=2gbit   each way    ROUNDS=1    STEPS=8   of a run, the first two do not count    STAGE=3    OPTIONS="--prefetch 2"   for all runs
set -eu
cd "$(dirname "$0")/../.."
. tests/hosts.sh
rate=${RATE:-2gbit} rounds=${ROUNDS:-1} steps=${STEPS:-8} stage=${STAGE:-3} out=build/bench.jsonl work=$(mktemp -d) port=21000
model="-e l6h12c768v50257t1024 -b 2 -t 256"         # of GPT-2 124M's width
[ $# -gt 0 ] || set -- ./train_gpt2_zero
trap 'hosts_end; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

skip() { echo "overlap: skipped: $1"; exit 0; }
command -v tc >/dev/null || skip "needs tc (iproute2)"
hosts_make 2 || skip "$hosts_why"
hosts_limit "$rate" 2>"$work/why" || skip "tc cannot limit the network to $rate: $(head -n 1 "$work/why")"

# run PROGRAM OVERLAP: both ranks; rank 0's steps are in $work/out/metrics.jsonl, its trace is $work/trace
run() {
    local pids=() rank failed=0
    port=$((port + 1))
    rm -rf "$work/out" "$work"/trace*
    for rank in 0 1; do
        # shellcheck disable=SC2086
        hosts_run $rank timeout 300 "$1" -pi tcp -ps 10.77.7.1:$port -pn 2 -pr $rank -pg 1 --threads 1 $model -z "$stage" --overlap "$2" \
            -x "$steps" -v 0 -s 0 --progress lines -o "$work/out" --trace "$work/trace" ${OPTIONS:-} >"$work/log.$rank" 2>&1 &
        pids+=($!)
    done
    for rank in 0 1; do wait "${pids[$rank]}" || failed=1; done
    [ $failed = 0 ] || { cat "$work"/log.*; exit 1; }
}
times() { sed -n 's/.*"ms": \([0-9.]*\).*/\1/p' "$work/out/metrics.jsonl" | tail -n +3 >>"$work/$1"; }      # NAME: of what

# Rank 0's waits in the steps that count, shared out among the collectives that were under way: lines "UNIT:KIND N:MS A STEP", N: 1 for the
# unit's first gather in a step, 2 for its second. Steps are taken from update to update, since the first gather may start in the update.
exposed() {
    awk -F'"' -v steps="$steps" '
        function number(key) { return match($0, "\"" key "\":[0-9.]+") ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) : 0 }
        /"ph":"X"/ {
            from = number("ts") / 1e3; to = from + number("dur") / 1e3
            if ($4 == "update ") update[++updates] = from
            else if ($8 == "wait") { w_from[++waits] = from; w_to[waits] = to }
            else if (number("tid") == 1) { c_from[++n] = from; c_to[n] = to; kind[n] = $8; unit[n] = substr($4, length($8) + 2) }
        }
        function share(i, w,    from, to) {
            from = c_from[i] > w_from[w] ? c_from[i] : w_from[w]; to = c_to[i] < w_to[w] ? c_to[i] : w_to[w]
            return to > from ? to - from : 0
        }
        function counts(w) { return w_from[w] >= update[2] && w_to[w] <= update[updates] }
        END {
            for (w = 1; w <= waits; w++) if (counts(w)) other += w_to[w] - w_from[w]
            for (i = 1; i <= n; i++) {
                for (step = 0; step < updates && c_from[i] >= update[step + 1]; step++);
                key = unit[i] ":" kind[i] " " (kind[i] == "gather" ? ++times[step, unit[i]] : 1)
                for (w = 1; w <= waits; w++) if (counts(w)) { ms = share(i, w); sum[key] += ms; other -= ms }
            }
            for (key in sum) print key ":" sum[key] / (updates - 2)
            if (waits) print "nothing of these:wait 1:" other / (updates - 2)
        }' "$work/trace" >>"$work/$1"
}

: >"$work/unlimited"
for _ in $(seq "$rounds"); do
    n=0
    for program in "$@"; do
        n=$((n + 1))
        run "$program" 0; times off.$n
        run "$program" 1; times on.$n; exposed waits.$n
        hosts_limit unlimited
        run "$program" 1; times unlimited.$n
        hosts_limit "$rate"
    done
done

median() { sort -n "$work/$1" | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'; }
summary() {   # N PROGRAM
    awk -v off="$(median off.$1)" -v on="$(median on.$1)" -v free="$(median unlimited.$1)" -v program="$2" -v rate="$rate" -v stage="$stage" -v json="$out" '
        BEGIN {
            hidden = off > free ? (off - on) / (off - free) * 100 : 0
            printf "%-40s %10.2f %10.2f %10.2f %8.0f %%\n", program, off / 1e3, on / 1e3, free / 1e3, hidden
            printf "{\"name\": \"overlap\", \"program\": \"%s\", \"rate\": \"%s\", \"stage\": %d, \"without_ms\": %.1f, \"with_ms\": %.1f, " \
                   "\"unlimited_ms\": %.1f, \"hidden_percent\": %.1f}\n", program, rate, stage, off, on, free, hidden >>json
        }'
}
# Means over the rounds; what is below 1 ms in all columns is left out.
waits() {     # N PROGRAM
    awk -F: -v rounds="$rounds" '
        !($1 in seen) { seen[$1] = 1; units[++n] = $1 }
        { ms[$1, $2] += $3 / rounds }
        END {
            for (i = 1; i <= n; i++) {
                u = units[i]; other = ms[u, "wait 1"]
                if (ms[u, "gather 1"] < 1 && ms[u, "gather 2"] < 1 && ms[u, "reduce 1"] < 1 && other < 1) continue
                if (other) printf "%-40s %32.0f\n", u, other
                else printf "%-40s %10.0f %10.0f %10.0f\n", u, ms[u, "gather 1"], ms[u, "gather 2"], ms[u, "reduce 1"]
            }
        }' "$work/waits.$1" | sort -t: -k1,1
}

mkdir -p build
printf '\n%s\n%-40s %10s %10s %10s %10s\n' "overlap: 2 hosts, $rate each way, ${model#-e }, stage $stage" "s a step" without with unlimited hidden
n=0; for program in "$@"; do n=$((n + 1)); summary $n "$program"; done
n=0
for program in "$@"; do
    n=$((n + 1))
    [ -s "$work/waits.$n" ] || continue
    printf '\n%-40s %10s %10s %10s\n' "ms a step that $(basename "$program") waits" "gather 1" "gather 2" reduction
    waits $n
done
