#!/usr/bin/env bash
# Tests the house rules: which file may depend on which, by include and by symbol, a self-contained zero.h,
# the format, and make help. tests/house.pl checks the dependencies; the second half of this file runs it on
# trees that break a rule.
# Usage: tests/test_house.sh BUILD      reads the objects in BUILD and BUILD/stand-in
. "$(dirname "$0")/cases.sh"
build=$(realpath "${1:?Usage: tests/test_house.sh BUILD}") || exit 1

# The layers of llmc_zero/ from the top. A file may use files of its own layer and of lower ones. No files may
# depend on each other in a cycle, including those of gpt2/ and trainer/. "x" means x.c and x.h, "x/" a
# folder, "x.h" only that header.
cat >"$dir/layers" <<'END'
rules:    create hooks zero same_settings
updates:  params grads accumulate norm step update check pass naive checkpoint/ get_set info
whole:    internal job rank_states
owned:    params.h grads.h accumulate.h norm.h step.h update.h check.h pass.h rank_states.h
states:   tiers/ schedule plan settings/ loss_scale
tasks:    base/tasks layout placement
data:     comm/
memory:   base/memory base/trace base/trace_file
places:   device/ net/
common:   base/ zero.h zero_checkpoint.h zero_job.h zero_info.h zero_deepspeed.h zero_settings.h
types:    zero_config.h zero_optimizer.h zero_virtual.h
END

# Owners of struct zero's members: only that file and its header may touch them.
printf '%s llmc_zero/%s.c\n' >"$dir/owners" pass{,} rank_states{,} params{,} grads{,} accumulate{,} norm{,} \
    update{,} step{,} check{,} saving checkpoint/save

# Where the plugin may print or end the process: file, symbol, reason.
cat >"$dir/places" <<'END'
llmc_zero/net/failure.c  exit   zero_end_job ends the job for a program (zero_job.h)
llmc_zero/net/failure.c  _exit  the same while other ranks are connected: exit handlers could wait for them
llmc_zero/net/failure.c  stdout  flushed explicitly, because _exit does not flush it
END

# ---- the tree

places=$dir/places
house() { perl tests/house.pl "$dir/layers" "$places" "$dir/owners" "$@"; }

begin 'house.direction of dependencies'
builds=("$build")
[ ! -d "$build/stand-in/llmc_zero" ] || builds+=("$build/stand-in")
house . "${builds[@]}" >"$dir/found" || why="$(wc -l <"$dir/found") violations:
$(cat "$dir/found")"
end

begin 'house.zero.h is self-contained, in C11 and in C++17'
echo '#include "llmc_zero/zero.h"' >"$dir/alone.c"
for language in 'c -std=c11' 'c++ -std=c++17'; do
    # shellcheck disable=SC2086
    need "$language failed" "${CC:-cc}" -x $language -Wall -Wextra -pedantic -Werror -I. -fsyntax-only \
        "$dir/alone.c"
done
end

begin 'house.links and call chains in the documentation are right'
perl tests/links.pl . >"$dir/found" || why="$(cat "$dir/found")"
end

# Lines CHAIN|EXPECTED: the first violation that links.pl must find in a page with this chain, or none
begin 'house.a call chain that the code does not have is found'
mkdir "$dir/chains"
printf 'int a(int x) {\n    return b(x);  // c\n}\nint b(int x) {\n    return x ? t->go(x) : 0;\n}\n' \
    >"$dir/chains/a.c"
printf 'static int c(int x) {\n    return x;\n}\nstatic table t = { c };\nint d(void) {\n}\n' \
    >"$dir/chains/c.c"
while IFS='|' read -r chain expected; do
    printf '```chain\nTitle: %b\n```\n' "$chain" >"$dir/chains/page.md"
    perl tests/links.pl "$dir/chains" >"$dir/found"
    is "$chain" "$(head -n 1 "$dir/found")" "$expected"
done <<'END'
2 files\na a.c\nb a.c\nc c.c .go it works\n\na a.c\nb a.c|
1 files\na a.c\nb a.c\nc c.c .go|page.md:6: the chain has 2 files
1 files\nb a.c\na a.c|page.md:4: a is not called there
2 files\na a.c\nc c.c|page.md:4: c is not called there
1 files\na a.c\nb c.c|page.md:4: c.c does not define b
2 files\nb a.c\nc c.c .stop|page.md:4: c is not called there
2 files\nb a.c\nd c.c .go|page.md:4: c.c has no table with d
1 files\nb a.c\nrename -|page.md:4: rename is not called there
END
end

begin 'house.make help lists each target and variable'
make --no-print-directory CUDA=no help >"$dir/help" 2>&1
makefiles=(Makefile gpt2/*.mk dev/*.mk dev/*/*.mk tests/*.mk tests/cuda/*.mk)
for target in $(sed -n 's/^\.PHONY: //p' "${makefiles[@]}"); do
    [ "$target" = all ] || need "target $target is not listed" grep -q "^  $target  " "$dir/help"
done
for variable in $(sed -nE 's/^([A-Z_]+) +\?=.*/\1/p' "${makefiles[@]}"); do
    need "variable $variable is not listed" grep -q "\b$variable=" "$dir/help"
done
end

# Dry runs with another build folder: make only prints what it would compile.
steps() {           # VARIABLE=VALUE...: prints the lines that announce a step, without the folder
    make --no-print-directory -n ZERO_DRY=+ BUILD="$dir/build" TRAINER="$dir/build/trainer.bin" CUDA=no \
        "$@" "$dir/build/trainer.bin" | sed -nE "s|.*echo \"(  [a-z+]+ .*)\"\$|\1|p" | sed "s|$dir/build/||"
}
begin 'house.make recompiles only what a changed flag affects'
with=(ZERO_URING=yes HAVE_PCRE=yes) without=(ZERO_URING=no HAVE_PCRE=)
steps "${with[@]}" >"$dir/steps"
all=$(wc -l <"$dir/steps")
need "$all steps" [ "$all" -gt 100 ]
for file in $(sed 's/.* //' "$dir/steps") libllmc_zero.a trainer.bin; do
    mkdir -p "$dir/build/$(dirname "$file")" && touch "$dir/build/$file"
done
is 'steps of a build that is up to date' "$(steps "${with[@]}")" ''
is 'compiled without io_uring and PCRE2' \
    "$(steps "${without[@]}" | sed -n 's/.* cc *//p' | grep -v /nccl | LC_ALL=C sort | xargs)" \
    'gpt2/bpe.o llmc_zero/comm/open.o llmc_zero/device/device_cpu.o llmc_zero/device/device_cuda.o '\
'llmc_zero/tiers/file_uring.o'
is 'steps with -O2' "$(steps "${without[@]}" CFLAGS=-O2 | wc -l)" "$all"
end

begin 'house.compile_commands.json has each file'
mkdir "$dir/linked" && ln -s "$PWD"/* "$dir/linked" && rm -f "$dir/linked/compile_commands.json"
make -s -C "$dir/linked" BUILD="$dir/build" CUDA=no compile_commands.json
sed -nE 's/^\{"directory": "[^"]+", "file": "([^"]+)",$/\1/p' "$dir/linked/compile_commands.json" \
    >"$dir/listed"
is 'files without a command' \
    "$(find llmc_zero trainer -name '*.c' | grep -vxFf "$dir/listed" | xargs)" ''
sed -nE 's|^ "command": "(.* -c llmc_zero/layout.c) .*"\}.*|\1 -MF /dev/null -fsyntax-only|p' \
    "$dir/linked/compile_commands.json" >"$dir/command"
need "does not run: $(cat "$dir/command")" sh -e "$dir/command"
need 'no command' [ -s "$dir/command" ]
end

begin 'house.a download is announced'
mkdir -p "$dir/bare/scripts" "$dir/bare/include"
cp scripts/fetch_cudnn_frontend.sh "$dir/bare/scripts"
: >"$dir/bare/include/cudnn.h"
for program in python3 git; do              # fail as they would without a network
    printf '#!/bin/sh\nexit 1\n' >"$dir/bare/$program" && chmod +x "$dir/bare/$program"
done
PATH=$dir/bare:$PATH CUDA_HOME=$dir/bare need 'status 0 without a network' \
    not "$dir/bare/scripts/fetch_cudnn_frontend.sh" >"$dir/found" 2>&1
need "its first line is: $(head -n 1 "$dir/found")" grep -q '1:Downloading .* to third_party/' \
    <(grep -n . "$dir/found")
end

begin 'house.format'
scripts/format.sh >"$dir/found" || why="$(cat "$dir/found")"
end

# Lines VERDICT|FAILS|COMMAND|TEXT: what run.pl must conclude about a tutorial page with this block
begin 'house.the tutorial runs its blocks and finds what differs'
mkdir -p "$dir/pages/docs/tutorial" "$dir/pages/scripts"
: >"$dir/pages/scripts/mpi_env.sh"
while IFS='|' read -r verdict fails command text; do
    printf '```console%s\n$ %s\n%b\n```\n' "$fails" "$command" "$text" >"$dir/pages/docs/tutorial/01-a.md"
    (cd "$dir/pages" && perl "$OLDPWD/dev/lessons/run.pl" build) >"$dir/found"
    is "$command, $text" "$(tail -n 1 "$dir/found")" "$verdict"
done <<'END'
1 passed, 0 failed||seq 5|1\n...\n4\n5
0 passed, 1 failed||seq 5|1\n...\n4
0 passed, 1 failed||seq 5|1\n3\n...
0 passed, 1 failed||seq 2|1\n2\n3
1 passed, 0 failed||echo 'rank  2 of 3, done'|rank 2 of ..., done
1 passed, 0 failed||echo loss 5.567470|loss 5.5680
0 passed, 1 failed||echo loss 5.567470|loss 5.5780
0 passed, 1 failed||echo 3.25 MiB|3.26 MiB
1 passed, 0 failed||echo 0123456789abcdef 0123456789abcdef|aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa
0 passed, 1 failed||echo 0123456789abcdef 1123456789abcdef|aaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaa
0 passed, 1 failed||echo 0123456789abcdef 0123456789abcdef|aaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbb
0 passed, 1 failed||false|...
1 passed, 0 failed| fails|false|...
0 passed, 1 failed| fails|true|...
END
rm "$dir"/pages/docs/tutorial/*
mkdir -p "$dir"/pages/{dev,build}/lessons
ln -s /bin/true "$dir/pages/build/lessons/01" && ln -s /bin/true "$dir/pages/build/lessons/01_solution"
: >"$dir/pages/dev/lessons/01_check.c" && : >"$dir/pages/dev/lessons/01_stub.c"
git -C "$dir/pages" init -q && git -C "$dir/pages" add dev
git -C "$dir/pages" -c user.name=none -c user.email=none commit -qm none
for verdict in '0 passed, 1 failed' '1 passed, 0 failed'; do    # a solved stub; one that the reader solved
    (cd "$dir/pages" && perl "$OLDPWD/dev/lessons/run.pl" build) >"$dir/found"
    is "$(head -n 1 "$dir/found")" "$(tail -n 1 "$dir/found")" "$verdict"
    echo solved >>"$dir/pages/dev/lessons/01_stub.c"
done
need 'not said' grep -q '^ok .*grader (skipped your version)' "$dir/found"
end

# ---- trees that each break a rule

# plant FILE TEXT: appends TEXT to FILE in the made-up tree
plant() { mkdir -p "$tree/$(dirname "$1")" && printf '%b\n' "$2" >>"$tree/$1"; }
compile() {         # compiles the sources that are newer than their objects
    local source
    for source in "$tree"/llmc_zero/*.c "$tree"/llmc_zero/*/*.c "$tree"/{gpt2,trainer}/*.c; do
        source=${source#"$tree/"}
        [ "$tree/$source" -nt "$tree/build/${source%.c}.o" ] || continue
        mkdir -p "$tree/build/$(dirname "$source")"
        (cd "$tree" && "${CC:-cc}" -fno-builtin -w -c "$source" -o "build/${source%.c}.o") 2>/dev/null
    done
}
new_tree() { rm -rf "$tree" && cp -a "$dir/good" "$tree"; }
keeps_rules() { house "$tree" "$tree/build" >"$dir/found"; }

# A tree that follows the rules. Like the CPU layers' VECTOR functions, matmul is resolved at run time.
places=$dir/no_places
: >"$places"
tree=$dir/tree
while IFS='|' read -r file text; do plant "$file" "$text"; done <<'END'
llmc_zero/zero.h|#include <stdint.h>
llmc_zero/internal.h|struct zero { struct params params; };
llmc_zero/base/error.h|int error_set(void);
llmc_zero/base/error.c|#include "error.h"\nint error_set(void) { return 0; }
llmc_zero/base/memory.h|int memory_alloc(void);
llmc_zero/base/memory.c|#include "memory.h"\nint memory_alloc(void) { return 0; }
llmc_zero/net/net.h|int net_open(void);
llmc_zero/net/mpi.c|#include "../base/error.h"\n#include "net.h"\nint net_open(void) { return error_set(); }
llmc_zero/device/device_cpu.c|int net_open(void);\nint device_open(void) { return net_open(); }
llmc_zero/params.h|int params_open(void);
llmc_zero/params.c|#include "base/memory.h"\n#include "net/net.h"\n#include "params.h"
llmc_zero/params.c|int params_open(void) { return memory_alloc() + net_open(); }
llmc_zero/grads.h|#include "params.h"
llmc_zero/grads.c|int params_open(void);\nint grads_open(void) { return params_open(); }
gpt2/model.h|
gpt2/model.c|int layers(void);\nint model_open(void) { return layers(); }
gpt2/layers.c|int matmul(void);\nint layers(void) { return matmul(); }
gpt2/matmul.c|static int chosen(void) { return 0; }\nstatic void *choose(void) { return chosen; }
gpt2/matmul.c|int matmul(void) __attribute__((ifunc("choose")));
trainer/options.h|
trainer/options.c|#include "../llmc_zero/zero.h"\nint options_read(void) { return 0; }
trainer/run.c|int options_read(void);\nint run_open(void) { return options_read(); }
dev/bench.h|
dev/lessons/owner.c|#include "llmc_zero/zero.h"
END
begin 'house.a tree that follows the rules passes'
compile
keeps_rules || why=$(cat "$dir/found")
end
cp -a "$tree" "$dir/good"

# Lines FILE|TEXT|EXPECTED: after TEXT is appended to FILE, house.pl must find a violation that matches
# EXPECTED, or none if EXPECTED is empty. TEXT "calls x" stands for a function that calls x.
begin 'house.violations are found'
while IFS='|' read -r file text expected; do
    new_tree
    called=${text#calls }
    [ "$called" = "$text" ] || text="int $called(void);\nint more(void) { return $called(); }"
    plant "$file" "$text"
    compile
    if [ -z "$expected" ]; then need "a violation in $file with $text" keeps_rules; continue; fi
    need "$file with $text passes" not keeps_rules
    has "$dir/found" "$expected"
done <<'END'
gpt2/model.c|#include <mpi.h>|gpt2/model.c:3: includes .*gpt2/ must not depend on MPI or NCCL
gpt2/model.c|#include "../llmc_zero/zero.h"|includes .*gpt2/ must not depend on the plugin
gpt2/model.c|#include "trainer/options.h"|includes .*gpt2/ must not depend on the trainer
llmc_zero/params.c|#include "../gpt2/model.h"|includes .*llmc_zero/ must not depend on GPT-2
llmc_zero/net/mpi.c|#include "../../trainer/options.h"|includes .*llmc_zero/ must not depend on the trainer
trainer/options.c|#include "../dev/bench.h"|includes .*shipped code must not include dev/ or tests/
dev/lessons/owner.c|#include "llmc_zero/internal.h"|includes .*only the public headers of the plugin
llmc_zero/params.c|#include <mpi.h>|params.c:5: includes .*only llmc_zero/net/mpi.c includes mpi.h
llmc_zero/params.c|#include <nccl.h>|includes .*only files with nccl in their names
llmc_zero/params.c|#include <cuda_runtime.h>|includes .*only files with cuda in their names
llmc_zero/zero.h|#include <unistd.h>|includes .*public headers include only
llmc_zero/zero.h|#include "memory.h"|includes .*public headers include only
llmc_zero/params.c|#include "absent.h"|includes .*does not exist
llmc_zero/net/mpi.c|#include "../params.h"|mpi.c:4: uses the declarations of .*params.h, which is in a higher
llmc_zero/base/memory.c|calls params_open|memory.c:3: uses params_open of .*params.c, which is in a higher
llmc_zero/params.c|calls grads_open|grads.c: files need each other
trainer/options.c|calls run_open|files need .* run_open of trainer
gpt2/matmul.c|calls model_open|files need .* matmul .* model_open .* layers of
llmc_zero/params.h|#include "grads.h"|^llmc_zero/grads.h: headers need each other
llmc_zero/net/late.c|calls device_open|modules need each other
gpt2/model.c|calls memory_alloc|model.c:3: needs memory_alloc, but gpt2/
gpt2/model.c|calls MPI_Init|model.c:3: needs MPI_Init, but gpt2/ must not depend
llmc_zero/params.c|calls model_open|params.c:5: needs model_open of gpt2/model.c, but
llmc_zero/params.c|// like gpt2_forward|params.c:5: names gpt2_forward
llmc_zero/params.c|void more(void) { exit(1); }|params.c:5: needs exit, but the plugin must not
llmc_zero/base/memory.c|int look(void *ctx) { return ((zero *)ctx)->params.n; }|memory.c:3: touches params of
llmc_zero/base/memory.c|int look(struct params_unit *u) { return u->n; }|memory.c:3: touches params of
llmc_zero/net/mpi.c|int look(zero *z) { return z->saving.copy; }|mpi.c:4: touches saving of struct zero, but
llmc_zero/params.c|int look(zero *z) { return z->params.n; }|
llmc_zero/params.h|struct params { int n; };|
llmc_zero/novel.c|int novel;|^llmc_zero/novel.c: is missing from the table
llmc_zero/params.c|void more(void) { perror("x"); }|params.c:5: needs perror, but the plugin must not
END
end

begin 'house.a listed place may print; an unused entry and a missing object are violations'
echo 'llmc_zero/params.c perror for this test' >"$places"
new_tree
need 'an unused entry passes' not keeps_rules
has "$dir/found" '^llmc_zero/params.c: does not name perror: its entry'
plant llmc_zero/params.c 'void more(void) { perror("x"); }'
compile
need 'a listed place is a violation' keeps_rules
rm "$tree/build/llmc_zero/base/memory.o"
need 'a missing object passes' not keeps_rules
has "$dir/found" '^llmc_zero/base/memory.c: has no object in '
end

begin 'house.format: a long line, a tab, a trailing blank and unformatted code are found'
tree=$dir/formatted
while IFS='|' read -r file text expected; do
    [ "$file" ] || continue         # the last line is empty without clang-format
    rm -rf "$tree"
    plant "$file" "$text"
    cp .clang-format "$tree"
    need "$file passes: $text" not scripts/format.sh "$tree" >"$dir/found"
    has "$dir/found" "^$file:1:$expected"
done <<END
llmc_zero/a.c|// $(printf '%0120d' 1)| has 123 columns
tests/a.sh|# $(printf '%0120d' 1)| has 122 columns
dev/dev.mk|# $(printf '%0120d' 1)| has 122 columns
dev/a.py|if x:\tpass| has a tab
gpt2/a.h|int a; | ends in a blank
$(command -v clang-format-14 >/dev/null && echo 'gpt2/b.c|int  a;|')
END
end

finish house
