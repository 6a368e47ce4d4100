# To be sourced by the tests that are shell scripts: a folder of their own, cases, and the closing line.
#   begin 'what is tested'; need 'the sentence if it fails' COMMAND...; end
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
passed=0 failed=0 skipped=0

begin() { name=$1; why=; }
need() { local what=$1; shift; "$@" || why="${why:+$why; }$what"; }
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
# a condition on numbers that need not be whole
number() { awk "BEGIN { exit !($1) }"; }
finish() { echo "$1: $passed passed, $failed failed, $skipped skipped"; [ "$failed" = 0 ]; }
