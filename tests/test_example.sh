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

# same NP SETTING STAGE...: checks that training works at all stages and ends with the same parameters. All
# runs except the first use ZERO_POISON.
same() {
    local np=$1 setting=$2 first='' stage poison=0
    shift 2
    for stage in "$@"; do
        runs "$np" "ZERO_STAGE=$stage" "ZERO_POISON=$poison" "$setting"
        first=${first:-$(value params_hash)}
        is "params_hash of stage $stage, poison $poison" "$(value params_hash)" "${first:-none}"
        need "stage $stage: $(value 'loss [0-9.]+,') % right" number "0$(value 'loss [0-9.]+,') > 95"
        cp "$screen" "$dir/screen.$np.$stage"
        poison=1
    done
}

for setting in '1 0 3' '2 0 1 2 3' '3 3'; do
    begin "example.same bits at every stage, and the same loss on any number of ranks: $setting"
    same ${setting%% *} ZERO_CONFIG= ${setting#* }
    [ -e "$dir/losses" ] || losses >"$dir/losses"
    same_losses "$dir/losses"
    end
done
begin 'example.memory falls as the stage rises'
cp "$dir/screen.2.0" "$screen"
whole=$(value 'model states')
cp "$dir/screen.2.3" "$screen"
need "$(value 'model states') of $whole bytes" number "0$(value 'model states') < 0.6 * 0$whole"
need "$(value 'model states') bytes, the formula has $(value formula)" number \
    "0$(value 'model states') < 1.2 * 0$(value formula)"
end
begin 'example.the same loss with micro-batches'
echo '{ "gradient_accumulation_steps": 2 }' >"$dir/two.json"
same 2 ZERO_CONFIG=two.json 0 1
same 2 ZERO_CONFIG=two.json 3
same_losses "$dir/losses"
end
# 8 micro-batches of the same rows on 1, 2 and 4 ranks; 12 on 3 ranks
begin 'example.by layers, the same bits at both ends of the stages and on any number of ranks'
first=
while read -r np micro stages; do
    echo "{ \"gradient_accumulation_steps\": $micro }" >"$dir/$micro.json"
    [ "$np" != 3 ] || first=
    for stage in $stages; do
        runs "$np" ZERO_STAGE=$stage ZERO_POISON=$((stage % 2)) ZERO_CHECK=$((stage / 2)) \
            ZERO_CONFIG=$micro.json layers
        first=${first:-$(value params_hash)}
        is "params_hash on $np ranks, stage $stage" "$(value params_hash)" "${first:-none}"
        same_losses "$dir/losses"
    done
    [ "$np" != 2 ] || runs 2 ZERO_STAGE=1 ZERO_CONFIG=$micro.json save layers
    [ "$np" != 4 ] || runs 4 ZERO_STAGE=3 ZERO_CONFIG=$micro.json resume layers
    [ "$np" != 4 ] || is 'params_hash after a resume' "$(value params_hash)" "${first:-none}"
done <<'END'
1 8 0
2 4 0 3
4 2 0 3
3 4 0 3
END
end
for optimizer in sgd lion; do
    begin "example.same bits at stages 0 and 3 with $optimizer"
    first=
    for stage in 0 3; do
        runs 2 ZERO_STAGE=$stage ZERO_POISON=1 $optimizer
        first=${first:-$(value params_hash)}
        is "params_hash of stage $stage" "$(value params_hash)" "${first:-none}"
        need "$(value 'loss [0-9.]+,') % right" number "0$(value 'loss [0-9.]+,') > 95"
    done
    end
done
begin 'example.saved, and resumed at another stage'
runs 2 ZERO_STAGE=1 save
straight=$(value params_hash)
runs 2 ZERO_STAGE=3 resume
is params_hash "$(value params_hash)" "${straight:-none}"
is 'steps after the resume' "$(losses | wc -l)" 3
losses >"$dir/losses.saved"
for np in 1 3; do
    runs $np ZERO_STAGE=2 resume
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
ZERO_STAGE.*4|1 ZERO_STAGE=4
ZERO_STAGE.*x|2 ZERO_STAGE=x
nosuch.json|2 ZERO_CONFIG=nosuch.json
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
    runs 1 ZERO_STAGE=3
    is params_hash "params_hash $(value params_hash)" "$(grep params_hash "$dir/screen.1.3")"
    need 'no trainer' [ -x "$dir/usr/bin/train_gpt2_zero" ]
    end
fi

# ---- zero.h and docs/

headers=(llmc_zero/zero{,_config,_optimizer,_checkpoint,_job,_info,_virtual,_deepspeed}.h)
begin 'docs.api.md names every public header'
for header in llmc_zero/zero*.h; do
    need "$header is missing" grep -qF "\`$header\`" docs/reference/api.md
done
end
begin 'docs.porting.md quotes the examples'
awk '/^```/ { quote = $0 == "```c"; next } quote && NF && $0 != "..."' docs/porting.md >"$dir/quoted"
need 'no quoted code found' [ -s "$dir/quoted" ]
strange=$(grep -vxF -f dev/examples/mlp_zero.c -f dev/examples/optimizers.h "$dir/quoted" | head -n 1)
need "not in dev/examples: $strange" [ -z "$strange" ]
end
public=("${headers[@]}" llmc_zero/zero.mk llmc_zero/settings/*)
folder='(llmc_zero|trainer|gpt2|dev|docs|scripts|tests)/'
for document in README.md docs/*.md docs/{tutorial,internals}/*.md docs/reference/{details,api}.md; do
    begin "$document.names exist"
    for word in $(grep -oE '\b(zero|ZERO)_[A-Za-z0-9_]+' "$document" | sort -u); do
        compgen -G "*/$word.h" >/dev/null || compgen -G "trainer/*/$word.h" >/dev/null ||
            need "no $word in zero.h" grep -qw "$word" "${public[@]}"
    done
    for file in $(grep -oE "\`$folder[A-Za-z0-9_./]+\`" "$document" | tr -d '`' | sort -u); do
        need "no $file" [ -e "$file" ]
    done
    while read -r word file; do
        need "no $word in $file" grep -qw "$word" "$file"
    done < <(tr '\n' ' ' <"$document" | grep -oE "\`[a-z_]+\` in \`$folder[A-Za-z0-9_./]+\`" | tr -d '`' |
        sed 's/ in / /')
    end
done
map=docs/internals/code-map.md
begin "$map.the plugin's files exist, and no folder is missing"
for file in $(sed -n '/^llmc_zero\//,/^gpt2\//p' $map | grep -oE '\b[a-z_]+\.(c|h|mk)\b'); do
    need "no llmc_zero/$file" [ -e "llmc_zero/$file" ]
done
for folder in llmc_zero/*/; do need "$map lacks $folder" grep -q "^  ${folder#*/}" $map; done
end
begin 'README.md.has at most 200 lines'
is lines "$(($(wc -l <README.md) <= 200))" 1
end
finish example
