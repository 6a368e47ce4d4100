#!/usr/bin/env bash
# Tests scripts/patch_llmc on a stand-in for llm.c (tests/fake_llmc): the edits, the patched trainers, and the
# refusals. Usage: tests/test_patch.sh [PART]...      each PART is a function test_PART below
set -u
cd "$(dirname "$0")/.." || exit 1
patch=$PWD/scripts/patch_llmc fake=$PWD/tests/fake_llmc
. scripts/mpi_env.sh
export OMP_NUM_THREADS=1
# Keeps the user's git settings, for example commit signing, out of the tests.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
unset ZERO_STAGE ZERO_CONFIG ZERO_POISON ZERO_CHECK MAKEFLAGS MAKELEVEL
export ZERO_OPT=-O1             # as the proof's, so that ccache compiles the plugin once

. tests/cases.sh
# Most of the trainers here compile the same plugin, which ccache, if it is installed, compiles once.
[ ! -d /usr/lib/ccache ] || export PATH=/usr/lib/ccache:$PATH CCACHE_DIR=$dir/ccache

# copy_patch FOLDER: copies the script and the files that it installs to $dir/FOLDER; sets patch to the copy.
copy_patch() {
    mkdir -p "$dir/$1/scripts"
    cp -R llmc_zero LICENSE "$dir/$1" && cp -R "$patch" "$patch.d" "$dir/$1/scripts"
    patch=$dir/$1/scripts/patch_llmc
}
# Writes a model with 16 positions, 64 tokens, 3 layers of 8 channels, and data to the folder.
make_inputs() {
    perl -e 'srand(42); chdir(shift) or die; open(my $model, ">", "tiny_model.bin") or die;
        print $model pack("l256 f*", 20240326, 3, 16, 64, 3, 1, 8, (0) x 249, map { rand() - 0.5 } 1 .. 4096);
        open(my $data, ">", "tiny_tokens.bin") or die;
        print $data pack("l256 S*", 20240520, 1, 4096, (0) x 253,
            map { ($_ * $_ / 3 + (rand() < 0.1)) % 7 } 1 .. 4096);' "$1"
}
commit() { git -C "$1" -c user.name=test -c user.email=test@localhost commit -qam test; }
# checkout NAME: makes a fresh, committed stand-in in $dir/NAME
checkout() {
    rm -rf "${dir:?}/$1"
    if [ ! -d "$dir/committed" ]; then
        mkdir "$dir/committed" && cp -R "$fake/." "$dir/committed" && make_inputs "$dir/committed" || return
        git -C "$dir/committed" init -q --template= && git -C "$dir/committed" add . &&
            commit "$dir/committed" || return
    fi
    cp -a "$dir/committed" "$dir/$1"
}
# Prints the modes and checksums of all files and folders except .git.
state() { (cd "$1" && find . -path ./.git -prune -o -printf '%p %m\n' -type f -exec sha256sum {} + | sort); }
unchanged() { need 'the tree changed' cmp -s "$dir/before" <(state "$dir/$1"); }      # since $dir/before
build() {
    (cd "$dir/$1" && shift && make --no-print-directory "$@") >"$dir/make" 2>&1 && return
    tail -n 5 "$dir/make"
    return 1
}

# ---- the edits

# preprocessed FOLDER FILE [FLAG]...: prints the preprocessed file, without the line numbers that assert()
# would insert
preprocessed() { (cd "$dir/$1" && c++ -w -D__LINE__=0 -E -P "${@:3}" -x c++ "$2"); }
# edits LABEL ORIGINAL FOLDER PLACES FILES [OPTION]: patches a checkout FOLDER with OPTION, and compares it
# with an unpatched checkout ORIGINAL. Checks that FILES are edited in at least PLACES places.
edits() {
    local label=$1 original=$2 folder=$3 places=$4 files=$5 options=("${@:6}") file line flags
    begin "$label.dry run prints a diff and changes nothing"
    checkout "$original" && state "$dir/$original" >"$dir/before"
    need 'failed' "$patch" --no-run "${options[@]}" "$dir/$original" --dry-run >"$dir/diff" 2>"$dir/places"
    unchanged "$original"
    need 'git cannot apply the diff' git -C "$dir/$original" apply "$dir/diff"
    end

    begin "$label.the edits equal the dry run, and the report has the file and line of each"
    checkout "$folder"
    need 'failed' "$patch" --no-run "${options[@]}" "$dir/$folder" >"$dir/report"
    for file in $files; do
        need "$file differs from the dry run" cmp -s "$dir/$original/$file" "$dir/$folder/$file"
    done
    sed -i '/^llmc_zero\/: /d' "$dir/places" "$dir/report"
    need "the report differs from the dry run's" cmp -s "$dir/places" "$dir/report"
    while IFS=: read -r file line _; do
        need "$file:$line is not an edit" grep -qE '^#(ifn?def LLMC_ZERO| ZeRO)' \
            <(sed -n "$line{/./p};$((line + 1))p" "$dir/$folder/$file")
    done <"$dir/places"
    need "only $(wc -l <"$dir/places") edits" [ "$(wc -l <"$dir/places")" -ge "$places" ]
    mkdir -p "$dir/plugin" && cp -R llmc_zero/. "$patch.d/llmc_zero/." LICENSE "$dir/plugin"
    need 'the plugin is incomplete' diff -rq "$dir/plugin" "$dir/$folder/llmc_zero"
    end

    begin "$label.without LLMC_ZERO the code equals the original"
    git -C "$dir/$original" checkout -q .
    for file in $files test_gpt2.c; do
        [ "$file" = Makefile ] ||
            need "$file differs" cmp -s <(preprocessed "$original" "$file") <(preprocessed "$folder" "$file")
    done
    file=${files%% *}
    read -ra flags <<<"-DLLMC_ZERO -isystem $PWD $(mpicc --showme:compile)"
    need 'it equals the original with LLMC_ZERO too' not cmp -s <(preprocessed "$original" "$file") \
        <(preprocessed "$folder" "$file" "${flags[@]}")
    end

}

test_patch() {
    edits patch plain patched 25 'train_gpt2.c llmc/dataloader.h Makefile'
    begin 'patch.calls that begin passes; train_gpt2.cu is not edited without --cuda'
    need 'not one training pass' \
        [ "$(grep -c '    z_begin_train(0, 1, train.inputs' "$dir/patched/train_gpt2.c")" = 1 ]
    need 'train_gpt2.cu changed' cmp -s "$fake/train_gpt2.cu" "$dir/patched/train_gpt2.cu"
    end

    begin 'patch.make train_gpt2 builds with the plugin, the other programs as before'
    need 'the original does not build' build plain train_gpt2
    need 'does not build' build patched train_gpt2
    need 'CFLAGS on the command line remove -DLLMC_ZERO' grep -q -- '-O2 -DLLMC_ZERO' \
        <(make -C "$dir/patched" -nB train_gpt2 CFLAGS=-O2)
    need 'test_gpt2 has the plugin' not grep -q LLMC_ZERO <(make -C "$dir/patched" -nB test_gpt2)
    end
}

# ---- the proof

# proof NAME FILE|EDIT|STATUS|PATTERN [OPTION]: tests the script's result after EDIT of the fake llm.c
proof() {
    local file edit expected pattern status
    IFS='|' read -r file edit expected pattern <<<"$2"
    begin "proof.$1"
    checkout tree
    sed -i "$edit" "$dir/tree/$file" && { git -C "$dir/tree" diff --quiet || commit "$dir/tree"; }
    state "$dir/tree" >"$dir/before"
    "$patch" "$dir/tree" --seconds 400 "${@:3}" >"$dir/proof" 2>&1; status=$?
    need "status $status" [ $status = "$expected" ]
    has "$dir/proof" "$pattern"
    if [ $status = 0 ]; then
        need 'not patched' grep -q LLMC_ZERO "$dir/tree/train_gpt2.c"
    else
        unchanged tree
    fi
    end
}
test_proof() {
    local stage='*(getenv("ZERO_STAGE") ?: "0") + *(getenv("OMPI_COMM_WORLD_SIZE") ?: "0")'
    local end='    dataloader_free(&train);' open='FILE *f = fopen("log", "w")' plain='!getenv("ZERO_STAGE")'
    local print='fprintf(f, "loss %f, %d", model.mean_loss, getpid())'
    local agree='8 losses agree to 2e-06 on 1, 2, 4 ranks, and the files log; .*digest'
    agree+=' ([0-9a-f]{16}[, ]+){3}at both stages'
    local empty='stage 0, 2 ranks: writes an empty log .1 bytes by the original, 0 by'
    proof 'equal losses, digests and files, one with a time: patched' \
        "train_gpt2.c|s/^$end/    $open; $print; fclose(f);\n&/|0|$agree"
    begin 'proof.the table of losses'
    has "$dir/proof" '^ +8( +[0-9.]+){3}$'
    end
    # All of these edits compile without the plugin.
    proof 'another use of a tensor in the loop over the layers, with the line of the fork' \
        'train_gpt2.c|s/^        add(l_stream/        if (params.upb == 0) { exit(1); }\n&/|1|'\
'train_gpt2.c:156:.*error: request for member .upb. in something'
    proof 'a loader that gives all ranks the same rows' \
        'llmc/dataloader.h|s/ + loader->process_rank) \* BT/) * BT/|1|rank 1 .* has the same batch as rank 0'
    proof 'a different optimizer' \
        'train_gpt2.c|s/^void gpt2_update/#define sqrtf(x) (x)\n&/|1|the losses differ from number 3'
    proof 'a learning rate that depends on the stage, on 4 ranks' \
        "train_gpt2.c|s/1e-2f,/(103 == $stage ? 1.000002e-2f : 1e-2f),/|1|digests .*differ: stage 0, 4 ranks"
    proof 'an original that fails' \
        'train_gpt2.c|s/^    GPT2 model;/    exit(7);\n&/|1|original: fails with status 7'
    proof 'an empty file' \
        "train_gpt2.c|s/^$end/    $open; if ($plain) { fputs(\"1\", f); } fclose(f);\n&/|1|$empty"
    proof 'a file that is not written' \
        "train_gpt2.c|s/^$end/    if ($plain) { $open; fclose(f); }\n&/|1|does not write log"
    proof 'an endless trainer' \
        "train_gpt2.c|s/^$end/    pause();\n&/|1|after 30 seconds; --seconds N allows more" --seconds 30
}

# A pair of trees, also of other trainers.
test_prove() {
    begin 'prove.a pair of trees'
    checkout tree
    sed -i 's/< 6; step++/< 600; step++/;s/1e-2f,/1e-4f,/' "$dir/tree/train_gpt2.c"
    commit "$dir/tree" && cp -a "$dir/tree" "$dir/pair"
    need 'not patched' "$patch" --no-run "$dir/tree" >"$dir/report"
    need "failed" eval '"$patch" --prove "$dir/pair" "$dir/tree" --seconds 400 >"$dir/proof" 2>&1'
    has "$dir/proof" '54 losses agree .* on 1, 2, 4 ranks'
    end
    begin 'prove.--build, --run, --losses and --inputs'
    mkdir "$dir/inputs" && make_inputs "$dir/inputs" && rm "$dir"/{tree,pair}/tiny_model.bin
    truncate -s 2M "$dir/inputs/tiny_model.bin"
    sed -i 's/int B = 4/int B = atoi(getenv("ROWS_OF"))/;s/printf("step %d: train loss/printf("%d has/
        s/printf("val loss/printf("val/;s/< 600;/< 6;/' "$dir"/{tree,pair}/train_gpt2.c
    need "failed" eval '"$patch" --prove "$dir/pair" "$dir/tree" --inputs "$dir/inputs" --seconds 400 \
        --build "make train_gpt2 ZERO_OPT=-O1" --run "ROWS_OF=ROWS ./train_gpt2" --losses "(?:has|val) (.*)" \
        >"$dir/proof" 2>&1'
    has "$dir/proof" '8 losses agree .* on 1, 2, 4 ranks'
    end
    begin 'prove.a tree that is not patched'
    need 'it was accepted' not "$patch" --prove "$dir/pair" "$dir/inputs" >"$dir/proof" 2>&1
    has "$dir/proof" 'has no train_gpt2.c: give --build, --run and --losses'
    end
}

# ---- the patched trainers

# Prints a run's losses, norms and sampled tokens, one per line.
numbers() {
    sed -nE 's/ norm/ /; s/^(val loss|step [0-9]+: train loss|sample:) *//p' "$dir/$1" | tr -s ' ' '\n'
}
# same NAME NAME LIMIT: checks that losses, norms and samples of two runs agree within LIMIT
same() {
    local most
    most=$(paste <(numbers "$1") <(numbers "$2") |
        awk 'NF != 2 { bad = 1 }
            { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d }
            END { print (bad || NR < 15) ? 99 : most + 0 }')
    need "$1 and $2 differ by $most" number "$most < $3"
}
# run TRAINER NP NAME [VARIABLE=VALUE]... [OPTION VALUE]...: runs a patched trainer, plain or cuda, on NP
# ranks (0: without mpirun), with its output in NAME. With ASTRAY=yes rank 1 runs in the folder astray. MORE
# holds extra options for rank 1.
run() {
    local np=$2 out=$3 launcher=() set=() folder=patched program=train_gpt2
    [ "$1" = plain ] || folder=cuda program=train_gpt2cu
    shift 3
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe -np "$np")
    while [[ ${1:-} = *=* ]]; do set+=("$1"); shift; done
    # shellcheck disable=SC2016
    (cd "$dir/$folder" && env "${set[@]}" timeout -k 2 $hang_limit "${launcher[@]}" bash -c '
        set -f; program=$1 rank=${OMPI_COMM_WORLD_RANK:-0}; shift
        [ "$rank" != 1 ] || set -- "$@" ${MORE:-}
        [ "$rank${ASTRAY:-}" != 1yes ] || cd ../astray || exit
        exec ./$program "$@"' trainer $program "$@") >"$dir/$out" 2>&1 </dev/null
}
plain() { run plain "$@" || { tail -n 5 "$dir/$2"; return 1; }; }
cuda() { run cuda "$1" "$2" ZERO_POISON=1 "${@:3}"; }
digest() { sed -n 's/^params_hash //p' "$dir/$1"; }
same_digest() { is "digest of $1" "$(digest "$1")" "${2:-none}"; }                      # NAME DIGEST

# fails TRAINER NAME PATTERN NP [VARIABLE=VALUE]... [OPTION VALUE]...: checks that the trainer fails in time
# and prints the message, at most TIMES (1) times.
fails() {
    local status
    begin "$1.fails.$2"
    run "$1" "$4" told "${@:5}"; status=$?
    need "status $status" [ $status != 0 -a $status -lt 124 ]
    has "$dir/told" "$3"
    need "printed $(grep -cE -- "$3" "$dir/told") times" \
        [ "$(grep -cE -- "$3" "$dir/told")" -le "${TIMES:-1}" ]
    end
}
# differs TRAINER NAME LINE OTHER [VARIABLE=VALUE]... [OPTION VALUE]...: checks that the trainer, on 3 ranks,
# reports that rank 1 has LINE and rank 0 has OTHER
differs() {
    fails "$1" "on rank 1, $2" "^rank 1 .host [^)]*. has $3 and rank 0 .host [^)]*. has $4" 3 "${@:5}"
}

# The CUDA stand-in computes on the CPU, so the plugin must too, and its Makefile must not ask for nvcc.
on_the_cpu() {
    sed -i 's/z_config.device = ZERO_CUDA;/z_config.device = ZERO_CPU;/' "$dir/cuda/llmc_zero/train_gpt2cu.h"
    sed -i 's/ ZERO_CUDA=yes / ZERO_CUDA=no /' "$dir/cuda/llmc_zero/train_gpt2cu.mk"
}
test_cuda_patch() {
    edits cuda original cuda 80 'train_gpt2.cu train_gpt2.c llmc/dataloader.h Makefile' --cuda
    begin 'cuda.edits: the other trainer, checkpoints, weight decay'
    need 'train_gpt2.c is edited differently' cmp -s "$dir/patched/train_gpt2.c" "$dir/cuda/train_gpt2.c"
    need 'every rank writes the model file' \
        grep -q 'process_rank == 0 ? path : "/dev/null"' "$dir/cuda/train_gpt2.cu"
    need "weight decay differs from the update's" [ "$(echo $(
        sed -nE 's/"([a-z0-9]+)", Z_[A-Z]+, 1/\n:\1\n/gp' "$dir/cuda/train_gpt2.cu" | grep '^:'
    ))" = ':wte :wpe :upw :downw' ]
    end
    begin 'cuda.make, with the flags of a build for NCCL'
    on_the_cpu
    # Without CUDA its plugin equals that of the other trainer, so the objects can be reused.
    mkdir -p "$dir/cuda/build" && cp -R "$dir/patched/build" "$dir/cuda/build/cuda"
    need 'the original does not build' build original train_gpt2cu
    need 'fp16 builds' not build cuda train_gpt2cu PFLAGS=-DENABLE_FP16 >/dev/null
    has "$dir/make" 'PRECISION=FP16: this trainer has no loss scale'
    need 'does not build' build cuda train_gpt2cu PFLAGS=-DMULTI_GPU
    end
}

test_cuda_training() {
    local stage option first= how port rank1 options
    (cd "$dir/original" && ./train_gpt2cu -d 128) >"$dir/cuda.plain" 2>&1
    begin 'cuda.train.one rank without mpirun'
    need 'failed' cuda 0 cuda.1 -d 128
    same cuda.plain cuda.1 1e-4
    need 'it prints a note about shared GPUs' not grep -q '^note: ' "$dir/cuda.1"
    end
    for stage in 0 1 2 3; do
        begin "cuda.train.stage $stage, half the rows on each of 2 ranks, 2 micro-batches"
        need 'failed' cuda 2 "cuda.$stage" -b 2 -d 128 -z $stage
        same cuda.plain "cuda.$stage" 1e-4
        has "$dir/cuda.$stage" "^ZeRO stage $stage on 2 ranks by mpi, shared window" \
            "^note: 2 ranks on rank 0's machine, which has 1 visible GPUs; "
        need 'not each line once' [ "$(grep -cE '^(step 3|sample:)' "$dir/cuda.$stage")" = 4 ]
        # with several micro-batches, stages 2 and 3 sum in another order
        if [ $stage = 0 ] || [ $stage = 2 ]; then first=$(digest "cuda.$stage"); fi
        same_digest "cuda.$stage" "$first"
        end
    done
    begin 'cuda.train.skipped steps'
    for option in '-sl 4' '-sg 4'; do
        # shellcheck disable=SC2086
        (cd "$dir/original" && ./train_gpt2cu -d 128 $option) >"$dir/cuda.plain" 2>&1
        # shellcheck disable=SC2086
        need "failed with $option" cuda 2 cuda.skip -b 2 -d 128 -z 3 $option
        same cuda.plain cuda.skip 1e-4
        need "$option: not exactly one skipped step" [ "$(grep -c '^skipping' "$dir/cuda.skip")" = 1 ]
    done
    end
}

# Wrong steps in a patched trainer, which the plugin or the compiler refuses. They are all in one trainer, and
# the variable WRONG selects a step. Reads lines ANCHOR|CODE before it|MESSAGE.
test_cuda_steps() {
    local anchor code message number=1 messages=('' 'ln1b [+] 9: is not the start of a layer')
    begin 'cuda.steps: the trainer compiles'
    checkout tree
    need 'not patched' "$patch" --no-run --cuda "$dir/tree" >"$dir/report"
    sed -i 's/^cudaStream_t main_stream;/static int wrong = getenv("WRONG") ? atoi(getenv("WRONG")) : 0;\n&/
        s/z_param(Z_LN1B, (l + 1) \* C/& + (wrong == 1)/
        s/^        float zloss = /#ifdef WRONG\n        log(model.grads_memory);\n#endif\n&/' \
        "$dir/tree/train_gpt2.cu"
    while IFS='|' read -r anchor code message; do
        messages[++number]=$message
        sed -i "s/^ *$anchor/if (wrong == $number) { $code }\n&/" "$dir/tree/train_gpt2.cu"
    done < <(joined <<'STEPS'
float zloss = |grad_norm *= 0.5f;|\
    clipping their norm 1[.0-9]* to 1 gives 0[.0-9]*: the plugin has no other clipping
float zloss = |continue;|micro-batch 0 would discard the gradients of a complete step
dataloader_next_batch(&train|if (micro_step == 1) { break; }|after micro-batch 1 of 2; the others have not run
gpt2_backward_and_reduce(&model|continue;|.embedding. has finished 0 of its 2 backward uses
gpt2_backward_and_reduce(&model|\
    gpt2_backward_and_reduce(\&model, train_loader.inputs, train_loader.targets, 2, micro_step);|\
    has had all its 2 backward uses
for (int micro_step |gpt2_calculate_grad_norm(\&model, \&multi_gpu_config);|no training pass has run since
gpt2_update(&model|\
    gpt2_update(\&model, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step+1, \&multi_gpu_config);|\
    zero_finish_gradients comes first
STEPS
    )
    cp "$dir/cuda/train_gpt2cu" "$dir/correct" && cp "$dir/tree/train_gpt2.cu" "$dir/cuda"
    on_the_cpu
    need 'it compiles with a use of the gradients' not build cuda train_gpt2cu PFLAGS=-DWRONG >/dev/null
    has "$dir/make" 'no member named .grads_memory'
    need 'does not build' build cuda train_gpt2cu
    end
    while [ $number -gt 0 ]; do
        fails cuda "wrong step $number" "${messages[number]}" 2 WRONG=$number -b 2 -d 128 -z 3
        number=$((number - 1))
    done
    mv "$dir/correct" "$dir/cuda/train_gpt2cu"
}

test_cuda_checkpoints() {
    local files file values zero=$dir/cuda/log/state_00000006.zero
    begin 'cuda.checkpoint.resumed at another stage'
    mkdir "$dir/cuda/log" "$dir/original/log"
    need 'failed' cuda 2 cuda.whole -b 2 -d 128 -z 2 -x 9 -n 2 -o log
    files=$(cd "$dir/cuda/log" && echo *)
    is files "$files" "$(echo DONE_0000000{2,4,6,8} model_0000000{6,8}.bin state_00000006.zero \
        state_00000006_0000{0,1}.bin state_00000008.zero state_00000008_0000{0,1}.bin)"
    need 'failed to resume' cuda 2 cuda.resumed -b 2 -d 128 -z 3 -x 9 -y 6 -o log
    same_digest cuda.resumed "$(digest cuda.whole)"
    need 'it did not resume at step 6' [ "$(grep -c '^step' "$dir/cuda.resumed")" = 3 ]
    end
    begin 'cuda.checkpoint.the original and the patched trainer read the model file'
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
    fails cuda 'a state file of the original' 'state_00000002_00000.bin: not written with ZeRO' \
        0 -x 4 -y 2 -o log
    fails cuda 'a state file of 2 ranks' 'saved by 2 ranks; resume with mpirun -np 2' \
        0 -x 9 -y 6 -o log
    rm -r "$zero" && cp -r "$dir/cuda/log/state_00000008.zero" "$zero"
    fails cuda 'files of two checkpoints' 'was saved at step 6, .*zero at step 8' 2 -b 2 -x 9 -y 6 -o log
    rm "$zero"/rank00001*
    fails cuda 'a missing file' 'state_00000006.zero/rank00001' 2 -b 2 -x 9 -y 6 -o log
}

test_cuda_failures() {
    fails cuda 'a start by TCP' \
        '-pi tcp: Open MPI connects the ranks: start them with mpirun -np N, .*sbatch job' \
        0 -pi tcp -ps 127.0.0.1 -pn 2 -pr 0
    fails cuda 'a number of ranks that was not started' \
        '-pn 3: this is one of 2 ranks; start with mpirun -np 3' 2 -pn 3
    fails cuda 'two stages' '-z 1, but ZERO_STAGE or ZERO_CONFIG asks for stage 2' 0 ZERO_STAGE=2 -z 1
    echo '{ "bf16": { "enabled": true } }' >"$dir/config.json"
    fails cuda 'a different precision' 'this program was built with another PRECISION' \
        0 ZERO_CONFIG="$dir/config.json"
    echo '{ "gradient_accumulation_steps": 3 }' >"$dir/config.json"
    fails cuda 'a different number of micro-batches' 'steps 3, but -d, -b and -t make it 2' \
        0 ZERO_CONFIG="$dir/config.json" -d 128
}

test_cuda_same() {
    local tokens='loader, file 0 = tiny_tokens.bin,' folder
    for folder in copy other; do
        mkdir "$dir/cuda/$folder" && cp "$dir/cuda/tiny_tokens.bin" "$dir/cuda/$folder"
    done
    differs cuda 'the batch' '-b = 4' '-b = 2' MORE='-b 4' -b 2
    differs cuda 'one more option' '-sl = 4' 'no -sl' MORE='-sl 4'
    begin 'cuda.same.the order of options and different paths do not matter'
    need 'failed' cuda 2 cuda.own MORE='-d 128 -b 2 -i copy/tiny_tokens.bin -pg 2' -b 2 -z 3 -d 128
    same_digest cuda.own "$(digest cuda.3)"
    end
    printf x | dd of="$dir/cuda/other/tiny_tokens.bin" bs=1 seek=3000 conv=notrunc status=none
    differs cuda 'the training data' "train_$tokens .*" "train_$tokens .*" MORE='-i other/tiny_tokens.bin'
    differs cuda 'the validation data' "val_$tokens .*" "val_$tokens .*" MORE='-j other/tiny_tokens.bin'
    differs cuda 'the number of data files' 'train_loader = .* 2 data files' \
        'train_loader = .* 1 data files' MORE='-i [oc]*/tiny_tokens.bin'
    differs cuda 'the model file' 'parameters = digest .*' 'parameters = digest .*' \
        MORE='-e log/model_00000008.bin' -e log/model_00000006.bin
}

# The stand-in's loader shuffles, and its order must not depend on the number of ranks. test_proof compares
# the digests of two stages.
test_training() {
    (cd "$dir/plain" && ./train_gpt2) >"$dir/one" 2>&1
    begin 'train.one rank without mpirun'
    need 'failed' plain 0 zero.1
    same one zero.1 1e-5
    end
    sed -i 's/int B = 4;/int B = 2;/' "$dir/patched/train_gpt2.c"
    need 'does not build' build patched train_gpt2
    begin 'train.half the rows on each of 2 ranks: stage 3, or that of a settings file'
    need 'failed' plain 2 default ZERO_POISON=1
    same one default 1e-4
    has "$dir/default" '^ZeRO stage 3 on 2 ranks by mpi, shared window'
    need 'not each line once' [ "$(grep -c 'step 3: train loss' "$dir/default")" = 1 ]
    echo '{ "zero_optimization": { "stage": 1 } }' >"$dir/config.json"
    need 'failed with a file' plain 2 file ZERO_CONFIG="$dir/config.json"
    has "$dir/file" '^ZeRO stage 1'
    end
}

test_failures() {
    local file model=$dir/patched/tiny_model.bin
    fails plain 'an unknown stage' 'ZERO_STAGE=7' 2 ZERO_STAGE=7
    echo '{ "bf16": { "enabled": true } }' >"$dir/config.json"
    fails plain 'bf16, which the trainer lacks' 'fp32' 2 ZERO_CONFIG="$dir/config.json"
    echo '{ "gradient_accumulation_steps": 2 }' >"$dir/config.json"
    fails plain 'accumulation, which the trainer lacks' 'gradient_accumulation_steps 1' \
        2 ZERO_CONFIG="$dir/config.json"
    cp "$model" "$dir/model"
    truncate -s 3000 "$model"
    TIMES=2 fails plain 'a truncated model file' 'cannot read' 2        # llm.c's check prints on every rank
    head -c 2000 /dev/zero >"$model"
    fails plain 'a file that is not a model' 'Error: tiny_model.bin is not a model file' 2
    mkdir "$dir/astray" && cp "$model" "$dir/astray" && cp "$dir/model" "$model"
    cp "$dir/patched/"{train_gpt2,tiny_tokens.bin} "$dir/astray"
    fails plain 'a file that is not a model, only on rank 1' \
        'rank 1: Error: tiny_model.bin is not a model file' 2 ASTRAY=yes
    cp "$model" "$dir/astray"
    for file in tokens model; do
        printf x | dd of="$dir/astray/tiny_$file.bin" bs=1 seek=2999 conv=notrunc status=none
    done
    differs plain 'a different model' 'parameters = digest .*' 'parameters = digest .*' ASTRAY=yes
    cp "$model" "$dir/astray"
    differs plain 'different data' 'train, file 0 = tiny_tokens.bin, .*' \
        'train, file 0 = tiny_tokens.bin, .*' \
        ASTRAY=yes
}

# Mistakes that the first two steps find, unless ZERO_CHECK=0 is set. WRONG selects one.
test_checks() {
    begin 'plain.checks: the trainer compiles'
    sed -i 's/^        matmul_forward(l_gelu/        if (wrong == 1) { l_upw[0] *= 0.5f; }\n&/
        s/^    encoder_backward(/    if (wrong != 3) &/' "$dir/patched/train_gpt2.c"
    sed -i 's/^static void dataloader_reset/static int wrong;\n&/
        s/^    glob_t found;/    wrong = atoi(getenv("WRONG"));\n&/
        s/ + loader->process_rank) \* BT/ + (wrong == 2 ? 0 : loader->process_rank)) * BT/' \
        "$dir/patched/llmc/dataloader.h"
    need 'does not build' build patched train_gpt2
    end
    fails plain 'a parameter clamped in forward' 'wrote to the parameters of upw, layer 0, ' 2 WRONG=1
    fails plain 'a loader that ignores the rank' '^rank 1 .* has the same batch as rank 0 ' 2 WRONG=2
    begin 'plain.checks: a gradient that is never added is a note; ZERO_CHECK=0'
    need 'failed' plain 2 note WRONG=3
    has "$dir/note" '^note: in the first step the gradient of wpe, layer 0 is 0 on all ranks' \
        'step 5: train loss'
    need 'failed without checks' plain 2 note WRONG=1 ZERO_CHECK=0
    need 'a note without checks' not grep -q '^note:' "$dir/note"
    end
}

# ---- refusals

# refused NAME PATTERN FOLDER [OPTION]...: checks that the script fails with an error that matches, without
# changing the tree
refused() {
    local pattern=$2 folder=$3 status
    begin "refused.$1"
    state "$dir/tree" >"$dir/before"
    "$patch" --no-run ${folder:+"$folder"} "${@:4}" >"$dir/refused" 2>&1; status=$?
    need "status $status" [ $status = 1 ]
    has "$dir/refused" "$pattern"
    # git may have printed a line too
    need "$(wc -l <"$dir/refused") lines" [ "$(wc -l <"$dir/refused")" -le "${LINES_MOST:-2}" ]
    unchanged tree
    end
}

test_trees() {
    local patch=$patch
    checkout tree
    refused 'a missing folder' 'no such folder; git clone http.*/llm.c .*/nothing' "$dir/tree/nothing"
    refused 'no argument' usage ''
    begin 'patch.--help'
    need '--help failed' eval '"$patch" --help >"$dir/help"'
    has "$dir/help" '--cuda  *also train_gpt2.cu'
    end
    refused 'an unknown option' usage "$dir/tree" --dry
    echo '// more' >>"$dir/tree/test_gpt2.c"
    refused 'a dirty tree' 'uncommitted' "$dir/tree"
    git -C "$dir/tree" checkout -q .
    mkdir "$dir/tree/llmc_zero"
    refused 'a folder llmc_zero' 'llmc_zero: already exists; to patch again' "$dir/tree"
    rmdir "$dir/tree/llmc_zero"
    # A copy of the script, whose last write fails. Special characters in the copy's path must not matter.
    copy_patch "it's [a] {b} folder"
    sed -i 's/^sub write_whole .*/&\n    die "the disk is gone\\n" if $path =~ m{train_gpt2.c.new};/' \
        "$patch.d/checkout.pl"
    refused 'a disk that fails halfway' 'the disk is gone; nothing was changed' "$dir/tree"
    git -C "$dir/tree" rm -q --cached llmc/dataloader.h && mv "$dir/tree/llmc/dataloader.h" "$dir/tree"
    refused 'an old llm.c without llmc/' 'llmc/dataloader.h: no such file' "$dir/tree"
}

# Joins each line of standard input that ends in \ with the next line, without its indentation.
joined() { sed -e ':more' -e '/\\$/ { N; s/\\\n *//; b more' -e '}'; }
# changed FILE EDIT: makes a fresh tree with this edit committed
changed() {
    "${tree:-checkout}" "${version:-tree}"
    sed -i "$2" "$dir/tree/$1"
    if git -C "$dir/tree" diff --quiet; then
        begin "fork.$2"
        need 'the edit changed nothing' false
        end
        return 1
    fi
    commit "$dir/tree"
}
# Checks that changes which meet an edit are conflicts, with the line of the fork, and that with --merge git's
# markers hold them. Reads lines FILE|EDIT|LINE: NEEDS|TEXT OF THE FORK.
conflicts() {
    local file edit place text
    while IFS='|' read -r file edit place text; do
        changed "$file" "$edit" || continue
        LINES_MOST=30 refused "$edit" "${file//./[.]}:${place/: /: conflict: .*}" "$dir/tree" "$@"
        begin "conflict.$edit"
        has "$dir/refused" "^        .*$text" '^patch_llmc: [0-9]+ conflicts?; nothing was changed'
        end
    done < <(joined)
}
test_conflicts() {
    conflicts <<'FORKS'
train_gpt2.c|s/^        float g = model.*/&\n        if (g > 1.0f) { g = 1.0f; }/|\
    230: zero_step.. is llm.c's AdamW|\
    if .g > 1.0f. . g = 1.0f; .
train_gpt2.c|/^        v .= 1.0f - powf/d|223: zero_step|v /= 1.0f - powf
train_gpt2.c|s/^    freadCheck(model->params_memory/    if (getenv("FRESH") == NULL)\n    &/|\
    122: z_create|FRESH
train_gpt2.c|s/    float\* lnfw; .*/&\n    float* bias;/|32: the table of tensors|float. bias;
train_gpt2.c|s/float\* l_upb = params.upb + l \* 2\*C;/float* l_upb = params.upb + 1;/|\
    149: before a unit|params.upb . 1
train_gpt2.c|s/^        gpt2_forward(&model, train.inputs/        gpt2_forward(\&model, 0, train.inputs/|\
    287: z_begin_train.*comes directly before|model, 0, train.inputs
train_gpt2.c|s/^        gpt2_update(/        model.grads_memory[0] = 0;\n&/|\
    290: GPT2 no longer has this memory|grads_memory.0.
train_gpt2.c|s/^void gpt2_free/void save(GPT2 *model) { if (model->m_memory != NULL) { puts("m"); } }\n&/|\
    238: GPT2 no longer has this memory|m_memory != NULL
train_gpt2.c|s/dataloader_init(&val, "tiny/dataloader_init(\&val, "other/|\
    261: the rank and the number of ranks|other_tokens
Makefile|s/\$^/train_gpt2.c/|13: the rule of train_gpt2 must use train_gpt2.c|CFLAGS
FORKS
    conflicts --cuda <<'FORKS'
llmc/adamw.cuh|s/^        p -= .*/        p -= lr * g;/|15: the plugin's AdamW is llm.c's|p -= lr . g;
llmc/global_norm.cuh|s/\*out += .*/*out = 1;/|13: the plugin clips by the norm|out = 1;
llmc/zero.cuh|s/return value; }/return 2 * value; }/|23: the plugin reduces|return 2 . value
train_gpt2.cu|s/return sqrtf(squares);/return squares;/|352: zero_finish_gradients|return squares;
train_gpt2.cu|s/i == 6) . weight_decay/i > 5) ? weight_decay/|365: zero_update|i > 5
train_gpt2.cu|s/    if (micro_step == 0) {/&\n        log_clear(model->grads_memory);/|\
    280: GPT2 no longer|log_clear
train_gpt2.cu|s/^        gpt2_write_to_checkpoint(model/        write_log(step);\n&/|\
    436: gpt2_write_to|write_log
train_gpt2.cu|s/{ dl_ln1w, dl_ln1b, dl_upw,/{ dl_ln1w, dl_ln1b,/|\
    327: before the backward pass of a layer|dl_ln1w
FORKS
}

# Forks that train as llm.c does, or change what no edit needs, must be merged.
test_same_training() {
    local file edit status
    while IFS='|' read -r file edit; do
        changed "$file" "$edit" || continue
        begin "same.$edit"
        "$patch" --no-run "$dir/tree" --cuda >/dev/null 2>"$dir/refused"; status=$?
        need "$(cat "$dir/refused")" [ $status = 0 ]
        git -C "$dir/tree" diff >"$dir/diff"
        need 'lines of the fork are gone' not grep -qE '^-[^-]' "$dir/diff"
        end
    done < <(joined <<'FORKS'
train_gpt2.c|s/^        float g = .*/        \/\/ the gradient\n\n\tfloat g =  model->grads_memory [i] ; \
    \/* of i *\//
train_gpt2.c|s/$/\r/
train_gpt2.c|s/^        gpt2_update(&model, 1e-2f/        float rate = step < 3 ? 1e-3f : 1e-2f;\n        \
    printf("loss %f\\n", model.mean_loss);\n        gpt2_update(\&model, rate/
train_gpt2.c|s/^        gpt2_forward(&model, train/        gpt2_zero_grad(\&model);\n&/;/^        \
    gpt2_zero_grad(&model);$/d
train_gpt2.c|s/^        add(l_stream/        count_layer(l);\n&/;s/^    encoder_forward(/    count_pass();\n&/
train_gpt2.c|s/^#include "llmc.utils.h"/#include <time.h>\n&\n#include <errno.h>/
train_gpt2.c|s/^    free(model->params_memory);/    free(model->more);\n&/
llmc/adamw.cuh|s/^        m.at. = /        \/\/ the first moment\n&/
train_gpt2.cu|s/float grad_clip = 1.0f;/float grad_clip = 0.5f; \/\/ less/
FORKS
    )
    begin 'same.--cuda without train_gpt2.c'
    checkout tree && git -C "$dir/tree" rm -q train_gpt2.c && commit "$dir/tree"
    need 'not patched' "$patch" --no-run --cuda "$dir/tree" >"$dir/report"
    need 'other rules' grep -qx 'include llmc_zero/zero.mk llmc_zero/train_gpt2cu.mk' "$dir/tree/Makefile"
    end
}

# random_change SEED: changes the trainer in the tree: inserts, changes and removes lines
random_change() {
    awk -v seed="$1" 'BEGIN { srand(seed) } {
        r = rand() * 100
        if (r < 0.4) { print "    int own_" NR "; // of the fork"; print }
        else if (r < 0.7) { print $0 " /* fork */ own_" NR "();" }
        else if (r >= 1) { print }
    }' "$dir/committed/train_gpt2.c" >"$dir/tree/train_gpt2.c"
}
# Every line of the fork is in the result or, with --merge, in the file with markers, and in its order.
test_random() {
    local seed status kept=0
    checkout tree && git -C "$dir/tree" update-index --assume-unchanged train_gpt2.c
    begin 'random.25 changes: no line of the fork is lost'
    for seed in {1..25}; do
        git -C "$dir/tree" checkout -q . && random_change "$seed" && cp "$dir/tree/train_gpt2.c" "$dir/fork.c"
        "$patch" --no-run --merge "$dir/tree" >"$dir/report" 2>&1; status=$?
        [ $status != 0 ] || kept=$((kept + 1))
        need "seed $seed: $(head -n 1 "$dir/report")" [ -d "$dir/tree/llmc_zero" ]
        need "seed $seed: lines of the fork are gone" \
            not grep -q '^<' <(diff --minimal "$dir/fork.c" "$dir/tree/train_gpt2.c")
        rm -rf "$dir/tree/llmc_zero"
    done
    echo "   $kept merged, $((25 - kept)) have conflicts"
    end
}

# Copies without llm.c's history, or with it only in git's store, and conflicts that are resolved.
test_merge() {
    local status
    checkout tree
    sed -i 's/< 6; step++/< 7; step++/' "$dir/tree/train_gpt2.c"
    rm -rf "$dir/tree/.git"
    LINES_MOST=3 GIT_CEILING_DIRECTORIES=$dir refused 'no history of llm.c' \
        '&& git -C .*tree fetch https://github.com/karpathy/llm.c' "$dir/tree"
    begin 'merge.the version with the fewest differences'
    git -C "$dir/tree" init -q --template= && git -C "$dir/tree" fetch -q "$dir/committed"
    need 'not patched' "$patch" --no-run "$dir/tree" >"$dir/report"
    need 'the change is gone' grep -q '< 7; step++' "$dir/tree/train_gpt2.c"
    end
    begin 'merge.conflict markers, which are resolved by hand'
    checkout tree && cp -a "$dir/tree" "$dir/own"
    sed -i 's/^    encoder_forward(.*inputs, /    float *wte = params.wte;\n&/
        s/encoder_forward(acts.embedded, inputs, params.wte/encoder_forward(acts.embedded, inputs, wte/' \
        "$dir"/{tree,own}/train_gpt2.c
    commit "$dir/tree"
    "$patch" --merge "$dir/tree" >"$dir/report" 2>&1; status=$?
    need "status $status" [ $status = 1 ]
    has "$dir/report" 'conflict: before a unit' '2 conflicts: resolve them as in any merge .*--prove ORIGINAL'
    has "$dir/tree/train_gpt2.c" '^<<<<<<< the fork' '^[|]{7} llm.c' '^>>>>>>> llm.c with ZeRO'
    sed -i '/^<<<<<<< /,/^>>>>>>> /c\
#ifdef LLMC_ZERO\
    z_check(zero_pre_forward(z, Z_EMBEDDING));\
    params.wte = z_param(Z_WTE, 0);\
    params.wpe = z_param(Z_WPE, 0);\
#endif\
    float *wte = params.wte;\
    encoder_forward(acts.embedded, inputs, wte, params.wpe, B, T, C);\
#ifdef LLMC_ZERO\
    z_check(zero_post_forward(z, Z_EMBEDDING));\
#endif' "$dir/tree/train_gpt2.c"
    need "failed" eval '"$patch" --prove "$dir/own" "$dir/tree" --seconds 400 >"$dir/proof" 2>&1'
    has "$dir/proof" '8 losses agree'
    end
}

# If LLMC names a clone of llm.c: all known versions of its trainers must be patched, and with nvcc the newest
# CUDA trainer must compile and link.
test_llmc() {
    local file hash options
    if ! git -C "${LLMC:-/none}" rev-parse -q --verify f1e2ace >/dev/null 2>&1; then
        skip llmc 'no LLMC=folder of a clone of llm.c'
        return
    fi
    git clone -q -s "$LLMC" "$dir/llmc"
    while read -r file hash; do
        begin "llmc.$file $hash"
        options=(--no-run)
        [ "$file" = train_gpt2.c ] || options+=(--cuda)
        [ "$hash" = f1e2ace ] || hash=$(git -C "$LLMC" log -m --format=%H \
            --find-object="$(git -C "$LLMC" rev-parse "$hash")" -- "$file" | tail -n 1)
        git -C "$dir/llmc" checkout -q -f "$hash" && git -C "$dir/llmc" clean -qfd
        "$patch" "${options[@]}" "$dir/llmc" >"$dir/report" 2>&1
        need "$(tail -n 1 "$dir/report")" [ -d "$dir/llmc/llmc_zero" ]
        end
    done < <(sed '1,/^# llm.c:/d' "$patch.d/versions" |
        awk '$1 ~ /^train/ { for (i = 2; i <= NF; i++) { print $1, $i } } END { print "cuda f1e2ace" }')
    if ! command -v nvcc >/dev/null; then skip llmc.cuda 'no nvcc'; return; fi
    begin 'llmc.cuda.without LLMC_ZERO the code equals the original'
    need 'cannot clone' git clone -q "$dir/llmc" "$dir/original_llmc"
    need 'differs' cmp -s <(preprocessed_cuda original_llmc) <(preprocessed_cuda llmc)
    need 'almost empty' [ "$(preprocessed_cuda llmc | wc -l)" -gt 1000 ]
    end
    begin 'llmc.cuda.compiles and links'
    echo 'int none;' | cc -shared -fPIC -x c - -o "$dir/libnvidia-ml.so"       # otherwise part of the driver
    LIBRARY_PATH=$dir need 'failed' build llmc train_gpt2cu CI=true GPU_COMPUTE_CAPABILITY=90 FORCE_NVCC_O=1
    need 'no program' [ -x "$dir/llmc/train_gpt2cu" ]
    end
}
preprocessed_cuda() {
    (cd "$dir/$1" && nvcc -E -w -DENABLE_BF16 -D__LINE__=0 -arch=sm_90 train_gpt2.cu 2>/dev/null |
        grep -vE '^(#|[[:space:]]*$)')
}

if ! command -v git >/dev/null || ! command -v perl >/dev/null; then
    skip patch 'no git or no perl'
    finish patch
    exit
fi
[ $# -gt 0 ] || set -- patch proof prove cuda_patch cuda_training cuda_steps cuda_checkpoints cuda_failures \
    cuda_same training failures checks trees conflicts same_training random merge llmc
for part; do "test_$part"; done
finish patch
