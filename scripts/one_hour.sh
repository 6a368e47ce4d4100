#!/usr/bin/env bash
# Trains a GPT-2 of 11 million parameters on this project's own text, on two CPU cores at ZeRO stage 3, within
# an hour. The text is its code and documents, one token per byte; every twentieth file is for validation.
# Then it repeats the last tenth of the run with all model states on NVMe, which must give the same bits, and
# compares the model with xz. docs/one-hour.md has a result.
# Usage: scripts/one_hour.sh [FOLDER]      FOLDER: default build/one_hour; run again, it resumes
# STEPS=3000 in the environment: the number of steps, a multiple of 10
set -eu -o pipefail
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
out=${1:-build/one_hour} steps=${STEPS:-3000}
stop() { echo "one_hour.sh: $*" >&2; exit 1; }
[[ $steps =~ ^[1-9][0-9]*0$ ]] || stop "STEPS=$steps: not a multiple of 10"
for program in ./train_gpt2_zero build/make_tokens; do
    [ -x $program ] || stop "$program does not exist: make train_gpt2_zero build/make_tokens"
done
command -v xz >/dev/null || stop 'xz is missing: apt-get install xz-utils'
mkdir -p "$out"

# ---- the text
find ./*.md ./*.cu llmc_zero gpt2 trainer tests dev scripts docs -regextype egrep \
    -regex '.*[.](c|h|cu|cuh|cpp|def|mk|sh|pl|pm|py|md)' | LC_ALL=C sort >"$out/files"
awk 'NR % 20 == 10' "$out/files" | xargs cat >"$out/val.txt"
awk 'NR % 20 != 10' "$out/files" | xargs cat >"$out/train.txt"
awk 'NR % 20 == 10' "$out/files" | xargs build/make_tokens -o "$out/val" --val 100%
awk 'NR % 20 != 10' "$out/files" | xargs build/make_tokens -o "$out/text" --val 0

# ---- the hour
train=(mpirun --oversubscribe -np 2 ./train_gpt2_zero -z 3 -e l6h6c384v257t512 -i "$out/text_train.bin"
    -j "$out/val_val.bin" --tokenizer "$out/text_tokenizer.bin" --dtype bf16 --threads 1 -b 8 -x "$steps"
    -l 1e-3 -u $((steps / 25)) -c 0.1 -v $(((steps + 19) / 20)) -m -1 -s 0 -n $((steps / 10)))
echo "\$ ${train[*]} -o $out/run -y 1"
"${train[@]}" -o "$out/run" -y 1 | awk '!/^step / || ++n % 100 == 0 { print; fflush() }'
./train_gpt2_zero -e "$out/run" --temperature 0.7 -g 500 --prompt '// Returns'

# ---- its last tenth, with parameters, gradients and optimizer states on NVMe
last=$(printf step_%08d $((steps * 9 / 10)))
disk=$(mktemp -d "$out/nvme.XXXXXX")
trap 'rm -rf "$disk"' EXIT
nvme=(-o "$disk/run" --resume "$out/run/$last" --offload-optimizer nvme --offload-param nvme
    --offload-gradients nvme --nvme "$disk")
echo "\$ ${train[*]} ${nvme[*]}"
"${train[@]}" "${nvme[@]}" | awk '!/^step /'
hash() { sed -nE 's/.*"params_hash": "([^"]*)".*/\1/p' "$1/summary.json"; }
echo "params_hash: $(hash "$out/run") in memory, $(hash "$disk/run") on NVMe"
[ "$(hash "$out/run")" = "$(hash "$disk/run")" ] || stop 'the two runs differ'

# ---- how good is it? xz's bits for the validation text after the training text, beside the model's
packed() { cat "$@" | xz -9e --threads 1 | wc -c; }
loss=$(sed -nE 's/^s:[0-9]+ tel:(.*)/\1/p' "$out/run/main.log" | tail -n 1)
awk -v loss="$loss" -v size="$(wc -c <"$out/val.txt")" \
    -v xz=$(($(packed "$out/train.txt" "$out/val.txt") - $(packed "$out/train.txt"))) \
    'BEGIN { printf "validation: %.2f bits per byte; xz -9e, which has read the training text: %.2f\n",
        loss / log(2), 8 * xz / size }'
perl dev/pictures/draw.pl one_hour "$out" >"$out/loss.svg.part"
mv "$out/loss.svg.part" "$out/loss.svg" && echo "$out/loss.svg"
