#!/usr/bin/env bash
# Trains the same few steps at ZeRO stages 0 to 3 and prints them as one table: memory, bytes sent, step time,
# loss, and a digest of the parameters.
# Usage: scripts/compare_stages.sh [RANKS] [trainer options...]      default: 4 ranks, 20 steps of a model of
# 10.8 million parameters, whose states need far more memory than its activations. -e chooses another model.
# The runs are kept in build/compare/stage0 .. stage3 (or OUT=folder) for make plots. TRAINER=program runs
# another trainer. All four digests must be equal. With gradient accumulation (-d), stage 0 must equal stage
# 1, and stage 2 must equal stage 3. Otherwise the exit status is 1.
set -eu
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
ranks=4 out=${OUT:-build/compare} trainer=${TRAINER:-./train_gpt2_zero}
case ${1:-} in [0-9]*) ranks=$1; shift ;; esac
model=(-e l6h8c384v257t64 -b 2)
fail() { echo "compare_stages.sh: $*" >&2; exit 1; }
for option in "$@"; do case $option in
    --help) sed -n '2,8s/^# //p' scripts/compare_stages.sh; exit 0 ;;
    -z | -o | -[zo]=*) fail "option $option: this script sets the stages and their folders (OUT=folder)" ;;
    -e | -e=*) model=() ;;
esac; done
[ -x "$trainer" ] || fail "$trainer does not exist: make train_gpt2_zero"

# value KEY: prints a value from the run's summary
value() { sed -nE "s/.*\"$1\": \"?([^\",{}]+).*/\1/p" "$folder/summary.json"; }
# batch PATTERN: prints the number that PATTERN captures from the `batch` line
batch() { sed -nE "s/^batch .* $1.*/\1/p" "$folder.screen"; }

mkdir -p "$out"
rows=() hashes=()
for stage in 0 1 2 3; do
    folder=$out/stage$stage
    [ ! -t 2 ] || printf '\rstage %d ...' $stage >&2
    rm -f "$folder"/{main.log,metrics.jsonl,run.json,summary.json}   # from an earlier comparison
    mpirun --oversubscribe -np "$ranks" "$trainer" -x 20 -v 0 -s 0 -n 0 "${model[@]}" "$@" -z $stage \
        -o "$folder" >"$folder.screen" 2>&1 </dev/null || {
        grep -a '^train_gpt2_zero: ' "$folder.screen" >&2 || tail -n 3 "$folder.screen" >&2
        fail "stage $stage failed; its output is in $folder.screen"
    }
    hashes+=("$(value params_hash)")
    rows+=("$stage $(value model_state_bytes) $(value working_bytes) $(value activation_bytes) $(value \
        all_gather) $(value reduce_scatter)\
 $(value all_reduce) $(batch '([0-9]+) tokens per') $(value tokens_per_s) $(value loss) ${hashes[stage]}")
done
[ ! -t 2 ] || printf '\r            \r' >&2

grep -E '^(model|batch|numbers) ' "$folder.screen"
printf '%s\n' '' '       memory per rank, MiB                        sent per step,    median' \
    'stage   states  working  activations  together  MiB per rank   step, ms       loss  params_hash'
printf '%s\n' "${rows[@]}" | awk '{ M = 1048576
    printf "%5d %8.1f %8.1f %12.1f ", $1, $2 / M, $3 / M, $4 / M
    printf "%9.1f %13.2f ", ($2 + $3 + $4) / M, ($5 + $6 + $7) / M
    printf "%10.2f %10.6f  %s\n", $9 ? 1000 * $8 / $9 : 0, $10, $11 }'
echo
micro=$(batch '([0-9]+) micro-batches')
if [ "${hashes[0]}" != "${hashes[1]}" ] || [ "${hashes[2]}" != "${hashes[3]}" ]; then
    fail 'the digests differ between stages 0 and 1 or between 2 and 3: this is a bug'
elif [ "${hashes[0]}" = "${hashes[2]}" ]; then
    echo 'All four stages computed the same bits.'
elif [ "${micro:-1}" -gt 1 ]; then
    echo "With $micro micro-batches: stages 0 and 1 computed the same bits, and so did 2 and 3."
else
    fail 'the digests of stages 0 and 2 differ: this is a bug'
fi
