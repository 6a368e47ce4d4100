#!/usr/bin/env bash
# Injects one failure into each of many checkpointing runs: for each kind of call on the output folder, the
# first call fails in one run, the second in the next, and so on. In other runs an allocation fails, all
# writes from the n-th on fail, or a read or write is short. Each run must end with the same bits as the
# reference or with one error message. Its folder must be undamaged, and a run resumed from it must end with
# the same bits. The test also covers a run that replaces the logs of one killed before its first save.
# It also kills the run at each call that changes the folder. tests/shim/disk.c makes the calls fail.
# Usage: tests/disk_faults.sh TRAINER [all [RANKS...]]    RANKS: 1 2
# Without `all`, each call fails with only one error. On one rank every call fails, except allocations: only
# the first and last per call site, and a few of jansson's. On two ranks every sixth call of each kind fails.
# With --async-save, a third as many calls fail.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm         # where syncs cost nothing
. "$(dirname "$0")/cases.sh"
trainer=$(realpath "${1:?Usage: tests/disk_faults.sh TRAINER [all [RANKS...]]}") || exit 1
all=${2:-}
if [ $# -gt 2 ]; then all_ranks=("${@:3}"); else all_ranks=(1 2); fi
lanes=4                     # even on fewer cores, because a run mostly waits
export OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0

args=(-b 2 -k constant -n 2 -nk 1 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --hash full
    --device cpu --dtype bf16 --comm-timeout 60)
make_shim

# ---- the shim wraps every call that the trainer makes

begin 'disk.the shim wraps every file call'
calls='open openat creat read write pread pwrite readv writev preadv pwritev sendfile copy_file_range splice
    mkstemp mkdtemp truncate ftruncate fallocate posix_fallocate fsync fdatasync sync_file_range sync syncfs
    rename renameat renameat2 remove unlink unlinkat rmdir mkdir mkdirat linkat symlink opendir fdopendir
    readdir scandir nftw stat lstat fstat fstatat statx access faccessat fopen fdopen freopen flock lockf
    malloc calloc realloc reallocarray aligned_alloc memalign posix_memalign strdup strndup asprintf vasprintf
    open_memstream getrandom fcntl dup dup2 dup3'
nm -D --undefined-only "$trainer" | sed -nE 's/^ +U ([a-z_0-9]+).*/\1/p' | awk -v calls="$calls" '
    BEGIN { for (n = split(calls, list); n; n--) known[list[n]] }
    { name = $1; sub(/64$|_2$/, "", name); if (name in known) print }' | sort >"$dir/calls_made"
nm -D --defined-only "$dir/disk.so" | sed -nE 's/.* [TW] //p' | sort >"$dir/calls_wrapped"
need "not wrapped: $(comm -23 "$dir/calls_made" "$dir/calls_wrapped" | tr '\n' ' ')" \
    [ -z "$(comm -23 "$dir/calls_made" "$dir/calls_wrapped")" ]
need 'found 20 calls or fewer' [ "$(wc -l <"$dir/calls_made")" -gt 20 ]
end

# ---- runs

# run RANKS FOLDER VARIABLE=VALUE...: trains $steps steps with output folder FOLDER/out; sets status and
# writes FOLDER.screen
steps=4
how=()      # extra options
run() {
    local launcher folder=$2 model=l2h2c32v257t32
    [ ! -e "$folder/model.bin" ] || model=$folder/model.bin
    launch "$1"
    timeout -s KILL $hang_limit "${launcher[@]}" env "${@:3}" "$trainer" -e "$model" \
        "${args[@]}" -y 1 ${how[@]+"${how[@]}"} -x "$steps" -o "$folder/out" \
        >"$folder.screen" 2>&1 </dev/null
    status=$?
}
with_disk() {
    run "$1" "$2" LD_PRELOAD="$shim" DISK_FOLDER="$2" DISK_CALLS="$2.calls" "${@:3}"
}
fresh() { rm -rf "$1" "$1.calls"; mkdir "$1"; }
# begin_as PHASE RANKS FOLDER: prepares an empty folder, or one with a checkpoint, logs or a model
begin_as() {
    fresh "$3"
    how=() steps=4
    case $1 in
        async) how=(--async-save) ;;
        resumed) cp -r "$dir/base$2/out" "$3/out" ;;
        logs) cp -r "$dir/base$2/out" "$3/out"; rm -r "$3"/out/{step_*,model_*,summary.json} ;;
        model) cp "$dir/base$2/out/model_00000002.bin" "$3/model.bin" ;;
    esac
}
# resume_as PHASE RANKS FOLDER: resumes the run, and prints any errors
resume_as() {
    how=()
    run "$2" "$3"
    [ $status = 0 ] || { echo "after resuming: status $status: $(message "$3")"; return; }
    [ "$(hashes "$3.screen")" = "$reference" ] || echo "after resuming: $(hashes "$3.screen")"
    [ "$(sed -E 's/.*"step": ([0-9]+),.*/\1/' "$3/out/metrics.jsonl" | xargs)" = '1 2 3 4' ] ||
        echo "after resuming: metrics.jsonl is $(<"$3/out/metrics.jsonl")"
}
# ---- one case

message() { grep -a '^train_gpt2_zero: ' "$1.screen" || tail -n 3 "$1.screen"; }
# ended_well FOLDER RANKS: prints any errors in how the run ended. Each rank may print a message until the
# ranks are connected.
ended_well() {
    local messages
    [ $status = 137 ] && { echo 'did not end within 30 s'; return; }
    if [ $status = 0 ]; then
        [ "$(hashes "$1.screen")" = "$reference" ] ||
            echo "status 0, but the hashes differ: $(hashes "$1.screen")"
        return
    fi
    [ $status -le 2 ] || echo "status $status: $(message "$1")"
    messages=$(grep -ac '^train_gpt2_zero: ' "$1.screen")
    [ "$messages" -ge 1 ] && [ "$messages" -le "$2" ] || echo "$messages messages"
}
# one FOLDER PHASE RANKS RANK KIND N ERROR: runs one case; prints any errors
one() {
    local folder=$1 ended bad
    begin_as "$2" "$3" "$folder"
    with_disk "$3" "$folder" DISK_RANK="$4" DISK_FAIL="$5:$6:$7"
    ended=
    [ "$7" = kill ] || ended=$(ended_well "$folder" "$3")
    [ -z "$ended" ] || { echo "$ended"; return; }
    ended=$status
    bad=$("$trainer" --verify "$folder/out" | grep '^BAD' | grep -vE 'no complete checkpoint|out: No such')
    [ -z "$bad" ] || { echo "$bad"; return; }
    # The number of calls varies, because a rank may list a folder while others are writing to it.
    [ -s "$folder.calls" ] || ended=missed
    bad=$(resume_as "$2" "$3" "$folder")
    [ -z "$bad" ] || { echo "$bad"; return; }
    echo "$ended" >>"$folder.ends"
}
lane() {            # NUMBER: runs every $lanes-th line of the cases
    local n=0 line wrong
    export TMPDIR=$dir/mpi$1        # separate, because mpirun removes files that a concurrent mpirun needs
    mkdir -p "$TMPDIR"
    while read -r line; do
        n=$((n + 1))
        [ $((n % lanes)) = "$1" ] || continue
        # shellcheck disable=SC2086
        wrong=$(one "$dir/lane$1" $line)
        [ -z "$wrong" ] || echo "$line ($(sed "s,$dir/lane$1/,,; q" "$dir/lane$1.calls")): $wrong"
    done <"$dir/cases" >"$dir/lane$1.bad"
}

# ---- the cases

# errors_of KIND N: prints the errors to inject into the n-th call: one of the kind's errors, or all of them
# with `all`
errors_of() {
    local errors
    case $1 in
        write) errors=(28 5 short) ;;           # ENOSPC, EIO
        read) errors=(5 short) ;;
        open | opendir) errors=(24) ;;          # EMFILE
        create | mkdir) errors=(28) ;;
        malloc) errors=(12) ;;
        *) errors=(5) ;;
    esac
    if [ -n "$all" ]; then echo "${errors[@]}"; else echo "${errors[$2 % ${#errors[@]}]}"; fi
}
changes='create write truncate fsync rename unlink mkdir rmdir'
# kinds PHASE CALLS: prints the kinds of calls to test in this phase; CALLS lists those that the run made
kinds() {
    case $1$all in
        model) echo open read stat close malloc ;;
        logs) echo rename ;;
        *) sed 's/ .*//' "$2" | sort -u ;;
    esac
}
# numbers PHASE KIND RANKS CALLS: prints the numbers of the calls of a kind that fail
numbers() {
    sed -n "s/^$2 //p" "$4" | awk -v phase="$1" -v kind="$2" -v ranks="$3" -v all="$all" '
        { at[NR] = $1; if (!($1 in first)) first[$1] = NR; last[$1] = NR }
        END {
            every = all || ranks == 1 ? 1 : 6
            if (!all && phase == "async") every *= 3
            for (n = 1; n <= NR; n += every)
                if (all || kind != "malloc" || n == first[at[n]] || n == last[at[n]]) print n
        }'
}
# cases PHASE RANKS RANK: prints one line per case, from the calls of an undisturbed run
cases() {
    local kind n error calls=$dir/count.calls
    begin_as "$1" "$2" "$dir/count"
    with_disk "$2" "$dir/count" DISK_RANK="$3"
    reference=$(hashes "$dir/count.screen")
    if [ $status != 0 ] || [ ${#reference} -lt 40 ]; then
        echo "$1, $2 ranks: the undisturbed run failed: $(message "$dir/count")" >&2
        exit 1
    fi
    for kind in $(kinds "$1" "$calls"); do
        for n in $(numbers "$1" "$kind" "$2" "$calls"); do
            for error in $(errors_of "$kind" "$n"); do echo "$1 $2 $3 $kind $n $error"; done
            [[ $1 != @(resumed|logs) || " $changes " != *" $kind "* ]] || echo "$1 $2 $3 $kind $n kill"
            # a disk that stays full
            [ "$kind" != write ] || [ $((n % 7)) != 1 ] || echo "$1 $2 $3 $kind $n+ 28"
        done
    done
}
# faults NAME: runs every case in $dir/cases
faults() {
    local number bad all_cases
    all_cases=$(wc -l <"$dir/cases")
    begin "$1"
    rm -f "$dir"/lane*.ends
    for ((number = 0; number < lanes; number++)); do lane $number & done
    wait
    bad=$(cat "$dir"/lane*.bad | wc -l)
    number=$(cat "$dir"/lane*.ends | grep -c missed)
    need "$number of $all_cases calls were not made" [ $((10 * number)) -lt "$all_cases" ]
    need "$bad of $all_cases failed: $(cat "$dir"/lane*.bad | head -n 40)" [ "$bad" = 0 ]
    end
    echo "   injected $((all_cases - number)) failures: $(cat "$dir"/lane*.ends | sort | uniq -c |
        awk '{ printf "%s%d runs ended with status %s", sep, $1, $2; sep = ", " }'); all resumed"
}

for ranks in "${all_ranks[@]}"; do
    how=()
    fresh "$dir/base$ranks"
    steps=2 run "$ranks" "$dir/base$ranks"
    phases=(fresh resumed async)
    [ "$ranks" != 1 ] || phases+=(logs model)
    for phase in "${phases[@]}"; do for ((rank = 0; rank < ranks; rank++)); do
        cases $phase "$ranks" $rank >"$dir/cases"
        faults "disk.$phase, rank $rank of $ranks"
        [ "$phase" != fresh ] || whole=$reference
        begin "disk.$phase, rank $rank of $ranks: resuming changes nothing"
        need "$reference, but a fresh run has $whole" [ "$phase" = model -o "$reference" = "$whole" ]
        end
    done; done
done
finish disk_faults
