# shellcheck shell=bash
# A training run of ours, of llm.c and of PyTorch, each with its row in $out/state/rows.tsv:
#   key, group, row, title, tokens/s, loss, own MiB, MiB seen, params_hash, state_hash, B * T, operations a
#   token

# Not one core for each rank, which is what it does with two: a rank has threads that wait on the network and
# the card.
mpirun=(mpirun --oversubscribe --bind-to none -np)
P=0 L=0 NH=0 C=0 V=0            # the model's: parameters but those of the positions, and its shape

# What is being trained: MODEL ROWS STEPS GROUP, with GROUP '' for 124M's own table
set_task() {
    rows=$2
    run_steps=$3
    group=$4
    # of both trainers
    task=(-e "$1" -t "$T" -d $((rows * T)) -i "$data" -j "$data" -l 3e-4 -u 0 -q 1 -r 0 -ge "$ge")
}
read_model() {      # LOG of ours
    local longest \
        rest='parameters, L ([0-9]+), NH ([0-9]+), C ([0-9]+), V ([0-9]+), longest sequence ([0-9]+)'
    read -r P L NH C V longest < <(sed -nE "s/^model .*: ([0-9]+) $rest.*/\1 \2 \3 \4 \5 \6/p" "$1")
    P=$((${P:-0} - ${longest:-0} * ${C:-0}))
}
value() { sed -nE "s/.*\"$2\": \"?([^\",{}]+).*/\1/p" "$1"; }     # of a key in a JSON file
digests() {
    echo "$(value "$out/runs/$1/summary.json" params_hash) $(value "$out/runs/$1/summary.json" state_hash)"
}
llmc_losses() { sed -nE 's/^step .* loss ([0-9.]+) .*/\1/p' "$1"; }

# run NAME COMMAND...: a training run; NAME.mib: the card's memory while it ran, over what was used before
run() {
    local name=$1 before='' status
    shift
    if [ -z "$(status_of_step "$name")" ] && [ $((budget - SECONDS)) -ge 15 ]; then
        before=$(smi memory.used)
        nvidia-smi -i "$card" --query-gpu=memory.used --format=csv,noheader,nounits -lms 250 \
            >"$out/used.mib" 2>/dev/null &
        look=$!
    fi
    step "$name" "$run_s" 15 "$@"
    status=$?
    if [ -n "$look" ]; then
        kill $look
        wait $look 2>/dev/null
        look=''
        sort -n "$out/used.mib" |
            awk -v b="${before:-0}" '{ x = $1 - b } END { print NR ? x : "-" }' >"$out/$name.mib"
    fi
    return $status
}
# record NAME ROW TITLE TOKENS/S LOSS OWN-MIB PARAMS_HASH STATE_HASH
record() {
    local seen flops=$((6 * P + 12 * L * C * T))
    seen=$(cat "$out/$1.mib" 2>/dev/null)
    put rows.tsv 1 "$1" "${group:-train}" "${@:2:5}" "${seen:--}" "$7" "$8" $((rows * T)) $flops
    [ "$SECONDS" = "$published" ] || publish
}

# ours ROW.ROUND STAGE RANKS TITLE ARGUMENT...
ours() {
    local name=${group:+$group-}$1 stage=$2 n=$3 title=$4 own=0 key launcher=() shared=()
    local folder=$out/runs/$name summary=$out/runs/$name/summary.json
    shift 4
    if [ "$n" -gt 1 ]; then
        launcher=("${mpirun[@]}" "$n")
        [[ " $* " = *' --comm '* ]] || shared=(--comm host)
    fi
    run "$name" "${wrapper[@]}" "${launcher[@]}" "$trainer" "${train[@]}" "${task[@]}" \
        --attention "$attention" "${shared[@]}" "$@" \
        -z "$stage" -b $((rows / n)) -x "$run_steps" --hash full --progress lines -o "$folder" || return
    read_model "$out/$name.log"
    for key in model_state_bytes working_bytes activation_bytes; do
        own=$((own + $(value "$summary" $key)))
    done
    # shellcheck disable=SC2046
    record "$name" "${name%.*}" "$title" "$(value "$summary" tokens_per_s)" "$(value "$summary" loss)" \
        $((own * n / 1048576)) \
        $(digests "$name")
}
wrapper=()          # what goes before mpirun

run_llmc() {        # ROUND; validation only at the start and the end: -v 0 would divide by zero there
    local name=${group:+$group-}llm.c.$1 log ms
    log=$out/$name.log
    run "$name" env LD_LIBRARY_PATH="$cuda_home/lib64:$cuda_home/lib:$LD_LIBRARY_PATH" \
        "$out/llm.c/train_gpt2cu" "${task[@]}" \
        -b "$rows" -x "$run_steps" -z 0 -v 1000000 -m 1 -s 0 -h 0 || return
    ms=$(sed -nE 's/^step .*\| ([0-9.]+) ms \|.*/\1/p' "$log" | tail -n +3 | median)
    [ -n "$ms" ] || { problem "$name" "$name: no line about a step in $name.log"; return 1; }
    record "$name" "${name%.*}" "${group:+$group, B $rows: }llm.c, $llmc_how" \
        "$(ratio $((rows * T * 1000)) "$ms" 1)" \
        "$(llmc_losses "$log" | tail -n 1)" \
        "$(sed -nE 's/^device memory usage: ([0-9]+) MiB.*/\1/p' "$log")" - -
}
# Whether llm.c is here; it waits for its build.
llmc_is_here() {
    forget llm.c
    if [ -z "$llmc" ]; then
        skip llm.c 'llm.c: neither LLMC=folder nor --kit with llm.c/ was given'
        return 1
    fi
    finish_llmc
    llmc_how=$(sed -n 's/^llm\.c is built //p' "$out/build-llm.c.log" 2>/dev/null)
    [ -n "$llmc_how" ]
}
pytorch_shape() { echo "--layers $L --heads $NH --channels $C --vocabulary $(((V + 127) / 128 * 128))"; }
run_pytorch() {     # ROUND
    local name=pytorch.$1 log=$out/pytorch.$1.log
    # shellcheck disable=SC2046
    run "$name" env LD_LIBRARY_PATH="$plain_libraries" "$python" dev/bench/torch_gpt2_gpu.py "$data" "$B" \
        "$T" "$steps" \
        $(pytorch_shape) || return
    record "$name" pytorch "PyTorch $(value "$log" torch), compiled" "$(value "$log" tokens_per_s)" \
        "$(value "$log" loss)" \
        "$(value "$log" memory_mib)" - -
}
export TORCHINDUCTOR_CACHE_DIR=$out/inductor TRITON_CACHE_DIR=$out/inductor/triton

# The speed of large products of bf16 matrices, as the trainer measures it at the start of a run with a bar.
measure_peak() {
    local i peak
    for i in 1 2 3; do
        step "peak.$i" 20 5 "$trainer" "${train[@]}" -z 0 -x 0 -ge "$ge" --progress bar || return
    done
    peak=$(sed -nE 's/.*peak +([0-9.]+) GFLOP\/s.*/\1/p' "$out"/peak.?.log | median)
    if [ -n "$peak" ]; then check peak "peak: $peak GFLOP/s in products of bf16 matrices, median of 3"
    else problem peak 'peak: no line about it in peak.1.log'; fi
    set_fact peak "$peak"
}

hashes() { awk -F'\t' -v rows=" $1 " 'index(rows, " " $3 " ") { print $9, $10 }' "$out/state/rows.tsv"; }
# same WHAT LEAST ROWS: at least LEAST runs of these rows, and all with the same digests
same() {
    local n different
    n=$(hashes "$3" | wc -l)
    different=$(hashes "$3" | sort -u | wc -l)
    if [ "$n" -lt "$2" ] && [ -n "$unfinished" ]; then return 0
    elif [ "$n" -lt "$2" ]; then problem "same $1" "same bits, $1: not checked, $n of $2 runs ended"
    elif [ "$different" = 1 ]; then check "same $1" \
        "same bits, $1: yes, params_hash and state_hash of $n runs"
    else problem "same $1" "same bits, $1: NO, $different different digests in $n runs, see results.tsv"; fi
}
