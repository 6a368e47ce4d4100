#!/usr/bin/env bash
# Ranks die (kill -9) at random instants, half of them while a checkpoint is saved. After each death the
# others have ended, every checkpoint in the folder is whole, and the run goes on from the newest. In the end
# it has the bits of a run that nobody disturbed. Then the same with signals of all kinds around a shell loop.
# Usage: tests/kill_saves.sh TRAINER [KILLS [SEED]]      50 kills, 0: the loop alone; seed 1 of their instants
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:?Usage: tests/kill_saves.sh TRAINER [KILLS [SEED]]}") || exit 1
kills=${2:-50} seed=${3:-1}
RANDOM=$seed
set -m      # what runs in the background does not ignore SIGINT
export OMP_NUM_THREADS=1 TMPDIR=$dir OMPI_MCA_odls_base_sigkill_timeout=0

ln -s "$trainer" "$dir/trainer" && trainer=$dir/trainer     # a name that no other test's processes have
folder=$dir/run endless=100000000
args=(-e l2h2c32v257t32 -b 1 -u 0 -v 0 -s 0 -k constant --threads 1 --overlap 0 --device cpu --dtype fp32
    --comm-timeout 60 --hash full)

# start WAY ARGUMENT...: a run in the background; sets jobs. WAY: how many ranks, and how they start.
start() {
    local way=$1 r
    jobs=()
    rm -f "$dir"/screen.*
    set -- "$trainer" "${args[@]}" "${@:2}"
    if [ "$way" = '2 by TCP' ]; then
        for r in 1 0; do
            "$@" -pi fs -pf "$dir/start" -pn 2 -pr $r >"$dir/screen.$r" 2>&1 </dev/null & jobs+=($!)
        done
        return
    fi
    launch "${way%% *}"
    "${launcher[@]}" "$@" >"$dir/screen.0" 2>&1 </dev/null & jobs+=($!)
}
# They are bounded by the --comm-timeout of the ranks, and by what calls this test.
await_end() { local job; for job in "${jobs[@]}"; do wait "$job" 2>/dev/null; done; }
ranks() { pgrep -f "^$trainer "; }
nothing_runs() { ! ranks >/dev/null; }
step() { grep -qs '^step ' "$dir/screen.0"; }

# ---- what is in the folder

complete() { ls "$folder"/step_*/manifest.json 2>/dev/null | sed 's,.*/step_0*,,; s,/.*,,'; }
last_begun() { ls -d "$folder"/step_* | tail -n 1 | sed 's/.*step_0*//'; }
newest() { complete | tail -n 1; }
# A rank's file, in whatever folder, that is not there in $1
new_save() {
    local f
    for f in "$folder"/step_*/rank*; do [[ ! -e $f || $1 = *"$f"* ]] || return 0; done
    return 1
}
# A folder or a model file without its manifest, or a temporary file
half_saved() {
    local f
    [ -z "$(compgen -G "$folder/step_*/.manifest*")$(compgen -G "$folder/*model_*.bin?*")" ] || return 0
    for f in "$folder"/step_*; do [ ! -e "$f" ] || [ -e "$f/manifest.json" ] || return 0; done
    for f in "$folder"/model_*; do
        [ ! -e "$f" ] || { f=${f##*/model_}; [ -e "$folder/step_${f%.bin*}/manifest.json" ] || return 0; }
    done
    return 1
}
# Complete checkpoints whose model files are not there: a model file may be written after its checkpoint.
without_models() {
    local step
    for step in $(complete); do
        [ -e "$folder/model_$(printf %08d "$step").bin" ] || echo "$step"
    done
}
# Whoever reads the format from its description alone finds every checkpoint whole. Where there is no Python,
# the run that goes on has to.
every_checkpoint_is_whole() {
    command -v python3 >/dev/null || return 0
    python3 - "$folder" <<'END' >"$dir/whole" 2>&1
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

# ---- one kill

# Complete checkpoints that the run did not take. That a save did not end it may say.
passed_over() { grep 'looking for an older' "$dir/screen.0" | grep -v 'the save did not end'; }

# The saves of run number $1 are beside training, or not
how() { [ $(($1 % 4 / 2)) = 0 ] || echo --async-save; }

# strike WAY EVERY ARGUMENT...: a run goes on from the newest checkpoint until it is killed. It saves every so
# many steps; every step, it does little else.
strike() {
    local way=$1 every=$2 before files victims last messages
    before=$(newest)
    files=$(ls -d "$folder"/step_*/rank* 2>/dev/null)
    start "$way" -x $endless -n "$every" -nk 2 -y 1 -o "$folder" "${@:3}"
    if [ $every = 1 ]; then await new_save "$files"; else await step; fi || need 'it did not start' false
    sleep "0.0$(printf %02d $((RANDOM % 60)))"
    mapfile -t victims < <(ranks | shuf --random-source=<(yes $RANDOM))
    [ $((RANDOM % 3)) = 0 ] || victims=("${victims[0]}")    # all ranks at once, or one
    kill -KILL "${victims[@]}"
    local since=$EPOCHREALTIME
    await_end
    need "the others took $(awk "BEGIN { print $EPOCHREALTIME - $since }") s" number \
        "$EPOCHREALTIME - $since < 5"
    await nothing_runs || need "processes are left: $(ranks)" false    # one may have to wait for its disk
    messages=$(cat "$dir"/screen.* | grep -c '^train_gpt2_zero: ')
    need "$messages messages" [ "$messages" -le 1 ]
    need "$(tail -n 1 "$dir/whole" 2>/dev/null)" every_checkpoint_is_whole
    if [ -n "$before" ]; then
        has "$dir/screen.0" "^resuming at step $before$"
    fi
    is 'checkpoints passed over' "$(passed_over)" ''
    last=$(newest)
    need "step ${last:-none} after $before" [ "${last:-0}" -ge "${before:-0}" ]
    if half_saved || [ -n "$(without_models)" ]; then in_saves=$((in_saves + 1)); fi
}

undisturbed() {     # WAY STEPS
    start "$1" -x "$2"
    await_end
    hashes "$dir/screen.0"
}

series() {      # WAY KILLS
    local way=$1 i last disturbed
    begin "kill_saves.$2 kills of $way"
    rm -rf "$folder"
    for ((i = 0; i < $2; i++)); do
        # shellcheck disable=SC2046
        strike "$way" $((i % 2 ? 40 : 1)) $(how $i)
        [ -z "$why" ] || break
    done
    last=$(($(last_begun) + 3))     # beyond what dead saves have left
    # shellcheck disable=SC2046
    start "$way" -x $last -n 1 -nk 2 -y 1 -o "$folder" $(how 2)
    await_end
    need "it does not come to its end: $(tail -n 1 "$dir/screen.0")" \
        [ -e "$folder/summary.json" ]
    need "what dead saves have left is still there: $(ls "$folder")" not half_saved
    is checkpoints "$(complete | wc -l)" 2
    is 'checkpoints without model files' "$(without_models)" ''
    disturbed=$(hashes "$dir/screen.0")
    is digests "${disturbed:-none}" "$(undisturbed "$way" $last)"
    end
    echo "   $i kills, $last steps"
}

# ---- the loop of llm.c's scripts, and signals

# It starts the run again until it is done, which its summary says.
run_until_done() {
    local i
    for ((i = 0;; i += 2)); do
        # shellcheck disable=SC2046
        mpirun --oversubscribe -np 2 "$trainer" "${args[@]}" -x "$(cat "$dir/steps")" -n 50 -nk 2 -y 1 \
            -o "$folder" $(how $i)
        [ ! -e "$folder/summary.json" ] || break
    done >"$dir/loop" 2>&1 </dev/null
}
steps_made() { [ "$(grep -cs '^step ' "$dir/loop")" -ge "$1" ]; }
two_ranks() { [ "$(ranks | wc -l)" = 2 ]; }

# strike_by SIGNAL: at a random instant
strike_by() {
    local victim
    await two_ranks || need 'the ranks did not start' false
    await steps_made $(($(grep -cs '^step ' "$dir/loop") + 1 + RANDOM % 80)) || need 'no steps' false
    sleep "0.0$(printf %02d $((RANDOM % 50)))"
    victim=$(ranks | sed -n "$((1 + RANDOM % 2))p")
    need "it has ended before SIG$1" kill -"$1" "$victim"
    [ "$1" = USR1 ] || await gone "$victim" || need "SIG$1 did not end a rank" false
}

around_a_loop() {
    local signal last disturbed
    begin 'kill_saves.a loop, and signals of all kinds'
    rm -rf "$folder"
    echo $endless >"$dir/steps"
    run_until_done & loop=$!
    for signal in $(shuf -e KILL KILL KILL TERM HUP INT USR1 USR2 --random-source=<(yes $RANDOM)); do
        strike_by "$signal"
    done
    strike_by TERM
    last=$(($(last_begun) + 500))
    echo $last >"$dir/steps"        # the next run, or the one after it, comes to its end
    await two_ranks && kill -TERM "$(ranks | head -n 1)" 2>/dev/null
    wait $loop
    disturbed=$(hashes "$dir/loop" | tail -n 1)
    is digests "${disturbed:-none}" "$(undisturbed '2 by MPI' $last)"
    end
    echo "   resumed $(grep -c '^resuming' "$dir/loop") times," \
        "stopped $(grep -c '^stopped' "$dir/loop") times"
}
gone() { [ -z "$1" ] || ! kill -0 "$1" 2>/dev/null; }

echo "seed $seed"
third=$((kills / 3)) in_saves=0
if [ "$kills" != 0 ]; then
    series 1 $third
    series '2 by TCP' $third
    series '2 by MPI' $((kills - 2 * third))
    begin "kill_saves.$in_saves of $kills kills fell into a save"
    need 'fewer than a quarter' [ $((in_saves * 4)) -ge "$kills" ]
    end
fi
around_a_loop
finish kill_saves
