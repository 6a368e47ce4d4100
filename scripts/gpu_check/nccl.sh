# shellcheck shell=bash
# Part nccl: on as many cards as there are, or on one where NCCL can have two ranks there, from 2.30 on.

nccl_part() { step "$1" 90 10 "${on_cards[@]}" "${@:2}"; }          # NAME COMMAND...
# NAME ARGUMENT...
nccl_run() { nccl_part "$1" "${nccl_trainer[@]}" -x 10 --hash full -o "$out/runs/$1" "${@:2}"; }

sentence() { sed -n 's/.*train_gpt2_zero: //p' "$1" | head -n 1; }  # the trainer's first, in this log

# Whether NCCL can be used here.
nccl_is_here() {
    local why='needs one for each|built without NCCL|libnccl.so.2 cannot be loaded|is too old' status
    cannot=$why nccl_part nccl "${nccl_trainer[@]}" -z 0 -x 0 --comm nccl
    status=$?
    why=$(sentence "$out/nccl.log" 2>/dev/null)
    case $status in
        125)
            [[ $why != *'built without NCCL'* ]] || why+='; C_INCLUDE_PATH can name the folder of nccl.h'
            skip nccl "NCCL: $why" ;;
        0 | 126) ;;
        *) problem nccl "NCCL: ${why:-no run of 0 steps}; see nccl.log" ;;
    esac
    return $status
}
# Without accumulation all stages have the same bits: those of two runs through the host.
nccl_bits() {
    local run different='' expected=''
    for run in host-0 host-3 nccl-0 nccl-1 nccl-2 nccl-3; do
        nccl_run $run -z ${run#*-} --comm ${run%-*} || return
        expected=${expected:-$(digests $run)}
        [ "$(digests $run)" = "$expected" ] || different+=" $run"
    done
    if [ -z "$different" ]; then check nccl-bits \
        "same bits, $ranks ranks on $where, NCCL and through the host: yes, stages 0 to 3"
    else problem nccl-bits \
        "same bits, $ranks ranks on $where, NCCL and through the host: NO, others than host-0:$different"; fi
}
nccl_reduce() {
    local difference
    nccl_run nccl-reduce -z 2 --comm nccl --reduce nccl || return
    difference=$(losses_apart nccl-reduce nccl-2 10)
    if number "${difference:-1} <= 0.02"; then check nccl-sum \
        "NCCL's own sum: losses differ by $difference at most (0.02 is allowed)"
    else problem nccl-sum "NCCL's own sum: losses differ by ${difference:-no number}, 0.02 is allowed"; fi
}
# 124M by NCCL: on one card with the bits of the two ranks that went through the host.
nccl_model() {
    local stage bits=("zero-0-${ranks}ranks-nccl" "zero-3-${ranks}ranks-nccl")
    card_alone
    set_task "$model" "$B" "$steps" ''
    if [ "$ranks" = 2 ]; then
        two_ranks 0
        two_ranks 3
        bits+=(zero-0-2ranks zero-3-2ranks)
    fi
    wrapper=("${on_cards[@]}")
    for stage in 0 3; do
        ours "zero-$stage-${ranks}ranks-nccl.1" "$stage" "$ranks" "ours, stage $stage, $ranks ranks, NCCL" \
            --comm nccl
    done
    wrapper=()
    same "$model on $ranks ranks by NCCL" ${#bits[@]} "${bits[*]}"
}

alive() {           # a zombie is not: it waits for a parent that need not look
    local pid state
    for pid; do
        ! {
            read -r _ _ state _ <"/proc/$pid/stat"
        } 2>/dev/null || [ "$state" = Z ] || return 0
    done
    return 1
}
gone() { ! alive "$@"; }
await() {           # SECONDS COMMAND...: until it succeeds
    local i
    for ((i = 0; i < 10 * $1; i++)); do
        "${@:2}" && return
        sleep 0.1
    done
    return 1
}
stepped() { grep -qs '^step ' "$out/$1.log"; }
stepped_or_gone() { stepped "$1" || gone "$job"; }
# Waits for the job; what still runs, it or these processes, ends now.
put_down() {
    ! kill "$job" || await 5 gone "$job"
    kill -9 "$job" "$@"
    wait "$job"
    job=''
} 2>/dev/null

# trouble SIGNAL WHAT LEAST: rank 1 gets it in a long run; the others, or with LEAST 0 mpirun, end the job in
# time, with one sentence.
trouble() {
    local name=nccl-$1 what=$2 log=$out/nccl-$1.log pids said began=$SECONDS end=$((comm_timeout_s + 15)) left
    [ -z "$(status_of_step "$name")" ] || return 0
    left=$((budget - SECONDS - end - 10))       # for the first step
    if [ $left -lt 20 ]; then
        later "$name" "$name: $((left + end + 10)) of $budget s are left, it may take $((end + 30))"
        return
    fi
    say "$name ..."
    rm -f "$out"/pid.*
    # shellcheck disable=SC2016
    "${on_cards[@]}" "${mpirun[@]}" "$ranks" bash -c 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"' \
        "$out/pid" \
        "${nccl_program[@]}" -z 3 -x 1000000 --comm nccl --comm-timeout "$comm_timeout_s" >"$log" 2>&1 \
        </dev/null &
    job=$!
    await $((left < 60 ? left : 60)) stepped_or_gone "$name"
    mapfile -t pids < <(cat "$out"/pid.* 2>/dev/null)
    if ! stepped "$name" || gone "$job" || ! kill -s "$1" "$(cat "$out/pid.1")"; then
        said="no step after $((SECONDS - began)) s"
        ! gone "$job" || said="it ended by itself: $(sentence "$log")"
        put_down "${pids[@]}"
        end_step "$name" 1
        problem "$name" "$name: $said, see $name.log"
        return
    fi
    began=$SECONDS
    end_step "$name" 1
    if ! await "$end" gone "$job" || ! await 3 gone "${pids[@]}"; then
        put_down "${pids[@]}"
        problem "$name" "$what: processes still run after $((SECONDS - began)) s"
        return
    fi
    put_down
    said=$(grep -c 'train_gpt2_zero: ' "$log")
    if [ "$said" -lt "$3" ] || [ "$said" -gt 1 ]; then
        problem "$name" "$what: $said sentences of the trainer's, see $name.log"
        return
    fi
    end_step "$name" 0
    check "$name" "$what: over after $((SECONDS - began)) s; $(grep -m1 -oE \
        'train_gpt2_zero: .*|mpirun noticed .*' "$log")"
}

part_nccl() {
    local where="card $cards" on_cards nccl_program nccl_trainer comm_timeout_s=${COMM_TIMEOUT_S:-10}
    ready || return
    on_cards=(env LD_LIBRARY_PATH="$(nccl_libraries)" CUDA_VISIBLE_DEVICES="$cards")
    # What a kit brings may have no other algorithm.
    [ "$nccl_folder" != "$kit/nccl" ] || on_cards+=(NCCL_ALGO="${NCCL_ALGO:-RING}")
    if [[ $cards != *,* ]]; then
        # Kernels of four communicators, two a rank, on one card: NCCL hangs where there are too few
        # multiprocessors for all that wait.
        on_cards+=(NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS="${NCCL_MAX_CTAS:-8}")
        comm_timeout_s=${COMM_TIMEOUT_S:-30}
    fi
    nccl_program=("$trainer" "${train[@]}" -e "${SMALL:-l4h4c128v257t64}" -b $((8 / ranks)) "${gentle[@]}" \
        --progress lines)
    nccl_trainer=("${mpirun[@]}" "$ranks" "${nccl_program[@]}")
    nccl_is_here || return 0
    nccl_bits && nccl_reduce
    nccl_model
    [ ${#tests[@]} = 0 ] || finish_build
    [ ! -e "$build/tests/mpi_nccl.built" ] ||
        gpu_test mpi_nccl "${on_cards[@]}" "${mpirun[@]}" "$ranks" "$build/tests/mpi_nccl"
    trouble KILL 'NCCL, a rank is killed' 0
    trouble STOP 'NCCL, a rank is stopped' 1
    nccl_part nccl-bench "${mpirun[@]}" "$ranks" "$build/bench/comm" --device cuda --comm nccl -e 16M -n 5 &&
        check nccl-bench "NCCL, dev/bench/comm: $(sed -n '$s/^# //p' \
        "$out/nccl-bench.log"), see nccl-bench.log"
    return 0
}
