#!/usr/bin/env bash
# Tests dev/gpu_model.sh: its numbers against hand calculations, its sums, the comparison with a profile, its
# errors, and that docs/internals/gpu_model.md contains its current output.
# Usage: tests/test_gpu_model.sh [write]      write: updates the tables in the document
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/cases.sh
document=docs/internals/gpu_model.md

# Prints the document with updated tables, each between <!-- dev/gpu_model.sh OPTIONS --> and <!-- end -->.
with_new_tables() {
    local line options inside=''
    while IFS= read -r line; do
        [ "$line" != '<!-- end -->' ] || inside=
        [ -n "$inside" ] || printf '%s\n' "$line"
        [[ $line == '<!-- dev/gpu_model.sh '*' -->' ]] || continue
        options=${line#<!-- dev/gpu_model.sh } inside=1
        # shellcheck disable=SC2086
        dev/gpu_model.sh ${options% -->} || return 1
    done <"$document"
}
if [ "${1:-}" = write ]; then
    with_new_tables >"$dir/new" && cat "$dir/new" >"$document"
    exit
fi

out=$dir/out err=$dir/err
model() { dev/gpu_model.sh "$@" >"$out" 2>"$err"; }

# column NAME N: sums column N over the operations whose names start with NAME. Columns are separated by two
# or more spaces.
column() {
    awk -F '  +' -v name="$1" -v n="$2" 'index($1, name) == 1 { sum += $n } END { printf "%.3f", sum }' "$out"
}
LAUNCHES=2 READ=3 WRITTEN=4 TFLOP=5 IDEAL=6 EXPECTED=7
# is NAME COLUMN N UNIT: checks that the column, in 10^UNIT, equals the integer N to the last printed digit
is() {
    local got want
    got=$(column "$1" "$2") want=$(awk -v x="$3" -v unit="$4" 'BEGIN { printf "%.3f", x / 10 ^ unit }')
    number "($got - $want) ^ 2 <= 0.0011 ^ 2" || { echo "$1, column $2: $got, not $want"; return 1; }
}
# Every column must end with the sum of its rows, up to rounding. No operation may beat its ideal time.
sums_hold() {
    awk -F '  +' -v ideal=$IDEAL -v expected=$EXPECTED '
        $1 == "operation" { inside = 1; next }
        function differs(n, digit) { return (sum[n] - $n) ^ 2 > (digit / 2 * (rows + 2)) ^ 2 }
        $1 == "sum" { for (n = 2; n <= 7; n++) bad += differs(n, n == 2 ? 1 : 0.001); seen++; inside = 0 }
        inside { rows++; for (n = 2; n <= 7; n++) sum[n] += $n; bad += $expected < $ideal && $NF != "SMs" }
        END { exit !(seen == 1 && rows > 30 && !bad) }' "$out"
}

begin 'parameters, flops and bytes of 124M'
model
T=1024 BT=$((64 * 1024)) C=768 L=12 Vp=50304 P=124475904
# flops of a matmul over the keys that a causal mask keeps: heads of 64 channels, B 64, 12 heads
heads_flops=$((2 * 64 * 64 * 12 * T * (T + 1) / 2))
need 'parameters' grep -q "^d12, $P parameters, B 64, T 1024" "$out"
need 'no note that nothing is measured' grep -q 'no GPU has been measured' "$out"
need 'an assumption lacks its basis' [ "$(grep -cE '  (assumed|doubted: .+)$' "$out")" = 24 ]
need 'doubted assumptions' [ "$(grep -c '  doubted: ' "$out")" = 4 ]
need 'flops: six per matmul parameter and token, and attention' \
    is sum $TFLOP $((6 * BT * (12 * L * C * C + Vp * C) + 7 * L * heads_flops)) 12
need 'flops of qkv' is 'forward: qkv' $TFLOP $((L * 2 * BT * C * 3 * C)) 12
need 'flops of attention' is 'forward: attention' $TFLOP $((2 * L * heads_flops)) 12
need 'bytes that layernorm 2 reads' is 'forward: residual, layernorm 2' $READ $((L * 2 * BT * C * 2)) 9
need 'bytes that softmax writes' is 'head: softmax' $WRITTEN $((BT * Vp * 2)) 9
need 'bytes that fc and its GELU write' is 'forward: fc, GELU' $WRITTEN $((L * 2 * BT * 4 * C * 2)) 9
need 'bytes that layernorm 1 backward reads' is 'backward: layernorm 1 backward' $READ \
    $((L * (3 * BT * C * 2 + 2 * BT * 4) + L * 132 * 2 * 3 * C * 4)) 9
need 'bytes that the sums of qkv'"'"'s bias gradient read' is 'backward: qkv, bias' $READ \
    $((L * (BT * 3 * C * 2 + 132 * 10 * 256 * 4))) 9
need 'bytes that AdamW reads: gradient, master, moments' is 'plugin: AdamW' $READ $((14 * P)) 9
need 'gradients cleared: biases, layernorms, wpe' is 'plugin: gradients cleared' $WRITTEN \
    $((2 * (L * 13 * C + 2 * C + 1024 * C))) 9
need 'bytes of the norm' is 'plugin: gradient norm' $READ $((2 * P)) 9
need 'sums' sums_hold
end

begin 'several GPUs'
P=1557686400 L=48 block=$((12 * 1600 * 1600 + 13 * 1600))
stays=$((P - (L - 1) * block))    # the embeddings and the last block
model --model d48 --gpu h100 --ranks 8 --stage 3
need 'parameters' grep -q "^d48, $P parameters, B 16, T 1024, bf16, on 8 H100, stage 3" "$out"
need 'gathers: each unit twice, except what stays' is 'plugin: gathers' $WRITTEN $((2 * (2 * P - stays))) 9
need 'reductions: each unit once, 7/8 from other ranks' is 'plugin: reductions' $READ $((2 * P / 8 * 7)) 9
need 'AdamW: an eighth per rank' is 'plugin: AdamW' $READ $((14 * P / 8)) 9
need 'gathers: one per unit in forward, and fewer in backward' is 'plugin: gathers' $LAUNCHES $((2 * L)) 0
need 'exposed gathers: only the first block' is 'plugin: gathers, exposed' $WRITTEN \
    $((2 * block)) 9
need 'reductions: one group per unit' is 'plugin: reductions' $LAUNCHES $((L + 1)) 0
need 'sums' sums_hold
model --model d48 --gpu h100 --ranks 8 --stage 1
need 'stage 1 gathers: each unit once' is 'plugin: gathers' $WRITTEN $((2 * P)) 9
need 'stage 1: has an exposed gather' not grep -q 'gathers, exposed' "$out"
need 'sums, stage 1' sums_hold
model --stage 3
need 'one rank, stage 3: has a collective' not grep -q NVLink "$out"
block=$((12 * 768 * 768 + 13 * 768)) P=124475904
need 'one rank, stage 3: two copies, except what stays' is 'plugin: parameters into slots' $WRITTEN \
    $((2 * (P + 11 * block))) 9
end

# Every kernel in the sources, by its name in a profile, must belong to a group of the model.
begin 'every kernel in the sources has a group'
cat gpt2/*.cu llmc_zero/*/*.cu | tr '\n' ' ' | grep -oE '__global__ [^{;]*' |
    sed 's/__launch_bounds__([^)]*)//; s/ *(.*//; s/.* //' | sort -u >"$dir/kernels"
need 'too few kernels found' [ "$(wc -l <"$dir/kernels")" -gt 12 ]
awk '{ print "void " $1 "<bf16, 8>(bf16 *)\t1\t0.5\t1000\t1000" }' "$dir/kernels" >"$dir/profile.tsv"
need 'the profile was refused' model --measured "$dir/profile.tsv"
need "$(grep -m 1 'not placed:' "$out")" not grep -q 'not placed' "$out"
end

# row NAME: prints the row's values in the table of measurements: launches, measured; ms, measured, ratio; GB,
# measured; speed
row() {
    awk -F '  +' -v name="$1" '
        /^kernels / { inside = 1 }
        inside && $1 == name { $1 = ""; sub(/^ /, ""); print }' "$out"
}
# shellcheck disable=SC2053
shows() { [[ $(row "$1") == $2 ]] || { echo "$1: $(row "$1"), not $2"; return 1; }; }
begin 'a profile next to the model'
tr '|' '\t' >"$dir/profile.tsv" <<'END'
kernel|launches|ms|read|written
void layernorm_forward_kernel<bf16, 8, 3, true>(bf16 *, bf16 *, float *)|24|2.500|4.8e9|4.8e9
void <unnamed>::adamw<<unnamed>::bf16, <unnamed>::bf16>(adamw_constants, long)|13|1.000|1.75e9|1.75e9
nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_TNT|30|20|3e9|3e9
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64|45|40|3e9|3e9
cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_kernel0_0|12|4.25|3.6e9|1.2e9
cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_17_kernel0_0|12|14|1e9|1e9
void cudnn::fusion::compute_dot_do_o_specialized<true, __nv_bfloat16, 128, 64>(Params)|12|1|1e9|0
ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)|3|0.5|0|0
ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)|4|0.75|0|0
[CUDA memset]|62|0.125|0|2e6
[CUDA memcpy Host-to-Device]|3|0.0625|0|1e6
void strange_kernel<float>(float *)|7|0.375|5e6|6e6
END
need 'the profile was refused' model --measured "$dir/profile.tsv"
read -r _ _ layernorm _ <<<"$(row 'layernorm, with residual too')"
lines="$(column 'forward: layernorm' $EXPECTED) + $(column 'forward: residual' $EXPECTED)"
need 'layernorm: not the sum of its lines' number "($layernorm - ($lines)) ^ 2 < 0.003 ^ 2"
need 'layernorm' shows 'layernorm, with residual too' '25 24 * 2.500 0.9? * 9.600 3840 GB/s'
need 'AdamW' shows 'AdamW' '13 13 0.9?? 1.000 1.0? 3.485 3.500 3500 GB/s'
matmuls=$(awk 'BEGIN { printf "%.0f", 6 * 65536 * (144 * 768 * 768 + 50304 * 768) / 0.060 / 1e12 }')
need 'matmuls' shows 'all matmuls' "* 75 * 60.000 * 12.000 $matmuls TFLOP/s"
need 'attention' shows 'attention' '12 12 * 4.250 * 4.800 291 TFLOP/s'
need 'attention backward' shows 'attention backward' '* 24 * 15.000 * 3.000 * TFLOP/s'
need 'NCCL, gathers' shows 'NCCL, gathers' '0 3 0.000 0.500 - 0.000 0.000 -'
need 'NCCL, reductions' shows 'NCCL, reductions' '0 4 0.000 0.750 - 0.000 0.000 -'
need 'memset' shows 'memory cleared' '* 62 * 0.125 *'
need 'memcpy' shows 'memcpy' '* 3 * 0.062 *'
need 'not placed' shows 'not placed' '0 7 0.000 0.375 - 0.000 0.011 29 GB/s'
need 'the name of the unplaced kernel' \
    grep -qxF 'not placed: 7 launches, 0.375 ms: void strange_kernel<float>(float *)' "$out"
need 'an unmeasured operation' shows 'softmax, cross-entropy' '* 0 3.6?? 0.000 - 13.187 0.000 -'
need 'sum' shows 'sum' '* 227 * 84.562 0.8? *'
end

# refused WHAT WORDS OPTION...: checks that the script exits with 2 and prints one line that contains WORDS
refused() {
    local what=$1 words=$2 status
    shift 2
    model "$@"; status=$?
    need "$what: status $status" [ $status = 2 ]
    need "$what: $(cat "$err")" grep -qF -- "$words" "$err"
    need "$what: not one line" [ "$(wc -l <"$err")" = 1 ]
    need "$what: prints to stdout" [ ! -s "$out" ]
}
begin 'errors'
refused 'an unknown option' '--nonsense is unknown' --nonsense
refused 'no value' '--model needs a value' --model
refused 'model' '--model d13' --model d13
refused 'a file as model' '--model gpt2_124M.bin' --model gpt2_124M.bin
refused 'heads' '64 channels cannot be divided among 3 heads' --model l2h3c64v257t64
refused 'channels' 'C must be a multiple of 8 up to 2048' --model l2h2c4096v257t64
refused 'gpu' '--gpu a100: must be h200 or h100' --gpu a100
refused 'ranks' '--ranks 9: must be 1 to 8' --ranks 9
refused 'stage' '--stage 4: must be 0 to 3' --stage 4
refused 'recompute' '--recompute 3' --recompute 3
refused 'batch' '--batch 0: must be at least 1' --batch 0
refused 'number' '--batch 6x: must be a whole number' --batch 6x
refused 'length' '--length 2048: must be 1 to 1024' --length 2048
refused 'summary' 'takes no --gpu' --summary --gpu h100
refused 'file' "$dir/none: no such readable file" --measured "$dir/none"
printf 'a kernel\t1\t2\t3\n' >"$dir/short.tsv"
refused 'columns' 'line 1: needs name, launches' --measured "$dir/short.tsv"
printf 'a kernel\t1\t2\t3\t4\nanother\tone\t2\t3\t4\n' >"$dir/word.tsv"
refused 'a word instead of a number' 'line 2: needs name, launches' --measured "$dir/word.tsv"
printf 'name\tlaunches\tms\tread\twritten\n' >"$dir/empty.tsv"
refused 'no kernel' 'it has no kernel' --measured "$dir/empty.tsv"
end

begin "the document contains the script's output"
need 'the script failed' with_new_tables >"$dir/new"
need 'tables differ; run tests/test_gpu_model.sh write to update them' cmp -s "$dir/new" "$document"
need 'too few tables' [ "$(grep -c '^<!-- dev/gpu_model.sh ' "$document")" -ge 2 ]
end

finish test_gpu_model.sh
