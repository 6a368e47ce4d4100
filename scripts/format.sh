#!/usr/bin/env bash
# Checks the format of what is shipped: lines of at most 110 columns, no tabs outside of makefiles, no
# trailing blanks, and C as clang-format 14 writes it, where that is installed (scripts/install_deps.sh check
# installs it). Prints a line for each violation, and fails if there is one. Usage: scripts/format.sh [ROOT]
# tests/fake_llmc/ imitates llm.c, and so keeps llm.c's format.
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
    said=$(mktemp)
    trap 'rm -f "$said"' EXIT
    printf '%s\n' "${files[@]}" | grep -E '\.(c|h|cu|cuh|cpp)$' |
        xargs -r "$format" --dry-run -Werror 2>"$said" || found=1
    grep -E '^[^ ]*:[0-9]+:' "$said" || true
fi
exit $found
