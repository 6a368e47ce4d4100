#!/usr/bin/env bash
# The directions of dependence by include and by symbol, zero.h on its own, the format, and what make help
# lists. tests/house.pl checks the dependence. The second half of this file shows it trees that break a rule.
# Usage: tests/test_house.sh BUILD      (reads the objects of BUILD and BUILD/stand-in)
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1:?Usage: tests/test_house.sh BUILD}") || exit 1
. tests/cases.sh

# The layers of llmc_zero/, the uppermost first. A file uses files of its own layer and of those below, and no
# two files need each other; nor in gpt2/ or trainer/. "x" stands for x.c and x.h, "x/" for a room, "x.h" for
# that header alone.
cat >"$dir/layers" <<'END'
rules:    create hooks zero same
updates:  params grads norm step update pass naive checkpoint/ values figures
whole:    internal ranks states
owned:    params.h grads.h norm.h step.h update.h pass.h states.h
states:   tiers/ schedule plan settings/ loss_scale
tasks:    base/tasks layout
data:     comm/
memory:   base/memory base/trace
places:   device/ net/
common:   base/ zero.h zero_checkpoint.h zero_job.h zero_plan.h zero_deepspeed.h zero_settings.h
END

# The members of struct zero that have an owner: only that file and its header may touch them.
printf '%s llmc_zero/%s.c\n' >"$dir/owners" pass{,} states{,} params{,} grads{,} norm{,} update{,} step{,} \
    saving checkpoint/save_calls

# The places of the plugin that write to the screen or end the process: file, symbol, reason.
cat >"$dir/places" <<'END'
llmc_zero/net/failure.c  exit   zero_end_job ends the job for a program, as zero_job.h says
llmc_zero/net/failure.c  _exit  the same where other ranks are connected: no handler may wait for them
llmc_zero/net/failure.c  stdout  the same: flushed, not written, because nothing flushes it at _exit
END

# ---- the tree

places=$dir/places
house() { perl tests/house.pl "$dir/layers" "$places" "$dir/owners" "$@"; }

begin 'house.directions of dependence'
builds=("$build")
[ ! -d "$build/stand-in/llmc_zero" ] || builds+=("$build/stand-in")
house . "${builds[@]}" >"$dir/found" || why="$(wc -l <"$dir/found") violations:
$(cat "$dir/found")"
end

begin 'house.zero.h compiles on its own, as C11 and as C++17'
echo '#include "llmc_zero/zero.h"' >"$dir/alone.c"
for language in 'c -std=c11' 'c++ -std=c++17'; do
    # shellcheck disable=SC2086
    need "as $language" "${CC:-cc}" -x $language -Wall -Wextra -Werror -I. -fsyntax-only "$dir/alone.c"
done
end

begin 'house.make help lists each target and each variable that a user may set'
make --no-print-directory CUDA=no help >"$dir/help" 2>&1
makefiles=(Makefile gpt2/*.mk dev/*.mk tests/*.mk tests/cuda/*.mk)
for target in $(sed -n 's/^\.PHONY: //p' "${makefiles[@]}"); do
    [ "$target" = all ] || need "target $target" grep -q "^  $target  " "$dir/help"
done
for variable in $(sed -nE 's/^([A-Z_]+) +\?=.*/\1/p' "${makefiles[@]}"); do
    need "variable $variable" grep -q "\b$variable=" "$dir/help"
done
end

begin 'house.format'
scripts/format.sh >"$dir/found" || why="$(cat "$dir/found")"
end

# ---- trees that break each rule

places=$dir/no_places
: >"$places"

# plant FILE: a file of the made-up tree, from stdin.
plant() { mkdir -p "$tree/$(dirname "$1")" && cat >"$tree/$1"; }
# add FILE LINE...: these lines at the file's end.
add() { printf '%s\n' "${@:2}" >>"$tree/$1"; }
# A tree that keeps the rules: params.c uses memory.c and net/mpi.c. It is made and compiled once, and copied.
tree=$dir/tree
good_tree() { rm -rf "$tree" && cp -a "$dir/good" "$tree"; }
make_good_tree() {
    plant llmc_zero/zero.h <<<'#include <stdint.h>'
    plant llmc_zero/base/error.h <<<'int error_set(void);'
    plant llmc_zero/base/error.c <<<'#include "error.h"
int error_set(void) { return 0; }'
    plant llmc_zero/base/memory.h <<<'int memory_alloc(void);'
    plant llmc_zero/base/memory.c <<<'#include "memory.h"
int memory_alloc(void) { return 0; }'
    plant llmc_zero/net/net.h <<<'int net_open(void);'
    plant llmc_zero/net/mpi.c <<<'#include "../base/error.h"
#include "net.h"
int net_open(void) { return error_set(); }'
    plant llmc_zero/params.h <<<'int params_open(void);'
    plant llmc_zero/params.c <<<'#include "base/memory.h"
#include "net/net.h"
#include "params.h"
int params_open(void) { return memory_alloc() + net_open(); }'
    plant gpt2/model.c <<<'int model_open(void) { return 0; }'
    plant trainer/options.c <<<'#include "../llmc_zero/zero.h"
int options_read(void) { return 0; }'
}
compile() {         # what is newer than its object
    local source
    for source in "$tree"/llmc_zero/*.c "$tree"/llmc_zero/*/*.c "$tree"/{gpt2,trainer}/*.c; do
        source=${source#"$tree/"}
        [ "$tree/$source" -nt "$tree/build/${source%.c}.o" ] || continue
        mkdir -p "$tree/build/$(dirname "$source")"
        (cd "$tree" && "${CC:-cc}" -fno-builtin -w -c "$source" -o "build/${source%.c}.o")
    done
}
# finds WHAT EXPECTED: house.pl fails on the tree, with a line that matches.
finds() {
    if house "$tree" "$tree/build" >"$dir/found"; then why="${why:+$why; }$1 passes"
    else need "$1: no line with '$2' in: $(cat "$dir/found")" grep -qE "$2" "$dir/found"; fi
}

begin 'house.a tree that keeps the rules passes'
make_good_tree
compile
cp -a "$tree" "$dir/good"
house "$tree" "$tree/build" >"$dir/found" || why=$(cat "$dir/found")
end

begin 'house.an include that is not allowed is found'
while IFS='|' read -r file include expected; do
    good_tree
    plant dev/bench.h <<<''
    plant gpt2/model.h <<<''
    plant trainer/options.h <<<''
    [ -e "$tree/$file" ] || plant "$file" <<<''
    add "$file" "#include $include"
    finds "$file with $include" "^$file:[0-9]+: includes .*$expected"
done <<'END'
gpt2/model.c|<mpi.h>|gpt2/ knows nothing of MPI and NCCL
gpt2/model.c|<nccl.h>|gpt2/ knows nothing of MPI and NCCL
gpt2/model.c|"../llmc_zero/zero.h"|gpt2/ knows nothing of the plugin
gpt2/model.c|"trainer/options.h"|gpt2/ knows nothing of the trainer
llmc_zero/params.c|"../gpt2/model.h"|llmc_zero/ knows nothing of GPT-2
llmc_zero/net/mpi.c|"../../trainer/options.h"|llmc_zero/ knows nothing of the trainer
trainer/options.c|"../dev/bench.h"|nothing that is shipped includes dev/ or tests/
llmc_zero/params.c|<mpi.h>|only llmc_zero/net/mpi.c includes mpi.h
trainer/options.c|<mpi.h>|only llmc_zero/net/mpi.c includes mpi.h
llmc_zero/params.c|<nccl.h>|only files with nccl in their names
gpt2/model.c|<cublasLt.h>|only files with cuda in their names
llmc_zero/params.c|<cuda_runtime.h>|only files with cuda in their names
llmc_zero/zero.h|<unistd.h>|a public header includes only
llmc_zero/zero.h|"memory.h"|a public header includes only
llmc_zero/params.c|"absent.h"|does not exist
END
end

begin 'house.an arrow upwards is found, by include and by symbol'
good_tree
add llmc_zero/net/mpi.c '#include "../params.h"'
finds 'an include' '^llmc_zero/net/mpi.c:4: uses the declarations of llmc_zero/params.h, which is above'
good_tree
add llmc_zero/base/memory.c 'int params_open(void);' 'int memory_up(void) { return params_open(); }'
compile
finds 'a symbol' '^llmc_zero/base/memory.c:3: uses params_open of llmc_zero/params.c, which is above'
end

begin 'house.a cycle is found: of files, of headers, of rooms'
good_tree
plant llmc_zero/grads.c <<<'int params_open(void);
int grads_open(void) { return params_open(); }'
add llmc_zero/params.c 'int grads_open(void);' 'int params_more(void) { return grads_open(); }'
compile
uses='.*grads.c uses params_open of .*params.c at .*grads.c:1; '
finds 'of two files' "^llmc_zero/grads.c: files need each other: $uses"
good_tree
add trainer/options.c 'int run_open(void);' 'int options_more(void) { return run_open(); }'
plant trainer/run.c <<<'int options_more(void);
int run_open(void) { return options_more(); }'
add gpt2/model.c 'int layers(void);' 'int model_more(void) { return layers(); }'
plant gpt2/layers.c <<<'int matmul(void);
int layers(void) { return matmul(); }'
plant gpt2/matmul.c <<<'int model_more(void);
static int chosen(void) { return model_more(); }
static void *choose(void) { return chosen; }
int matmul(void) __attribute__((ifunc("choose")));'  # a VECTOR function of the CPU layers is one
compile
uses='.*run_open of trainer/run.c at .*options_more of trainer/options.c'
finds 'of two files of trainer/' "^trainer/options.c: files need each other: $uses"
finds 'of three files of gpt2/' '^gpt2/layers.c: files need each other: .* matmul .* model_more .* layers of'
good_tree
plant llmc_zero/grads.h <<<'#include "params.h"'
add llmc_zero/params.h '#include "grads.h"'
finds 'of two headers' '^llmc_zero/grads.h: headers need each other: '
good_tree
plant llmc_zero/device/device_cpu.c <<<'int net_open(void);
int device_open(void) { return net_open(); }'
plant llmc_zero/net/late.c <<<'int device_open(void);
int late_open(void) { return device_open(); }'
compile
uses='.*device_open of llmc_zero/device/ .places. at llmc_zero/net/late.c'
finds 'of two rooms' "^llmc_zero/device/ .places.: rooms need each other: $uses"
end

begin 'house.what gpt2/ and llmc_zero/ know of each other is found by symbol and by name'
good_tree
add gpt2/model.c 'int memory_alloc(void);' 'int model_more(void) { return memory_alloc(); }'
compile
finds 'a symbol of the plugin' '^gpt2/model.c:2: needs memory_alloc, but gpt2/ knows nothing'
good_tree
add gpt2/model.c 'int MPI_Init(void);' 'int model_more(void) { return MPI_Init(); }'
compile
finds 'a symbol of MPI' '^gpt2/model.c:2: needs MPI_Init, but gpt2/ knows nothing'
good_tree
add llmc_zero/params.c 'int model_open(void);' 'int params_more(void) { return model_open(); }'
compile
finds 'a symbol of gpt2/' '^llmc_zero/params.c:5: needs model_open of gpt2/model.c, but'
good_tree
add llmc_zero/params.c '// like gpt2_forward'
compile
finds 'a name' '^llmc_zero/params.c:5: names gpt2_forward'
end

begin 'house.printing and ending the process are found, but not at a place that is listed'
for code in 'puts("x")' 'exit(1)' 'abort()' 'perror("x")'; do
    good_tree
    add llmc_zero/params.c "void params_more(void) { $code; }"
    compile
    finds "$code" "^llmc_zero/params.c:5: needs ${code%%(*}, but the plugin never"
done
echo 'llmc_zero/params.c perror for this test' >"$places"
need 'a place that is listed is found' house "$tree" "$tree/build"
good_tree
finds 'an entry of no use' '^llmc_zero/params.c: does not name perror: its entry'
: >"$places"
end

begin 'house.state of another file is found: a member of struct zero, a struct of its owner'
while IFS='|' read -r file code expected; do
    good_tree
    plant llmc_zero/internal.h <<<'struct zero { struct params params; };'
    add "$file" "$code"
    if [ "$expected" ]; then finds "$file with $code" "^$file:[0-9]+: touches $expected of struct zero, but"
    else need "$file with $code is found" house "$tree" "$tree/build"; fi
done <<'END'
llmc_zero/base/memory.c|int memory_look(zero *z) { return z->params.n; }|params
llmc_zero/base/memory.c|int memory_look(void *ctx) { return ((zero *)ctx)->params.n; }|params
llmc_zero/base/memory.c|int memory_look(struct params_unit *u) { return u->n; }|params
llmc_zero/net/mpi.c|int net_look(zero *z) { return z->saving.copy; }|saving
llmc_zero/params.c|int params_look(zero *z) { return z->params.n; }|
llmc_zero/params.h|struct params { int n; };|
END
end

begin 'house.a file without a layer and a file without an object are found'
good_tree
plant llmc_zero/novel.c <<<'int novel;'
compile
finds 'no layer' '^llmc_zero/novel.c: has no place in the table'
good_tree
rm "$tree/build/llmc_zero/base/memory.o"
finds 'no object' '^llmc_zero/base/memory.c: has no object in '
end

begin 'house.format: a long line, a tab, a trailing blank and code that is not formatted are found'
while IFS='|' read -r file text expected; do
    rm -rf "$dir/formatted"
    mkdir -p "$dir/formatted/$(dirname "$file")"
    cp .clang-format "$dir/formatted/"
    printf '%b\n' "$text" >"$dir/formatted/$file"
    if scripts/format.sh "$dir/formatted" >"$dir/found"; then why="${why:+$why; }$file passes: $text"
    else need "$file: no '$expected' in: $(cat "$dir/found")" grep -q "^$file:1: $expected" "$dir/found"; fi
done <<END
llmc_zero/a.c|// $(printf '%0120d' 1)|has 123 columns
tests/a.sh|# $(printf '%0120d' 1)|has 122 columns
dev/dev.mk|# $(printf '%0120d' 1)|has 122 columns
dev/a.py|if x:\tpass|has a tab
gpt2/a.h|int a; |ends in a blank
END
if command -v clang-format-14 >/dev/null; then
    mkdir -p "$dir/formatted/gpt2" && echo 'int  a;' >"$dir/formatted/gpt2/b.c"
    scripts/format.sh "$dir/formatted" >"$dir/found" && why="${why:+$why; }code that is not formatted passes"
    need "clang-format's line is missing: $(cat "$dir/found")" grep -q '^gpt2/b.c:1:' "$dir/found"
fi
end

finish house
