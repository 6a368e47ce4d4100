# To be sourced by the tests that are shell scripts: a folder of their own, cases, and the closing line.
#   begin 'what is tested'; need 'the sentence if it fails' COMMAND...; end
#   TEST_TIMES=1 tests/NAME.sh ...      also prints what each case takes, by the clock and of the processor
dir=$(mktemp -d) || exit 1
disk=$dir           # for model states, which must not be in memory, as /tmp may be
if [ "$(stat -f -c %T "$dir")" = tmpfs ]; then
    mkdir -p build && disk=$(mktemp -d "$PWD/build/tests.XXXXXX") || exit 1
fi
trap 'rm -rf "$dir" "$disk"' EXIT
trap 'exit 1' INT TERM
passed=0 failed=0 skipped=0

begin() { name=$1; why=; }
# What the case took: by the clock, and of the processor (this script, and what it has waited for).
took_since=$EPOCHREALTIME used_since=0
print_times() {
    local used
    times >"$dir/times"
    used=$(awk '{ for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60 * t[1] + t[2] } }
        END { print sum }' "$dir/times")
    awk "BEGIN { printf \"   %.2f s, of the processor %.2f s\n\", $EPOCHREALTIME - $took_since,
        $used - $used_since }"
    took_since=$EPOCHREALTIME used_since=$used
}
need() { local what=$1; shift; "$@" || why="${why:+$why; }$what"; }
end() {
    if [ -z "$why" ]; then
        echo "ok $name"
        passed=$((passed + 1))
    else
        echo "FAIL $name: $why"
        failed=$((failed + 1))
    fi
    [ -z "${TEST_TIMES:-}" ] || print_times
}
skip() { echo "skip $1: $2"; skipped=$((skipped + 1)); }       # NAME REASON
not() { ! "$@"; }
# a condition on numbers that need not be whole
number() { awk "BEGIN { exit !($1) }"; }
finish() { echo "$1: $passed passed, $failed failed, $skipped skipped"; [ "$failed" = 0 ]; }
