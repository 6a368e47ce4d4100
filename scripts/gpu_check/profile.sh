# shellcheck shell=bash
# Part profile: where the time of a step goes on the card, by kernel (ncu) and by phase (nsys).

metrics=gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum

# ncu's raw CSV in base units, among what the program prints: kernel, launches, ns, bytes read, bytes written.
# A name ends before its arguments; the parentheses of a template's, as in <float, (int)8>, are part of it.
kernels() {
    awk '
        function fields(line,   n, part) {
            for (n in field) delete field[n]
            n = 0
            while (match(line, /^("([^"]|"")*"|[^,]*)(,|$)/)) {
                part = substr(line, 1, RLENGTH)
                line = substr(line, RLENGTH + 1)
                sub(/,$/, "", part)
                gsub(/^"|"$/, "", part)
                field[++n] = part
                if (line == "") break
            }
            return n
        }
        function number(text) { gsub(/,/, "", text); return text + 0 }
        function without_arguments(name,    i, depth, c) {
            for (i = 1; i <= length(name); i++) {
                c = substr(name, i, 1)
                depth += (c == "<") - (c == ">")
                if (c == "(" && depth == 0) return substr(name, 1, i - 1)
            }
            return name
        }
        !/^"/ { next }
        {
            n = fields($0)
            if (field[1] == "ID") {
                for (i = 1; i <= n; i++) at[field[i]] = i
                next
            }
            if (field[1] == "") next        # the units
            name = field[at["Kernel Name"]]
            gsub(/\(anonymous namespace\)::/, "", name)
            sub(/^void /, "", name)
            name = without_arguments(name)
            count[name]++
            ns[name] += number(field[at["gpu__time_duration.sum"]])
            in_bytes[name] += number(field[at["dram__bytes_read.sum"]])
            out_bytes[name] += number(field[at["dram__bytes_write.sum"]])
        }
        END {
            for (k in count)
                printf "%s\t%d\t%.0f\t%.0f\t%.0f\n", k, count[k], ns[k], in_bytes[k], out_bytes[k]
        }' "$1"
}
# One step: what a run of one step launches, less what a run of none does at its start. ms instead of ns; the
# longest first. Two measurements of the same start differ a little: less than nothing is nothing.
one_step() {        # LOG-OF-NONE LOG-OF-ONE
    { kernels "$1" | sed 's/^/-\t/'; kernels "$2" | sed 's/^/+\t/'; } | awk -F'\t' '
        function least(x) { return x > 0 ? x : 0 }
        {
            sign = $1 == "+" ? 1 : -1
            n[$2] += sign * $3; ns[$2] += sign * $4
            r[$2] += sign * $5; w[$2] += sign * $6
        }
        END {
            for (k in n)
                if (n[k] > 0)
                    printf "%s\t%d\t%.6f\t%.0f\t%.0f\n", k, n[k], least(ns[k] / 1e6), least(r[k]), least(w[k])
        }' | sort -t$'\t' -k3,3gr
}
# What the model of a step has no name for on its own: a table of the kernels.
kernel_table() {
    awk -F'\t' '
        function speed(bytes, ms) { return ms > 0 ? bytes / (ms * 1e6) : 0 }
        { ms += $3; bytes += $4 + $5; line[NR] = $0 }
        END {
            printf "%9s %6s %6s %9s %8s  %s\n", "ms", "share", "runs", "MB", "GB/s", "kernel"
            for (i = 1; i <= NR && i <= 30; i++) {
                split(line[i], x, "\t")
                moved = x[4] + x[5]
                printf "%9.3f %5.1f%% %6d ", x[3], 100 * x[3] / ms, x[2]
                printf "%9.1f %8.0f  %.90s\n", moved / 1e6, speed(moved, x[3]), x[1]
            }
            if (NR > 30) printf "%9s %6s %6s %9s %8s  and %d more\n", "", "", "", "", "", NR - 30
            printf "%9.3f %5.1f%% %6s ", ms, 100, ""
            printf "%9.1f %8.0f  all, one after another\n", bytes / 1e6, speed(bytes, ms)
        }' "$1"
}

# Clocks stay as they are, and caches as the kernels before left them. No --log-file: why ncu cannot measure
# here would go there too.
profile_kernels() {
    local n ncu=(ncu --clock-control none --cache-control none --metrics $metrics --csv --page raw \
        --print-units base)
    local cannot='ERR_NVGPUCTRPERM|Failed to (initialize|load)|LibraryNotLoaded'
    command -v ncu >/dev/null || { skip ncu 'kernels: ncu is not there'; return; }
    for n in 0 1; do
        step "ncu-$n" 240 60 "${ncu[@]}" --launch-count "$kernel_limit" "$trainer" "${train[@]}" \
            "${task[@]}" \
            --attention "$attention" -z 0 -b "$B" -x $n --progress lines || return
    done
    one_step "$out/ncu-0.log" "$out/ncu-1.log" >"$out/kernels.tsv"
    if [ ! -s "$out/kernels.tsv" ]; then
        problem kernels 'kernels: ncu measured none in a step, see ncu-1.log'
        return
    fi
    n=$(grep -c '^"[0-9]' "$out/ncu-1.log")
    if [ "$n" -ge "$kernel_limit" ]; then problem kernels \
        "kernels: ncu stopped after $n, so the step is not whole"
    else check kernels "kernels: $(awk -F'\t' \
        '{ n += $2; ms += $3 } END { printf "%d launches of a step, %.2f ms on the card", n, ms }' \
        "$out/kernels.tsv"), one after another under ncu"; fi
    kernel_table "$out/kernels.tsv" >"$out/kernels.txt"
    compare_with_model
}
kernel_limit=6000
# The model of the step's operations, with what was measured beside it.
compare_with_model() {
    local known
    rm -f "$out/model.txt"
    if [ ! -e dev/gpu_model.sh ]; then
        skip model 'the model of a step: there is no dev/gpu_model.sh'
        return
    fi
    forget model
    known=$(grep -oiE '[ahb][0-9]{3}' <<<"$card_name" | head -n 1)
    known=${known,,}
    bash dev/gpu_model.sh --model "$model" --batch "$B" --length "$T" --recompute 0 \
        --card "${known:-$card_name}" \
        --measured "$out/kernels.tsv" >"$out/model.log" 2>&1 && mv "$out/model.log" "$out/model.txt" ||
        skip model "the model of a step: dev/gpu_model.sh has none: $(tail -n 1 "$out/model.log")"
}

# Time on the card of the ranges that the plugin names. The head runs forward and backward inside one range of
# the embeddings.
profile_phases() {
    if ! command -v nsys >/dev/null; then
        skip nsys 'phases: nsys is not there; times taken on the host would be those of queueing'
        return
    fi
    rm -f "$out"/phases.nsys-rep "$out"/phases.sqlite
    step nsys 90 30 nsys profile -t cuda,nvtx -s none -o "$out/phases" "$trainer" "${train[@]}" "${task[@]}" \
        --attention "$attention" \
        -z 3 -b "$B" -x 10 --progress lines || return
    step phases 60 10 nsys stats --format csv -r nvtx_gpu_proj_sum,cuda_gpu_kern_sum "$out/phases.nsys-rep" ||
        return
    awk -F, '
        { gsub(/"/, "") }
        /^Range,/ { for (i = 1; i <= NF; i++) if ($i == "Total Proj Time (ns)") at = i; next }
        NF < 3 || /Total Time/ { at = 0 }
        at { name = $1; sub(/^:/, "", name); sub(/ [0-9]*$/, "", name); ns[name] += $at }
        END { for (name in ns) printf "%-28s %8.3f\n", name, ns[name] / 10e6 }' "$out/phases.log" |
        sort >"$out/phases.txt"
    [ -s "$out/phases.txt" ] || skip phases 'phases: nsys named no ranges, see phases.log'
}

part_profile() {
    ready || return
    card_alone
    set_task "$model" "$B" "$steps" ''
    profile_kernels
    profile_phases
    return 0
}
