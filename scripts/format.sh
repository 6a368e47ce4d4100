#!/usr/bin/env bash
# Checks the format of all shipped files: at most 110 columns, no tabs except in makefiles, no trailing
# blanks, and C formatted by clang-format 14, if installed (scripts/install_deps.sh check installs it). Prints
# a line per violation and fails if there are any. Skips tests/fake_llmc/, which imitates llm.c and its
# format.
# Usage: scripts/format.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/..}"
found=0

mapfile -t files < <(find . -type f -printf '%P\n' |
    grep -vE '^(build|third_party|\.git|data|tests/fake_llmc)/' |
    grep -E '\.(c|h|cu|cuh|cpp|sh|sbatch|py|pl|mk)$|(^|/)Makefile$|^scripts/patch_llmc$|^\.ci/run$' | sort)

# Columns are characters, not bytes.
perl -CSD -ne '
    chomp;
    my $make = $ARGV =~ m{\.mk$|(^|/)Makefile$};
    my $width = length($_);
    my @wrong;
    push @wrong, "has $width columns, more than 110." if $width > 110;
    push @wrong, "has a tab." if /\t/ && !$make;
    push @wrong, "ends in a blank." if /\s$/;
    print "$ARGV:$.: $_\n" for @wrong;
    $found += @wrong;
    close(ARGV) if eof;
    END { exit($found ? 1 : 0) }' "${files[@]}" || found=1

format=$(command -v clang-format-14 || true)
if [ -n "$format" ]; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    printf '%s\n' "${files[@]}" | grep -E '\.(c|h|cu|cuh|cpp)$' |
        xargs -r "$format" --dry-run -Werror 2>"$log" || found=1
    grep -E '^[^ ]*:[0-9]+:' "$log" || true
fi
exit $found
