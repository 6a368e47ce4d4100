#!/usr/bin/env bash
# Simulates power loss at every instant of a run that saves checkpoints. Whatever the power loss leaves on the
# disk must contain the newest completed checkpoint, and a run resumed from it must end with the same bits as
# the undisturbed run. tests/shim/disk.c records the changes to the folder, tests/power_loss.c builds and
# checks the folders that a power loss may leave, and this script resumes a run from some of them.
# Usage: tests/power_loss.sh BUILD TRAINER [RESUMED [SEED]]
#   RESUMED (12)    folders to resume from, per recorded run
#   SEED (1)        selects which states of the disk to try
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. "$(dirname "$0")/cases.sh"
usage='Usage: tests/power_loss.sh BUILD TRAINER [RESUMED [SEED]]'
program=$(realpath "${1:?$usage}/tests/power_loss") || exit 1
trainer=$(realpath "${2:?$usage}") || exit 1
resumed=${3:-12} seed=${4:-1}
export OMP_NUM_THREADS=1
echo "seed $seed"

args=(-e l2h2c32v257t32 -b 2 -k constant -n 2 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --hash full --device cpu
    --dtype bf16 --comm-timeout 60)
make_shim

# run RANKS SCREEN ARGUMENT...: $with holds its environment variables
with=()
run() {
    local launcher screen=$2
    launch "$1"
    timeout -s KILL $hang_limit "${launcher[@]}" env ${with[@]+"${with[@]}"} "$trainer" "${args[@]}" \
        "${@:3}" >"$screen" 2>&1 </dev/null
}
# record NAME RANKS ARGUMENT...: records a run of six steps in $dir/NAME/out. With --async-save, writing step
# 2's model file blocks until step 3 is logged.
record() {
    local root=$dir/$1 job
    mkdir -p "$root"
    with=("LD_PRELOAD=$shim" "DISK_FOLDER=$root" "DISK_RECORD=$root.record"
        "DISK_HOLD=model_00000002.bin:$root.go")
    [[ " $* " = *' --async-save '* ]] || : >"$root.go"
    run "$2" "$root.screen" -x 6 -o "$root/out" "${@:3}" &
    job=$!
    until grep -qs '^s:3 trl' "$root/out/main.log" || ! kill -0 $job 2>/dev/null; do sleep 0.01; done
    : >"$root.go"
    wait $job
    local status=$?
    with=()
    [ $status = 0 ] || { tail -n 5 "$root.screen"; return 1; }
}
# instants NAME ARGUMENT...: builds and checks all folders, with output in $dir/found
instants() { "$program" "$dir/$1.record" "$dir/$1" "$seed" "${@:2}" >"$dir/found" 2>&1; }

# resume NAME RANKS: resumes a run from each kept folder; prints any errors
resume() {
    local kept expect screen
    for kept in "$dir/kept.$1"/*; do
        expect=$(cat "$kept/expect") screen=$kept/screen
        if ! run "$2" "$screen" -x 6 -nk 1 -y 1 -o "$kept/out"; then
            echo "$kept: $(tail -n 1 "$screen")"
        elif [ "$expect" = -1 ]; then
            grep -q '^resuming' "$screen" && echo "$kept: $(grep '^resuming' "$screen")"
        else
            grep -q "^resuming at step $expect\$" "$screen" || echo "$kept: did not resume at step $expect"
        fi
        [ "$(hashes "$screen")" = "$reference" ] || echo "$kept: $(hashes "$screen")"
    done
}
# power_loss NAME RANKS ARGUMENT...: records a run and simulates power loss at every instant
power_loss() {
    local record=$1 base=() bad tries=0
    [ ! -d "$dir/$record.base" ] || base=(--base "$dir/$record.base")
    [[ " $* " != *' --async-save '* ]] || base+=(--async 1)
    begin "power loss.$record, every instant"
    need "it did not run" record "$@"
    # Record again if no step was logged while a model file was being written.
    while [[ " $* " = *' --async-save '* ]] && [ -z "$why" ] && [ $((tries++)) -lt 20 ] &&
        "$program" "$dir/$record.record" "$dir/$record" "$seed" --async 1 | grep -q '^0 model'; do
        rm -rf "${dir:?}/$record" "$dir/$record".*
        need "it did not run" record "$@"
    done
    mkdir "$dir/kept.$record"
    need 'a folder breaks the promise' instants "$record" ${base[@]+"${base[@]}"} \
        --keep "$dir/kept.$record" "$resumed"
    reference=$(hashes "$dir/$record.screen")
    need 'too few instants' number "$(sed -n 's/ instants.*//p' "$dir/found") > 90"
    need 'no digests' [ ${#reference} -gt 40 ]
    end
    sed 's/^/   /' "$dir/found"
    begin "power loss.$record, resumed from $resumed of the folders"
    bad=$(resume "$1" "$2")
    need "$bad" [ -z "$bad" ]
    need 'the wrong number of folders was kept' [ "$(ls "$dir/kept.$record" | wc -l)" = "$resumed" ]
    end
    rm -rf "$dir/kept.$record"
}

power_loss fresh 1 -nk 1
for number in 1 2; do               # of ranks
    before=$dir/resumed.$number.base
    mkdir "$before"
    run $number "$dir/screen" -x 2 -nk 1 -o "$before/out" || echo "no base: $(tail -n 1 "$dir/screen")"
    cp -r "$before" "$dir/resumed.$number"
    power_loss resumed.$number $number -nk 1 -y 1
done
power_loss async 1 -nk 1 --async-save
power_loss async.ranks 2 -nk 2 -z 2 --async-save

# ---- each sync is needed: without it, some folder must break the promise

try_seeds() { instants "$@" && seed=$((seed + 1)) instants "$@"; }
# noticed RECORD SYNCS ARGUMENT...: checks that leaving out these syncs is noticed
noticed() {
    local record=$1 syncs=$2 sync left_out=()
    begin "power loss.$record without $syncs: noticed"
    for sync in $syncs; do left_out+=(--without "$sync"); done
    # Few instants depend on a sync, so a second seed may be needed.
    need 'no folder breaks the promise' not try_seeds "$record" "${left_out[@]}" "${@:3}"
    has "$dir/found" ' 1 violations$'
    end
}
for syncs in states manifest before-rename after-rename removal model model-name output summary; do
    noticed fresh "$syncs"
done
# Without --async-save, the sync after the model file also persists the name of the checkpoint's folder.
for syncs in parent model model-name; do noticed async "$syncs" --async 1; done
finish power_loss
