#!/usr/bin/env bash
# --export and --to: a checkpoint of any ranks, llm.c's file and a folder of Hugging Face's become each other
# with the same bits, and a run starts from each of them alike. Usage: tests/export.sh TRAINER [GROUP]...
#   trips, refused    make test
#   transformers      make check: dev/check_export.py, where PYTHON (python3) has transformers and PyTorch
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:?Usage: tests/export.sh TRAINER [GROUP]...}") || exit 1
shift
export OMP_NUM_THREADS=1
data=(--device cpu -i data/stories_train.bin -j data/stories_val.bin -v 0 -s 0 --threads 1)
screen=$dir/screen

# trains NP NAME ARGUMENT...: a run with its output folder NAME
trains() {
    local launcher
    launch "$1"
    timeout -k 2 60 "${launcher[@]}" "$trainer" "${data[@]}" -b 1 -u 0 -o "$dir/$2" "${@:3}" >"$screen" 2>&1 \
        </dev/null || need "$2 did not run: $(tail -n 3 "$screen")" false
}
# export_model FROM TO [ARGUMENT...], in the test's folder; exports: which must succeed
export_model() {
    timeout -k 2 60 "$trainer" --export "$dir/$1" --to "$dir/$2" "${@:3}" >"$screen" 2>&1 </dev/null
}
exports() { export_model "$@" || need "$*: $(tail -n 3 "$screen")" false; }
same() { cmp -s "$dir/$1" "$dir/$2"; }
first_loss() { grep -o '"loss": [0-9.]*' "$dir/$1/metrics.jsonl" | head -n 1; }
start_of() { echo "$(first_loss "$1") $(json_value "$dir/$1/summary.json" params_hash)"; }
left() { find "$dir" -maxdepth 1 -name "$1"; }

# --------

# trip NAME RUN: its checkpoint -> .bin -> folder -> .bin, all the same; the folder from the checkpoint too
trip() {
    local run=$2
    begin "export.$1"
    exports "$run" "$run.bin"
    exports "$run.bin" "$run.hf"
    exports "$run.hf" "$run.back.bin"
    need 'the round trip changes bits' same "$run.bin" "$run.back.bin"
    exports "$run" "$run.hf2/"
    need 'the two folders differ' same "$run.hf/model.safetensors" "$run.hf2/model.safetensors"
    exports "$run" "$run.16.bin" --dtype bf16
    exports "$run.16.bin" "$run.16.hf" --dtype bf16
    exports "$run.16.hf" "$run.16.back.bin" --dtype bf16
    need 'the round trip in bf16 changes bits' same "$run.16.bin" "$run.16.back.bin"
    is 'temporary files' "$(left '*.tmp')" ''
    end
}

test_trips() {
    local dtype model
    begin 'export.runs to export'
    trains 3 fp32 -e l2h2c40v257t32 -x 2 -n 1 -z 3 --dtype fp32
    trains 2 bf16 -e l2h2c40v257t32 -x 2 -n 1 -z 2 --dtype bf16
    end
    trip 'three ranks, stage 3, fp32' fp32
    trip 'two ranks, stage 2, bf16' bf16

    begin 'export.the masters are what is written'
    need 'fp32: another model than llm.c gets' same fp32.bin fp32/model_00000002.bin
    need 'bf16: another model than llm.c gets' same bf16.16.bin bf16/model_00000002.bin
    need 'bf16: the masters are rounded' not same bf16.bin bf16.16.bin
    exports fp32/step_00000001 first.bin
    need 'an older checkpoint: another model' same first.bin fp32/model_00000001.bin
    end

    begin 'export.a run starts from each alike'
    for dtype in fp32 bf16; do
        for model in bin hf; do trains 2 "from.$dtype.$model" -e "$dir/fp32.$model" -x 1 --dtype $dtype; done
        is "$dtype, from the folder" "$(start_of from.$dtype.hf)" "$(start_of from.$dtype.bin)"
    done
    need 'there is no loss or no digest' [ "$(start_of from.fp32.hf | wc -w)" = 3 ]
    end

    begin 'export.the files of the folder'
    is files "$(cd "$dir/fp32.hf" && echo *)" \
        'config.json generation_config.json merges.txt model.safetensors tokenizer_config.json vocab.json'
    exports fp32 plain --tokenizer none
    is 'files without a tokenizer' "$(cd "$dir/plain" && echo *)" \
        'config.json generation_config.json model.safetensors'
    end
}

# --------

# refused NAME PATTERN FROM TO ARGUMENT...: it fails with such a message, and neither TO nor a temporary file
# is left
refused() {
    begin "export.refused.$1"
    need 'it is taken' not export_model "${@:3}"
    has "$screen" "$2"
    is left "$(left "$(basename "$4")*")" ''
    end
}
# From lines NAME|PATTERN|FROM TO ARGUMENT...
refusals() {
    local name pattern arguments
    while IFS='|' read -r name pattern arguments; do
        # shellcheck disable=SC2086
        refused "$name" "$pattern" $arguments
    done
}
# fails PATTERN COMMAND...
fails() {
    need "$* is taken" not "${@:2}" >"$screen" 2>&1
    has "$screen" "$1"
}

test_refused() {
    local to states model=good/model_00000002.bin
    trains 2 good -e l1h2c32v257t32 -x 2 -n 2 --dtype fp32
    refusals <<'END'
another option|option -b: cannot be used with --export|good a.bin -b 4
fp16|option --dtype fp16: an export must be in fp32 or bf16|good a.bin --dtype fp16
no model|none.bin: cannot open: No such file|none.bin a.hf
an empty folder|no complete checkpoint in this folder, and no model.safetensors|. a.hf
no place|nowhere/a.hf.*No such file|good nowhere/a.hf
a tokenizer for llm.c|option --tokenizer .*: .*llm.c.s file|good a.bin --tokenizer data/stories_tokenizer.bin
no tokenizer|stories_val.bin: not a tokenizer file|good a.hf --tokenizer data/stories_val.bin
END
    begin 'export.refused.options'
    fails 'option --export .*: add --to' "$trainer" --export "$dir/good"
    fails 'option --to .*: add --export' "$trainer" --to "$dir/a.bin"
    fails 'start it without mpirun' timeout 20 mpirun --oversubscribe -np 2 "$trainer" --export "$dir/good" \
        --to "$dir/a.bin"
    end

    begin 'export.refused.nothing is overwritten'
    echo mine >"$dir/mine.bin"
    mkdir "$dir/mine.hf" "$dir/empty" && echo mine >"$dir/mine.hf/file"
    ln -s empty "$dir/link.hf" && ln -s nowhere "$dir/link.bin"
    fails 'exists already' export_model good mine.bin
    fails 'exists already and is not empty' export_model good mine.hf
    fails 'link.hf: is a link; name the folder itself' export_model good link.hf/
    fails 'link.bin: exists already' export_model good link.bin
    is written "$(ls -A "$dir/empty"; left 'link*.tmp')" ''
    is 'what was there' "$(cat "$dir/mine.bin" "$dir/mine.hf"/*)" $'mine\nmine'
    end

    begin 'export.refused.a full disk'
    for to in full.bin full.hf; do
        fails 'cannot write: File too large' bash -c "trap '' XFSZ; ulimit -f 16
            exec '$trainer' --export '$dir/good' --to '$dir/$to'"
    done
    is left "$(left 'full*')" ''
    end

    flip_byte "$dir/$model" 20000
    refused 'a damaged model file' 'model_00000002.bin: damaged' $model a.hf
    flip_byte "$dir/$model" 20000
    states=$(echo "$dir"/good/step_00000002/rank00001-*.states)
    flip_byte "$states" 20000
    refused 'a damaged checkpoint' "$(basename "$states"): damaged: the block .* at offset 0" good a.bin
    refused 'a damaged checkpoint, to a folder' "$(basename "$states"): damaged: the block" good a.hf
    truncate -s -4 "$states"
    refused 'a checkpoint that is cut short' "$(basename "$states"): ends at offset" good a.bin
    rm "$states"
    refused 'a checkpoint without a file' "$(basename "$states"): No such file" good a.bin
}

# --------

test_transformers() {
    local dtype status
    trains 2 shown -e l3h2c48v257t64 -b 2 -x 20 -n 20 --dtype bf16
    for dtype in fp32 bf16; do
        begin "export.transformers.$dtype"
        exports shown shown.$dtype --dtype $dtype
        exports shown shown.$dtype.bin --dtype $dtype
        timeout 240 "${PYTHON:-python3}" dev/check_export.py "$dir/shown.$dtype" "$dir/shown.$dtype.bin" \
            >"$screen" 2>&1
        status=$?
        if [ $status = 77 ]; then
            skip "$name" "$(tail -n 1 "$screen")"
            continue
        fi
        is "status, after $(tail -n 5 "$screen")" $status 0
        cat "$screen"
        end
    done
}

for group in "${@:-trips}"; do "test_$group"; done
finish export
