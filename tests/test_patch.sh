#!/usr/bin/env bash
# scripts/patch_llmc on a stand-in for llm.c (tests/fake_llmc): what it changes, that the patched trainer trains, what it refuses.
set -u
cd "$(dirname "$0")/.." || exit 1
patch=$PWD/scripts/patch_llmc fake=$PWD/tests/fake_llmc
. scripts/mpi_env.sh
export OMP_NUM_THREADS=1
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1      # a user's own settings, signing for one, are not the test's
unset ZERO_STAGE ZERO_CONFIG ZERO_POISON MAKEFLAGS MAKELEVEL

. tests/cases.sh

has() { grep -qE -- "$2" "$dir/$1"; }                                         # has FILE PATTERN

# copy_patch FOLDER: the script and what it copies, in $dir/FOLDER; $patch is that one then.
copy_patch() {
    mkdir -p "$dir/$1/scripts" && cp -R llmc_zero LICENSE "$dir/$1" && cp "$patch" "$dir/$1/scripts/patch_llmc"
    patch=$dir/$1/scripts/patch_llmc
}
commit() { git -C "$1" -c user.name=test -c user.email=test@localhost commit -qam test; }
# checkout NAME: a fresh stand-in, committed.
checkout() {
    rm -rf "${dir:?}/$1"
    mkdir "$dir/$1" && cp -R "$fake/." "$dir/$1" && git -C "$dir/$1" init -q && git -C "$dir/$1" add . && commit "$dir/$1"
}
# Every file and folder with its rights and contents, git's own apart.
state() { (cd "$1" && find . -path ./.git -prune -o -printf '%p %m\n' -type f -exec sha256sum {} + | sort); }
build() { (cd "$dir/$1" && shift && make --no-print-directory "$@") >"$dir/make" 2>&1 || { tail -n 5 "$dir/make"; return 1; }; }

# ------------------------------------------------------------------------------------------------------------ what it changes

test_patch() {
    local file line
    begin 'patch.dry run prints a diff and changes nothing'
    checkout plain && state "$dir/plain" >"$dir/before"
    need 'failed' "$patch" "$dir/plain" --dry-run >"$dir/diff" 2>"$dir/places"
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/plain")
    need 'git does not take the diff' git -C "$dir/plain" apply "$dir/diff"
    end

    begin 'patch.edits, file and line of each, and the plugin'
    checkout patched
    need 'failed' "$patch" "$dir/patched" >"$dir/report"
    for file in train_gpt2.c llmc/dataloader.h Makefile; do
        need "$file is not as in the dry run" cmp -s "$dir/plain/$file" "$dir/patched/$file"
    done
    sed -i '/^llmc_zero\/: /d' "$dir/places" "$dir/report"
    need 'the report is not that of the dry run' cmp -s "$dir/places" "$dir/report"
    while IFS=: read -r file line _; do
        need "$file:$line is no edit" grep -qE '^#(ifdef LLMC_ZERO| ZeRO:)' <(sed -n "$line{/./p};$((line + 1))p" "$dir/patched/$file")
    done <"$dir/places"
    need "$(wc -l <"$dir/places") places" [ "$(wc -l <"$dir/places")" -ge 25 ]
    for file in llmc_zero/*; do need "no $file" cmp -s "$file" "$dir/patched/$file"; done
    need 'not one training pass' [ "$(grep -c 'zero_begin(z, ZERO_TRAIN, 0, 1)' "$dir/patched/train_gpt2.c")" = 1 ]
    need 'not two others' [ "$(grep -c 'zero_begin(z, ZERO_EVAL, 0, 1)' "$dir/patched/train_gpt2.c")" = 2 ]
    need 'no licence' cmp -s LICENSE "$dir/patched/llmc_zero/LICENSE"
    end

    begin 'patch.without LLMC_ZERO it is the original'
    git -C "$dir/plain" checkout -q .
    for file in train_gpt2.c test_gpt2.c llmc/dataloader.h; do
        need "$file" cmp -s <(cd "$dir/plain" && cc -E -P -x c $file) <(cd "$dir/patched" && cc -E -P -x c $file)
    done
    need 'and with it too' not cmp -s <(cc -E -P "$dir/plain/train_gpt2.c") <(cc -DLLMC_ZERO -E -P "$dir/patched/train_gpt2.c")
    end

    begin 'patch.make all, and the other programs as before'
    need 'the original is not built' build plain all make_files
    need 'not built' build patched all make_files
    (cd "$dir/plain" && ./make_files 16 64 3 8 && ./test_gpt2) >"$dir/plain.test"
    (cd "$dir/patched" && ./make_files 16 64 3 8 && ./test_gpt2) >"$dir/patched.test"
    need "test_gpt2 says: $(head -n 2 "$dir/patched.test")" cmp -s "$dir/plain.test" "$dir/patched.test"
    need 'test_gpt2 says nothing' has patched.test 'step 2: loss'
    end

    begin 'patch.twice'
    state "$dir/patched" >"$dir/before"
    need 'failed' "$patch" "$dir/patched" >"$dir/twice"
    need "says: $(cat "$dir/twice")" has twice 'already patched'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/patched")
    end
}

# -------------------------------------------------------------------------------------------------------------- that it trains

# losses NAME: the losses and the sample of a run, a number or token a line.
losses() { sed -nE 's/^(val loss|step [0-9]+: train loss|sample:) *//p' "$dir/$1" | tr ' ' '\n'; }
# The largest difference of two runs' losses; 99 if they are not as many, or too few.
difference() {
    paste <(losses "$1") <(losses "$2") |
        awk 'NF != 2 { bad = 1 } { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { print (bad || NR < 15) ? 99 : most + 0 }'
}
# run NP NAME [VARIABLE=VALUE]...: the patched trainer on NP ranks (0: without mpirun), its screen under NAME, the Pss of its ranks, as
# looked at from time to time, under NAME.pss.RANK. ASTRAY=RANK: that rank runs in the folder astray.
run() {
    local np=$1 out=$2 launcher=()
    shift 2
    [ "$np" = 0 ] || launcher=(mpirun --oversubscribe -np "$np")
    # shellcheck disable=SC2016
    (cd "$dir/patched" && env "$@" timeout -k 2 100 "${launcher[@]}" bash -c '
        (while grep ^Pss: /proc/$$/smaps_rollup; do sleep 0.05; done) >"$0.pss.${OMPI_COMM_WORLD_RANK:-0}" 2>/dev/null &
        [ "${OMPI_COMM_WORLD_RANK:-0}" != "${ASTRAY:-}" ] || cd ../astray || exit
        exec ../patched/train_gpt2' "$dir/$out") >"$dir/$out" 2>&1 </dev/null
}
train() { run "$@" || { tail -n 5 "$dir/$2"; return 1; }; }
digest() { sed -n 's/^params_hash //p' "$dir/$1"; }

# The stand-in shuffles: its order must not depend on the number of ranks.
test_training() {
    local stage first=
    (cd "$dir/plain" && ./train_gpt2) >"$dir/one" 2>&1
    begin 'train.one rank without mpirun'
    need 'failed' train 0 zero.1
    need "losses differ by $(difference one zero.1)" number "$(difference one zero.1) < 1e-5"
    end
    sed -i 's/int B = 4;/int B = 2;/' "$dir/patched/train_gpt2.c"
    need 'not built' build patched train_gpt2
    for stage in 0 1 2 3; do
        begin "train.stage $stage, half the rows on each of 2 ranks"
        need 'failed' train 2 "zero.$stage" ZERO_STAGE=$stage ZERO_POISON=1
        need "losses differ by $(difference one "zero.$stage")" number "$(difference one "zero.$stage") < 1e-4"
        need 'is not that stage' has "zero.$stage" "^ZeRO stage $stage on 2 ranks"
        need 'not each line once' [ "$(grep -c 'step 3: train loss' "$dir/zero.$stage")" = 1 ]
        first=${first:-$(digest "zero.$stage")}
        need "digest $(digest "zero.$stage"), at stage 0 $first" [ "$(digest "zero.$stage")" = "${first:-none}" ]
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

# told NAME PATTERN NP [VARIABLE=VALUE]...: the patched trainer must fail and say so, within its time.
told() {
    local pattern=$2
    begin "told.$1"
    shift 2
    run "$1" told "${@:2}"; local status=$?
    need "status $status" [ $status != 0 -a $status -lt 124 ]
    need "no '$pattern' in: $(head -n 3 "$dir/told")" has told "$pattern"
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
    truncate -s 1000 "$dir/patched/tiny_model.bin"
    told 'a model file cut short' 'cannot read' 2
    printf 'nonsense, longer than a header' >"$dir/patched/tiny_model.bin"
    told 'no model file' 'Error: tiny_model.bin is no model file' 2
    mkdir "$dir/astray" && mv "$dir/patched/tiny_model.bin" "$dir/astray"
    cp "$dir/model" "$dir/patched/tiny_model.bin"
    told 'no model file on rank 1 alone' 'rank 1: Error: tiny_model.bin is no model file' 2 ASTRAY=1
}

# What the system sees of a rank against the table: 16 layers of 256 channels, so that the layers are most of it.
test_memory() {
    local stage seen=() table=()
    if ! grep -qs '^Pss:' /proc/self/smaps_rollup; then skip memory 'no /proc/PID/smaps_rollup'; return; fi
    begin 'memory.stage 0 less stage 3'
    (cd "$dir/patched" && ./make_files 16 64 16 256)
    for stage in 0 3; do
        need "stage $stage failed" train 2 "memory.$stage" ZERO_STAGE=$stage
        seen[stage]=$(cat "$dir/memory.$stage".pss.* | awk '$2 > most { most = $2 } END { print most / 1024 }')
        table[stage]=$(sed -nE 's/.*together ([0-9.]+) MiB/\1/p' "$dir/memory.$stage")
        need "stage $stage: more beside the table than activations, MPI and the program" number "${seen[stage]} - ${table[stage]} < 12"
    done
    echo "   a rank takes ${seen[0]} and ${seen[3]} MiB at stages 0 and 3, the tables say ${table[0]} and ${table[3]}"
    need 'the difference is not that of the tables' number "(${seen[0]} - ${seen[3]}) / (${table[0]} - ${table[3]}) > 0.9 &&
        (${seen[0]} - ${seen[3]}) / (${table[0]} - ${table[3]}) < 1.1"
    end
}

# ------------------------------------------------------------------------------------------------------------- what it refuses

# refused NAME PATTERN FOLDER [OPTION]...: an error with the pattern in it, and not one byte changed.
refused() {
    local pattern=$2 folder=$3
    begin "refused.$1"
    state "$dir/tree" >"$dir/before"
    "$patch" ${folder:+"$folder"} "${@:4}" >"$dir/refused" 2>&1; local status=$?
    need "status $status" [ $status = 1 ]
    need "no '$pattern' in: $(cat "$dir/refused")" has refused "$pattern"
    need "$(wc -l <"$dir/refused") lines" [ "$(wc -l <"$dir/refused")" -le 2 ]          # git may have said something too
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/tree")
    end
}

test_trees() {
    checkout tree
    refused 'no folder' 'no such folder' "$dir/tree/nothing"
    refused 'no argument' usage ''
    refused 'an option it does not know' usage "$dir/tree" --dry
    refused 'a folder inside the checkout' 'top folder' "$dir/tree/llmc"
    echo '// more' >>"$dir/tree/test_gpt2.c"
    refused 'a dirty tree' 'not committed' "$dir/tree"
    git -C "$dir/tree" checkout -q .
    mkdir "$dir/tree/llmc_zero"
    refused 'a folder llmc_zero' 'llmc_zero: is there already' "$dir/tree"
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
    GIT_CEILING_DIRECTORIES=$dir refused 'no checkout' 'no checkout' "$dir/tree"
}

# A rename that fails when some files have been renamed already: not easily had, so in a copy of the script.
# Where the script itself stands must not matter.
test_odd_folder() {
    local patch=$patch
    begin 'trees.the script in a folder with odd characters'
    checkout tree
    copy_patch "it's [a] {b} folder"
    need 'did not run' "$patch" "$dir/tree" >"$dir/odd" 2>&1
    need 'the plugin was not copied' diff -rq llmc_zero "$dir/tree/llmc_zero" -x LICENSE
    end
}

test_half_done() {
    local patch=$patch
    checkout tree
    copy_patch copy
    sed -i 's/push @renamed, \$f;/& die "the disk is gone\\n" if @renamed == 2;/' "$patch"
    refused 'a disk that fails half way' 'the disk is gone; nothing was changed' "$dir/tree"
}

# A folder that cannot be written to: noticed when half of the files have been prepared. Root can write everywhere, so not as root.
test_unwritable() {
    local as=() patch=$patch
    if [ "$(id -u)" = 0 ]; then
        command -v setpriv >/dev/null || { skip 'refused.a folder that cannot be written to' 'no setpriv'; return; }
        as=(setpriv --reuid=65534 --clear-groups --inh-caps=-all)
        copy_patch 'x [y] {z}'           # that user need not see the folder of this one
    fi
    begin 'refused.a folder that cannot be written to'
    checkout tree
    [ ${#as[@]} = 0 ] || { chmod 755 "$dir"; chown -R 65534 "$dir/tree"; }
    chmod a-w "$dir/tree/llmc"
    state "$dir/tree" >"$dir/before"
    need 'no error' not "${as[@]}" "$patch" "$dir/tree" >"$dir/refused" 2>&1
    need "says: $(cat "$dir/refused")" has refused 'llmc/dataloader.h.*denied; nothing was changed'
    need 'the tree changed' cmp -s "$dir/before" <(state "$dir/tree")
    chmod u+w "$dir/tree/llmc"
    end
}

# Forks: a place that is no longer as expected. File | sed command | what the message has to say.
test_forks() {
    local file edit pattern
    while IFS='|' read -r file edit pattern; do
        [ -n "$file" ] || continue
        checkout tree
        sed -i "$edit" "$dir/tree/$file"
        if git -C "$dir/tree" diff --quiet; then begin "fork.$edit"; need 'changes nothing' false; end; continue; fi
        commit "$dir/tree"
        refused "$file: $edit" "$pattern" "$dir/tree"
    done <<'FORKS'
train_gpt2.c|s/"llmc.utils.h"/"llmc\/others.h"/|looked for #include "llmc/utils.h"
train_gpt2.c|s/} ParameterTensors;/} Parameters;/|looked for the struct ParameterTensors
train_gpt2.c|s/void fill_in_parameter_sizes/void sizes/|looked for the function fill_in_parameter_sizes
train_gpt2.c|s/    param_sizes\[5\] = C;//|fill_in_parameter_sizes.*looked for sizes 0 to 5
train_gpt2.c|s/    param_sizes\[5\] = C;/    param_sizes[6] = C;/|fill_in_parameter_sizes.*looked for sizes 0 to 5
train_gpt2.c|s/    if (model->grads_memory != NULL) {/    {/|gpt2_zero_grad.*grads_memory != NULL
train_gpt2.c|s/&params->wte, &params->upw/\&params->upw, \&params->wte/|order of the fields of ParameterTensors
train_gpt2.c|s/model->params_memory = malloc_and_point/model->params_memory = read_and_point/|gpt2_build_from_checkpoint.*params_memory = malloc
train_gpt2.c|s/freadCheck(model->params_memory/freadAll(model->params_memory/|gpt2_build_from_checkpoint.*freadCheck
train_gpt2.c|s/if (model->params_memory == NULL)/if (!model->params_memory)/|gpt2_forward.*params_memory == NULL
train_gpt2.c|s/ParameterTensors params = model->params; \/\/.*/ParameterTensors *params = \&model->params;/|gpt2_forward.*ParameterTensors params
train_gpt2.c|s/L = model->config.num_layers/L = layers(model)/|gpt2_forward.*num_layers
train_gpt2.c|s/for (int l = 0; l < L; l++) {/for (int n = 1; n <= L; n++) {/|gpt2_forward.*looked for a loop over the layers
train_gpt2.c|s/for (int l = L-1; l >= 0; l--) {/for (int n = 0; n < (int)L; n++) {/|gpt2_backward.*looked for a loop over the layers
train_gpt2.c|s/float\* l_upw = params.upw + l \* 2\*C \* C;/float* l_upw = layer(params.upw, l);/|params.upw is used where
train_gpt2.c|s/float\* l_upb = params.upb + l \* 2\*C;/& x += 0;/|looked for this on lines of its own: float\* l_upw
train_gpt2.c|s/mix_forward(l_stream, l_hidden, x, l_upw/mix_forward(l_stream, l_hidden, x, params.upw + l*2*C*C/|params.upw is used where
train_gpt2.c|s/scale_forward(acts.scaled, last, params.gain/scale_forward(acts.scaled, last, params.downw/|params.downw to be a tensor outside the layers
train_gpt2.c|s/model->mean_loss = loss;/set_loss(model, loss);/|gpt2_forward.*model->mean_loss
train_gpt2.c|s/model->grads_memory == NULL/!model->grads_memory/|gpt2_backward.*grads_memory == NULL
train_gpt2.c|s/void gpt2_update(/void adamw(/;s/gpt2_update(&/adamw(\&/|looked for the function gpt2_update
train_gpt2.c|s/float weight_decay, int t/float decay, int t/|a parameter weight_decay of gpt2_update
train_gpt2.c|s/free(model->params_memory);/;/|gpt2_free.*free\(model->params_memory\)
train_gpt2.c|s/B, T, 0, 1, 1);/B, T, rank, ranks, 1);/|rank 0 of 1
train_gpt2.c|s/num_tokens . (B\*T)/num_batches/|num_batches
train_gpt2.c|s/^        gpt2_backward(&model);/        step_back(\&model);/|gpt2_backward follows gpt2_forward
train_gpt2.c|s/^        gpt2_zero_grad(&model);/&\n        clip(model.grads_memory);/|grads_memory is used where
llmc/dataloader.h|s/int process_rank, int num_processes,//|knows no ranks
llmc/dataloader.h|s/7 + process_rank/7/|dataloader_init.*manual_seed
Makefile|s/\$^/train_gpt2.c/|looked for the rule "train_gpt2: train_gpt2.c"
Makefile|s/^train_gpt2: train_gpt2.c/trainer: train_gpt2.c/|looked for the rule "train_gpt2: train_gpt2.c"
FORKS
}

if ! command -v git >/dev/null || ! command -v perl >/dev/null; then
    skip patch 'no git or no perl'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
test_patch
test_training
test_failures
test_memory
test_trees
test_odd_folder
test_half_done
test_unwritable
test_forks
finish patch
