#!/usr/bin/env bash
# Tests build/make_tokens against tests/tokens_reference.c, its files and its errors. Also tests
# build/make_hellaswag, and scripts/download.sh with a local folder as the mirror.
# Usage: tests/test_tokens.sh MAKE_TOKENS
#   TINY_SHAKESPEARE=FOLDER     also compares with the text, shards and GPT-2 tokenizer in this folder
# shellcheck disable=SC2059,SC2086
. "$(dirname "$0")/cases.sh"
tool=$(realpath "${1:-build/make_tokens}") || exit 1
hellaswag=${tool%tokens}hellaswag
download=$PWD/scripts/download.sh demo=$PWD/scripts/demo.sh
"${CC:-cc}" -std=c11 -O1 -g tests/tokens_reference.c -o "$dir/reference" || exit 1
cd "$dir" || exit 1

make_tokens() { timeout -k 2 60 "$tool" "$@" >screen 2>&1 </dev/null || { cat screen; return 1; }; }
makes() { need "failed: $*" make_tokens "$@"; }
refuses() { need "succeeded: $*" not "$@" >screen 2>&1 </dev/null; }
tokens() { local f; for f; do od -An -v -tu2 -w2 -j1024 "$f"; done | tr -d ' '; }
header() { od -An -tu4 -N12 -w12 "$1" | xargs; }
count() { tokens "$1" | wc -l; }
# Prints byte-level tokens as text, with # for end-of-text and / for a line feed.
shown() { tokens "$@" | awk '{ printf "%s", $1 == 256 ? "#" : $1 == 10 ? "/" : sprintf("%c", $1) }'; }
same_file() { need "$1 and $2 differ" cmp -s "$1" "$2"; }
# together ALL PART...: checks that the concatenated tokens of the parts equal those of ALL
together() { need "${*:2} differ from $1" cmp -s <(tokens "$1") <(tokens "${@:2}"); }

bpe=(--tokenizer tokenizer.bin)
./reference tokenizer tokenizer.bin && ./reference text text.txt && printf "the\n\nother\n" >other.txt ||
    exit 1

# ---- tokens

while IFS='|' read -r kind text want; do
    begin "tokens.$kind: $text"
    printf "${text//<>/<|endoftext|>}" >in.txt
    makes -o out --documents "$kind" --val 0 in.txt
    is tokens "$(shown out_train.bin)" "$want"
    makes -o small --documents "$kind" --val 0 --piece 1 in.txt
    same_file out_train.bin small_train.bin
    end
done <<'CASES'
file|ab\nc|#ab/c
file|a\n\n<>b|#a//<|endoftext|>b
paragraph|a\n\nb\n|#a//#b/
paragraph|a\n\n\nb|#a//#/b
paragraph|\n\n\n\n\na\n\n|#//#//#/a//
paragraph|\n|#/
mark|a<>b|#a#b
mark|a\n<>\nb\n<>\n|#a/#b/
mark|<><>\n\na<>\n|#/a
mark|<<>e<<>|#<#e<
CASES

begin 'tokens.arbitrary bytes, without a tokenizer'
printf '\377\0\200\r' >in.txt
makes -o out --val 0 in.txt
is tokens "$(tokens out_train.bin | xargs)" '256 255 0 128 13'
is header "$(header out_train.bin)" '20240520 1 5'
is "the tokenizer's header" "$(header out_tokenizer.bin)" '20240328 2 257'
is "the tokenizer's size" "$(stat -c %s out_tokenizer.bin)" $((1024 + 512 + 14))
end

begin 'tokens.JSON lines: escapes, an empty document, a zero byte'
printf '%s\n' '{"id": 1, "text": "a\nb"}' '{"text": "\u00e9\u0000", "url": []}' '{"text": ""}' >in.jsonl
makes -o out --documents json --val 0 in.jsonl
is tokens "$(tokens out_train.bin | xargs)" '256 97 10 98 256 195 169 0 256'
makes -o out --documents json --val 25% in.jsonl
is 'tokens of validation, in the first quarter of the bytes' "$(tokens out_val.bin | xargs)" '256 97 10 98'
printf 'the hehe' >a.txt && printf "1212 \303\251'll" >b.txt
printf '%s\n' '{"text": "the hehe"}' '{"text": "1212 \u00e9'"'"'ll"}' >in.jsonl
makes -o out "${bpe[@]}" --documents json --val 0 in.jsonl
is 'with bpe' "$(tokens out_train.bin | xargs)" "$(./reference encode tokenizer.bin a.txt b.txt | xargs)"
end

begin 'tokens.HellaSwag'
printf '%s\n' '{"ctx": "ab", "endings": ["c", "d", "ef", "g"], "label": 2, "ind": 7}' \
    '{"ctx": "x", "endings": ["\u00e9", "y", "y", "y"], "label": "0"}' >in.jsonl
need "$(<screen)" "$hellaswag" -o swag.bin in.jsonl >screen 2>&1
has screen '^swag.bin: 2 examples, the longest with 11 tokens$'
is header "$(od -An -tu4 -N16 -w16 swag.bin | xargs)" '20240522 1 2 42'
is examples "$(tokens swag.bin | xargs)" "65535 42 0 2 4 2 97 98 2 32 99 2 32 100 3 32 101 102 2 32 103 \
65535 40 1 0 4 1 120 3 32 195 169 2 32 121 2 32 121 2 32 121"
end

begin 'tokens.bpe, two files'
./reference encode tokenizer.bin text.txt other.txt >want
makes -o bpe "${bpe[@]}" --val 0 text.txt other.txt
is 'first differences' "$(diff want <(tokens bpe_train.bin) | head -n 4)" ''
need 'too few tokens' [ "$(wc -l <want)" -gt 10000 ]
for piece in 1 3 64; do
    makes -o piece "${bpe[@]}" --val 0 --piece $piece text.txt other.txt
    same_file bpe_train.bin piece_train.bin
done
end

begin 'tokens.bpe by paragraphs and marks, in small pieces'
for kind in paragraph mark; do
    makes -o bpe "${bpe[@]}" --val 0 --documents $kind text.txt
    makes -o piece "${bpe[@]}" --val 0 --documents $kind --piece 3 text.txt
    same_file bpe_train.bin piece_train.bin
    need "$kind: too few documents" [ "$(tokens bpe_train.bin | grep -c '^256$')" -gt 20 ]
done
end

begin 'tokens.a word of a million bytes'
head -c 1000003 /dev/zero | tr '\0' a >in.txt
makes -o out "${bpe[@]}" --val 0 in.txt
is tokens "$(tokens out_train.bin | uniq -c | xargs)" '1 256 250000 263 1 279'
end

# 120 MB of text in 100 MB of address space
begin 'tokens.text larger than memory, from a pipe'
yes "there is the hehehe, n! 1212 'll" | head -c 120000000 |
    (ulimit -v 100000; timeout 60 "$tool" -o out "${bpe[@]}" --val 7 /dev/stdin) >screen 2>&1
has screen '^out: 120000000 bytes'
end

if [ -n "${TINY_SHAKESPEARE:-}" ]; then
    begin 'tokens.tinyshakespeare'
    makes -o tiny --tokenizer "$TINY_SHAKESPEARE/gpt2_tokenizer.bin" --documents paragraph --val 32768 \
        "$TINY_SHAKESPEARE/tiny_shakespeare.txt"
    same_file "$TINY_SHAKESPEARE/tiny_shakespeare_val.bin" tiny_val.bin
    same_file "$TINY_SHAKESPEARE/tiny_shakespeare_train.bin" tiny_train.bin
    end
else
    skip 'tokens.tinyshakespeare' 'TINY_SHAKESPEARE is not set'
fi

# ---- shards

make_tokens -o all --val 0 text.txt

begin 'shards.validation size in tokens and in %, and a validation shard from an earlier run'
makes -o out --val 1000 text.txt
is 'tokens of validation' "$(count out_val.bin)" 1000
together all_train.bin out_val.bin out_train.bin
makes -o out --val 25% text.txt
# a quarter, rounded up, and end-of-text
is 'tokens of validation' "$(count out_val.bin)" $((1 + 1 + $(stat -c %s text.txt) / 4))
together all_train.bin out_val.bin out_train.bin
makes -o out "${bpe[@]}" text.txt
makes -o piece --piece 5 "${bpe[@]}" text.txt
same_file out_val.bin piece_val.bin
rm -f out_train.bin
makes -o out --val 100% text.txt
same_file all_train.bin out_val.bin
need 'a training shard was written' [ ! -e out_train.bin ]
makes -o out --val 0 text.txt
has screen 'out_val.bin is from an earlier run'
end

begin 'shards.a stopped run leaves no files'
mkfifo slow
"$tool" -o stopped --val 10 slow >screen 2>&1 & job=$!
exec 3>slow                             # returns once the tool has opened the FIFO
head -c 4096 text.txt >&3
await test -e stopped_val.bin.tmp
# Sends signals until the tool ends, because one may arrive before the tool starts to read.
interrupted() { not kill -INT $job 2>/dev/null; }
need 'it still runs' await interrupted
ends_within $hang_limit $job
exec 3>&-
is status $status 1
has screen 'slow: stopped by signal'
is files "$(echo stopped*)" 'stopped*'
end

begin 'shards.numbered'
makes -o n --shard 5000 --val 3000 text.txt
together all_train.bin n_val_000000.bin n_train_*.bin
is 'header of the first' "$(header n_train_000001.bin)" '20240520 1 5000'
is 'tokens of validation' "$(count n_val_000000.bin)" 3000
is files "$(echo n_* | wc -w)" $((1 + 1 + ($(count all_train.bin) - 3000 + 4999) / 5000))
refuses "$tool" -o n --shard 9000 text.txt
has screen 'n_train_000001.bin exists from another run; remove'
rm n_train_000001.bin
refuses "$tool" -o n --shard 9000 text.txt
has screen 'n_train_000002.bin exists from another run; remove'
makes -o v --shard 5000 --val 50% text.txt
is 'tokens of validation' "$(count v_val_000000.bin)" 5000
end

# ---- errors

shows() { grep -qF -- "$1" screen; }
# leaves_nothing GLOB: checks that no file matches
leaves_nothing() { need "left: $(compgen -G "$1")" not compgen -G "$1" >/dev/null; }

mkdir bad
cd bad || exit 1
r=../reference
$r tokenizer nobyte.bin 255 && $r tokenizer large.bin 256 65537 && $r tokenizer good.bin
printf 'not a tokenizer' | cat - /dev/zero | head -c 2000 >magic.bin
{ head -c 4 good.bin; printf '\003'; tail -c +6 good.bin; } >version.bin
head -c -5 good.bin >short.bin
: >empty.txt
printf 'abc\n' >abc.txt
printf '0123456789\377 and more' >latin.txt
printf 'abc\303' >cut.txt
printf 'ab\300\200 overlong' >overlong.txt
printf '\355\240\200 surrogate' >surrogate.txt
printf 'a\364\220\200\200 too far' >far.txt
head -c 1100000 /dev/zero | tr '\0' a >word.txt
printf '<|endoftext|>\n' >mark.txt
printf '{"text": "abc"}\nabc\n' >mixed.jsonl
printf '{"text": "abc"}\n{"texts": "abc"}\n' >other.jsonl
swag() { printf '{"ctx": %s, "endings": [%s], "label": %s}\n' "$2" "$3" "$4" >"$1.jsonl"; }
swag three '"a"' '"b", "c", "d"' 0
swag label '"a"' '"b", "c", "d", "e"' 4
swag test '"a"' '"b", "c", "d", "e"' '""'
swag none '""' '"b", "c", "d", "e"' 0
swag number '"a"' '"b", "c", "d", 5' 0
swag long "\"$(head -c 40000 word.txt)\"" '"b", "c", "d", "e"' 0
while IFS='|' read -r args want; do
    begin "errors.$args"
    case $want in make_hellaswag*) program=$hellaswag ;; *) program=$tool ;; esac
    refuses timeout 20 "$program" $args
    need "wrong message: $(head -n 1 screen)" shows "$want"
    leaves_nothing 'x_*'
    rm -f x_*
    end
done <<'CASES'
-o x|usage: make_tokens
abc.txt|usage: make_tokens
-o x --nothing abc.txt|unrecognized option '--nothing'
-o x abc.txt absent.txt|make_tokens: absent.txt: No such file
-o x .|make_tokens: .: is a folder
-o x word.txt empty.txt|make_tokens: empty.txt: is empty
-o none/x abc.txt|make_tokens: none/x_val.bin.tmp: cannot create: No such file
-o x --tokenizer good.bin --piece 3 latin.txt|make_tokens: latin.txt: byte 10 is not UTF-8
-o x --tokenizer good.bin abc.txt cut.txt|make_tokens: cut.txt: byte 3 is not UTF-8
-o x --tokenizer good.bin overlong.txt|make_tokens: overlong.txt: byte 2 is not UTF-8
-o x --tokenizer good.bin surrogate.txt|make_tokens: surrogate.txt: byte 0 is not UTF-8
-o x --tokenizer good.bin far.txt|make_tokens: far.txt: byte 1 is not UTF-8
-o x --tokenizer good.bin word.txt|make_tokens: word.txt: byte 0: a word of more than 1048576 bytes
-o x --tokenizer absent.bin abc.txt|make_tokens: absent.bin: cannot open
-o x --tokenizer magic.bin abc.txt|make_tokens: magic.bin: not a tokenizer file
-o x --tokenizer version.bin abc.txt|make_tokens: version.bin: tokenizer version 3
-o x --tokenizer short.bin abc.txt|make_tokens: short.bin: ends inside token
-o x --tokenizer nobyte.bin abc.txt|make_tokens: nobyte.bin: it has no token for byte 255
-o x --tokenizer large.bin abc.txt|make_tokens: large.bin: it has 65537 tokens
-o x --val 5 abc.txt|make_tokens: all 5 tokens of the text are for validation
-o x --documents mark mark.txt|make_tokens: the text has only marks
-o x --val 101% abc.txt|make_tokens: --val 101%: expected
-o x --val 0% abc.txt|make_tokens: --val 0%: expected
-o x --val ten abc.txt|make_tokens: --val ten: expected
-o x --shard 0 abc.txt|make_tokens: --shard 0: expected
-o x --documents page abc.txt|make_tokens: --documents page: expected
-o x --documents json empty.txt|make_tokens: empty.txt: is empty
-o x --documents json mixed.jsonl|make_tokens: mixed.jsonl: byte 19: '['
-o x --documents json other.jsonl|make_tokens: other.jsonl: byte 16: the line has no "text"
-o x /dev/stdin|make_tokens: --val in % needs the size of the text
-o x_ absent.txt|make_hellaswag: absent.txt: cannot open: No such file
-o x_ empty.txt|make_hellaswag: empty.txt: is empty
-o x_ abc.txt|make_hellaswag: abc.txt: byte 3: '['
-o x_ three.jsonl|make_hellaswag: three.jsonl: byte 0: expected four "endings" and a "label" from 0 to 3
-o x_ label.jsonl|make_hellaswag: label.jsonl: byte 0: expected four
-o x_ test.jsonl|make_hellaswag: test.jsonl: byte 0: expected four
-o x_ none.jsonl|make_hellaswag: none.jsonl: byte 0: its "ctx" or an ending is not a text
-o x_ number.jsonl|make_hellaswag: number.jsonl: byte 0: its "ctx" or an ending is not a text
-o x_ long.jsonl|make_hellaswag: long.jsonl: byte 0: more than 32767 tokens in one example
-o none/x_ label.jsonl --tokenizer absent.bin|make_hellaswag: absent.bin: cannot open
CASES

begin 'errors.disk full'
refuses bash -c 'trap "" XFSZ; ulimit -f 100; "$@"' full "$tool" -o x word.txt
has screen '^make_tokens: x_(val|train).bin.tmp: cannot write: File too large'
leaves_nothing 'x_*'
end
cd ..

begin 'errors.make demo with a missing or short text'
refuses env TEXT="$dir/no such.txt" "$demo"
has screen '^TEXT=.*/no such.txt: no such file$'
refuses env TEXT="$dir/other.txt" "$demo"
has screen '^TEXT=.*/other.txt: 11 bytes of text'
end

# ---- downloads

get() {         # ARGUMENT...: downloads into data/
    LLMC_ZERO_MIRROR=file://$dir/mirror DATA=$dir/data MAKE_TOKENS=$tool \
        timeout 30 "$download" "$@" >screen 2>&1
}
gets() { get "$@" || need "failed: $*: $(<screen)" false; }
# gets_none MESSAGE ARGUMENT...: checks that the download fails with MESSAGE
gets_none() {
    need "succeeded: ${*:2}" not get "${@:2}"
    need "wrong message: $(<screen)" shows "$1"
}

if ! command -v curl >/dev/null; then skip downloads 'no curl'; finish tokens; exit; fi
shards=mirror/datasets/kjj0/fineweb10B-gpt2/resolve/main
pack=mirror/datasets/karpathy/llmc-starter-pack/resolve/main
mkdir -p $shards $pack
make_tokens -o $shards/fineweb --shard 5000 --val 4000 text.txt
make_tokens -o out --val 0 text.txt

begin 'downloads.shards; a second download skips them'
gets fineweb:2
is files "$(echo data/* | wc -w)" 6
for file in val_000000 train_000001 train_000002; do
    same_file $shards/fineweb_$file.bin data/fineweb_$file.bin
done
rm -r mirror/datasets/kjj0
gets fineweb:2
has screen 'fineweb_train_000002.bin: exists'
end

begin 'downloads.a file that has changed since its download, and a missing one'
printf x | dd of=data/fineweb_train_000002.bin bs=1 seek=2000 conv=notrunc status=none
gets_none 'data/fineweb_train_000002.bin: its SHA-256 is' fineweb:2
rm data/fineweb_train_000002.bin*
gets_none 'fineweb_train_000002.bin: no such file' fineweb:3
leaves_nothing data/fineweb_train_000002.bin
end

begin 'downloads.resumed'
cp out_train.bin $pack/gpt2_124M.bin
rm -rf data && mkdir data
# The partial file differs from the mirror's, which shows whether a download keeps its bytes.
{
    head -c 1024 out_train.bin
    tail -c +1025 out_train.bin | head -c 1976 | tr e E
} >data/gpt2_124M.bin.part
cp data/gpt2_124M.bin.part first
tail -c +3001 out_train.bin | cat first - >joined
get gpt2:124M
same_file joined data/gpt2_124M.bin
end

begin "downloads.a truncated file, one not in llm.c's format, and a wrong checksum"
rm -rf data
head -c 20000 out_train.bin >$pack/gpt2_124M.bin
gets_none 'it has 20000 bytes, but according to its header' gpt2:124M
printf '<html>%2000s' '' >$pack/gpt2_124M.bin
gets_none "not in one of llm.c's formats" gpt2:124M
cp tokenizer.bin $pack/gpt2_tokenizer.bin
gets_none 'expected 6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13' tokenizer
leaves_nothing 'data/*'
end

begin 'downloads.no network'
no_proxy='*' LLMC_ZERO_MIRROR=http://127.0.0.1:9 DATA=$dir/data timeout 30 "$download" fineweb >screen \
    2>&1 </dev/null
is status $? 1
has screen 'no network, or http://127.0.0.1:9 does not answer'
is lines "$(wc -l <screen)" 1
end

while IFS='|' read -r what want; do
    begin "downloads.$what"
    gets_none "$want" $what
    end
done <<'CASES'
|Usage: scripts/download.sh WHAT
everything|everything: unknown; expected
fineweb:0|0 shards: expected a number from 1 to 103
fineweb-edu:1002|1002 shards: expected a number from 1 to 1001
gpt2:1558M|not published in llm.c's format
CASES

if [ -z "${TINY_SHAKESPEARE:-}" ]; then
    skip 'downloads.tinystories, hellaswag' 'TINY_SHAKESPEARE is not set'
    finish tokens
    exit
fi
begin 'downloads.tinystories'
stories=mirror/datasets/roneneldan/TinyStories/resolve/main
mkdir -p $stories
cp "$TINY_SHAKESPEARE/gpt2_tokenizer.bin" $pack
printf 'One day.\n<|endoftext|>\nOne more.\n' |
    tee $stories/TinyStoriesV2-GPT4-train.txt >$stories/TinyStoriesV2-GPT4-valid.txt
gets tinystories
for file in train val; do
    is "tokens of $file" "$(tokens data/tinystories_$file.bin | xargs)" \
        '50256 3198 1110 13 198 50256 3198 517 13 198'
done
end
begin 'downloads.hellaswag'
mkdir -p mirror/rowanz/hellaswag/master/data
printf '{"ctx": "One day", "endings": ["is more.", "a", "b", "c"], "label": 0}\n' \
    >mirror/rowanz/hellaswag/master/data/hellaswag_val.jsonl
gets hellaswag
is tokens "$(tokens data/hellaswag_val.bin | xargs)" \
    '65535 36 0 0 4 2 3198 1110 3 318 517 13 1 257 1 275 1 269'
end

finish tokens
