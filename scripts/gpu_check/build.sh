# shellcheck shell=bash
# Part build: ours, llm.c, and llm.c with the plugin, side by side; the GPU tests, each as soon as it is
# linked.

# A digest of what is built from: files carried here anew have other times.
sources() {
    find Makefile train_gpt2_zero.cu trainer llmc_zero gpt2 tests dev/bench/comm.c -type f ! -name '*.sh' \
        -print0 | sort -z | xargs -0 cat |
        cksum | awk '{ printf "%08x", $1 }'
}

# As many as the steps of a run take, where no others are given.
make_tokens() {
    local size=50257 program=$out/make_random_tokens
    [ -n "$random_tokens" ] || return 0
    case $model in l*v*t*) size=${model#*v} size=${size%t*} ;; esac
    [ "$(stat -c %s "$data" 2>/dev/null)" != $((1024 + 2 * (B * T * (steps + 1) + 1))) ] || return 0
    ${CC:-cc} -O2 dev/data/make_random_tokens.c -o "$program" -lm &&
        "$program" "$data" $((B * T * (steps + 1) + 1)) "$size"
}

# ------------------------------------------------------------------------------ llm.c, in a shell of its own

make_llmc() {       # FOLDER ARGUMENT...
    local libraries
    libraries=$(realpath "$1"):$cuda_home/lib64:$cuda_home/lib:$cuda_home/lib64/stubs
    LIBRARY_PATH=$libraries:${LIBRARY_PATH:-} \
        make -C "$1" NO_MULTI_GPU=1 GPU_COMPUTE_CAPABILITY="${capability/./}" "${@:2}"
}
# llm.c from a copy, so that the checkout stays as it is.
copy_llmc() {
    rm -rf "$1" && mkdir "$1" && cp -r "$llmc"/{Makefile,train_gpt2.c,train_gpt2.cu,llmc} "$1" &&
        chmod -R u+w "$1"
}
# With cuDNN where its frontend is and the build succeeds.
compile_llmc() {
    if [ -n "$frontend" ]; then
        ln -s "$frontend" "$1/cudnn-frontend"
        make_llmc "$1" train_gpt2cu USE_CUDNN=1 && echo 'llm.c is built with cuDNN' && return
        make_llmc "$1" clean
    fi
    make_llmc "$1" train_gpt2cu && echo 'llm.c is built without cuDNN'
}
# One call of f1e2ace is not CUDA 13's.
build_llmc() {
    local utils=$out/llm.c/llmc/cuda_utils.cuh
    copy_llmc "$out/llm.c" || return
    if [ "${cuda%%.*}" -ge 13 ] && [ -e "$utils" ]; then
        sed -i '/cudaMemAdvise(/s/, cudaCpuDeviceId)/, cudaMemLocation({ cudaMemLocationTypeHost, 0 }))/' \
            "$utils"
    fi
    compile_llmc "$out/llm.c"
}
# The plugin is patched into a copy, which need not be a checkout of git.
build_patched() {
    local copy=$out/llm.c-zero
    copy_llmc "$copy" && scripts/patch_llmc --cuda --no-git "$copy" && compile_llmc "$copy"
}
# PyTorch compiles for a minute when it runs for the first time: it does so for d12 while ours is built, and
# fills its cache.
warm_pytorch() {
    local probe='import torch; torch.zeros(1, device="cuda"); print("PyTorch is", torch.__version__)'
    "$python" -c "$probe" || { echo 'PyTorch is not here, or cannot use the card'; return 0; }
    [ "$model" != d12 ] || nice "$python" dev/bench/torch_gpt2_gpu.py "$data" "$B" "$T" 1
}

# ----------------------------------------------------------------------------------------------- all of them

began=''            # the builds of this call
attention=''        # what the runs insist on
tests=()            # the GPU tests that this machine can build
# Whether the job NAME has made FILE from these sources.
built() { [ "$(fact "$1")" = "$sources_now" ] && [ -e "$2" ]; }

# Results are those of one trainer: what an earlier one has measured is set aside.
know_sources() {
    local n=1
    sources_now=$(sources)
    if [ -n "$(fact sources)" ] && [ "$(fact sources)" != "$sources_now" ]; then
        while [ -e "$out/earlier-$n" ]; do n=$((n + 1)); done
        mkdir "$out/earlier-$n"
        cp -r "$out"/results.* "$out/state" "$out/earlier-$n" 2>/dev/null
        rm -f "$out"/state/*.tsv
        say "the sources have changed: the results so far are in $out/earlier-$n"
    fi
    set_fact sources "$sources_now"
}
# Starts what has not been built from these sources. Ours goes first; without cmocka there are no tests.
begin_builds() {
    local test why \
        arch="-gencode arch=compute_${capability/./},code=[sm_${capability/./},compute_${capability/./}]"
    local programs=("$build/bench/comm")
    local make_it=(make --no-print-directory -k -j "$cores" CUDA="${CUDA:-yes}" BUILD="$build" \
        TRAINER="$trainer")
    [ -z "$began" ] || return 0
    began=yes
    make_tokens || { problem tokens "no random tokens could be written to $data"; return 1; }
    why=$(why_no_cudnn)
    [ -z "$why" ] || say \
        "CAREFUL: $why, so attention is measured without cuDNN; scripts/fetch_cudnn_frontend.sh fetches the "\
"frontend," \
        "or copy third_party/ from where it is; CUDNN_HOME=folder names cuDNN"
    if has_header cmocka.h; then
        for test in tests/{test,mpi}_{*cuda*,*device*}.c; do
            [ ! -e "$test" ] || tests+=("$(basename "$test" .c)")
        done
        programs+=("${tests[@]/#/$build/tests/}" "$build/tests/mpi_nccl")
    fi
    [ -z "$frontend" ] || make_it+=(FRONTEND="$frontend/include")
    export ZERO_CUDA_ARCH=${ZERO_CUDA_ARCH:-$arch}
    if ! built ours "$trainer.built"; then
        rm -f "$trainer.built" "$build"/tests/*.built
        # Each program's stamp says that it is linked, while others are still being built.
        background build 900 "${make_it[@]}" --eval '%.built: % ; @touch $@' "$trainer.built" \
            "${programs[@]/%/.built}"
    fi
    export out llmc cuda cuda_home capability python data model B T
    export -f make_llmc copy_llmc compile_llmc build_llmc build_patched warm_pytorch
    if [ -n "$llmc" ]; then
        [ -x "$out/llm.c/train_gpt2cu" ] || background build-llm.c 900 bash -c build_llmc
        built patched "$out/llm.c-zero/train_gpt2cu" || background build-patched 900 bash -c build_patched
    fi
    if [[ " ${parts[*]} " = *' torch '* ]] && [ ! -e "$out/pytorch-first.log" ]; then
        background pytorch-first 200 bash -c warm_pytorch
    fi
}
await_trainer() {
    while [ ! -e "$trainer.built" ] && running build; do sleep 0.1; done
    [ -e "$trainer.built" ] || { finish_build; return 1; }
}
# Ends the build of ours and notes from which sources it is.
finish_build() {
    [ -n "${jobs[build]:-}" ] || return 0
    await_job build || return
    set_fact ours "$sources_now"
    say "build: $(grep -m1 '^found: ' "$out/build.log")"
}
finish_llmc() { await_job build-llm.c; }
finish_patched() {
    [ -n "${jobs[build-patched]:-}" ] || return 0
    ! await_job build-patched || set_fact patched "$sources_now"
}
finish_builds() {
    finish_build
    finish_llmc
    finish_patched
    await_job pytorch-first
}

# ---------------------------------------------------------------------------------------- what comes with it

# A trainer is there, and two steps of the model say its shape and by what attention is computed. cuDNN is
# insisted on, so that nothing
# else is measured in its place; where it refuses, that is a failure, and the rest is measured with cuBLASLt.
ready() {
    local why
    begin_builds && await_trainer || return
    why=$(why_no_cudnn)
    if [ -n "$why" ]; then attention=cublaslt
    elif [ -n "${attention:-}" ]; then return 0
    else
        attention=cudnn
        step first-cudnn 90 15 "$trainer" "${train[@]}" "${task[@]}" --attention cudnn -z 0 -b "$B" -x 2 \
            --progress lines
        case $? in
            0) ;;
            126) return 1 ;;
            *) attention=cublaslt ;;
        esac
    fi
    if [ $attention = cublaslt ]; then
        step first-cublaslt 90 15 "$trainer" "${train[@]}" "${task[@]}" --attention cublaslt -z 0 -b "$B" \
            -x 2 --progress lines || return
    fi
    read_model "$out/first-$attention.log"
    set_fact attention "$(sed -nE 's/^numbers .*attention by (.*)/\1/p' \
        "$out/first-$attention.log")${why:+, $why}"
}

# A test that skips for want of a card has failed: here is one. Single checks of a program may skip: some need
# what only the stand-in has.
gpu_test() {        # NAME COMMAND...
    local name=$1 log=$out/$1.log passed
    shift
    step "$name" 120 10 "$@" || return
    passed=$(sed -nE 's/.*\[  PASSED  \] ([0-9]+) test.*/\1/p; s/.*[ :]([0-9]+) passed, 0 failed.*/\1/p' \
        "$log" |
        awk '{ n += $1 } END { print n + 0 }')
    if [ "$passed" = 0 ] || grep -q "^skip $name:" "$log"; then
        problem "$name" "$name: ran no test on the card: $(grep -m1 '^skip' "$log" || echo "see $name.log")"
    else
        check "$name" "$name: $passed passed"
    fi
}
gpu_tests() {
    local test launcher
    for test in "${tests[@]}"; do
        while [ ! -e "$build/tests/$test.built" ] && running build; do sleep 0.1; done
        [ -e "$build/tests/$test.built" ] || continue
        launcher=()
        case $test in mpi_*) launcher=("${mpirun[@]}" 2) ;; esac
        gpu_test "$test" "${launcher[@]}" "$build/tests/$test"
    done
}

losses() { sed -nE 's/.*"loss": ([^,]+),.*/\1/p' "$out/runs/$1/metrics.jsonl"; }
# How far apart, at most, the losses of two runs of so many steps are; nothing if they are not as many: RUN
# RUN STEPS
losses_apart() {
    paste -d' ' <(losses "$1") <(losses "$2") | awk -v steps="$3" '
        NF != 2 { bad = 1 }
        { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
        END { if (NR == steps && !bad) print most + 0 }'
}
# The first 20 steps of a small model in bf16: losses agree to 0.02.
compare_with_cpu() {
    local on difference what='GPU and CPU, bf16, 20 steps'
    local small=(-e "${SMALL:-l4h4c128v257t64}" -b 8 -x 20 -z 0 "${gentle[@]}" --progress lines)
    for on in cpu cuda; do
        step "small-$on" 60 10 "$trainer" "${train[@]}" "${small[@]}" --device $on -o "$out/runs/small-$on" ||
            return
    done
    difference=$(losses_apart small-cpu small-cuda 20)
    if [ -z "$difference" ]; then problem losses 'GPU and CPU: 20 losses of each were expected'
    elif number "$difference <= 0.02"; then check losses \
        "$what: losses differ by $difference at most (0.02 is allowed)"
    else problem losses "$what: losses differ by $difference, 0.02 is allowed"; fi
}

part_build() {
    ready || return
    gpu_tests
    compare_with_cpu
    return 0
}
