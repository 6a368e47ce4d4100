# shellcheck shell=bash
# Parts train, torch, sanitize, sizes, tiers and sweep.

titles=('ours, stage 0' 'ours, stage 1' 'ours, stage 2' 'ours, stage 3')

# The card to itself: nothing of this script's runs on it beside a run that is timed.
card_alone() { await_job pytorch-first; }

one_rank() { ours "zero-$1.$2" "$1" 1 "${titles[$1]}"; }        # STAGE ROUND
two_ranks() { ours "zero-$1-2ranks.1" "$1" 2 "ours, stage $1, 2 ranks"; }

# In turn, so that what changes with time changes for all. Where llm.c is still being built, the first round
# goes on without it.
part_train() {
    local i late=''
    ready || return
    card_alone
    set_task "$model" "$B" "$steps" ''
    measure_peak
    one_rank 0 1
    one_rank 3 1
    if running build-llm.c; then late=yes
    else ! llmc_is_here || run_llmc 1; fi
    one_rank 1 1
    one_rank 2 1
    same 'stages 0 to 3, one rank' 4 'zero-0 zero-1 zero-2 zero-3'
    two_ranks 0
    two_ranks 3
    same 'stages 0 and 3, two ranks' 2 'zero-0-2ranks zero-3-2ranks'
    [ -z "$late" ] || ! llmc_is_here || run_llmc 1
    for ((i = 2; i <= rounds; i++)); do
        one_rank 0 $i
        ! llmc_is_here || run_llmc $i
        one_rank 3 $i
    done
    [ "$rounds" -lt 2 ] || same 'the same command again' 2 zero-0
    patched
    return 0
}
# llm.c's own trainer with the plugin in it: every stage, and two ranks that share the card, beside its losses
# without.
patched() {
    local run ranks stage name digest loss first='' bits=yes apart plain launcher
    [ -n "$llmc" ] || return
    finish_patched
    [ -x "$out/llm.c-zero/train_gpt2cu" ] || return
    plain=$(llmc_losses "$out/llm.c.1.log" 2>/dev/null | tail -n 1)
    for run in 0 1 2 3 3-2ranks; do
        stage=${run%%-*} ranks=1 launcher=() name=patched-$run
        if [ "$run" != "$stage" ]; then
            ranks=2
            launcher=("${mpirun[@]}" 2)
        fi
        step "$name" "$run_s" 15 env LD_LIBRARY_PATH="$cuda_home/lib64:$cuda_home/lib:$LD_LIBRARY_PATH" \
            "${launcher[@]}" \
            "$out/llm.c-zero/train_gpt2cu" "${task[@]}" -b $((B / ranks)) -x "$steps" -z "$stage" -v 1000000 \
            -m 1 -s 0 -h 0 || return
        digest=$(sed -nE 's/^params_hash ([0-9a-f]+)$/\1/p' "$out/$name.log")
        loss=$(llmc_losses "$out/$name.log" | tail -n 1)
        first=${first:-$digest}
        [ -n "$digest" ] && { [ $ranks = 2 ] || [ "$digest" = "$first" ]; } || bits=NO
        apart=$(awk -v a="${loss:-99}" -v b="${plain:-0}" 'BEGIN { print a < b ? b - a : a - b }')
        number "$apart <= 0.05" ||
            problem "$name-loss" "llm.c with the plugin, $name: last loss ${loss:--}, without it ${plain:--}"
    done
    if [ $bits = yes ]; then
        check patched \
            "llm.c with the plugin: stages 0 to 3 end with params_hash $first, last loss $loss on 2 ranks, "\
"${plain:--} without it"
    else
        problem patched \
            'llm.c with the plugin: stages 0 to 3 do not end with the same params_hash, see patched-*.log'
    fi
}

part_torch() {
    local i
    ready || return
    card_alone
    forget pytorch
    if ! grep -qs '^PyTorch is [0-9]' "$out/pytorch-first.log"; then
        skip pytorch "PyTorch is not here, or cannot use the card: $(grep -v '^PyTorch is not' \
            "$out/pytorch-first.log" | tail -n 1)"
        return 0
    fi
    set_task "$model" "$B" "$steps" ''
    for ((i = 1; i <= rounds; i++)); do
        run_pytorch $i
        one_rank 0 $((rounds + i))
    done
    return 0
}

part_sanitize() {
    local test memcheck=(compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9)
    if ! command -v compute-sanitizer >/dev/null; then
        skip memcheck 'memcheck: compute-sanitizer is not there'
        return 0
    fi
    ready || return
    [ ${#tests[@]} = 0 ] || finish_build
    for test in "${tests[@]}"; do
        [[ $test = test_* ]] && [ -e "$build/tests/$test.built" ] || continue
        cannot='Device not supported' step "memcheck-$test" 240 20 "${memcheck[@]}" "$build/tests/$test"
        [ $? != 125 ] || break
    done
    return 0
}

# ----------------------------------------------------------------------------------------------------- sizes

out_of_memory='MiB of .* are free|out of memory'

# The most rows that fit, from SIZES' on by halves; then stage 3 and llm.c with as many.
part_sizes() {
    local size rows title status all=${SIZES:-}
    ready || return
    card_alone
    if [ -z "$all" ]; then      # for 139 GiB
        all=$(awk -v m="$card_mib" 'BEGIN {
            for (f = 1; m * f < 139000 && f < 16; f *= 2);
            printf "d24:%d d36:%d d48:%d", 64 / f, 32 / f, 32 / f }')
    fi
    for size in $all; do
        for ((rows = ${size#*:}; rows >= 1; rows /= 2)); do
            set_task "${size%:*}" "$rows" "$size_steps" "${size%:*}"
            title="$group, B $rows"
            cannot=$out_of_memory ours "b$rows-zero-0.1" 0 1 "$title: ours, stage 0"
            status=$?
            [ $status = 125 ] || break
        done
        [ $status = 0 ] || continue
        cannot=$out_of_memory ours "b$rows-zero-3.1" 3 1 "$title: ours, stage 3"
        same "$title, stages 0 and 3" 2 "$group-b$rows-zero-0 $group-b$rows-zero-3"
        ! llmc_is_here || cannot=$out_of_memory run_llmc 1
    done
    return 0
}

# ----------------------------------------------------------------------------------------------------- tiers

# Model states on the device, in host memory and in files, in turn: the same bits, and what each costs. Then a
# model whose optimizer's states do not fit beside it on the card.
part_tiers() {
    local to_files=(--nvme "$out/nvme" --offload-optimizer nvme)
    ready || return
    card_alone
    mkdir -p "$out/nvme"
    set_task "${tiers%:*}" "${tiers#*:}" "$size_steps" tiers
    tier device 'all on the device'
    tier host-optimizer 'optimizer and gradients in host memory' --offload-optimizer cpu
    tier host 'parameters in host memory too' --offload-optimizer cpu --offload-param cpu
    tier nvme-optimizer 'optimizer on NVMe' "${to_files[@]}"
    tier nvme 'parameters on NVMe too' "${to_files[@]}" --offload-param nvme
    same 'tiers' 2 'tiers-device tiers-host-optimizer tiers-host tiers-nvme-optimizer tiers-nvme'
    [ "$large" != none ] || return 0
    set_task "${large%:*}" "${large#*:}" "$size_steps" tiers
    run_s=$large_s tier large "${large%:*}, optimizer and gradients in host memory" --offload-optimizer cpu
    return 0
}
# What a tier has no room for is no failure of the machine.
tier() {            # NAME TITLE ARGUMENT...
    cannot="$out_of_memory|No space left" ours "$1.1" 3 1 "tiers: $2" "${@:3}"
}

# ----------------------------------------------------------------------------------------------------- sweep

# 124M at stage 0 with one setting after another, those that the trainer has.
part_sweep() {
    local help mib
    ready || return
    card_alone
    set_task "$model" "$B" "$steps" sweep
    help=$("$trainer" --help)
    has_option() {
        [[ $help = *"$1"* ]] && return
        skip "sweep $1" "sweep: this trainer has no $1"
        return 1
    }
    sweep plain 'as in the table above'
    if has_option --tune; then
        # The first run times the products' algorithms and keeps what it finds; the second one reads that.
        step sweep-tuning "$run_s" 30 "$trainer" "${train[@]}" "${task[@]}" --attention "$attention" \
            --tune "$out/tuned.txt" -z 0 \
            -b "$B" -x 1 --progress lines &&
            sweep tune '--tune' --tune "$out/tuned.txt"
    fi
    if has_option --attention-workspace && [ "$attention" = cudnn ]; then
        for mib in 256 512 1536 4096; do
            sweep "workspace-$mib" "--attention-workspace $mib" --attention-workspace $mib
        done
    fi
    if has_option cudnn-fast && [ "$attention" = cudnn ]; then
        attention=cudnn-fast sweep fast '--attention cudnn-fast'
    fi
    return 0
}
sweep() { ours "$1.1" 0 1 "sweep: $2" "${@:3}"; }       # NAME TITLE ARGUMENT...
