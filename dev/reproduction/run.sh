#!/usr/bin/env bash
# Trains one small GPT-2 from the same initial weights on the same tokens in llm.c's CPU trainer, in PyTorch,
# and here on two ranks at ZeRO stages 0 to 3, in fp32 and bf16. Prints the largest differences of the losses
# and draws OUT/reproduction.svg. docs/reproduction.md explains both.
# Usage: [SETTING=value]... dev/reproduction/run.sh [trainer options...]
#   options for our runs only, to see that a difference is noticed: --beta2 0.95, or --shuffle 1
#   STEPS=1000   LLMC=https://github.com/karpathy/llm.c, or a clone of it
#   PYTHON=python3, with torch and numpy   OUT=build/reproduction
# Exit status: 1 if stages differ in a bit, or if losses differ from llm.c's by more than compare.pl allows.
set -eu
python=${PYTHON:-python3} llmc=${LLMC:-https://github.com/karpathy/llm.c}
case $python in */*) python=$(realpath -s "$python") ;; esac
case $llmc in *://*) ;; *) llmc=$(realpath "$llmc") ;; esac
out=$(realpath -m "${OUT:-$(dirname "$0")/../../build/reproduction}")
cd "$(dirname "$0")/../.."
. scripts/mpi_env.sh
fail() { echo "reproduction: $*" >&2; exit 1; }
[ -x train_gpt2_zero ] || fail 'train_gpt2_zero does not exist: make train_gpt2_zero'
commit=f1e2ace651495b74ae22d45d1723443fd00ecd3a     # of llm.c
# B and T, both betas and epsilon are those that llm.c's trainer has in its source.
export STEPS=${STEPS:-1000} LR=3e-4
export OMP_WAIT_POLICY=passive     # or waiting threads of llm.c and PyTorch take the cores from others
B=4 T=64 tokens=data/stories_train.bin
fixed=(--device cpu --threads 1 -v 0 -s 0 -t "$T")
same=(-i "$tokens" --shuffle 0 -x "$STEPS" -b $((B / 2)) -l "$LR" -k constant -u 0 -q 1 -c 0 --clip 0
    --beta1 0.9 --beta2 0.999 --eps 1e-8 -n 0)
mkdir -p "$out"
rm -rf "$out"/{init,llmc,torch,here}.*

# logged NAME COMMAND...: its output is OUT/NAME.log
logged() {
    local log=$out/$1.log
    echo "$1 ..." >&2
    "${@:2}" >"$log" 2>&1 </dev/null || fail "$1 failed: $(tail -n 3 "$log")"
}
# The initial weights, in llm.c's format
logged init.fp32 ./train_gpt2_zero "${fixed[@]}" -e "l4h4c128v257t$T" -x 0 --dtype fp32 -o "$out/init.fp32"
model=$out/init.fp32/model_00000000.bin

# change FROM TO: replaces the only occurrence of a text in llm.c's trainer
change() {
    FROM=$1 TO=$2 perl -0777 -pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/g == 1 or die "no single $ENV{FROM}\n"' \
        "$out/llm.c/train_gpt2.c"
}
build_llmc() (
    { [ -d "$out/llm.c" ] || timeout 300 git clone -q "$llmc" "$out/llm.c"; } &&
    cd "$out/llm.c" && git checkout -qf $commit &&
    change 'step <= 40' "step < $STEPS" &&
    change 'train_tokens, B, T, 0, 1, 1)' 'train_tokens, B, T, 0, 1, 0)' &&     # not shuffled
    change 'step % 10 == 0' 0 &&                                                # neither validation
    change 'step > 0 && step % 20 == 0' 0 &&                                    # nor samples
    change '1e-4f' "${LR}f" &&
    change 'train loss %f' 'train loss %.9g' &&
    git diff -U0 &&
    make -B train_gpt2
)
logged llmc.build build_llmc
data=$out/llm.c/dev/data/tinyshakespeare
mkdir -p "$data" "$out"/llmc.fp32
ln -sf "$model" "$out/llm.c/gpt2_124M.bin"
for set in train val; do ln -sf "$PWD/data/stories_$set.bin" "$data/tiny_shakespeare_$set.bin"; done
logged llmc.fp32 env -C "$out/llm.c" ./train_gpt2
sed -nE 's/^step ([0-9]+): train loss (\S+) .*/{"step": \1, "loss": \2}/p' "$out/llmc.fp32.log" \
    >"$out/llmc.fp32/metrics.jsonl"

for dtype in fp32 bf16; do
    if "$python" -c 'import torch, numpy' 2>/dev/null; then
        mkdir -p "$out/torch.$dtype"
        logged torch.$dtype "$python" dev/reproduction/torch_gpt2.py "$model" "$tokens" $B $T $dtype \
            "$out/torch.$dtype/metrics.jsonl"
    else
        echo "No curve of PyTorch in $dtype: $python has no torch or no numpy. This installs them:
    python3 -m venv build/torch && build/torch/bin/pip install torch numpy
    PYTHON=build/torch/bin/python make reproduction" >&2
    fi
    for stage in 0 1 2 3; do
        logged here.$dtype.$stage mpirun --oversubscribe -np 2 ./train_gpt2_zero "${fixed[@]}" "${same[@]}" \
            -e "$model" --dtype $dtype -z $stage -o "$out/here.$dtype.$stage" "$@"
    done
done
perl dev/reproduction/compare.pl "$out"
