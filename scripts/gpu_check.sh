#!/usr/bin/env bash
# For a machine with an NVIDIA GPU (compute capability 8.0 or more). Builds the trainer, runs its GPU tests,
# and measures GPT-2's training beside llm.c and PyTorch. Needs no network. Every part writes its piece of the
# results at once, so that a cut loses only what was running.
#
# Usage: [SETTING=value]... scripts/gpu_check.sh [--kit FOLDER] [--again] [PART...]
#
# The parts, in the order in which they run when none is named:
#   build      the trainer, the GPU tests, llm.c, and llm.c with the plugin, built side by side; each test
#              runs as soon as it is linked
#   train      124M at stages 0 to 3 in turn with llm.c, on two ranks that share the card, and llm.c with the
#              plugin
#   torch      PyTorch, compiled, in turn with stage 0
#   nccl       NCCL: the same bits as through the host, 124M too, and runs that lose a rank
#   sanitize   compute-sanitizer's memcheck over the GPU tests
#   sizes      350M, 774M and 1558M at stages 0 and 3, beside llm.c, at a batch that fits the card
#   tiers      1558M at stage 3 with its states on the device, in host memory and on NVMe (in GPU_CHECK_OUT),
#              and a model that needs host memory
#   profile    time and bytes of each kernel in one step (ncu), beside the model of dev/gpu_model.sh; phases
#              of a step (nsys)
#   sweep      124M at stage 0 with one setting after another: --tune, other attention, its workspace
# A call ends inside BUDGET_S. The next call goes on where it ended: steps that have ended well are not
# repeated, unless --again is given. Steps that failed are repeated where their part is named. When the
# trainer's sources change, the results so far are set aside.
#
#   LLMC=folder             a checkout of llm.c (default: the kit's); it is built from a copy, with and
#                           without the plugin
#   PYTHON=python3          PyTorch is measured where this one has it and it can use the card; its wheels'
#                           cuDNN, cuBLAS and NCCL are found
#   DATA=pattern            shards of GPT-2's tokens (default: random tokens, as frequent as words are)
#   CARD=0                  nvidia-smi's number of the card (default: the first of CUDA_VISIBLE_DEVICES)
#   CARDS=0,1               those of NCCL's ranks, one each (default: where CARD is not given, the first 4 or
#                           2 that are there, else CARD)
#   MODEL=d12 T=1024 B=32   the batch's default goes by the card's memory: 4 up to 16 GiB, 8 up to 24, 16 up
#                           to 40, 32 up to 80, else 64
#   SIZES="d24:64 d36:32"   part sizes: MODEL:ROWS; ROWS are halved until they fit (default: d24:64 d36:32
#                           d48:32, less on smaller cards)
#   TIERS=d48:16            part tiers: MODEL:ROWS
#   LARGE=MODEL:ROWS LARGE_S=400
#                           its largest model, and the seconds for it (default: l32h32c4608v50257t1024:4, 8.4
#                           billion parameters, with 139 GiB on the card and 110 GiB of memory, else none)
#   SMALL=l4h4c128v257t64   the model whose first losses are compared with the CPU's, and which NCCL's checks
#                           run
#   STEPS=30 SIZE_STEPS=12  steps of a run; of one in part sizes
#   ROUNDS=2                every program runs so many times, in turn: medians are quoted
#   GE=2                    GELU in the matrix products, -ge of both trainers (default: 2 on compute
#                           capability 9.0 and newer, else 0)
#   BUDGET_S=560            seconds for this call;  RUN_S=120: for one training run
#   CUDA=yes                as in the Makefile; stand-in: the CUDA code on the processor, to try the script
#                           itself
#   COMM_TIMEOUT_S=10       --comm-timeout of the runs that lose a rank (default: 10, and 30 where ranks share
#                           a card)
#   GPU_CHECK_OUT=folder    where everything goes (default: build/gpu_check): results.md, results.tsv, and a
#                           log of each step
#   RESULTS=folder          a second place for results.md, results.tsv and logs.tar.gz. The tar, unpacked in a
#                           new GPU_CHECK_OUT, lets another machine go on from there
#
# --kit FOLDER is for a machine that lacks what the build needs and has no network. Nothing is written outside
# GPU_CHECK_OUT but data/, the stories that the trainer's build makes. All of it is optional:
#   *.deb                   Debian's packages, unpacked where something is missing: make, openmpi-bin,
#                           openmpi-common, libopenmpi-dev and -3, libhwloc15, libevent-core,
#                           libevent-pthreads, libpmix2, libmunge2, libdnnl-dev and -2, ocl-icd-libopencl1,
#                           libjansson-dev and -4, libxxhash-dev, libsodium-dev and -23, libcmocka-dev
#                           and -0
#   include/                headers that neither the toolkit nor pip's wheels may have: cublasLt.h, cudnn.h,
#                           nccl.h, nvtx3/, and what they include
#   nccl/libnccl.so.2       for the runs that use NCCL, with NCCL_ALGO=RING; from 2.30 on two ranks may share
#                           a card
#   llm.c/                  what LLMC names: Makefile, train_gpt2.c, train_gpt2.cu, llmc/
#   cudnn_frontend/         the folder above include/cudnn_frontend.h, where third_party/ lacks it
# NVIDIA's own make builds an NCCL with just what is used here, for compute capability 9.0 (5 MB when
# stripped); FOLDER is the toolkit's include/ without its nccl*, which are of another version:
#   make src.build CUDA_INC=FOLDER NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90" \
#       ONLY_FUNCS="SendRecv|AllGather RING *|ReduceScatter Sum (f32|f16|bf16) RING *"
#
# Status: 0 all that was asked for is done and passed (aims that are not met do not change it), 1 something
# failed, 2 there is no usable GPU, 3 the time was over first: call again.
set -u
SECONDS=0
export LC_ALL=C
bad() { echo "gpu_check.sh: $*" >&2; exit 1; }
usage() { sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0"; }
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

all_parts=(build train torch nccl sanitize sizes tiers profile sweep)
kit='' again='' parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --help) usage; exit ;;
        --again) again=yes ;;
        --kit)
            [ -d "${2:-}" ] || bad "--kit ${2:-}: there is no such folder; --help says what it holds"
            kit=$(realpath "$2")
            shift ;;
        *)
            [[ " ${all_parts[*]} " = *" $1 "* ]] || bad "'$1' is no part; the parts are: ${all_parts[*]}"
            parts+=("$1") ;;
    esac
    shift
done
[ -n "${LLMC:-}" ] || [ ! -e "$kit/llm.c/train_gpt2.cu" ] || LLMC=$kit/llm.c
llmc=$(absolute "${LLMC:-}")
data=$(absolute "${DATA:-}")
out=$(absolute "${GPU_CHECK_OUT:-}")
copies=$(absolute "${RESULTS:-}")
python=${PYTHON:-python3}
[[ $python != */* ]] || python=$(absolute "$python")
cd "$(dirname "$0")/.." || exit 1
out=${out:-$PWD/build/gpu_check}
random_tokens=''
[ -n "$data" ] || random_tokens=$out/tokens.bin
data=${data:-$random_tokens}

budget=${BUDGET_S:-560}
run_s=${RUN_S:-120}
rounds=${ROUNDS:-2}
model=${MODEL:-d12}
T=${T:-1024}
steps=${STEPS:-30}
tiers=${TIERS:-d48:16}
large_s=${LARGE_S:-400}
size_steps=${SIZE_STEPS:-12}
card=${CARD:-${CUDA_VISIBLE_DEVICES:-0}}
card=${card%%,*}
cards=${CARDS:-${CARD:-${CUDA_VISIBLE_DEVICES:-}}}
build=$out/build
trainer=$out/train_gpt2_zero
for file in steps machine build runs parts nccl profile results; do
    # shellcheck source=/dev/null
    . "scripts/gpu_check/$file.sh"
done

[ -z "$llmc" ] || [ -e "$llmc/train_gpt2.cu" ] ||
    bad "LLMC=$llmc: there is no train_gpt2.cu; give a checkout of github.com/karpathy/llm.c"
find_card
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
B=${B:-$(awk -v m="$card_mib" \
    'BEGIN { g = m / 1024; print g <= 16 ? 4 : g <= 24 ? 8 : g <= 40 ? 16 : g <= 80 ? 32 : 64 }')}
memory_gib=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
large=${LARGE:-none}
[ -n "${LARGE:-}" ] || ! number "$card_mib >= 139000 && $memory_gib >= 110" || large=l32h32c4608v50257t1024:4
ge=${GE:-$(number "$capability >= 9" && echo 2 || echo 0)}
[ $((B % 2)) = 0 ] || bad "B=$B: two ranks share the batch, so it must be even"
[ "$steps" -ge 3 ] || bad "STEPS=$steps: the first two do not count, so there must be three at least"
[ "$size_steps" -ge 3 ] ||
    bad "SIZE_STEPS=$size_steps: the first two do not count, so there must be three at least"
[ -d "$out/state" ] || [ -z "$(ls -A "$out" 2>/dev/null)" ] ||
    bad \
    "GPU_CHECK_OUT=$out: there are files, and not those of an earlier run, which it would replace; give a "\
"new folder"
mkdir -p "$out/state" "$out/runs" "$out/links" ${copies:+"$copies"} || exit 1
find_needs
. scripts/mpi_env.sh
find_cards
# options of ours alone; those of both trainers are in $task
train=(--device cuda --dtype bf16 -v 0 -s 0)
# For runs whose losses are compared: at 1e-3 without a warm-up the gradient's norm leaps from 2 to 50 at step
# 11, where a rate that is 0.1 % off moves the loss by 0.18; at 3e-4 by 0.0006 within 20 steps.
gentle=(-l 3e-4 -u 0 -ge "$ge")
set_task "$model" "$B" "$steps" ''

trap end_of_call EXIT
trap 'exit 130' INT TERM
named=yes
[ ${#parts[@]} -gt 0 ] || { named=''; parts=("${all_parts[@]}"); }
know_sources
describe_machine
stopped=''
if look_for_needs; then
    for part in "${parts[@]}"; do
        start_part
        "part_$part" || { stopped=yes; break; }
        publish
    done
fi
finish_builds
publish
echo
cat "$out/results.md"
echo
say "written: $out/results.md, results.tsv, and a log of each step"
exit "$(status_of_call)"
