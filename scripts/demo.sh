#!/usr/bin/env bash
# make demo trains a GPT-2 of 0.8 million parameters to write stories, with ZeRO-3 on two ranks, in about a
# minute. make demo TEXT=my.txt trains it on the bytes of your own text and validates on its first tenth, at
# most 100000 bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
out=build/demo
data=""
if [ -n "${TEXT:-}" ]; then
    least=10500 # validation gets a tenth, and needs a batch of 1024 tokens for two ranks
    [ -f "$TEXT" ] || { echo "TEXT=$TEXT: no such file" >&2; exit 1; }
    size=$(stat -L -c %s "$TEXT")
    [ "$size" -ge $least ] || {
        echo "TEXT=$TEXT: $size bytes of text are not enough for training; at least $least are needed" >&2
        exit 1
    }
    mkdir -p data
    build/make_tokens -o data/demo --documents paragraph --val $((size < 1000000 ? size / 10 : 100000)) \
        "$TEXT"
    data=" -i data/demo_train.bin -j data/demo_val.bin --tokenizer data/demo_tokenizer.bin"
fi
rm -rf "$out"
mkdir -p build
command="mpirun --oversubscribe -np 2 ./train_gpt2_zero -z 3 -v 500 --temperature 0.7 -x ${STEPS:-3000} -o "\
"$out$data"
echo "\$ $command"
# On a terminal the trainer draws a progress bar. Elsewhere it prints one line per step, of which this shows
# every 250th. $out/main.log has all steps.
if [ -t 1 ]; then $command; else $command | awk '!/^step / || ++n % 250 == 1 { print; fflush() }'; fi
echo "logs and figures: $out/main.log, $out/metrics.jsonl, $out/summary.json"
