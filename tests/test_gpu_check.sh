#!/usr/bin/env bash
# scripts/gpu_check.sh without a GPU: nvidia-smi, nvcc, make, mpirun, Python, ncu, nsys, compute-sanitizer and
# the trainer are scripts that answer as the real ones do, so that limits, checks and every number of the
# table can be held against what was put in.
# Usage: tests/test_gpu_check.sh [TRAINER]      TRAINER: built with CUDA=stand-in, for a run whose losses and
# digests are real
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/cases.sh
. scripts/mpi_env.sh
stand_in=${1:-build/stand-in/train_gpt2_zero}
unset GPU_CHECK_OUT LLMC DATA CARD CUDA_VISIBLE_DEVICES CC CPATH CUDNN_HOME NCCL_MAX_CTAS
tree=$dir/tree                                                  # without what may have been fetched
mkdir "$tree" && ln -s "$PWD"/* "$tree" && rm -f "$tree/third_party" "$tree/dev"
mkdir "$tree/dev" && ln -s "$PWD"/dev/* "$tree/dev" && rm -f "$tree/dev/gpu_model.sh"

# ---- the fakes

export FAKE=$dir/fake
mkdir "$FAKE"
cp -r tests/fake_llmc "$dir/llm.c"                              # which the real patch_llmc edits
fake() { { echo '#!/usr/bin/env bash'; cat; } >"$FAKE/$1"; chmod +x "$FAKE/$1"; }

fake nvidia-smi <<'END'
if [ -n "${FAKE_NO_DRIVER:-}" ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    exit 9
fi
card="${FAKE_CARD:-NVIDIA H100 80GB HBM3}, ${FAKE_MIB:-81559}, 580.65.06"
driver='NVIDIA-SMI 580.65.06    Driver Version: 580.65.06'
case "$*" in
    *name,*) echo "$card, ${FAKE_CAPABILITY:-9.0}, 1980, 700.00" ;;
    *-lms*) echo 500; echo 2500; touch "$FAKE/looked"; sleep 60 & trap 'kill $!; exit' TERM; wait ;;
    *memory.used*) echo 500 ;;
    *index,*) for ((i = 0; i < ${FAKE_CARDS:-1}; i++)); do echo "$i, 9.0"; done ;;
    *) echo "| $driver    CUDA Version: ${FAKE_DRIVER_CUDA:-13.0} |" ;;
esac
END
mkdir -p "$FAKE"/cuda/{bin,include} && ln -s cuda/bin/nvcc "$FAKE/nvcc"
fake cuda/bin/nvcc <<'END'
echo 'Cuda compilation tools, release 13.0, V13.0.88'
END
FAKE_CC=$(command -v cc); export FAKE_CC
# FAKE_MISSING: headers that are only in C_INCLUDE_PATH. The toolkit's are not looked for on this machine, nor
# is NCCL's.
fake cc <<'END'
case "$*" in *' -E -' | *' -M -') ;; *) exec "$FAKE_CC" "$@" ;; esac
code=$(cat) header=${code#*<} header=${header%>*}
IFS=: read -ra folders <<<"${C_INCLUDE_PATH:-}"
for folder in "${folders[@]}"; do [ ! -e "$folder/$header" ] || { echo "x.o: $folder/$header"; exit; }; done
case " nccl.h ${FAKE_MISSING:-} " in *" $header "*) exit 1 ;; esac
case $header in cublasLt.h | nvtx3/*) exit 0 ;; esac
exec "$FAKE_CC" "$@" <<<"$code"
END
wheels=$FAKE/nvidia                                             # what pip has brought
mkdir -p "$wheels"/{nccl,cudnn}/{include,lib}
printf '#define NCCL_%s\n' 'MAJOR 2' 'MINOR 27' 'PATCH 1' >"$wheels/nccl/include/nccl.h"
touch "$wheels/nccl/lib/libnccl.so.2"
FAKE_MPIRUN=$(command -v mpirun); export FAKE_MPIRUN
fake mpirun <<'END'
echo "${OMPI_MCA_plm_rsh_agent:-}" >"$FAKE/agent"
[[ "$*" != *-np* || "$*" = *'--bind-to none'* ]] || echo "$*" >>"$FAKE/bound"
[ -z "${FAKE_TRAINER:-}" ] || exec "$FAKE_MPIRUN" "$@"
while [ $# -gt 0 ]; do case $1 in
    --version) echo 'mpirun (Open MPI) 4.1.4'; exit ;;
    -np) FAKE_RANKS=$2; shift 2 ;;
    --bind-to) shift 2 ;;
    --*) shift ;;
    *) break ;;
esac; done
export FAKE_RANKS
case "$*" in *--comm-timeout*) echo "$*" >"$FAKE/trouble" ;; *) exec "$@" ;; esac
# For a run that loses a rank: mpirun ends one that is killed, and a run of NCCL ends by itself when one is
# stopped.
pids=()
for ((r = 0; r < FAKE_RANKS; r++)); do OMPI_COMM_WORLD_RANK=$r "$@" & pids+=($!); done
while sleep 0.1; do for r in "${!pids[@]}"; do
    read -r _ _ state _ 2>/dev/null <"/proc/${pids[r]}/stat" || state=gone
    case $state in
        gone) echo "mpirun noticed that process rank $r exited on signal 9 (Killed)." ;;
        T) for ((i = 0; i < ${FAKE_SENTENCES:-1}; i++)); do
               echo 'train_gpt2_zero: rank 0 on h: the all-gather did not end'
           done ;;
        *) continue ;;
    esac
    [ "${FAKE_LEFT:-}" = "$state" ] || kill -9 "${pids[@]}" 2>/dev/null
    exit 1
done; done
END
fake make <<'END'
[ -z "${FAKE_BUILD:-}" ] || { echo "$FAKE_BUILD"; exit 2; }
for a in "$@"; do case $a in USE_CUDNN=1) echo 'no cuDNN'; exit 2 ;; esac; done
status=0
while [ $# -gt 0 ]; do
    made=${1%.built}
    case $1 in
        -C) folder=$2; shift ;;
        --eval) shift ;;
        BUILD=* | TRAINER=*) export "${1?}" ;;
        train_gpt2cu)
            cp "$FAKE/llmc_trainer" "$folder/train_gpt2cu"
            ! grep -q LLMC_ZERO "$folder/train_gpt2.cu" || touch "$folder/patched" ;;
        */bench/*) mkdir -p "$BUILD/bench"; cp "$FAKE/bench" "$made" ;;
        */tests/*)
            mkdir -p "$BUILD/tests"
            [ "${FAKE_TEST:-}" != missing ] || { echo 'no cmocka'; status=2; shift; continue; }
            sed "s/NAME/${made##*/}/" "$FAKE/${FAKE_TEST:-passing}_test" >"$made"
            chmod +x "$made"
            touch "$1" ;;
        "${TRAINER:-}.built")
            echo "${C_INCLUDE_PATH:-}" >"$FAKE/include_path"; echo "${LIBRARY_PATH:-}" >"$FAKE/library_path"
            echo built >>"$FAKE/builds"
            cp "${FAKE_TRAINER:-$FAKE/trainer}" "$made"
            touch "$1"
            echo 'found: CUDA yes without cuDNN and with NCCL; compiler cc' ;;
    esac
    shift
done
exit $status
END
fake passing_test <<'END'
echo 'skipped: only tests/cuda/ counts launches'
echo '[  PASSED  ] 5 test(s).'
echo '[  PASSED  ] 3 test(s).'
END
fake bench <<'END'
echo '# collective'; echo '# 4 rows, 0 of them wrong'
END
fake failing_test <<'END'
echo '[  FAILED  ] 1 test(s), listed below:'; exit 1
END
fake skipping_test <<'END'
echo 'skip NAME: there is no driver'; echo '[  PASSED  ] 1 test(s).'
END
fake until_looked_at <<'END'
for i in {1..200}; do [ ! -e "$FAKE/looked" ] || break; sleep 0.05; done
rm -f "$FAKE/looked"
END
fake trainer <<'END'
[ "$*" != --help ] || { echo "  --attention  on CUDA: cudnn, cublaslt${FAKE_OPTIONS:-}"; exit; }
args=" $*" ranks=${FAKE_RANKS:-1}
while [ $# -gt 1 ]; do
    case $1 in
        -z) z=$2 ;; -o) o=$2 ;; -x) x=$2 ;; -b) b=$2 ;;
        --device) on=$2 ;; --progress) how=$2 ;; --comm) comm=$2 ;;
        --attention) attention=$2 ;; --tune) touch "$2" ;;
    esac
    shift 2
done
[ "$how${FAKE_HANG:-}" != barpeak ] || exec sleep 60
if [ "$how" != lines ]; then
    echo 'peak       400000 GFLOP/s in products of bf16 matrices, measured on all ranks at once'
    exit
fi
if [ -n "${FAKE_REFUSES:-}" ] && [ "${attention:-}" = "$FAKE_REFUSES" ]; then
    echo "train_gpt2_zero: cuDNN refuses attention" >&2
    exit 1
fi
if [ -n "${FAKE_FITS:-}" ] && [[ ${o:-} = *-b*-* ]] && [ "$b" -gt "$FAKE_FITS" ]; then
    echo 'train_gpt2_zero: activations: 1000.0 MiB cannot be had:' \
        '10.0 of the 20.0 MiB of NVIDIA H100 are free' >&2
    exit 1
fi
[ "${FAKE_HANG:-}" != "$z" ] || { echo 'here it hangs'; sleep 60 & trap 'kill $!; exit 1' TERM; wait; }
if [ "${comm:-}" = nccl ] && [ -z "${FAKE_NCCL_230:-}" ] && [[ $CUDA_VISIBLE_DEVICES != *,* ]]; then
    refusal='ranks 0 and 1 are on one GPU of host h, where 2 ranks have 1 GPU, '
    refusal+='and NCCL 2.28.9 needs one for each; start 1'
    echo "train_gpt2_zero: ${FAKE_NCCL:-$refusal}" >&2
    exit 1
fi
if [[ -n "${FAKE_NO_START:-}" && $args = *--comm-timeout* ]]; then
    echo 'train_gpt2_zero: rank 0 on h: no communicator'
    exit 1
fi
while [ "$x" -gt 1000 ]; do echo "step    1/$x | loss 5"; sleep 0.1; done
echo "model      d12: 124475904 parameters, L 12, NH 12, C 768, V 50257, longest sequence 1024"
case ${attention:-} in cudnn*) by='cuDNN 9.28' ;; *) by=cuBLASLt ;; esac
echo "numbers    bf16 with fp32 master weights, recompute 0, on NVIDIA H100 (device 0), attention by $by"
[ -n "${o:-}" ] || exit 0
case $o in */zero-*) . "$FAKE/until_looked_at" ;; esac
mkdir -p "$o"
echo "$args" >"$o/arguments"
echo "${NCCL_MULTI_RANK_GPU_ENABLE:-} ${NCCL_MAX_CTAS:-} ${NCCL_ALGO:-} $LD_LIBRARY_PATH" >"$o/nccl"
for ((i = 1; i <= x; i++)); do
    drift=.5
    [ "$on$i" != cuda7 ] || drift=${FAKE_DRIFT:-.515}
    [ "${o##*/}" != nccl-reduce ] || drift=${FAKE_SUM:-$drift}
    echo "{\"step\": $i, \"loss\": $((30 - i))$drift, \"ms\": 1}"
done >"$o/metrics.jsonl"
rate=$((100000 + 10000 * ((${o##*.} + 1) % 2) - 1000 * z))
[ "$ranks" = 1 ] || rate=20000
hash=00000000000000a$ranks
[[ " ${FAKE_HASH:-} ${FAKE_OTHER:-} " != *" ${o##*/} "* ]] || hash=00000000000000ff
cat >"$o/summary.json" <<JSON
{"steps": $x, "ranks": $ranks, "stage": $z, "dtype": "bf16", "device": "cuda",
 "loss": 9.125, "val_loss": null, "grad_norm": 1, "params_hash": "$hash", "state_hash": "b$hash",
 "tokens_per_s": $rate.00, "model_state_bytes": 1048576000, "working_bytes": 104857600,
 "activation_bytes": 52428800, "host_bytes": 0, "nvme_bytes": 0}
JSON
END
fake llmc_trainer <<'END'
step_line() {       # STEP LOSS MS
    echo "step    $1/30 | loss $2 (+nanz)| norm 1.0000 (+nanz)| lr 3.00e-04 | $3 ms" \
        "| 1.0% bf16 MFU | 90000 tok/s"
}
if [ -e "${0%/*}/patched" ]; then
    [[ "$*" =~ \ -z\ (.) ]]; echo "ranks ${FAKE_RANKS:-1} $*" >>"$FAKE/patched_arguments"
    step_line 30 "${FAKE_PATCHED_LOSS:-9.260000}" 3.00
    hash=00000000000000c1
    [ "${BASH_REMATCH[1]}" != "${FAKE_PATCHED_HASH:-}" ] || hash=00000000000000c2
    echo "params_hash $hash"; exit
fi
. "$FAKE/until_looked_at"
echo 'device memory usage: 3000 MiB / 81559 MiB'
printf "%s\n" "$*" >"$FAKE/llmc_arguments"
for ms in 90.00 80.00 2.56 2.50 2.60; do
    step_line 1 9.250000 "$ms"
done
END
fake python3 <<'END'
case "$*" in
    -) cat >/dev/null; [[ $LD_LIBRARY_PATH = *nccl/lib* ]] && echo 2.30.7; exit ;;
    -c*nvidia*) [ -n "${FAKE_NO_WHEELS:-}" ] || echo "$FAKE/nvidia"; exit ;;
    -c*) [ -z "${FAKE_NO_TORCH:-}" ] || { echo 'ModuleNotFoundError: torch' >&2; exit 1; }
         echo 'PyTorch is 2.9.0'; exit ;;
    *' 1') touch "$FAKE/warm"; exit ;;
esac
. "$FAKE/until_looked_at"
echo "$@" >"$FAKE/torch_arguments"
echo '{"torch": "2.9.0", "step_ms": 2.1, "tokens_per_s": 120000.0, "loss": 9.5, "memory_mib": 4000.5}'
END
# As ncu --csv --page raw --print-units base writes it: what a run launches at its start, and in each of its
# steps.
fake ncu <<'END'
if [ -n "${FAKE_NO_COUNTERS:-}" ]; then
    echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'
    exit 1
fi
echo "$*" >"$FAKE/ncu_arguments"
while [ $# -gt 1 ]; do case $1 in -x) x=$2; shift ;; esac; shift; done
id=0
kernel() {      # NAME NS READ WRITTEN
    echo "\"$id\",\"77\",\"train_gpt2_zero\",\"h\",\"$1\",\"1\",\"7\",\"(256, 1, 1)\",\"(96, 1, 1)\","`
        `"\"0\",\"9.0\",\"$3\",\"$4\",\"$2\""
    id=$((id + 1))
}
echo '==PROF== Connected to process 77'
echo "numbers    bf16 with fp32 master weights, recompute 0, on NVIDIA H100 (device 0), attention by cuBLASLt"
echo '"ID","Process ID","Process Name","Host Name","Kernel Name",'`
    `'"Context","Stream","Block Size","Grid Size","Device","CC",'`
    `'"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"'
echo '"","","","","","","","","","","","byte","byte","ns"'
kernel 'void cast<float, bf16>(bf16 *, const float *, long)' '5,000' 4,096 2,048
# less than when nothing but it ran
kernel 'void start_kernel<float, (int)8>(T1 *)' '3,000' $((x ? 1000 : 9000)) 0
for ((i = 0; i < x; i++)); do
    kernel 'void cast<float, bf16>(bf16 *, const float *, long)' '7,000' 8,192 4,096
    kernel 'nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN' '1,500,000' 100,000,000 50,000,000
    kernel 'nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN' '2,500,000' 100,000,000 50,000,000
    kernel 'void (anonymous namespace)::norm_kernel(float *, int)' '500,000' 0 1,000,000
    kernel 'void start_kernel<float, (int)8>(T1 *)' '2,000' '2,000' 0
done
END
fake nsys <<'END'
[ "$1" = stats ] || exit 0
cat <<CSV
Processing [x.sqlite] with nvtx_gpu_proj_sum.py...
Range,Style,Total Proj Time (ns),Total Range Time (ns)
:forward block 0,PushPop,10000000,1
:forward block 11,PushPop,20000000,1
:update,PushPop,5000000,1

Time (%),Total Time (ns),Instances,Name
99.0,123456789,10,"void kernel<a, b>(c)"
CSV
END
fake compute-sanitizer <<'END'
shift 6 || exit 1
"$@" && echo "${FAKE_MEMCHECK:-ERROR SUMMARY: 0 errors}"
[ -z "${FAKE_MEMCHECK:-}" ] || exit 9
END
export PATH=$FAKE:$PATH

# check STATUS SETTING... [-- ARGUMENT...]: gpu_check.sh with small settings ends with STATUS; its screen is
# in $dir/screen, its files in $dir/out, which with KEEP=yes are still those of the call before
check() {
    local expected=$1 status settings=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do settings+=("$1"); shift; done
    shift
    [ -n "${KEEP:-}" ] || rm -rf "$dir/out"
    env B=4 T=64 STEPS=20 SIZES=d24:4 SIZE_STEPS=3 TIERS=d12:4 LARGE=l2h2c64v257t64:2 \
        GPU_CHECK_OUT="$dir/out" LLMC="$dir/llm.c" \
        "${settings[@]}" \
        timeout -k 2 200 "$tree/scripts/gpu_check.sh" "$@" >"$dir/screen" 2>&1
    status=$?
    [ $status = "$expected" ] && return
    echo "--- status $status, expected $expected:"; tail -n 30 "$dir/screen"
    return 1
}
says() { grep -qF -- "$1" "$dir/screen" || { echo "--- not said: $1"; return 1; }; }
listed() {
    sed -n "/^$1:/,/^[A-Z].*:\$/p" "$dir/out/results.md" | grep -qE -- "^- $2" || {
        echo "--- not under $1: $2"
        return 1
    }
}
cell() {    # ROW COLUMN of the table
    awk -F'\t' -v row="$1" -v c="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == c) at = i }
        $2 == row { print $at }' "$dir/out/results.tsv"
}
is() {
    local got
    got=$(cell "$1" "$2")
    [ "$got" = "$3" ] || {
        echo "--- $1, $2: '$got', expected '$3'"
        return 1
    }
}

# ---- no usable GPU

refused() {     # NAME SENTENCE SETTING...
    begin "gpu_check.$1"
    rm -rf "$dir/out"
    need 'wrong status' check 2 "${@:3}"
    need "not said: $2" says "gpu_check.sh: no usable GPU: $2"
    need 'not one line' [ "$(wc -l <"$dir/screen")" = 1 ]
    need 'something was built' [ ! -e "$dir/out" ]
    end
}
without=$dir/without; mkdir "$without"
for tool in bash env timeout dirname awk sed head realpath grep; do
    ln -s "$(command -v $tool)" "$without/$tool"
done
refused 'no nvidia-smi' "nvidia-smi is not there; install NVIDIA's driver" PATH="$without"
refused 'no driver' "nvidia-smi -i 0: NVIDIA-SMI has failed because it couldn't communicate" FAKE_NO_DRIVER=1
refused 'old card' 'NVIDIA H100 80GB HBM3 has compute capability 7.5, and 8.0 or more is needed' \
    FAKE_CAPABILITY=7.5
refused 'old driver' 'driver 580.65.06 is for CUDA up to 12.4, and nvcc is 13.0' FAKE_DRIVER_CUDA=12.4

begin 'gpu_check.settings that cannot be'
need 'LLMC without llm.c' check 1 LLMC="$dir"
need 'its sentence' says "LLMC=$dir: there is no train_gpt2.cu"
need 'an odd batch' check 1 B=3
need 'too few steps' check 1 STEPS=2
mkdir "$dir/others" && echo theirs >"$dir/others/their.log"
need 'too few steps of larger models' check 1 SIZE_STEPS=2
need 'no such part' check 1 -- train wheel
need 'its sentence' says \
    "'wheel' is no part; the parts are: build train torch nccl sanitize sizes tiers profile sweep"
need 'no kit' check 1 -- --kit "$dir/none"
need 'a folder of others' check 1 GPU_CHECK_OUT="$dir/others"
need 'its sentence' says "GPU_CHECK_OUT=$dir/others: there are files, and not those of an earlier run"
end

# ---- a full run

begin 'gpu_check.a full run'
need 'it failed' check 0 OUT="$dir/others" RESULTS="$dir/copies" \
    FAKE_OPTIONS=' cudnn-fast --tune --attention-workspace'
need 'files of an OUT that is not for it' [ "$(cat "$dir"/others/*)" = theirs ]
need 'the attention' says \
    "GELU fusion 2, attention: cuBLASLt, cuDNN's frontend is not in third_party/; data: random tokens."
need 'the attention, before the build' says \
    "CAREFUL: cuDNN's frontend is not in third_party/, so attention is measured without cuDNN"
need "pip's NCCL" grep -qE '^versions .* NCCL 2\.30\.7, its header 2\.27\.1$' "$dir/out/machine.txt"
need "pip's NCCL for the compiler" [ "$(cat "$FAKE/include_path")" = "$wheels/nccl/include" ]
while IFS=: read -r run rate ms share own seen to_zero loss hash; do
    need "$run: tokens/s" is "$run" tokens/s "$rate"
    need "$run: ms" is "$run" 'ms a step' "$ms"
    need "$run: share" is "$run" '% of peak' "$share"
    need "$run: own MiB" is "$run" 'MiB, own count' "$own"
    need "$run: seen MiB" is "$run" 'MiB, nvidia-smi' "$seen"
    need "$run: ratio" is "$run" 'to stage 0' "$to_zero"
    need "$run: loss" is "$run" loss "$loss"
    need "$run: hash" is "$run" params_hash "$hash"
done <<'END'
ours, stage 0:105000:2.44:19.7:1150:2000:1.000:9.125:00000000000000a1
ours, stage 1:99000:2.59:18.5:1150:2000:0.943:9.125:00000000000000a1
ours, stage 2:98000:2.61:18.4:1150:2000:0.933:9.125:00000000000000a1
ours, stage 3:102000:2.51:19.1:1150:2000:0.971:9.125:00000000000000a1
ours, stage 0, 2 ranks:20000:12.80:3.7:2300:2000:0.190:9.125:00000000000000a2
ours, stage 3, 2 ranks:20000:12.80:3.7:2300:2000:0.190:9.125:00000000000000a2
llm.c, without cuDNN:100000:2.56:18.7:3000:2000:0.952:9.25:-
PyTorch 2.9.0, compiled:120000:2.13:22.5:4000.5:2000:1.143:9.5:-
END
need 'rounds of two parts' is 'ours, stage 0' runs 4
need 'two rounds' is 'llm.c, without cuDNN' runs 2
need 'aim tokens' says '- tokens/s at stage 0 on one H200, aim >= 600000: 105000, not met'
need 'aim llm.c' says '- stage 0 to llm.c, aim > 1: 1.050, met'
need 'aim PyTorch' says '- stage 0 to compiled PyTorch, aim > 1: 0.875, not met'
need 'aim stage 3' says '- stage 3 to stage 0, aim >= 0.97: 0.971, met'
need 'aim peak' says '- percent of peak at stage 0, aim >= 60: 19.7, not met'
need 'stages' says 'same bits, stages 0 to 3, one rank: yes, params_hash and state_hash of 4 runs'
need 'ranks' says 'same bits, stages 0 and 3, two ranks: yes, params_hash and state_hash of 2 runs'
need 'again' says 'same bits, the same command again: yes, params_hash and state_hash of 2 runs'
need 'losses' says 'losses differ by 0.015 at most'
need 'tests' says 'test_layers_cuda: 8 passed'
need 'memcheck' says 'memcheck-test_layers_cuda: done'
need 'a larger model' is 'd24, B 4: ours, stage 3' tokens/s 97000
need 'a larger model: ratio' is 'd24, B 4: ours, stage 3' 'to stage 0' 0.970
need 'a larger model: llm.c' is 'd24, B 4: llm.c, without cuDNN' tokens/s 100000
need 'a larger model: steps' grep -q ' -e d24 -t 64 -d 256 .* -z 3 -b 4 -x 3 ' \
    "$dir/out/runs/d24-b4-zero-3.1/arguments"
need 'tiers' is 'tiers: parameters on NVMe too' 'to stage 0' 1.000
need 'tiers: bits' says 'same bits, tiers: yes, params_hash and state_hash of 5 runs'
need 'tiers: files' grep -q -- \
    " --nvme $dir/out/nvme --offload-optimizer nvme --offload-param nvme -z 3 -b 4 -x 3 " \
    "$dir/out/runs/tiers-nvme.1/arguments"
need 'tiers: a large model' grep -q -- ' -e l2h2c64v257t64 .* --offload-optimizer cpu -z 3 -b 2 -x 3 ' \
    "$dir/out/runs/tiers-large.1/arguments"
need 'sweep' is 'sweep: --tune' 'to stage 0' 1.000
need 'aim tokens, --tune' says '- tokens/s at stage 0 on one H200 with --tune, aim >= 600000: 100000, not met'
need 'what was tuned comes with the logs' grep -q '^\./tuned\.txt$' <(tar -tzf "$dir/copies/logs.tar.gz")
need 'sweep: its option' grep -q -- " --attention cublaslt --tune $dir/out/tuned.txt -z 0 " \
    "$dir/out/runs/sweep-tune.1/arguments"
need 'sweep: only cuDNN has a workspace' [ ! -e "$dir/out/runs/sweep-workspace-512.1" ]
need 'phases' grep -qE '^forward block +3\.000$' "$dir/out/phases.txt"
need 'phases, update' grep -qE '^update +0\.500$' "$dir/out/phases.txt"
need 'kernels among the phases' [ "$(wc -l <"$dir/out/phases.txt")" = 2 ]
need 'kernels of a step' cmp "$dir/out/kernels.tsv" <(printf '%s\t%s\t%s\t%s\t%s\n' \
    nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN 2 4.000000 200000000 100000000 norm_kernel 1 0.500000 0 \
    1000000 \
    'cast<float, bf16>' 1 0.007000 8192 4096 'start_kernel<float, (int)8>' 1 0.002000 0 0)
need 'kernels, all' says 'kernels: 5 launches of a step, 4.51 ms on the card'
need 'kernels, a line' says ' 4.000  88.7%      2     300.0       75  nvjet_hsh'
need "ncu's command" grep -qE -- '^--clock-control none .* --attention cublaslt -z 0 -b 4 -x 1 ' \
    "$FAKE/ncu_arguments"
need 'a command of ours' grep \
    -q \
    ' --device cuda --dtype bf16 .* -e d12 -t 64 -d 256 -i [^ ]*/tokens.bin .* -r 0 -ge 2 --attention '\
'cublaslt --comm host -z 3 -b 2 '\
'-x 20 --hash full' "$dir/out/runs/zero-3-2ranks.1/arguments"
need "llm.c's command" grep -q '^-e d24 -t 64 -d 256 .* -r 0 -ge 2 -b 4 -x 3 -z 0 ' "$FAKE/llmc_arguments"
need 'llm.c, patched' says \
    'llm.c with the plugin: stages 0 to 3 end with params_hash 00000000000000c1, last loss 9.260000 on 2 '\
'ranks, 9.250000 without it'
for z in 0 1 2 3; do
    need "llm.c, patched, stage $z" grep -q "^ranks 1 -e d12 -t 64 -d 256 .* -b 4 -x 20 -z $z " \
        "$FAKE/patched_arguments"
done
need 'llm.c, patched, two ranks' grep -q '^ranks 2 .* -b 2 -x 20 -z 3 ' "$FAKE/patched_arguments"
need 'the checkout is as it was' diff -r tests/fake_llmc "$dir/llm.c"
need 'PyTorch, its first steps beside the build' [ -e "$FAKE/warm" ]
need "PyTorch's command" grep -q ' 4 64 20 --layers 12 --heads 12 --channels 768 --vocabulary 50304$' \
    "$FAKE/torch_arguments"
need 'NCCL' listed Skipped 'NCCL: ranks 0 and 1 are on one GPU of host h, .* NCCL 2.28.9 needs one for each; '
need 'NCCL, its failures' not grep -q 'a rank is' "$dir/screen"
need 'the tokens' [ "$(stat -c %s "$dir/out/tokens.bin")" = $((1024 + 2 * (4 * 64 * 21 + 1))) ]
need 'the table on the screen' grep -qE '^\| ours, stage 3 +\| +2 \| +102000 \|' "$dir/screen"
need 'the copies' cmp "$dir/out/results.md" "$dir/copies/results.md"
need 'the logs' tar -xzf "$dir/copies/logs.tar.gz" -C "$dir/others"
need 'still looking' not pgrep -f "^bash $FAKE/nvidia-smi"
end

begin 'gpu_check.a second call repeats nothing'
cp "$dir/out/results.tsv" "$dir/before"
runs() {
    find "$dir/out/runs" -name arguments -newer "$dir/before" | sed 's|.*/runs/||; s|/.*||' | sort |
        paste -sd' '
}
KEEP=yes need 'it failed' check 0 FAKE_OPTIONS=' cudnn-fast --tune --attention-workspace' -- build train \
    torch sizes
need 'runs again' [ -z "$(runs)" ]
need 'built again' [ "$(wc -l <"$FAKE/builds")" = 1 ]
need 'other results' diff "$dir/before" "$dir/out/results.tsv"
ln -s "$PWD/dev/gpu_model.sh" "$tree/dev"
KEEP=yes need 'the model' check 0 -- --again profile
need 'its arguments' grep \
    -q '^    d12, 124475904 parameters, B 4, T 64, bf16, on one H100, stage 0, recompute 0' \
    "$dir/out/results.md"
need 'what was measured' grep \
    -qE '^    products, all of them +[0-9]+ +2 +[0-9.]+ +4\.000 +[0-9.]+ +[0-9.]+ +0\.300 ' \
    "$dir/out/results.md"
need 'it still says that nothing was measured' not grep -q 'no card has been measured' "$dir/out/results.md"
while IFS=: read -r title known; do
    KEEP=yes need "$title" check 0 FAKE_CARD="$title" -- --again profile
    need "$title: its sentence" listed Skipped \
        "the model of a step: dev/gpu_model.sh has none: .* --card $known: must be h200 or h100"
    need "$title: another card's model" [ ! -e "$dir/out/model.txt" ]
done <<'END'
NVIDIA A100-SXM4-80GB:a100
NVIDIA RTX 6000 Ada Generation:NVIDIA RTX 6000 Ada Generation
END
rm "$tree/dev/gpu_model.sh"
KEEP=yes need 'a part again' check 0 -- --again sizes
need 'runs of that part' [ "$(runs)" = 'd24-b4-zero-0.1 d24-b4-zero-3.1' ]
need 'the rows of others' is 'ours, stage 3' tokens/s 102000
mkdir "$dir/moved" && mv "$dir"/others/* "$dir/moved" && rm -rf "$dir/out" && mv "$dir/moved" "$dir/out"
touch "$dir/before"
KEEP=yes need 'another machine, from the logs' check 0 \
    FAKE_OPTIONS=' cudnn-fast --tune --attention-workspace' -- train sizes
need 'runs again there' [ -z "$(runs)" ]
need 'built there' [ "$(wc -l <"$FAKE/builds")" = 2 ]
need 'the table there' is 'ours, stage 3' tokens/s 102000
end

begin 'gpu_check.the batch by the memory'
for pair in 16376:4 143771:64; do
    need "${pair%:*} MiB" check 1 B= FAKE_MIB="${pair%:*}" FAKE_BUILD='stop here' T=8 -- build
    need "${pair%:*} MiB: not ${pair#*:}" says "d12, B ${pair#*:}, T 8"
done
end

# ---- NCCL

nccl() {    # NAME CARDS NCCL'S-SETTINGS TIME-LIMIT SETTING...
    begin "gpu_check.NCCL, $1"
    need 'it failed' check 0 LLMC= "${@:5}" -- nccl
    need 'its settings' grep -q "^$3" "$dir/out/runs/nccl-0/nccl"
    need 'its time limit' grep -q -- " --comm-timeout $4\$" "$FAKE/trouble"
    need 'bits' says "same bits, 2 ranks on card $2, NCCL and through the host: yes, stages 0 to 3"
    need '124M' says 'same bits, d12 on 2 ranks by NCCL: '
    need 'its row' is 'ours, stage 3, 2 ranks, NCCL' tokens/s 20000
    need 'sum' says "NCCL's own sum: losses differ by 0 at most"
    need 'tests' says 'mpi_nccl: 8 passed'
    need 'killed' grep -qE 'NCCL, a rank is killed: over after [0-9] s; mpirun noticed that process rank 1 ' \
        "$dir/screen"
    need 'stopped' grep -qE \
        'NCCL, a rank is stopped: over after [0-9] s; train_gpt2_zero: rank 0 on h: the all-gather' \
        "$dir/screen"
    need 'bench' says 'NCCL, dev/bench/comm: 4 rows, 0 of them wrong'
    need 'its command' grep -q -- ' -b 4 .* --comm nccl --reduce nccl$' "$dir/out/runs/nccl-reduce/arguments"
    end
}
nccl 'two cards' 5,3 '   ' 10 CUDA_VISIBLE_DEVICES=5,3
nccl 'one card from 2.30 on' 0 '1 8 ' 30 FAKE_NCCL_230=1

# ---- what a machine lacks: the kit

mkdir -p "$dir/kit"/{include,nccl,llm.c,deb/DEBIAN,deb/usr/include,deb/usr/bin}
printf \
    'Package: libjansson-dev\nVersion: 1\nArchitecture: all\nMaintainer: nobody '\
'<nobody@localhost>\nDescription: for a test\n' \
    >"$dir/kit/deb/DEBIAN/control"
touch "$dir/kit/deb/usr/include/jansson.h" "$dir/kit/deb/usr/bin/orterun" "$dir/kit/include/cudnn.h" \
    "$dir/kit/nccl/libnccl.so.2"
touch "$wheels/cudnn/lib"/libcudnn{,_graph}.so.9
cp -r "$dir/llm.c"/* "$dir/kit/llm.c"
mkdir "$dir/kit/include/nvtx3" && touch "$dir/kit/include/nvtx3/nvToolsExt.h"
mkdir -p "$dir/kit/cudnn_frontend/include" && touch "$dir/kit/cudnn_frontend/include/cudnn_frontend.h"
mkdir "$dir/few"
for tool in /bin/* /usr/bin/*; do
    case ${tool##*/} in ssh | rsh | git) ;; *) [ -e "$dir/few/${tool##*/}" ] ||
        ln -s "$tool" "$dir/few/" ;; esac
done
if dpkg-deb -b "$dir/kit/deb" "$dir/kit/libjansson-dev_1_all.deb" >/dev/null 2>&1; then
    begin 'gpu_check.a kit, where there is neither ssh nor git'
    need 'it failed' check 0 LLMC= PATH="$FAKE:$dir/few" FAKE_NO_TORCH=1 \
        FAKE_MISSING='jansson.h nvtx3/nvToolsExt.h' FAKE_NCCL_230=1 ROUNDS=1 \
        FAKE_OPTIONS=' cudnn-fast --attention-workspace' -- --kit "$dir/kit" build train nccl sweep
    need 'its packages' grep -q "$dir/out/kit/usr/include:" "$FAKE/include_path"
    need 'the name mpirun' [ "$(readlink "$dir/out/kit/bin/mpirun")" = ../usr/bin/orterun ]
    need "pip's cuDNN, the kit's header" [ "$(cd "$dir/out/cudnn" && echo */*)" \
        = 'include/cudnn.h lib/libcudnn.so.9 lib/libcudnn_graph.so.9' ]
    need 'cuDNN for the linker of llm.c' [ "$(readlink "$dir/out/links/libcudnn.so")" \
        = "$wheels/cudnn/lib/libcudnn.so.9" ]
    need 'it is loaded from its own folder' grep -q ":$wheels/cudnn/lib" "$dir/out/runs/nccl-0/nccl"
    need 'and its folder' grep -q "$dir/out/links" "$FAKE/library_path"
    need 'its NCCL' grep -q "^1 8 RING $dir/kit/nccl:" "$dir/out/runs/nccl-0/nccl"
    need 'cuDNN is insisted on' grep -q ' --attention cudnn -z 0 ' "$dir/out/runs/zero-0.1/arguments"
    need 'its llm.c' is 'llm.c, without cuDNN' runs 1
    need 'its llm.c, patched' says 'llm.c with the plugin: stages 0 to 3 end with params_hash'
    need 'Open MPI looks for ssh' grep -q '^/bin/true$' "$FAKE/agent"
    need 'the source' grep -qE '^source +not a git checkout, digest of the files [0-9a-f]{8};' \
        "$dir/out/machine.txt"
    need 'sweep, attention' grep -q ' --attention cudnn-fast -z 0 ' "$dir/out/runs/sweep-fast.1/arguments"
    need 'sweep, workspace' grep -q ' --attention cudnn --attention-workspace 1536 -z 0 ' \
        "$dir/out/runs/sweep-workspace-1536.1/arguments"
    need 'sweep, what is not there' listed Skipped 'sweep: this trainer has no --tune'
    KEEP=yes need 'cuDNN that refuses' check 1 LLMC= FAKE_MISSING='jansson.h' FAKE_REFUSES=cudnn ROUNDS=1 -- \
        --again --kit "$dir/kit" build sweep
    need 'its sentence' listed FAILED 'first-cudnn: failed with status 1'
    need 'what is measured then' grep -q ' --attention cublaslt -z 0 ' "$dir/out/runs/sweep-plain.1/arguments"
    need 'the head' grep -q ', attention: cuBLASLt; ' "$dir/out/results.md"
    end
else
    skip 'gpu_check.a kit' 'dpkg-deb is not here'
fi
rm "$wheels/cudnn/lib"/*

# ---- calls that end before all is done

begin 'gpu_check.the budget is spent'
need 'it failed' check 0 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 -- build
KEEP=yes need 'it ended otherwise' check 3 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 BUDGET_S=9 FAKE_HANG=peak -- train
need 'what was cut' listed 'Left for the next call' \
    "peak.1: (cut at the end of this call's 9 s|[0-4] of 9 s are left)"
need 'what is left' listed 'Left for the next call' 'zero-3.1: [0-9] of 9 s are left, it may take 15'
need 'no failure' not grep -q '^FAILED' "$dir/out/results.md"
touch "$dir/before"
KEEP=yes need 'the next call' check 0 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 -- build train
need 'what it had to do' [ "$(runs)" = 'zero-0-2ranks.1 zero-0.1 zero-1.1 zero-2.1 zero-3-2ranks.1 zero-3.1' ]
need 'the peak' says '- percent of peak at stage 0, aim >= 60: '
need 'nothing is left' not grep -q '^Left' "$dir/out/results.md"
end
begin 'gpu_check.other sources'
echo '# changed' >"$dir/changed" && cat Makefile >>"$dir/changed" && rm "$tree/Makefile" &&
    mv "$dir/changed" "$tree/Makefile"
KEEP=yes need 'it failed' check 0 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 -- build
need 'the earlier results' grep -q 'ours, stage 3' "$dir/out/earlier-1/results.md"
need 'rows of another trainer' [ -z "$(cell 'ours, stage 3' runs)" ]
end

# ---- what goes wrong

# wrong NAME SENTENCE[|SENTENCE]... SETTING... with the parts in PARTS
wrong() {
    local sentences sentence
    IFS='|' read -ra sentences <<<"$2"
    begin "gpu_check.$1"
    # shellcheck disable=SC2086
    need 'wrong status' check 1 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 "${@:3}" -- ${PARTS:-build}
    for sentence in "${sentences[@]}"; do
        need "not said: $sentence" says "$sentence"
        need "not under FAILED: $sentence" grep -qF -- "- $sentence" \
            <(sed -n '/^FAILED:/,$p' "$dir/out/results.md")
    done
    end
}
wrong 'a failing test' 'test_layers_cuda: failed with status 1' FAKE_TEST=failing
begin 'gpu_check.what failed is repeated where its part is named'
touch "$dir/before"
KEEP=yes need 'it ended otherwise' check 3 LLMC= FAKE_NO_TORCH=1 BUDGET_S=1
need 'it is repeated where no part is named' [ "$dir/before" -nt "$dir/out/test_layers_cuda.log" ]
printf '#!/bin/sh\necho "[  PASSED  ] 1 test(s)."\n' |
    tee "$dir/out/build/tests"/{test_layers_cuda,test_device,mpi_device,mpi_tiers_device} >/dev/null
KEEP=yes need 'it failed' check 0 LLMC= FAKE_NO_TORCH=1 -- build
need 'still a failure' not grep -q '^FAILED' "$dir/out/results.md"
end
wrong 'a test that skips on a card' \
    'test_device: ran no test on the card: skip test_device: there is no driver' FAKE_TEST=skipping
wrong 'a build that fails' 'build: failed with status 2' FAKE_BUILD='no such header'
PARTS='build train' wrong \
    'tests that cannot be built; other bits; llm.c with the plugin: other bits and another loss' \
    'build: failed with status 2|'\
'same bits, stages 0 to 3, one rank: NO, 2 different digests in 4 runs|'\
'llm.c with the plugin: stages 0 to 3 do not end with the same params_hash|'\
'llm.c with the plugin, patched-0: last loss 9.400000, without it 9.250000' FAKE_PATCHED_HASH=2 \
FAKE_PATCHED_LOSS=9.400000 FAKE_HASH=zero-2.1 LLMC="$dir/llm.c" FAKE_TEST=missing
PARTS='build train sanitize' wrong 'other losses, an error in memory, a run that hangs' \
    'GPU and CPU, bf16, 20 steps: losses differ by 0.03, 0.02 is allowed|'\
'memcheck-test_layers_cuda: failed with status 9|zero-2.1: cut, no end after 2 s|'\
'same bits, stages 0 to 3, one rank: not checked, 3 of 4 runs ended' \
    FAKE_DRIFT=.53 FAKE_MEMCHECK='ERROR SUMMARY: 1 error' FAKE_HANG=2 RUN_S=2
begin 'gpu_check.the other runs of that'
seconds=$(sed -nE 's/^\[ *([0-9]+) s\] zero-2\.1(: cut| \.\.\.).*/\1/p' "$dir/screen" | paste -sd' ')
need "cut from ${seconds/ / to } s" number "${seconds#* } - ${seconds% *} <= 10"
need 'stage 3' is 'ours, stage 3' tokens/s 97000
need 'stage 2' is 'ours, stage 2' tokens/s ''
need 'llm.c says why' says 'llm.c: neither LLMC=folder nor --kit with llm.c/ was given'
end
PARTS=nccl wrong "NCCL's bits, its sum, ranks left behind, said twice" \
    'same bits, 2 ranks on card 0,1, NCCL and through the host: NO, others than host-0: nccl-2|'\
"NCCL's own sum: losses differ by 0.03, 0.02 is allowed|NCCL, a rank is killed: processes still run after |"\
"NCCL, a rank is stopped: 2 sentences of the trainer's|same bits, d12 on 2 ranks by NCCL: NO, 2 different "\
"digests in 4 runs" \
    FAKE_CARDS=2 FAKE_HASH=nccl-2 FAKE_SUM=.53 FAKE_DRIFT=.5 FAKE_LEFT=gone FAKE_SENTENCES=2 \
    FAKE_OTHER=zero-3-2ranks-nccl.1 COMM_TIMEOUT_S=1
begin 'gpu_check.no rank is left'
need 'one runs' not pgrep -f "bash $dir/out/train_gpt2_zero .* --comm-timeout"
end
wrong 'no build' \
    'missing here: mpi.h (libopenmpi-dev), oneapi/dnnl/dnnl.h (libdnnl-dev), jansson.h (libjansson-dev), '\
'xxhash.h (libxxhash-dev), cmocka.h (libcmocka-dev), cublasLt.h (NVIDIA'"'s cuda-toolkit), so that nothing "\
"can be built and measured. "\
'scripts/install_deps.sh installs' \
FAKE_MISSING='mpi.h oneapi/dnnl/dnnl.h jansson.h xxhash.h cmocka.h cublasLt.h'
begin 'gpu_check.no build, and nothing tried'
need 'a build' [ ! -e "$dir/out/build.log" ]
end
PARTS='build nccl' wrong 'no cmocka, and NCCL that does not start' \
    'missing here: cmocka.h (libcmocka-dev), so that no GPU test can be built; all else is done|'\
'nccl-KILL: it ended by itself: rank 0 on h: no communicator, see |nccl-STOP: it ended by itself: ' \
    FAKE_MISSING=cmocka.h FAKE_NCCL_230=1 FAKE_NO_START=1 NCCL_MAX_CTAS=4
begin 'gpu_check.the rest of that'
seconds=$(sed -nE 's/^\[ *([0-9]+) s\] nccl-(KILL|bench) \.\.\..*/\1/p' "$dir/screen" | paste -sd' ')
need "two starts, from ${seconds/ / to } s" number "${seconds#* } - ${seconds% *} <= 10"
need "NCCL's settings" grep -q '^1 4 ' "$dir/out/runs/nccl-0/nccl"
need 'the bench' says 'NCCL, dev/bench/comm: 4 rows, 0 of them wrong'
need 'other failures' [ "$(sed -n '/^FAILED:/,$p' "$dir/out/results.md" | grep -c '^- ')" = 3 ]
end
begin 'gpu_check.what a machine cannot do is skipped'
mkdir -p "$tree/third_party/cudnn_frontend/include" &&
    touch "$tree/third_party/cudnn_frontend/include/cudnn_frontend.h"
need 'it failed' check 0 LLMC= FAKE_NO_TORCH=1 ROUNDS=1 \
    FAKE_MEMCHECK='========= Error: Device not supported. Please refer to' \
    FAKE_NCCL='rank 1 on h: NCCL 2.21.5 is too old; 2.26 or newer is needed' FAKE_NO_COUNTERS=1 \
    SIZES='d24:8 d48:16' FAKE_FITS=2
need 'memcheck, once' [ "$(grep -c '^- memcheck-test_.*: ========= Error: Device not supported' \
    "$dir/out/results.md")" = 1 ]
need 'NCCL' listed Skipped 'NCCL: rank 1 on h: NCCL 2.21.5 is too old; '
need 'PyTorch' listed Skipped 'PyTorch is not here, or cannot use the card: ModuleNotFoundError: torch'
need 'counters' listed Skipped 'ncu-0: ==ERROR== ERR_NVGPUCTRPERM'
need 'cuDNN' says "attention: cuBLASLt, cudnn.h is not in $FAKE/cuda/include; data: "
need 'what does not fit' listed Skipped 'd24-b4-zero-0.1: .* 10.0 of the 20.0 MiB of NVIDIA H100 are free'
need 'what fits' is 'd48, B 2: ours, stage 3' tokens/s 97000
end

# ---- losses and digests of the real trainer

if [ -x "$stand_in" ] && "$stand_in" --device cuda -e l1h1c16v257t16 -x 0 -v 0 -s 0 -ge 0 >/dev/null 2>&1; \
    then
    begin 'gpu_check.the real trainer on the stand-in'
    need 'it failed' check 0 OMP_NUM_THREADS=1 LLMC= FAKE_NO_TORCH=1 FAKE_NO_WHEELS=1 CUDA=stand-in \
        FAKE_TRAINER="$(realpath "$stand_in")" \
        MODEL=l2h2c16v257t16 B=2 T=16 STEPS=3 ROUNDS=1 SMALL=l2h2c16v257t8 FAKE_CARDS=2 \
        CUDA_STAND_IN_DEVICES=2 COMM_TIMEOUT_S=3 -- build train nccl sweep
    need 'sweep, --tune' is 'sweep: --tune' runs 1
    need 'sweep, what was timed' grep -q '^tuning .*/tuned.txt, with what was timed just now$' \
        "$dir/out/sweep-tuning.log"
    need 'sweep, what was read' grep -q '^tuning .*/tuned.txt$' "$dir/out/sweep-tune.1.log"
    need 'stages' says 'same bits, stages 0 to 3, one rank: yes'
    need 'ranks' says 'same bits, stages 0 and 3, two ranks: yes'
    need 'NCCL' says 'same bits, 2 ranks on card 0,1, NCCL and through the host: yes, stages 0 to 3'
    need 'NCCL, killed' grep -qE 'NCCL, a rank is killed: over after ' "$dir/screen"
    need 'NCCL, stopped' grep -qE 'NCCL, a rank is stopped: over after .* (did not|waited 3 s in) ' \
        "$dir/screen"
    need 'a peak' number "$(sed -n 's/^Peak, measured: \([0-9.]*\) .*/\1/p' "$dir/out/results.md") > 0"
    need 'a loss' number "$(cell 'ours, stage 3' loss) > 5"
    need 'a share' number "$(cell 'ours, stage 0' '% of peak') >= 0"
    end
else
    skip 'gpu_check.the real trainer' \
        "$stand_in is not there or takes no --device cuda: make CUDA=stand-in BUILD=build/stand-in builds it"
fi
begin 'gpu_check.no rank is bound to a core'
need 'bound' [ ! -e "$FAKE/bound" ]
end
finish gpu_check
