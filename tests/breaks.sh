#!/usr/bin/env bash
# Breaks runs that save checkpoints. Every case takes the same steps: start a run, break it, check its end
# (status, one message, no process left) and its folder, resume it, and compare the bits with those of an
# undisturbed run. Each group is a list of faults:
#   signals     every signal that stops a run or makes it save; files that cannot grow; scripts/until_done.sh
#   async       --async-save: slow writes, a full disk and a kill while training continues
#   calls       one failed call per run: the first file call of a kind in one run, the second in the next, and
#               so on; failed allocations; a disk that stays full; kills at each call that changes the folder
#   power       power loss at every instant: tests/power_loss.c builds the folders that it may leave
#   lost        SIGKILL or SIGSTOP to a random rank at a random moment, in every setting
#   saves       kills in one folder, half of them during a save
#   loop        until_done.sh while its ranks get signals of all kinds
# Usage: tests/breaks.sh BUILD TRAINER GROUP...
#   SEED=1          seed of everything drawn
#   KILLS=10        lost: jobs with a killed rank, and as many with a stopped one
#   KILL_SAVES=50   saves: kills
#   CALLS=all       calls: fails every call, with each of its errors. By default each fails with one error; of
#                   allocations only the first and last per call site fail, on two ranks every sixth call, and
#                   with --async-save a third of these
#   RESUMED=12      power: folders to resume from, per recorded run
# shellcheck disable=SC2012,SC2016,SC2030,SC2031,SC2034,SC2046,SC2086
case " $* " in
    *' saves '* | *' lost '*) ;;        # need a disk whose syncs take time
    *) [ ! -w /dev/shm ] || export TMPDIR=/dev/shm ;;
esac
. "$(dirname "$0")/cases.sh"
usage='Usage: tests/breaks.sh BUILD TRAINER GROUP...'
power_loss=$(realpath "${1:?$usage}")/tests/power_loss
program=$(realpath "${2:?$usage}") || exit 1
seed=${SEED:-1} host=$(hostname) endless=1000000
RANDOM=$seed
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 OMPI_MCA_odls_base_sigkill_timeout=0

# ---- the steps of every case

common=(-b 2 -k constant -u 0 -v 0 -s 0 --threads 1 --overlap 0 --device cpu --dtype bf16 --hash full)
model=l2h2c32v257t32
with=()         # environment variables of the ranks
wrap=           # shell code that each rank runs first; may use $rank
prefix=()       # a command that starts the launcher
# at NAME: works in the folder $dir/NAME. Each has its own link to the trainer, to find only its processes.
at() {
    root=$dir/$1/run folder=$root/out screen=$dir/$1/screen trainer=$dir/$1/trainer shm=$dir/$1/shm
    mkdir -p "$shm"
    ln -sf "$program" "$trainer"
    export TMPDIR=$dir/$1 OMPI_MCA_btl_vader_backing_directory=$shm
}
fresh() { rm -rf "$root" && mkdir "$root"; }
# start RANKS ARGUMENT...: starts a run in the background, with its output folder $folder if there is one
start() {
    local shell=() out=()
    launch "$1"
    [ -z "$wrap" ] || shell=(bash -c "rank=\${OMPI_COMM_WORLD_RANK:-0}; $wrap exec \"\$@\"" -)
    [ -z "$folder" ] || out=(-o "$folder")
    : >"$screen"
    timeout -k 5 $hang_limit "${prefix[@]}" "${launcher[@]}" "${shell[@]}" env "${with[@]}" "$trainer" \
        -e "$model" "${common[@]}" "${@:2}" "${out[@]}" >>"$screen" 2>&1 </dev/null & job=$!
}
ranks() { pgrep -f "^$trainer "; }
rank() { rank_pid "$trainer" "$1" | grep . || ranks; }      # NUMBER: prints its PID
nothing_runs() { not ranks >/dev/null; }
messages() { grep -a '^train_gpt2_zero: ' "$screen" | grep -v ': SIG[A-Z0-9]* stops'; }
matches() { [[ $1 =~ ^($2)$ ]]; }
# ended STATUS MESSAGE [MOST]: waits for the run's end. Checks its status, that a line matches MESSAGE, that
# at most MOST (1) error messages were printed, and that no process or shared memory remains.
ended() {
    wait $job; status=$?
    [ $status != 124 ] || need "did not end within $hang_limit s" false
    matches $status "$1" || need "status $status: $(tail -n 3 "$screen")" false
    [ -z "$2" ] || has "$screen" "$2"
    [ $status = 0 ] || need "messages: $(messages)" [ "$(messages | wc -l)" -le "${3:-1}" ]
    [ ${#launcher[@]} != 0 ] || return      # the job was the only process
    await nothing_runs || need "processes remain: $(ranks)" false
    need "files remain in shared memory: $(ls "$shm")" not compgen -G "$shm/*"
} >/dev/null 2>&1       # hides bash's reports of killed jobs

complete() {            # prints the steps of the folder's complete checkpoints
    local f
    for f in "$folder"/step_*/manifest.json; do
        f=${f%/*}
        [ ! -e "$f/manifest.json" ] || echo $((10#${f##*_}))
    done
}
newest() {
    local all=("$folder"/step_*/manifest.json)
    local f=${all[-1]%/*}
    [ ! -e "$f/manifest.json" ] || echo $((10#${f##*_}))
}
# Succeeds if the folder has a temporary file, or a checkpoint folder or model file without a manifest.
half_saved() {
    local f number
    for f in "$folder"/{*.tmp,step_*/.manifest*,step_*,model_*.bin}; do
        number=${f##*_} number=${number%.bin}
        [ ! -e "$f" ] || [ -e "$folder/step_$number/manifest.json" ] || return 0
    done
    return 1
}
# Prints complete checkpoints that lack a model file, which the run may write after the checkpoint.
without_models() {
    local step
    for step in $(complete); do
        [ -e "$(printf '%s/model_%08d.bin' "$folder" $step)" ] || echo $step
    done
}
# intact: checks every checkpoint and model file. With $reader, an independent reader, written only from the
# description of the format, checks the checkpoints too.
reader=
intact() {
    local bad
    bad=$("$trainer" --verify "$folder" 2>&1 | grep '^BAD' | grep -vE 'no complete checkpoint|: No such')
    need "$bad" [ -z "$bad" ]
    [ -z "$reader" ] || python3 - "$folder" <<'END' >"$dir/reader" 2>&1 || need "$(<"$dir/reader")" false
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
# undisturbed RANKS STEPS: prints the hashes of an undisturbed run
undisturbed() {
    local known=$dir/bits.$1.$2.${model##*/} folder='' with=() wrap='' prefix=() screen=$dir/undisturbed
    if [ ! -s "$known" ]; then
        start "$1" -x "$2"
        wait $job
        hashes "$screen" >"$known"
    fi
    cat "$known"
}
# same_bits RANKS STEPS: compares the hashes of the run with those of an undisturbed run
same_bits() {
    local expected
    expected=$(undisturbed "$@")
    is hashes "$(hashes "$screen" | tail -n 1)" "${expected:-none}"
}
# broken RANKS OPTIONS STATUS MESSAGE BREAK...: starts a run, breaks it, and checks its end and its folder
most=1
broken() {
    local before after
    before=$(newest)
    start "$1" -x $endless $2
    "${@:5}"
    ended "$3" "$4" $most
    intact
    after=$(newest)
    need "step ${after:-none} after $before" [ "${after:-0}" -ge "${before:-0}" ]
}
first_step=1    # in the folder's logs; empty: not all of the logs and removals are on the disk
# repaired RANKS STEPS ARGUMENT...: resumes the run up to this step. Checks that it resumes from the newest
# checkpoint, ends with the bits of an undisturbed run, has logged each step once, and removes what the broken
# run left behind.
repaired() {
    local with=() wrap='' prefix=() from
    from=$(newest)
    start "$1" -x "$2" -y 1 "${@:3}"
    ended 0 "${from:+^resuming at step $from\$}"
    [ -n "$from" ] || need "$(grep '^resuming' "$screen")" not grep -q '^resuming' "$screen"
    same_bits "$1" "$2"
    is 'checkpoints without model files' "$(without_models)" ''
    [ -n "$first_step" ] || return
    need 'metrics.jsonl lacks a step, or has one twice' cmp -s <(seq "$first_step" "$2") \
        <(sed -E 's/.*"step": ([0-9]+),.*/\1/' "$folder/metrics.jsonl")
    need "the broken run's files remain: $(cd "$folder" && echo * step_*/.manifest*)" not half_saved
}
# fault NAME RANKS OPTIONS STATUS SAVES MESSAGE BREAK...: one case. SAVES: the number of complete checkpoints
# that the broken run must leave
fault() {
    local saves
    begin "breaks.$1"
    fresh
    broken "$2" "$3" "$4" "$6" "${@:7}"
    saves=$(complete | wc -l)
    need "$saves checkpoints" matches $saves "$5"
    if [ -e "$folder/summary.json" ]; then
        same_bits "$2" "$(json_value "$folder/summary.json" steps)"
    fi
    [ $saves = 0 ] || repaired "$2" $(($(newest) + 5))
    [ -z "$why" ] || why="$why; $(tail -n 5 "$screen" | cut -c 1-200)"
    end
}

# ---- ways to break a run

printed() { grep -aqsE -- "$1" "$screen"; }
prints() { await printed "$1" || need "no '$1'" false; }
at_step() { prints "^step *$1/"; }
sleep_ms() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }
# send SIGNAL RANK: after step 3, to a rank or to mpirun
send() {
    at_step 3
    kill -"$1" "$(if [ "$2" = mpirun ]; then pgrep -f "^mpirun .*$trainer "; else rank "$2"; fi)"
}
then_send() { prints "$1" && kill -"$2" "$(rank "$3")"; }       # PATTERN SIGNAL RANK
# ask REASON: checks that the run prints on SIGUSR1 why it saves nothing, and stops it
ask() {
    send USR1 1
    then_send "^SIGUSR1: no checkpoint .*$1" TERM 0
}
# twice SIGNAL PATTERN: rank 0 cannot act on the first signal, because it waits for rank 1, which is stopped
twice() {
    send STOP 1
    kill -"$1" "$(rank 0)"
    prints "$2"
    sleep 0.3       # signals within 0.2 s count as one
    kill -"$1" "$(rank 0)"
    sleep 0.1
    kill -CONT "$(rank 1)" 2>/dev/null
}
# Rank 0 has lost its terminal by the time rank 1 gets the signal. Neither may fail.
taken() { grep -q '^ShdPnd:[[:space:]]*0*$' "/proc/$1/status"; }        # PID: no signal is pending
without_stdout() {
    cat "$dir/stdout" >>"$screen" & local reader=$!
    send STOP 0
    kill -TERM "$(rank 1)"
    need 'rank 1 did not receive the signal' await taken "$(rank 1)"
    kill -KILL $reader
    wait $reader
    kill -CONT "$(rank 0)"
} 2>/dev/null
takes_signals() { (((0x$(sed -n 's/^SigBlk:\t//p' "/proc/$(rank 0)/status") & 0x4000) != 0)); } 2>/dev/null
before_first_step() { need 'it did not start' await takes_signals; kill -TERM "$(rank 0)"; }
spent() { [ "$(cut -d ' ' -f 14 "/proc/$1/stat")" -gt 50 ]; } 2>/dev/null     # half a second of CPU time
in_validation() {
    prints 'plain data parallel'
    need 'it does not validate' await spent "$(rank 1)"
    kill -TERM "$(rank 0)"
}
has_manifest() { [ -n "$(newest)" ]; }
save_and_go_on() {
    send USR1 1
    need 'no checkpoint' await has_manifest
    at_step $(($(newest) + 10))
    send USR2 mpirun
}
hang_up() { send HUP 0; ask 'no folder'; need 'SIGHUP was not ignored' not printed SIGHUP; }
stop_loop() { kill -INT "$(pgrep -P $job)"; }
grew() { sed -n '/^resuming/,$p' "$screen" | grep -q '^step '; }
crash_and_stop_loop() {
    need 'no checkpoint' await has_manifest
    send KILL 1
    need 'the resumed run made no steps' await grew
    stop_loop
}

test_signals() {
    local stopped='^stopped after step [0-9]+ of [0-9]+; its checkpoint is saved' wrap='' prefix=()
    local folder="$root/it's a run"
    local nothing='^train_gpt2_zero: SIGTERM ends the run; there is nothing to save$' at_once other=$dir/other
    fault 'SIGTERM, usually during validation or sampling' 1 '-v 1 -m 50 -s 1 -g 20' 0 1 "$stopped" \
        send TERM 0
    fault SIGINT 2 '' 0 1 "$stopped" send INT 1
    fault SIGUSR2 2 '--async-save -n 1000000' 0 1 "$stopped" send USR2 1
    # It must save, because -y 1 would not find the other folder.
    (folder=$other; start 2 -x 3 -n 3; wait $job)
    first_step=4
    fault 'SIGUSR2 before the first step of a run resumed from another folder' 2 \
        "--resume $other/step_00000003 -s 3 -g 4000" 0 1 '^stopped after step 3 of' \
        then_send ^generating USR2 1
    first_step=1
    fault 'SIGUSR1 saves and the run continues; SIGUSR2 to mpirun' 2 '' 0 2 "$stopped" save_and_go_on
    at_once='^train_gpt2_zero: SIG[TERMHUP]+ stops .* at once$'
    fault 'a second SIGTERM ends the run at once' 2 '' 143 0 '' twice TERM "$at_once"
    # A closing terminal sends SIGHUP, and its shell may send another up to a second later.
    fault 'a second SIGHUP is ignored' 2 '-z 0' 0 1 "$stopped" twice HUP "$at_once"

    mkfifo "$dir/stdout"
    wrap="[ \$rank != 0 ] || exec >'$dir/stdout';"
    fault 'SIGTERM to rank 1 while rank 0 has no stdout' 2 '' 0 1 '' without_stdout
    wrap='[ $rank = 0 ] || exec sleep 1000;'        # rank 0 waits for a rank that does not start
    fault 'SIGTERM before the first step' 2 '' 143 0 "$nothing" before_first_step
    wrap='[ $rank = 0 ] || set -- "${@:1:$#-2}";'   # rank 1 would not take part in a save
    fault 'SIGTERM, a folder that only rank 0 has' 2 '' 0 0 \
        '^stopped after .*, because .*-o is not a folder shared' ask '-o is not a folder shared'
    wrap='exec > >(head -n 5 >/dev/null);'
    fault 'a closed stdout is an error, after a checkpoint' 1 '' 1 1 \
        '^train_gpt2_zero: stdout: Broken pipe; stopped after .*its checkpoint is saved$' true
    wrap='exec > >(exec cat) 2>&1; ulimit -f 64;'
    fault 'file-size limit: metrics.jsonl' 1 '' 1 0 \
        '^train_gpt2_zero: .*/metrics.jsonl.*: .*File too large' true
    wrap=${wrap/64/8}
    fault 'file-size limit: rank00000' 1 '-n 1' 1 0 \
        '^train_gpt2_zero: .*/rank00000.*: .*raise the limit \(ulimit -f\)' true
    wrap=
    # A validation of 2^22 tokens takes much longer than the limit of 60 s.
    { head -c 8 data/stories_val.bin; printf '\0\0\100\0'; } >"$dir/endless.bin"
    truncate -s $((1024 + 2 * 4194304)) "$dir/endless.bin"
    fault 'SIGTERM during the validation before the first step' 2 "-v 1 -m -1 -j $dir/endless.bin" 143 0 \
        "$nothing" in_validation
    prefix=(env PAUSE=0 scripts/until_done.sh)
    fault 'until_done.sh restarts after a crash, and stops on a signal' 2 '-n 50 -y 1' 0 '.*' "$stopped" \
        crash_and_stop_loop
    prefix=()
    folder=
    fault 'SIGTERM without a folder' 1 '' 0 0 '^stopped after .*, because .*no folder' ask 'no folder'
    wrap='set -- nohup "$@";'
    fault 'SIGHUP is ignored under nohup' 1 '' 0 0 '^stopped after' hang_up

    # A fake mpirun starts no ranks and waits forever.
    begin 'breaks.until_done.sh ends an mpirun that hangs without ranks, and gives up with its status'
    mkdir "$dir/fake"
    mkfifo "$dir/fake/never"
    printf '%s\n' '#!/bin/sh' true 'read -r x <"${0%/*}/never"' >"$dir/fake/mpirun"
    chmod +x "$dir/fake/mpirun"
    PATH=$dir/fake:$PATH TRIES=2 PAUSE=0 HANG=1 timeout $hang_limit scripts/until_done.sh mpirun \
        -o "$other" -y 1 2>"$screen"
    is status $? 137
    has "$screen" '^until_done.sh: 2 tries without .* the last .*status 137$'
    is reports "$(grep -c '^until_done.sh: mpirun hangs: .* 1 s' "$screen")" 2
    end
}

# ---- --async-save

go=$dir/go
hold() { rm -f "$go"; with=("LD_PRELOAD=$shim" "DISK_FOLDER=$root" "DISK_HOLD=$1:$go"); }      # FILE
is_complete() { prints "^the checkpoint of step $1 is complete"; }
without() { need "$1 exists" [ ! -e "$folder/$1" ]; }
during_states() {
    at_step 6
    without step_00000004/manifest.json
    : >"$go"
    prints '^writing checkpoint at step 6'
    need 'the next save began first' printed '^the checkpoint of step 4 is complete'
}
during_model() {
    at_step 6
    is_complete 4
    intact
    without model_00000004.bin
    need 'the next save has begun' not printed '^writing checkpoint at step 6'
    : >"$go"
}
at_the_end() {
    is_complete 8
    need 'the run ended without waiting' any_runs $job
    without summary.json
    : >"$go"
}
kill_in_model() {
    is_complete 4
    need 'the write did not begin' await compgen -G "$folder/model_00000004.bin.*.tmp" >/dev/null
    kill -KILL $(ranks)
    without model_00000004.bin
}
fills_up() { wait $job; is 'model files' "$(cd "$folder" && echo model*)" model_00000002.bin; }
# Prints the manifest without what differs between runs: file names and the checksum.
facts() { sed -E 's/rank([0-9]{5})-[0-9a-f]{16}/rank\1/g; /^"xxh3"/d' "$1/step_00000008/manifest.json"; }
test_async() {
    local with=() how plain=$dir/plain options='--async-save --overlap 1 -x 8 -n 2 -nk 2'
    make_shim
    begin 'breaks.async: the same checkpoints as without it'
    fresh
    (folder=$plain; start 2 ${options#* }; wait $job)
    need 'the table lists a copy without --async-save' not printed 'copy for checkpoints'
    start 2 $options
    ended 0 'copy for checkpoints'
    same_bits 2 8
    is manifest "$(facts "$folder")" "$(facts "$plain")"
    is 'checkpoints kept by -nk' "$(complete | xargs)" '6 8'
    need 'the model files differ' cmp -s {"$plain","$folder"}/model_00000008.bin
    end
    hold step_00000004/rank
    fault 'async: steps while the states are written' 2 "$options" 0 2 '' during_states
    hold model_00000004.bin
    fault 'async: steps while a model file is written' 2 "$options" 0 2 '' during_model
    hold model_00000004.bin
    fault 'async: a kill while a model file is written' 2 "$options" '[1-9].*' 2 '' kill_in_model
    hold model_00000008.bin
    fault 'async: the end waits for the model file' 2 "$options" 0 2 '' at_the_end
    with=("LD_PRELOAD=$shim" "DISK_FOLDER=$root" DISK_FAIL=write:1+:28:model_00000004.bin)
    for how in "$options" "${options#* }"; do
        fault "async: the disk is full when the model file is written, with ${how%% *}" 2 "$how" '[1-9].*' 2 \
            '^train_gpt2_zero: .*model_00000004.bin: .*No space left.* step 4 is complete' fills_up
    done
}

# ---- one failed call per run

# The shim must wrap every call that the trainer makes.
wraps_every_call() {
    local calls='open openat creat read write pread pwrite readv writev preadv pwritev sendfile splice
        copy_file_range mkstemp mkdtemp truncate ftruncate fallocate posix_fallocate fsync fdatasync
        sync_file_range sync syncfs rename renameat renameat2 remove unlink unlinkat rmdir mkdir mkdirat
        linkat symlink opendir fdopendir readdir scandir nftw stat lstat fstat fstatat statx access faccessat
        fopen fdopen freopen flock lockf malloc calloc realloc reallocarray aligned_alloc memalign
        posix_memalign strdup strndup asprintf vasprintf open_memstream getrandom fcntl dup dup2 dup3'
    begin 'breaks.calls: the shim wraps every call'
    nm -D --undefined-only "$program" | sed -nE 's/^ +U ([a-z_0-9]+).*/\1/p' | sed -E 's/(64|_2)$//' |
        sort | grep -xF "$(printf '%s\n' $calls)" >"$dir/made"
    nm -D --defined-only "$dir/disk.so" | sed -nE 's/.* [TW] //p' | sort >"$dir/wrapped"
    is 'calls not wrapped' "$(comm -23 "$dir/made" "$dir/wrapped" | xargs)" ''
    need 'found 20 calls or fewer' [ "$(wc -l <"$dir/made")" -gt 20 ]
    end
}
# prepared PHASE RANKS: prepares an empty folder, or one with a checkpoint, logs or a model; sets options
prepared() {
    local base=$dir/base$2/run/out
    fresh
    options='-x 4 -n 2 -nk 1 -y 1 --comm-timeout 60'
    case $1 in
        async) options+=' --async-save' ;;
        resumed) cp -r "$base" "$folder" ;;
        logs) cp -r "$base" "$folder"; rm -r "$folder"/{step_*,model_*,summary.json} ;;     # killed early
        model) model=$root/model.bin; cp "$base/model_00000002.bin" "$model" ;;
    esac
}
# disk RANK VARIABLE=VALUE...: makes the shim act on this rank's calls
disk() { with=("LD_PRELOAD=$shim" "DISK_FOLDER=$root" "DISK_CALLS=$root.calls" "DISK_RANK=$1" "${@:2}"); }
# one PHASE RANKS RANK KIND N ERROR: the N-th call of this kind fails. Each rank may print a message, because
# they are not connected at first.
one() {
    local model=$model options most=$2 statuses='[0-2]' first_step=1
    [ "$6" != kill ] || statuses='0|137'
    [ "$4 $6" != 'unlink 5' ] || first_step=        # the run warns that it keeps the file
    for _ in 1 2 3 4; do
        why=
        rm -f "$root.calls"
        prepared "$1" "$2"
        disk "$3" DISK_FAIL="$4:$5:$6"
        broken "$2" "$options" "$statuses" '' true
        with=()
        # Open MPI 4.1's mpirun sometimes crashes itself when a rank ends early: then again.
        [ $status = 139 ] && grep -qs 'mpirun(+0x' "$screen" || break
    done
    case $status in
        0) same_bits "$2" 4 ;;
        [12]) need "no message: $(tail -n 3 "$screen")" [ -n "$(messages)" ] ;;
    esac
    # The number of calls varies, because a rank may list a folder while others are writing to it.
    [ -s "$root.calls" ] && echo $status >>"$screen.ends" || echo missed >>"$screen.ends"
    [ -n "$why" ] || repaired "$2" 6 -n 2 -nk 1 --comm-timeout 60
}
# lane NUMBER: runs every $lanes-th line of the cases
lane() {
    local n=0 line
    at lane$1
    while read -r line; do
        [ $((n++ % lanes)) = "$1" ] || continue
        one $line
        [ -z "$why" ] || echo "$line ($(sed "s,$root/,,; q" "$root.calls")): $why"
    done <"$dir/cases" >"$screen.bad"
}
# Reads the calls of an undisturbed run, and prints PHASE RANKS RANK KIND N ERROR for each case.
cases_of() {
    awk -v phase="$1" -v ranks="$2" -v rank="$3" -v all="${CALLS:-}" '
    BEGIN {
        errors["write"] = "28 5 short"      # ENOSPC, EIO
        errors["read"] = "5 short"
        errors["open"] = errors["opendir"] = "24"       # EMFILE
        errors["create"] = errors["mkdir"] = "28"
        errors["malloc"] = "12"
        if (!all && phase == "model") only = "^(open|read|stat|close|malloc)$"
        if (!all && phase == "logs") only = "^rename$"
        changes = "^(create|write|truncate|fsync|rename|unlink|mkdir|rmdir)$"
        every = (all || ranks == 1 ? 1 : 6) * (!all && phase == "async" ? 3 : 1)
        kills = phase == "resumed" || phase == "logs"
    }
    { at[$1, ++n[$1]] = $2; if (!(($1, $2) in first)) first[$1, $2] = n[$1]; last[$1, $2] = n[$1] }
    END {
        for (kind in n) for (i = 1; i <= n[kind]; i += every) {
            where = kind SUBSEP at[kind, i]
            if (kind !~ only) continue
            if (!all && kind == "malloc" && i != first[where] && i != last[where]) continue
            fault = phase " " ranks " " rank " " kind " " i
            many = split(kind in errors ? errors[kind] : "5", list)
            for (k = 1; k <= many; k++) if (all || k == i % many + 1) print fault, list[k]
            if (kills && kind ~ changes) print fault, "kill"
            if (kind == "write" && i % 7 == 1) print fault "+ 28"       # a disk that stays full
        }
    }'
}
# phase PHASE RANKS RANK: counts the calls of an undisturbed run, and runs every case
phase() {
    local number all missed model=$model options
    begin "breaks.calls: $1, rank $3 of $2"
    at count
    rm -rf "$root.calls" "$dir"/lane*/screen.*
    prepared "$1" "$2"
    disk "$3"
    start "$2" $options
    ended 0 ''
    with=()
    same_bits "$2" 4
    undisturbed "$2" 6 >/dev/null
    cases_of "$@" <"$root.calls" >"$dir/cases"
    for ((number = 0; number < lanes; number++)); do lane $number & done
    wait
    all=$(wc -l <"$dir/cases")
    cat "$dir"/lane*/screen.ends >"$dir/ends"
    cat "$dir"/lane*/screen.bad >"$dir/bad"
    missed=$(grep -c missed "$dir/ends")
    need "$missed of $all calls were not made" [ $((10 * missed)) -lt "$all" ]
    need "$(wc -l <"$dir/bad") of $all failed: $(head -n 40 "$dir/bad")" [ ! -s "$dir/bad" ]
    end
    echo "   $all failures; runs that ended with each status: $(sort "$dir/ends" | uniq -c |
        awk '{ printf "%s%d x %s", sep, $1, $2; sep = ", " }')"
}
lanes=4         # even on fewer cores, because a run mostly waits
test_calls() {
    local ranks rank phase
    make_shim
    wraps_every_call
    for ranks in 1 2; do
        at base$ranks
        fresh
        start $ranks -x 2 -n 2 -nk 1
        wait $job
        for phase in fresh resumed async $([ $ranks = 2 ] || echo logs model); do
            for ((rank = 0; rank < ranks; rank++)); do phase $phase $ranks $rank; done
        done
    done
    at main
}

# ---- power loss

# recorded NAME RANKS ARGUMENT...: records a run of six steps. With --async-save, writing step 2's model file
# waits until step 3 is logged.
recorded() {
    at "$1"
    if [ -d "$dir/base.$1" ]; then cp -r "$dir/base.$1" "$root"; else mkdir "$root"; fi
    hold model_00000002.bin
    with+=("DISK_RECORD=$root.record")
    [[ " $* " = *' --async-save '* ]] || : >"$go"
    start "$2" -x 6 -n 2 "${@:3}"
    await grep -qs '^s:3 trl' "$folder/main.log" || need 'step 3 was not logged' false
    : >"$go"
    ended 0 ''
    with=()
    same_bits "$2" 6
}
# instants NAME ARGUMENT...: builds and checks the folders that a power loss may leave at each instant
instants() { "$power_loss" "$dir/$1/run.record" "$dir/$1/run" "$seed" "${@:2}" >"$dir/found" 2>&1; }
# power NAME RANKS ARGUMENT...: loses power at every instant of a run
power() {
    local base=() kept=$dir/kept.$1 tries=0
    [ ! -d "$dir/base.$1" ] || base=(--base "$dir/base.$1")
    [[ " $* " != *' --async-save '* ]] || base+=(--async 1)
    begin "breaks.power: $1, every instant"
    until
        rm -rf "$kept" "${dir:?}/$1"
        mkdir "$kept"
        recorded "$@"
        need 'a folder breaks the promise' \
            instants "$1" "${base[@]}" --keep "$kept" "$resumed"
        need 'calls bypassed the shim' diff -r "$root" "$root.record.whole" >/dev/null
        # Records again if no step was logged while a model file was being written.
        [ -n "$why" ] || [ $((tries++)) = 20 ] || ! grep -q '^0 model files' "$dir/found"
    do :; done
    need 'too few instants' number "$(sed -n 's/ instants.*//p' "$dir/found") > 90"
    end
    sed 's/^/   /' "$dir/found"
    begin "breaks.power: $1, resumed from $resumed of the folders"
    for root in "$kept"/*; do
        first_step='' folder=$root/out
        repaired "$2" 6 -n 2 -nk 1
    done
    is 'folders kept' "$(ls "$kept" | wc -l)" "$resumed"
    end
    rm -rf "$kept"
}
try_seeds() { instants "$@" && seed=$((seed + 1)) instants "$@"; }
# noticed WHAT RECORD SYNCS ARGUMENT...: without these syncs, some folder must break the promise
noticed() {
    begin "breaks.power: $2 without the sync of $1: noticed"
    # Few instants depend on a sync, so a second seed may be needed.
    need 'no folder breaks the promise' not try_seeds "$2" --without "$3" "${@:4}"
    has "$dir/found" ' 1 violations$'
    end
}
test_power() {
    local ranks resumed=${RESUMED:-12} first_step=1
    make_shim
    power fresh 1 -nk 1
    for ranks in 1 2; do
        mkdir "$dir/base.resumed.$ranks"
        (folder=$dir/base.resumed.$ranks/out; start $ranks -x 2 -n 2 -nk 1; wait $job)
        power resumed.$ranks $ranks -nk 1 -y 1
    done
    power async 1 -nk 1 --async-save
    power async.ranks 2 -nk 2 -z 2 --async-save
    noticed "a rank's file" fresh 'out/*/rank*'
    noticed 'the manifest' fresh 'out/*/.manifest*'
    noticed "the checkpoint's folder before its rename" fresh 'out/* after create out/*/.manifest*'
    noticed "the checkpoint's folder after it" fresh 'out/* after rename out/*/manifest.json'
    noticed "the checkpoint's folder without the manifest" fresh 'out/* after unlink out/*/manifest.json'
    noticed 'a model file' fresh 'out/model_*'
    noticed "the model file's name" fresh 'out after rename out/model_*'
    noticed "the output folder's parent" fresh ' after *'
    noticed summary.json fresh 'out/summary*'
    # Without --async-save, the sync after the model file also persists the name of the checkpoint's folder.
    noticed "the checkpoint folder's parent" async 'out after rename out/*/manifest.json' --async 1
    noticed 'a model file' async 'out/model_*' --async 1
    noticed "the model file's name" async 'out after rename out/model_*' --async 1
    at main
}

# ---- ranks that die or stop at random moments

# shuffled DRAW: prints the lines of stdin in random order. The caller passes its $RANDOM as DRAW, because
# bash reseeds RANDOM in each subshell.
shuffled() { awk -v seed="$1" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort -n | cut -f 2-; }
ranks_started() { [ "$(ranks | wc -l)" = "$1" ]; }
limit=8         # seconds per collective, which only a stopped rank may exceed
# lose SIGNAL RANK RANKS DELAY MOMENT: DELAY ms after 'the start' or 'step 5'. With SIGSTOP, checks the
# message of the rank that waits for it.
lose() {
    local others="rank [$(seq -s '' 0 $(($3 - 1)) | tr -d "$2")] \(host $host\)" report
    local in='(a reduce-scatter|an all-gather|a broadcast) of (unit [0-9]+|scalars)|a barrier'
    if [ "$5" = 'step 5' ]; then at_step 5; else need 'it did not start' await ranks_started "$3"; fi
    sleep_ms "$4"
    kill -"$1" "$(rank "$2")"
    [ "$1" = STOP ] || return
    # While the ranks start, MPI does not report which one is missing.
    report="^train_gpt2_zero: (step 1: )?$others waited"
    wait $job
    ! printed '^step ' || report="^train_gpt2_zero: (checkpoint of )?step [0-9]+: $others waited $limit s in \
($in) for rank $2 \(host $host\): "
    prints "$report"
}
test_lost() {
    local runs=${KILLS:-10} i signal np mode stage overlap rank delay moment draw settings report args
    command -v python3 >/dev/null && reader=1
    for signal in KILL STOP; do
        draw=$RANDOM
        mapfile -t settings < <(printf '%s\n' {2,3}' '{window,messages}' '{0,2,3}' '{0,1} | shuffled $draw)
        for ((i = 0; i < runs; i++)); do
            read -r np mode stage overlap <<<"${settings[i % ${#settings[@]}]}"
            rank=$((RANDOM % np)) delay=$((RANDOM % 1200)) moment='step 5' report=
            [ $((RANDOM % 3)) != 0 ] || moment='the start'
            [ $signal = STOP ] || report="process rank $rank with PID [0-9]+ on node $host exited on signal 9"
            args="-z $stage --overlap $overlap $([ $mode = window ] || echo --messages 1)"
            fault "SIG$signal to rank $rank of $np, $delay ms after $moment, $args" $np \
                "$args -n 20 -nk 3 --comm-timeout $limit" '[1-9].*' '.*' "$report" \
                lose $signal $rank $np $delay "$moment"
        done
    done
}

# ---- kills during saves, in one folder

# new_save FILES: succeeds if a checkpoint contains a rank's file that is not in FILES
new_save() {
    local f
    for f in "$folder"/step_*/rank*; do [[ ! -e $f || $1 = *"$f"* ]] || return 0; done
    return 1
}
# strike EVERY FILES: kills one or all ranks of a run that saves every EVERY steps. If EVERY is 1, the kill
# usually interrupts a save.
strike() {
    local victims draw=$RANDOM
    if [ $1 = 1 ]; then await new_save "$2"; else prints '^step '; fi || need 'it did not start' false
    sleep_ms $((RANDOM % 60 * 10))
    mapfile -t victims < <(ranks | shuffled $draw)
    [ $((RANDOM % 3)) = 0 ] || victims=("${victims[0]}")
    kill -KILL "${victims[@]}"
}
# series RANKS KILLS: every second pair of runs uses --async-save
series() {
    local i every how before files last
    begin "breaks.saves: $2 kills of $1 ranks"
    fresh
    for ((i = 0; i < $2; i++)); do
        every=$((i % 2 ? 40 : 1)) how=$([ $((i % 4 / 2)) = 0 ] || echo --async-save)
        before=$(newest) files=$(ls -d "$folder"/step_*/rank* 2>/dev/null)
        broken "$1" "-n $every -nk 2 -y 1 --comm-timeout 1000 $how" '[1-9].*' \
            "${before:+^resuming at step $before\$}" strike $every "$files"
        ! half_saved && [ -z "$(without_models)" ] || in_saves=$((in_saves + 1))
        [ -z "$why" ] || break
    done
    last=$(($(newest) + 3))
    repaired "$1" $last -n 1 -nk 2 --async-save
    is checkpoints "$(complete | wc -l)" 2
    end
    echo "   $i kills, $last steps"
}
test_saves() {
    local kills=${KILL_SAVES:-50} in_saves=0
    command -v python3 >/dev/null && reader=1
    series 1 $((kills / 2))
    series 2 $((kills - kills / 2))
    begin "breaks.saves: $in_saves of $kills kills interrupted a save"
    need 'that is less than an eighth' [ $((in_saves * 8)) -ge "$kills" ]
    end
}

# ---- the loop that restarts a run, and signals

two_ranks() { [ "$(ranks | wc -l)" = 2 ]; }
steps_made() { [ "$(grep -c '^step ' "$screen")" -ge "$1" ]; }
# strike_by SIGNAL...: sends each to a rank at a random moment, and then stops the loop
strike_by() {
    local signal victim
    for signal; do
        await two_ranks || need 'the ranks did not start' false
        await steps_made $(($(grep -c '^step ' "$screen") + 1 + RANDOM % 80)) || need 'no steps' false
        sleep_ms $((RANDOM % 50 * 10))
        victim=$(ranks | sed -n "$((1 + RANDOM % 2))p")
        need "the rank ended before SIG$signal" kill -"$signal" "$victim"
        [ "$signal" = USR1 ] || await not any_runs "$victim" || need "SIG$signal did not end a rank" false
    done
    await two_ranks
    stop_loop
}
test_loop() {
    local prefix=(env PAUSE=0 TRIES=99 scripts/until_done.sh) draw=$RANDOM how
    for how in '' --async-save; do
        fault "until_done.sh under signals of all kinds $how" 2 "-n 50 -nk 2 -y 1 --comm-timeout 1000 $how" \
            '[0-9]+' '.*' '' \
            strike_by $(printf '%s\n' KILL KILL KILL TERM HUP INT USR1 USR2 | shuffled $draw) TERM
    done
}

trap 'kill $(jobs -p) 2>/dev/null; exit 1' INT TERM
echo "seed $seed"
at main
for group in "${@:3}"; do test_$group; done
finish breaks
