#!/usr/bin/env bash
# Tests scripts/patch_llmc on a stand-in for llm.c (tests/fake_llmc): what it changes, that the patched
# trainer trains, and what it refuses.
set -u
cd "$(dirname "$0")/.." || exit 1
patch=$PWD/scripts/patch_llmc fake=$PWD/tests/fake_llmc
. scripts/mpi_env.sh
export OMP_NUM_THREADS=1
# A user's own settings, signing for one, must not reach the tests.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
unset ZERO_STAGE ZERO_CONFIG ZERO_POISON MAKEFLAGS MAKELEVEL
export ZERO_OPT=-O0             # of the plugin: it is compiled here in a third of the time, and trains little

. tests/cases.sh

has() { grep -qE -- "$2" "$dir/$1"; }                                         # has FILE PATTERN

# copy_patch FOLDER: the script and what it copies, in $dir/FOLDER; $patch is that one then.
copy_patch() {
    mkdir -p "$dir/$1/scripts"
    cp -R llmc_zero LICENSE "$dir/$1" && cp -R "$patch" "$patch.d" "$dir/$1/scripts"
    patch=$dir/$1/scripts/patch_llmc
}
commit() { git -C "$1" -c user.name=test -c user.email=test@localhost commit -qam test; }
# checkout NAME: a fresh stand-in, committed: a copy of the one that is made first.
checkout() {
    rm -rf "${dir:?}/$1"
    if [ ! -d "$dir/committed" ]; then
        mkdir "$dir/committed" && cp -R "$fake/." "$dir/committed" || return
        git -C "$dir/committed" init -q --template= && git -C "$dir/committed" add . &&
            commit "$dir/committed" || return
    fi
    cp -a "$dir/committed" "$dir/$1"
}
# Every file and folder with its rights and contents, git's own apart.
state() { (cd "$1" && find . -path ./.git -prune -o -printf '%p %m\n' -type f -exec sha256sum {} + | sort); }
build() {
    (cd "$dir/$1" && shift && make --no-print-directory "$@") >"$dir/make" 2>&1 && return
    tail -n 5 "$dir/make"
    return 1
}

# ---- what it changes

test_patch() {
    local file line
    begin 'patch.dry run prints a diff and changes nothing'
    checkout plain && state "$dir/plain" >"$dir/before"
    need 'failed' "$patch" --no-run "$dir/plain" --dry-run >"$dir/diff" 2>"$dir/places"
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/plain")
    need 'git does not take the diff' git -C "$dir/plain" apply "$dir/diff"
    end

    begin 'patch.edits, file and line of each, and the plugin'
    checkout patched
    need 'failed' "$patch" --no-run "$dir/patched" >"$dir/report"
    for file in train_gpt2.c llmc/dataloader.h Makefile; do
        need "$file is not as in the dry run" cmp -s "$dir/plain/$file" "$dir/patched/$file"
    done
    sed -i '/^llmc_zero\/: /d' "$dir/places" "$dir/report"
    need 'the report is not that of the dry run' cmp -s "$dir/places" "$dir/report"
    while IFS=: read -r file line _; do
        need "$file:$line is no edit" grep -qE '^#(ifdef LLMC_ZERO| ZeRO:)' \
            <(sed -n "$line{/./p};$((line + 1))p" "$dir/patched/$file")
    done <"$dir/places"
    need "$(wc -l <"$dir/places") places" [ "$(wc -l <"$dir/places")" -ge 25 ]
    need "not the whole plugin" diff -rq --exclude=LICENSE llmc_zero "$dir/patched/llmc_zero"
    need 'not one training pass' [ "$(grep -c 'zero_begin_train(z, 0, 1)' "$dir/patched/train_gpt2.c")" = 1 ]
    need 'not two others' [ "$(grep -c 'zero_begin_eval(z)' "$dir/patched/train_gpt2.c")" = 2 ]
    need 'train_gpt2.cu is edited without --cuda' cmp -s "$fake/train_gpt2.cu" "$dir/patched/train_gpt2.cu"
    need 'no licence' cmp -s LICENSE "$dir/patched/llmc_zero/LICENSE"
    end

    begin 'patch.without LLMC_ZERO it is the original'
    git -C "$dir/plain" checkout -q .
    for file in train_gpt2.c test_gpt2.c llmc/dataloader.h; do
        need "$file" cmp -s <(cd "$dir/plain" && cc -E -P -x c $file) \
            <(cd "$dir/patched" && cc -E -P -x c $file)
    done
    need 'and with it too' not cmp -s <(cc -E -P "$dir/plain/train_gpt2.c") \
        <(cc -DLLMC_ZERO -E -P "$dir/patched/train_gpt2.c")
    end

    begin 'patch.make all, and the other programs as before'
    need 'the original is not built' build plain all make_files
    need 'not built' build patched all make_files
    need 'CFLAGS on the command line lose ZeRO' grep -q -- '-O2 -DLLMC_ZERO' \
        <(make -C "$dir/patched" -nB train_gpt2 CFLAGS=-O2)
    (cd "$dir/plain" && ./make_files 16 64 3 8 && ./test_gpt2) >"$dir/plain.test"
    (cd "$dir/patched" && ./make_files 16 64 3 8 && ./test_gpt2) >"$dir/patched.test"
    need "test_gpt2 says: $(head -n 2 "$dir/patched.test")" cmp -s "$dir/plain.test" "$dir/patched.test"
    need 'test_gpt2 says nothing' has patched.test 'step 2: loss'
    end

    begin 'patch.twice'
    state "$dir/patched" >"$dir/before"
    need 'failed' "$patch" --no-run "$dir/patched" >"$dir/twice"
    need "says: $(cat "$dir/twice")" has twice 'already patched'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/patched")
    end
}

# ---- what is proven by running

# A loader that gives all ranks the same rows compiles, trains, and computes something else.
same_rows() {
    sed -i 's/ + loader->process_rank) \* BT/) * BT/' "$dir/tree/llmc/dataloader.h" && commit "$dir/tree"
}
test_proof() {
    begin 'proof.equal losses and digests: patched'
    checkout tree
    need 'failed' "$patch" "$dir/tree" >"$dir/proof"
    need "no table in: $(cat "$dir/proof")" has proof '^ +8( +[0-9.]+){3}$'
    need 'no result' has proof '8 losses agree .*digest [0-9a-f]{16} at both stages'
    need 'not patched' grep -q LLMC_ZERO "$dir/tree/train_gpt2.c"
    end

    begin 'proof.other losses: nothing changed, and the first that differ are shown'
    checkout tree && same_rows
    state "$dir/tree" >"$dir/before"
    need 'no error' not "$patch" "$dir/tree" >"$dir/proof" 2>&1
    need "not shown: $(cat "$dir/proof")" has proof 'differ from number 1 on'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/tree")
    end

    begin 'proof.an original that fails: no proof, and patched only with --keep'
    checkout tree
    sed -i 's/^    GPT2 model;/    exit(7);\n&/' "$dir/tree/train_gpt2.c" && commit "$dir/tree"
    need 'no error' not "$patch" "$dir/tree" >"$dir/proof" 2>&1
    need "no reason: $(cat "$dir/proof")" has proof 'original: fails with status 7'
    need 'patched' not grep -q LLMC_ZERO "$dir/tree/train_gpt2.c"
    need 'failed' "$patch" "$dir/tree" --keep >"$dir/proof" 2>&1
    need 'does not warn' has proof '^NOT PROVEN: original: fails with status 7'
    need 'not patched' grep -q LLMC_ZERO "$dir/tree/train_gpt2.c"
    end
}

# ---- that it trains

# losses NAME: the losses and the sample of a run, a number or token a line.
losses() { sed -nE 's/^(val loss|step [0-9]+: train loss|sample:) *//p' "$dir/$1" | tr ' ' '\n'; }
# The largest difference of two runs' losses; 99 if they are not as many, or too few.
difference() {
    paste <(losses "$1") <(losses "$2") |
        awk 'NF != 2 { bad = 1 }
            { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
            END { print (bad || NR < 15) ? 99 : most + 0 }'
}
# run NP NAME [VARIABLE=VALUE]...: runs the patched trainer on NP ranks (0: without mpirun). Its screen is
# under NAME. With LOOK=yes the Pss of its ranks, looked at from time to time, is under NAME.pss.RANK. With
# ASTRAY=RANK that rank runs in the folder astray, with the program there.
run() {
    local np=$1 out=$2 launcher=()
    shift 2
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe -np "$np")
    # shellcheck disable=SC2016
    (cd "$dir/patched" && env "$@" timeout -k 2 100 "${launcher[@]}" bash -c '
        (while [ "${LOOK:-}" ] && grep ^Pss: /proc/$$/smaps_rollup; do sleep 0.05; done) \
            >"$0.pss.${OMPI_COMM_WORLD_RANK:-0}" 2>/dev/null &
        [ "${OMPI_COMM_WORLD_RANK:-0}" != "${ASTRAY:-}" ] || cd ../astray || exit
        exec ./train_gpt2' "$dir/$out") >"$dir/$out" 2>&1 </dev/null
}
train() { run "$@" || { tail -n 5 "$dir/$2"; return 1; }; }
digest() { sed -n 's/^params_hash //p' "$dir/$1"; }

# ---- the CUDA trainer

# Its stand-in computes on the processor; the patched one is told to, and its Makefile not to ask for a CUDA
# compiler.
on_the_processor() {
    sed -i 's/z_config.device = ZERO_CUDA;/z_config.device = ZERO_CPU;/' "$dir/cuda/train_gpt2.cu"
    sed -i 's/ ZERO_CUDA=yes / ZERO_CUDA=no /' "$dir/cuda/Makefile"
}
# preprocessed FOLDER FILE [FLAG]...: line numbers, which assert() has in it, are not looked at.
preprocessed() { (cd "$dir/$1" && c++ -w -D__LINE__=0 -E -P "${@:3}" -x c++ "$2"); }
test_cuda_patch() {
    local file line
    begin 'cuda.dry run prints a diff and changes nothing'
    checkout original && state "$dir/original" >"$dir/before"
    need 'failed' "$patch" --no-run "$dir/original" --cuda --dry-run >"$dir/diff" 2>"$dir/places"
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/original")
    need 'git does not take the diff' git -C "$dir/original" apply "$dir/diff"
    end

    begin 'cuda.edits, file and line of each; those of the other trainer are the same'
    checkout cuda
    need 'failed' "$patch" --no-run --cuda "$dir/cuda" >"$dir/report"
    for file in train_gpt2.c train_gpt2.cu llmc/dataloader.h Makefile; do
        need "$file is not as in the dry run" cmp -s "$dir/original/$file" "$dir/cuda/$file"
    done
    while IFS=: read -r file line _; do
        need "$file:$line is no edit" grep -qE '^#(ifn?def LLMC_ZERO| ZeRO)' \
            <(sed -n "$line{/./p};$((line + 1))p" "$dir/cuda/$file")
    done < <(grep -v '^llmc_zero/: ' "$dir/report")
    need 'not enough places' [ "$(grep -c '^train_gpt2.cu:' "$dir/report")" -ge 55 ]
    need 'every rank writes the model file' \
        grep -q 'process_rank == 0 ? path : "/dev/null"' "$dir/cuda/train_gpt2.cu"
    need 'train_gpt2.c is another' cmp -s "$dir/patched/train_gpt2.c" "$dir/cuda/train_gpt2.c"
    need 'weight decay is not that of the update' [ "$(echo $(
        sed -nE 's/"([a-z0-9]+)", Z_[A-Z]+, 1/\n:\1\n/gp' "$dir/cuda/train_gpt2.cu" | grep '^:'
    ))" = ':wte :wpe :upw :downw' ]
    end

    begin 'cuda.without LLMC_ZERO it is the original'
    git -C "$dir/original" checkout -q .
    for file in train_gpt2.c train_gpt2.cu llmc/dataloader.h; do
        need "$file" cmp -s <(preprocessed original $file) <(preprocessed cuda $file)
    done
    # shellcheck disable=SC2046
    need 'and with it too' not cmp -s <(preprocessed original train_gpt2.cu) \
        <(preprocessed cuda train_gpt2.cu -DLLMC_ZERO -isystem "$PWD" $(mpicc --showme:compile))
    end

    begin 'cuda.twice'
    state "$dir/cuda" >"$dir/before"
    need 'failed' "$patch" --no-run --cuda "$dir/cuda" >"$dir/twice"
    need "says: $(cat "$dir/twice")" has twice 'already patched'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/cuda")
    end
    begin 'cuda.after a patch without it'
    need 'no error' not "$patch" --no-run --cuda "$dir/patched" 2>"$dir/twice"
    need "says: $(cat "$dir/twice")" has twice 'is patched without --cuda; restore it'
    end

    begin 'cuda.make, with the flags of a build for NCCL'
    on_the_processor
    # without CUDA its plugin is that of the other trainer, which has been built
    mkdir -p "$dir/cuda/build" && cp -R "$dir/patched/build" "$dir/cuda/build/cuda"
    need 'the original is not built' build original train_gpt2cu make_files
    need 'fp16 is no error' not build cuda train_gpt2cu PFLAGS=-DENABLE_FP16 >/dev/null
    need "fp16: $(tail -n 1 "$dir/make")" has make 'PRECISION=FP16: this trainer has no loss scale'
    need 'not built' build cuda train_gpt2cu PFLAGS=-DMULTI_GPU
    (cd "$dir/original" && ./make_files 16 64 3 8 && cp tiny_tokens.bin "$dir/cuda")
    end
}

# cuda NP NAME [VARIABLE=VALUE]... [OPTION VALUE]...: runs the patched CUDA trainer on NP ranks (0: without
# mpirun). Its screen is under NAME.
# ASTRAY=OPTIONS: rank 1 has these too.
cuda() {
    local np=$1 out=$2 launcher=() set=(ZERO_POISON=1)
    shift 2
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe -np "$np")
    while [[ ${1:-} = *=* ]]; do set+=("$1"); shift; done
    # shellcheck disable=SC2016
    (cd "$dir/cuda" && env "${set[@]}" timeout -k 2 60 "${launcher[@]}" bash -c '
        set -f; [ "${OMPI_COMM_WORLD_RANK:-0}" != 1 ] || set -- "$@" ${ASTRAY:-}
        exec ./train_gpt2cu "$@"' trainer "$@") >"$dir/$out" 2>&1 </dev/null
}
# same_run NAME NAME: losses, norms and samples agree.
same_run() {
    local most
    numbers() {
        sed -nE 's/ norm/ /; s/^(val loss|step [0-9]+: train loss|sample:) *//p' "$dir/$1" | tr -s ' ' '\n'
    }
    most=$(paste <(numbers "$1") <(numbers "$2") |
        awk 'NF != 2 { bad = 1 }
            { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
            END { print (bad || NR < 30) ? 99 : most + 0 }')
    number "$most < 1e-4" || { echo "   $1 and $2 differ by $most"; false; }
}

test_cuda_training() {
    local stage option first=
    (cd "$dir/original" && ./train_gpt2cu -d 128) >"$dir/cuda.plain" 2>&1
    begin 'cuda.train.one rank without mpirun'
    need 'failed' cuda 0 cuda.1 -d 128
    need 'is not the run of the original' same_run cuda.plain cuda.1
    need 'shares its GPU with nobody' not has cuda.1 '^note: '
    end
    for stage in 0 1 2 3; do
        begin "cuda.train.stage $stage, half the rows on each of 2 ranks, 2 micro-batches"
        need 'failed' cuda 2 "cuda.$stage" -b 2 -d 128 -z $stage
        need 'is not the run of the original' same_run cuda.plain "cuda.$stage"
        need 'is not that stage' has "cuda.$stage" "^ZeRO stage $stage on 2 ranks by mpi, shared window"
        need 'ranks share a GPU silently' \
            has "cuda.$stage" "^note: 2 ranks on rank 0's machine, which has 1 visible GPUs; "
        need 'not each line once' [ "$(grep -cE '^(step 3|sample:)' "$dir/cuda.$stage")" = 4 ]
        # with several micro-batches the sums of stages 2 and 3 are others
        if [ $stage = 0 ] || [ $stage = 2 ]; then first=$(digest "cuda.$stage"); fi
        need "digest $(digest "cuda.$stage"), not $first" [ "$(digest "cuda.$stage")" = "${first:-none}" ]
        end
    done
    begin 'cuda.train.stage 3, nothing gathered ahead and by no thread'
    echo '{ "zero_optimization": { "overlap_comm": false, "stage3_prefetch_bucket_size": 0 } }' \
        >"$dir/config.json"
    need 'failed' cuda 2 cuda.bare ZERO_CONFIG="$dir/config.json" -b 2 -d 128 -z 3
    need "digest $(digest cuda.bare), not $first" [ "$(digest cuda.bare)" = "$first" ]
    end
    begin 'cuda.train.ranks that find each other by TCP, and by a file'
    local how port=$((20000 + RANDOM % 10000)) rank1
    for how in "tcp -ps 127.0.0.1:$port" "fs -pf $dir"; do
        # shellcheck disable=SC2086
        { cuda 0 cuda.rank1 -b 2 -d 128 -z 3 -pi $how -pn 2 -pr 1 -pg 1; } & rank1=$!
        # shellcheck disable=SC2086
        need "$how: failed" cuda 0 cuda.rank0 -b 2 -d 128 -z 3 -pi $how -pn 2 -pr 0 -pg 1
        need "$how: rank 1 failed: $(tail -n 1 "$dir/cuda.rank1")" wait $rank1
        need "$how: digest $(digest cuda.rank0), not $first" [ "$(digest cuda.rank0)" = "$first" ]
    done
    end
    begin 'cuda.train.3 ranks'
    need 'failed' cuda 3 cuda.three -b 2 -z 3
    need 'no digest' has cuda.three '^params_hash '
    end
    begin 'cuda.train.steps that are skipped'
    for option in '-sl 4' '-sg 4'; do
        # shellcheck disable=SC2086
        (cd "$dir/original" && ./train_gpt2cu -d 128 $option) >"$dir/cuda.plain" 2>&1
        # shellcheck disable=SC2086
        need "failed with $option" cuda 2 cuda.skip -b 2 -d 128 -z 3 $option
        need "$option: is not the run of the original" same_run cuda.plain cuda.skip
        need "$option: not one is skipped" [ "$(grep -c '^skipping' "$dir/cuda.skip")" = 1 ]
    done
    end
}

test_cuda_checkpoints() {
    local files file values
    begin 'cuda.checkpoint.resumed at another stage'
    mkdir "$dir/cuda/log" "$dir/original/log"
    need 'failed' cuda 2 cuda.whole -b 2 -d 128 -z 2 -x 9 -n 2 -o log
    files=$(cd "$dir/cuda/log" && echo *)
    need "files: $files" [ "$files" = "$(echo DONE_0000000{2,4,6,8} model_0000000{6,8}.bin \
        state_00000006.zero state_00000006_0000{0,1}.bin state_00000008.zero \
        state_00000008_0000{0,1}.bin)" ]
    need 'failed to resume' cuda 2 cuda.resumed -b 2 -d 128 -z 3 -x 9 -y 6 -o log
    need 'no digest' has cuda.whole '^params_hash '
    need 'ends elsewhere' [ "$(digest cuda.whole)" = "$(digest cuda.resumed)" ]
    need 'does not begin at step 6' [ "$(grep -c '^step' "$dir/cuda.resumed")" = 3 ]
    end
    begin 'cuda.checkpoint.the original reads the model file, and the patched trainer its own'
    (cd "$dir/original" && ./train_gpt2cu -e "$dir/cuda/log/model_00000006.bin" -x 0) >"$dir/cuda.read" 2>&1
    need 'failed' cuda 0 cuda.own -e log/model_00000006.bin -x 0
    values=$(for file in whole:3 read:1 own:1; do
        sed -n 's/^val loss //p' "$dir/cuda.${file%:*}" | sed -n "${file#*:}p"
    done | sort -g)
    need "losses $values" number \
        "$(echo "$values" | awk '{ v[NR] = $1 } END { print NR == 3 && v[3] - v[1] < 1e-5 }')"
    end
    (cd "$dir/original" && ./train_gpt2cu -d 128 -x 3 -n 2 -o log) >/dev/null 2>&1
    cp "$dir"/original/log/*00000002* "$dir/cuda/log"
    refuses 'a state file of the original' 'state_00000002_00000.bin: not written with ZeRO' \
        0 -x 4 -y 2 -o log
    refuses 'a state file of 2 ranks' 'saved by 2 ranks; resume with mpirun -np 2, srun -n 2 or -pn 2' \
        0 -x 9 -y 6 -o log
    rm -r "$dir/cuda/log/state_00000006.zero"
    cp -r "$dir/cuda/log/state_00000008.zero" "$dir/cuda/log/state_00000006.zero"
    refuses 'files of two checkpoints' 'is of step 6, .*zero is of step 8' 2 -b 2 -x 9 -y 6 -o log
    rm "$dir"/cuda/log/state_00000006.zero/rank00001*
    refuses 'a file that is missing' 'state_00000006.zero/rank00001' 2 -b 2 -x 9 -y 6 -o log
}

# LLMC=folder of a clone of llm.c: its own trainer is patched and, where there is nvcc, compiled and linked.
test_llmc() {
    if [ -z "${LLMC:-}" ] || ! command -v nvcc >/dev/null; then
        skip cuda.llmc 'no nvcc, or no LLMC=folder of a clone of llm.c'
        return
    fi
    begin 'cuda.llmc.without LLMC_ZERO it is the original'
    need 'no clone' git clone -q "$LLMC" "$dir/original_llmc"
    need 'no clone' git clone -q "$LLMC" "$dir/llmc"
    need 'not patched' "$patch" --no-run --cuda "$dir/llmc" >"$dir/report"
    need 'is another' cmp -s <(preprocessed_cuda original_llmc) <(preprocessed_cuda llmc)
    need 'is nothing' [ "$(preprocessed_cuda llmc | wc -l)" -gt 1000 ]
    end
    begin 'cuda.llmc.compiles and links'
    echo 'int none;' | cc -shared -fPIC -x c - -o "$dir/libnvidia-ml.so"              # comes with the driver
    LIBRARY_PATH=$dir need 'does not' build llmc train_gpt2cu CI=true GPU_COMPUTE_CAPABILITY=90 FORCE_NVCC_O=1
    need 'is not there' [ -x "$dir/llmc/train_gpt2cu" ]
    end
}
preprocessed_cuda() {
    (cd "$dir/$1" && nvcc -E -w -DENABLE_BF16 -D__LINE__=0 -arch=sm_90 train_gpt2.cu 2>/dev/null |
        grep -vE '^(#|[[:space:]]*$)')
}

# said PATTERN [TIMES]: the ranks have said it once, or at least once and at most TIMES; in the file told.
said() {
    need "no '$1' in: $(head -n 3 "$dir/told")" has told "$1"
    need "said $(grep -cE -- "$1" "$dir/told") times" [ "$(grep -cE -- "$1" "$dir/told")" -le "${2:-1}" ]
}
# refuses NAME PATTERN NP [VARIABLE=VALUE]... [OPTION VALUE]...: the CUDA trainer must fail and say so, once.
refuses() {
    local pattern=$2 status
    begin "cuda.told.$1"
    cuda "$3" told "${@:4}"; status=$?
    need "status $status" [ $status != 0 -a $status -lt 124 ]
    said "$pattern"
    end
}
test_cuda_failures() {
    refuses 'a start that there is not' '-pi nccl: mpi, tcp or fs' 0 -pi nccl
    refuses 'a start by TCP without an address' \
        'server.*, the address of rank 0 as host:port, .*is needed' 0 -pi tcp -pn 2 -pr 0
    refuses 'more GPUs a machine than there are' '-pg 8: rank 7 would use GPU 7, but this machine has' \
        0 -pi tcp -ps 127.0.0.1 -pn 8 -pr 7 -pg 8
    refuses 'another number of ranks than started' \
        '-pn 3: this is one of 2 ranks; start with mpirun -np 3' 2 -pn 3
    refuses 'a stage that there is not' 'stage 4: 0 to 3' 0 -z 4
    refuses 'two stages' '-z 1, but ZERO_STAGE or ZERO_CONFIG asks for stage 2' 0 ZERO_STAGE=2 -z 1
    echo '{ "bf16": { "enabled": true } }' >"$dir/config.json"
    refuses 'another precision' 'this program was built with another precision' \
        0 ZERO_CONFIG="$dir/config.json"
    echo '{ "gradient_accumulation_steps": 3 }' >"$dir/config.json"
    refuses 'another number of micro-batches' 'steps 3, but -d, -b and -t make it 2' \
        0 ZERO_CONFIG="$dir/config.json" -d 128
}

# differs NAME LINE OTHER [VARIABLE=VALUE]... [OPTION VALUE]...: rank 1 of 3 has LINE, as ASTRAY says, and
# rank 0 has OTHER.
differs() { refuses "on rank 1, $1" "^rank 1 .host [^)]*. has $2 and rank 0 .host [^)]*. has $3" 3 "${@:4}"; }
test_cuda_same() {
    local tokens='loader, file 0 = tiny_tokens.bin,' folder rank1
    for folder in copy astray; do
        mkdir "$dir/cuda/$folder" && cp "$dir/cuda/tiny_tokens.bin" "$dir/cuda/$folder"
    done
    differs 'the batch' '-b = 4' '-b = 2' ASTRAY='-b 4' -b 2
    differs 'an option more' '-sl = 4' 'no -sl' ASTRAY='-sl 4'
    begin 'cuda.same.order of options, and paths'
    need 'failed' cuda 2 cuda.own ASTRAY='-d 128 -b 2 -i copy/tiny_tokens.bin -pg 2' -b 2 -z 3 -d 128
    need 'ends elsewhere' [ "$(digest cuda.own)" = "$(digest cuda.3)" ]
    end
    printf x | dd of="$dir/cuda/astray/tiny_tokens.bin" bs=1 seek=3000 conv=notrunc status=none
    differs 'the training data' "train_$tokens .*" "train_$tokens .*" ASTRAY='-i astray/tiny_tokens.bin'
    differs 'the validation data' "val_$tokens .*" "val_$tokens .*" ASTRAY='-j astray/tiny_tokens.bin'
    differs 'the number of data files' 'train_loader = .* 2 data files' 'train_loader = .* 1 data files' \
        ASTRAY='-i [ac]*/tiny_tokens.bin'
    differs 'the model file' 'parameters = digest .*' 'parameters = digest .*' \
        ASTRAY='-e log/model_00000008.bin' -e log/model_00000006.bin
    begin 'cuda.same.by TCP it is said once'
    local port=$((20000 + RANDOM % 10000))
    (cuda 0 told.1 -z 2 -pi tcp -ps "127.0.0.1:$port" -pn 2 -pr 1 -pg 1) & rank1=$!
    need 'rank 0 does not fail' not cuda 0 told.0 -z 3 -pi tcp -ps "127.0.0.1:$port" -pn 2 -pr 0 -pg 1
    need 'rank 1 does not fail' not wait $rank1
    cat "$dir"/told.[01] >"$dir/told"
    said 'rank 1 .* has -z = 2 and rank 0 .* has -z = 3'
    end
}

# The stand-in shuffles: its order must not depend on the number of ranks.
test_training() {
    local stage option first=
    (cd "$dir/plain" && ./train_gpt2) >"$dir/one" 2>&1
    begin 'train.one rank without mpirun'
    need 'failed' train 0 zero.1
    need "losses differ by $(difference one zero.1)" number "$(difference one zero.1) < 1e-5"
    end
    cp "$dir/patched/train_gpt2" "$dir/four_rows"
    sed -i 's/int B = 4;/int B = 2;/' "$dir/patched/train_gpt2.c"
    need 'not built' build patched train_gpt2
    for stage in 0 1 2 3; do
        begin "train.stage $stage, half the rows on each of 2 ranks"
        need 'failed' train 2 "zero.$stage" ZERO_STAGE=$stage ZERO_POISON=1
        need "losses differ by $(difference one "zero.$stage")" \
            number "$(difference one "zero.$stage") < 1e-4"
        need 'is not that stage' has "zero.$stage" "^ZeRO stage $stage on 2 ranks by mpi, shared window"
        need 'not each line once' [ "$(grep -c 'step 3: train loss' "$dir/zero.$stage")" = 1 ]
        first=${first:-$(digest "zero.$stage")}
        need "digest $(digest "zero.$stage"), at stage 0 $first" \
            [ "$(digest "zero.$stage")" = "${first:-none}" ]
        end
    done
    begin 'train.stage 3 unless asked otherwise, by file too'
    need 'failed' train 2 default ZERO_POISON=1
    need 'is not stage 3' has default '^ZeRO stage 3'
    echo '{ "zero_optimization": { "stage": 1 } }' >"$dir/config.json"
    need 'failed with a file' train 2 file ZERO_CONFIG="$dir/config.json"
    need 'is not stage 1' has file '^ZeRO stage 1'
    end
}

# A rank whose files are not those of the others.
told_of_rank_1() {
    local stage file files=(train_gpt2 tiny_model.bin tiny_tokens.bin config.json)
    mkdir "$dir/astray"
    # NAME LINE OTHER [VARIABLE=VALUE]...: rank 1 of 3 has LINE, rank 0 has OTHER. Afterwards they are alike
    # again.
    astray() {
        told "on rank 1, $1" "^rank 1 .host [^)]*. has $2 and rank 0 .host [^)]*. has $3" 3 ASTRAY=1 "${@:4}"
        for file in "${files[@]}"; do cp "$dir/patched/$file" "$dir/astray"; done
    }
    for stage in 1 2; do echo "{ \"zero_optimization\": { \"stage\": $stage } }" >"$dir/stage.$stage"; done
    cp "$dir/stage.2" "$dir/patched/config.json"
    for file in "${files[@]}"; do cp "$dir/patched/$file" "$dir/astray"; done
    cp "$dir/stage.1" "$dir/astray/config.json"
    astray 'another stage' 'stage = 1' 'stage = 2' ZERO_CONFIG=config.json
    printf x | dd of="$dir/astray/tiny_model.bin" bs=1 seek=2999 conv=notrunc status=none
    astray 'another model' 'parameters = digest .*' 'parameters = digest .*'
    printf x | dd of="$dir/astray/tiny_tokens.bin" bs=1 seek=2999 conv=notrunc status=none
    astray 'other data' 'train, file 0 = tiny_tokens.bin, .*' 'train, file 0 = tiny_tokens.bin, .*'
    cp "$dir/four_rows" "$dir/astray/train_gpt2"
    astray 'a program for another batch' 'train = B 4, T 16, .*' 'train = B 2, T 16, .*'
}

# told NAME PATTERN NP [VARIABLE=VALUE]...: the patched trainer must fail and say so, within its time; once,
# or at most TIMES times, for a check of llm.c's own that speaks on every rank.
told() {
    local pattern=$2
    begin "told.$1"
    shift 2
    run "$1" told "${@:2}"; local status=$?
    need "status $status" [ $status != 0 -a $status -lt 124 ]
    said "$pattern" "${TIMES:-1}"
    end
}
test_failures() {
    told 'a stage that there is not' 'ZERO_STAGE=7' 2 ZERO_STAGE=7
    told 'a file that is not there' 'no/such' 2 ZERO_CONFIG=no/such
    echo '{ "bf16": { "enabled": true } }' >"$dir/config.json"
    told 'bf16, which the trainer cannot' 'fp32' 2 ZERO_CONFIG="$dir/config.json"
    echo '{ "gradient_accumulation_steps": 2 }' >"$dir/config.json"
    told 'accumulation, which it does not' 'gradient_accumulation_steps 1' 2 ZERO_CONFIG="$dir/config.json"
    cp "$dir/patched/tiny_model.bin" "$dir/model"
    truncate -s 3000 "$dir/patched/tiny_model.bin"
    TIMES=2 told 'a model file cut short' 'cannot read' 2
    head -c 2000 /dev/zero >"$dir/patched/tiny_model.bin"
    told 'no model file' 'Error: tiny_model.bin is no model file' 2
    cp "$dir/patched/tiny_model.bin" "$dir/nonsense" && cp "$dir/model" "$dir/patched/tiny_model.bin"
    told_of_rank_1
    cp "$dir/nonsense" "$dir/astray/tiny_model.bin"
    told 'no model file on rank 1 alone' 'rank 1: Error: tiny_model.bin is no model file' 2 ASTRAY=1
}

# What the system sees of a rank against the table. 16 layers of 256 channels make the layers most of it; two
# steps have all of it.
test_memory() {
    local stage seen=() table=()
    if ! grep -qs '^Pss:' /proc/self/smaps_rollup; then skip memory 'no /proc/PID/smaps_rollup'; return; fi
    begin 'memory.stage 0 less stage 3'
    (cd "$dir/patched" && ./make_files 16 64 16 256 && sed -i 's/step < 6;/step < 2;/' train_gpt2.c)
    need 'not built' build patched train_gpt2
    for stage in 0 3; do
        need "stage $stage failed" train 2 "memory.$stage" ZERO_STAGE=$stage LOOK=yes
        seen[stage]=$(cat "$dir/memory.$stage".pss.* |
            awk '$2 > most { most = $2 } END { print most / 1024 }')
        table[stage]=$(sed -nE 's/.*together ([0-9.]+) MiB/\1/p' "$dir/memory.$stage")
        need "stage $stage: more beside the table than activations, MPI and the program" \
            number "${seen[stage]} - ${table[stage]} < 12"
    done
    echo "   a rank takes ${seen[0]} and ${seen[3]} MiB at stages 0 and 3," \
        "the tables say ${table[0]} and ${table[3]}"
    need 'the difference is not that of the tables' number \
        "(${seen[0]} - ${seen[3]}) / (${table[0]} - ${table[3]}) > 0.9 &&
        (${seen[0]} - ${seen[3]}) / (${table[0]} - ${table[3]}) < 1.1"
    end
}

# ---- what it refuses

# refused NAME PATTERN FOLDER [OPTION]...: an error with the pattern in it, and not one byte changed.
refused() {
    local pattern=$2 folder=$3
    begin "refused.$1"
    state "$dir/tree" >"$dir/before"
    "$patch" --no-run ${folder:+"$folder"} "${@:4}" >"$dir/refused" 2>&1; local status=$?
    need "status $status" [ $status = 1 ]
    need "no '$pattern' in: $(cat "$dir/refused")" has refused "$pattern"
    # git may have said something too
    need "$(wc -l <"$dir/refused") lines" [ "$(wc -l <"$dir/refused")" -le 2 ]
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/tree")
    end
}

test_trees() {
    checkout tree
    refused 'no folder' 'no such folder' "$dir/tree/nothing"
    refused 'no argument' usage ''
    begin 'patch.--help'
    need 'fails' eval '"$patch" --help >"$dir/help"'
    need "$(cat "$dir/help")" grep -q -- '--cuda  *also edits train_gpt2.cu' "$dir/help"
    end
    refused 'an option it does not know' usage "$dir/tree" --dry
    refused 'a folder inside the checkout' 'top folder' "$dir/tree/llmc"
    echo '// more' >>"$dir/tree/test_gpt2.c"
    refused 'a dirty tree' 'uncommitted' "$dir/tree"
    git -C "$dir/tree" checkout -q .
    mkdir "$dir/tree/llmc_zero"
    refused 'a folder llmc_zero' 'llmc_zero: exists already' "$dir/tree"
    rmdir "$dir/tree/llmc_zero"
    for file in train_gpt2.c llmc/dataloader.h Makefile; do
        chmod a-w "$dir/tree/$file"
        refused "$file read-only" "$file: is read-only" "$dir/tree"
        chmod u+w "$dir/tree/$file"
    done
    git -C "$dir/tree" rm -q --cached llmc/dataloader.h && mv "$dir/tree/llmc/dataloader.h" "$dir/tree"
    refused 'an old llm.c without llmc/' 'llmc/dataloader.h: no such file' "$dir/tree"
    rm -rf "$dir/tree/.git"
    (cd "$dir/tree" && mv dataloader.h llmc)
    GIT_CEILING_DIRECTORIES=$dir refused 'no checkout' 'not a git checkout' "$dir/tree"
}

# A rename that fails when some files have been renamed already: not easily had, so in a copy of the script.
# Where the script itself stands must not matter.
test_odd_folder() {
    local patch=$patch
    begin 'trees.the script in a folder with odd characters'
    checkout tree
    copy_patch "it's [a] {b} folder"
    need 'did not run' "$patch" --no-run "$dir/tree" >"$dir/odd" 2>&1
    need 'the plugin was not copied' diff -rq llmc_zero "$dir/tree/llmc_zero" -x LICENSE
    end
}

test_half_done() {
    local patch=$patch
    checkout tree
    copy_patch copy
    sed -i 's/push @renamed, \$f;/& die "the disk is gone\\n" if @renamed == 2;/' "$patch.d/checkout.pl"
    refused 'a disk that fails half way' 'the disk is gone; nothing was changed' "$dir/tree"
}

# A folder that cannot be written to is noticed when half of the files have been prepared. Root can write
# everywhere, so this does not run as root.
test_unwritable() {
    local as=() patch=$patch
    if [ "$(id -u)" = 0 ]; then
        if ! command -v setpriv >/dev/null; then
            skip 'refused.a folder that cannot be written to' 'no setpriv'
            return
        fi
        as=(setpriv --reuid=65534 --clear-groups --inh-caps=-all)
        copy_patch 'x [y] {z}'           # that user need not see the folder of this one
    fi
    begin 'refused.a folder that cannot be written to'
    checkout tree
    [ ${#as[@]} = 0 ] || { chmod 755 "$dir"; chown -R 65534 "$dir/tree"; }
    chmod a-w "$dir/tree/llmc"
    state "$dir/tree" >"$dir/before"
    need 'no error' not "${as[@]}" "$patch" --no-run "$dir/tree" >"$dir/refused" 2>&1
    need "says: $(cat "$dir/refused")" has refused 'llmc/dataloader.h.*denied; nothing was changed'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/tree")
    chmod u+w "$dir/tree/llmc"
    end
}

# joined: standard input, where a line that ends in \ goes on after the blanks of the next one.
joined() { sed -e ':more' -e '/\\$/ { N; s/\\\n *//; b more' -e '}'; }
# Forks: a place that is no longer as expected. File | sed command | what the message has to say, in which
# $ADAMW stands for that variable.
forks() {
    local file edit pattern
    while IFS='|' read -r file edit pattern; do
        [ -n "$file" ] || continue
        pattern=${pattern//'$ADAMW'/$ADAMW}
        "${tree:-checkout}" "${version:-tree}"
        sed -i "$edit" "$dir/tree/$file"
        if git -C "$dir/tree" diff --quiet; then
            begin "fork.$edit"
            need 'changes nothing' false
            end
            continue
        fi
        commit "$dir/tree"
        refused "$file: $edit" "$pattern" "$dir/tree" "$@"
    done < <(joined)
}
test_forks() {
    forks <<'FORKS'
train_gpt2.c|s/"llmc.utils.h"/"llmc\/others.h"/|looked for #include "llmc/utils.h"
train_gpt2.c|s/} ParameterTensors;/} Parameters;/|looked for the struct ParameterTensors
train_gpt2.c|s/void fill_in_parameter_sizes/void sizes/|looked for the function fill_in_parameter_sizes
train_gpt2.c|s/    param_sizes\[5\] = C;//|fill_in_parameter_sizes.*looked for sizes 0 to 5
train_gpt2.c|s/    param_sizes\[5\] = C;/    param_sizes[6] = C;/|\
    fill_in_parameter_sizes.*looked for sizes 0 to 5
train_gpt2.c|s/    if (model->grads_memory != NULL) {/    {/|gpt2_zero_grad.*grads_memory != NULL
train_gpt2.c|s/&params->wte, &params->upw/\&params->upw, \&params->wte/|\
    order of the fields of ParameterTensors
train_gpt2.c|s/model->params_memory = malloc_and_point/model->params_memory = read_and_point/|\
    gpt2_build_from_checkpoint.*params_memory = malloc
train_gpt2.c|s/freadCheck(model->params_memory/freadAll(model->params_memory/|\
    gpt2_build_from_checkpoint.*freadCheck
train_gpt2.c|s/if (model->params_memory == NULL)/if (!model->params_memory)/|\
    gpt2_forward.*params_memory == NULL
train_gpt2.c|s/ParameterTensors params = model->params; \/\/.*/ParameterTensors *params = \&model->params;/|\
    gpt2_forward.*ParameterTensors params
train_gpt2.c|s/L = model->config.num_layers/L = layers(model)/|gpt2_forward.*num_layers
train_gpt2.c|s/for (int l = 0; l < L; l++) {/for (int n = 1; n <= L; n++) {/|\
    gpt2_forward.*looked for a loop over the layers
train_gpt2.c|s/for (int l = L-1; l >= 0; l--) {/for (int n = 0; n < (int)L; n++) {/|\
    gpt2_backward.*looked for a loop over the layers
train_gpt2.c|s/float\* l_upw = params.upw + l \* 2\*C \* C;/float* l_upw = layer(params.upw, l);/|\
    params.upw is used where
train_gpt2.c|s/float\* l_upb = params.upb + l \* 2\*C;/& x += 0;/|\
    looked for this on separate lines: float\* l_upw
train_gpt2.c|s/mix_forward(l_stream, l_hidden, x, l_upw/mix_forward(l_stream, l_hidden, x, params.upw + \
    l*2*C*C/|\
    params.upw is used where
train_gpt2.c|s/scale_forward(acts.scaled, last, params.gain/scale_forward(acts.scaled, last, params.downw/|\
    params.downw to be a tensor outside the layers
train_gpt2.c|s/model->mean_loss = loss;/set_loss(model, loss);/|gpt2_forward.*model->mean_loss
train_gpt2.c|s/model->grads_memory == NULL/!model->grads_memory/|gpt2_backward.*grads_memory == NULL
train_gpt2.c|s/void gpt2_update(/void adamw(/;s/gpt2_update(&/adamw(\&/|looked for the function gpt2_update
train_gpt2.c|s/float weight_decay, int t/float decay, int t/|a parameter weight_decay of gpt2_update
train_gpt2.c|s/free(model->params_memory);/;/|gpt2_free.*free\(model->params_memory\)
train_gpt2.c|s/B, T, 0, 1, 1);/B, T, rank, ranks, 1);/|rank 0 of 1
train_gpt2.c|s/dataloader_init(&train, "/dataloader_init(loaders, "/|dataloader_init.&LOADER, PATTERN
train_gpt2.c|s/num_tokens . (B\*T)/num_batches/|num_tokens
train_gpt2.c|s/^        gpt2_backward(&model);/        step_back(\&model);/|gpt2_backward follows gpt2_forward
train_gpt2.c|s/^        gpt2_zero_grad(&model);/&\n        clip(model.grads_memory);/|\
    grads_memory is used where
train_gpt2.c|s/^    freadCheck(model->params_memory.*/    fseek(file, 4, SEEK_CUR);\n&/|\
    "fseek.*SEEK_CUR.;" is not llm.c.s code
train_gpt2.c|s/params.upb + l . 2.C;/params.upb + l * 2*C + 1;/|gpt2_forward.*the start of the layer
train_gpt2.c|s/l < L; l++/l < L; l += 2/|gpt2_forward.*looked for a loop over the layers
train_gpt2.c|s/^        mix_forward(/        if (l == 1) { continue; }\n&/|continue leaves a layer
train_gpt2.c|s/^    free(model->params_memory);/    save(model->params_memory);\n&/|\
    params_memory is used where
llmc/dataloader.h|s/int process_rank, int num_processes,//|does not support ranks
llmc/dataloader.h|s/7 + process_rank/7/|dataloader_init.*manual_seed
Makefile|s/\$^/train_gpt2.c/|looked for the rule "train_gpt2: train_gpt2.c"
Makefile|s/^train_gpt2: train_gpt2.c/trainer: train_gpt2.c/|looked for the rule "train_gpt2: train_gpt2.c"
FORKS
    forks --cuda <<'FORKS'
train_gpt2.cu|s/"llmc.zero.cuh"/"llmc\/others.cuh"/|looked for #include "llmc/zero.cuh"
train_gpt2.cu|s/^cudaStream_t main_stream/cudaStream_t stream/|looked for cudaStream_t main_stream
train_gpt2.cu|s/i == 6) . weight_decay/i > 5) ? weight_decay/|numbers of tensors
train_gpt2.cu|s/model->grads_memory = malloc_and_point/model->grads_memory = get_and_point/|\
    gpt2_allocate_state.*grads_memory = malloc
train_gpt2.cu|s/size_t free, total;/size_t left;/|gpt2_allocate_state.*looked for size_t free, total
train_gpt2.cu|s/device_to_file(file, model->params_memory/all_to_file(file, model->params_memory/|\
    gpt2_write_to_checkpoint.*device_to_file
train_gpt2.cu|s/file_to_device(model->params_memory/file_to_all(model->params_memory/|\
    gpt2_build_from_checkpoint.*file_to_device
train_gpt2.cu|s/cudaMemcpy(model->params_memory/copy(model->params_memory/|\
    gpt_build_from_descriptor.*cudaMemcpy
train_gpt2.cu|s/acts.encoded, params.ln1w, params.ln1b/acts.encoded, params.lnfw, params.lnfb/|\
    then one of the first layernorm
train_gpt2.cu|s/if(l+1 != L) {/if(l < L - 1) {/|gpt2_forward.*looked for if .l . 1 != L
train_gpt2.cu|s/params.ln1w + (l + 1) \* C/layer(params.ln1w, l + 1)/|params.ln1w is used where
train_gpt2.cu|s/^    encoder_backward(grads.wte/    clip(grads.upw); encoder_backward(grads.wte/|\
    grads.upw to be a tensor outside the layers
train_gpt2.cu|s/multi_gpu_async_reduce_gradient(/reduce(/|\
    gpt2_backward_and_reduce.*multi_gpu_async_reduce_gradient
train_gpt2.cu|s/memset(model->m_memory/clear(model->m_memory/;s/void gpt2_update(/void adamw(/|\
    the function gpt2_update
train_gpt2.cu|s/float grad_scale, int t/float scale, int t/|a parameter grad_scale of gpt2_update
train_gpt2.cu|s/state_header\[1\] = 1;/state_header[3] = 1;/|save_state.*state_header
train_gpt2.cu|s/assert(state_header\[1\] == 1)/check(state_header)/|load_state.*looked for assert.state_header
train_gpt2.cu|s/    gpt2_write_to_checkpoint(model/    write_model(model/|\
    write_checkpoint.*gpt2_write_to_checkpoint
train_gpt2.cu|s/state_%08d_%05d/optimizer_%08d_%05d/|delete_checkpoint.*after the name of a state_ file
train_gpt2.cu|s/int grad_accum_steps = total/int steps = total/|main.*looked for int grad_accum_steps
train_gpt2.cu|s/int main(int argc, char \*argv..)/int main(int n, char **argv)/|a parameter argc of main
train_gpt2.cu|s/multi_gpu_cpu_float_sum/sum_of_floats/|looked for a call of multi_gpu_cpu_float_sum
train_gpt2.cu|s/multi_gpu_config.process_rank == 0 .. sample_every/sample_every/|main.*sample_every
train_gpt2.cu|s/> skip_update_[a-z]*)/> limit)/|main.*skip_update_
train_gpt2.cu|s/float grad_clip = 1.0f;/const double grad_clip = 1;/|main.*looked for float grad_clip
train_gpt2.cu|s/^        float grad_norm = .*/&\n        log(model.grads_memory);/|grads_memory is used where
train_gpt2.cu|s/gpt2_forward(&model, train_loader/forward(\&model, train_loader/|\
    one block in which gpt2_backward_and_reduce
Makefile|s/^train_gpt2cu: train_gpt2.cu/trainer: train_gpt2.cu/|\
    looked for the rule "train_gpt2cu: train_gpt2.cu"
FORKS
}

# Forks that train otherwise: another optimizer, or other steps. Their patched trainers would compile and run,
# with other losses.
ADAMW='is not llm.c.s code .nearest: tests/fake_llmc.. The plugin has only llm.c.s AdamW'
test_other_training() {
    forks <<'FORKS'
train_gpt2.c|s/(m \/ (sqrtf(v) + eps) + weight_decay/(g + weight_decay/|\
    train_gpt2.c:[0-9]+: in gpt2_update.., "model->params_memory.*$ADAMW
train_gpt2.c|s/sqrtf(v) + eps)/sqrtf(v + eps))/|\
    train_gpt2.c:[0-9]+: in gpt2_update.., "model->params_memory.*$ADAMW
train_gpt2.c|s/^        float g = model.*/&\n        if (g > 1.0f) { g = 1.0f; }/|\
    in gpt2_update.., "if .g > 1.0f. ." $ADAMW
train_gpt2.c|s/^    for (size_t i = 0; i < n; i++) {/    for (size_t i = model->param_sizes[0]; i < n; i++) \
    {/|\
    in gpt2_update.., "for .size_t i = model->param_sizes.0.; i < n; i... ." $ADAMW
train_gpt2.c|s/^        model->params_memory\[i\] -=.*/&\n        model->params_memory[i] *= 0.99f;/|\
    "model->params_memory.i. .= 0.99f;" $ADAMW
train_gpt2.c|/^        v .= 1.0f - powf/d|"model->params_memory.*$ADAMW
train_gpt2.c|/^        model->params_memory\[i\] -=/d|in gpt2_update.., "}" $ADAMW
train_gpt2.c|/^void gpt2_update/,/^}/s/\<g\>/eps/g|in gpt2_update.., "model->params_memory.*$ADAMW
train_gpt2.c|s/^        gpt2_forward(&model, train.*/&\n&/|\
    gpt2_forward is called a second time before gpt2_backward
train_gpt2.c|s/^        gpt2_backward(&model);/&\n&/|gpt2_backward is called a second time in main
train_gpt2.c|s/^        gpt2_update(.*/&\n&/|gpt2_update is called a second time in main
train_gpt2.c|s/^        gpt2_update(.*/        for (int i = 0; i < 2; i++) {\n&\n        }/|\
    gpt2_update is under a condition or in a separate loop
train_gpt2.c|s/^        gpt2_backward(.*/        for (int i = 0; i < 2; i++) gpt2_backward(\&model);/|\
    gpt2_backward is under a condition or in a separate loop
train_gpt2.c|s/^        gpt2_update(/        if (step % 2) gpt2_update(/|\
    gpt2_update is under a condition or in a separate loop
train_gpt2.c|s/^        gpt2_zero_grad(/        if (step % 2) gpt2_zero_grad(/|\
    gpt2_zero_grad is under a condition or in a separate loop
train_gpt2.c|/^        gpt2_zero_grad(/d|looked for a call of gpt2_zero_grad
train_gpt2.c|/^        gpt2_backward(&model);/{h;d};/^        gpt2_update(/G|\
    gpt2_update comes before gpt2_backward
train_gpt2.c|s/^        gpt2_update(/        if (model.mean_loss > 9.0f) { continue; }\n&/|\
    continue leaves the step between its forward pass and its update
train_gpt2.c|s/^int main/void warm_up(GPT2* model) { gpt2_update(model, 0, 0, 0, 0, 0, 1); }\n&/|\
    gpt2_update is called here too
train_gpt2.c|s/^        gpt2_update(/        clip_gradients(\&model, 1.0f);\n&/|\
    the model is passed to clip_gradients.., which this file does not define
train_gpt2.c|s/^        gpt2_update(/        void* all = \&model;\n&/|the model is used as a whole
train_gpt2.c|s/^        gpt2_update(/        printf("%f", model.grads_memory[0]);\n&/|\
    grads_memory is used where
FORKS
    forks --cuda <<'FORKS'
llmc/adamw.cuh|s/^        p -= .*/        p -= lr * g;/|llmc/adamw.cuh:[0-9]+: "p -= lr . g;" $ADAMW
llmc/adamw.cuh|s/powf(beta2, t))) + eps)/powf(beta2, t)) + eps))/|llmc/adamw.cuh:[0-9]+: "p -= lr .*$ADAMW
llmc/adamw.cuh|s/^        float g = .*/&\n        g = fminf(g, 1.0f);/|\
    llmc/adamw.cuh:[0-9]+: "g = fminf.g, 1.0f.;" $ADAMW
llmc/global_norm.cuh|s/\*out += .*/*out = fmaxf(*out, fabsf((float)x[s * stride + i]));/|\
    llmc/global_norm.cuh:[0-9]+: .*The plugin would clip by the norm of all gradients
llmc/zero.cuh|s/return value; }/return 2 * value; }/|\
    llmc/zero.cuh:[0-9]+: in multi_gpu_cpu_float_sum.., "return 2 . value;"
train_gpt2.cu|s/^        float wd = /        if (i == 0) { at += size; continue; }\n&/|\
    in gpt2_update.., "if .i == 0. ." $ADAMW
train_gpt2.cu|s/return sqrtf(squares);/return squares;/|\
    in gpt2_calculate_grad_norm.., "return squares;" is not llm.c.s code
train_gpt2.cu|s/grad_clip \/ grad_norm : 1.0f/grad_clip \/ (grad_norm + 1e-6f) : 1.0f/|\
    looked for float grad_scale = .grad_norm > grad_clip. . grad_clip / grad_norm : 1.0f
train_gpt2.cu|s/^        float grad_norm = .*/&\n        grad_norm *= 0.5f;/|\
    grad_norm is changed after gpt2_calculate_grad_norm
train_gpt2.cu|s/^            gpt2_update(/            grad_scale *= 0.5f;\n&/|\
    looked for between the norm and the update only
train_gpt2.cu|s/^            float grad_clip = /        }\n        if (step % 2) {\n&/|\
    looked for between the norm and the update only
train_gpt2.cu|s/^            gpt2_backward_and_reduce(.*/&\n&/|\
    gpt2_backward_and_reduce is called a second time in main
train_gpt2.cu|s/^            gpt2_forward(&model, train_loader.*/&\n&/|\
    gpt2_forward is called a second time before gpt2_backward_and_reduce
train_gpt2.cu|s/^            gpt2_update(.*/&\n&/|gpt2_update is called a second time in main
train_gpt2.cu|s/^            gpt2_backward_and_reduce(/            if (micro_step > 0) \
    gpt2_backward_and_reduce(/|\
    gpt2_backward_and_reduce is under a condition
train_gpt2.cu|s/micro_step < grad_accum_steps; micro_step++/micro_step < grad_accum_steps; micro_step += 2/|\
    looked for a loop over the micro-batches
train_gpt2.cu|s/grad_accum_steps, micro_step);/grad_accum_steps, 0);/|the loop's numbers
train_gpt2.cu|s/^        float grad_norm = /        for (int i = 0; i < 2; i++) \
    gpt2_calculate_grad_norm(\&model, \&multi_gpu_config);\n&/|\
    gpt2_calculate_grad_norm is called a second time
train_gpt2.cu|s/    if (micro_step == 0) {/    if (micro_step >= 0) {/|looked for if .micro_step == 0.
train_gpt2.cu|s/{ dl_ln1w, dl_ln1b, dl_upw,/{ dl_ln1w, dl_ln1b,/|\
    looked for all gradients, and each once, in pointers
train_gpt2.cu|s/^            multi_gpu_async_reduce_gradient(/            scale(dl_upw);\n&/|\
    looked for only sizes, and multi_gpu_async_reduce_gradient
train_gpt2.cu|s/^    cudaCheck(cudaStreamDestroy/#ifdef MULTI_GPU\n    synchronize();\n#endif\n&/|\
    #ifdef MULTI_GPU" is not llm.c's code .* It is not compiled with the plugin
train_gpt2.cu|s/^    device_to_file(state_file, model->v_memory.*/&\n    fwriteCheck(\&step, sizeof(int), 1, \
    state_file);/|\
    in save_state.., "fwriteCheck.*and nothing else would be done
train_gpt2.cu|s/^    file_to_device(model->v_memory.*/&\n    freadCheck(step, sizeof(int), 1, state_file);/|\
    in load_state.., "freadCheck.*and nothing else would be done
train_gpt2.cu|s/^        gpt2_write_to_checkpoint(model/        write_log(step);\n&/|\
    in write_checkpoint.., "write_log.step.;".*All ranks would run this block
train_gpt2.cu|s/^            safe_printf("sample:");/&\n            fprintf(stderr, "sample\\n");/|\
    fprintf.. in the block that samples
train_gpt2.cu|s/^        float grad_norm = /        clip_gradients(\&model);\n&/|\
    the model is passed to clip_gradients.., which this file does not define
FORKS
}

# Forks that train as llm.c does.
test_same_training() {
    local file edit
    while IFS='|' read -r file edit; do
        begin "same.$edit"
        checkout tree
        sed -i "$edit" "$dir/tree/$file"
        need 'changes nothing' not git -C "$dir/tree" diff --quiet
        commit "$dir/tree"
        "$patch" --no-run "$dir/tree" --cuda >/dev/null 2>"$dir/refused"; local status=$?
        need "$(cat "$dir/refused")" [ $status = 0 ]
        end
    done < <(joined <<'FORKS'
train_gpt2.c|s/^        float g = .*/        \/\/ the gradient\n\n        float\n            g = \
    model->grads_memory [i] ; \/* of i *\//
train_gpt2.c|/^void gpt2_update/,/^}/s/\<g\>/slope/g
train_gpt2.c|/^void gpt2_update/,/^}/{s/\<m\>/first/g;s/\<v\>/second/g;s/\<n\>/count/g}
train_gpt2.c|s/^        gpt2_update(&model, 1e-2f/        float rate = step < 3 ? 1e-3f : 1e-2f;\n        \
    printf("loss %f\\n", model.mean_loss);\n        gpt2_update(\&model, rate/
train_gpt2.c|s/^        gpt2_forward(&model, train/        gpt2_zero_grad(\&model);\n&/;/^        \
    gpt2_zero_grad(&model);$/d
train_gpt2.c|s/l < L; l++/l < L; ++l/
llmc/adamw.cuh|s/\<g\>/slope/g;s/^        m.at. = /        \/\/ the first moment\n&/
train_gpt2.cu|s/float grad_clip = 1.0f;/float grad_clip = 0.5f; \/\/ less/
train_gpt2.cu|s/(i == 0 || i == 1 || i == 4 || i == 6)/(i == 0 || i == 4 || i == 6)/
FORKS
    )
}

# LLMC=folder of a clone of llm.c: versions of its own trainers are patched, and its own update, changed, is
# refused.
test_llmc_versions() {
    local commit
    if ! git -C "${LLMC:-/none}" rev-parse -q --verify f1e2ace >/dev/null 2>&1; then
        skip llmc.versions 'no LLMC=folder of a clone of llm.c'
        return
    fi
    for commit in cc4bed0 ff14b08 4d77ece \
        'a794bcb --cuda' '0d52d2a --cuda' 'e6856bc --cuda' 'f1e2ace --cuda'; do
        begin "llmc.version $commit"
        llmc_version "${commit%% *}"
        # shellcheck disable=SC2086
        "$patch" --no-run "$dir/tree" ${commit#"${commit%% *}"} >/dev/null 2>"$dir/refused"; local status=$?
        need "$(cat "$dir/refused")" [ $status = 0 ]
        end
    done
    tree=llmc_version version=f1e2ace forks --cuda <<'FORKS'
train_gpt2.c|s/(m_hat \/ (sqrtf(v_hat) + eps) + weight_decay \* param)/grad/|\
    train_gpt2.c:[0-9]+: in gpt2_update.., .*llm.c's code .nearest: cc4bed0, 2024-06-01.. The plugin has \
    only
train_gpt2.c|s/sqrtf(v_hat) + eps)/sqrtf(v_hat + eps))/|\
    train_gpt2.c:[0-9]+: in gpt2_update.., .*llm.c's code
llmc/adamw.cuh|s/sqrtf(v) + eps)/sqrtf(v + eps))/|\
    llmc/adamw.cuh:[0-9]+: "float param = .*llm.c's code .nearest: a794bcb, 2024-07-28
llmc/adamw.cuh|s/return fma(weight, end, fma(-weight, start, start));/return start;/|\
    llmc/adamw.cuh:[0-9]+: "return start;" is not llm.c's code
llmc/global_norm.cuh|s/accumulator += .*/accumulator += fabsf((float)data[i]);/|\
    llmc/global_norm.cuh:[0-9]+: .*The plugin would clip by the norm of all gradients
train_gpt2.cu|s/^        if (init_from_master_only) {/        if (i == 0) { continue; }\n&/|\
    in gpt2_update.., "if .i == 0. ." is not llm.c's code
train_gpt2.cu|s/i > 13))/i > 12))/|looked for the numbers of the tensors outside the layers
FORKS
}
# A fresh clone at a commit, in the place of the stand-in's checkout.
llmc_version() {
    rm -rf "${dir:?}/tree"
    git clone -q "$LLMC" "$dir/tree" && git -C "$dir/tree" checkout -q "$1"
}

if ! command -v git >/dev/null || ! command -v perl >/dev/null; then
    skip patch 'no git or no perl'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
# Parts may be run alone: scripts/check.sh runs llmc.
if [ $# -gt 0 ]; then
    for part; do "test_$part"; done
    finish patch
    exit
fi
test_patch
test_proof
test_cuda_patch
test_cuda_training
test_cuda_checkpoints
test_cuda_failures
test_cuda_same
test_llmc
test_training
test_failures
test_memory
test_trees
test_odd_folder
test_half_done
test_unwritable
test_forks
test_other_training
test_same_training
test_llmc_versions
finish patch
