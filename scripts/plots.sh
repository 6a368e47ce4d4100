#!/usr/bin/env bash
# Draws loss.png, step_time.png and memory.png of one run, or of all runs in a folder, and hellaswag.png if
# they have scores. Installs gnuplot if it is missing. The label of a run in progress names its last
# step.
# Usage: scripts/plots.sh [FOLDER]      FOLDER: a run's folder (the trainer's -o), or a folder that contains
# several; the pictures are written to it. Default: build/compare, from scripts/compare_stages.sh
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build/compare}
fail() { echo "plots.sh: $*" >&2; exit 1; }
[ ! -f "$folder" ] || fail "$folder is a file; RUN is the folder of a run, the trainer's -o"
[ -d "$folder" ] || fail \
    "$folder does not exist; scripts/compare_stages.sh creates the default one, the trainer's -o any other"
runs=()
if [ -f "$folder/run.json" ]; then inside=("$folder"); else inside=("$folder"/*/); fi
for run in "${inside[@]}"; do [ ! -f "$run/run.json" ] || runs+=("${run%/}"); done
[ ${#runs[@]} != 0 ] || fail "$folder has no run.json, so it is not a run's folder, and it contains none"
command -v gnuplot >/dev/null || scripts/install_deps.sh plots

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
value() { sed -nE "s/.*\"$2\": (\"([^\"]*)\"|([0-9]+)).*/\2\3/p" "$1/run.json"; }
# Run N (from 0) has a file N.steps (step, loss, ms), lines in the file validation (step, loss, N), one line
# in the file memory (label, bytes by class) and, if it is in scored, a file N.scores (step, score).
n=0 subjects=() scored=()
for run in "${runs[@]}"; do
    for file in metrics.jsonl main.log; do
        [ -f "$run/$file" ] || fail "$run has no $file; a run with -o writes it"
    done
    sed -nE 's/.*"step": ([0-9]+), "loss": ([^,]+),.*"ms": ([0-9.]+).*/\1 \2 \3/p' "$run/metrics.jsonl" \
        >"$work/$n.steps"
    [ "$(wc -l <"$work/$n.steps")" -ge 7 ] ||
        fail "$run/metrics.jsonl has fewer than 7 steps, not enough for plots"
    sed -nE "s/^s:([0-9]+) tel:(.*)/\1 \2 $n/p" "$run/main.log" >>"$work/validation"
    sed -nE 's/^s:([0-9]+) eval:(.*)/\1 \2/p' "$run/main.log" >"$work/$n.scores"
    [ ! -s "$work/$n.scores" ] || scored+=("$n")
    subjects+=("$(value "$run" parameters | awk '{ printf "%.3g", $1 / 1e6 }') million parameters ($(value \
        "$run" model)), $(value "$run" ranks) ranks")
    state=
    [ -f "$run/summary.json" ] || state=", until step $(tail -n 1 "$work/$n.steps" | cut -d' ' -f1)"
    echo "\"$(basename "$run" | sed -E 's/^stage([0-9])$/stage \1/')$state\" $(value "$run" \
        model_state_bytes) $(value "$run" working_bytes)" \
        "$(value "$run" activation_bytes)" >>"$work/memory"
    n=$((n + 1))
done

subject=$(printf '%s\n' "${subjects[@]}" | sed 's/, 1 ranks$/, 1 rank/' | sort -u)
[ "$(wc -l <<<"$subject")" = 1 ] || subject='several models or numbers of ranks'

dots=
if [ -s "$work/validation" ]; then
    dots=", '$work/validation' using 1:2:(1.2 + 1.5 * wider(\$3)):(color(\$3)) with points pt 7 ps variable "\
"lc variable notitle"
    dots="$dots, keyentry with points pt 7 ps 1.2 lc rgb '#555555' title 'dots: validation'"
fi
# Draws each curve thinner than the previous one, so that identical curves, such as those of stages 0 to 3,
# all stay visible.
gnuplot - <<END || fail "gnuplot could not draw $folder"
set terminal pngcairo noenhanced size 900,540 font "DejaVu Sans,12" background "white"
set linetype 1 lc rgb "#0072b2"; set linetype 2 lc rgb "#e69f00"
set linetype 3 lc rgb "#009e73"; set linetype 4 lc rgb "#d55e00"
set linetype 5 lc rgb "#56b4e9"; set linetype 6 lc rgb "#cc79a7"
set border 3 lc rgb "#555555"; set tics nomirror out; set grid ytics lc rgb "#dddddd" lt 1
set key top right reverse Left samplen 3
runs = $n
label(i) = system(sprintf("sed -n '%dp' '$work/memory' | cut -d'\"' -f2", i + 1))
steps(i) = sprintf("$work/%d.steps", i)
color(i) = 1 + int(i) % 6
wider(i) = runs > 1 ? (runs - 1.0 - i) / (runs - 1) : 0

set output "$work/loss.png"
set title "Loss\n$subject"; set xlabel "step"; set ylabel "loss, nats per token"; set xrange [0:*]
plot for [i=0:runs-1] steps(i) using 1:2 with lines lt color(i) lw 2 + 12 * wider(i) title label(i) $dots

if ("${scored[*]-}" ne "") {
    set output "$work/hellaswag.png"
    set title "HellaSwag\n$subject"; set ylabel "share of right answers"; set key bottom right
    plot for [i in "${scored[*]-}"] sprintf("$work/%s.scores", i) using 1:2 with linespoints pt 7 \
        lt color(i) lw 2 + 12 * wider(i) title label(i), \
        0.25 with lines lc rgb "#555555" dt 2 title "guessing"
    set key top right
}

set output "$work/memory.png"
set title "Memory per rank\n$subject"; unset xlabel; set ylabel "MiB"
set xrange [-0.7:runs-0.3]; set yrange [0:*]
set style fill solid 1 noborder; set boxwidth 0.55; set offsets 0, 0, graph 0.1, 0
M = 1048576.0
plot "$work/memory" using 0:((\$2+\$3+\$4)/M):xtic(1) with boxes lt 3 title "activations", \
     "" using 0:((\$2+\$3)/M) with boxes lt 2 title "working buffers", \
     "" using 0:(\$2/M) with boxes lt 1 title "model states", \
     "" using 0:((\$2+\$3+\$4)/M):(sprintf("%.1f", (\$2+\$3+\$4)/M)) with labels offset 0,0.7 notitle

set output "$work/step_time.png"
set title "Step time without the first two steps (box: middle half, whiskers: all but outliers)\n$subject"
set ylabel "ms"
set style boxplot nooutliers; set style fill solid 0.5 border -1; set boxwidth 0.4; unset key
do for [i=0:runs-1] {
    stats steps(i) every ::2 using 3 nooutput
    set label i + 1 sprintf("%.1f", STATS_median) at i + 0.24, STATS_median
}
set for [i=0:runs-1] xtics (label(i) i)
plot for [i=0:runs-1] steps(i) every ::2 using (i):3 with boxplot lt color(i)
END
mv "$work"/*.png "$folder" || fail "cannot move the pictures to $folder"
echo "pictures: $folder/loss.png, $folder/step_time.png, $folder/memory.png"\
"${scored[0]+, $folder/hellaswag.png}"
