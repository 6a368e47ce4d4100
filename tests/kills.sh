#!/usr/bin/env bash
# A rank of an MPI run dies (kill -9) or is stopped (SIGSTOP) at any moment: the job ends in time, says so
# once, and leaves nothing behind;
# one that goes on within the limit changes nothing. Takes minutes. Usage: tests/kills.sh TRAINER [RUNS
# [SEED]]   (30 of each, seed 1)
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "$1") || exit 1
runs=${2:-30} seed=${3:-1}
RANDOM=$seed
echo "seed $seed"

limit=3 start_limit=13          # of a collective; of MPI's own start
collective='(a reduce-scatter|an all-gather|a broadcast) of (unit [0-9]+|scalars)|a barrier'
host=$(hostname) when='(checkpoint of )?step [0-9]+'
small=(-e l2h2c32v257t32 -n 20 -nk 3) large=(-e l1h4c640v257t32)    # large enough for direct reads
common=(--device cpu --dtype fp32 -i data/stories_train.bin -j data/stories_val.bin -b 1 -u 0 -v 0 -s 0 -k \
    constant --threads 1
        --comm-timeout $limit --hash full)
export OMP_NUM_THREADS=1 OMPI_MCA_btl_vader_backing_directory=$dir/shm TMPDIR=$dir/tmp

# Every setting once, in random order: "RANKS MODE STAGE OVERLAP". Not in a subshell: there, random numbers
# are others each time.
shuffle() {
    local np mode stage overlap i j
    settings=()
    for np in 2 3; do for mode in direct window messages; do for stage in 0 2 3; do for overlap in 0 1; do
        settings+=("$np $mode $stage $overlap")
    done; done; done; done
    for ((i = ${#settings[@]} - 1; i > 0; i--)); do
        j=$((RANDOM % (i + 1))); setting=${settings[i]}
        settings[i]=${settings[j]} settings[j]=$setting
    done
}

# start NP MODE STAGE OVERLAP ARGUMENT...: a run in the background; sets job. Each rank notes its process id.
start() {
    local np=$1 mode=$2 args=(-z "$3" --overlap "$4")
    shift 4
    if [ "$mode" = direct ]; then args+=("${large[@]}"); else args+=("${small[@]}"); fi
    [ "$mode" = messages ] && args+=(--messages 1)
    rm -rf "$dir"/pid.* "$dir/screen" "$dir/shm" "$dir/tmp" "$dir/out"; mkdir "$dir/shm" "$dir/tmp"
    # shellcheck disable=SC2016
    timeout -k 2 60 mpirun --oversubscribe -np "$np" bash -c 'echo $$ >"$0/pid.new.$OMPI_COMM_WORLD_RANK"
        mv "$0/pid.new.$OMPI_COMM_WORLD_RANK" "$0/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' \
        "$dir" "$trainer" "${common[@]}" "${args[@]}" -o "$dir/out" "$@" >"$dir/screen" 2>&1 \
        </dev/null & job=$!
}
step_5() { grep -aqs '^step *5/' "$dir/screen"; }
ranks_started() { [ "$(ls "$dir"/pid.[0-9] 2>/dev/null | wc -l)" = "$1" ]; }

# Processes whose command line names this test's folder, as all of its ranks' do; zombies have none.
ours() { grep -alF "$dir/out" /proc/[0-9]*/cmdline 2>/dev/null; }
nothing_runs() { [ -z "$(ours)" ]; }
# A model file that has its name has its length, and so has a file of a complete checkpoint, which loads.
sizes() { stat -c %s "$dir"/out/$1 2>/dev/null | sort -u | wc -l; }
nothing_half_written() {
    local r
    [ "$(sizes 'model_*.bin')" -le 1 ] || return 1
    for ((r = 0; r < $1; r++)); do
        [ "$(for complete in "$dir"/out/step_*/manifest.json; do
            stat -c %s "${complete%/*}/rank0000$r"-* 2>/dev/null
        done | sort -u | wc -l)" -le 1 ] || return 1
    done
}
resumes() {     # NP MODE STAGE
    local last
    last=$(ls "$dir"/out/step_*/manifest.json 2>/dev/null | sed -n '$s,.*/step_0*\(.*\)/.*,\1,p')
    [ -n "$last" ] || return 0
    timeout -k 2 60 mpirun --oversubscribe -np "$1" "$trainer" "${common[@]}" "${small[@]}" -z "$3" \
        -o "$dir/out" -y 1 -x "$last" \
        >"$dir/resumed" 2>&1 </dev/null && grep -q "^resuming at step $last$" "$dir/resumed" &&
        checked=$((checked + 1))
}
messages() { grep -ac '^train_gpt2_zero: ' "$dir/screen"; }
message() { grep -am 1 '^train_gpt2_zero: ' "$dir/screen"; }

# one SIGNAL NP MODE STAGE OVERLAP: at a random moment of the start, or of the steps
one() {
    local signal=$1 np=$2 rank=$((RANDOM % $2)) early=$((RANDOM % 3 == 0)) delay=$((RANDOM % 1200)) pid \
        since status took most
    delay=$(awk "BEGIN { print $delay / 1000 }")
    begin "$signal rank $rank of $np, $3, stage $4, overlap $5, $delay s after $([ $early = 1 ] && echo its \
        start || echo step 5)"
    start "$2" "$3" "$4" "$5" -x 1000000
    if [ $early = 1 ]; then await ranks_started "$np"; else await step_5; fi || need 'it did not start' false
    sleep "$delay"
    since=$EPOCHREALTIME
    read -r pid <"$dir/pid.$rank"
    kill -"$signal" "$pid"
    wait $job; status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $since }")
    most=3; [ "$signal" = STOP ] && most=$((limit + 3))
    if [ "$signal" = STOP ] && message | grep -q 'for MPI to start'; then most=$((start_limit + 4)); fi
    need "took $took s" number "$took < $most"
    need "status $status" [ $status != 0 -a $status != 124 ]
    need "processes are left: $(ours)" await nothing_runs
    need "in Open MPI's shared memory: $(ls "$dir/shm")" [ -z "$(ls "$dir/shm")" ]
    need 'files are half written' nothing_half_written "$np"
    "says_$signal" "$rank" "$np"
    [ "$3" = direct ] || need 'the last checkpoint does not load' resumes "$np" "$3" "$4"
    [ "$3" = direct ] && grep -qa 'direct reads' "$dir/screen" && direct=$((direct + 1))
    end
    echo "   ended after $took s: $(message | cut -c 1-150)"
    [ -z "$why" ] || sed 's/^/    /' <(grep -av '^step' "$dir/screen" | tail -n 20)
}

says_KILL() {   # mpirun's own notice names rank and host; unless a rank noticed it first, by a direct read
    local gone="^train_gpt2_zero: $when: .* rank $1 \(host $host\) in ($collective): it is gone\$"
    case $(messages) in
        0) need 'no notice of mpirun' grep \
            -aqE "process rank $1 with PID [0-9]+ on node $host exited on signal 9" "$dir/screen" ;;
        1) need 'the message does not say who is gone, when, and where' grep -aqE "$gone" "$dir/screen" ;;
        *) need "$(messages) messages" false ;;
    esac
}
says_STOP() {
    local others="[$(seq -s '' 0 $(($2 - 1)) | tr -d "$1")]"
    need "$(messages) messages of the trainer" [ "$(messages)" = 1 ]
    if grep -aq '^step ' "$dir/screen"; then
        need 'the message does not say when, who, and what for' grep -aqE \
            "^train_gpt2_zero: $when: rank $others \(host $host\) waited $limit s in ($collective) "\
"for rank $1 \(host $host\): " "$dir/screen"
    else        # MPI does not say who has not come to its start
        need 'the message does not say who waited' grep \
            -aqE "^train_gpt2_zero: (step 1: )?rank $others \(host $host\) waited" "$dir/screen"
    fi
}

# A rank that is stopped for less than the limit
goes_on() {     # NP MODE STAGE OVERLAP
    local steps=300 expected rank=$((RANDOM % $1)) pid
    [ "$2" = direct ] && steps=40
    begin "goes on: rank $rank of $1, $2, stage $3, overlap $4"
    start "$@" -n 0 -x $steps; wait $job || need 'undisturbed it did not run' false
    expected=$(hashes "$dir/screen")
    start "$@" -n 0 -x $steps
    await step_5 || need 'it did not start' false
    read -r pid <"$dir/pid.$rank"
    kill -STOP "$pid"; sleep 1.5; kill -CONT "$pid"
    wait $job || need "disturbed it did not run: $(message)" false
    is digests "$(hashes "$dir/screen")" "${expected:-none}"
    end
}

direct=0 checked=0
for signal in KILL STOP; do
    shuffle
    # shellcheck disable=SC2086
    for ((i = 0; i < runs; i++)); do one $signal ${settings[i % ${#settings[@]}]}; done
done
echo "   direct reads in $direct runs, $checked checkpoints loaded afterwards"
for mode in direct window messages; do goes_on $((2 + RANDOM % 2)) $mode $((RANDOM % 4)) $((RANDOM % 2)); done
finish kills
