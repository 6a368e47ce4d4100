#!/usr/bin/env bash
# Writes docs/reference/api.md from the comments and declarations of zero.h, zero_checkpoint.h, zero_config.h,
# zero_update.h, zero_job.h, zero_plan.h, zero_settings.h and zero_deepspeed.h.
# Usage: dev/make_api.sh [FILE]
# A `// -------- title` line becomes a heading. A comment followed by declarations becomes an entry. A
# free-standing comment becomes a paragraph.
set -eu -o pipefail
cd "$(dirname "$0")/.."
to=${1:-docs/reference/api.md}
trap 'rm -f "$to.tmp"' EXIT

awk '
BEGIN {
    print "# API of llmc_zero\n"
    print "Generated from `zero.h`, `zero_config.h`, `zero_update.h`, `zero_checkpoint.h`, `zero_job.h`,"
    print "`zero_plan.h`, `zero_settings.h` and `zero_deepspeed.h` in `llmc_zero/` by `dev/make_api.sh`."
    print "[porting.md](../porting.md) shows how a trainer uses the API; [details.md](details.md) explains"
    print "the reasons for its rules.\n"
}

# Escapes special characters of Markdown and formats names of the plugin as code.
function markdown(s,    out, name) {
    gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/\*/, "\\*", s)
    while (match(s, /(zero|ZERO|MPI)_[A-Za-z0-9_]*[A-Za-z0-9](_\\\*|\.[a-z0-9_]+|\(\))?/)) {
        name = substr(s, RSTART, RLENGTH); sub(/\\/, "", name)
        out = out substr(s, 1, RSTART - 1) "`" name "`"
        s = substr(s, RSTART + RLENGTH)
    }
    return out s
}

# Returns the name that a line declares: a type, a function, or the common prefix of an enum; or "".
function declared(line) {
    sub(/ *\/\/.*/, "", line)
    if (line ~ /^enum /) in_enum = 1
    if (line ~ /^(typedef|}).*;$/ && line !~ /^};$/) {
        gsub(/;$/, "", line)
        if (sub(/.*\(\*/, "", line)) sub(/\).*/, "", line)       # a pointer to a function
        sub(/.*[ }]/, "", line)
        return line
    }
    if (line ~ /^[a-z].*\(/ && match(line, /zero_[a-z_]+\(/)) return substr(line, RSTART, RLENGTH - 1)
    if (in_enum && match(line, /ZERO_[A-Z]+_/)) { in_enum = 0; return substr(line, RSTART, RLENGTH) "*" }
    return ""
}

# Adds a line of a comment. More deeply indented lines (examples and formulas) are left unchanged.
function add_text(line,    indented) {
    sub(/^\/\/ ?/, "", line)
    indented = line ~ /^    /
    if (indented != was_indented && text) text = text "\n"
    was_indented = indented
    text = text (indented ? line : markdown(line)) "\n"
}

function end_entry() {
    if (names) print "### " names
    if (code) print "```c\n" code "```"
    if (text) print text; else if (names code) print ""
    names = code = text = ""
    was_indented = 0
}

/^typedef struct zero zero;.*includes this file/ { next }     # repeats the one of zero.h
/^#define ZERO_VERSION/ { names = "`ZERO_VERSION`" }
FNR == 1 { end_entry(); in_code = 0; if (FILENAME ~ /job/) print "## Ranks of a job\n" }
/^\/\/ -------- / {
    end_entry()
    sub(/^\/\/ -+ /, "")
    print "## " toupper(substr($0, 1, 1)) substr($0, 2) "\n"
    next
}
/^\/\// { if (in_code) { end_entry(); in_code = 0 } add_text($0); next }
/^#define ZERO_/ { code = code $0 "\n"; in_code = 1; next }
/^(#|extern|}$|$)/ { end_entry(); in_code = 0; next }
{
    name = declared($0)
    if (name) names = names (names ? ", " : "") "`" name "`"
    code = code $0 "\n"
    in_code = 1
}
END { end_entry() }
' llmc_zero/zero{,_config,_update,_checkpoint,_job,_plan,_settings,_deepspeed}.h | cat -s |
    sed '${/^$/d}' >"$to.tmp"
mv "$to.tmp" "$to"
