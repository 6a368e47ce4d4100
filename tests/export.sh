#!/usr/bin/env bash
# --export and --to: a checkpoint of any ranks, llm.c's file and a folder of Hugging Face's become each other
# with the same bits, and a run starts from each of them alike. Usage: tests/export.sh TRAINER [GROUP]...
#   trips, refused    make test
#   transformers      make check: dev/check_export.py, where PYTHON (python3) has transformers and PyTorch
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:?Usage: tests/export.sh TRAINER [GROUP]...}") || exit 1
shift
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1
data=(--device cpu -i data/stories_train.bin -j data/stories_val.bin -v 0 -s 0 --threads 1)

echo nothing >"$dir/said"

# train NP NAME ARGUMENT...: a run with its output folder and its screen under NAME; NP 0: without mpirun
train() {
    local np=$1 name=$2 launcher=()
    shift 2
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe -np "$np")
    timeout -k 2 60 "${launcher[@]}" "$trainer" "${data[@]}" -o "$dir/$name" "$@" >"$dir/$name.screen" 2>&1 \
        </dev/null && return
    tail -n 8 "$dir/$name.screen"
    return 1
}
# export FROM TO [ARGUMENT...], in the test's folder
export_model() {
    timeout -k 2 60 "$trainer" --export "$dir/$1" --to "$dir/$2" "${@:3}" >"$dir/said" 2>&1 </dev/null
}
same() { cmp -s "$dir/$1" "$dir/$2"; }
first_loss() { grep -o '"loss": [0-9.]*' "$dir/$1/metrics.jsonl" | head -n 1; }
hash_of() { sed -nE 's/.*"params_hash": "([0-9a-f]+)".*/\1/p' "$dir/$1/summary.json"; }
nothing_left() { [ -z "$(find "$dir" -maxdepth 1 -name '*.tmp')" ]; }

# --------

# trip NAME RUN: its checkpoint -> .bin -> folder -> .bin, all the same; the folder from the checkpoint too
trip() {
    local run=$2
    begin "export.$1"
    need "to .bin: $(cat "$dir/said")" export_model "$run" "$run.bin"
    need "to a folder: $(cat "$dir/said")" export_model "$run.bin" "$run.hf"
    need "back to .bin: $(cat "$dir/said")" export_model "$run.hf" "$run.back.bin"
    need 'the round trip changes bits' same "$run.bin" "$run.back.bin"
    need "from the checkpoint: $(cat "$dir/said")" export_model "$run" "$run.hf2/"
    need 'the two folders differ' same "$run.hf/model.safetensors" "$run.hf2/model.safetensors"
    need "bf16: $(cat "$dir/said")" export_model "$run" "$run.16.bin" --dtype bf16
    need "bf16: $(cat "$dir/said")" export_model "$run.16.bin" "$run.16.hf" --dtype bf16
    need "bf16: $(cat "$dir/said")" export_model "$run.16.hf" "$run.16.back.bin" --dtype bf16
    need 'the round trip in bf16 changes bits' same "$run.16.bin" "$run.16.back.bin"
    need 'temporary files are left' nothing_left
    end
}

test_trips() {
    local dtype model now
    need 'did not run' train 3 fp32 -e l2h2c40v257t32 -b 1 -x 2 -n 1 -u 0 -z 3 --dtype fp32
    need 'did not run' train 2 bf16 -e l2h2c40v257t32 -b 1 -x 2 -n 1 -u 0 -z 2 --dtype bf16
    trip 'three ranks, stage 3, fp32' fp32
    trip 'two ranks, stage 2, bf16' bf16

    begin 'export.the masters are what is written'
    need 'fp32: another model than llm.c gets' same fp32.bin fp32/model_00000002.bin
    need 'bf16: another model than llm.c gets' same bf16.16.bin bf16/model_00000002.bin
    need 'bf16: the masters are rounded' not same bf16.bin bf16.16.bin
    need 'an older checkpoint' export_model fp32/step_00000001 first.bin
    need 'an older checkpoint: another model' same first.bin fp32/model_00000001.bin
    end

    begin 'export.a run starts from each alike'
    for dtype in fp32 bf16; do
        for model in fp32.bin fp32.hf; do
            need "$model as $dtype: did not run" train 2 from -e "$dir/$model" -b 1 -x 1 -u 0 --dtype $dtype
            mv "$dir/from" "$dir/from.$model.$dtype"
        done
        now="$(first_loss from.fp32.hf.$dtype) $(hash_of from.fp32.hf.$dtype)"
        need "$dtype: $now is another run than from the file" \
            [ "$now" = "$(first_loss from.fp32.bin.$dtype) $(hash_of from.fp32.bin.$dtype)" ]
    done
    need 'there is no loss' [ -n "$(first_loss from.fp32.hf.fp32)" ]
    need 'there is no digest' [ -n "$(hash_of from.fp32.hf.fp32)" ]
    end

    begin 'export.the files of the folder'
    need "has $(ls "$dir/fp32.hf")" [ "$(cd "$dir/fp32.hf" && echo *)" = \
        'config.json generation_config.json merges.txt model.safetensors tokenizer_config.json vocab.json' ]
    need 'without a tokenizer' export_model fp32 plain --tokenizer none
    need "has $(ls "$dir/plain")" [ "$(cd "$dir/plain" && echo *)" = \
        'config.json generation_config.json model.safetensors' ]
    end
}

# --------

# refused NAME PATTERN FROM TO ARGUMENT...: it fails and says so, and neither TO nor a temporary file is left
refused() {
    local name=$1 pattern=$2 from=$3 to=$4
    begin "export.refused.$name"
    need 'it is taken' not export_model "$from" "$to" "${@:5}"
    need "says: $(cat "$dir/said")" grep -qE "$pattern" "$dir/said"
    need 'something is left' [ "$(find "$dir" -maxdepth 1 -name "$(basename "$to")*" | wc -l)" = 0 ]
    end
}

test_refused() {
    local states
    need 'did not run' train 2 good -e l1h2c32v257t32 -b 1 -x 2 -n 2 -u 0 --dtype fp32
    refused 'another option' 'option -b: it has no meaning with --export' good a.bin -b 4
    refused 'fp16' 'option --dtype fp16: an export is in fp32 or bf16' good a.bin --dtype fp16
    refused 'no model' 'none.bin: cannot open: No such file' none.bin a.hf
    refused 'an empty folder' 'no complete checkpoint in this folder, and no model.safetensors' . a.hf
    refused 'no place' 'nowhere/a.hf.*No such file' good nowhere/a.hf
    refused 'a tokenizer for llm.c' 'option --tokenizer .*: .*a.bin is llm.c.s file, which has no tokenizer' \
        good a.bin --tokenizer data/stories_tokenizer.bin
    refused 'no tokenizer' 'stories_val.bin: not a tokenizer file' good a.hf --tokenizer data/stories_val.bin

    begin 'export.refused.options'
    need 'no --to' not "$trainer" --export "$dir/good" >"$dir/said" 2>&1
    need "no --to says: $(cat "$dir/said")" grep -q 'option --export .*: add --to' "$dir/said"
    need 'no --export' not "$trainer" --to "$dir/a.bin" >"$dir/said" 2>&1
    need "no --export says: $(cat "$dir/said")" grep -q 'option --to .*: add --export' "$dir/said"
    need 'two ranks' not timeout 20 mpirun --oversubscribe -np 2 "$trainer" --export "$dir/good" \
        --to "$dir/a.bin" >"$dir/said" 2>&1
    need "two ranks: $(cat "$dir/said")" grep -q 'start it without mpirun' "$dir/said"
    end

    begin 'export.refused.nothing is written over'
    echo mine >"$dir/mine.bin"
    mkdir "$dir/mine.hf" && echo mine >"$dir/mine.hf/file"
    need 'a file' not export_model good mine.bin
    need "a file: $(cat "$dir/said")" grep -q 'is there already' "$dir/said"
    need 'a folder' not export_model good mine.hf
    need "a folder: $(cat "$dir/said")" grep -q 'is there already and not empty' "$dir/said"
    mkdir "$dir/empty" && ln -s empty "$dir/link.hf" && ln -s nowhere "$dir/link.bin"
    need 'a link to an empty folder' not export_model good link.hf/
    need "such a link: $(cat "$dir/said")" grep -q 'link.hf: is a link; name the folder itself' "$dir/said"
    need 'a link to nothing' not export_model good link.bin
    need "such a link: $(cat "$dir/said")" grep -q 'link.bin: is there already' "$dir/said"
    need 'something was written' [ -z "$(ls -A "$dir/empty"; compgen -G "$dir/link*.tmp")" ]
    need 'they have changed' [ "$(cat "$dir/mine.bin" "$dir/mine.hf"/*)" = "$(printf 'mine\nmine')" ]
    end

    begin 'export.refused.a full disk'
    for to in full.bin full.hf; do
        need "$to: it is taken" not bash -c "trap '' XFSZ; ulimit -f 16
            exec '$trainer' --export '$dir/good' --to '$dir/$to' >'$dir/said' 2>&1"
        need "$to says: $(cat "$dir/said")" grep -q 'cannot write: File too large' "$dir/said"
    done
    need 'something is left' [ -z "$(find "$dir" -maxdepth 1 -name 'full*')" ]
    end

    cp "$dir/good/model_00000002.bin" "$dir/saved.bin"
    printf X | dd of="$dir/good/model_00000002.bin" bs=1 seek=20000 conv=notrunc status=none
    refused 'a damaged model file' 'model_00000002.bin: damaged' good/model_00000002.bin a.hf
    mv "$dir/saved.bin" "$dir/good/model_00000002.bin"
    states=$(echo "$dir"/good/step_00000002/rank00001-*.states)
    printf X | dd of="$states" bs=1 seek=20000 conv=notrunc status=none
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
    need 'did not run' train 2 shown -e l3h2c48v257t64 -b 2 -x 20 -n 20 -u 0 --dtype bf16
    for dtype in fp32 bf16; do
        begin "export.transformers.$dtype"
        need "to a folder: $(cat "$dir/said")" export_model shown shown.$dtype --dtype $dtype
        need "to .bin: $(cat "$dir/said")" export_model shown shown.$dtype.bin --dtype $dtype
        timeout 240 "${PYTHON:-python3}" dev/check_export.py "$dir/shown.$dtype" "$dir/shown.$dtype.bin" \
            >"$dir/said" 2>&1
        status=$?
        if [ $status = 77 ]; then
            skip "export.transformers.$dtype" "$(tail -n 1 "$dir/said")"
            continue
        fi
        need "$(tail -n 5 "$dir/said")" [ $status = 0 ]
        cat "$dir/said"
        end
    done
}

for group in "${@:-trips}"; do "test_$group"; done
finish export
