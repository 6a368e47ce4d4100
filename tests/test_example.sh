#!/usr/bin/env bash
# dev/examples/mlp_zero.c as a porter meets it, zero.h compiled alone, and docs/ against the code. Usage:
# tests/test_example.sh EXAMPLE
set -u
cd "$(dirname "$0")/.." || exit 1
example=$(realpath "${1:?Usage: tests/test_example.sh EXAMPLE}") || exit 1
. scripts/mpi_env.sh
export OMP_NUM_THREADS=1
unset ZERO_STAGE ZERO_CONFIG ZERO_POISON

. tests/cases.sh

# run NP [NAME=VALUE]... [ARGUMENT]: the example on NP ranks (0: without mpirun) in $dir; what it says is in
# $dir/screen.
run() {
    local launcher=(mpirun --oversubscribe -np "$1") settings=()
    [ "$1" = 0 ] && launcher=()
    shift
    while [[ ${1:-} == *=* ]]; do settings+=("$1"); shift; done
    (cd "$dir" && env "${settings[@]}" timeout -k 2 60 "${launcher[@]}" "$example" "$@" >screen 2>&1 \
        </dev/null)
}
runs() { run "$@" || why="${why:+$why; }$*: did not run: $(head -n 3 "$dir/screen")"; }
# the number or digest behind these words
value() { sed -nE "s/.*$1 ([0-9a-f.]+).*/\1/p" "$dir/screen" | tail -n 1; }
losses() { sed -nE 's/^step.*loss ([0-9.]+).*/\1/p' "$dir/screen"; }
# close_losses ONE OTHER [LINES]: the first loss to its last printed digit; later ones as far as rounding lets
# them part; at least so many.
close_losses() {
    paste "$1" "$2" | awk -v lines="${3:-6}" \
        '{ d = $1 - $2; most = NR == 1 ? 2e-6 : 0.02 * $2 + 1e-4; if (d > most || d < -most) bad = 1 } END '\
'{ exit bad || NR < lines }'
}

# ---- the numbers

# same NP SETTING STAGE...: these stages end with the same parameters, and have learnt. ZERO_POISON is set for
# all of them but the first, whose bits the others must have.
same() {
    local np=$1 setting=$2 first='' stage poison=0
    shift 2
    for stage in "$@"; do
        runs "$np" "ZERO_STAGE=$stage" "ZERO_POISON=$poison" "$setting"
        first=${first:-$(value params_hash)}
        need "stage $stage, poison $poison: params_hash '$(value params_hash)', the first had '$first'" \
            [ "$(value params_hash)" = "${first:-none}" ]
        need "stage $stage: $(value 'loss [0-9.]+,') % right" number "0$(value 'loss [0-9.]+,') > 95"
        cp "$dir/screen" "$dir/screen.$np.$stage"
        poison=1
    done
}

for np in 0 1 2 3; do
    begin "example.same bits at every stage, $([ $np = 0 ] && echo 'without mpirun' || echo "$np ranks")"
    # mpirun's one rank is the one without it; two ranks show the stages between
    same $np ZERO_CONFIG= 0 $([ $np != 2 ] || echo 1 2) 3
    losses >"$dir/losses.$np"
    end
done
begin 'example.the loss does not depend on the number of ranks'
for np in 1 2 3; do
    need "$np ranks: $(tail -n 1 "$dir/losses.$np"), one: $(tail -n 1 "$dir/losses.0")" close_losses \
        "$dir/losses.$np" "$dir/losses.0"
done
end
begin 'example.memory falls with the stage'
cp "$dir/screen.2.0" "$dir/screen"
whole=$(value 'model states')
cp "$dir/screen.2.3" "$dir/screen"
need "$(value 'model states') of $whole bytes" number "0$(value 'model states') < 0.6 * 0$whole"
need "$(value 'model states') bytes, the formula says $(value formula)" number \
    "0$(value 'model states') < 1.2 * 0$(value formula)"
end
begin 'example.nor on micro-batches'
echo '{ "gradient_accumulation_steps": 2 }' >"$dir/two.json"
same 2 ZERO_CONFIG=two.json 0 1
same 2 ZERO_CONFIG=two.json 3
losses >"$dir/losses.two"
need "two micro-batches: $(tail -n 1 "$dir/losses.two")" close_losses "$dir/losses.two" "$dir/losses.0"
end
begin 'example.saved, and resumed at another stage'
runs 2 ZERO_STAGE=1 save
straight=$(value params_hash)
runs 2 ZERO_STAGE=3 resume
need "params_hash '$(value params_hash)', straight '$straight'" [ "$(value params_hash)" \
    = "${straight:-none}" ]
need 'it did not start in the middle' [ "$(losses | wc -l)" = 3 ]
losses >"$dir/losses.saved"
for np in 0 3; do
    runs $np ZERO_STAGE=2 resume
    losses >"$dir/losses.resumed"
    need "$np ranks: $(tail -n 1 "$dir/losses.resumed"), two: $(tail -n 1 "$dir/losses.saved")" close_losses \
        "$dir/losses.resumed" "$dir/losses.saved" 3
done
end

# ---- what it must refuse

# refused PATTERN NP [NAME=VALUE]... [ARGUMENT]: ends with an error that one rank tells and that matches.
refused() {
    local pattern=$1
    shift
    begin "example.refused: $*"
    run "$@" && why='it ran'
    need "said: $(head -n 3 "$dir/screen")" grep -qE "^mlp_zero: .*$pattern" "$dir/screen"
    need 'said more than once' [ "$(grep -c '^mlp_zero:' "$dir/screen")" = 1 ]
    end
}

echo '{ "bf16": { "enabled": true } }' >"$dir/bf16.json"
refused 'ZERO_STAGE.*4' 0 ZERO_STAGE=4
refused 'ZERO_STAGE.*x' 2 ZERO_STAGE=x
refused 'nosuch.json' 2 ZERO_CONFIG=nosuch.json
refused 'bf16' 2 ZERO_CONFIG=bf16.json
refused 'BATCH.*multiple of the ranks' 5 ZERO_STAGE=3
refused 'usage: mlp_zero' 2 ZERO_STAGE=3 again
printf x | dd of="$(echo "$dir"/mlp_zero.saved/rank00001*)" bs=1 seek=5000 conv=notrunc status=none
refused 'mlp_zero.saved/rank00001.*: damaged: the block' 3 ZERO_STAGE=3 resume
rm "$dir/mlp_zero.saved/manifest.json"
refused 'mlp_zero.saved/manifest.json: No such file' 2 ZERO_STAGE=3 resume

# ---- zero.h and docs/

# alone NAME COMPILER ARGUMENT...: zero.h compiles by itself, without a warning.
alone() {
    local said
    begin "zero.h.alone as $1"
    shift
    said=$("$@" -Wall -Wextra -pedantic -Werror -fsyntax-only llmc_zero/zero.h 2>&1)
    need "${said:0:300}" [ $? = 0 ]
    end
}
alone C11 "${CC:-cc}" -std=c11 -x c
if command -v "${CXX:-c++}" >/dev/null; then
    alone C++17 "${CXX:-c++}" -std=c++17 -x c++
else
    skip 'zero.h.alone as C++17' 'no C++ compiler'
fi

begin 'docs.api.md is made from zero.h'
need 'dev/make_api.sh failed' dev/make_api.sh "$dir/api.md"
need 'docs/api.md is not what dev/make_api.sh makes of zero.h: run it' cmp -s "$dir/api.md" docs/api.md
headers=(llmc_zero/zero{,_checkpoint,_job,_plan,_deepspeed}.h)
for function in $(cat "${headers[@]}" | grep -oE '^[a-z].*\(' | grep -oE \
    'zero_[a-z_]+\(' | tr -d '('); do
    need "no entry for $function" grep -qE "^### .*\`$function\`" docs/api.md
done
end
begin 'docs.porting.md quotes what is there'
awk '/^```/ { quote = $0 == "```c"; next } quote && NF && $0 != "..."' docs/porting.md >"$dir/quoted"
need 'it quotes nothing' [ -s "$dir/quoted" ]
strange=$(grep -vxFf dev/examples/mlp_zero.c "$dir/quoted" | head -n 1)
need "not in mlp_zero.c: $strange" [ -z "$strange" ]
end
public=("${headers[@]}" llmc_zero/zero.mk llmc_zero/settings/deepspeed.c)
folder='(llmc_zero|trainer|gpt2|dev|docs|scripts|tests)/'
for document in README.md docs/porting.md docs/details.md; do
    begin "$document.names that are there"
    for word in $(grep -oE '\b(zero|ZERO)_[A-Za-z0-9_]+' "$document" | sort -u); do
        [ -e "llmc_zero/$word.h" ] || need "no $word in zero.h" grep -qw "$word" "${public[@]}"
    done
    for file in $(grep -oE "\`$folder[A-Za-z0-9_./]+\`" "$document" | tr -d '`' | sort -u); do
        need "no $file" [ -e "$file" ]
    done
    end
done
begin 'README.md.the plugin it draws is the one there is'
for file in $(sed -n '/^llmc_zero\//,/^gpt2\//p' README.md | grep -oE '\b[a-z_]+\.(c|h|mk)\b'); do
    need "no llmc_zero/$file" [ -e "llmc_zero/$file" ]
done
for folder in llmc_zero/*/; do need "no word of $folder" grep -q "^  $(basename "$folder")/" README.md; done
end
finish example
