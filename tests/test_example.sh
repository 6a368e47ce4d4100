#!/usr/bin/env bash
# Runs dev/examples/mlp_zero.c as a new user of the plugin would, and checks docs/ against the code.
# Usage: tests/test_example.sh EXAMPLE
# shellcheck disable=SC2086
. "$(dirname "$0")/cases.sh"
example=$(realpath "${1:?Usage: tests/test_example.sh EXAMPLE}") || exit 1
export OMP_NUM_THREADS=1
unset ZERO_STAGE ZERO_CONFIG ZERO_POISON
screen=$dir/screen

# run NP [NAME=VALUE]... [ARGUMENT]: runs the example on NP ranks in $dir, with its output in $screen
run() {
    local launcher settings=()
    launch "$1"
    shift
    while [[ ${1:-} == *=* ]]; do settings+=("$1"); shift; done
    (cd "$dir" && env "${settings[@]}" timeout -k 2 $hang_limit "${launcher[@]}" "$example" "$@" \
        >screen 2>&1 </dev/null)
}
runs() { run "$@" || need "$*: failed: $(head -n 3 "$screen")" false; }
# value WORDS: prints the number or digest after WORDS
value() { sed -nE "s/.*$1 ([0-9a-f.]+).*/\1/p" "$screen" | tail -n 1; }
losses() { sed -nE 's/^step.*loss ([0-9.]+).*/\1/p' "$screen"; }
# same_losses OTHER [LINES]: checks that at least LINES losses agree: the first to its last printed digit,
# later ones up to accumulated rounding errors
same_losses() {
    need "last loss $(losses | tail -n 1), not $(tail -n 1 "$1")" awk -v lines="${2:-6}" '
        { d = $1 - $2; most = NR == 1 ? 2e-6 : 0.02 * $2 + 1e-4; if (d > most || d < -most) bad = 1 }
        END { exit bad || NR < lines }' <(paste <(losses) "$1")
}

# ---- the numbers

# same NP [NAME=VALUE]... [ARGUMENT]...: checks that the training works, and that it ends with the parameters
# of the runs since $first was emptied
same() {
    runs "$@"
    first=${first:-$(value params_hash)}
    is "params_hash of $*" "$(value params_hash)" "${first:-none}"
    need "$*: $(value 'loss [0-9.]+,') % right" number "0$(value 'loss [0-9.]+,') > 95"
}

first=
begin 'example.same bits at both ends of the stages; memory falls as the stage rises'
same 2 ZERO_STAGE=0
whole=$(value 'model states') two=$first
losses >"$dir/losses"
same 2 ZERO_STAGE=3 ZERO_POISON=1
need "$(value 'model states') of $whole bytes" number "0$(value 'model states') < 0.6 * 0$whole"
need "$(value 'model states') bytes, the formula has $(value formula)" number \
    "0$(value 'model states') < 1.2 * 0$(value formula)"
end
begin 'example.the same loss with micro-batches, and on other numbers of ranks'
echo '{ "gradient_accumulation_steps": 2 }' >"$dir/two.json"
for how in '2 ZERO_STAGE=0 ZERO_CONFIG=two.json' '2 ZERO_STAGE=3 ZERO_CONFIG=two.json' '3 ZERO_STAGE=3' \
    '1 ZERO_STAGE=3'; do
    first=
    same $how ZERO_POISON=1
    same_losses "$dir/losses"
done
one=$first
end
# 8 micro-batches of the same rows
begin 'example.by layers, the same bits at both ends of the stages, on any number of ranks, and if resumed'
first=
while read -r np micro stage how; do
    echo "{ \"gradient_accumulation_steps\": $micro }" >"$dir/$micro.json"
    same "$np" ZERO_STAGE=$stage ZERO_POISON=$((stage % 2)) ZERO_CHECK=$((stage / 2)) \
        ZERO_CONFIG=$micro.json $how layers
    [ "$how" = resume ] || same_losses "$dir/losses"
done <<'END'
1 8 0
2 4 3 save
4 2 0
4 2 3 resume
END
end
begin 'example.SGD and Lion'
for optimizer in sgd lion; do
    first=
    same 2 ZERO_STAGE=3 ZERO_POISON=1 $optimizer
done
end
begin 'example.saved, and resumed at another stage and on other numbers of ranks'
first=$two
same 2 ZERO_STAGE=1 ZERO_POISON=1 save
same 2 ZERO_STAGE=2 ZERO_POISON=1 resume
is 'steps after the resume' "$(losses | wc -l)" 3
losses >"$dir/losses.saved"
for np in 1 3; do
    runs $np ZERO_STAGE=3 resume
    same_losses "$dir/losses.saved" 3
done
end

# ---- errors

# refusals: reads lines PATTERN|NP [NAME=VALUE]... [ARGUMENT]. Checks that each run fails with one matching
# message.
refusals() {
    local pattern arguments
    while IFS='|' read -r pattern arguments; do
        need "$arguments: succeeded" not run $arguments
        has "$screen" "^mlp_zero: .*$pattern"
        is "messages of $arguments" "$(grep -c '^mlp_zero:' "$screen")" 1
    done
}
begin 'example.refused'
echo '{ "bf16": { "enabled": true } }' >"$dir/bf16.json"
refusals <<'END'
ZERO_STAGE.*x|2 ZERO_STAGE=x
bf16|2 ZERO_CONFIG=bf16.json
BATCH.*multiple of the ranks|5 ZERO_STAGE=3
usage: mlp_zero|2 ZERO_STAGE=3 again
END
flip_byte "$(echo "$dir"/mlp_zero.saved/rank00001*)" 5000
refusals <<<'mlp_zero.saved/rank00001.*: damaged: the block|3 ZERO_STAGE=3 resume'
rm "$dir/mlp_zero.saved/manifest.json"
refusals <<<'mlp_zero.saved/manifest.json: .*No such file|2 ZERO_STAGE=3 resume'
end

# ---- an installed plugin

# Installs the existing build: without -o, make could rebuild it with settings other than those under test.
begin 'example.built by pkg-config from an install'
if ! command -v pkg-config >/dev/null; then
    skip example 'no pkg-config'
else
    need 'make install failed' make --no-print-directory -o train_gpt2_zero \
        -o "$(dirname "$1")/libllmc_zero.a" PREFIX="$dir/usr" install >"$screen" 2>&1
    export PKG_CONFIG_PATH=$dir/usr/lib/pkgconfig
    # shellcheck disable=SC2046
    "${CC:-cc}" -O2 $(pkg-config --cflags llmc_zero) dev/examples/mlp_zero.c -o "$dir/mlp_zero" \
        $(pkg-config --static --libs llmc_zero) >"$screen" 2>&1 ||
        need "not built: $(tail -n 1 "$screen")" false
    is version "\"$(pkg-config --modversion llmc_zero)\"" \
        "$(awk '/ZERO_VERSION/ { print $3 }' llmc_zero/zero.h)"
    example=$dir/mlp_zero
    first=$one
    same 1 ZERO_STAGE=0
    need 'no trainer' [ -x "$dir/usr/bin/train_gpt2_zero" ]
    end
fi

# ---- zero.h and docs/

begin 'docs.api.md names every public header, and porting.md quotes the examples'
for header in llmc_zero/zero*.h; do
    need "$header is missing" grep -qF "\`$header\`" docs/reference/api.md
done
awk '/^```/ { quote = $0 == "```c"; next } quote && NF && $0 != "..."' docs/porting.md >"$dir/quoted"
need 'no quoted code found' [ -s "$dir/quoted" ]
strange=$(grep -vxF -f dev/examples/mlp_zero.c -f dev/examples/optimizers.h "$dir/quoted" | head -n 1)
need "not in dev/examples: $strange" [ -z "$strange" ]
end
public=(llmc_zero/zero*.h llmc_zero/zero.mk llmc_zero/settings/*)
folder='(llmc_zero|trainer|gpt2|dev|docs|scripts|tests)/'
pages=(README.md docs/*.md docs/{tutorial,internals}/*.md docs/reference/{details,api}.md)
begin 'docs.names exist, and code-map.md has every folder'
for word in $(grep -ohE '\b(zero|ZERO)_[A-Za-z0-9_]+' "${pages[@]}" | sort -u); do
    compgen -G "*/$word.h" >/dev/null || compgen -G "trainer/*/$word.h" >/dev/null ||
        need "no $word in zero.h" grep -qw "$word" "${public[@]}"
done
for file in $(grep -ohE "\`$folder[A-Za-z0-9_./]+\`" "${pages[@]}" | tr -d '`' | sort -u); do
    need "no $file" [ -e "$file" ]
done
while read -r word file; do
    need "no $word in $file" grep -qw "$word" "$file"
done < <(cat "${pages[@]}" | tr '\n' ' ' | grep -oE "\`[a-z_]+\` in \`$folder[A-Za-z0-9_./]+\`" | tr -d '`' |
    sed 's/ in / /')
need 'README.md has more than 200 lines' [ "$(wc -l <README.md)" -le 200 ]
map=docs/internals/code-map.md
for file in $(sed -n '/^llmc_zero\//,/^gpt2\//p' $map | grep -oE '\b[a-z_]+\.(c|h|mk)\b'); do
    need "no llmc_zero/$file" [ -e "llmc_zero/$file" ]
done
for folder in llmc_zero/*/; do need "$map lacks $folder" grep -q "^  ${folder#*/}" $map; done
end
finish example
