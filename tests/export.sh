#!/usr/bin/env bash
# Tests that --export and --to convert checkpoints of any number of ranks, llm.c's files and Hugging Face
# folders into each other without changing a bit, and that a run can start from any of them.
# Usage: tests/export.sh TRAINER [GROUP]...
#   trips, refused    make test
#   transformers      make check: dev/check_export.py, if PYTHON (python3) has transformers and PyTorch
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
trainer=$(realpath "${1:?Usage: tests/export.sh TRAINER [GROUP]...}") || exit 1
shift
export OMP_NUM_THREADS=1
small=(--device cpu -v 0 -s 0 --threads 1 -b 1 -u 0)
screen=$dir/screen

# export_model FROM TO [ARGUMENT...]: exports within the test's folder. exports: does the same, but fails the
# test on an error.
export_model() {
    timeout -k 2 $hang_limit "$trainer" --export "$dir/$1" --to "$dir/$2" "${@:3}" >"$screen" 2>&1 </dev/null
}
exports() { export_model "$@" || need "$*: $(tail -n 3 "$screen")" false; }
same() { cmp -s "$dir/$1" "$dir/$2"; }
left() { find "$dir" -maxdepth 1 -name "$1"; }

# --------

# trip NAME RUN: checks that checkpoint -> .bin -> folder -> .bin and checkpoint -> folder keep every bit
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
    begin 'export.training the runs to export'
    trains 3 fp32 -e l2h2c40v257t32 -x 2 -n 1 -z 3 --dtype fp32
    trains 2 bf16 -e l2h2c40v257t32 -x 2 -n 1 -z 2 --dtype bf16
    end
    trip 'three ranks, stage 3, fp32' fp32
    trip 'two ranks, stage 2, bf16' bf16

    begin 'export.the masters are exported'
    need 'fp32: the export differs from the model file' same fp32.bin fp32/model_00000002.bin
    need 'bf16: the export differs from the model file' same bf16.16.bin bf16/model_00000002.bin
    need 'bf16: the masters were rounded' not same bf16.bin bf16.16.bin
    exports fp32/step_00000001 first.bin
    need 'an older checkpoint: the export differs from its model file' same first.bin fp32/model_00000001.bin
    end

    begin 'export.runs started from either format give the same bits'
    for dtype in fp32 bf16; do
        for model in bin hf; do trains 2 $model -e "$dir/fp32.$model" -x 1 --dtype $dtype --hash full; done
        same_result hf bin
    done
    need 'the loss or the digest is missing' [ "$(result hf | wc -w)" = 4 ]
    end

    begin 'export.the files in the Hugging Face folder'
    is files "$(cd "$dir/fp32.hf" && echo *)" \
        'config.json generation_config.json merges.txt model.safetensors tokenizer_config.json vocab.json'
    exports fp32 plain --tokenizer none
    is 'files without a tokenizer' "$(cd "$dir/plain" && echo *)" \
        'config.json generation_config.json model.safetensors'
    end
}

# --------

# refused: reads lines NAME|PATTERN|FROM TO ARGUMENT... For each, checks that the export fails with a matching
# message and leaves neither TO nor a temporary file.
refused() {
    local what pattern from to arguments
    while IFS='|' read -r what pattern arguments; do
        begin "export.refused.$what"
        read -r from to arguments <<<"$arguments"
        # shellcheck disable=SC2086
        fails "$pattern" export_model "$from" "$to" $arguments
        is 'files left' "$(left "$(basename "$to")*")" ''
        end
    done
}
fails() {       # PATTERN COMMAND...
    need "$* succeeds" not "${@:2}" >"$screen" 2>&1
    has "$screen" "$1"
}

test_refused() {
    local to states model=good/model_00000002.bin
    trains 2 good -e l1h2c32v257t32 -x 2 -n 2 --dtype fp32
    refused <<'END'
another option|option -b: cannot be used with --export|good a.bin -b 4
fp16|option --dtype fp16: an export must be in fp32 or bf16|good a.bin --dtype fp16
no model|option --export .*/none.bin: no such file|none.bin a.hf
no folder|option --export .*/none: no such file or folder|none a.hf
an empty folder|neither a complete checkpoint nor model.safetensors|. a.hf
a missing folder|nowhere/a.hf.*No such file|good nowhere/a.hf
a tokenizer for llm.c|option --tokenizer .*: .*llm.c.s file|good a.bin --tokenizer data/stories_tokenizer.bin
not a tokenizer file|stories_val.bin: not a tokenizer file|good a.hf --tokenizer data/stories_val.bin
END
    begin 'export.refused.options'
    fails 'option --export .*: add --to' "$trainer" --export "$dir/good"
    fails 'option --to .*: add --export' "$trainer" --to "$dir/a.bin"
    fails 'start it without mpirun' timeout $hang_limit mpirun --oversubscribe -np 2 "$trainer" \
        --export "$dir/good" --to "$dir/a.bin"
    end

    begin 'export.refused.nothing is overwritten'
    echo mine >"$dir/mine.bin"
    mkdir "$dir/mine.hf" "$dir/empty" && echo mine >"$dir/mine.hf/file"
    ln -s empty "$dir/link.hf" && ln -s nowhere "$dir/link.bin"
    fails 'already exists' export_model good mine.bin
    fails 'already exists and is not empty' export_model good mine.hf
    fails 'link.hf: is a symlink; name the folder itself' export_model good link.hf/
    fails 'link.bin: already exists' export_model good link.bin
    is 'files written' "$(ls -A "$dir/empty"; left 'link*.tmp')" ''
    is 'the old files' "$(cat "$dir/mine.bin" "$dir/mine.hf"/*)" $'mine\nmine'
    end

    begin 'export.refused.a full disk'
    for to in full.bin full.hf; do
        fails 'cannot write: File too large' bash -c "trap '' XFSZ; ulimit -f 16
            exec '$trainer' --export '$dir/good' --to '$dir/$to'"
    done
    is 'files left' "$(left 'full*')" ''
    end

    flip_byte "$dir/$model" 20000
    refused <<<"a damaged model file|model_00000002.bin: damaged|$model a.hf"
    flip_byte "$dir/$model" 20000
    states=$(echo "$dir"/good/step_00000002/rank00001-*.states)
    flip_byte "$states" 20000
    refused <<<"a damaged checkpoint|${states##*/}: damaged: the block .* at offset 0|good a.hf"
    rm "$states"
    refused <<<"a checkpoint with a missing file|${states##*/}: No such file|good a.bin"
}

# --------

test_transformers() {
    local dtype status
    trains 2 shown -e l3h2c48v257t64 -b 2 -x 20 -n 20 --dtype bf16
    for dtype in fp32 bf16; do
        begin "export.transformers.$dtype"
        exports shown shown.$dtype --dtype $dtype
        exports shown shown.$dtype.bin --dtype $dtype
        timeout 600 "${PYTHON:-python3}" dev/check_export.py "$dir/shown.$dtype" "$dir/shown.$dtype.bin" \
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
