# Sourced by the shell tests: changes to the project's root, makes a temporary folder, and defines functions
# that run cases and print the final line.
#   begin 'the case'; need 'the message on failure' COMMAND...; end
#   is WHAT VALUE EXPECTED, has FILE PATTERN...     like need, with a message built from the arguments
# shellcheck disable=SC2046,SC2059
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. scripts/mpi_env.sh
dir=$(mktemp -d) || exit 1
disk=$dir           # for model states: always on a disk, even if /tmp is a tmpfs
if [ "$(stat -f -c %T "$dir")" = tmpfs ]; then
    mkdir -p build && disk=$(mktemp -d "$PWD/build/tests.XXXXXX") || exit 1
fi
trap 'rm -rf "$dir" "$disk"' EXIT
trap 'exit 1' INT TERM
passed=0 failed=0 skipped=0

begin() { name=$1 why=; }
need() { local what=$1; shift; "$@" || why="${why:+$why; }$what"; }
is() { need "$1: '$2', not '$3'" [ "$2" = "$3" ]; }
# Checks that every pattern matches a line of the file.
has() {
    local pattern
    for pattern in "${@:2}"; do
        need "no '$pattern' in: $(grep -av '^ok' "$1" | tail -n 3)" grep -aqE -- "$pattern" "$1"
    done
}
end() {
    if [ -z "$why" ]; then
        echo "ok $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name: $why"
        failed=$((failed + 1))
    fi
}
skip() { echo "skip $1: $2"; skipped=$((skipped + 1)); }       # NAME REASON
not() { ! "$@"; }
# number CONDITION: compares numbers that may be fractions
number() { awk "BEGIN { exit !($1) }"; }
finish() { echo "$1: $passed passed, $failed failed, $skipped skipped"; [ "$failed" = 0 ]; }

# ---- programs and files

# launch NP: sets launcher, which starts a program on NP ranks. One rank starts faster without mpirun.
launch() {
    launcher=()
    [ "$1" = 1 ] || launcher=(mpirun --oversubscribe -np "$1")
}
# Time limits only catch hangs. They are many times the usual duration, because the machine may be busy.
hang_limit=120
# nap SECONDS: sleeps without starting a program. Nothing is ever written to this pipe.
exec {never}<> <(:)
nap() { read -rt "$1" -u "$never" || true; }
# await COMMAND...: repeats the command until it succeeds, for at most 60 s
await() {
    local until=$((SECONDS + 60))
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        nap 0.01
    done
}
any_runs() { kill -0 "$@" 2>/dev/null; }        # PID...
# processes PID...: prints these and all their descendants
processes() {
    local pid
    for pid; do
        echo "$pid"
        processes $(pgrep -P "$pid")
    done
}
# ends_within SECONDS PID...: waits for background jobs; sets statuses to their exit statuses, and status to
# the last one. Jobs that exceed the limit are reported as a failure and killed.
ends_within() {
    local limit=$1 until=$((SECONDS + $1)) pid left
    shift
    while any_runs "$@" && [ $SECONDS -lt $until ]; do nap 0.02; done
    if any_runs "$@"; then
        mapfile -t left < <(processes "$@")
        need "still running after $limit s: $(ps -ww -o pid,ppid,stat,etime,args -p "${left[*]}")" false
        kill -KILL "${left[@]}" 2>/dev/null
    fi
    statuses=()
    for pid; do
        wait "$pid"
        status=$?
        statuses+=($status)
    done
} 2>/dev/null       # hides bash's reports of killed jobs
# rank_pid PROGRAM RANK: prints the rank's PID, found by mpirun's environment variable
rank_pid() {
    local p
    for p in $(pgrep -f "^$1 "); do
        tr '\0' '\n' <"/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$2" && echo "$p"
    done 2>/dev/null
}
# json_value FILE KEY: prints the value; FILE is JSON with one pair per line, such as summary.json
json_value() { sed -nE "s/.*\"$2\": \"?([^\",{}]+).*/\1/p" "$1"; }
hashes() { grep -aoE 'params_hash .*' "$1"; }
flip_byte() {   # FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %o $((byte ^ 64)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# Builds tests/shim/disk.c and sets shim to the LD_PRELOAD value that makes it intercept $trainer's file
# calls. ASan's library must come first.
make_shim() {
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O1 -g -shared -fPIC tests/shim/disk.c -o "$dir/disk.so" -ldl || exit 1
    shim="$(ldd "$trainer" | awk '/libasan/ { print $3 }') $dir/disk.so"
}
