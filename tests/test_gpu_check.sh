#!/usr/bin/env bash
# Tests scripts/gpu_check.sh on the stand-in for CUDA: runs the whole list, with fake scripts for NVIDIA's
# tools, llm.c and PyTorch, and tests that its gate detects errors.
# Usage: tests/test_gpu_check.sh [STAND_IN]      STAND_IN: build folder of CUDA=stand-in (build/stand-in)
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/cases.sh
stand_in=${1:-build/stand-in}
out=$dir/out
unset NCCL_LIB LARGE NORM BUDGET_S CUDA_VISIBLE_DEVICES
export CUDA=stand-in OUT=$out PYTHON=$dir/fake/python3 ATTENTION=cublaslt CUDA_STAND_IN_NCCL_VERSION=23007
export LLMC=$dir/llm.c CUDA_RELEASE STAND_IN=$(realpath "$stand_in")
export MODEL=l2h2c64v257t64 B=2 T=64 CHECK_B=2 SHAPE=l4h2c64v257t64 STEPS=3 OMP_NUM_THREADS=1
export CUDA_STAND_IN_PROTECT=0 SIZES=l1h2c32v257t64:2 PEAK='0.01 -e l1h2c64v257t64 -b 2'

fake() { { echo '#!/usr/bin/env bash'; cat; } >"$dir/fake/$1"; chmod +x "$dir/fake/$1"; }
mkdir "$dir/fake"
fake nvidia-smi <<'END_OF_FAKE'
case "$*" in
    *name,*) echo 'NVIDIA H100 80GB HBM3, 580.65.06' ;;
    *) printf '345, 70.0, 500, 0\n1980, 600.0, 2500, 99\n1700, 680.0, 2400, 100\n1700, 690.0, 2400, 100\n' ;;
esac
END_OF_FAKE
fake python3 <<'END_OF_FAKE'
if [ "$1" = -c ]; then exit; fi
[ "${!#}" = cudnn ] || { echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6 GiB'; exit 1; }
echo '{"torch": "2.9.0", "step_ms": 2.1, "loss": 9.5}'
END_OF_FAKE
fake nvcc <<<'echo "Cuda compilation tools, release $CUDA_RELEASE, V$CUDA_RELEASE.88"; echo Build'
# Runs one of the tests, and says so for the others.
fake compute-sanitizer <<'END_OF_FAKE'
[ "${!#}" != test_memory_cases ] || exec "$STAND_IN/tests/test_layers_cuda" "${!#}"
echo '[  PASSED  ] 1 test(s).'
END_OF_FAKE
# Prints rows like ncu --csv --page raw --print-units base: one launch at the start of a run, and two in its
# steps.
fake ncu <<'END_OF_FAKE'
kernel() { echo "\"7\",\"$1\",\"$3\",\"$4\",\"$2\""; }       # NAME NS READ WRITTEN
echo "==PROF== Connected to process 77: $*"
echo '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"'
echo '"","","byte","byte","ns"'
kernel 'void start_kernel<float, (int)8>(T1 *)' 3,000 9000 0
[[ " $* " != *' -x 1 '* ]] || for k in 1,500,000 2,500,000; do
    kernel nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN $k 100,000,000 50,000,000
done
END_OF_FAKE
fake train_gpt2cu <<'END_OF_FAKE'
for ms in 90.00 80.00 2.56 2.50 2.60; do
    echo "step    1/30 | loss 9.250000 (+nanz)| norm 1.0000 (+nanz)| lr 3.00e-04 | $ms ms | 1.0% bf16 MFU"
done
END_OF_FAKE
# llm.c's build needs only a copy of the fake program.
mkdir -p "$dir/llm.c/llmc"
echo 'cudaMemAdvise(*out, bytes, cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId)' \
    >"$dir/llm.c/llmc/cuda_utils.cuh"
printf 'train_gpt2cu:\n\tcp "%s" $@\n' "$dir/fake/train_gpt2cu" >"$dir/llm.c/Makefile"
fake passing <<'END_OF_FAKE'
echo '[  PASSED  ] 3 test(s).'; echo '[  PASSED  ] 5 test(s).'
END_OF_FAKE
PATH=$dir/fake:$PATH

check() {           # STATUS ARGUMENT...
    timeout -k 5 1000 scripts/gpu_check.sh "${@:2}" >"$dir/screen" 2>&1
    [ $? = "$1" ] || { tail -n 20 "$dir/screen"; return 1; }
}
cell() { awk -F'\t' -v name="$1" -v c="$2" '$2 == name { print $c }' "$out/results.tsv"; }
is() { [[ $(cell "$1" "$2") = $3 ]] || { echo "--- $1, $2: '$(cell "$1" "$2")', expected '$3'"; return 1; }; }

begin 'gpu_check.build'
mkdir -p "$out/bin" && cp -a "$stand_in/." "$out/build"
need 'a missing program is no error' check 1 5
while read -r CUDA_RELEASE argument; do
    need "failed with CUDA $CUDA_RELEASE" check 0 build
    need "cudaMemAdvise of CUDA $CUDA_RELEASE" grep -qF "$argument)" "$out/llm.c/llmc/cuda_utils.cuh"
done <<END_OF_ROWS
12.9 cudaCpuDeviceId
13.0 {cudaMemLocationTypeHost, 0}
END_OF_ROWS
need 'the libraries were not copied' ls "$out"/bin/lib/libdnnl.so.* >/dev/null
cp "$dir/fake/passing" "$out/bin/test_device" && cp "$dir/fake/passing" "$out/bin/test_layers_cuda"
end

begin 'gpu_check.a build that fails'
mkdir "$dir/broken" && ln -s "$dir/fake/make" "$dir/broken/make"
fake make <<<'echo "device_cpu.c:1: fatal error: oneapi/dnnl/dnnl.h: No such file"; exit 2'
OUT=$dir/failed PATH=$dir/broken:$PATH need 'it is no error' check 1 build
has "$dir/screen" 'fatal error: oneapi/dnnl/dnnl.h' scripts/install_deps.sh scripts/fetch_cudnn_frontend.sh
rm "$dir/fake/make"
end

begin 'gpu_check.a build without cuDNN'
ATTENTION='cudnn cublaslt' need 'it was accepted' check 1 1
need 'the row cudnn is wrong' is cudnn 3 'FAILED: status 1'
need 'a later command ran' [ -z "$(cell peaks 3)" ]
end

begin 'gpu_check.the whole list'
BUDGET_S=50 need 'it started commands that may exceed the budget' check 3
need 'failed' check 0
while IFS=: read -r command column value; do
    need "the row $command is wrong" is "$command" "$column" "$value"
done <<'END_OF_ROWS'
peaks:7:matmul * TFLOP/s; copies * GB/s; *
test_layers_cuda:7:passed 8; *
fp32-shape:7:loss off by *; norm off by *; * gradients off by *
bf16-cublaslt-shape:3:ok
same-cublaslt:3:ok
run:8:1700
run:9:657
run:10:2000
same-tuned:3:ok
llm.c-ge2-2:5:2.56
torch-default:3:skipped: torch.OutOfMemoryError: *
torch-cudnn:5:2.10
workspace-1540:7:*rows 2 of 2; *
same-stages:3:ok
same-tiers:3:ok
nccl-3:3:ok
same-ranks:3:ok
memcheck-test_sum_ranks:3:ok
memcheck-test_memory_cases:7:passed 1; *
memcheck-attentions:3:ok
END_OF_ROWS
tuned=(ncu-1 workspace-49 stage-1 optimizer-nvme host-3 "$SIZES")
need 'a run from step 9 on is not tuned' [ "$(cd "$out" && grep -lE '^tuning  |--tune' "${tuned[@]/%/.log}" |
    wc -l)" = ${#tuned[@]} ]
need 'results.md lacks the best run of PyTorch' grep -q '^Best of PyTorch: 2.10 ms per step' "$out/results.md"
need 'results.md lacks the planned step' grep -qE '^ +step +[0-9.]+ s, [0-9]+ tokens/s$' "$out/results.md"
need 'results.md lacks the kernels' grep -qP '^    4\.000\t2\t0\.200\t0\.100\tnvjet' "$out/results.md"
need 'a rank is still running' not pgrep -f "$out/bin/train_gpt2_zero"
end

begin 'gpu_check.only named steps are repeated'
touch "$dir/before"
need 'failed' check 0 3
need 'the next run failed' check 0
need 'other steps ran' [ "$(cd "$out" && find *.log -newer "$dir/before" | sort | paste -sd' ')" = \
    'fp32-shape.log fp32.log' ]
need 'step 16 was accepted' check 1 16
end

begin 'gpu_check.steps after a --tune that failed go on without it'
sed -i -E '/\ttuning\t/s/\tok\t/\tFAILED: status 1\t/' "$out/results.tsv"
need 'the failure was forgotten' check 1 11
need 'stage 1 is tuned' not grep -q '^tuning  ' "$out/stage-1.log"
need 'the row same-stages is wrong' is same-stages 3 ok
sed -i -E '/\ttuning\t/s/\tFAILED: status 1\t/\tok\t/' "$out/results.tsv"
end

begin 'gpu_check.the gate detects a wrong part of a tensor, and runs with different digests'
# the bias of fcproj in layer 1: tensor 13 of 2 layers with 64 parts of 33 floats, after a header of 32 bytes
dd if=/dev/zero of="$out/bin/model.gradients" bs=4 seek=$((8 + (13 * 2 + 1) * 64 * 33)) count=33 \
    conv=notrunc 2>/dev/null
sed -i -E '/\tstage-3\t/s/\t[0-9a-f]{8} /\t00000000 /; /\tsame-stages\t/d' "$out/results.tsv"
need 'a wrong gradient passed' check 1 3
need 'the tensor is not named' is fp32 7 '* WRONG  fcprojb; '
need 'the other comparison failed' is fp32-shape 3 ok
need 'different digests passed' check 1
need 'the row same-stages is wrong' is same-stages 3 'FAILED: other digests'
end
finish gpu_check
