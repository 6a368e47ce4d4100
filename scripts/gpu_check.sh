#!/usr/bin/env bash
# One command for a machine with an NVIDIA GPU (compute capability 8.0 or more): builds, runs the GPU tests, trains GPT-2 124M for a few
# dozen steps at ZeRO stages 0 to 3, beside llm.c and PyTorch where they are, and prints one table. With NCCL (2.26 and two cards, or 2.30
# and one) ranks use that too, and one of them is killed and stopped. It needs no network, and stops itself after BUDGET_S.
# Usage: [SETTING=value]... scripts/gpu_check.sh
#   LLMC=folder             a checkout of llm.c: train_gpt2cu is built from a copy of it, and run in turn with ours; and from another copy
#                           with the plugin patched in, at every stage
#   PYTHON=python3          PyTorch runs in turn with ours where this one has it and it can use the card
#   DATA=pattern            shards of GPT-2's tokens (default: random tokens, as frequent as words are)
#   CARD=0                  nvidia-smi's number of the card (default: the first of CUDA_VISIBLE_DEVICES)
#   CARDS=0,1               those of NCCL's ranks, one each (default: where CARD is not given, the first 4 or 2 that are there, else CARD)
#   MODEL=d12 T=1024 B=32   the batch's default goes by the card's memory: 4 up to 16 GiB, 8 up to 24, 16 up to 40, 32 up to 80, else 64
#   SMALL=l4h4c128v257t64   the model whose first losses are compared with the CPU's
#   STEPS=30 ROUNDS=2       steps of a run; every program so many times, in turn: medians are quoted
#   GE=2                    GELU in the matrix products, -ge of both trainers (default: 2 on compute capability 9.0 and newer, else 0)
#   BUDGET_S=450 RUN_S=120  seconds for all, and 120 where NCCL is used, after which parts are cut short or skipped; for one training run
#   COMM_TIMEOUT_S=10       --comm-timeout of the runs that lose a rank; their communicators have to be made in that time
#   GPU_CHECK_OUT=folder    where everything goes: a log for each part, runs.tsv, results.tsv, results.md (default: build/gpu_check)
# NCCL between two ranks of one card: LD_LIBRARY_PATH names the folder of a libnccl.so.2 of 2.30 or newer. NVIDIA's own make builds one with
# just what is used here, for compute capability 9.0; FOLDER is the toolkit's include/ without its nccl*, which are of another version:
#   make src.build CUDA_INC=FOLDER NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90" \
#       ONLY_FUNCS="SendRecv|AllGather RING *|ReduceScatter Sum (f32|f16|bf16) RING *"
#   LD_LIBRARY_PATH=.../nccl/build/lib NCCL_ALGO=RING scripts/gpu_check.sh        (stripped, the library has 5 MB)
# Status: 0 all tests passed and all runs ran (aims that are not met do not change it), 1 not so, 2 there is no usable GPU.
set -u
SECONDS=0
[ $# = 0 ] || { sed -n '2,/^# Status/s/^# \{0,1\}//p' "$0"; [ "$1" = --help ]; exit; }
absolute() { case $1 in '' | /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }
llmc=$(absolute "${LLMC:-}") data=$(absolute "${DATA:-}") out=$(absolute "${GPU_CHECK_OUT:-}")
cd "$(dirname "$0")/.." || exit 1
. scripts/mpi_env.sh

out=${out:-build/gpu_check} budget=${BUDGET_S:-450} run_s=${RUN_S:-120} rounds=${ROUNDS:-2}
model=${MODEL:-d12} T=${T:-1024} steps=${STEPS:-30} python=${PYTHON:-python3} card=${CARD:-${CUDA_VISIBLE_DEVICES:-0}}
cards=${CARDS:-${CARD:-${CUDA_VISIBLE_DEVICES:-}}}
card=${card%%,*} build=$out/build trainer=$out/train_gpt2_zero
rows=(zero-0 llm.c zero-1 pytorch zero-2 zero-3 zero-0-2ranks zero-3-2ranks)     # in the order of a round
declare -A absent=() title=([zero-0]='ours, stage 0' [zero-1]='ours, stage 1' [zero-2]='ours, stage 2' [zero-3]='ours, stage 3'
    [zero-0-2ranks]='ours, stage 0, 2 ranks' [zero-3-2ranks]='ours, stage 3, 2 ranks' [llm.c]='llm.c' [pytorch]='PyTorch, compiled')
tests=() problems=() skipped=() checks=()
job='' look='' llmc_job=''      # what runs in the background: a part, nvidia-smi, the build of llm.c
peak='' attention='' P=0 L=0 NH=0 C=0 V=0
comm_timeout_s=${COMM_TIMEOUT_S:-10}
# Not one core for each rank, which is what it does with two: a rank has threads that wait on the network and the card.
mpirun=(mpirun --oversubscribe --bind-to none -np)
stop() { { [ -z "$llmc_job" ] || pkill -P "$llmc_job"; kill $job $look $llmc_job; } 2>/dev/null; }
trap stop EXIT
trap 'exit 130' INT TERM

# ---------------------------------------------------------------------------------------------------------- parts and limits

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
problem() { say "$*"; problems+=("$*"); }
check() { say "$*"; checks+=("$*"); }
number() { awk "BEGIN { exit !($1) }"; }    # a condition on numbers that need not be whole

# part must|may NAME LIMIT LEAST COMMAND...: runs COMMAND for LIMIT seconds at most, and no longer than the budget; with less than LEAST
# left it is skipped, which is a failure where it must run. Output: NAME.log. Status: the command's, 124 when cut, 125 when skipped, also
# where a line of its output has $cannot, which says that this machine cannot do it.
part() {
    local must=$1 name=$2 limit=$3 least=$4 left=$((budget - SECONDS)) began=$SECONDS status why
    shift 4
    if [ $left -lt "$least" ]; then
        skipped+=("$name: $((left > 0 ? left : 0)) of $budget s are left, it may take $least")
        say "skipped ${skipped[-1]}"
        [ "$must" = may ] || problems+=("not run: $name, for want of time")
        return 125
    fi
    [ "$limit" -le $left ] || limit=$left
    say "$name ... at most $limit s"
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null & job=$!
    wait $job; status=$?
    job=
    if [ -n "${cannot:-}" ] && why=$(grep -m1 "$cannot" "$out/$name.log"); then
        skipped+=("$name: $why"); say "skipped ${skipped[-1]}"
        return 125
    fi
    case $status in
        0) say "$name: done in $((SECONDS - began)) s" ;;
        124 | 137) status=124; problem "$name: cut, no end after $limit s; what it said is in $out/$name.log" ;;
        *) problem "$name: failed with status $status; the end of $out/$name.log:"; tail -n 5 "$out/$name.log" | sed 's/^/        /' ;;
    esac
    return $status
}
# LIMIT COMMAND...: for so many seconds at most, and no longer than the budget
brief() {
    local limit=$1 left=$((budget - SECONDS))
    [ "$limit" -le $left ] || limit=$((left > 1 ? left : 1))
    timeout -k 5 "$limit" "${@:2}"
}

# ------------------------------------------------------------------------------------------------------------------- machine

smi() { nvidia-smi -i "$card" --query-gpu="$1" --format=csv,noheader,nounits; }
no_gpu() { echo "gpu_check.sh: no usable GPU: $*" >&2; exit 2; }
# of a library, from its header: HEADER PREFIX
version() {
    local folder folders
    IFS=: read -ra folders <<<"${CPATH:-}"
    for folder in "${folders[@]}" "${CUDNN_HOME:-$cuda_home}/include" "$cuda_home/include" /usr/include /usr/local/include; do
        [ -e "$folder/$1" ] || continue
        awk -v p="$2" '$1 == "#define" && index($2, p) == 1 { v[substr($2, length(p) + 1)] = $3 }
            END { print v["MAJOR"] "." v["MINOR"] "." v["PATCH"] v["PATCHLEVEL"] }' "$folder/$1"
        return
    done
    echo none
}

find_card() {
    command -v nvidia-smi >/dev/null || no_gpu "nvidia-smi is not there; install NVIDIA's driver"
    local line need have
    line=$(smi name,memory.total,driver_version,compute_cap,clocks.max.sm,power.limit 2>&1) || no_gpu "nvidia-smi -i $card: ${line%%$'\n'*}"
    IFS=, read -r card_name card_mib driver capability clock watts <<<"${line//, /,}"
    number "${capability:-0} >= 8" || no_gpu "$card_name has compute capability ${capability:-unknown}, and 8.0 or more is needed"
    command -v nvcc >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v nvcc >/dev/null || no_gpu "nvcc is not there; install the CUDA toolkit, or put its bin folder into PATH"
    cuda_home=$(realpath "$(command -v nvcc)"); cuda_home=${cuda_home%/bin/nvcc}
    need=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') have=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')
    cuda=$need
    [ "${have%%.*}" -ge "${need%%.*}" ] 2>/dev/null || [ -z "$have" ] ||
        no_gpu "driver $driver is for CUDA up to $have, and nvcc is $need; install a newer driver or an older toolkit"
    export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$card
    find_cards
}
# For NCCL: a card for each of four or two ranks; one card is for two ranks.
find_cards() {
    local list n
    [ -n "$cards" ] || cards=$(nvidia-smi --query-gpu=index,compute_cap --format=csv,noheader,nounits |
        awk -F', *' '$2 >= 8 { print $1 }' | paste -sd,)
    IFS=, read -ra list <<<"${cards:-$card}"
    n=${#list[@]} ranks=$((n >= 4 ? 4 : 2))
    cards=$(IFS=,; echo "${list[*]:0:$ranks}")
}

# NCCL as pip installs it, where the compiler finds no other.
find_nccl() {
    local folder
    has_header nccl.h && return
    folder=$("$python" -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null) && [ -e "$folder/include/nccl.h" ] || return
    export CPATH=$folder/include${CPATH:+:$CPATH} LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder/lib
    say "NCCL is that of $python: $folder"
}
# The version that is loaded, which need not be that of the header.
nccl_library() {
    "$python" - 2>/dev/null <<'END' || echo unknown
import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print(f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}")
END
}

describe_machine() {
    local used commit
    used=$(smi memory.used)
    if commit=$(git rev-parse --short HEAD 2>/dev/null); then git diff --quiet HEAD || commit+=', changed since'; fi
    cat >"$out/machine.txt" <<END
card      $card_name, compute capability $capability, $card_mib MiB, SM clock up to $clock MHz, power limit $watts W, driver $driver
versions  CUDA $cuda, cuBLASLt $(version cublas_api.h CUBLAS_VER_), cuDNN $(version cudnn_version.h CUDNN_), \
NCCL $(nccl_library), its header $(version nccl.h NCCL_)
host      $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $cores cores
compiler  $(${CC:-cc} --version | head -n 1); MPI: $(mpirun --version 2>/dev/null | head -n 1)
source    ${commit:-not a git checkout}; $(date +%F)
END
    cat "$out/machine.txt"
    [ "${used:-0}" -lt 1000 ] || say "careful: $used MiB of the card are in use already; what uses them may disturb the times"
}

# --------------------------------------------------------------------------------------------------------------------- build

has_header() {
    # shellcheck disable=SC2046
    printf '#include <%s>\n' "$1" | ${CC:-cc} $(mpicc --showme:compile 2>/dev/null) -I"$cuda_home/include" -x c -E - >/dev/null 2>&1
}
# What the build needs and this machine lacks, in one line, with Debian's packages; without cmocka only the tests are left out.
look_for_needs() {
    local what package list status=0 missing=()
    while read -r what package; do
        case $what in *.h) has_header "$what" ;; *) command -v "$what" >/dev/null ;; esac || missing+=("$what ($package)")
    done < <(printf '%s\n' 'make make' "${CC:-cc} gcc" 'g++ g++' 'mpirun openmpi-bin' 'mpicc libopenmpi-dev' 'mpi.h libopenmpi-dev' \
        'oneapi/dnnl/dnnl.h libdnnl-dev' 'jansson.h libjansson-dev' 'xxhash.h libxxhash-dev' 'cmocka.h libcmocka-dev')
    [ ${#missing[@]} -gt 0 ] || return 0
    list=$(printf '%s, ' "${missing[@]}")
    what='so that nothing can be built and measured' status=1
    [ "${list%, }" != 'cmocka.h (libcmocka-dev)' ] || { what='so that no GPU test can be built; all else is done' status=0; }
    problem "missing here: ${list%, }, $what. scripts/install_deps.sh installs that; without a network, unpack Debian's packages" \
        "(dpkg -x), and name the folders in PATH, CPATH, LIBRARY_PATH and LD_LIBRARY_PATH"
    return $status
}
# Nothing where attention is by cuDNN.
why_no_cudnn() {
    local home=${CUDNN_HOME:-$cuda_home}
    if [ ! -e third_party/cudnn_frontend/include/cudnn_frontend.h ]; then echo "cuDNN's frontend is not in third_party/"
    elif [ ! -e "$home/include/cudnn.h" ]; then echo "cudnn.h is not in $home/include"; fi
}

frontend() {    # the folder above include/cudnn_frontend.h
    local folder
    for folder in "$llmc/cudnn-frontend" "$HOME/cudnn-frontend" third_party/cudnn_frontend; do
        [ ! -e "$folder/include/cudnn_frontend.h" ] || { realpath "$folder"; return; }
    done
    return 1
}

make_llmc() {   # FOLDER ARGUMENT...
    local left=$(((budget < 240 ? budget : 240) - SECONDS)) libraries
    libraries=$(realpath "$1"):$cuda_home/lib64:$cuda_home/lib:$cuda_home/lib64/stubs
    [ $left -gt 0 ] && LIBRARY_PATH=$libraries timeout $left make -C "$1" NO_MULTI_GPU=1 GPU_COMPUTE_CAPABILITY="${capability/./}" "${@:2}"
}
# llm.c from a copy, so that the checkout stays as it is
copy_llmc() { rm -rf "$1" && mkdir "$1" && cp -r "$llmc"/{Makefile,train_gpt2.c,train_gpt2.cu,llmc} "$1"; }
# With cuDNN where its frontend is and the build succeeds. The driver's library lacks the name without a version where the toolkit has no
# stub of it.
compile_llmc() {
    local found
    found=$(ldconfig -p 2>/dev/null | sed -n 's/.*libnvidia-ml\.so\.1 .*=> //p' | head -n 1)
    [ -z "$found" ] || ln -s "$found" "$1/libnvidia-ml.so"
    if found=$(frontend); then
        ln -s "$found" "$1/cudnn-frontend"
        make_llmc "$1" train_gpt2cu USE_CUDNN=1 && { echo 'llm.c is built with cuDNN'; return; }
        make_llmc "$1" clean
    fi
    make_llmc "$1" train_gpt2cu && echo 'llm.c is built without cuDNN'
}
# One call of f1e2ace is not CUDA 13's.
build_llmc() {
    local utils=$out/llm.c/llmc/cuda_utils.cuh
    copy_llmc "$out/llm.c" || return
    if [ "${cuda%%.*}" -ge 13 ] && [ -e "$utils" ]; then
        sed -i '/cudaMemAdvise(/s/, cudaCpuDeviceId)/, cudaMemLocation({ cudaMemLocationTypeHost, 0 }))/' "$utils"
    fi
    compile_llmc "$out/llm.c"
}
# And with the plugin, which is patched into a clean checkout.
build_patched() {
    local copy=$out/llm.c-zero
    copy_llmc "$copy" && git -C "$copy" init -q && git -C "$copy" add . &&
        git -C "$copy" -c user.name=gpu_check -c user.email=gpu_check@localhost commit -qm copy &&
        scripts/patch_llmc --cuda "$copy" && compile_llmc "$copy"
}

# Ours in a folder of its own, where no object of a build without CUDA is; llm.c at the same time. Without tests the rest can still run.
build() {
    local test status why programs=("$build/bench/comm")
    local make_it=(make --no-print-directory -j "$cores" CUDA=yes BUILD="$build" TRAINER="$trainer")
    why=$(why_no_cudnn)
    [ -z "$why" ] || say "CAREFUL: $why, so attention is measured without cuDNN; scripts/fetch_cudnn_frontend.sh fetches the frontend," \
        "or copy third_party/ from where it is; CUDNN_HOME=folder names cuDNN"
    if has_header cmocka.h; then
        for test in tests/{test,mpi}_{*cuda*,*device*}.c; do [ ! -e "$test" ] || tests+=("$(basename "$test" .c)"); done
        programs+=("${tests[@]/#/$build/tests/}" "$build/tests/mpi_nccl")
    fi
    [ -z "$llmc" ] || { { build_llmc >"$out/build-llm.c.log" 2>&1; build_patched >"$out/build-patched.log" 2>&1; } & llmc_job=$!; }
    part must build 240 20 "${make_it[@]}" "$trainer"; status=$?
    [ $status != 0 ] || part must build-tests 90 10 "${make_it[@]}" -k "${programs[@]}" || tests=()
    [ -z "$llmc_job" ] || wait "$llmc_job"
    llmc_job=
    [ $status != 0 ] || say "build: $(grep -oE 'with(out)? cuDNN( and with(out)? NCCL)?' "$out/build.log" | head -n 1)"
    return $status
}

# As many as the steps of a run take, where no others are given.
make_tokens() {
    local size=50257 program=$out/make_random_tokens
    [ -z "$data" ] || return 0
    case $model in l*v*t*) size=${model#*v} size=${size%t*} ;; esac
    data=$out/tokens.bin
    ${CC:-cc} -O2 dev/data/make_random_tokens.c -o "$program" -lm && "$program" "$data" $((B * T * (steps + 1) + 1)) "$size"
}

# --------------------------------------------------------------------------------------------------------------------- tests

# A test that skips for want of a card has failed: here is one.
gpu_test() {    # NAME COMMAND...
    local name=$1 log=$out/$1.log passed
    shift
    part must "$name" 120 10 "$@" || return
    passed=$(sed -nE 's/.*\[  PASSED  \] ([0-9]+) test.*/\1/p; s/.*[ :]([0-9]+) passed, 0 failed.*/\1/p' "$log" |
        awk '{ n += $1 } END { print n + 0 }')
    if [ "$passed" = 0 ] || grep -qE "^(skip $name:|skipped: )" "$log"; then
        problem "$name: ran no test on the card: $(grep -m1 '^skip' "$log" || echo "see $log")"
    else check "$name: $passed passed"; fi
}
gpu_tests() {
    local test launcher
    for test in "${tests[@]}"; do
        launcher=()
        case $test in mpi_*) launcher=("${mpirun[@]}" 2) ;; esac
        gpu_test "$test" "${launcher[@]}" "$build/tests/$test"
    done
}
sanitizer() {
    command -v compute-sanitizer >/dev/null || { skipped+=('memcheck: compute-sanitizer is not there'); return; }
    local test cannot='Device not supported' memcheck=(compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9)
    for test in "${tests[@]}"; do
        case $test in test_*) part may "memcheck-$test" 90 20 "${memcheck[@]}" "$build/tests/$test" ;; esac
        [ $? != 125 ] || return
    done
}

# ---------------------------------------------------------------------------------------------------------------------- runs

# run must|may ROW.ROUND COMMAND...: a training run; $seen: the card's memory while it ran, over what was used before, MiB
run() {
    local must=$1 name=$2 before status
    shift 2
    before=$(smi memory.used)
    nvidia-smi -i "$card" --query-gpu=memory.used --format=csv,noheader,nounits -lms 250 >"$out/$name.mib" 2>/dev/null & look=$!
    part "$must" "$name" "$run_s" 15 "$@"; status=$?
    kill $look; wait $look 2>/dev/null; look=
    seen=$(sort -n "$out/$name.mib" | awk -v b="${before:-0}" '{ x = $1 - b } END { print NR ? x : "-" }')
    return $status
}
# ROW, tokens/s, loss, own MiB, params_hash, state_hash
record() { printf '%s\t' "$1" "$2" "$3" "$4" "$seen" "$5" >>"$out/runs.tsv"; printf '%s\n' "$6" >>"$out/runs.tsv"; }
value() { sed -nE "s/.*\"$2\": \"?([^\",}]*).*/\1/p" "$1"; }     # of a key in a JSON file
median() { sort -n | awk '{ x[NR] = $1 } END { if (NR) printf "%.10g", (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'; }

ours() {    # must|may ROW.ROUND STAGE RANKS
    local folder=$out/runs/$2 own=0 key launcher=() shared=()
    local summary=$folder/summary.json
    [ "$4" = 1 ] || { launcher=("${mpirun[@]}" "$4"); shared=(--comm host); }
    run "$1" "$2" "${launcher[@]}" "$trainer" "${train[@]}" "${task[@]}" "${shared[@]}" -z "$3" -b $((B / $4)) -x "$steps" --hash full \
        --progress lines -o "$folder" || return
    for key in model_state_bytes working_bytes activation_bytes; do own=$((own + $(value "$summary" $key))); done
    record "${2%.*}" "$(value "$summary" tokens_per_s)" "$(value "$summary" loss)" $((own * $4 / 1048576)) \
        "$(value "$summary" params_hash)" "$(value "$summary" state_hash)"
}
run_llmc() {    # must|may ROW.ROUND; validation only at the start and the end: -v 0 would divide by zero there
    local log=$out/$2.log ms loss
    run "$1" "$2" env LD_LIBRARY_PATH="$cuda_home/lib64:$cuda_home/lib:${LD_LIBRARY_PATH:-}" "$out/llm.c/train_gpt2cu" "${task[@]}" \
        -b "$B" -x "$steps" -z 0 -v 1000000 -m 1 -s 0 -h 0 || return
    ms=$(sed -nE 's/^step .*\| ([0-9.]+) ms \|.*/\1/p' "$log" | tail -n +3 | median)
    [ -n "$ms" ] || { problem "$2: no line about a step in $log"; return; }
    loss=$(sed -nE 's/^step .* loss ([0-9.]+) .*/\1/p' "$log" | tail -n 1)
    record llm.c "$(ratio $((B * T * 1000)) "$ms" 1)" "$loss" "$(sed -nE 's/^device memory usage: ([0-9]+) MiB.*/\1/p' "$log")" - -
}
# llm.c's own trainer with the plugin in it: every stage, and two ranks that share the card, beside its losses without.
patched() {
    local run ranks stage log digest loss first='' bits=yes apart plain launcher
    [ -n "$llmc" ] || return
    [ -x "$out/llm.c-zero/train_gpt2cu" ] || { problem "llm.c with the plugin: it was not built, see $out/build-patched.log"; return; }
    plain=$(sed -nE 's/^step .* loss ([0-9.]+) .*/\1/p' "$out/llm.c.1.log" 2>/dev/null | tail -n 1)
    for run in 0 1 2 3 3-2ranks; do
        stage=${run%%-*} ranks=1 launcher=() log=$out/patched-$run.log
        [ "$run" = "$stage" ] || { ranks=2; launcher=("${mpirun[@]}" 2); }
        part must "patched-$run" "$run_s" 15 env LD_LIBRARY_PATH="$cuda_home/lib64:$cuda_home/lib:${LD_LIBRARY_PATH:-}" "${launcher[@]}" \
            "$out/llm.c-zero/train_gpt2cu" "${task[@]}" -b $((B / ranks)) -x "$steps" -z "$stage" -v 1000000 -m 1 -s 0 -h 0 || return
        digest=$(sed -nE 's/^params_hash ([0-9a-f]+)$/\1/p' "$log") loss=$(sed -nE 's/^step .* loss ([0-9.]+) .*/\1/p' "$log" | tail -n 1)
        first=${first:-$digest}
        [ -n "$digest" ] && { [ $ranks = 2 ] || [ "$digest" = "$first" ]; } || bits=NO
        apart=$(awk -v a="${loss:-99}" -v b="${plain:-0}" 'BEGIN { print a < b ? b - a : a - b }')
        number "$apart <= 0.05" || problem "llm.c with the plugin, patched-$run: last loss ${loss:--}, without it ${plain:--}"
    done
    if [ $bits = yes ]; then
        check "llm.c with the plugin: stages 0 to 3 end with params_hash $first, last loss $loss on 2 ranks, $plain without it"
    else problem "llm.c with the plugin: stages 0 to 3 do not end with the same params_hash, see $out/patched-*.log"; fi
}
run_pytorch() {
    local log=$out/$2.log command=("$python" dev/bench/torch_gpt2_gpu.py "$data" "$B" "$T" "$steps")
    command+=(--layers "$L" --heads "$NH" --channels "$C" --vocabulary $(((V + 127) / 128 * 128)))
    run "$1" "$2" env TORCHINDUCTOR_CACHE_DIR="$(realpath "$out")/inductor" "${command[@]}" || return
    record pytorch "$(value "$log" tokens_per_s)" "$(value "$log" loss)" "$(value "$log" memory_mib)" - -
}

# Which of the peers are here; the others' rows say why not.
find_peers() {
    local found probe='import torch; torch.zeros(1, device="cuda"); print(torch.__version__)'
    if [ -z "$llmc" ]; then absent[llm.c]='LLMC=folder was not given'
    elif found=$(grep -ohE '^llm\.c is built .*' "$out/build-llm.c.log"); then title[llm.c]="llm.c, ${found#llm.c is built }"
    else
        absent[llm.c]="it was not built, see $out/build-llm.c.log"
        problem "llm.c: ${absent[llm.c]}"
    fi
    if found=$(brief 60 "$python" -c "$probe" 2>"$out/find-pytorch.log"); then title[pytorch]="PyTorch $found, compiled"
    else absent[pytorch]="no PyTorch that can use the card: $(tail -n 1 "$out/find-pytorch.log")"; fi
}

# One run of each: the first round has to be, later ones are for the medians.
round() {
    local must=must row
    [ "$1" = 1 ] || must=may
    for row in "${rows[@]}"; do
        [ -z "${absent[$row]:-}" ] || continue
        case $row in
            zero-?) ours $must "$row.$1" "${row#zero-}" 1 ;;
            zero-?-2ranks) [ "$1" != 1 ] || ours must "$row.1" "${row:5:1}" 2 ;;
            llm.c) run_llmc $must "$row.$1" ;;
            pytorch) run_pytorch $must "$row.$1" ;;
        esac
        [ "$row.$1" != zero-0.1 ] || read_model
    done
}
# P, parameters but those of the positions, and the shape, from what the first run printed
read_model() {
    local longest rest='parameters, L ([0-9]+), NH ([0-9]+), C ([0-9]+), V ([0-9]+), longest sequence ([0-9]+)'
    read -r P L NH C V longest < <(sed -nE "s/^model .*: ([0-9]+) $rest.*/\1 \2 \3 \4 \5 \6/p" "$out/zero-0.1.log")
    P=$((${P:-0} - ${longest:-0} * ${C:-0}))
    attention=$(sed -nE 's/^numbers .*attention by (.*)/, attention: \1/p' "$out/zero-0.1.log")
    case $attention in *cuBLASLt) attention+=", $(why_no_cudnn)"; attention=${attention%, } ;; esac
}

# The speed of large products of bf16 matrices, as the trainer measures it at the start of a run with a bar.
measure_peak() {
    local i
    peak=
    for i in 1 2 3; do part must "peak.$i" 20 5 "$trainer" "${train[@]}" -z 0 -x 0 -ge "$ge" --progress bar || return; done
    peak=$(sed -nE 's/.*peak +([0-9.]+) GFLOP\/s.*/\1/p' "$out"/peak.?.log | median)
    if [ -n "$peak" ]; then say "peak: $peak GFLOP/s in products of bf16 matrices, median of 3"
    else problem "peak: no line about it in $out/peak.1.log"; fi
}

# -------------------------------------------------------------------------------------------------------------------- checks

hashes() { awk -F'\t' -v rows=" $1 " 'index(rows, " " $1 " ") { print $6, $7 }' "$out/runs.tsv"; }
same() {    # WHAT LEAST ROWS: at least LEAST runs of these rows, and all with the same digests
    local n different
    n=$(hashes "$3" | wc -l) different=$(hashes "$3" | sort -u | wc -l)
    if [ "$n" -lt "$2" ]; then problem "same bits, $1: not checked, $n of $2 runs ended"
    elif [ "$different" = 1 ]; then check "same bits, $1: yes, params_hash and state_hash of $n runs"
    else problem "same bits, $1: NO, $different different digests in $n runs, see $out/runs.tsv"; fi
}
losses() { sed -nE 's/.*"loss": ([^,]+),.*/\1/p' "$out/runs/$1/metrics.jsonl"; }
# How far apart, at most, the losses of two runs of so many steps are; nothing if they are not as many: RUN RUN STEPS
losses_apart() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v steps="$3" 'NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { if (NR == steps && !bad) print most + 0 }'
}
# The first 20 steps of a small model in bf16: losses agree to 0.02.
compare_with_cpu() {
    local on difference small=(-e "${SMALL:-l4h4c128v257t64}" -b 8 -x 20 -z 0 -u 0 -ge "$ge" --progress lines)
    for on in cpu cuda; do
        part must "small-$on" 60 10 "$trainer" "${train[@]}" "${small[@]}" --device $on -o "$out/runs/small-$on" || return
    done
    difference=$(losses_apart small-cpu small-cuda 20)
    if [ -z "$difference" ]; then problem 'GPU and CPU: 20 losses of each were expected'
    elif number "$difference <= 0.02"; then check "GPU and CPU, bf16, 20 steps: losses differ by $difference at most (0.02 is allowed)"
    else problem "GPU and CPU, bf16, 20 steps: losses differ by $difference, 0.02 is allowed"; fi
}

# Time on the card of the ranges that the plugin names. The head runs forward and backward inside one range of the embeddings.
phases() {
    command -v nsys >/dev/null || { skipped+=('phases: nsys is not there; times taken on the host would be those of queueing'); return; }
    rm -f "$out"/phases.nsys-rep "$out"/phases.sqlite
    part may nsys 90 30 nsys profile -t cuda,nvtx -s none -o "$out/phases" "$trainer" "${train[@]}" "${task[@]}" -z 3 -b "$B" -x 10 \
        --progress lines || return
    part may phases 60 10 nsys stats --format csv -r nvtx_gpu_proj_sum,cuda_gpu_kern_sum "$out/phases.nsys-rep" || return
    awk -F, '{ gsub(/"/, "") }
        /^Range,/ { for (i = 1; i <= NF; i++) if ($i == "Total Proj Time (ns)") at = i; next }
        NF < 3 || /Total Time/ { at = 0 }
        at { name = $1; sub(/^:/, "", name); sub(/ [0-9]*$/, "", name); ns[name] += $at }
        END { for (name in ns) printf "%-28s %8.3f\n", name, ns[name] / 10e6 }' "$out/phases.log" | sort >"$out/phases.txt"
    if [ -s "$out/phases.txt" ]; then say 'phases, ms a step on the card:'; sed 's/^/        /' "$out/phases.txt"
    else skipped+=("phases: nsys named no ranges, see $out/phases.log"); fi
}

# ---------------------------------------------------------------------------------------------------------------------- NCCL

nccl_part() { part must "$1" 60 10 "${on_cards[@]}" "${@:2}"; }      # NAME COMMAND...
nccl_run() { nccl_part "$1" "${nccl_trainer[@]}" -x 10 --hash full -o "$out/runs/$1" "${@:2}"; }     # NAME ARGUMENT...
digests() { echo "$(value "$out/runs/$1/summary.json" params_hash) $(value "$out/runs/$1/summary.json" state_hash)"; }

sentence() { sed -n 's/.*train_gpt2_zero: //p' "$1" | head -n 1; }      # the trainer's first, in this log
# Whether NCCL can be used here; older than 2.30 it cannot with one card.
nccl_is_here() {
    local why
    brief 60 "${on_cards[@]}" "${nccl_trainer[@]}" -z 0 -x 0 --comm nccl >"$out/nccl.log" 2>&1 </dev/null && return
    why=$(sentence "$out/nccl.log")
    case $why in
        *'needs one for each'* | *'built without NCCL'* | *'libnccl.so.2 cannot be loaded'* | *'is too old'*)
            [ "${why/built without NCCL/}" = "$why" ] || why+='; CPATH can name the folder of nccl.h'
            skipped+=("NCCL: $why"); say "skipped ${skipped[-1]}" ;;
        *) problem "NCCL: ${why:-no run of 0 steps}; see $out/nccl.log" ;;
    esac
    return 1
}
# Without accumulation all stages have the same bits: those of two runs through the host.
nccl_bits() {
    local run different='' expected=''
    for run in host-0 host-3 nccl-0 nccl-1 nccl-2 nccl-3; do
        nccl_run $run -z ${run#*-} --comm ${run%-*} || return
        expected=${expected:-$(digests $run)}
        [ "$(digests $run)" = "$expected" ] || different+=" $run"
    done
    if [ -z "$different" ]; then check "same bits, $ranks ranks on $where, NCCL and through the host: yes, stages 0 to 3"
    else problem "same bits, $ranks ranks on $where, NCCL and through the host: NO, others than host-0:$different"; fi
}
nccl_reduce() {
    local difference
    nccl_run nccl-reduce -z 2 --comm nccl --reduce nccl || return
    difference=$(losses_apart nccl-reduce nccl-2 10)
    if number "${difference:-1} <= 0.02"; then check "NCCL's own sum: losses differ by $difference at most (0.02 is allowed)"
    else problem "NCCL's own sum: losses differ by ${difference:-no number}, 0.02 is allowed"; fi
}
alive() {       # a zombie is not: it waits for a parent that need not look
    local pid state
    for pid; do ! { read -r _ _ state _ <"/proc/$pid/stat"; } 2>/dev/null || [ "$state" = Z ] || return 0; done
    return 1
}
await() { local i; for ((i = 0; i < 10 * $1; i++)); do "${@:2}" && return; sleep 0.1; done; return 1; }
gone() { ! alive "$@"; }
stepped() { grep -qs '^step ' "$out/$1.log"; }
stepped_or_gone() { stepped "$1" || gone "$job"; }
# Waits for the job; what still runs, it or these processes, ends now.
put_down() {
    ! kill "$job" || await 5 gone "$job"
    kill -9 "$job" "$@"
    wait "$job"
    job=
} 2>/dev/null
# trouble SIGNAL WHAT LEAST: rank 1 gets it in a long run; the others, or with LEAST 0 mpirun, end the job in time, with one sentence.
trouble() {
    local name=nccl-$1 log=$out/nccl-$1.log pids said began=$SECONDS end=$((comm_timeout_s + 15)) left
    left=$((budget - SECONDS - end - 10))       # for the first step
    if [ $left -lt 15 ]; then problem "not run: $name, for want of time"; return; fi
    say "$name ..."
    rm -f "$out"/pid.*
    # shellcheck disable=SC2016
    "${on_cards[@]}" bash -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$out/pid" "${nccl_trainer[@]}" -z 3 -x 1000000 --comm nccl \
        --comm-timeout "$comm_timeout_s" >"$log" 2>&1 </dev/null & job=$!
    await $((left < 60 ? left : 60)) stepped_or_gone "$name"
    mapfile -t pids < <(cat "$out"/pid.* 2>/dev/null)
    if ! stepped "$name" || gone "$job" || ! kill -s "$1" "$(cat "$out/pid.1")"; then
        said="no step after $((SECONDS - began)) s"
        ! gone "$job" || said="it ended by itself: $(sentence "$log")"
        problem "$name: $said, see $log"
        put_down "${pids[@]}"
        return
    fi
    began=$SECONDS
    if await "$end" gone "$job" && await 3 gone "${pids[@]}"; then put_down
    else problem "$2: processes still run after $((SECONDS - began)) s"; put_down "${pids[@]}"; fi
    said=$(grep -c 'train_gpt2_zero: ' "$log")
    if [ "$said" -lt "$3" ] || [ "$said" -gt 1 ]; then problem "$2: $said sentences of the trainer's, see $log"
    else check "$2: over after $((SECONDS - began)) s; $(grep -m1 -oE 'train_gpt2_zero: .*|mpirun noticed .*' "$log")"; fi
}
nccl() {
    local where="card $cards"
    on_cards=(env CUDA_VISIBLE_DEVICES="$cards")
    # Kernels of four communicators, two a rank, on one card: NCCL hangs where there are too few multiprocessors for all that wait.
    [[ $cards = *,* ]] || on_cards+=(NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS="${NCCL_MAX_CTAS:-8}")
    on_cards+=("${mpirun[@]}" "$ranks")
    nccl_trainer=("$trainer" "${train[@]}" -e "${SMALL:-l4h4c128v257t64}" -b $((8 / ranks)) -u 0 -ge "$ge" --progress lines)
    budget=$((budget + 120))
    nccl_is_here || { budget=$((budget - 120)); return; }
    [ ${#tests[@]} = 0 ] || gpu_test mpi_nccl "${on_cards[@]}" "$build/tests/mpi_nccl"
    nccl_bits && nccl_reduce
    trouble KILL 'NCCL, a rank is killed' 0
    trouble STOP 'NCCL, a rank is stopped' 1
    nccl_part nccl-bench "$build/bench/comm" --device cuda --comm nccl -e 16M -n 5 &&
        check "NCCL, dev/bench/comm: $(sed -n '$s/^# //p' "$out/nccl-bench.log"), see $out/nccl-bench.log"
}

# ------------------------------------------------------------------------------------------------------------------- results

column() { awk -F'\t' -v row="$1" -v c="$2" '$1 == row && $c ~ /^[0-9.]+$/ { print $c }' "$out/runs.tsv" | median; }
# A / B, with DIGITS
ratio() { awk -v a="${1:-0}" -v b="${2:-0}" -v n="${3:-3}" 'BEGIN { if (a > 0 && b > 0) printf "%.*f", n, a / b; else printf "-" }'; }
share() {   # TOKENS/S: of the peak, in percent
    awk -v rate="${1:-0}" -v flops=$((6 * P + 12 * L * C * T)) -v peak="${peak:-0}" \
        'BEGIN { if (rate * flops * peak > 0) printf "%.1f", rate * flops / peak / 1e7; else printf "-" }'
}
times() { awk -F'\t' -v row="$1" '$1 == row' "$out/runs.tsv" | wc -l; }

table() {
    local row rate zero
    zero=$(column zero-0 2)
    printf '%s\t' run runs tokens/s 'ms a step' '% of peak' 'MiB, own count' 'MiB, nvidia-smi' 'to stage 0' loss
    echo params_hash
    for row in zero-{0,1,2,3} zero-{0,3}-2ranks llm.c pytorch; do
        rate=$(column "$row" 2)
        printf '%s\t' "${title[$row]}" "$(times "$row")" "$(ratio "$rate" 1 0)" "$(ratio $((B * T * 1000)) "$rate" 2)" "$(share "$rate")" \
            "$(column "$row" 4)" "$(column "$row" 5)" "$(ratio "$rate" "$zero")" "$(column "$row" 3)"
        awk -F'\t' -v row="$row" '$1 == row { h = $6 } END { print h ? h : "-" }' "$out/runs.tsv"
    done | sed -E ':again; s/\t\t/\t-\t/; t again'
}
markdown() {    # a table of tab-separated values
    awk -F'\t' '
        { for (i = 1; i <= NF; i++) { x[NR, i] = $i; if (length($i) > w[i]) w[i] = length($i) } }
        function rule(n, c) { return n ? c rule(n - 1, c) : "" }
        END {
            for (r = 1; r <= NR; r++) {
                for (i = 1; i <= NF; i++) printf i == 1 ? "| %-*s" : " | %*s", w[i], x[r, i]
                print " |"
                if (r > 1) continue
                for (i = 1; i <= NF; i++) printf "|%s%s", rule(w[i] + 1, "-"), i == 1 ? "-" : ":"
                print "|"
            }
        }' "$1"
}
aim() {     # WHAT VALUE CONDITION
    local met='not measured'
    [ "$2" = - ] || { met='not met'; ! number "$2 $3" || met=met; }
    echo "- $1, aim $3: $2, $met"
}
list() { local heading=$1; shift; [ $# = 0 ] || { printf '\n%s\n\n' "$heading"; printf -- '- %s\n' "$@"; }; }

results() {
    local zero row missing=()
    zero=$(column zero-0 2)
    for row in "${!absent[@]}"; do missing+=("${title[$row]}: ${absent[$row]}"); done
    sed 's/^/    /' "$out/machine.txt"
    printf '\n%s, B %s, T %s, bf16, nothing recomputed, GELU fusion %s%s; data: %s.\n' "$model" "$B" "$T" "$ge" "$attention" \
        "${DATA:-random tokens}"
    printf '%s steps a run, of which the first two do not count; medians of %s rounds in turn.\n' "$steps" "$rounds"
    printf 'Peak, measured: %s GFLOP/s. Work of a token: 6 P + 12 L C T, P parameters without the positions.\n\n' "${peak:--}"
    markdown "$out/results.tsv"
    printf '\nMemory is that of the card: our own count is the table of the start times the ranks, without what CUDA itself takes;\n'
    printf "llm.c's is what CUDA says is in use.\n\n"
    aim 'stage 0 to llm.c' "$(ratio "$zero" "$(column llm.c 2)")" '> 1'
    aim 'stage 0 to compiled PyTorch' "$(ratio "$zero" "$(column pytorch 2)")" '> 1'
    aim 'stage 3 to stage 0' "$(ratio "$(column zero-3 2)" "$zero")" '>= 0.97'
    aim 'percent of peak at stage 0' "$(share "$zero")" '>= 60'
    [ ! -s "$out/phases.txt" ] || { printf '\nPhases of a step at stage 3, ms on the card (nsys):\n\n'; sed 's/^/    /' "$out/phases.txt"; }
    list 'Checked:' "${checks[@]}"
    list 'Not here:' "${missing[@]}"
    list 'Skipped:' "${skipped[@]}"
    list 'FAILED:' "${problems[@]}"
}

# ---------------------------------------------------------------------------------------------------------------------------

bad() { echo "gpu_check.sh: $*" >&2; exit 1; }
[ -z "$llmc" ] || [ -e "$llmc/train_gpt2.cu" ] || bad "LLMC=$llmc: there is no train_gpt2.cu; give a checkout of github.com/karpathy/llm.c"
find_card
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
B=${B:-$(awk -v m="$card_mib" 'BEGIN { g = m / 1024; print g <= 16 ? 4 : g <= 24 ? 8 : g <= 40 ? 16 : g <= 80 ? 32 : 64 }')}
ge=${GE:-$(number "$capability >= 9" && echo 2 || echo 0)}
[ $((B % 2)) = 0 ] || bad "B=$B: two ranks share the batch, so it must be even"
[ "$steps" -ge 3 ] || bad "STEPS=$steps: the first two do not count, so there must be three at least"
[ -e "$out/runs.tsv" ] || [ -z "$(ls -A "$out" 2>/dev/null)" ] ||
    bad "GPU_CHECK_OUT=$out: there are files, and not those of an earlier run, which it would replace; give a new folder"
mkdir -p "$out" && rm -rf "$out"/*.log "$out"/*.mib "$out"/*.tsv "$out"/*.txt "$out"/results.md "$out"/runs && mkdir "$out/runs" || exit 1
: >"$out/runs.tsv"
find_nccl
describe_machine
if look_for_needs && build && { make_tokens || { problem "no random tokens could be written to $data"; false; }; }; then
    task=(-e "$model" -t "$T" -d $((B * T)) -i "$data" -j "$data" -l 3e-4 -u 0 -q 1 -r 0 -ge "$ge")     # options of both trainers
    train=(--device cuda --dtype bf16 -v 0 -s 0)                                                        # and of ours
    gpu_tests
    measure_peak
    compare_with_cpu
    find_peers
    round 1
    same 'stages 0 to 3, one rank' 4 'zero-0 zero-1 zero-2 zero-3'
    same 'stages 0 and 3, two ranks' 2 'zero-0-2ranks zero-3-2ranks'
    nccl
    patched
    for ((i = 2; i <= rounds; i++)); do round $i; done
    [ "$rounds" -lt 2 ] || same 'the same command again' 2 zero-0
    phases
    sanitizer
fi
table >"$out/results.tsv"
results >"$out/results.md"
echo
cat "$out/results.md"
echo
say "written: $out/results.md, results.tsv, runs.tsv, and a log of each part"
[ ${#problems[@]} = 0 ]
