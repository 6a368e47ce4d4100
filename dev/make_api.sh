#!/usr/bin/env bash
# Writes docs/api.md, the reference, from the comments and declarations of llmc_zero/zero.h. Usage: dev/make_api.sh [FILE]
# A section line of the header becomes a heading; a comment and the declarations under it, an entry; a comment alone, a paragraph.
set -eu -o pipefail
cd "$(dirname "$0")/.."
to=${1:-docs/api.md}
trap 'rm -f "$to.tmp"' EXIT

awk '
BEGIN { print "# API of llmc_zero\n\nMade from `llmc_zero/zero.h` by `dev/make_api.sh`. [porting.md](porting.md) tells how a trainer uses it.\n" }

# Escapes what Markdown would take for its own marks, and sets the names of the plugin as code.
function markdown(s,    out, name) {
    gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/\*/, "\\*", s)
    while (match(s, /(zero|ZERO|MPI)_[A-Za-z0-9_]*[A-Za-z0-9](_\\\*|\.[a-z0-9_]+|\(\))?|config\.[a-z_]+/)) {
        name = substr(s, RSTART, RLENGTH); sub(/\\/, "", name)
        out = out substr(s, 1, RSTART - 1) "`" name "`"
        s = substr(s, RSTART + RLENGTH)
    }
    return out s
}

# What a line declares: a type, a function, the common start of the names of an enum; "" if nothing.
function declared(line) {
    if (line ~ /^enum /) in_enum = 1
    if (line ~ /^(typedef|}).*;$/) { gsub(/;$/, "", line); sub(/.*[ }]/, "", line); return line }
    if (line ~ /^[a-z].*\);$/ && match(line, /[a-z_]+\(/)) return substr(line, RSTART, RLENGTH - 1)
    if (in_enum && match(line, /ZERO_[A-Z]+_/)) { in_enum = 0; return substr(line, RSTART, RLENGTH) "*" }
    return ""
}

# A line of a comment, without its marks. Lines that are indented further, an example or a formula, stay as they are.
function add_text(line,    indented) {
    sub(/ *\*\/$/, "", line); sub(/^(\/\*| \*) ?/, "", line)
    indented = line ~ /^    /
    if (indented != was_indented && text) text = text "\n"
    was_indented = indented
    text = text (indented ? line : markdown(line)) "\n"
}

function end_entry() {
    if (names) print "### " names "\n"
    if (code) print "```c\n" code "```\n"
    if (text) print text
    names = code = text = ""; was_indented = 0
}

NR <= 3 { in_comment = 1; next }                # the name of the file and its licence
/^\/\* -+ .* \*\/$/ { end_entry(); gsub(/^\/\* -+ | \*\/$/, ""); print "## " toupper(substr($0, 1, 1)) substr($0, 2) "\n"; next }
/^\/\*/ { end_entry(); in_comment = 1 }
in_comment { add_text($0); in_comment = !/\*\/$/; next }
/^#define ZERO_/ { code = code $0 "\n"; next }
/^(#|extern|}$|$)/ { end_entry(); next }
{ name = declared($0); if (name) names = names (names ? ", " : "") "`" name "`"; code = code $0 "\n" }
' llmc_zero/zero.h | cat -s | sed '${/^$/d}' >"$to.tmp"
mv "$to.tmp" "$to"
