#!/usr/bin/env bash
# Scores a model without training, beside the published figures of OpenAI's GPT-2: its validation loss and its
# share of right answers on HellaSwag. docs/checkpoints.md explains the table.
#
# Usage: scripts/score_gpt2.sh MODEL [--val SHARD] [--hellaswag FILE]
#   MODEL              gpt2, gpt2-medium, gpt2-large or gpt2-xl as a Hugging Face folder, llm.c's
#                      gpt2_124M.bin, or anything else that the trainer's -e accepts
#   --val SHARD        validation tokens (data/fineweb_val_000000.bin)
#   --hellaswag FILE   (data/hellaswag_val.bin)
# Settings in the environment:
#   GPUS=1             ranks, started with mpirun if more than one
#   BATCH=8            sequences per rank and batch
#   TOKENS=10485760    validation tokens to use; llm.c's scripts use as many
#   DATA=folder        where the default files are (data)
#   ARGUMENTS="..."    more options for the trainer; the last value of an option wins
# Exit status: 0 all figures are within the tolerance, 1 one is not, 2 the model could not be scored
set -u -o pipefail
invoked=$PWD
cd "$(dirname "$0")/.." || exit 2
. scripts/mpi_env.sh
stop() { echo "score_gpt2.sh: $*" >&2; exit 2; }
usage='expected MODEL [--val SHARD] [--hellaswag FILE]'
trainer=${TRAINER:-./train_gpt2_zero} data=${DATA:-data} ranks=${GPUS:-1} batch=${BATCH:-8}
model='' val=$data/fineweb_val_000000.bin hellaswag=$data/hellaswag_val.bin
# Paths are relative to the caller's folder. A model name such as d12 is not a path.
path() { if [ -e "$invoked/$1" ]; then echo "$invoked/$1"; else echo "$1"; fi; }
while [ $# -gt 0 ]; do
    case $1 in
        --val | --hellaswag) [ $# -gt 1 ] || stop "$1: $usage"; declare "${1#--}=$(path "$2")"; shift ;;
        -*) stop "$1: $usage" ;;
        *) [ -z "$model" ] || stop "$1: $usage"; model=$(path "$1") ;;
    esac
    shift
done
[ -n "$model" ] || stop "$usage"
[ -x "$trainer" ] || stop "$trainer does not exist: make train_gpt2_zero"
[ -e "$val" ] || stop "$val does not exist: scripts/download.sh fineweb:1, or --val SHARD"
[ -e "$hellaswag" ] || stop "$hellaswag does not exist: scripts/download.sh hellaswag, or --hellaswag FILE"

# ---- the evaluation: a run of 0 steps, which validates and scores once

shape=$("$trainer" --plan -e "$model" | sed -nE \
    's/^model .* parameters, L ([0-9]+), .* C ([0-9]+), V ([0-9]+), .* ([0-9]+)$/\1 \2 \3 \4/p')
read -r L C V T <<<"$shape" && [ -n "$L" ] || exit 2
read -r _ _ tokens < <(od -An -tu4 -N 12 "$val")
wanted=${TOKENS:-10485760}
[ "$wanted" -lt "$tokens" ] || wanted=$((tokens - 1))           # the last token is only a target
batches=$((wanted / (batch * T * ranks)))
[ $batches -gt 0 ] || stop "$val: $wanted tokens are fewer than a batch of $batch x $T x $ranks; see BATCH"
screen=$(mktemp) || exit 2
trap 'rm -f "$screen"' EXIT
launcher=()
[ "$ranks" = 1 ] || launcher=(mpirun -np "$ranks" --bind-to none)
read -ra further <<<"${ARGUMENTS:-}"
"${launcher[@]}" "$trainer" -e "$model" -i "$val" -j "$val" --tokenizer none -b "$batch" -x 0 -v 1 \
    -m $batches -s 0 -h 1 --hellaswag "$hellaswag" "${further[@]}" | tee "$screen" || exit 2

# ---- the table

# Sources: llm.c's dev/data/hellaswag.py (PyTorch) and dev/vislog.ipynb, both at commit f1e2ace. The notebook
# does not name its text. Its losses are older than llm.c's support for FineWeb-Edu, so they are FineWeb's.
# Their HellaSwag scores differ by 10 answers (124M) and 4 (1558M), so 20 are allowed. nanoGPT's README is the
# source for OpenWebText.
case "$L $C $V" in        # name, loss on FineWeb and OpenWebText, HellaSwag and its source
    '12 768 50257') known=('gpt2 (124M)' 3.4250 3.12 0.2955 data/hellaswag.py) ;;
    '24 1024 50257') known=('gpt2-medium (350M)' 3.0831 2.84 0.3752 vislog.ipynb) ;;
    '36 1280 50257') known=('gpt2-large (774M)' 3.0006 2.67 0.4320 vislog.ipynb) ;;
    '48 1600 50257') known=('gpt2-xl (1558M)' 2.8313 2.54 0.4893 data/hellaswag.py) ;;
    *) known=('no released GPT-2' '' '' '' '') ;;
esac
case ${val##*/} in
    fineweb_val*) loss=${known[1]} from='llm.c, dev/vislog.ipynb' ;;
    *openwebtext*) loss=${known[2]} from='nanoGPT, README.md' ;;
    *) loss='' from='' ;;
esac
printf '\nmodel: %s, L %d, C %d, V %d\n' "${known[0]}" "$L" "$C" "$V"
awk -v batches=$batches -v val="${val##*/}" -v loss="$loss" -v from="$from" \
    -v score="${known[3]}" -v score_from="llm.c, dev/${known[4]}" '
    function line(what, text, here, published, off, allowed, source) {
        printf "%-16s %-40s %7s %10s %11s %8s  %s\n", what, text, here, published, off, allowed, source
    }
    function row(what, text, here, published, allowed, source) {
        off = here - published
        here = sprintf("%.4f", here)
        if (published == "") { line(what, text, here, "-", "-", "-", "-"); return }
        if (off > allowed || -off > allowed) bad = bad ", " what
        line(what, text, here, published, sprintf("%+.4f", off), allowed, source)
    }
    /^batch / { tokens = batches * $3 * $6 * $8 }
    /^val loss / { here = $3 }
    /^HellaSwag: / { split($2, swag, "/") }
    END {
        line("", "text", "here", "published", "difference", "allowed", "source")
        row("validation loss", tokens " tokens of " val, here, loss, 0.02, from)
        row("HellaSwag", swag[2] " examples", swag[1] / swag[2], score, 0.002, score_from)
        if (loss != "" && tokens < 10000000) print "The published loss is of more tokens."
        if (score != "" && swag[2] != 10042) print "The published score is of 10042 examples."
        if (bad) print "further off than allowed: " substr(bad, 3)
        exit bad != ""
    }' "$screen"
