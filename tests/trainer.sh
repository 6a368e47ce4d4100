#!/usr/bin/env bash
# The trainer as a user meets it: bits, resume, files, traffic, memory, bad input, dying ranks. Usage:
# tests/trainer.sh TRAINER [GROUP]... Small models, a few steps, all files in a folder of its own; every
# command has a time limit, and one that reaches it has failed.
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1
shift
. scripts/mpi_env.sh

. tests/cases.sh

# ---- cases and runs

small=(-e l2h2c32v257t32 -b 2 -x 3 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --hash full)
data=(--device cpu -i data/stories_train.bin -j data/stories_val.bin --tokenizer data/stories_tokenizer.bin)

# run NP LIMIT ARGUMENT...: the trainer on NP ranks (0: without mpirun) for LIMIT seconds at most; each rank
# notes its process id. $wrap is shell code that a rank runs first; it may use $rank. $bind: to what mpirun
# binds ranks.
wrap='' bind=''
run() {
    local np=$1 limit=$2 launcher=()
    shift 2
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe ${bind:+--bind-to "$bind"} -np "$np")
    # shellcheck disable=SC2016
    timeout -k 2 "$limit" "${launcher[@]}" bash \
        -c "rank=\${OMPI_COMM_WORLD_RANK:-0}; echo \$\$ >'$dir/pid.'\$rank; $wrap
        exec \"\$0\" \"\$@\"" "$trainer" "${data[@]}" "$@" </dev/null
}
# train NP NAME ARGUMENT...: a short run that must succeed, with its output folder and its screen under NAME.
train() {
    local np=$1 out=$dir/$2 status
    shift 2
    # a run that does not resume wants a folder without checkpoints
    case " $* " in *' -y 1 '*) ;; *) rm -rf "$out" ;; esac
    run "$np" 30 "${small[@]}" -o "$out" "$@" >"$out.screen" 2>&1; status=$?
    [ $status = 0 ] && return 0
    echo "--- status $status of: $*"; tail -n 12 "$out.screen"
    return 1
}
# of a key of a run's summary
value() { sed -nE "s/.*\"$2\": \"?([^\",{}]+).*/\1/p" "$dir/$1/summary.json"; }
result() {
    echo "$(value "$1" params_hash) $(value "$1" state_hash) $(value "$1" loss) $(value "$1" grad_norm)"
}
bytes_of() { stat -c %s "$1"; }
# MiB in the line under the memory table
table() { sed -nE "s/.*$2 ([0-9.]+)[, ].*/\1/p" "$dir/$1.screen" | tail -n 1; }

# ---- bits

# same NAME NP COMMON VARIANT...: every variant must end with the bits of the first.
same() {
    local np=$2 common=$3 first='' now variant
    begin "$1"
    shift 3
    for variant in "$@"; do
        # shellcheck disable=SC2086
        need "$variant: did not run" train "$np" bits $common $variant
        now=$(result bits)
        need "$variant: no digests" [ "${#now}" -gt 40 ]
        first=${first:-$now}
        need "$variant: $now, the first had $first" [ "$now" = "$first" ]
    done
    end
}

close_to() { number "($1 - $2) ^ 2 <= ($3 * $2) ^ 2"; }

# Every option that must not change the bits, in fp32 or bf16. tests/mpi_zero.c has them all in each dtype.
test_bits() {
    local dtype
    local stages=('-z 0 --naive 1' '-z 0' '-z 1' '-z 2' '-z 3 --overlap 1')
    # shellcheck disable=SC2034
    local fp32=('-z 0 --overlap 1' '-z 2 --overlap 1' '-z 2 --bucket 1' '-z 3 --bucket 1 --overlap 1'
        '-z 3 --prefetch 0' '-z 1 --messages 1' '-z 3 --window 65536' '-z 3 --comm-type fp32 --overlap 1')
    # shellcheck disable=SC2034
    local bf16=('-z 3' '-z 1 --overlap 1' '-z 2 --bucket 1e9' '-z 3 --prefetch 3 --overlap 1'
        '-z 3 --messages 1 --overlap 1' '-z 0 --comm-type fp32')
    for dtype in fp32 bf16; do
        local -n variants=$dtype
        same "bits.$dtype.2 ranks" 2 "--dtype $dtype" "${stages[@]}" "${variants[@]}"
        # Four blocks: level 3 runs three of them again, and two of the inputs would go to the host.
        same "bits.$dtype.recompute" 2 "--dtype $dtype -e l4h2c32v257t32" '-z 0 --naive 1 -r 0' '-z 0 -r 3' \
            '-z 2 -r 3 --overlap 1' '-z 3 -r 3 --prefetch 0' '-z 3 --cpu-checkpointing -v 1 -m 2 -s 1 -g 4'
        same "bits.$dtype.accumulation, stages 0 and 1" 2 "--dtype $dtype -d 256" '-z 0 --naive 1' '-z 0' \
            '-z 1 --overlap 1'
        cp -r "$dir/bits" "$dir/low"
        same "bits.$dtype.accumulation, stages 2 and 3" 2 "--dtype $dtype -d 256" '-z 2' \
            '-z 3 --overlap 1 --bucket 1' '-z 3 -r 3'
        begin "bits.$dtype.accumulation, across the pairs"
        need "losses $(value low loss) and $(value bits loss)" close_to "$(value low loss)" \
            "$(value bits loss)" "$([ $dtype = fp32 ] && echo 1e-5 || echo 1e-3)"
        rm -rf "$dir/low"
        end
    done
    same 'bits.bf16.3 ranks' 3 '--dtype bf16' "${stages[@]}" '-z 3 --messages 1'
    same 'bits.poison' 2 '-z 3' '-r 1' '-r 0'
    ZERO_POISON=1 same 'bits.poison is never read' 2 '--dtype fp32' '-z 0 --naive 1' '-z 3' \
        '-z 2 --overlap 1 -r 2' '-z 1' '-z 3 -r 3'
    same 'bits.validation and samples change nothing' 2 '-z 3' '-v 0' '-v 1 -m 2 -s 1 -g 4' \
        '-v 1 -m 1 --overlap 1'
    begin 'bits.two ranks see what one sees in two micro-batches'
    need 'two ranks did not run' train 2 two --dtype fp32 -x 1
    need 'one rank did not run' train 0 one --dtype fp32 -x 1 -d 128
    need "losses $(value two loss) and $(value one loss)" close_to "$(value two loss)" "$(value one loss)" \
        1e-6
    end
}

# ---- resume

# the complete ones
checkpoints() { (cd "$dir/$1" && echo step_*/manifest.json | sed 's,/manifest.json,,g'); }
# states RUN STEP RANK: the file of a rank
states() { echo "$dir/$1/step_$(printf %08d "$2")/rank$(printf %05d "$3")"-*.states; }
flip_byte() {   # FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059
    printf "\\$(printf %o $((byte ^ 64)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

test_resume() {
    local dtype log before np pattern
    for dtype in fp32 bf16; do
        begin "resume.$dtype.the same bits"
        need 'ten steps did not run' train 2 straight --dtype $dtype -z 2 -x 10
        need 'ten steps with checkpoints did not run' train 2 halves --dtype $dtype -z 2 -x 10 -n 5
        need 'checkpoints changed the numbers' [ "$(result halves)" = "$(result straight)" ]
        # as after a crash while step 10 was being saved: the one before counts
        rm -f "$dir"/halves/step_00000010/manifest.json
        need 'the last five did not run' train 2 halves --dtype $dtype -z 3 -x 10 -n 5 -y 1
        need 'it did not start at step 5' grep -q 'resuming at step 5' "$dir/halves.screen"
        need "$(result halves), straight $(result straight)" [ "$(result halves)" = "$(result straight)" ]
        end
    done

    begin 'resume.logs continue'
    need 'ten steps did not run' train 2 straight -k constant -x 10
    need 'the first five did not run' train 2 halves2 -k constant -x 5 -n 5
    need 'the last five did not run' train 2 halves2 -k constant -x 10 -n 5 -y 1
    need "$(result halves2), straight $(result straight)" [ "$(result halves2)" = "$(result straight)" ]
    need 'main.log differs' cmp -s "$dir/straight/main.log" "$dir/halves2/main.log"
    for log in straight halves2; do sed 's/, "ms.*//' "$dir/$log/metrics.jsonl" >"$dir/$log.metrics"; done
    need 'metrics.jsonl differs' cmp -s "$dir/straight.metrics" "$dir/halves2.metrics"
    end

    begin 'resume.checkpoints are not overwritten without -y'
    need 'it was not refused' not run 2 30 "${small[@]}" -o "$dir/halves2" -x 1 >"$dir/again.screen" 2>&1
    need 'the message does not say why' grep -q 'holds a checkpoint at step 10; -y 1 resumes it' \
        "$dir/again.screen"
    need 'the log was touched' cmp -s "$dir/straight/main.log" "$dir/halves2/main.log"
    end

    begin 'resume.old checkpoints go'
    need 'did not run' train 2 kept -x 8 -n 2 -nk 2
    need "left: $(checkpoints kept)" [ "$(checkpoints kept)" = 'step_00000006 step_00000008' ]
    need 'files of old ones are left' [ "$(cd "$dir/kept" && echo model_* step_*)" = \
        'model_00000006.bin model_00000008.bin step_00000006 step_00000008' ]
    # as a save that has died leaves it, and one of a later step, which is none of this run's business
    rm "$dir"/kept/step_00000006/manifest.json
    cp -r "$dir/kept/step_00000006" "$dir/kept/step_00000099"
    need 'did not go on' train 2 kept -x 10 -n 2 -nk 2 -y 1
    need "left: $(checkpoints kept)" [ "$(checkpoints kept)" = 'step_00000008 step_00000010' ]
    need 'what a dead save has left is there' [ "$(cd "$dir/kept" && echo model_* step_*)" = \
        'model_00000008.bin model_00000010.bin step_00000008 step_00000010 step_00000099' ]
    need 'did not go on with -nk 1' train 2 kept -x 16 -n 3 -nk 1 -y 1
    need "left: $(checkpoints kept)" [ "$(checkpoints kept)" = 'step_00000016' ]
    need 'did not run with -nm' train 2 major -x 8 -n 2 -nk 1 -nm 4
    need "left with -nm 4: $(checkpoints major)" [ "$(checkpoints major)" = 'step_00000004 step_00000008' ]
    end

    begin 'resume.other ranks'
    need 'ten steps did not run' train 2 straight -k constant --dtype fp32 -b 6 -x 10
    need 'the first five did not run' train 2 first -k constant --dtype fp32 -b 6 -x 5 -n 5
    # The step keeps its 384 tokens, whatever the ranks make of them.
    for np in '0:-b 6' '1:-b 3' '3:-b 4' '3:-b 2 -z 1' '2:-b 2 -z 0'; do
        cp -r "$dir/first" "$dir/other"
        # shellcheck disable=SC2086
        need "$np: did not run" train ${np%%:*} other -k constant --dtype fp32 ${np#*:} -x 10 -y 1
        need "$np: did not start at step 5" grep -q 'resuming at step 5' "$dir/other.screen"
        need "$np: loss $(value other loss), straight $(value straight loss)" close_to "$(value other loss)" \
            "$(value straight loss)" 1e-5
        rm -rf "$dir/other"
    done
    need 'a batch that does not divide was taken' not run 3 30 "${small[@]}" -b 6 -x 10 -y 1 -o "$dir/first" \
        >"$dir/other.screen" 2>&1
    need "$(tail -n 1 "$dir/other.screen")" grep -q 'option -d 384, which the checkpoint was saved with' \
        "$dir/other.screen"
    end

    begin 'resume.another dtype'
    cp -r "$dir/first" "$dir/other"
    need 'did not run' train 2 other -k constant --dtype bf16 -b 6 -x 10 -y 1
    need 'it is not told' grep -q 'resuming with --dtype bf16; .* was saved with fp32' "$dir/other.screen"
    need "loss $(value other loss), straight $(value straight loss)" close_to "$(value other loss)" \
        "$(value straight loss)" 1e-2
    rm -rf "$dir/other"
    end

    if command -v python3 >/dev/null; then
        begin 'resume.a program that knows docs/formats.md reads it'
        need 'it is refused' dev/read_checkpoint.py "$dir/first/step_00000005" >/dev/null
        dev/read_checkpoint.py "$dir/first/step_00000005" master >"$dir/masters"
        need 'other masters than parameters' cmp -s "$dir/masters" \
            <(tail -c +1025 "$dir/first/model_00000005.bin")
        end
    else
        skip 'resume.a program that knows docs/formats.md reads it' 'no python3'
    fi

    begin 'resume.one checkpoint of another run'
    need 'did not run' train 2 branch -k constant --dtype fp32 -b 6 -x 10 --resume "$dir/first/step_00000005"
    need "$(result branch), straight $(result straight)" [ "$(result branch)" = "$(result straight)" ]
    end

    need 'did not run' train 2 saved -x 4 -n 2
    before=$(cd "$dir/saved" && sha256sum step_00000002/*)
    cp -r "$dir/saved" "$dir/good"
    restore() { rm -rf "$dir/saved" && cp -r "$dir/good" "$dir/saved"; }
    # falls_back NAME PATTERN...: step 4 cannot be used; the run says why and ends as one from step 2 does.
    falls_back() {
        local pattern
        begin "resume.$1"
        shift
        need 'it did not run' train 2 saved -x 4 -y 1
        for pattern in "$@"; do
            need "no '$pattern': $(grep -a older "$dir/saved.screen")" grep -qE "$pattern" "$dir/saved.screen"
        done
        need 'it did not start at step 2' grep -q 'resuming at step 2' "$dir/saved.screen"
        need "$(result saved), good $(result good)" [ "$(result saved)" = "$(result good)" ]
        end
        restore
    }
    local older='looking for an older checkpoint'
    truncate -s -100 "$(states saved 4 1)"
    falls_back 'a file cut short' "step_00000004/rank00001-.*truncated or damaged; $older" 'of step 2'
    flip_byte "$(states saved 4 1)" 5000
    falls_back 'one bit wrong' "rank00001-.*: damaged: the block of [0-9]+ bytes at offset 0 .*; $older"
    rm "$(states saved 4 0)"
    falls_back 'a file gone' "step_00000004/rank00000-.*: No such file.*; $older"
    cp "$dir"/saved/step_00000002/rank00001-* "$(states saved 4 1)"
    falls_back 'a file of another step' "step_00000004/rank00001-.*damaged: .*; $older"
    flip_byte "$dir/saved/step_00000004/manifest.json" 300
    falls_back 'one bit wrong in the manifest' "step_00000004/manifest.json: damaged: .*; $older"
    truncate -s 1000 "$dir/saved/step_00000004/manifest.json"
    falls_back 'a manifest cut short' "step_00000004/manifest.json: damaged: .*; $older"
    cp "$dir/saved/step_00000002/manifest.json" "$dir/saved/step_00000004/manifest.json"
    falls_back 'a manifest of another step' "step_00000004: is of step 2; $older"
    rm "$dir/saved/step_00000004/manifest.json"
    falls_back 'a save that did not end'

    flip_byte "$dir/saved/step_00000004/manifest.json" 300
    flip_byte "$(states saved 2 0)" 300
    refused 'resume.no checkpoint is good' 2 'step_00000002/rank00000-.*damaged' \
        'there is no older checkpoint that is good' -- -x 6 -y 1 -o "$dir/saved"
    begin 'resume.what cannot be used is still there'
    need "checkpoints: $(checkpoints saved)" [ "$(checkpoints saved)" = 'step_00000002 step_00000004' ]
    end
    restore

    begin 'resume.names that are none, and model files, count for nothing'
    cp -r "$dir/saved/step_00000004" "$dir/saved/step_00000009.bak"
    cp -r "$dir/saved/step_00000004" "$dir/saved/step_100000000"
    mv "$dir/saved/step_100000000" "$dir/saved/step_0100000000"
    touch "$dir/saved/DONE_00000009.bak"
    echo none >"$dir/saved/model_00000004.bin"
    need 'it did not run' train 2 saved -x 4 -y 1
    need 'it did not start at step 4' grep -q 'resuming at step 4' "$dir/saved.screen"
    need "$(result saved), good $(result good)" [ "$(value saved state_hash)" = "$(value good state_hash)" ]
    end
    restore

    begin 'resume.what is set otherwise is told'
    need 'it did not run' train 2 saved -x 5 -y 1 -l 1e-3 --clip 0.5 --seed 7 -z 1
    for pattern in '-x 5; .*/step_00000004 was saved with 4' '-l 0.001; .* was saved with 0.003' \
        '--clip 0.5; .* was saved with 1' '--seed 7; .* was saved with 42'; do
        need "no '$pattern'" grep -qE -- "^resuming with $pattern$" "$dir/saved.screen"
    done
    need 'more is told' [ "$(grep -c '^resuming with' "$dir/saved.screen")" = 4 ]
    end
    restore
    local going=(-x 5 -y 1 -o "$dir/saved")
    refused 'resume.another model' 2 'option -e l1h2c32v257t32: .*step_00000004 is of another model, L 2' \
        -- "${going[@]}" -e l1h2c32v257t32
    refused 'resume.other data' 2 'option -i data/stories_val.bin: shard 0 .* and that of .*had [0-9]+' \
        -- "${going[@]}" -i data/stories_val.bin
    refused 'resume.other steps' 2 'option -d 256: the steps of .*step_00000004 have 128 tokens' -- \
        "${going[@]}" -d 256
    refused 'resume.other rows' 2 'option -t 16: the rows of .*step_00000004 have 32 tokens' -- \
        "${going[@]}" -t 16 -b 4
    begin 'resume.anyway'
    need 'it did not run' train 2 saved -x 5 -y 1 -e l1h2c32v257t32 -i data/stories_val.bin -d 256 \
        --resume-anyway
    need 'it is not told' [ "$(grep -c '^resuming anyway: option' "$dir/saved.screen")" = 3 ]
    end
    restore

    begin 'resume.the checkpoint before is untouched'
    need 'it changed' [ "$(cd "$dir/saved" && sha256sum step_00000002/*)" = "$before" ]
    end
    refused 'resume.no folder at --resume' 2 'nowhere/manifest.json: No such file' -- -x 6 \
        --resume "$dir/nowhere"
}

# ---- model files, outputs

test_files() {
    local dtype version
    for dtype in fp32 bf16; do
        begin "files.$dtype.a saved model starts a run"
        version=$([ $dtype = fp32 ] && echo 3 || echo 5)
        need 'did not run' train 2 first --dtype $dtype -x 3 -n 3 -v 3 -m 3
        need 'its header is not llm.c'\''s' [ \
            "$(od -An -tu4 -N 32 -w32 "$dir/first/model_00000003.bin" | tr -s ' ')" \
            = " 20240326 $version 32 257 2 2 32 384" ]
        need 'did not start from it' train 2 second --dtype $dtype -e "$dir/first/model_00000003.bin" -x 0 \
            -v 1 -m 3
        need "validation loss $(value second val_loss), saved at $(value first val_loss)" [ \
            "$(value second val_loss)" = "$(value first val_loss)" ]
        need 'other parameters' [ "$(value second params_hash)" = "$(value first params_hash)" ]
        end
    done
    begin 'files.a bf16 model starts a run in fp32'
    need 'did not start from it' train 2 second --dtype fp32 -e "$dir/first/model_00000003.bin" -x 0 -v 1 -m 3
    need "validation loss $(value second val_loss), in bf16 $(value first val_loss)" close_to \
        "$(value second val_loss)" "$(value first val_loss)" 1e-3
    end
}

# Strings, numbers and names become letters, complete objects one letter; what is left of valid JSON is that
# one.
valid_json() {
    [ "$(tr -d '\n' <"$1" | sed -E \
        's/"[^"\\]*"/S/g; s/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/V/g; s/null|true|false/V/g; s/ //g
        :again; s/S:[SV]/P/g; s/\{P(,P)*\}/V/g; tagain')" = V ]
}

test_outputs() {
    local key line n=0
    begin 'outputs.summary.json'
    need 'did not run' train 2 out -x 4 -v 2 -m 2 -z 3
    need 'is not valid JSON' valid_json "$dir/out/summary.json"
    for key in steps ranks stage dtype device loss val_loss grad_norm params_hash state_hash tokens_per_s \
        model_state_bytes working_bytes \
        activation_bytes comm_bytes all_gather reduce_scatter all_reduce host_bytes nvme_bytes; do
        need "lacks $key" grep -q "\"$key\": " "$dir/out/summary.json"
    done
    need 'wrong facts' [ "$(value out steps) $(value out ranks) $(value out stage) $(value out \
        device) $(value out host_bytes)" = '4 2 3 cpu 0' ]
    need 'a speed of 0' number "$(value out tokens_per_s) > 0"
    need 'temporary files are left' [ -z "$(ls "$dir"/out/*.tmp 2>/dev/null)" ]
    end
    begin 'outputs.metrics.jsonl'
    need 'not a line a step' [ "$(wc -l <"$dir/out/metrics.jsonl")" = 4 ]
    while read -r line; do
        n=$((n + 1))
        echo "$line" >"$dir/line"
        need "line $n is not valid JSON" valid_json "$dir/line"
        need "line $n: $line" grep \
            -qE \
            "^\{\"step\": $n, \"loss\": [0-9.]+, \"grad_norm\": [0-9.]+, \"lr\": [0-9.e-]+, \"ms\": "\
"[0-9.]+, \"tokens_per_s\": [0-9.]+\}$" "$dir/line"
    done <"$dir/out/metrics.jsonl"
    need 'the last loss is not that of the summary' grep -qF "\"loss\": $(value out loss)," "$dir/line"
    end
    begin 'outputs.main.log as llm.c writes it'
    need 'lines' [ "$(cut -d' ' -f1,2 "$dir/out/main.log" | cut -d: -f1,2 | tr '\n' ' ')" \
        = 's:0 tel s:0 trl s:1 trl s:2 tel s:2 trl s:3 trl s:4 tel ' ]
    need 'format' not grep -qvE \
        '^s:[0-9]+ (tel:[0-9]+\.[0-9]{4}|trl:[0-9]+\.[0-9]{4} lr:0\.[0-9]{6} norm:[0-9]+\.[0-9]{2})$' \
        "$dir/out/main.log"
    end
    begin 'outputs.never validates, never samples'
    need 'did not run' train 2 quiet -v 0 -s 0
    need 'it did' not grep -qE 'val loss|generating' "$dir/quiet.screen" "$dir/quiet/main.log"
    need 'it has a validation loss' [ "$(value quiet val_loss)" = null ]
    need 'did not run with -v 1 -s 1' train 2 loud -v 1 -m 1 -s 1 -g 4
    need 'with -v 1 it did not' [ "$(grep -c 'val loss' "$dir/loud.screen")" = 4 ]
    need 'with -s 1 it did not' [ "$(grep -c 'generating' "$dir/loud.screen")" = 3 ]
    end
    begin 'outputs.options without effect say so, once'
    need 'did not run' train 2 out -ge 1 -f 1 -lg 5 --cpu-checkpointing
    for key in '-ge 1' '-f 1' '-lg 5' '--cpu-checkpointing'; do
        need "$key" [ "$(grep -c -- "option $key: no effect" "$dir/out.screen")" = 1 ]
    done
    end
}

# ---- traffic

# Elements of all shards of a rank for l2h2c32v257t32: tensors begin at multiples of 128 elements, shards are
# multiples of 128.
shard_elems() {
    awk -v N="$1" 'function up(x) { return int((x + 127) / 128) * 128 }
        function unit(list,   n, t, i, end) {
            n = split(list, t, " ")
            for (i = 1; i <= n; i++) end = up(end + t[i])
            return up(int((end + N - 1) / N))
        }
        BEGIN {
            C = 32
            layer = C " " C " " 3*C*C " " 3*C " " C*C " " C " " C " " C " " 4*C*C " " 4*C " " 4*C*C " " C
            print unit(384 * C " " 32 * C " " C " " C) + 2 * unit(layer)
        }'
}

test_traffic() {
    local stage A np dtype size sum sent factor
    for np in 2 3; do for dtype in fp32 bf16; do
        size=$([ $dtype = fp32 ] && echo 4 || echo 2)
        # of ranks, types and micro-batches each two meet
        A=$([ $np$dtype = 2fp32 ] || [ $np$dtype = 3bf16 ] && echo 1 || echo 3)
        begin "traffic.$dtype.$np ranks, $A micro-batches"
        for stage in 0 1 2 3; do
            need "stage $stage did not run" train $np sent -z $stage --dtype $dtype -d $((2 * 32 * np * A)) \
                -x 2 -v 2 -m 1 -n 2
            sent=$(($(value sent all_gather) + $(value sent reduce_scatter) + $(value sent all_reduce)))
            # bytes an element of each half of an all-reduce, or reduce-scatter and gather; sums of
            # micro-batches are fp32
            sum=$([ $A = 1 ] && echo "$size" || echo 4)
            case $stage in 0) factor=$((2 * sum)) ;; 1) factor=$((sum + size)) ;; 2) \
                factor=$(((A + 1) * size)) ;; 3) factor=$((3 * A * size)) ;; esac
            need "stage $stage with $A micro-batches: $sent bytes, formula $((factor * (np - 1) * \
                $(shard_elems $np)))" \
                [ "$sent" = $((factor * (np - 1) * $(shard_elems $np))) ]
        done
        end
    done; done
    begin 'traffic.bf16.fp32 on the wire'
    for stage in 0 1 2 3; do
        need "stage $stage did not run" train 2 sent -z $stage --dtype bf16 -x 2 --comm-type fp32
        sent=$(($(value sent all_gather) + $(value sent reduce_scatter) + $(value sent all_reduce)))
        factor=$([ $stage = 3 ] && echo 8 || echo 6)        # bytes an element: 4 to the sum, 2 in a gather
        need "stage $stage: $sent bytes, formula $((factor * $(shard_elems 2)))" [ "$sent" \
            = $((factor * $(shard_elems 2))) ]
        need 'not told' grep -q '^wire .*fp32' "$dir/sent.screen"
    done
    end
    begin 'traffic.a block that runs again is not gathered again'
    for stage in 2 3; do
        need "stage $stage did not run" train 2 once -z $stage -x 2 -d 256 -r 0
        need "stage $stage, -r 3: did not run" train 2 again -z $stage -x 2 -d 256 -r 3
        need "gathers of $(value again all_gather) bytes, without recompute $(value once all_gather)" \
            [ "$(value again all_gather)" = "$(value once all_gather)" ]
    done
    end
    begin 'traffic.one rank'
    need 'did not run' train 0 sent -x 2
    need 'sends' [ $(($(value sent all_gather) + $(value sent reduce_scatter) + $(value sent all_reduce))) \
        = 0 ]
    end
}

# ---- memory

# pss NP NAME ARGUMENT...: trains, and leaves in $peak the largest Pss of a rank in KiB, looked at from
# outside. Of a page that ranks share each has its part of it only while all have it: a look counts if every
# rank still has the window after it. At the end of a run the last rank to go has the others' windows and the
# libraries all to itself.
pss() {
    local np=$1 out=$2 job pid key kib r most
    shift 2
    peak=0
    rm -f "$dir"/pid.*
    train "$np" "$out" "$@" & job=$!
    while kill -0 $job 2>/dev/null; do
        most=0
        for ((r = 0; r < np; r++)); do
            read -r pid 2>/dev/null <"$dir/pid.$r" || continue
            while read -r key kib _; do
                [ "$key" = Pss: ] && [ "$kib" -gt "$most" ] && most=$kib
            done 2>/dev/null <"/proc/$pid/smaps_rollup"
        done
        for ((r = 0; r < np; r++)); do
            read -r pid 2>/dev/null <"$dir/pid.$r" && grep -qs 'memfd:llmc_zero' "/proc/$pid/maps" || most=0
        done
        [ "$most" -gt "$peak" ] && peak=$most
        sleep 0.02
    done
    wait $job
}

# The program itself, its libraries, MPI and the products that oneDNN has compiled are no part of the table.
# The smallest model, which has all of them, is their measure: what it takes beyond its own table is allowed
# to the large one too. Its window is small because pages of it that are never touched would be in its table
# and not in its Pss.
test_memory() {
    local setting stage baseline together limit
    if ! grep -qs '^Pss:' /proc/self/smaps_rollup; then skip memory 'no /proc/PID/smaps_rollup'; return; fi
    begin 'memory.the smallest model'
    local most=0
    for _ in 1 2 3; do          # short runs: one look in time may miss the moment
        need 'did not run' pss 4 least -e l1h4c64v257t32 -b 1 -x 300 --dtype fp32 -z 0 --hash params \
            --window 65536
        [ "$peak" -gt $most ] && most=$peak
    done
    baseline=$(awk "BEGIN { print int($most - 1024 * $(table least together)) }")
    need "$baseline KiB beyond its table: more than a program with MPI and oneDNN needs" [ "$baseline" \
        -le 16384 ]
    end
    # stage, options
    for setting in '0 -b 1 -x 12' '3 -b 1 -x 12' '3 -b 32 -x 2 -r 0' '3 -b 32 -x 2 -r 3'; do
        stage=${setting%% *}
        begin "memory.stage $setting"
        # shellcheck disable=SC2086
        need 'did not run' pss 4 large -e l6h4c256v257t32 --dtype fp32 --hash params -z $setting
        together=$(table large together)
        limit=$(awk "BEGIN { print int(1024 * $together * 1.1 + $baseline) }")
        echo "   stage $setting: Pss of a rank at most $peak KiB, table $together MiB, the program itself "\
"$baseline KiB"
        need "a rank takes $peak KiB, the table has $together MiB, allowed are $limit KiB" [ "$peak" \
            -le "$limit" ]
        need "$peak KiB are less than the model states" [ $((peak * 1024)) \
            -ge "$(value large model_state_bytes)" ]
        end
    done
}

# ---- plan

# plan NAME ARGUMENT...: what --plan prints, under NAME. It may take no more memory than a small program does,
# and it reads no data.
plan() {
    local name=$1
    shift
    (
        ulimit -v 1500000
        timeout 10 "$trainer" "${data[@]}" "${small[@]}" -i nowhere -j nowhere --plan "$@"
    ) >"$dir/$name.screen" 2>&1
}
memory_table() { sed -n '/^memory of a rank/,/plain data parallel/p' "$dir/$1.screen"; }
in_plan() { grep -qE -- "$2" "$dir/$1.screen"; }

# same_table NAME NP ARGUMENT...: the plan's table is the one that a run prints, and so is what it sends.
# The model is so large that every line shows in tenths of a MiB.
same_table() {
    local np=$2 gathers
    local larger=(-e l3h4c256v257t64 -b 8)
    begin "$1"
    shift 2
    need 'did not run' train "$np" planned "${larger[@]}" -x 0 "$@"
    need 'no plan' plan plan --plan-ranks "$np" "${larger[@]}" "$@"
    need 'no table' [ "$(memory_table plan | wc -l)" -gt 8 ]
    need "tables differ: $(diff <(memory_table planned) <(memory_table plan) | head -n 4 | tr '\n' ' ')" \
        [ "$(memory_table planned)" = "$(memory_table plan)" ]
    gathers=$(sed -nE 's/^traffic .*gathers ([0-9.]+).*/\1/p' "$dir/planned.screen")
    need "a step's gathers are not the run's, $gathers" in_plan plan "step: gathers +$gathers\$"
    end
}

test_plan() {
    local np stage
    for np in 1 2 3; do
        for stage in 0 1 2 3; do same_table "plan.stage $stage on $np ranks" $np --dtype bf16 -z $stage; done
    done
    same_table 'plan.micro-batches, buckets, messages' 2 --dtype fp32 -z 2 -d 3072 --bucket 1e6 \
        --messages 1 -r 2 --trace "$dir/planned.json"
    same_table 'plan.samples, which keep keys and values' 2 --dtype bf16 -z 3 -s 1
    same_table 'plan.fp32 on the wire, prefetch' 3 --dtype bf16 -z 3 --comm-type fp32 --prefetch 2 -r 0
    same_table 'plan.blocks recomputed' 2 --dtype bf16 -r 3

    # 124475904 parameters with GPT-2's padded vocabulary: 7P = 831.0 MiB.
    begin 'plan.formulas'
    need 'no plan in bf16' plan formulas -e d12 -t 64 --dtype bf16 --plan-ranks 4 -z 1
    need '16P' in_plan formulas '^  0  16P +1899\.4 +1899\.4 '
    need '4P + 12P/N' in_plan formulas '^  1  4P \+ 12P/N +831\.0 +831\.0 '
    need '2P + 14P/N' in_plan formulas '^  2  2P \+ 14P/N +652\.9 +652\.9 '
    need '16P/N' in_plan formulas '^  3  16P/N +474\.8 +474\.9 '
    need 'no plan in fp32' plan formulas -e d12 -t 64 --dtype fp32 --plan-ranks 4
    need '8P + 8P/N' in_plan formulas '^  1  8P \+ 8P/N +1187\.1 '
    need 'no plan without masters' plan formulas -e d12 -t 64 --dtype bf16 -w 0 -d 1024 --plan-ranks 4
    need '6P + 8P/N' in_plan formulas '^  1  6P \+ 8P/N +949\.7 '
    end

    begin 'plan.131 billion parameters on 128 ranks'
    local start=$SECONDS
    need 'no plan' plan large -e l105h96c10176v50257t2048 -t 2048 -b 1 --dtype bf16 \
        --plan-ranks 128 -pg 8 -o "$dir/not_made"
    need "took $((SECONDS - start)) s" [ $((SECONDS - start)) -le 3 ]
    need 'not its parameters' in_plan large ' 131020874304 parameters'
    need 'not its states' in_plan large '^  3  16P/N +15618\.9 +15619\.1 '
    need 'nothing goes to other hosts' in_plan large 'step: reductions +247953\.14 +234286\.44$'
    need 'a folder was made' [ ! -e "$dir/not_made" ]
    end

    begin 'plan.of a model file'
    need 'no model file' train 1 planned -x 1 -n 1
    need 'no plan' plan file -e "$dir/planned/model_00000001.bin" --plan-ranks 2
    need 'no plan' plan descriptor --plan-ranks 2
    need 'another table' [ "$(memory_table file)" = "$(memory_table descriptor)" ]
    end

    begin 'plan.for the ranks that were started'
    run 2 20 "${small[@]}" -z 1 --plan >"$dir/started.screen" 2>&1
    need 'not once, for two ranks' [ "$(grep -c '^plan .* for 2 ranks' "$dir/started.screen")" = 1 ]
    end
    refused 'plan.--plan-ranks alone' 0 '--plan-ranks 4' 'add --plan' -- --plan-ranks 4
    refused 'plan.window too small for the ranks' 0 'window_bytes 65536: too small for 1000 ranks' -- \
        --plan --plan-ranks 1000 --window 65536
}

# ---- prompts

# answer NP NAME ARGUMENT...: a run of --prompts that must succeed, with its output folder and its screen
# under NAME.
answer() {
    local np=$1 out=$dir/$2 status
    shift 2
    rm -rf "$out"
    run "$np" 30 "${small[@]}" --prompts "$dir/prompts" -g 12 -o "$out" "$@" >"$out.screen" 2>&1; status=$?
    [ $status = 0 ] && return 0
    echo "--- status $status of: $*"; tail -n 12 "$out.screen"
    return 1
}
answers() { cat "$dir/$1/answers.jsonl"; }
tokens() { sed -nE "$2s/.*\"tokens\": \[(.*)\]\}\$/\1/p" "$dir/$1/answers.jsonl"; }  # NAME LINE
figure() { sed -nE "s/.*\"$2\": \"?([^\",}]*).*/\1/p" "$dir/$1/inference.json"; }
# the text between the last two lines of dashes
text() { sed -n '/^---$/,/^---$/p' "$dir/$1.screen" | tac | sed '1d; /^---$/,$d' | tac; }

test_prompts() {
    local dtype np stage i line first seed trained=(-e l2h2c64v257t64 -t 64)
    printf '%s\n' 'Once upon a time' 'The' '' 'Lily liked to play with her' 'A dog was' >"$dir/prompts"
    for dtype in fp32 bf16; do
        begin "prompts.$dtype.the same answers on any ranks, at any stage"
        need 'no model' train 2 model "${trained[@]}" -b 8 -x 60 -l 1e-2 -n 60 --dtype $dtype
        for temperature in 0 1; do
            first=
            for np in 1 2 3; do for stage in 0 3; do
                [ $np$stage != 13 ] && [ $np$stage != 30 ] || continue
                need "$np ranks, stage $stage: did not run" answer $np answers -e "$dir/model" \
                    --dtype $dtype -z $stage --temperature $temperature --overlap $((np == 2))
                first=${first:-$(answers answers)}
                need "$np ranks, stage $stage, temperature $temperature: other answers" [ \
                    "$(answers answers)" = "$first" ]
            done; done
            need "temperature $temperature: not five answers of 12 tokens" [ "$(answers answers | wc -l) \
$(tokens answers 4 | wc -w)" = "5 12" ]
        done
        end
        begin "prompts.$dtype.each row as alone"
        need 'all did not run' answer 2 all -e "$dir/model" --dtype $dtype
        cp "$dir/prompts" "$dir/all_prompts"
        for i in 1 2 3 4 5; do
            sed -n "${i}p" "$dir/all_prompts" >"$dir/prompts"
            seed=$((41 + i))    # that of prompt i
            need "prompt $i did not run alone" answer 0 alone -e "$dir/model" --dtype $dtype --seed $seed
            need "prompt $i: $(tokens alone 1), together $(tokens all "$i")" [ "$(tokens alone 1)" \
                = "$(tokens all "$i")" ]
        done
        cp "$dir/all_prompts" "$dir/prompts"
        end
        begin "prompts.$dtype.a sample is the answer to an empty line"
        need 'it did not sample' train 2 sampled "${trained[@]}" -e "$dir/model" -x 0 -s 1 -g 30 \
            --dtype $dtype
        echo >"$dir/prompts"
        need 'no answer' answer 2 empty -e "$dir/model" --dtype $dtype -g 29
        need "'$(text empty)', sampled '$(text sampled)'" [ "$(text empty)" = "<|endoftext|>$(text sampled)" ]
        cp "$dir/all_prompts" "$dir/prompts"
        end
    done
    begin 'prompts.a folder, a model file'
    need 'the folder did not run' answer 0 folder -e "$dir/model" --dtype bf16
    need 'the file did not run' answer 0 file -e "$dir/model/model_00000060.bin" --dtype bf16
    need 'other answers' [ "$(answers folder)" = "$(answers file)" ]
    end
    begin 'prompts.numbers'
    printf '5 299\n0\n' >"$dir/prompts"
    need 'did not run' answer 2 numbers -e l2h2c32v300t32 --tokenizer none
    need 'other prompts' [ "$(sed -E 's/.*prompt_tokens": \[([^]]*).*/\1/' "$dir/numbers/answers.jsonl" |
        tr '\n' ';')" = '5, 299;0;' ]
    end
    cp "$dir/all_prompts" "$dir/prompts"

    for np in 1 2 3; do for stage in 0 3; do
        begin "prompts.memory as planned, stage $stage on $np ranks"
        line=(-e l3h4c256v257t64 --dtype bf16 -z $stage)
        need 'did not run' answer "$np" held "${line[@]}"
        need 'no plan' plan plan --prompts "$dir/prompts" -g 12 --plan-ranks "$np" "${line[@]}"
        need 'no table' [ "$(memory_table plan | wc -l)" -gt 6 ]
        need 'no cache in it' in_plan plan '^  activations +keys and values'
        need 'more than parameters' not in_plan plan 'gradients|master|moment|bucket|tables'
        need "tables differ: $(diff <(memory_table held) <(memory_table plan) | head -n 4 | tr '\n' ' ')" \
            [ "$(memory_table held)" = "$(memory_table plan)" ]
        # 2P, at stage 3 2P/N, with padding of a hundredth
        P=$(sed -nE 's/.* ([0-9]+) parameters,.*/\1/p' "$dir/plan.screen")
        i=$((2 * P / (stage == 3 ? np : 1)))
        need "$(figure held model_state_bytes) bytes, formula $i" number \
            "$(figure held model_state_bytes) >= $i && $(figure held model_state_bytes) <= 1.01 * $i + 4096"
        # At stage 3 a pass sends this rank's part of each block to the others, and the first one that of the
        # embeddings.
        line=$(figure held sent_bytes_a_pass)
        i=$((stage == 3 ? 2 * P * (np - 1) / np : 0))
        need "sends $line bytes a pass, at most $i" number "$line >= 0.93 * $i && $line <= 1.01 * $i"
        end
    done; done
    begin 'prompts.a plan with parameters on NVMe'
    need 'no plan' plan plan --prompts "$dir/prompts" -g 12 -e l3h4c256v257t64 --offload-param nvme \
        --nvme "$dir"
    end

    begin 'prompts.figures'
    need 'not valid JSON' valid_json "$dir/held/inference.json"
    need 'tokens' [ "$(figure held prompts) $(figure held tokens)" = '5 55' ]
    need 'no speed' number "$(figure held tokens_per_s) > 0 && $(figure held prefill_tokens_per_s) > 0"
    need 'not on the screen' grep -q '^generation 55 tokens in 11 passes of ' "$dir/held.screen"
    # rank 0 of 3 has two of the prompts: 16 and 27 tokens, and 11 of each answer
    need 'a row has more room than its own' grep -q ' keys and values of 96 positions$' "$dir/held.screen"
    while read -r line; do
        echo "$line" >"$dir/line"
        need 'an answer is not valid JSON' valid_json "$dir/line"
    done < <(answers held | sed -E 's/\[[0-9, ]*\]/0/g')
    end

    refused 'prompts.too long' 2 'line 4: its 27 tokens and an answer of 12 ' 'into 32 positions' -- \
        --prompts "$dir/prompts" -g 12
    printf 'good\n\377\n' >"$dir/bad"
    refused 'prompts.not UTF-8' 0 "bad: line 2 is not UTF-8" -- --prompts "$dir/bad" -g 2
    printf '7\n8 x\n' >"$dir/bad"
    refused 'prompts.not a number' 2 'line 2: "x" is not a number' -- --prompts "$dir/bad" -g 2 \
        -e l2h2c32v300t32 --tokenizer none
    printf '7\n\n300\n' >"$dir/bad"
    refused 'prompts.no such token' 0 'line 3: token 300 is outside' '0 to 299' -- --prompts "$dir/bad" -g 2 \
        -e l2h2c32v300t32 --tokenizer none
    : >"$dir/bad"
    refused 'prompts.none' 0 'there is no prompt' -- --prompts "$dir/bad" -g 2
    refused 'prompts.no file' 2 "$dir/nowhere: the file cannot be read" -- --prompts "$dir/nowhere" -g 2
    refused 'prompts.and training' 0 'nothing is trained' -- --prompts "$dir/prompts" -y 1 -o "$dir/model"
    mkdir "$dir/hollow"
    refused 'prompts.a folder without a checkpoint' 0 'no complete checkpoint in this folder' -- \
        --prompts "$dir/prompts" -g 2 -e "$dir/hollow"
    # shellcheck disable=SC2016
    wrap='[ $rank = 0 ] || set -- "${@/%\/prompts/\/all_prompts}";'
    echo more >>"$dir/all_prompts"
    refused 'prompts.other prompts on another rank' 2 'rank 1 .* has --prompts = a file of .* and rank 0' -- \
        --prompts "$dir/prompts" -g 2 -e l2h2c32v257t64 -t 64
    wrap=
}

# ---- bad input

# refused NAME NP PATTERN... -- ARGUMENT...: fails within seconds, with one message that has all the patterns
# in it. grep -a: where a rank aborts, Open MPI 5 writes zero bytes between the lines. mpirun is told not to
# wait for a second before it kills what ranks are left.
refused() {
    local np=$2 patterns=() pattern status start=$SECONDS
    begin "$1"
    shift 2
    while [ "$1" != -- ]; do patterns+=("$1"); shift; done
    shift
    OMPI_MCA_odls_base_sigkill_timeout=0 run "$np" 20 "${small[@]}" "$@" >"$dir/refused" 2>&1; status=$?
    need "status $status" [ $status != 0 -a $status != 124 -a $status -lt 128 ]
    need "took $((SECONDS - start)) s" [ $((SECONDS - start)) -le 6 ]
    grep -a '^train_gpt2_zero: ' "$dir/refused" >"$dir/message"
    need "$(wc -l <"$dir/message") messages" [ "$(wc -l <"$dir/message")" = 1 ]
    for pattern in "${patterns[@]}"; do
        need "no '$pattern' in: $(head -n 1 "$dir/message")" grep -aqE -- "$pattern" "$dir/message"
    done
    end
}

test_options() {
    refused 'bad.unknown option' 2 '-Z' -- -Z 3
    refused 'bad.NCCL on the CPU' 2 'option --comm nccl: it goes with --device cuda' -- --comm nccl
    refused 'bad.option without a value' 0 '-b' 'value' -- -b
    refused 'bad.not a number' 2 '-b' "'x'" 'number' -- -b x
    refused 'bad.half a number' 0 '-l' "'1e'" 'number' -- -l 1e
    refused 'bad.not a whole number' 0 '-x' "'1.5'" 'whole' -- -x 1.5
    refused 'bad.not finite' 0 '-l' "'nan'" -- -l nan
    refused 'bad.stage 4' 2 '-z' '4' 'range' -- -z 4
    refused 'bad.batch 0' 0 '-b' '0' 'range' -- -b 0
    refused 'bad.row longer than the model' 0 '-t 33' '32' -- -t 33
    refused 'bad.batch that does not divide' 2 '-d 100' 'multiple' '128' -- -d 100
    refused 'bad.neither of' 0 '--dtype' "'fp64'" 'bf16' -- --dtype fp64
    refused 'bad.type on the wire' 0 '--comm-type' "'bf16'" 'fp32' -- --comm-type bf16
    refused 'bad.schedule' 0 "sawtooth" 'cosine' -- -k sawtooth
    refused 'bad.naive above stage 0' 0 '--naive' '-z 3' -- --naive 1 -z 3
    refused 'bad.checkpoints without a folder' 0 '-o' -- -n 5
    if command -v nvidia-smi >/dev/null; then skip 'bad.device' 'there is a CUDA device'
    else refused 'bad.device' 2 '--device cuda' -- --device cuda; fi
    refused 'bad.fp16 on a CPU' 0 '--dtype fp16' '--device cuda' -- --dtype fp16 --device cpu
    refused 'bad.attention on a CPU' 0 '--attention cudnn' '--device cuda' -- --attention cudnn --device cpu
    refused 'bad.its workspace on a CPU' 0 '--attention-workspace 8' '--device cuda' -- \
        --attention-workspace 8 --device cpu
    refused 'bad.no such attention' 0 "'fast'" 'auto, cudnn, cudnn-fast, cublaslt' -- --attention fast
    refused 'bad.no such recompute' 0 'option -r: 4' '-1 to 3' -- -r 4
    refused 'bad.inputs of blocks, with more than them' 0 '--cpu-checkpointing' 'needs -r 3 and not -r 2' -- \
        -r 2 --cpu-checkpointing
    refused 'bad.tuning on a CPU' 0 '--tune products.txt' '--device cuda' -- --tune products.txt --device cpu
    refused 'bad.HellaSwag' 0 '-h 1' 'not built yet' -- -h 1
    refused 'bad.no master weights' 0 '-w 0' '--dtype bf16' -- -w 0 --dtype fp32
    local option
    for option in --offload-optimizer --offload-param --offload-gradients; do
        refused "bad.$option" 0 "$option" "'disk' is not one of none, cpu, nvme" -- $option disk
    done
    refused 'bad.ratio' 0 '--offload-ratio' 'out of range, 0 to 1' -- --offload-ratio 2
    refused 'bad.heads' 2 'l2h3c32v257t32' '32 channels' '3 heads' -- -e l2h3c32v257t32
    refused 'bad.descriptor' 0 'l2h2c32' -- -e l2h2c32
    refused 'bad.depth' 0 'd13' -- -e d13
}

test_zero_config() {
    local json=$dir/zero.json
    echo '{ "zero_optimization": { "stage": 2, "reduce_bucket_size": 5e3 }, "bf16": { "enabled": true } }  '\
'// as DeepSpeed takes it' >"$json"
    begin 'zero config.its settings are used'
    need 'did not run' train 2 config --dtype bf16 --zero-config "$json"
    need 'the options did not run' train 2 options --dtype bf16 -z 2 --bucket 5000
    need "stage $(value config stage)" [ "$(value config stage)" = 2 ]
    need 'other results than the same options have' [ "$(result config)" = "$(result options)" ]
    need 'other buckets' [ "$(grep '^buckets' "$dir/config.screen")" \
        = "$(grep '^buckets' "$dir/options.screen")" ]
    end
    refused 'zero config.another stage than -z' 2 \
        'zero.json:1: zero_optimization.stage: 2: option -z says 3' -- --dtype bf16 -z 3 --zero-config "$json"
    refused 'zero config.another dtype' 2 'zero.json:1: bf16.enabled: bf16: option --dtype says fp32' -- \
        --dtype fp32 --zero-config "$json"
    echo '{ "bf16": { "enabled": true }, "communication_data_type": "bf16" }' >"$json"
    refused 'zero config.another type on the wire' 2 'zero.json' 'communication_data_type' '--comm-type' -- \
        --dtype bf16 --comm-type fp32 --zero-config "$json"
    refused 'zero config.a type on the wire that would round' 2 'communication_data_type: "bf16"' \
        'travel as fp32' -- --dtype bf16 -z 1 -d 256 --zero-config "$json"
    echo '{ "gradient_accumulation_steps": 2 }' >"$json"
    refused 'zero config.other micro-batches' 2 'zero.json' 'gradient_accumulation_steps is 2' '1 micro' -- \
        --zero-config "$json" -d 128
    echo '{ "zero_optimisation": { "stage": 2 } }' >"$json"
    refused 'zero config.unknown key' 2 'zero.json:1' 'zero_optimisation' 'nearest.*zero_optimization' -- \
        --zero-config "$json"
    refused 'zero config.no file' 0 'nowhere.json' 'No such file' -- --zero-config "$dir/nowhere.json"
    test_zero_config_trainer "$json"
    test_zero_config_list "$json"
    test_print_config "$json"
}

# What the file asks of the trainer, as a tutorial has it, and the same by options.
test_zero_config_trainer() {
    local json=$1
    begin 'zero config.batch, optimizer and clipping of the file'
    echo '{
  // comments, 2e8, a trailing comma
  "train_batch_size": 24, "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3, "betas": [0.8, 0.99], "weight_decay": 0.1 } },
  "zero_optimization": { "stage": 3, "reduce_bucket_size": 2e8, "sub_group_size": 1e9 },
}' >"$json"
    need 'did not run' train 2 config --dtype fp32 -b 6 --zero-config "$json"
    need 'the options did not run' train 2 options --dtype fp32 -z 3 -b 6 -d 768 -l 1e-3 --beta1 0.8 \
        --beta2 0.99 -c 0.1 --clip 0.5 --bucket 2e8
    need 'other results than the same options have' [ "$(result config)" = "$(result options)" ]
    need 'no note on sub_group_size' grep -q 'no effect  zero.json:6: zero_optimization.sub_group_size' \
        "$dir/config.screen"
    need 'no config lines' grep -q '^config .*micro_batches 2 (zero.json:3)' "$dir/config.screen"
    need 'summary.json is not valid' valid_json "$dir/config/summary.json"
    need 'no lr in summary.json' grep -q '"trainer.lr": {"value": 0.001, "reason": "zero.json:5"}' \
        "$dir/config/summary.json"
    need 'no bucket in summary.json' grep -q '"reduce_bucket_size": {"value": 200000000, ' \
        "$dir/options/summary.json"
    end
    begin 'zero config.rows of a micro-batch from train_batch_size'
    echo '{ "train_batch_size": 12 }' >"$json"
    need 'did not run' run 2 30 -e l2h2c32v257t32 -x 1 -v 0 -s 0 --zero-config "$json" >"$dir/rows.screen"
    need 'not 6 rows' grep -q '^batch .* B 6 x T 32 x 2 ranks x 1 micro' "$dir/rows.screen"
    end
    echo '{ "train_batch_size": 13, "optimizer": { "params": { "lr": "auto" } } }' >"$json"
    refused 'zero config.a batch that does not divide' 2 'train_batch_size is 13' '2 ranks' -- \
        --zero-config "$json"
    echo '{ "train_batch_size": 8 }' >"$json"
    refused 'zero config.another batch than -d' 2 'train_batch_size is 8' '-d 128' -- --zero-config "$json" \
        -d 128
}

# All keys that cannot be honoured are listed at once, by one rank, with the options that do it here.
test_zero_config_list() {
    local json=$1 line
    echo '{ "gradient_clipping": 2.0,
"scheduler": { "type": "WarmupLR" },
"zero_optimization": { "stage": 1,
"offload_param": { "device": "cpu" },
"stge3_max_live_parameters": 1e9 },
"wall_clock_breakdown": true,
"activation_checkpointing": { "cpu_checkpointing": true },
"train_micro_batch_size_per_gpu": 0 }' >"$json"
    refused 'zero config.all refusals at once' 2 '7 keys cannot be honoured' -- --clip 1.5 -z 2 \
        --zero-config "$json"
    begin 'zero config.the list of refusals'
    for line in '1: gradient_clipping: 2: option --clip says 1.5' \
        '2: scheduler: .*option -k, -u, -q' '3: zero_optimization.stage: 1: option -z says 2' \
        '4: zero_optimization.offload_param.device: "cpu": needs stage 3.*option -z' \
        '5: zero_optimization.stge3_max_live_parameters: .*nearest .*stage3_max_live_parameters' \
        '6: wall_clock_breakdown: true: .*option --trace' \
        '8: train_micro_batch_size_per_gpu: 0: must be .*option -b'; do
        need "no '$line'" [ "$(grep -cE "^  $json:$line" "$dir/refused")" = 1 ]
    done
    end
}

test_print_config() {
    local json=$1
    begin 'zero config.--print-config'
    echo '{ "zero_optimization": { "stage": 2, "reduce_bucket_size": "auto", "reduce_scatter": true } }' \
        >"$json"
    need 'did not end with 0' run 2 20 "${small[@]}" --print-config --zero-config "$json" --prefetch 3 \
        -o "$dir/no_config" >"$dir/print.screen" 2>&1
    need 'not once' [ "$(grep -c '^config ' "$dir/print.screen")" = 1 ]
    need 'stage' grep -qE '^  stage +2 +zero.json:1$' "$dir/print.screen"
    need 'prefetch' grep -qE '^  prefetch +3 +option --prefetch$' "$dir/print.screen"
    need 'bucket' grep -qE '^  reduce_bucket_size +0 +zero.json:1 says auto: the largest' "$dir/print.screen"
    need 'a default' grep -qE '^  offload.sub_group_size +4194304 +default$' "$dir/print.screen"
    need 'it trained' not grep -q '^step' "$dir/print.screen"
    need 'a folder was made' [ ! -e "$dir/no_config" ]
    # Offload of a file and by options, which say the same.
    echo '{ "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "nvme", "nvme_path": "/n", },
"offload_param": { "device": "cpu", "pin_memory": true } }, "aio": { "block_size": 262144 } }' >"$json"
    run 0 20 "${small[@]}" --print-config --zero-config "$json" >"$dir/file.screen" 2>&1
    run 0 20 "${small[@]}" --print-config --offload-optimizer nvme --offload-param cpu --nvme /n \
        >"$dir/option.screen" 2>&1
    for screen in file option; do
        need "$screen: optimizer" grep -qE '^  offload.optimizer +nvme' "$dir/$screen.screen"
        need "$screen: parameters" grep -qE '^  offload.params +cpu' "$dir/$screen.screen"
        need "$screen: gradients" grep -qE "^  offload.gradients +cpu +beside" "$dir/$screen.screen"
        need "$screen: folder" grep -qE '^  offload.nvme +/n ' "$dir/$screen.screen"
    done
    need 'block size' grep -qE '^  offload.nvme_block_bytes +524288 +zero.json:2: in place of 262144' \
        "$dir/file.screen"
    need 'the host tier of a CPU run' grep -q '^noted  .*nothing moves' "$dir/option.screen"
    need 'pin_memory' grep -q '^no effect  zero.json:2: .*pin_memory: .*pinned' "$dir/file.screen"
    end
    refused 'zero config.another tier than the option' 0 \
        'offload_param.device: cpu: option --offload-param says nvme' -- --offload-param nvme \
        --zero-config "$json"
    refused 'zero config.another folder than the option' 0 'nvme_path: /n: option --nvme says /m' -- \
        --nvme /m --zero-config "$json"
    refused 'zero config.NVMe without a folder' 0 'offload.nvme: no folder' '--nvme' -- \
        --offload-optimizer nvme
}

int32() {   # little-endian
    local x i
    for x in "$@"; do
        # shellcheck disable=SC2059
        for i in 0 8 16 24; do printf "\\x$(printf %02x $((x >> i & 255)))"; done
    done
}
# shard FILE MAGIC VERSION TOKENS_SAID TOKENS_THERE: all tokens are 1
shard() {
    {
        int32 "$2" "$3" "$4"
        head -c 1012 /dev/zero
        for ((i = 0; i < $5; i += 2)); do
            printf '\x01\0\x01\0'
        done
    } >"$1"
}

test_input_files() {
    local f=$dir/shard.bin
    refused 'bad.no shard' 2 "$dir/none_\*.bin" 'no file matches' -- -i "$dir/none_*.bin"
    shard "$f" 20240521 1 1000 1000
    refused 'bad.magic of a shard' 0 "$f" '20240521' '20240520' -- -i "$f"
    shard "$f" 20240520 7 1000 1000
    refused 'bad.version of a shard' 0 "$f" 'version 7' -- -i "$f"
    shard "$f" 20240520 1 1000 998
    refused 'bad.shard cut short' 2 "$f" '3020' '3024' -- -i "$f"
    shard "$f" 20240520 1 1000 1000
    refused 'bad.validation shard cut short' 2 "$f" 'fewer' -- -j "$f" -v 1 -b 100
    printf '\x2c\x01' | dd of="$f" bs=1 seek=1424 conv=notrunc status=none
    refused 'bad.token outside the vocabulary' 2 "$f" 'token 200' '300' '257' -- -i "$f" -x 40
    : >"$f"
    refused 'bad.empty shard' 0 "$f" '0 bytes' -- -i "$f"
    refused 'bad.folder as a shard' 0 "$dir" 'regular file' -- -i "$dir"
    refused 'bad.no tokenizer' 0 "$dir/none" -- --tokenizer "$dir/none" -s 1
    head -c 700 data/stories_tokenizer.bin >"$f"
    refused 'bad.tokenizer cut short' 0 "$f" -- --tokenizer "$f" -s 1
    refused 'bad.no model' 0 "$dir/none.bin" 'No such file' -- -e "$dir/none.bin"
    refused 'bad.foreign model' 2 'data/stories_val.bin' 'not a model' '20240326' -- -e data/stories_val.bin
    begin 'bad.a model to damage'
    need 'did not run' train 0 model -x 1 -n 1
    end
    head -c -4 "$dir/model/model_00000001.bin" >"$f"
    refused 'bad.model cut short' 2 "$f" 'cut short' -- -e "$f"
    refused 'bad.folder below a file' 2 '-o' '/dev/null/x' -- -o /dev/null/x
    : >"$dir/file"
    refused 'bad.file as the folder' 2 '-o|file' "$dir/file" -- -o "$dir/file"
}

test_not_finite() {
    begin 'not finite.a checkpoint before'
    need 'did not run' train 2 nan --dtype fp32 -x 2 -n 2
    end
    refused 'not finite.loss' 2 'step [0-9]+' 'not finite' 'rank [01]' -- --dtype fp32 -l 1000 -c 1000 \
        --clip 0 -k constant -x 30 -y 1 -o "$dir/nan"
    begin 'not finite.the last checkpoint stays'
    need 'it does not load' train 2 nan --dtype fp32 -x 3 -y 1
    need 'it is not that of step 2' grep -q 'resuming at step 2' "$dir/nan.screen"
    end
}

# ---- ranks that are not started alike

# What is compared is for test_unlike and mpi_same; here, what a user sees of it.
# odd RANK CODE: what that rank does before it starts; CODE may change its arguments, $@, and its environment.
odd() { wrap="[ \$rank != $1 ] || { $2; };"; }
# unlike NAME NP RANK CODE THEIRS OURS ARGUMENT...: all ranks are told, once, that RANK has THEIRS and rank 0
# has OURS.
unlike() {
    local name=$1 np=$2 rank=$3 theirs=$5 ours=$6
    odd "$rank" "$4"
    shift 6
    refused "unlike.$name" "$np" \
        "^train_gpt2_zero: rank $rank \\(host [^ ]+\\) has $theirs and rank 0 \\(host [^ ]+\\) has $ours; "\
"it must be the same" -- "$@"
    wrap=
}

test_unlike() {
    local add='set -- "$@"' file='a file of [0-9]+ bytes, digest [0-9a-f]{16}' \
        shard='shard 0 = one.bin, 3024 bytes, digest [0-9a-f]{16}' what
    unlike 'batch' 2 1 "$add -b 8" '-b = 8' '-b = 2'
    unlike 'learning rate of the last rank, by messages' 3 2 "$add -l 1e-4" '-l = 0.0001' '-l = 0.003' \
        --messages 1
    unlike 'stage, by TCP' 2 1 "$add -z 2" '-z = 2' '-z = 3' -pi tcp \
        -ps "127.0.0.1:$((20000 + RANDOM % 10000))"
    echo '{ "zero_optimization": { "reduce_bucket_size": 5000 } }' >"$dir/zero.json"
    unlike 'what --zero-config says' 2 1 "$add --zero-config $dir/zero.json" '--bucket = 5000' '--bucket = 0'

    mkdir -p "$dir/a" "$dir/b"
    shard "$dir/a/one.bin" 20240520 1 1000 1000
    cp "$dir/a/one.bin" "$dir/b"
    begin 'unlike.what a rank may have to itself changes no bit'
    need 'did not run' train 2 saved -x 1 -n 1
    need 'did not run' train 2 second -l 1e-3 -x 1 -n 1
    cp "$dir/saved/model_00000001.bin" "$dir/a/first.bin"
    cp "$dir/a/first.bin" "$dir/b/copy.bin"
    need 'did not run' train 2 alike -i "$dir/a/o*.bin" -e "$dir/a/first.bin"
    odd 1 \
        "$add -i '$dir/b/o*.bin' -e $dir/b/copy.bin --overlap 1 --trace $dir/trace.json --progress lines -o "\
"$dir/alike.1; export ZERO_POISON=1"
    need 'files and settings of its own: did not run' train 2 own -i "$dir/a/o*.bin" -e "$dir/a/first.bin"
    wrap=
    need "$(result own), with the same $(result alike)" [ "$(result own)" = "$(result alike)" ]
    need 'a warning' not grep -q '^warning' "$dir/own.screen" "$dir/alike.screen"
    end
    flip_byte "$dir/b/one.bin" 2000
    unlike 'a token' 2 1 "$add -i '$dir/b/o*.bin'" "-i, $shard" "-i, $shard" -i "$dir/a/o*.bin"
    flip_byte "$dir/b/copy.bin" 20000
    unlike 'a weight of the model file' 2 1 "$add -e $dir/b/copy.bin" "-e = $file" "-e = $file" \
        -e "$dir/a/first.bin"
    unlike 'checkpoints of two runs' 2 1 "$add -o $dir/second" "its manifest.json = $file" \
        "its manifest.json = $file" \
        -y 1 -o "$dir/saved"
    unlike 'only one finds a checkpoint' 2 1 "$add -o $dir/saved" 'checkpoint to resume = step 1' \
        'checkpoint to resume = none' -y 1 -o "$dir/none"

    begin 'unlike.another build, threads, instruction set: a warning each'
    odd 1 \
        "cp \"\$0\" $dir/built; echo >>$dir/built; ONEDNN_MAX_CPU_ISA=SSE41 exec $dir/built \"\$@\" "\
"--threads 2"
    need 'did not run' train 2 noted --dtype fp32
    wrap=
    local has_one='rank 1 \(host [^ ]+\) has' has_zero='rank 0 \(host [^ ]+\) has'
    for what in program threads 'instruction set'; do
        # the processor has only that one
        [ "$what" = 'instruction set' ] && ! grep -qs avx2 /proc/cpuinfo && continue
        need "$what" [ "$(grep -cE "^warning: $has_one $what = .* and $has_zero $what = .*; the last bits" \
            "$dir/noted.screen")" = 1 ]
    done
    end
}

# A file size limit is a disk that is full, for one process.
disk_full() {   # NAME NP RANK KIB MODEL DTYPE PATTERN WORDS
    local size=(-e "$5" --dtype "$6" --window 65536 -b 1)
    rm -rf "$dir/full" "$dir/unhindered"
    begin "disk full.$1.a checkpoint before"
    need 'did not run' train "$2" full "${size[@]}" -k constant -x 1 -n 1
    need 'the unhindered run did not run' train "$2" unhindered "${size[@]}" -k constant -x 2
    end
    wrap="[ \$rank != $3 ] || ulimit -f $4;"
    refused "disk full.$1" "$2" "$7" "$8" -- "${size[@]}" -k constant -x 2 -n 1 -y 1 \
        -o "$dir/full"
    wrap=
    begin "disk full.$1.nothing half done, nothing lost"
    need "complete: $(checkpoints full)" [ "$(checkpoints full)" = step_00000001 ]
    need 'temporary files are left' [ -z "$(find "$dir/full" -name '*.tmp' -o -name '.manifest*')" ]
    need 'the file is there under its name' [ -z "$(compgen -G "$dir/full/$7*")" ]
    need 'the checkpoint before does not load' train "$2" full "${size[@]}" -k constant -x 2 -n 1 -y 1
    need 'it does not lead to the same end' [ "$(result full)" = "$(result unhindered)" ]
    end
}

# Of four ranks each has 12/4 bytes of states for a parameter in fp32, and the model file has 4.
full_model_file() {
    local size=(-e l4h4c384v257t32 --dtype fp32 --window 65536 -b 1 -k constant -x 1 -n 1)
    rm -rf "$dir/full"
    wrap="[ \$rank != 0 ] || ulimit -f 24576;"
    refused 'disk full.model file' 4 'model_00000001.bin' \
        'File too large; the checkpoint of step 1 is complete without it, and --export makes a model' -- \
        "${size[@]}" -o "$dir/full"
    wrap=
    begin 'disk full.model file.its checkpoint is good, and writes it when the run goes on'
    need "complete: $(checkpoints full)" [ "$(checkpoints full)" = step_00000001 ]
    need 'a temporary file is left' [ -z "$(compgen -G "$dir/full/*.tmp")" ]
    need 'the checkpoint does not load' train 1 full "${size[@]}" -b 4 -y 1
    need 'it is damaged' "$trainer" --verify "$dir/full/model_00000001.bin"
    end
}

test_disk_full() {
    # the limit must leave room for what MPI and the window keep in /dev/shm, so that these models are larger
    # than others here
    full_model_file
    disk_full 'state of rank 1' 2 1 20480 l4h4c384v257t32 bf16 step_00000002/rank00001 \
        'may write 20.0 MiB to a file'
    disk_full 'one rank' 1 0 1024 l2h2c64v257t32 fp32 step_00000002/rank00000 'may write 1.0 MiB to a file'
}

# ---- dying ranks

wait_for_steps() {  # SCREEN
    local i
    for ((i = 0; i < 500; i++)); do
        grep -aqs '^step   20/' "$1" && return 0
        sleep 0.05
    done
    return 1
}
# one_stops NAME SIGNAL SECONDS ARGUMENT...: a rank of a long run gets the signal; the job must end with an
# error within SECONDS.
one_stops() {
    local signal=$2 limit=$3 job pid status start
    begin "$1"
    shift 3
    rm -f "$dir"/pid.* "$dir/dying"
    run 3 40 "${small[@]}" -x 1000000 "$@" >"$dir/dying" 2>&1 & job=$!
    need 'it did not reach step 20' wait_for_steps "$dir/dying"
    read -r pid <"$dir/pid.1"
    start=$EPOCHREALTIME
    kill -"$signal" "$pid"
    if [ "$signal" = STOP ]; then
        while kill -0 $job 2>/dev/null && number "$EPOCHREALTIME - $start < $limit + 2"; do
            sleep 0.05
        done
    fi
    kill -KILL "$pid" 2>/dev/null
    wait $job; status=$?
    read -r pid <"$dir/pid.0"
    need 'shared memory is left' not compgen -G "/dev/shm/llmc_zero.$pid.*" >/dev/null
    need "took $(awk "BEGIN { print $EPOCHREALTIME - $start }") s" number "$EPOCHREALTIME - $start < $limit"
    need "status $status" [ $status != 0 -a $status != 124 ]
    if [ "$signal" = STOP ]; then
        need "$(grep -ac '^train_gpt2_zero: ' "$dir/dying") messages" [ \
            "$(grep -ac '^train_gpt2_zero: ' "$dir/dying")" = 1 ]
        need "the message does not say what was waited for: $(grep -am 1 '^train_gpt2_zero: ' "$dir/dying")" \
            grep -aqE \
            '^train_gpt2_zero: step [0-9]+: rank [02] \(host [^ ]+\) waited 2 s in an? .* for rank 1 \(host '\
'[^ ]+\): ' "$dir/dying"
    fi
    end
}

test_dying() {
    one_stops 'dying.one rank is killed' KILL 10
    one_stops 'dying.one rank is killed, messages' KILL 10 --messages 1 --overlap 1
    one_stops 'dying.one rank hangs' STOP 8 --comm-timeout 2
    one_stops 'dying.one rank hangs, messages' STOP 8 --comm-timeout 2 --messages 1
    one_stops 'dying.one rank hangs, overlap' STOP 8 --comm-timeout 2 --overlap 1
}

# ---- launching

test_launch() {
    begin 'launch.without mpirun'
    need 'did not run' train 0 alone -z 3
    need 'not one rank' [ "$(value alone ranks)" = 1 ]
    need 'stages differ' train 0 alone0 -z 0 --naive 1
    need 'stage 3 of one rank is not plain training' [ "$(result alone)" = "$(result alone0)" ]
    end
    if [ "$(nproc)" -lt 2 ]; then skip 'launch.binding' 'one core'; return; fi
    begin 'launch.a bound rank: said once'
    bind=core        # Open MPI 4 does so by itself, Open MPI 5 not with --oversubscribe
    need 'did not run' train 1 bound --threads 0
    bind=
    need "said $(grep -c 'rank is bound to 1 of' "$dir/bound.screen") times" [ \
        "$(grep -c 'rank is bound to 1 of' "$dir/bound.screen")" = 1 ]
    need 'not one thread' grep -q ', 1 thread a rank' "$dir/bound.screen"
    need 'said although it does not' train 0 unbound --threads 0
    need 'said although it does not' not grep -q 'rank is bound' "$dir/unbound.screen"
    end
    begin 'launch.more ranks than cores'
    need 'did not run' train 2 fits -x 30 -z 3
    need 'did not run' train 4 crowded -x 30 -z 3
    end
    awk "BEGIN { printf \"   a step takes %.2f ms on 2 ranks, %.2f ms on 4 ranks on $(nproc) cores\\n\", "\
"128e3 / $(value fits tokens_per_s), 256e3 / $(value crowded tokens_per_s) }"
}

# ----

. tests/trainer_tiers.sh
all_groups='bits resume files outputs traffic memory plan prompts options zero_config input_files not_finite
            unlike disk_full dying launch tiers'
for group in "${@:-$all_groups}"; do
    for g in $group; do
        since=$EPOCHREALTIME
        "test_$g" || failed=$((failed + 1))
        awk "BEGIN { printf \"   $g: %.1f s\\n\", $EPOCHREALTIME - $since }"
    done
done
finish trainer
