#!/usr/bin/env bash
# Tests screen output: the bar on a terminal, lines elsewhere, --help, compare_stages.sh, plots.sh,
# trace_lanes.sh and make demo. Usage: tests/test_terminal.sh TRAINER
# util-linux's `script` provides the terminal: it runs a command on a pseudo-terminal and copies its output.
# shellcheck disable=SC2016,SC2086
. "$(dirname "$0")/cases.sh"
TRAINER=$(realpath "${1:?Usage: tests/test_terminal.sh TRAINER}") || exit 1
export TRAINER
unset COLUMNS ZERO_POISON

model="-e l2h2c32v257t32 -b 2 -u 0 --threads 1 --overlap 0 --dtype fp32"
screen=$dir/screen
small="$model -x 60 -v 30 -m 1 -s 0"
two="mpirun --oversubscribe -np 2"
bar='^step +[0-9]+/60 \[#*\.*\] loss [0-9.]+ \| +[0-9]+:[0-9]{2} left \| +[0-9]+ tok/s \| +[0-9]+ % of peak '\
'*$'
line='^step +[0-9]+/60 \| loss [0-9.]+ \((-|[-+][.0-9]+z)\)\| norm [0-9.]+ \((-|[-+][.0-9]+z)\)\| '\
'lr [-0-9.e]+ \| [0-9.]+ ms \| [0-9]+ tok/s$'

# on_terminal COLUMNS COMMAND: writes the terminal's output to $dir/raw, and to $dir/screen with each redraw
# on a separate line
on_terminal() {
    timeout -k 2 $hang_limit script -qec "stty cols $1; $2" /dev/null </dev/null >"$dir/raw" || return 1
    tr '\r' '\n' <"$dir/raw" | sed '/^$/d' >"$screen"
}
count() { grep -caE -- "$1" "$screen"; }
counts() { is "lines with '$1'" "$(count "$1")" "$2"; }
widest() { grep -aE '^step' "$screen" | wc -L; }

# ---- with a terminal

test_terminal() {
    local columns digest since=$EPOCHREALTIME
    begin 'bar.two ranks'
    need 'failed' on_terminal 100 "$two $TRAINER $small"
    need 'no bar' [ "$(count "$bar")" -ge 2 ]
    counts '^step' "$(count "$bar")"    # the time left is under an hour
    counts "$line" 0
    need "drawn $(count "$bar") times" number "$(count "$bar") <= 5 + 10 * ($EPOCHREALTIME - $since)"
    need "$(widest) columns" [ "$(widest)" -le 99 ]
    counts '^val loss [0-9.]+$' 3       # above the bar
    need 'the last bar is not full' grep -qE '^step +60/60 \[#+\] ' <(grep -aE '^step' "$screen" | tail -n 1)
    need 'the last bar was erased' grep -qE '^step +60/60.*[^ ] *$' <(tail -n 2 "$screen")
    has "$screen" '^peak +[1-9][0-9]* GFLOP/s'
    end
    begin 'bar.the same bits as with lines'
    digest=$(hashes "$screen")
    need 'failed with --progress lines' on_terminal 100 "$two $TRAINER $small --progress lines"
    counts "$line" 60
    counts '\[#' 0
    is digest "$(hashes "$screen" | cut -c 1-28)" "${digest:0:28}"
    end
    begin 'bar.fits the width'
    for columns in 20 120; do
        need "$columns columns: failed" on_terminal $columns "$TRAINER $small -v 0"
        need "$columns columns: $(widest) used" [ "$(widest)" -lt $columns ]
        has "$screen" '^step +60/60'
    done
    end
    begin 'bar.an error is on a separate line'
    need 'the run succeeded' not on_terminal 80 \
        "$TRAINER $model -x 30 -v 0 -s 0 -l 1000 -c 1000 --clip 0 -k constant"
    tr '\r' '\n' <"$dir/raw" >"$screen"
    has "$screen" '^step .*of peak'
    counts '^train_gpt2_zero: step [0-9]+: .*not finite' 1
    end
}

begin 'progress.without a terminal: lines, a requested bar, and few: twelve steps and the last'
need 'failed' timeout -k 2 $hang_limit $two "$TRAINER" $small >"$screen" 2>&1 </dev/null
counts "$line" 60
need 'carriage returns' not grep -q $'\r' "$screen"
counts '^peak' 0        # only printed with a bar
need 'failed' env COLUMNS=60 timeout -k 2 $hang_limit "$TRAINER" $small --progress bar >"$dir/raw" 2>&1 \
    </dev/null
tr '\r' '\n' <"$dir/raw" >"$screen"
has "$screen" '^step +60/60'
need "$(widest) columns" [ "$(widest)" -lt 60 ]
need 'failed' timeout -k 2 $hang_limit "$TRAINER" $small --progress few >"$screen" 2>&1 </dev/null
is steps "$(sed -nE 's/^step +([0-9]+).*/\1/p' "$screen" | xargs)" '1 6 11 16 21 26 31 36 41 46 51 56 60'
end

# ---- help

begin 'help.every option, in groups'
need '--help failed' "$TRAINER" --help >"$screen"
need "a line of $(wc -L <"$screen") columns" [ "$(wc -L <"$screen")" -le 100 ]
counts '^(Model and data|Batch and schedule|Optimizer|ZeRO|Output and checkpoints|Machine)$' 6
counts '^  .*\./train_gpt2_zero ' 4     # examples
sed -nE 's/^[A-Z_]+\("(-[^"]+)".*/\1/p' trainer/options/options.def >"$dir/options"
need "$(wc -l <"$dir/options") options in the table" [ "$(wc -l <"$dir/options")" -ge 55 ]
while read -r option; do
    need "no $option" grep -qE -- "^  $option( |\$)|accepted:.* $option( |\$)" "$screen"
done <"$dir/options"
end

# ---- compare_stages.sh, plots.sh

compare() {
    OUT=$dir/compare timeout -k 2 $hang_limit scripts/compare_stages.sh "$@" >"$screen" 2>&1 </dev/null
}
row='^ +[0-3]( +[0-9]+\.[0-9]+){7}  [0-9a-f]{16}$'
digests() { grep -oE '[0-9a-f]{16}$' "$screen" | sort -u | wc -l; }

begin 'compare.four stages, the same bits'
need 'failed' compare 2 $model -x 8 -v 4 -m 1 -s 0
counts "$row" 4
is digests "$(digests)" 1
has "$screen" '^All four stages .*the same bits'
need 'a time of 0' number "$(awk '$1 == 3 && NF == 9 { print $7 }' "$screen") > 0"
end
begin 'compare.with gradient accumulation, in pairs'
need 'failed' compare 3 $model -x 3 -d 576
is digests "$(digests)" 2
has "$screen" '^With 3 micro-batches: stages 0 and 1'
end
begin 'compare.different bits, a failing run and -z are errors'
printf '#!/bin/sh\ncase "$*" in *"-z %s"*) set -- "$@" --seed 7 ;; esac\nexec "%s" "$@"\n' 3 "$TRAINER" \
    >"$dir/liar"
chmod +x "$dir/liar"
TRAINER=$dir/liar need 'different bits were accepted' not compare 2 $model -x 3
has "$screen" 'digests differ.*bug'
need 'a failing run was accepted' not compare 2 -l x
counts "^train_gpt2_zero: option -l: 'x' is not a number" 1
need '-z was accepted' not compare -z 3
end

png() {
    [ "$(head -c 8 "$1" 2>/dev/null | od -An -tx1 | tr -d ' ')" = 89504e470d0a1a0a ] &&
        [ "$(wc -c <"$1")" -gt 4000 ]
}
plots() {   # NAME FOLDER [PICTURE]
    local picture
    begin "plots.$1"
    need 'failed' scripts/plots.sh "$2" >"$screen" 2>&1
    is "lines, after $(head -n 1 "$screen")" "$(wc -l <"$screen")" 1
    for picture in loss step_time memory ${3:-}; do
        need "no picture: $picture.png" png "$2/$picture.png"
    done
    end
}

test_plots() {
    begin 'plots.without files: an error'
    mkdir "$dir/empty"
    need 'status 0 without a folder' not scripts/plots.sh "$dir/none" >"$screen" 2>&1
    need 'status 0 without a run' not scripts/plots.sh "$dir/empty" >>"$screen" 2>&1
    need 'status 0 with a file' not scripts/plots.sh README.md >>"$screen" 2>&1
    counts '^plots.sh: ' 3
    has "$screen" '^plots.sh: README.md is a file;'
    end
    begin 'plots.titles, and a run that has not finished'
    mkdir -p "$dir/bin" "$dir/two"
    # a fake gnuplot: keeps its commands and the runs' labels, and makes empty pictures
    cat >"$dir/bin/gnuplot" <<END
#!/bin/sh
cat >"$dir/commands"
cp "\$(sed -nE 's/^plot .(.*memory)" .*/\1/p' "$dir/commands")" "$dir/labels"
touch \$(sed -nE 's/^set output "(.*)"/\1/p' "$dir/commands")
END
    chmod +x "$dir/bin/gnuplot"
    for ranks in 1 2; do
        launch $ranks
        need 'a run failed' "${launcher[@]}" "$TRAINER" $model -x 7 -o "$dir/two/run$ranks" >"$screen" 2>&1
    done
    rm "$dir/two/run2/summary.json"
    PATH=$dir/bin:$PATH scripts/plots.sh "$dir/two/run2" >"$screen" 2>&1
    is titles "$(grep -c '^set title .*million parameters (L 2, .*), 2 ranks"' "$dir/commands")" 3
    has "$dir/labels" '^"run2, until step 7" [0-9]+ [0-9]+ [0-9]+$'
    mv "$dir/two" "$dir/two runs" && mkdir "$dir/two runs/no run"
    PATH=$dir/bin:$PATH make plots RUN="$dir/two runs" >"$screen" 2>&1
    has "$screen" "^pictures: $dir/two runs/loss.png"
    has "$dir/commands" '^set title "Loss.nseveral models or numbers of ranks'
    has "$dir/labels" '^"run1" [0-9]+ [0-9]+ [0-9]+$' '^"run2, until'
    sed -i '$d' "$dir/two runs/run1/metrics.jsonl"
    PATH=$dir/bin:$PATH need 'too few steps: status 0' not scripts/plots.sh "$dir/two runs" >"$screen" 2>&1
    counts '^plots.sh: .*run1/metrics.jsonl has fewer than 7 steps' 1
    end
    begin 'plots.a missing folder is an error before anything is installed'
    mkdir "$dir/few"
    ln -s /usr/bin/* "$dir/few" && rm -f "$dir"/few/{gnuplot,apt-get,sudo}
    printf '#!/bin/sh\necho INSTALLS; exit 1\n' | tee "$dir/few/apt-get" >"$dir/few/sudo"
    chmod +x "$dir"/few/{apt-get,sudo}
    need 'status 0' not env PATH="$dir/few" make plots RUN=none >"$screen" 2>&1
    has "$screen" '^plots.sh: none does not exist'
    counts 'missing|INSTALLS' 0
    end
    if ! command -v gnuplot >/dev/null; then skip plots 'no gnuplot (apt-get install gnuplot-nox)'; return; fi
    compare 1 $model -x 12 -v 6 -m 1 -s 0
    plots 'four stages' "$dir/compare"
    plots 'one run' "$dir/compare/stage2"
    printf 's:%d eval:0.%d\n' 6 3000 12 2500 >>"$dir/compare/stage2/main.log"
    plots 'four stages, one with scores' "$dir/compare" hellaswag
    compare 1 $model -x 7 && rm "$dir"/compare/*.png
    plots 'seven steps, no validation' "$dir/compare"
}

# ---- trace_lanes.sh, on a trace with known sums

# event NAME KIND LANE START DURATION [PROCESS]: prints an event, by default of rank 0; times are in seconds
event() {
    printf '{"name":"%s","cat":"%s","ph":"X","pid":%d,"tid":%d00,"ts":%d.000,"dur":%d.000},\n' "$1" "$2" \
        "${6:-1}" $(($3 + 1)) "$4"000000 "$5"000000
}
# Steps of 10 s, starting at 0, 10 and 20. In each: AdamW 0 to 3 (waiting until 1), reads 0 to 4 and 8 to 10,
# writes 2 to 4, gather 3 to 4, copies to the host 4 to 6, to the device 4 to 5, forward 5 to 9 (waiting 6 to
# 7)
make_trace() {
    local at
    printf '[\n{"name":"process_name","ph":"M","pid":1,"args":{"name":"rank 0"}},\n'
    for at in 0 10 20; do
        event 'update' update 0 $at 0
        event 'update block 0' update 4 $at 3
        event 'read block 0' read 3 $at 3; event 'read block 1' read 3 $((at + 1)) 3
        event 'wait block 0' wait 4 $at 1
        event 'write block 0' write 5 $((at + 2)) 2
        event 'to host block 0' 'to host' 6 $((at + 4)) 2
        event 'to device block 0' 'to device' 7 $((at + 4)) 1
        event 'squares block 0' squares 8 $((at + 4)) 1
        event 'gather block 0' gather 1 $((at + 3)) 1
        event 'forward block 0' forward 0 $((at + 5)) 4; event 'wait ' wait 0 $((at + 6)) 1
        event 'wait ' wait 1 $((at + 5)) 4
        event 'read block 2' read 3 $((at + 8)) 2
        event 'step 1' step 9 $at 10
        event 'read block 0' read 3 $at 9 2     # of rank 1
    done
    printf '{"name":"end","ph":"M","pid":1,"args":{}}\n]\n'
}

test_trace_lanes() {
    begin 'trace_lanes.which lanes were busy together'
    make_trace >"$dir/trace.json"
    need 'failed' dev/trace_lanes.sh "$dir/trace.json" >"$screen" 2>&1
    has "$screen" '^2 steps of 10.000 s' 'reads +6.000 s +60 %' 'writes +2.000 s +20 %' \
        'collectives +1.000 s +10 %' 'forward and backward +3.000 s +30 %' \
        'copies to the host +2.000 s +20 %' 'copies to the device +1.000 s +10 %' 'AdamW +2.000 s +20 %' \
        'busy for 6.000 s per step. .* for 17 %,' 'AdamW for 33 %, .* collective for 17 %,' \
        'and nothing else for 33 %' 'idle for 2.000 s per step' \
        'once: 0: 10 %, 1: 30 %, 2: 40 %, 3: 20 %, 4: 0 %'
    grep -v "to host\|to device" "$dir/trace.json" >"$dir/no_copies.json"
    need 'failed' dev/trace_lanes.sh "$dir/no_copies.json" >"$screen" 2>&1
    counts copies 0         # a lane with no work
    head -n 3 "$dir/trace.json" >"$dir/short.json"
    need 'a short trace was accepted' not dev/trace_lanes.sh "$dir/short.json" >"$screen" 2>&1
    has "$screen" 'has fewer than three steps'
    need 'status 0 without a trace' not dev/trace_lanes.sh >"$screen" 2>&1
    has "$screen" '^trace_lanes.sh: usage: '
    end
    if ! command -v gnuplot >/dev/null; then skip trace_lanes 'no gnuplot'; return; fi
    begin 'trace_lanes.the picture'
    need 'failed' dev/trace_lanes.sh "$dir/trace.json" "$dir/step.svg" >"$screen" 2>&1
    # two bars each for reads and for the passes, and one for each of the other lanes
    is bars "$(grep -c '<polygon' "$dir/step.svg")" 9
    end
}

# ---- make demo, in a tree of symlinks

test_demo() {
    local tree=$dir/tree sample command
    begin 'demo.leaves a model, prints the commands that use it, and removes nothing'
    mkdir -p "$tree/scripts"
    cp scripts/demo.sh scripts/mpi_env.sh "$tree/scripts"
    ln -s "$PWD/data" "$tree/data"
    ln -s "$TRAINER" "$tree/train_gpt2_zero"
    need 'STEPS=abc was accepted' not env STEPS=abc "$tree/scripts/demo.sh" >"$screen" 2>&1
    has "$screen" '^STEPS=abc: not a number of steps$'      # and leaves no folder: the next is build/demo
    need 'check failed' env STEPS=2 "$tree/scripts/demo.sh" check >"$screen" 2>&1
    is 'what check prints' "$(<"$screen")" ''               # it leaves no folder either
    need 'failed' env STEPS=2 "$tree/scripts/demo.sh" >"$screen" 2>&1
    need 'no model' [ -e "$tree/build/demo/model_00000002.bin" ]
    sample=$(sed -n '/^sample from/{n;p}' "$screen")
    sample=$(cd "$tree" && bash -c "$sample" 2>"$dir/errors")
    is 'the sample' "${sample:0:16}" 'Once upon a time'
    command=$(sed -n '/^continue for 1 more/{n;p}' "$screen")
    (cd "$tree" && bash -c "$command") >"$dir/resumed" 2>&1
    has "$dir/resumed" '^resuming at step 2$'
    command=${command/#  /} command=${command% --progress few}
    need "README.md has another command than $command" grep -qF "\`${command/%3/3200}\`" README.md
    need 'failed again' env STEPS=1 "$tree/scripts/demo.sh" >"$screen" 2>&1
    is 'models' "$(cd "$tree/build" && echo demo*/model_*)" \
        'demo.2/model_00000001.bin demo/model_00000002.bin demo/model_00000003.bin'
    end
    begin 'demo.a folder in which none can be created: an error'
    mkdir -p "$dir/bare"
    ln -s /proc "$dir/bare/build"
    cp -r "$tree/scripts" "$dir/bare"
    need 'status 0' not timeout -k 2 20 "$dir/bare/scripts/demo.sh" >"$screen" 2>&1
    has "$screen" '^mkdir: .*build/demo'
    end
}

# ----

if command -v script >/dev/null; then test_terminal; else skip terminal 'no script (util-linux)'; fi
test_plots
test_trace_lanes
test_demo
finish terminal
