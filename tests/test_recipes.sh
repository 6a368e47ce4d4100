#!/usr/bin/env bash
# Tests scripts/run_gpt2_*.sh: the stage, recompute level and batch that they choose for a machine's GPUs, and
# a run of a tiny model on CPUs. Tests scripts/score_gpt2.sh with a tiny model, and with a fake trainer that
# prints given scores.
# Usage: tests/test_recipes.sh TRAINER
# shellcheck disable=SC2016,SC2086
. "$(dirname "$0")/cases.sh"
TRAINER=$(realpath "$1")
screen=$dir/screen OUT=$dir/out DATA=$dir/data
export TRAINER OUT DATA
mkdir "$dir/bin" "$DATA"
# A fake nvidia-smi that reports GPUs of $MEMORIES MiB, or none.
printf '#!/bin/sh\n[ -n "$MEMORIES" ] && printf "%%s\\n" $MEMORIES\n' >"$dir/bin/nvidia-smi"
chmod +x "$dir/bin/nvidia-smi"
# recipe SIZE OPTION [NAME=VALUE]...
recipe() {
    timeout $hang_limit env PATH="$dir/bin:$PATH" MEMORIES= "${@:3}" "scripts/run_gpt2_$1.sh" $2 \
        >"$screen" 2>&1
    status=$?
}

# SIZE | SETTINGS | STATUS | EXPECTED. The plan's totals are far from the limits, so that they may change.
while IFS='|' read -r size settings expected_status expected; do
    begin "recipe.$size $settings"
    recipe "$size" --dry-run $settings
    is status "$status" "$expected_status"
    has "$screen" "$expected"
    end
done <<'END'
124M||0|-np 8 .* -e d12 .* -b 64 -t 1024 -d 524288 -x 18865 -l 6e-4 -k cosine -u 700 .* -z 1 -r 0 .* -h 1
350M||0|-np 8 .* -e d24 .*fineweb100B/fineweb_train.* -b 64 .* -d 524288 -x 60000 -l 3e-4 .* -z 1 -r 0
774M||0|-np 8 .* -e d36 .* -b 32 .* -d 524288 -x 286102 -l 2.5e-4 .* -z 1 -r 0
1558M||0|-np 8 .* -e d48 .*/edu_fineweb_train.* -b 16 .* -d 1048576 -x 32000 -l 6e-4 .* -q 0.1 .* -z 1 -r 0
1558M|GPUS=8 MEMORY=46000|0|^# stage 1, -r 1, -b 16: [0-9.]+ of 46000 MiB
1558M|GPUS=8 MEMORY=33000|0|^# stage 3, -r 2, -b 16: [0-9.]+ of 33000 MiB
1558M|GPUS=8 MEMORY=12288|0|^# stage 3, -r 2, -b 4: [0-9.]+ of 12288 MiB
1558M|GPUS=8 MEMORY=10240|0|^# stage 3, -r 3, -b 16: [0-9.]+ of 10240 MiB
1558M|GPUS=8 MEMORY=6144|0|^# stage 3, -r 3, -b 4: [0-9.]+ of 6144 MiB
124M|GPUS=2 MEMORY=16384|0|^# stage 1, -r 0, -b 32: [0-9.]+ of 16384 MiB
1558M|GPUS=1 MEMORY=16384|1|does not fit into 16384 MiB per GPU
124M|GPUS=3|1|GPUS=3: the 512 sequences of a step cannot be divided
124M|STAGE=3 RECOMPUTE=2 BATCH=32|0|-np 8 .* -b 32 .* -z 3 -r 2
124M|GPUS=64|0|-np 64 .* -b 8
END

begin 'recipe.the GPUs found and the memory of the smallest, no GPU, and missing data'
recipe 124M --dry-run MEMORIES='81559 24576'
has "$screen" '^# stage 1, -r [0-3], -b 64: .* of 24576 MiB' '-np 2 '
recipe 124M ''
is status "$status" 1
has "$screen" 'run_gpt2_124M.sh: no GPU found. --dry-run plans'
recipe 124M --dry-run
has "$screen" "^env DATA=$DATA scripts/download.sh tokenizer hellaswag" \
    "^env DATA=$DATA scripts/download.sh fineweb:99"
end

begin 'recipe.a run with existing data'
ln -s "$PWD/data/stories_train.bin" "$DATA/fineweb_train_000001.bin"
ln -s "$PWD/data/stories_val.bin" "$DATA/fineweb_val_000000.bin"
: >"$DATA/hellaswag_val.bin"
recipe 124M '' GPUS=2 ARGUMENTS='-h 0 --device cpu --tokenizer none -e l2h2c32v257t64 -b 2 -t 64 -d 256 -x 3'
is status "$status" 0
has "$screen" 'step    3/3 .* lr 2.57e-06 ' ' in the median step '     # a warm-up of 700 steps to 6e-4
need 'no summary' [ -e "$OUT/summary.json" ]
end

# score ARGUMENT...: runs scripts/score_gpt2.sh
score() {
    timeout $hang_limit env BATCH=1 ARGUMENTS='--device cpu --threads 1' scripts/score_gpt2.sh "$@" \
        >"$screen" 2>&1
    status=$?
}
swag=tests/reference_hellaswag.bin
begin 'score.a model in both formats, with no published values'
"$TRAINER" -e l1h2c32v257t64 -x 1 -b 1 -v 0 -s 0 --device cpu -o "$dir/tiny" >"$screen" 2>&1
for model in tiny.bin tiny.hf; do
    "$TRAINER" --export "$dir/tiny" --to "$dir/$model" >"$screen" 2>&1
    TOKENS=1000 score "$dir/$model" --val "$DATA/fineweb_val_000000.bin" --hellaswag $swag
    is status "$status" 0
    has "$screen" '^model: no released GPT-2, L 1, C 32, V 257$' \
        "^validation loss +960 tokens of fineweb_val_000000.bin +$(awk '/^val loss/ { printf "%.4f", $3 }' \
            "$screen") +- +- +- +-$" \
        "^HellaSwag +10 examples +$(awk '/^HellaSwag:/ { printf "%.4f", $4 }' "$screen") +- +- +- +-$"
done
end

# The fake trainer prints the lines of a run with shape "L C", loss and score in $SHOWN.
cat >"$dir/bin/trainer" <<'END'
#!/bin/bash
read -r L C loss score <<<"$SHOWN"
echo "model      x: 1 parameters, L $L, NH 1, C $C, V 50257, longest sequence 64"
case $* in *--plan*) exit ;; esac
printf 'batch B 1 x T 64 x 1 rank\nval loss %s\nHellaSwag: %s = 0\n' $loss $score
END
chmod +x "$dir/bin/trainer"
for val in openwebtext other; do ln -s "$PWD/data/stories_val.bin" "$DATA/${val}_val.bin"; done
# STATUS | VALIDATION TOKENS | L C LOSS SCORE | EXPECTED
while IFS='|' read -r expected_status val shown expected; do
    begin "score.$shown on $val"
    SHOWN=$shown TRAINER=$dir/bin/trainer score x --val "$DATA/$val" --hellaswag $swag
    is status "$status" "$expected_status"
    has "$screen" "$expected"
    end
done <<'END'
0|fineweb_val_000000.bin|12 768 3.42 2987/10042|^HellaSwag .* 0.2975 +0.2955 +\+0.0020 +0.002  llm.c, dev/da
1|fineweb_val_000000.bin|12 768 3.42 2947/10042|^further off than allowed: HellaSwag$
1|fineweb_val_000000.bin|24 1024 3.11 3768/10042|^further off than allowed: validation loss$
1|fineweb_val_000000.bin|36 1280 2.9 1/4|^further off than allowed: validation loss, HellaSwag$
0|fineweb_val_000000.bin|48 1600 2.83 4914/10042|^validation loss .* 2.8300 +2.8313 +-0.0013 +0.02  llm.c
0|openwebtext_val.bin|12 768 3.11 2967/10042|^validation loss .* 3.1100 +3.12 +-0.0100 +0.02  nanoGPT
0|other_val.bin|12 768 9 2967/10042|^validation loss .* 9.0000 +- +- +- +-$
END

mkdir "$dir/llama"
echo '{"model_type": "llama"}' >"$dir/llama/config.json"
: >"$dir/llama/model.safetensors"
# MODEL | VALIDATION TOKENS | HELLASWAG | EXPECTED
while IFS='|' read -r model val file expected; do
    begin "score.refused.$expected"
    score "$model" --val "$val" --hellaswag "$file"
    is status "$status" 2
    has "$screen" "$expected"
    end
done <<END
l1h2c32v257t64|none.bin|$swag|none.bin does not exist: scripts/download.sh fineweb:1, or --val
l1h2c32v257t64|data/stories_val.bin|none.bin|none.bin does not exist: scripts/download.sh hellaswag, or --hell
l1h2c32v40t64|data/stories_val.bin|$swag|outside the vocabulary of 40
$dir/llama|data/stories_val.bin|$swag|"model_type" is "llama"; only "gpt2" can be read
$dir/nowhere|data/stories_val.bin|$swag|nowhere: no file or folder of this name
END
finish recipes
