#!/usr/bin/env bash
# make demo trains a GPT-2 of 0.8 million parameters to write stories, with ZeRO-3 on two ranks, in about a
# minute. make demo TEXT=my.txt trains it on the bytes of your own text and validates on the first tenth, but
# at most 100000 bytes. Each demo gets a new folder: build/demo, build/demo.2 and so on; none is removed.
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
mkdir -p build
out=build/demo number=1
until mkdir "$out" 2>/dev/null; do
    number=$((number + 1)) out=build/demo.$number
done
data="" prompt="Once upon a time"
if [ -n "${TEXT:-}" ]; then
    build/make_tokens -o "$out/text" --documents paragraph \
        --val $((size < 1000000 ? size / 10 : 100000)) "$TEXT"
    data=" -i $out/text_train.bin -j $out/text_val.bin --tokenizer $out/text_tokenizer.bin" prompt="The"
fi
command="mpirun --oversubscribe -np 2 ./train_gpt2_zero -z 3 -v 500 --temperature 0.7 -o $out$data -x"
echo "\$ $command $steps"
# On a terminal the trainer draws a progress bar. Elsewhere it prints a line per step, and the demo shows
# every 250th. $out/main.log has all steps.
if [ -t 1 ]; then $command "$steps"; else
    $command "$steps" | awk '!/^step / || ++n % 250 == 1 { print; fflush() }'
fi
cat <<END
model, logs and figures: $out
sample from the model:
  ./train_gpt2_zero -e $out --temperature 0.7 --prompt "$prompt"
continue for twice the steps (the learning rate starts high again, so the loss rises at first):
  $command $((2 * steps)) -y 1
END
