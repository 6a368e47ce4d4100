#!/usr/bin/env bash
# A run goes on at other numbers of ranks, with other micro-batches, stages and tiers: it takes the rows that
# the uninterrupted run took, over the end of an epoch that is in the middle of a step, and every loss and
# gradient norm agrees with that run's within the rounding of sums.
# Usage: tests/elastic.sh TRAINER
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:?Usage: tests/elastic.sh TRAINER}") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1

# shard NAME FIRST TOKENS: a part of the stories
shard() {
    {
        head -c 8 data/stories_train.bin
        # shellcheck disable=SC2059
        printf "\\x$(printf %x $(($3 % 256)))\\x$(printf %x $(($3 / 256)))\\0\\0"
        tail -c +13 data/stories_train.bin | head -c 1012
        tail -c +$((1025 + 2 * $2)) data/stories_train.bin | head -c $((2 * $3))
    } >"$dir/$1"
}
shard rows_1.bin 0 $((50 * 32 + 1))
shard rows_2.bin 5000 $((41 * 32 + 1))

# 91 rows, of which a step takes 60: an epoch ends within every other step.
args=(-e l2h2c32v257t32 -d 1920 -x 11 -k constant -u 0 -v 0 -s 0 --threads 1 --overlap 0 --device cpu
    -i "$dir/rows_*.bin" -j data/stories_val.bin --tokenizer data/stories_tokenizer.bin --comm-timeout 20)
# run RANKS NAME ARGUMENT...
run() {
    local launcher=(mpirun --oversubscribe -np "$1")
    [ "$1" != 1 ] || launcher=()
    timeout -k 2 60 "${launcher[@]}" "$trainer" "${args[@]}" -o "$dir/$2" "${@:3}" >"$dir/$2.screen" 2>&1 \
        </dev/null
}
# figures RUN: step, loss and norm of steps 6 and later, the last time that each was made
figures() {
    sed -nE 's/.*"step": ([0-9]+), "loss": ([^,]+), "grad_norm": ([^,]+),.*/\1 \2 \3/p' \
        "$dir/$1/metrics.jsonl" |
        awk '$1 > 5 { line[$1] = $0 } END { for (s = 6; s <= 11; s++) print line[s] }'
}
# The largest difference of a figure, as a part of it; 1 where a step is missing.
difference() {
    paste <(figures "$1") <(figures "$2") | awk '
        function far(a, b) { return a > b ? (a - b) / a : (b - a) / b }
        NF != 6 || $1 != $4 { most = 1 }
        NF == 6 { d = far($2, $5); if (d > most) most = d; d = far($3, $6); if (d > most) most = d }
        END { print (NR == 6 ? most + 0 : 1) }'
}

for dtype in fp32 bf16; do
    begin "elastic.$dtype, the uninterrupted run"
    need 'it did not run' run 2 $dtype.straight --dtype $dtype -b 6
    need 'five steps did not run' run 2 $dtype.five --dtype $dtype -b 6 -x 5 -n 5
    end
    limit=$([ $dtype = fp32 ] && echo 1e-6 || echo 5e-3)
    while read -r ranks arguments; do
        [ $dtype = fp32 ] || [ $((ranks % 2)) = 1 ] || continue
        begin "elastic.$dtype, goes on with $ranks ranks, $arguments"
        cp -r "$dir/$dtype.five" "$dir/other"
        # shellcheck disable=SC2086
        need 'it did not run' run "$ranks" other --dtype $dtype $arguments -y 1
        need 'it did not resume' grep -q '^resuming at step 5$' "$dir/other.screen"
        apart=$(difference $dtype.straight other)
        need "figures are $apart apart" number "$apart <= $limit"
        end
        rm -rf "$dir/other"
    done <<END
1 -b 60
1 -b 3 -z 0
1 -b 4 -z 3 --offload-optimizer nvme --offload-param nvme --nvme $disk
2 -b 1 -z 1
2 -b 15 -z 2 --offload-optimizer cpu
3 -b 4 -z 3
3 -b 10 -z 2
4 -b 5 -z 3 --offload-optimizer nvme --nvme $disk
4 -b 1 -z 0
5 -b 4 -z 1
5 -b 12 -z 3
END
done
finish elastic
