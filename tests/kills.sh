#!/usr/bin/env bash
# Kills (SIGKILL) or stops (SIGSTOP) ranks at random moments. Each job must end in time, report the failure
# once and leave no processes or shared memory behind. Every checkpoint in its folder must be complete. The
# run must resume from the newest and end with the same bits as an undisturbed run. The script also tests a
# shell loop under signals of all kinds, and a stop shorter than the limit. Takes minutes.
# Usage: tests/kills.sh TRAINER [RUNS [SAVES [SEED]]]
#   RUNS (30)     MPI jobs with a killed rank, and as many with a stopped one, across all settings
#   SAVES (50)    kills in one folder, half of them during a save; 0: only the loop
# shellcheck disable=SC2046,SC2086
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:?Usage: tests/kills.sh TRAINER [RUNS [SAVES [SEED]]]}") || exit 1
runs=${2:-30} kills=${3:-50} seed=${4:-1}
RANDOM=$seed
set -m      # otherwise background jobs would ignore SIGINT
mkdir "$dir/tmp" "$dir/shm"
export OMP_NUM_THREADS=1 TMPDIR=$dir/tmp OMPI_MCA_odls_base_sigkill_timeout=0 \
    OMPI_MCA_btl_vader_backing_directory=$dir/shm

ln -s "$trainer" "$dir/trainer" && trainer=$dir/trainer     # keeps pgrep from finding other tests' processes
folder=$dir/run endless=100000000 host=$(hostname)
limit=8         # seconds per collective, which only a stopped rank may exceed
small=(-e l2h2c32v257t32)
common=(-b 1 -u 0 -v 0 -s 0 -k constant --threads 1 --device cpu --dtype fp32 --hash full)

# start RANKS ARGUMENT...: starts a run in the background; sets jobs.
start() {
    jobs=()
    rm -f "$dir"/screen.*
    launch "$1"
    "${launcher[@]}" "$trainer" "${common[@]}" "${@:2}" >"$dir/screen.0" 2>&1 </dev/null & jobs+=($!)
}
await_end() { ends_within $hang_limit "${jobs[@]}"; }
ranks() { pgrep -f "^$trainer "; }
nothing_runs() { ! ranks >/dev/null; }
nothing_left() { await nothing_runs || need "processes remain: $(ranks)" false; }
step() { grep -aqs "^step *${1:-}" "$dir/screen.0"; }
messages() { cat "$dir"/screen.* | grep -ac '^train_gpt2_zero: '; }
message() { grep -am 1 '^train_gpt2_zero: ' "$dir/screen.0"; }
undisturbed() {     # RANKS ARGUMENT...
    start "$@"
    await_end
    hashes "$dir/screen.0"
}

# ---- contents of the folder

complete() { ls "$folder"/step_*/manifest.json 2>/dev/null | sed 's,.*/step_0*,,; s,/.*,,'; }
newest() { complete | tail -n 1; }
# new_save FILES: succeeds if a checkpoint contains a rank's file that is not in FILES
new_save() {
    local f
    for f in "$folder"/step_*/rank*; do [[ ! -e $f || $1 = *"$f"* ]] || return 0; done
    return 1
}
# Succeeds if the folder has a temporary file, or a checkpoint folder or model file without a manifest.
half_saved() {
    compgen -G "$folder/step_*/.manifest*" || compgen -G "$folder/*.tmp" || comm -23 \
        <(ls "$folder" | sed -nE 's/^(step|model)_0*([0-9]+).*/\2/p' | sort -u) <(complete | sort) | grep .
} >/dev/null
# Prints complete checkpoints that lack a model file, which the run may write after the checkpoint.
without_models() {
    comm -23 <(complete | sort) <(ls "$folder" | sed -nE 's/^model_0*([0-9]+)\.bin$/\1/p' | sort)
}
# Checks every checkpoint with an independent reader, written only from the description of the format. Without
# Python, only the resumed run checks them.
every_checkpoint_is_whole() {
    command -v python3 >/dev/null || return 0
    python3 - "$folder" <<'END' >"$dir/whole" 2>&1 || need "$(tail -n 1 "$dir/whole")" false
import glob, os, sys
sys.path.insert(0, "dev")
sys.dont_write_bytecode = True
import read_checkpoint as r
for name in glob.glob(os.path.join(sys.argv[1], "step_*", "manifest.json")):
    folder = os.path.dirname(name)
    manifest = r.read_manifest(folder)
    for file in manifest["files"]:
        r.check_file(folder, file, manifest["block_bytes"])
END
}

# ---- MPI jobs, in every setting

# shuffled DRAW: prints the lines of stdin in random order. The caller passes its $RANDOM as DRAW, because
# bash reseeds RANDOM in each subshell.
shuffled() { awk -v seed="$1" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -n | cut -f 2-; }
# arguments MODE STAGE OVERLAP: sets args
arguments() {
    args=("${small[@]}" -z "$2" --overlap "$3" --comm-timeout $limit)
    [ "$1" = window ] || args+=(--messages 1)
}
ranks_started() { [ "$(ranks | wc -l)" = "$1" ]; }

# one SIGNAL NP MODE STAGE OVERLAP: signals a random rank at a random moment during the start or the steps
one() {
    local signal=$1 np=$2 rank=$((RANDOM % $2)) early=$((RANDOM % 3 == 0)) delay last args
    delay=$(awk "BEGIN { print $((RANDOM % 1200)) / 1000 }")
    begin "kills.SIG$signal to rank $rank of $np, $3, stage $4, overlap $5, $delay s after $([ $early = 1 ] &&
        echo the start || echo step 5)"
    rm -rf "$folder"
    arguments "$3" "$4" "$5"
    start "$np" "${args[@]}" -x $endless -n 20 -nk 3 -o "$folder"
    if [ $early = 1 ]; then await ranks_started "$np"; else await step 5/; fi || need 'it did not start' false
    sleep "$delay"
    kill -"$signal" "$(rank_pid "$trainer" "$rank")"
    await_end
    need "status $status" [ "$status" != 0 ]
    nothing_left
    is "files in Open MPI's shared memory" "$(ls "$dir/shm")" ''
    every_checkpoint_is_whole
    "reports_$signal" "$rank" "$np"
    message | cut -c 1-150
    last=$(newest)
    if [ -n "$last" ]; then
        start "$np" "${args[@]}" -y 1 -x "$((10#$last))" -o "$folder"
        await_end
        is 'status of the resumed run' "$status" 0
        has "$dir/screen.0" "^resuming at step $((10#$last))$"
        checked=$((checked + 1))
    fi
    end
}
collective='(a reduce-scatter|an all-gather|a broadcast) of (unit [0-9]+|scalars)|a barrier'
when='(checkpoint of )?step [0-9]+'
reports_KILL() {    # mpirun names rank and host
    is messages "$(messages)" 0
    has "$dir/screen.0" "process rank $1 with PID [0-9]+ on node $host exited on signal 9"
}
reports_STOP() {
    local others="[$(seq -s '' 0 $(($2 - 1)) | tr -d "$1")]"
    is messages "$(messages)" 1
    if step; then
        has "$dir/screen.0" "^train_gpt2_zero: $when: rank $others \(host $host\) waited $limit s in \
($collective) for rank $1 \(host $host\): "
    else        # while the ranks start, MPI does not report which one is missing
        has "$dir/screen.0" "^train_gpt2_zero: (step 1: )?rank $others \(host $host\) waited"
    fi
}

# continues NP MODE STAGE OVERLAP: stops a rank for less than the limit, and checks that the run continues
continues() {
    local expected rank=$((RANDOM % $1)) pid args
    begin "kills.SIGSTOP and SIGCONT to rank $rank of $1, $2, stage $3, overlap $4"
    arguments "${@:2}"
    args+=(-x 3000)
    expected=$(undisturbed "$1" "${args[@]}")
    start "$1" "${args[@]}"
    await step 5/ || need 'it did not start' false
    pid=$(rank_pid "$trainer" "$rank")
    need 'the rank has ended' kill -STOP "$pid"
    sleep 1.5
    kill -CONT "$pid"
    await_end
    is digests "$(hashes "$dir/screen.0")" "${expected:-none}"
    end
}

# ---- kills during saves, in one folder

patient=("${small[@]}" --overlap 0 --comm-timeout 1000)
# how I: prints the save option of run I; every second pair of runs uses --async-save
how() { [ $(($1 % 4 / 2)) = 0 ] || echo --async-save; }

# strike RANKS EVERY ARGUMENT...: starts a run that resumes from the newest checkpoint and saves every EVERY
# steps, and kills it. If EVERY is 1, the kill usually interrupts a save.
strike() {
    local np=$1 every=$2 before files victims last draw=$RANDOM
    before=$(newest)
    files=$(ls -d "$folder"/step_*/rank* 2>/dev/null)
    start "$np" "${patient[@]}" -x $endless -n "$every" -nk 2 -y 1 -o "$folder" "${@:3}"
    if [ $every = 1 ]; then await new_save "$files"; else await step; fi || need 'it did not start' false
    sleep "0.0$(printf %02d $((RANDOM % 60)))"
    mapfile -t victims < <(ranks | shuffled $draw)
    [ $((RANDOM % 3)) = 0 ] || victims=("${victims[0]}")    # a third of the time all ranks, otherwise one
    kill -KILL "${victims[@]}"
    await_end
    nothing_left
    need "$(messages) messages" [ "$(messages)" -le 1 ]
    every_checkpoint_is_whole
    [ -z "$before" ] || has "$dir/screen.0" "^resuming at step $before$"
    last=$(newest)
    need "step ${last:-none} after $before" [ "${last:-0}" -ge "${before:-0}" ]
    if half_saved || [ -n "$(without_models)" ]; then in_saves=$((in_saves + 1)); fi
}

series() {      # RANKS KILLS
    local np=$1 i last disturbed
    begin "kills.$2 kills of $np ranks"
    rm -rf "$folder"
    for ((i = 0; i < $2; i++)); do
        strike "$np" $((i % 2 ? 40 : 1)) $(how $i)
        [ -z "$why" ] || break
    done
    last=$(($(newest) + 3))
    start "$np" "${patient[@]}" -x $last -n 1 -nk 2 -y 1 -o "$folder" $(how 2)
    await_end
    need "no summary: $(tail -n 1 "$dir/screen.0")" [ -e "$folder/summary.json" ]
    need "killed saves left files behind: $(ls "$folder")" not half_saved
    is checkpoints "$(complete | wc -l)" 2
    is 'checkpoints without model files' "$(without_models)" ''
    disturbed=$(hashes "$dir/screen.0")
    is digests "${disturbed:-none}" "$(undisturbed "$np" "${patient[@]}" -x $last)"
    end
    echo "   $i kills, $last steps"
}

# ---- the loop of llm.c's scripts, and signals

# Restarts the run until it has written a summary. Waits before each run while the file `steps` is empty.
run_until_done() {
    local i steps
    for ((i = 0;; i += 2)); do
        until steps=$(<"$dir/steps") && [ -n "$steps" ]; do
            : >"$dir/waits"
            sleep 0.05
        done
        mpirun --oversubscribe -np 2 "$trainer" "${common[@]}" "${patient[@]}" -x "$steps" -n 50 -nk 2 -y 1 \
            -o "$folder" $(how $i)
        [ ! -e "$folder/summary.json" ] || break
    done >"$dir/loop" 2>&1 </dev/null
}
# Sends each endless run one SIGTERM, until the loop waits or 120 s have passed. A second signal would end the
# run at once, which could hide a hang.
end_endless_runs() {
    local victim known='' until=$((SECONDS + 120))
    while [ ! -e "$dir/waits" ] && [ $SECONDS -lt $until ]; do
        victim=$(ranks | head -n 1)
        if [ "$victim" != "$known" ]; then
            known=$victim
            kill -TERM "$victim" 2>/dev/null
        fi
        sleep 0.05
    done
    [ -e "$dir/waits" ]
}
steps_made() { [ "$(grep -cs '^step ' "$dir/loop")" -ge "$1" ]; }
two_ranks() { [ "$(ranks | wc -l)" = 2 ]; }

# strike_by SIGNAL: signals a rank at a random moment
strike_by() {
    local victim
    await two_ranks || need 'the ranks did not start' false
    await steps_made $(($(grep -cs '^step ' "$dir/loop") + 1 + RANDOM % 80)) || need 'no steps' false
    sleep "0.0$(printf %02d $((RANDOM % 50)))"
    victim=$(ranks | sed -n "$((1 + RANDOM % 2))p")
    need "the rank ended before SIG$1" kill -"$1" "$victim"
    [ "$1" = USR1 ] || await not any_runs "$victim" || need "SIG$1 did not end a rank" false
}

# ----

echo "seed $seed"
checked=0
for signal in KILL STOP; do
    draw=$RANDOM
    mapfile -t settings < <(printf '%s\n' {2,3}' '{window,messages}' '{0,2,3}' '{0,1} | shuffled $draw)
    for ((i = 0; i < runs; i++)); do one $signal ${settings[i % ${#settings[@]}]}; done
done
echo "   $checked checkpoints loaded afterwards"
for mode in window messages; do
    [ "$runs" = 0 ] || continues $((2 + RANDOM % 2)) $mode $((RANDOM % 4)) $((RANDOM % 2))
done
in_saves=0
if [ "$kills" != 0 ]; then
    series 1 $((kills / 2))
    series 2 $((kills - kills / 2))
    begin "kills.$in_saves of $kills kills interrupted a save"
    need 'that is less than a quarter' [ $((in_saves * 4)) -ge "$kills" ]
    end
fi
begin 'kills.a loop that restarts the run, under signals of all kinds'
rm -rf "$folder"
last='' draw=$RANDOM
echo $endless >"$dir/steps"
run_until_done & loop=$!
for signal in $(printf '%s\n' KILL KILL KILL TERM HUP INT USR1 USR2 | shuffled $draw) TERM; do
    strike_by "$signal"
done
: >"$dir/steps"
if end_endless_runs; then
    last=$(($(newest) + 100))
    echo $last >"$dir/steps"
    ends_within $hang_limit $loop
else
    need 'a run did not end after SIGTERM' false
    ends_within 0 $loop         # lists and kills it
fi
disturbed=$(hashes "$dir/loop" | tail -n 1)
is digests "${disturbed:-none}" "$(undisturbed 2 "${patient[@]}" -x $last)"
end
echo "   resumed $(grep -c '^resuming' "$dir/loop") times," \
    "stopped $(grep -c '^stopped' "$dir/loop") times"
finish kills
