#!/usr/bin/env bash
# Measures how much network time overlap hides, on CPUs: runs training steps on two hosts with a slow network,
# without and with overlap, and with overlap on an unlimited network. The hosts are network namespaces on this
# machine, each with one rank of one thread, connected by mpirun. Prints the median step time; the hidden
# share of the network time, (without - with) / (without - unlimited); and, from the trace, the collectives
# that rank 0's trainer waits for. Appends JSON lines to build/bench.jsonl. Needs root, and ip and tc
# (iproute2).
#   dev/bench/overlap.sh [PROGRAM...]     default ./train_gpt2_zero; runs of several builds alternate
#   RATE=2gbit    sending rate of a host  STAGE=3    OPTIONS="--prefetch 2"    for all runs
#   ROUNDS=1      runs of each kind       STEPS=8    per run; the first two do not count
. "$(dirname "$0")/common.sh"
. tests/hosts.sh
rate=${RATE:-2gbit} rounds=${ROUNDS:-1} steps=${STEPS:-8} stage=${STAGE:-3}
model="l6h12c768v50257t1024 -b 2 -t 256"        # 6 layers of GPT-2 124M's width
[ $# -gt 0 ] || set -- ./train_gpt2_zero
trap 'hosts_end; rm -rf "$work"' EXIT

skip() { echo "overlap: skipped: $1"; exit 0; }
command -v tc >/dev/null || skip "needs tc: scripts/install_deps.sh bench installs iproute2"
hosts_make 2 || skip "$hosts_why"
hosts_rsh >"$work/rsh" && chmod +x "$work/rsh"
hosts_limit "$rate" 2>"$work/why" || skip "tc cannot limit the network to $rate: $(head -n 1 "$work/why")"

# run PROGRAM OVERLAP: leaves rank 0's steps in $work/out/metrics.jsonl and its trace in $work/trace
run() {
    rm -rf "$work/out" "$work"/trace*
    # shellcheck disable=SC2086
    (hosts_run 0 timeout 300 mpirun --mca plm_rsh_agent "$work/rsh" --mca plm_rsh_no_tree_spawn 1 -np 2 \
        --host 10.77.7.1:1,10.77.7.2:1 --bind-to none "$(realpath "$1")" --threads 1 \
        -e $model -z "$stage" --overlap "$2" -x "$steps" -v 0 -s 0 -n 0 --progress lines \
        -o "$work/out" --trace "$work/trace" ${OPTIONS:-} >"$work/log" 2>&1 </dev/null) ||
        { tail -n 5 "$work/log"; exit 1; }
}

# times NAME: appends the steps that count to $work/NAME
times() { sed -n 's/.*"ms": \([0-9.]*\).*/\1/p' "$work/out/metrics.jsonl" | tail -n +3 >>"$work/$1"; }

# exposed NAME: attributes the trainer's waits to the collectives that run at the same time, and appends lines
# "UNIT:WHAT:MS PER STEP" to $work/NAME. WHAT is "gather 1" for the unit's first gather in a step, "gather 2"
# for its second. A step lasts from update to update, because the first gather starts at the update.
exposed() {
    awk -F'"' '
        function number(key,    after) {
            after = length(key) + 3
            return match($0, "\"" key "\":[0-9.]+") ? substr($0, RSTART + after, RLENGTH - after) : 0
        }
        /"ph":"X"/ && number("pid") == 1 && !/"cat":"step"/ {
            from = number("ts") / 1e3
            to = from + number("dur") / 1e3
            if ($4 == "update") update[++updates] = from
            else if ($8 == "wait") { wait_from[++waits] = from; wait_to[waits] = to }
            else if (int(number("tid") / 100) == 2) {
                n++; begin[n] = from; end[n] = to; kind[n] = $8; unit[n] = substr($4, length($8) + 2)
            }
        }
        function both(i, w,    from, to) {
            from = begin[i] > wait_from[w] ? begin[i] : wait_from[w]
            to = end[i] < wait_to[w] ? end[i] : wait_to[w]
            return to > from ? to - from : 0
        }
        function counts(w) { return wait_from[w] >= update[2] && wait_to[w] <= update[updates] }
        END {
            for (w = 1; w <= waits; w++) if (counts(w)) other += wait_to[w] - wait_from[w]
            for (i = 1; i <= n; i++) {
                for (step = 0; step < updates && begin[i] >= update[step + 1]; step++);
                key = unit[i] ":" kind[i] " " (kind[i] == "gather" ? ++gathers[step, unit[i]] : 1)
                for (w = 1; w <= waits; w++) if (counts(w)) { ms = both(i, w); sum[key] += ms; other -= ms }
            }
            for (key in sum) print key ":" sum[key] / (updates - 2)
            if (waits) print "no collective running:wait 1:" other / (updates - 2)
        }' "$work/trace" >>"$work/$1"
}

for _ in $(seq "$rounds"); do
    n=0
    for program in "$@"; do
        n=$((n + 1))
        run "$program" 0; times without.$n
        run "$program" 1; times with.$n; exposed waits.$n
        hosts_limit unlimited
        run "$program" 1; times unlimited.$n
        hosts_limit "$rate"
    done
done

# summary N PROGRAM: prints a program's row and appends it to the JSON lines
summary() {
    awk -v off="$(median <"$work/without.$1")" -v on="$(median <"$work/with.$1")" \
        -v free="$(median <"$work/unlimited.$1")" \
        -v program="$2" -v rate="$rate" -v stage="$stage" -v json="$out" '
        BEGIN {
            hidden = off > free ? (off - on) / (off - free) * 100 : 0
            printf "%-40s %10.2f %10.2f %10.2f %8.0f %%\n", program, off / 1e3, on / 1e3, free / 1e3, hidden
            printf "{\"name\": \"overlap\", \"program\": \"%s\", \"rate\": \"%s\", ", program, rate >>json
            printf "\"stage\": %d, \"without_ms\": %.1f, \"with_ms\": %.1f, ", stage, off, on >>json
            printf "\"unlimited_ms\": %.1f, \"hidden_percent\": %.1f}\n", free, hidden >>json
        }'
}
# waits N: prints a program's waits, averaged over the rounds, for units with at least 1 ms
waits() {
    sort -t: -k1,1 "$work/waits.$1" | awk -F: -v rounds="$rounds" '
        $1 != units[n] { units[++n] = $1 }
        { ms[$1, $2] += $3 / rounds; all[$1] += $3 / rounds }
        END {
            for (i = 1; i <= n; i++) {
                u = units[i]
                if (all[u] < 1) continue
                printf "%-40s ", u
                if (ms[u, "wait 1"]) printf "%32.0f\n", all[u]
                else printf "%10.0f %10.0f %10.0f\n", ms[u, "gather 1"], ms[u, "gather 2"], ms[u, "reduce 1"]
            }
        }'
}

printf '\noverlap: 2 hosts, %s each way, %s, stage %s %s\n' "$rate" "$model" "$stage" "${OPTIONS:-}"
printf '%-40s %10s %10s %10s %10s\n' "s per step" without with unlimited hidden
n=0
for program in "$@"; do n=$((n + 1)); summary $n "$program"; done
n=0
for program in "$@"; do
    n=$((n + 1))
    [ -s "$work/waits.$n" ] || continue
    printf '\n%-40s ' "ms per step that $(basename "$program") waits"
    printf '%10s %10s %10s\n' "gather 1" "gather 2" reduction
    waits $n
done
