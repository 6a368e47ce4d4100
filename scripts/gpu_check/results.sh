# shellcheck shell=bash
# results.tsv and results.md, from what $out/state holds.

# A / B, with DIGITS
ratio() {
    awk -v a="${1:-0}" -v b="${2:-0}" -v n="${3:-3}" \
        'BEGIN { if (a > 0 && b > 0) printf "%.*f", n, a / b; else printf "-" }'
}

# For awk: the median of a list of numbers, "-" of none
median_of='
    function median(list,   n, i, j, x, t) {
        n = split(list, x, " ")
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && x[j - 1] + 0 > x[j] + 0; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
        return n ? (x[int((n + 1) / 2)] + x[int(n / 2) + 1]) / 2 : "-"
    }'

# A line for each row, in the order in which they came: medians over its runs, beside stage 0 of the same
# group and batch.
table() {
    awk -F'\t' -v OFS='\t' -v peak="$(fact peak)" "$median_of"'
        function add(list, value) { return value ~ /^[0-9.]+$/ ? list " " value : list }
        BEGIN {
            print "group", "run", "runs", "tokens/s", "ms a step", "% of peak", "MiB, own count",
                "MiB, nvidia-smi", "to stage 0", "loss", "params_hash"
        }
        {
            if (!($3 in runs)) order[++n] = $3
            runs[$3]++; group[$3] = $2; title[$3] = $4; tokens[$3] = $11; flops[$3] = $12
            rate[$3] = add(rate[$3], $5); loss[$3] = add(loss[$3], $6)
            own[$3] = add(own[$3], $7); seen[$3] = add(seen[$3], $8)
            hash[$3] = $9
            if ($2 != "sweep" && $3 ~ /zero-0$/) zero[$2] = add(zero[$2], $5)
            if ($3 == "sweep-plain" || $3 == "tiers-device") zero[$2] = add(zero[$2], $5)
        }
        END {
            for (i = 1; i <= n; i++) {
                k = order[i]
                fast = median(rate[k])
                first = median(zero[group[k]])
                ms = fast > 0 ? sprintf("%.2f", tokens[k] * 1000 / fast) : "-"
                share = peak > 0 && fast > 0 ? sprintf("%.1f", fast * flops[k] / peak / 1e7) : "-"
                beside = first > 0 && fast > 0 ? sprintf("%.3f", fast / first) : "-"
                print group[k], title[k], runs[k], sprintf("%.0f", fast), ms, share, median(own[k]),
                    median(seen[k]), beside, median(loss[k]), hash[k]
            }
        }' "$out/state/rows.tsv"
}
markdown() {        # GROUPS: the rows of these as a table
    awk -F'\t' -v groups="$1" '
        function rule(n, c) { return n ? c rule(n - 1, c) : "" }
        FNR == 1 || $1 ~ "^(" groups ")$" {
            r++
            for (i = 2; i <= NF; i++) {
                x[r, i] = $i
                if (length($i) > w[i]) w[i] = length($i)
            }
            columns = NF
        }
        END {
            if (r < 2) exit
            for (k = 1; k <= r; k++) {
                for (i = 2; i <= columns; i++) printf i == 2 ? "| %-*s" : " | %*s", w[i], x[k, i]
                print " |"
                if (k > 1) continue
                for (i = 2; i <= columns; i++) printf "|%s%s", rule(w[i] + 1, "-"), i == 2 ? "-" : ":"
                print "|"
            }
            print ""
        }' "$out/results.tsv"
}
aims() {
    awk -F'\t' -v peak="$(fact peak)" "$median_of"'
        function aim(what, value, digits, least, inclusive,   met, text) {
            met = value > least || (inclusive && value == least) ? "met" : "not met"
            if (value == "") met = "not measured"
            text = value == "" ? "-" : sprintf("%.*f", digits, value)
            printf "- %s, aim %s %s: %s, %s\n", what, inclusive ? ">=" : ">", least, text, met
        }
        function ratio(a, b) { return a > 0 && b > 0 ? a / b : "" }
        $5 ~ /^[0-9.]+$/ { rate[$3] = rate[$3] " " $5; flops[$3] = $12 }
        END {
            zero = median(rate["zero-0"])
            tuned = median(rate["sweep-tune"])
            aim("tokens/s at stage 0 on one H200", zero > 0 ? zero : "", 0, 600000, 1)
            if (tuned > 0) aim("tokens/s at stage 0 on one H200 with --tune", tuned, 0, 600000, 1)
            aim("stage 0 to llm.c", ratio(zero, median(rate["llm.c"])), 3, 1, 0)
            aim("stage 0 to compiled PyTorch", ratio(zero, median(rate["pytorch"])), 3, 1, 0)
            aim("stage 3 to stage 0", ratio(median(rate["zero-3"]), zero), 3, 0.97, 1)
            aim("percent of peak at stage 0", ratio(zero * flops["zero-0"], peak * 1e7), 1, 60, 1)
        }' "$out/state/rows.tsv"
}
list() {            # HEADING KIND
    local lines
    lines=$(notes "$2")
    [ -z "$lines" ] || printf '\n%s\n\n%s\n' "$1" "$(sed 's/^/- /' <<<"$lines")"
}
block() { [ ! -s "$2" ] || { printf '\n%s\n\n' "$1"; sed 's/^/    /' "$2"; }; }     # HEADING FILE

report() {
    local sizes
    sed 's/^/    /' "$out/machine.txt"
    printf '\n%s, B %s, T %s, bf16, nothing recomputed, GELU fusion %s, attention: %s; data: %s.\n' "$model" \
        "$B" "$T" "$ge" \
        "$(fact attention)" "${DATA:-random tokens}"
    printf '%s steps a run, of which the first two do not count; medians of the runs, which went in turn.\n' \
        "$steps"
    printf \
        'Peak, measured: %s GFLOP/s. Work of a token: 6 P + 12 L C T, P parameters without the '\
'positions.\n\n' "$(fact peak)"
    markdown train
    aims
    sizes=$(markdown 'd[0-9]+')
    [ -z "$sizes" ] || printf '\nLarger models, %s steps a run:\n\n%s\n' "$size_steps" "$sizes"
    sizes=$(markdown tiers)
    [ -z "$sizes" ] ||
        printf '\nModel states on the device and elsewhere, stage 3, beside %s with all there:\n\n%s\n' \
            "${tiers%:*}" "$sizes"
    sizes=$(markdown sweep)
    [ -z "$sizes" ] || printf '\n%s at stage 0, one setting after another:\n\n%s\n' "$model" "$sizes"
    printf \
        '\nMemory is that of the card: our own count is the table of the start times the ranks, without '\
'what CUDA itself takes;\n'
    printf "llm.c's is what CUDA says is in use.\n"
    block 'A step at stage 0 on the card, as measured by ncu beside the model:' "$out/model.txt"
    block 'Kernels of a step at stage 0 (ncu; bytes from and to the card'"'s memory):" "$out/kernels.txt"
    block 'Phases of a step at stage 3, ms on the card (nsys):' "$out/phases.txt"
    list 'Checked:' check
    list 'Skipped:' skipped
    list 'Left for the next call:' later
    list 'FAILED:' problem
}
# Each file at once under its own name, so that a cut never leaves half of one.
published=''        # when
publish() {
    published=$SECONDS
    touch "$out/state/rows.tsv"
    table >"$out/results.new" && mv "$out/results.new" "$out/results.tsv"
    report >"$out/results.new" && mv "$out/results.new" "$out/results.md"
    [ -z "$copies" ] || cp "$out/results.md" "$out/results.tsv" "$copies"
}
# Everything but what is large and can be made again.
pack_logs() {
    [ -n "$copies" ] || return 0
    (cd "$out" && tar -czf "$copies/logs.tar.gz" --exclude=used.mib state runs machine.txt ./*.log ./*.mib \
        ./*.txt 2>/dev/null)
}
