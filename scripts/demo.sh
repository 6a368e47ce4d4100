#!/usr/bin/env bash
# make demo trains a GPT-2 of 0.8 million parameters to write stories, with ZeRO-3 on two ranks, in about a
# minute. make demo TEXT=my.txt trains it on the bytes of your own text and validates on the first tenth, but
# at most 100000 bytes. Each demo gets a new folder: build/demo, build/demo.2 and so on; none is removed.
# `demo.sh check` only checks STEPS and TEXT, so that make demo does it before it builds.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
steps=${STEPS:-3000}
[[ $steps =~ ^[1-9][0-9]*$ ]] || { echo "STEPS=$steps: not a number of steps" >&2; exit 1; }
if [ -n "${TEXT:-}" ]; then
    least=10500 # validation gets a tenth, and needs a batch of 1024 tokens for two ranks
    [ -f "$TEXT" ] || { echo "TEXT=$TEXT: no such file" >&2; exit 1; }
    size=$(stat -L -c %s "$TEXT")
    [ "$size" -ge $least ] || {
        echo "TEXT=$TEXT: $size bytes of text are too few to train on; at least $least are needed" >&2
        exit 1
    }
fi
[ "${1:-}" != check ] || exit 0
mkdir -p build
out=build/demo number=1
until mkdir "$out" 2>/dev/null; do
    [ -e "$out" ] || { mkdir "$out"; break; } # another error than "exists": mkdir prints it
    number=$((number + 1)) out=build/demo.$number
done
data="" prompt="Once upon a time"
if [ -n "${TEXT:-}" ]; then
    build/make_tokens -o "$out/text" --documents paragraph \
        --val $((size < 1000000 ? size / 10 : 100000)) "$TEXT"
    data=" -i $out/text_train.bin -j $out/text_val.bin --tokenizer $out/text_tokenizer.bin" prompt="The"
fi
# On a terminal the trainer draws a progress bar. $out/main.log has all steps.
[ -t 1 ] && progress="" || progress=" --progress few"
trainer="./train_gpt2_zero -o $out$data" more=$(((steps + 14) / 15))
command="mpirun --oversubscribe -np 2 $trainer -z 3 -v 500 --temperature 0.7 -x $steps$progress"
echo "\$ $command"
$command
cat <<END
model, logs and figures: $out
sample from the model:
  ./train_gpt2_zero -e $out --temperature 0.7 --prompt "$prompt"
continue for $more more steps on four ranks, each with half the rows:
  mpirun --oversubscribe -np 4 $trainer -y 1 -b 4 -x $((steps + more))$progress
END
