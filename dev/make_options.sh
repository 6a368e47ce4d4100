#!/usr/bin/env bash
# Writes docs/reference/options.md, a table of the trainer's options, from the output of `--help`.
# Usage: dev/make_options.sh [TRAINER [FILE]]
set -eu -o pipefail
cd "$(dirname "$0")/.."
trainer=${1:-./train_gpt2_zero} to=${2:-docs/reference/options.md}
trap 'rm -f "$to.tmp"' EXIT

"$trainer" --help | awk '
BEGIN {
    print "# Options of train_gpt2_zero\n"
    print "Generated from `./train_gpt2_zero --help` by `dev/make_options.sh`.\n\n```"
    at_start = 1
}
function escaped(s) { gsub(/\|/, "\\|", s); gsub(/</, "\\&lt;", s); gsub(/\*/, "\\*", s); return s }
function end_row() {
    if (option) print "| `" option "` | " escaped(help) " |"
    option = help = ""
}

# The usage ends with the sentence about llm.c. A section begins with a line that is not indented.
at_start && /^llm\.c/ { print "```\n\n" $0; at_start = 0 }
at_start { if (NF) print; next }
/^  without effect/ {
    end_row()
    sub(/^ +without effect/, "Without effect")
    gsub(/ -[a-z]+/, " `&`"); gsub(/` -/, "`-")
    print "\n" $0 "."
    at_end = 1
    next
}
at_end { print; next }
/^[A-Z]/ { end_row(); print "\n## " $0 "\n\n| option | meaning |\n|---|---|"; next }
/^  -/ { end_row(); option = $1; sub(/^  [^ ]+ */, ""); help = $0; next }
/^        / { sub(/^ +/, ""); help = help (help ? " " : "") $0 }' >"$to.tmp"
mv "$to.tmp" "$to"
