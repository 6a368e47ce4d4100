# shellcheck shell=bash
# Steps with time limits, jobs in the background, and what is kept of both between calls in $out/state:
#   steps.tsv  part, step, status: what has ended        notes.tsv  kind, key, sentence: the lists of
#              results.md
#   rows.tsv   a training run a line                     facts.tsv  key, value

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
number() { awk "BEGIN { exit !($1) }"; }        # a condition on numbers that need not be whole
median() {
    sort -n | awk \
        '{ x[NR] = $1 } END { if (NR) printf "%.10g", (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}

# drop FILE COLUMN VALUE: the lines of a table of the state whose column has this value
drop() {
    [ -e "$out/state/$1" ] || return 0
    awk -F'\t' -v c="$2" -v value="$3" '$c != value' "$out/state/$1" >"$out/state/new" &&
        mv "$out/state/new" "$out/state/$1"
}
# put FILE COLUMN FIELD...: a line, in place of the one with the same field in this column
put() {
    touch "$out/state/$1"
    line=$(IFS=$'\t'; echo "${*:3}") awk -F'\t' -v c="$2" '
        BEGIN { n = split(ENVIRON["line"], field, FS) }
        $c != field[c] { print; next }
        !told { print ENVIRON["line"]; told = 1 }
        END { if (!told) print ENVIRON["line"] }' "$out/state/$1" >"$out/state/new" &&
        mv "$out/state/new" "$out/state/$1"
}
fact() { awk -F'\t' -v key="$1" '$1 == key { print $2 }' "$out/state/facts.tsv" 2>/dev/null; }
set_fact() { put facts.tsv 1 "$1" "$2"; }

# note check|problem|skipped|later KEY SENTENCE: a line of results.md, in place of an earlier one with this
# key
note() {
    put notes.tsv 2 "$1" "$2" "${3//$'\t'/ }"
    case $1 in
        skipped) say "skipped: $3" ;;
        later) say "not now: $3" ;;
        *) say "$3" ;;
    esac
}
check() { note check "$@"; }
problem() { note problem "$@"; }
skip() { note skipped "$@"; }
later() { note later "$@"; unfinished=yes; }
unfinished=''
forget() { drop notes.tsv 2 "$1"; }
notes() { awk -F'\t' -v kind="$1" '$1 == kind { print $3 }' "$out/state/notes.tsv" 2>/dev/null; }

# What is repeated of a part: everything with --again; what failed or was skipped where the part is named.
start_part() {
    local key
    [ -n "$again$named" ] || return 0
    while read -r key; do
        forget "$key"
        drop steps.tsv 2 "$key"
    done < <(awk -F'\t' -v part="$part" -v again="$again" '$1 == part && (again || $3 != 0) { print $2 }' \
        "$out/state/steps.tsv" 2>/dev/null)
}
status_of_step() { awk -F'\t' -v name="$1" '$2 == name { print $3 }' "$out/state/steps.tsv" 2>/dev/null; }
end_step() { put steps.tsv 2 "$part" "$1" "$2"; }

tell_failure() {    # NAME STATUS
    problem "$1" "$1: failed with status $2, see $1.log"
    tail -n 5 "$out/$1.log" | sed 's/^/        /'
}

# step NAME LIMIT LEAST COMMAND...: runs COMMAND for LIMIT seconds at most and no longer than the budget;
# output: NAME.log. With less than
# LEAST seconds left it is for a later call. Status: the command's, in a later call again; 124: no end after
# LIMIT; 125: it cannot be done
# here, as the line with $cannot says; 126: for a later call.
step() {
    local name=$1 limit=$2 least=$3 left=$((budget - SECONDS)) began=$SECONDS status why cut=''
    shift 3
    status=$(status_of_step "$name")
    [ -z "$status" ] || return "$status"
    if [ $left -lt "$least" ]; then
        later "$name" "$name: $((left > 0 ? left : 0)) of $budget s are left, it may take $least"
        return 126
    fi
    if [ "$limit" -gt $left ]; then
        limit=$left
        cut=yes
    fi
    forget "$name"
    rm -rf "${out:?}/runs/$name"    # of a run that was cut short: no other one may begin there
    say "$name ... at most $limit s"
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null &
    job=$!
    wait $job
    status=$?
    job=''
    [ $status != 137 ] || status=124
    if [ -n "${cannot:-}" ] && why=$(grep -m1 -E "$cannot" "$out/$name.log"); then
        skip "$name" "$name: $why"
        status=125
    elif [ $status = 124 ] && [ -n "$cut" ]; then
        later "$name" "$name: cut at the end of this call's $budget s"
        return 126
    elif [ $status = 124 ]; then
        problem "$name" "$name: cut, no end after $limit s, see $name.log"
    elif [ $status != 0 ]; then
        tell_failure "$name" $status
    else
        say "$name: done in $((SECONDS - began)) s"
    fi
    end_step "$name" $status
    return $status
}

# ----------------------------------------------------------------------------------------- in the background

declare -A jobs=() limits=()    # by name: the process, a `timeout` whose whole group ends with it; its limit
job='' look=''                  # the step in the foreground; nvidia-smi

background() {      # NAME LIMIT COMMAND...; output: NAME.log
    local name=$1 limit=$2 left=$((budget - SECONDS))
    [ "$limit" -le $left ] || limit=$((left > 1 ? left : 1))
    forget "$name"
    say "$name ... beside what follows, at most $limit s"
    timeout -k 5 "$limit" "${@:3}" >"$out/$name.log" 2>&1 </dev/null &
    jobs[$name]=$!
    limits[$name]=$((SECONDS + limit))
}
running() { [ -n "${jobs[$1]:-}" ] && kill -0 "${jobs[$1]}" 2>/dev/null; }
# NAME: waits for the job, and notes how it ended. Status: the job's; 0 where there is none.
await_job() {
    local pid=${jobs[$1]:-} status
    [ -n "$pid" ] || return 0
    wait "$pid"
    status=$?
    unset "jobs[$1]"
    case $status in
        0) say "$1: done" ;;
        124 | 137)
            if [ "${limits[$1]}" -ge "$budget" ]; then later "$1" \
                "$1: cut at the end of this call's $budget s"
            else problem "$1" "$1: cut, no end in its time, see $1.log"; fi ;;
        *) tell_failure "$1" $status ;;
    esac
    return $status
}
stop() { kill $job $look "${jobs[@]}" 2>/dev/null; }

# ----------------------------------------------------------------------------------------- the end of a call

end_of_call() {
    trap - EXIT
    stop
    publish
    pack_logs
}
status_of_call() {
    if [ -n "$unfinished" ]; then echo 3
    elif [ -n "$stopped$(notes problem)" ]; then echo 1
    else echo 0; fi
}
