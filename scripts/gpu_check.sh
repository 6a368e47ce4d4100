#!/usr/bin/env bash
# For the first hour on a GPU: runs a numbered list of commands, each with a time limit, and records every
# result immediately, with the GPU's clock, power and memory during the run.
#
# Usage: [SETTING=value]... scripts/gpu_check.sh [build | NUMBER...]
#   build     puts programs, tokens and the CPU's gradients into OUT/bin, with the libraries that ldd lists,
#             except NVIDIA's. It needs no GPU, so you can run it elsewhere and copy the folder
#   NUMBER    repeats these steps. Without a number, runs all commands that have no result yet, but leaves
#             those that might not end within BUDGET_S to the next call
#    1 versions, peaks     2 GPU tests               3 fp32 against the CPU    4 bf16 against the CPU
#    5 a run               6 --tune                  7 llm.c                   8 PyTorch
#    9 kernels (ncu)      10 attention's workspace  11 stages 1 to 3          12 states off the GPU
#   13 two ranks          14 larger models          15 compute-sanitizer
# Settings, with their defaults:
#   OUT=build/gpu_check     for results.md, results.tsv, a log per command, and states on NVMe
#   LLMC=  NCCL_LIB=        folders with a checkout of llm.c (for build), and with libnccl.so.2, 2.30 or newer
#   MODEL=d12 B=64 T=1024   the model to time, for STEPS=30;  CHECK_B=4: the batch for comparing its gradients
#   SHAPE=l2h12c768v50257t1024   also compared, at batch B, because libraries choose kernels by shape
#   NORM=2e-3               tolerance for loss and norm in bf16, compared with the CPU's in fp32. On the
#                           stand-in, bf16's rounding alone changes the norm of small models by up to 1e-3
#   PEAK='2 -e l1h32c4096v50257t1024 -b 8'   seconds per peak, model and batch
#   SIZES='d24:32 d48:8'    MODEL:B of step 14;  LARGE=: MODEL:B for step 12, default none
#   ATTENTION='cudnn cublaslt'   leave out cudnn to accept a build without cuDNN or NCCL
#   CUDA=yes                or stand-in, to try this script;  PYTHON=python3: a Python with PyTorch
#   BUDGET_S=580            seconds per call. Exit status: 0 all passed, 1 failure, 3 call again
set -u
export LC_ALL=C
out=$(realpath -m "${OUT:-$(dirname "$0")/../build/gpu_check}")
llmc=${LLMC:+$(realpath "$LLMC")} nccl=$(realpath -m "${NCCL_LIB:-none}")
cd "$(dirname "$0")/.." || exit 1
. scripts/mpi_env.sh
model=${MODEL:-d12} B=${B:-64} T=${T:-1024} steps=${STEPS:-30} budget=${BUDGET_S:-580}
python=${PYTHON:-python3} check_b=${CHECK_B:-4} shape=${SHAPE:-l2h12c768v50257t1024} norm=${NORM:-2e-3}
gpu=${CUDA_VISIBLE_DEVICES:-0} peak=${PEAK:-2 -e l1h32c4096v50257t1024 -b 8} sizes=${SIZES:-d24:32 d48:8}
read -ra attentions <<<"${ATTENTION:-cudnn cublaslt}"
bin=$out/bin trainer=$out/bin/train_gpt2_zero tokens=$out/bin/tokens.bin before=() tune=() sampler=''
mkdir -p "$bin/lib" "$out/nvme" && touch "$out/results.tsv" || exit 1
for folder in /usr/local/cuda*/{bin,compute-sanitizer} /opt/nvidia/nsight-compute/*; do PATH+=:$folder; done
SECONDS=0 number=0
trap '[ -z "$sampler" ] || kill $sampler' EXIT
trap 'exit 130' INT TERM

# Prints the figures in a log: ms (median step without the first two); digests; first loss and norm; others
figures() {
    sed -E 's/[|,"{}:]+/ /g' "$1" | awk '
        function value(name,   i) { for (i = 1; i < NF; i++) if ($i == name) return $(i + 1) }
        function add(name, x) { if (x != "") text = text name " " x "; " }
        function keep(x,   i) { for (i = ++n; i > 1 && ms[i - 1] > x; i--) ms[i] = ms[i - 1]; ms[i] = x }
        /^(step.* )?loss [0-9]/ && loss == "" { loss = value("loss"); norm = value("norm") }
        /^step .* ms / && ++steps > 2 { for (i = 2; i <= NF; i++) if ($i == "ms") keep($(i - 1) + 0) }
        /step_ms/ { keep(value("step_ms") + 0); loss = value("loss") }
        /params_hash/ { hash = substr(value("params_hash"), 1, 8) " " substr(value("state_hash"), 1, 8) }
        / WRONG$/ { wrong = wrong " " $1 }
        /^(loss|norm) off/ { add($1 " off by", $4); next }
        / off by / && $4 + 0 > worst + 0 { worst = $4 " (" $1 ")" }
        /^matmul |^copies / { add($1, $2 " " $3) }
        /^attention +backward takes / { rows = value("takes") " of " value("of") }
        /PASSED/ { passed += $4 }
        END {
            add("loss", loss); add("norm", norm); add("passed", passed)
            add("gradients off by", worst); add("WRONG", wrong); add("rows", rows)
            if (n) n = sprintf("%.2f", (ms[int((n + 1) / 2)] + ms[int(n / 2) + 1]) / 2)
            print (n ? n : "-") "\t" (hash ? hash : "-") "\t" (text ? text : "-")
        }'
}
# From nvidia-smi's samples, prints MHz and W while the GPU was busy, and the MiB that the run added.
conditions() {
    awk -F', *' '{ print ($4 >= 50), $1, $2, $3 }' "$1" | sort -k1,1nr -k2,2n | awk '
        NR == 1 { busy = $1; least = $4 }
        $1 == busy { mhz[++n] = $2; watts += $3 }
        { if ($4 < least) least = $4; if ($4 > most) most = $4 }
        END { print n ? sprintf("%d\t%.0f\t%d", mhz[int((n + 1) / 2)], watts / n, most - least) : "-\t-\t-" }'
}
row() { awk -F'\t' -v name="$1" -v c="$2" '$2 == name { print $c }' "$out/results.tsv"; }
forget() {          # COLUMN VALUE
    awk -F'\t' -v c="$1" -v value="$2" '$c != value' "$out/results.tsv" >"$out/new"
    mv "$out/new" "$out/results.tsv"
}
# put NAME RESULT SECONDS MS DIGESTS TEXT MHZ W MIB: writes or replaces a row of results.tsv
put() {
    local line
    line=$number$'\t'$(IFS=$'\t'; echo "$*")
    forget 2 "$1"
    sort -t$'\t' -s -k1,1n "$out/results.tsv" - <<<"$line" >"$out/new" && mv "$out/new" "$out/results.tsv"
    publish
    echo "${line//$'\t'/ | }"
}
skip() { [ -n "$(row "$1" 3)" ] || put "$1" "skipped: $2" - - - - - - -; }      # NAME REASON
# record NAME LIMIT-S COMMAND...: runs the command unless it has a result. The command must print $want; it
# may fail if it prints $cannot. Shows the end of the log of a command that failed
record() {
    local name=$1 limit=$2 log=$out/$1.log began=$SECONDS status result=ok why ms hash text mhz watts mib
    [ -z "$(row "$name" 3)" ] || return 0
    [ $((SECONDS + limit)) -le "$budget" ] || finish 3
    nvidia-smi -i "${gpu%%,*}" --query-gpu=clocks.sm,power.draw,memory.used,utilization.gpu -lms 200 \
        --format=csv,noheader,nounits >"$out/$name.smi" 2>/dev/null &
    sampler=$!
    sleep 0.3       # so that the first sample shows the memory in use before the run
    timeout -k 5 "$limit" "${@:3}" >"$log" 2>&1 </dev/null
    status=$?
    { kill $sampler; wait $sampler; } 2>/dev/null
    sampler=''
    grep -qE "${want:-^}" "$log" || [ -z "${want:-}" ] || result="FAILED: no '$want'"
    [ $status = 0 ] || result="FAILED: status $status"
    [ $status = 0 ] || ! why=$(grep -m1 -E "${cannot:-^$}" "$log") || result="skipped: $why"
    IFS=$'\t' read -r ms hash text < <(figures "$log")
    IFS=$'\t' read -r mhz watts mib < <(conditions "$out/$name.smi")
    put "$name" "$result" $((SECONDS - began)) "$ms" "$hash" "$text" "$mhz" "$watts" "$mib"
    [[ $result != FAILED* ]] || { echo "the end of $log:"; tail -n 15 "$log" | sed 's/^/    /'; }
}
# same NAME ROW...: checks that these runs ended with the same parameters and states
same() {
    local name hashes result=ok
    hashes=$(for name in "${@:2}"; do [[ $(row "$name" 3) = skipped* ]] || row "$name" 6; done | sort -u)
    [[ $hashes =~ ^[0-9a-f]{8}\ [0-9a-f]{8}$ ]] || result='FAILED: other digests' hashes=-
    put "$1" "$result" - - "$hashes" "digests of ${*:2}" - - -
}
publish() {
    {
        sed 's/^/    /' "$out/versions.log" 2>/dev/null
        printf '\n%s, B %s, T %s, bf16, no recompute, attention by %s, unless a row differs\n' \
            "$model" "$B" "$T" "${attentions[0]}"
        printf 'From step 9 on: the matmuls of step 6, and run / ms compares with tuned-1, if step 6 passed\n'
        awk -F'\t' '
            NR == FNR { if ($2 == "run") run = $5; if ($2 == "tuned-1") tuned = $5; next }
            $1 > 8 && tuned > 0 { run = tuned }
            FNR == 1 { print "\n||command|result|s|ms|run / ms|digests||MHz|W|MiB|\n|-|-|-|-|-|-|-|-|-|-|-|" }
            $5 > 0 && $1 ~ /^[5-8]$/ {
                who = $2 ~ /^llm/ ? "llm.c" : $2 ~ /^torch/ ? "PyTorch" : "ours"
                if (!best[who] || $5 < best[who]) best[who] = $5
            }
            { $5 = $5 "|" ($5 > 0 ? sprintf("%.3f", run / $5) : "-"); gsub(/\t/, "|"); print "|" $0 "|" }
            END { for (who in best) print "\nBest of " who ": " best[who] " ms per step." }' OFS='\t' \
            "$out/results.tsv" "$out/results.tsv"
        sed -n 's/^/    /; /^    time of a step/,$p' "$out/plan.log" 2>/dev/null
        sed 's/^/    /; 40q' "$out/kernels.tsv" 2>/dev/null
    } >"$out/new.md"
    mv "$out/new.md" "$out/results.md"
}
finish() {          # STATUS
    echo "written: $out/results.md"
    [ "$1" != 0 ] || ! grep -q FAILED "$out/results.tsv" || exit 1
    exit "$1"
}

data=(-i "$tokens" -j "$tokens" -t "$T" -v 0 -s 0 -z 0) plain=(-x "$steps" -l 3e-4 -u 0 -q 1 -r 0)
ours() {            # NAME MODEL B OPTION...
    record "$1" 240 "${before[@]}" "$trainer" --device cuda --dtype bf16 --progress lines --hash full \
        "${data[@]}" "${plain[@]}" -e "$2" -b "$3" --attention "${attentions[0]}" "${tune[@]}" "${@:4}"
}
run() { ours "$1" "$model" "$B" "${@:2}"; }
tuning() {
    local number=6 tune=(--tune "$out/tuned.txt")
    run tuning -x 1
}
# From step 9 on, runs use the matmuls of step 6 unless it failed, and time those of other shapes when they
# start. base is the run with the same digests at other stages and tiers.
use_tuned() {
    tune=(--tune "$out/tuned.txt") base=tuned-1
    [[ $(row tuning 3) != FAILED* ]] || tune=() base=run
}
# Both ranks' NCCL kernels must fit on the GPU at once, because they wait for each other; so limit their SMs.
two_ranks() {       # NAME OPTION...
    command -v mpirun >/dev/null || { skip "$1" 'needs mpirun: scripts/install_deps.sh'; return; }
    before=(env NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=8 NCCL_ALGO="${NCCL_ALGO:-RING}"
        LD_LIBRARY_PATH="$nccl:${LD_LIBRARY_PATH:-}" mpirun --oversubscribe --bind-to none -np 2)
    cannot='needs one for each|cannot be loaded|built without NCCL' ours "$1" "$model" $((B / 2)) "${@:2}"
    before=()
}
run_llmc() {        # NAME MODEL B GE; no -v 0, because llm.c would divide by zero
    [ -x "$bin/train_gpt2cu" ] || { skip "$1" 'llm.c was not built: LLMC=folder'; return; }
    cannot='out of memory' record "$1" 240 "$bin/train_gpt2cu" "${data[@]}" "${plain[@]}" -e "$2" -b "$3" \
        -d $(($3 * T)) -ge "$4" -v 1000000 -m 1 -h 0
}
of_model=(-e "$model" -b "$check_b" -x 1) of_shape=(-e "$shape" -b "$B" -x 1)
against() {         # NAME model|shape LIMIT NORM OPTION...: compares first-step gradients with the CPU's
    local -n of=of_$2
    record "$1" 240 env ZERO_POISON=1 "$bin/gpu_gate" compare "$bin/$2.gradients" "$3" "$4" "${data[@]}" \
        "${of[@]}" --device cuda "${@:5}"
}
bf16() {            # ATTENTION
    against "bf16-$1" model 5e-2 "$norm" --dtype bf16 --attention "$1"
    against "bf16-$1-shape" shape 5e-2 "$norm" --dtype bf16 --attention "$1"
    ours "first-$1" "$model" "$check_b" -x 5 --attention "$1"
    ours "again-$1" "$model" "$check_b" -x 5 --attention "$1"
    same "same-$1" "first-$1" "again-$1"
}
versions() {
    # shellcheck disable=SC2016
    record versions 60 bash -c 'nvidia-smi --format=csv \
        --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit; nvcc --version | tail -n 2
        grep -m1 "^model name" /proc/cpuinfo; nproc; date +%F; git rev-parse --short HEAD
        ldd "$0" | grep -E "cudnn|cublasLt"; exit 0' "$trainer"
}
insist_on_cudnn() {
    forget 2 cudnn
    [ "${attentions[0]}" = cudnn ] || return 0
    record cudnn 60 "$trainer" --device cuda --dtype bf16 -e l1h1c64v257t64 -v 0 -s 0 -x 0 --attention cudnn
    [ "$(row cudnn 3)" = ok ] || { echo 'ATTENTION=cublaslt continues without cuDNN'; finish 1; }
}
torch() {           # ATTENTION; always trains 124M
    "$python" -c 'import torch' 2>/dev/null || { skip "torch-$1" 'no PyTorch'; return; }
    cannot='out of memory' record "torch-$1" 280 "$python" dev/bench/torch_gpt2_gpu.py \
        "$tokens" "$B" "$T" "$steps" --attention "$1"
}
profile() {         # STEPS; leaves clocks and caches as they are
    command -v ncu >/dev/null || { skip "ncu-$1" 'ncu not found'; return; }
    before=(ncu --clock-control none --cache-control none --csv --page raw --print-units base --metrics
        gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum)
    cannot='ERR_NVGPUCTRPERM|Failed to initialize' run "ncu-$1" -x "$1"
    before=()
}
# Subtracts the launches of a run without steps from those of a one-step run, to get those of a step. Longest
# first: ms, launches, GB read and written, kernel. ncu's CSV quotes each field. Then plans the same step.
kernels_of_step() {
    [ "$(row ncu-1 3)" = ok ] || return 0
    awk '
        function number(name,   x) { x = f[at[name]]; gsub(/,/, "", x); return sign * x }
        function least(x) { return x > 0 ? x : 0 }
        { count = /^"/ ? split(substr($0, 2, length($0) - 2), f, "\",\"") : 0; sign = FNR == NR ? -1 : 1 }
        count && f[1] == "ID" { for (i = 1; i <= count; i++) at[f[i]] = i }
        count && f[1] ~ /^[0-9]+$/ {
            k = f[at["Kernel Name"]]; n[k] += sign; ms[k] += number("gpu__time_duration.sum") / 1e6
            r[k] += number("dram__bytes_read.sum"); w[k] += number("dram__bytes_write.sum")
        }
        END {
            form = "%.3f\t%d\t%.3f\t%.3f\t%s\n"
            for (k in n) if (n[k] > 0)
                printf form, least(ms[k]), n[k], least(r[k]) / 1e9, least(w[k]) / 1e9, k
        }' "$out/ncu-0.log" "$out/ncu-1.log" | sort -nr >"$out/kernels.tsv"
    record plan 60 "$trainer" --plan --machine "$(grep -m1 -oE 'H[12]00' "$out/versions.log" | tr H h)" \
        --plan-ranks 1 --dtype bf16 -e "$model" -b "$B" -t "$T" "${plain[@]}"
}
# memcheck PROGRAM TEST...: a row for each test, because memcheck slows kernels down, and all of them may not
# end within a call. Leaves out tests of the host's code, and the one that fills the device's memory.
memcheck() {
    local test
    for test in "${@:2}"; do
        command -v compute-sanitizer >/dev/null || { skip "memcheck-$test" 'no compute-sanitizer'; continue; }
        want='PASSED  \] [1-9]' cannot='Device not supported' \
            record "memcheck-$test" 180 compute-sanitizer --tool memcheck --report-api-errors no \
            --error-exitcode 9 "$bin/$1" "$test"
    done
}

# Step 10's MiB are for 2, 4, 8 and 64 rows of d12, which need 24.05 each.
list() { cat <<'END'
1 versions
1 insist_on_cudnn
1 record peaks 120 "$bin/gpu_gate" peak $peak "${data[@]}" -x 1 --device cuda --dtype bf16
2 for t in test_device test_layers_cuda; do want='PASSED  \] [1-9]' record $t 280 "$bin/$t"; done
3 against fp32 model 1e-4 1e-5 --dtype fp32 -f 0
3 against fp32-shape shape 1e-4 1e-5 --dtype fp32 -f 0
4 for a in "${attentions[@]}"; do bf16 "$a"; done
5 run run
6 tuning
6 run tuned-1 --tune "$out/tuned.txt"; run tuned-2 --tune "$out/tuned.txt"
6 same same-tuned tuned-1 tuned-2
7 run_llmc llm.c-ge0-1 "$model" "$B" 0; run_llmc llm.c-ge2-1 "$model" "$B" 2
7 run tuned-3 --tune "$out/tuned.txt"
7 run_llmc llm.c-ge0-2 "$model" "$B" 0; run_llmc llm.c-ge2-2 "$model" "$B" 2
7 run tuned-4 --tune "$out/tuned.txt"
8 torch default; torch cudnn
9 tuning
9 profile 0; profile 1; kernels_of_step
10 cannot='without cuDNN' run cudnn-fast --attention cudnn-fast
10 for mib in 49 98 196 1540; do run workspace-$mib --attention-workspace $mib; done
11 for z in 1 2 3; do run stage-$z -z $z; done
11 same same-stages "$base" stage-1 stage-2 stage-3
12 run optimizer-cpu -z 3 --offload-optimizer cpu
12 run optimizer-nvme -z 3 --offload-optimizer nvme --nvme "$out/nvme"
12 same same-tiers "$base" optimizer-cpu optimizer-nvme
12 [ -z "${LARGE:-}" ] || ours large ${LARGE/:/ } -z 3 --offload-optimizer cpu -x 5
13 for z in 0 3; do two_ranks host-$z -z $z --comm host; two_ranks nccl-$z -z $z --comm nccl; done
13 same same-ranks host-0 nccl-0 host-3 nccl-3
14 for s in $sizes; do cannot='are free' ours $s ${s/:/ }; run_llmc llm.c-$s ${s/:/ } 2; done
15 memcheck test_device test_convert test_sum_ranks test_accumulate test_add_squares test_adamw
15 memcheck test_layers_cuda test_memory_cases test_rows_cases test_ends_cases
15 memcheck test_layers_cuda staging test_matmul_cases attentions
END
}

# Builds a copy of llm.c, adapted to CUDA 13, which has changed an argument of cudaMemAdvise. Empty functions
# replace NVML, because only the driver provides it.
build_llmc() {
    rm -rf "$out/llm.c" && cp -r "$llmc" "$out/llm.c" && chmod -R u+w "$out/llm.c" &&
        ln -s "$PWD/third_party/cudnn_frontend" "$out/llm.c/cudnn-frontend" && cd "$out/llm.c" || return
    nvcc --version | grep -qE 'release ([1-9]|1[0-2])\.' ||
        sed -i '/cudaMemAdvise(/s/, cudaCpuDeviceId)/, {cudaMemLocationTypeHost, 0})/' llmc/cuda_utils.cuh
    grep -ohE 'nvml[A-Z]\w*\(' llmc/*.h | sort -u | sed 's/\(.*\)(/void \1(void) {} void \1_v2(void) {}/' |
        cc -shared -x c - -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so
    CI=true LIBRARY_PATH=${LIBRARY_PATH:-}:$PWD make NO_MULTI_GPU=1 NO_USE_MPI=1 GPU_COMPUTE_CAPABILITY=90 \
        USE_CUDNN="$cudnn" train_gpt2cu && cp train_gpt2cu "$out/bin"
}
build_failed() {
    cat <<'END'
The build failed. scripts/install_deps.sh installs missing packages, and scripts/fetch_cudnn_frontend.sh the
headers for cuDNN's attention. NCCL's are in libnccl-dev. With ATTENTION=cublaslt neither is needed.
END
    finish 1
}
# random_tokens COUNT VOCABULARY: prints a shard. The frequency of token i is roughly proportional to
# 1/(i + 1), like that of words in text; with equal frequencies the embedding's gradient would have fewer
# collisions. The same arguments give the same bytes.
random_tokens() {
    perl -e '($n, $v) = @ARGV; $x = 1; print pack("l<3 x1012", 20240520, 1, $n) or die;
        for (1 .. $n) {
            { use integer; $x = $x * 6364136223846793005 + 1442695040888963407; }
            print pack("S<", exp(($x >> 11) / 2 ** 53 * log($v + 1)) - 1) or die;
        }' "$@"
}
build() {
    local V=${model#*v} cudnn=0 found tests=("$out"/build/tests/{gpu_gate,test_device,test_layers_cuda})
    [ "${attentions[0]}" != cudnn ] || cudnn=1 found='with cuDNN and with NCCL'
    want=${found:-} record make 3000 make CUDA="${CUDA:-yes}" BUILD="$out/build" TRAINER="$trainer" \
        "$trainer" "${tests[@]}"
    [[ $model = l*v*t* ]] || V=50257
    [ "$(row make 3)" = ok ] && install -st "$bin" "${tests[@]}" && strip "$trainer" &&
        random_tokens $((B * T * (steps + 1) + 1)) "${V%%t*}" >"$tokens" || build_failed
    record gradients 3000 "$bin/gpu_gate" write "$bin/model.gradients" "${data[@]}" "${of_model[@]}" \
        --device cpu --dtype fp32 -r 3
    record gradients-shape 3000 "$bin/gpu_gate" write "$bin/shape.gradients" "${data[@]}" "${of_shape[@]}" \
        --device cpu --dtype fp32 -r 3
    export -f build_llmc
    [ -z "$llmc" ] || record llm.c 3000 env out="$out" llmc="$llmc" cudnn=$cudnn bash -c build_llmc
    ldd "$bin"/* 2>/dev/null | awk '/=> \// { print $3 }' | sort -u |
        grep -vE '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cu\w*|nv.*|nccl)[.-]' | xargs cp -Lt "$bin/lib"
}

for number; do
    [[ $number =~ ^([1-9]|1[0-5]|build)$ ]] ||
        { echo "gpu_check.sh: '$number' is neither build nor a step from 1 to 15" >&2; exit 1; }
    number=${number/build/0}
    forget 1 "$number"
done
[ "${1:-}" != build ] || { budget=1000000 build; finish 0; }
[ -x "$trainer" ] || { echo "gpu_check.sh: no $trainer: run scripts/gpu_check.sh build first" >&2; exit 1; }
# Uses the copied libraries if this machine lacks some.
! ldd "$trainer" | grep -q 'not found' || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$bin/lib
while read -r number commands <&3; do
    [ "$number" -lt 9 ] || use_tuned
    [[ $# = 0 || " $* " = *" $number "* ]] && eval "$commands"
done 3< <(list)
finish 0
