#!/usr/bin/env bash
# Own text: build/make_tokens against tests/tokens_reference.c, its files, its errors; and scripts/download.sh
# from a folder as mirror.
# Usage: tests/test_tokens.sh MAKE_TOKENS [GROUP]...
# TINY_SHAKESPEARE=FOLDER, with its text, its shards and GPT-2's tokenizer, adds the comparison with these.
set -u
cd "$(dirname "$0")/.." || exit 1
tool=$(realpath "${1:-build/make_tokens}") || exit 1
shift
download=$PWD/scripts/download.sh demo=$PWD/scripts/demo.sh

. tests/cases.sh
"${CC:-cc}" -std=c11 -O1 -g tests/tokens_reference.c -o "$dir/reference" || exit 1
cd "$dir" || exit 1

make_tokens() { timeout -k 2 60 "$tool" "$@" >screen 2>&1 </dev/null || { cat screen; return 1; }; }
tokens() { local f; for f; do od -An -v -tu2 -w2 -j1024 "$f"; done | tr -d ' '; }
header() { od -An -tu4 -N12 -w12 "$1" | tr -s ' '; }
count() { tokens "$1" | wc -l; }
# Byte-level tokens as text, end-of-text as #.
shown() { tokens "$@" | awk '{ printf "%s", $1 == 256 ? "#" : $1 == 10 ? "/" : sprintf("%c", $1) }'; }

bpe=(--tokenizer tokenizer.bin)
./reference tokenizer tokenizer.bin && ./reference text text.txt && printf "the\n\nother\n" >other.txt ||
    exit 1

# ---- tokens

test_tokens() {
    local kind text want piece
    while IFS='|' read -r kind text want; do
        begin "tokens.$kind: $text"
        # shellcheck disable=SC2059
        printf "${text//<>/<|endoftext|>}" >in.txt
        need 'failed' make_tokens -o out --documents "$kind" --val 0 in.txt
        need "is $(shown out_train.bin), expected $want" [ "$(shown out_train.bin)" = "$want" ]
        need "with small pieces: $(cat screen)" make_tokens -o small --documents "$kind" --val 0 --piece 1 \
            in.txt
        need "with small pieces $(shown small_train.bin)" cmp -s out_train.bin small_train.bin
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

    begin 'tokens.any bytes, byte by byte'
    printf '\377\0\200\r' >in.txt
    need 'failed' make_tokens -o out --val 0 in.txt
    need "is $(tokens out_train.bin | xargs)" [ "$(tokens out_train.bin | xargs)" = '256 255 0 128 13' ]
    need "the header is $(header out_train.bin)" [ "$(header out_train.bin)" = ' 20240520 1 5' ]
    need "the tokenizer's is $(header out_tokenizer.bin)" [ "$(header out_tokenizer.bin)" \
        = ' 20240328 2 257' ]
    need 'the tokenizer has another size' [ "$(stat -c %s out_tokenizer.bin)" = $((1024 + 512 + 14)) ]
    end

    begin 'tokens.bpe, two files'
    ./reference encode tokenizer.bin text.txt other.txt >want
    need 'failed' make_tokens -o bpe "${bpe[@]}" --val 0 text.txt other.txt
    need "differ: $(diff want <(tokens bpe_train.bin) | head -n 4 | xargs)" cmp -s want \
        <(tokens bpe_train.bin)
    need 'too few' [ "$(wc -l <want)" -gt 10000 ]
    end

    for piece in 1 2 3 5 64 1000; do
        begin "tokens.bpe, the same in pieces of $piece"
        need 'failed' make_tokens -o piece "${bpe[@]}" --val 0 --piece $piece text.txt other.txt
        need 'they differ' cmp -s bpe_train.bin piece_train.bin
        end
    done

    begin 'tokens.bpe by paragraphs and marks, in small pieces'
    for kind in paragraph mark; do
        need "$kind failed" make_tokens -o bpe "${bpe[@]}" --val 0 --documents $kind text.txt
        need "$kind failed in pieces" make_tokens -o piece "${bpe[@]}" --val 0 --documents $kind --piece 3 \
            text.txt
        need "$kind: they differ" cmp -s bpe_train.bin piece_train.bin
        need "$kind: one document" [ "$(tokens bpe_train.bin | grep -c '^256$')" -gt 20 ]
    done
    end

    begin 'tokens.a word of a million bytes'
    head -c 1000003 /dev/zero | tr '\0' a >in.txt
    need 'failed' timeout 20 "$tool" -o out "${bpe[@]}" --val 0 in.txt >screen 2>&1
    need "is $(tokens out_train.bin | uniq -c | xargs)" [ "$(tokens out_train.bin | uniq -c | xargs)" \
        = '1 256 250000 263 1 279' ]
    end

    # 120 MB of text in 100 MB of address space
    begin 'tokens.more text than memory, from a pipe'
    yes "there is the hehehe, n! 1212 'll" | head -c 120000000 |
        (ulimit -v 100000; timeout 60 "$tool" -o out "${bpe[@]}" --val 7 /dev/stdin) >screen 2>&1
    need "says $(cat screen)" grep -q '^out: 120000000 bytes' screen
    end

    if [ -z "${TINY_SHAKESPEARE:-}" ]; then
        skip 'tokens.tinyshakespeare' 'TINY_SHAKESPEARE does not name a folder with it'
        return
    fi
    begin 'tokens.tinyshakespeare'
    need 'failed' make_tokens -o tiny --tokenizer "$TINY_SHAKESPEARE/gpt2_tokenizer.bin" \
        --documents paragraph --val 32768 \
        "$TINY_SHAKESPEARE/tiny_shakespeare.txt"
    need 'validation differs' cmp "$TINY_SHAKESPEARE/tiny_shakespeare_val.bin" tiny_val.bin
    need 'training differs' cmp "$TINY_SHAKESPEARE/tiny_shakespeare_train.bin" tiny_train.bin
    end
}

# ---- shards

test_shards() {
    local all=$dir/all_train.bin
    make_tokens -o all --val 0 text.txt

    begin 'shards.validation in tokens'
    need 'failed' make_tokens -o out --val 1000 text.txt
    need "validation has $(count out_val.bin)" [ "$(count out_val.bin)" = 1000 ]
    need 'they are not the whole' cmp -s <(tokens "$all") <(tokens out_val.bin out_train.bin)
    end

    begin 'shards.validation in %'
    need 'failed' make_tokens -o out --val 25% text.txt
    # and end-of-text
    need "validation has $(count out_val.bin)" [ "$(count out_val.bin)" \
        = $((1 + 1 + $(stat -c %s text.txt) / 4)) ]
    need 'they are not the whole' cmp -s <(tokens "$all") <(tokens out_val.bin out_train.bin)
    need '10 % failed' make_tokens -o out "${bpe[@]}" text.txt
    need 'in pieces it failed' make_tokens -o piece --piece 5 "${bpe[@]}" text.txt
    need 'pieces change it' cmp -s out_val.bin piece_val.bin
    rm -f out_train.bin
    need '100 % failed' make_tokens -o out --val 100% text.txt
    need 'they are not the whole' cmp -s "$all" out_val.bin
    need 'there is a training shard' [ ! -e out_train.bin ]
    end

    begin 'shards.a validation shard of an earlier run'
    need 'failed' make_tokens -o out --val 0 text.txt
    need "says: $(cat screen)" grep -q 'out_val.bin is from an earlier run' screen
    end

    begin 'shards.stopped half way: nothing is left'
    mkfifo slow
    "$tool" -o stopped --val 10 slow >screen 2>&1 & local job=$!
    exec 3>slow                                     # its reading end is open from here on; it waits for more
    head -c 4096 text.txt >&3
    while [ ! -e stopped_val.bin.tmp ] && kill -0 $job; do sleep 0.01; done
    # more than once: the first may come just before it begins to wait
    for i in 1 2 3 4; do kill -INT $job 2>/dev/null; sleep 0.05; done
    wait $job
    need 'status is not 1' [ $? = 1 ]
    exec 3>&-
    need "says: $(cat screen)" grep -q 'slow: stopped by signal' screen
    need "left: $(echo stopped*)" [ "$(echo stopped*)" = 'stopped*' ]
    end

    begin 'shards.numbered'
    need 'failed' make_tokens -o n --shard 5000 --val 3000 text.txt
    need 'they are not the whole' cmp -s <(tokens "$all") <(tokens n_val_000000.bin n_train_*.bin)
    need "first has $(count n_train_000001.bin)" [ "$(header n_train_000001.bin)" = ' 20240520 1 5000' ]
    need "validation has $(count n_val_000000.bin)" [ "$(count n_val_000000.bin)" = 3000 ]
    need "files: $(echo n_*)" [ "$(echo n_* | wc -w)" = $((1 + 1 + ($(count "$all") - 3000 + 4999) / 5000)) ]
    need 'again: not refused' not make_tokens -o n --shard 9000 text.txt >/dev/null
    need "says: $(cat screen)" grep -q 'n_train_000001.bin exists from another run; remove' screen
    rm n_train_000001.bin
    need 'again, without its first shard: not refused' not make_tokens -o n --shard 9000 text.txt >/dev/null
    need "says: $(cat screen)" grep -q 'n_train_000002.bin exists from another run; remove' screen
    need '50 % in shards failed' make_tokens -o v --shard 5000 --val 50% text.txt
    need "validation has $(count v_val_000000.bin)" [ "$(count v_val_000000.bin)" = 5000 ]
    end
}

# ---- errors

left() { echo x_*; }                                                           # what a failed run has left

test_errors() {
    local args want r=../reference
    mkdir bad
    cd bad || exit 1
    $r tokenizer nobyte.bin 255 && $r tokenizer large.bin 256 65537 && $r tokenizer good.bin
    printf 'not a tokenizer' | cat - /dev/zero | head -c 2000 >magic.bin
    { head -c 4 good.bin; printf '\003'; tail -c +6 good.bin; } >version.bin
    head -c -5 good.bin >short.bin
    : >empty.txt
    printf 'abc\n' >abc.txt
    printf '0123456789\377 there is more behind it' >latin.txt
    printf 'abc\303' >cut.txt
    printf 'ab\300\200 overlong' >overlong.txt
    printf '\355\240\200 surrogate' >surrogate.txt
    printf 'a\364\220\200\200 too far' >far.txt
    head -c 1100000 /dev/zero | tr '\0' a >word.txt
    printf '<|endoftext|>\n' >mark.txt
    while IFS='|' read -r args want; do
        begin "errors.$args"
        # shellcheck disable=SC2086
        need 'was taken' not timeout 20 "$tool" $args >../screen 2>&1 </dev/null
        need "says: $(head -n 1 ../screen)" grep -qF -- "$want" ../screen
        need "left: $(left)" [ "$(left)" = 'x_*' ]
        rm -f x_*
        end
    done <<'CASES'
-o x|usage: make_tokens
abc.txt|usage: make_tokens
-o x --nothing abc.txt|unrecognized option '--nothing'
-o x absent.txt|make_tokens: absent.txt: No such file
-o x abc.txt absent.txt|make_tokens: absent.txt: No such file
-o x .|make_tokens: .: is a folder
-o x empty.txt|make_tokens: empty.txt: is empty
-o x word.txt empty.txt|make_tokens: empty.txt: is empty
-o none/x abc.txt|make_tokens: none/x_val.bin.tmp: cannot create: No such file
-o x --tokenizer good.bin latin.txt|make_tokens: latin.txt: byte 10 is not UTF-8
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
-o x --val 6 abc.txt|make_tokens: all 5 tokens of the text are for validation
-o x --documents mark mark.txt|make_tokens: the text has only marks
-o x --val 101% abc.txt|make_tokens: --val 101%: expected
-o x --val 0% abc.txt|make_tokens: --val 0%: expected
-o x --val -1 abc.txt|make_tokens: --val -1: expected
-o x --val ten abc.txt|make_tokens: --val ten: expected
-o x --shard 0 abc.txt|make_tokens: --shard 0: expected
-o x --piece 0 abc.txt|make_tokens: --piece 0: expected
-o x --documents page abc.txt|make_tokens: --documents page: expected
-o x /dev/stdin|make_tokens: --val in % needs the size of the text
CASES

    begin 'errors.disk full'
    need 'was taken' not bash -c 'trap "" XFSZ; ulimit -f 100; "$@"' full "$tool" -o x word.txt >../screen \
        2>&1
    need "says: $(cat ../screen)" grep \
        -qE '^make_tokens: x_(val|train).bin.tmp: cannot write: File too large' ../screen
    need "left: $(left)" [ "$(left)" = 'x_*' ]
    end
    cd ..

    begin 'errors.make demo with a text that is absent or too short'
    need 'absent was taken' not env TEXT="$dir/no such.txt" "$demo" >screen 2>&1
    need "says: $(cat screen)" grep -q '^TEXT=.*/no such.txt: no such file$' screen
    need 'short was taken' not env TEXT="$dir/other.txt" "$demo" >screen 2>&1
    need "says: $(cat screen)" grep -q '^TEXT=.*/other.txt: 11 bytes of text' screen
    end
}

# ---- downloads

# get ARGUMENT...: a download into data/, its last line in screen.
get() {
    LLMC_ZERO_MIRROR=file://$dir/mirror DATA=$dir/data MAKE_TOKENS=$tool timeout 30 "$download" "$@" >screen \
        2>&1
}
shows() { grep -qF -- "$1" screen; }

test_downloads() {
    if ! command -v curl >/dev/null; then skip downloads 'there is no curl'; return; fi
    local shards=mirror/datasets/kjj0/fineweb10B-gpt2/resolve/main \
        pack=mirror/datasets/karpathy/llmc-starter-pack/resolve/main file
    mkdir -p $shards $pack
    make_tokens -o $shards/fineweb --shard 5000 --val 4000 text.txt
    make_tokens -o out --val 0 text.txt

    begin 'downloads.shards, and again'
    need "failed: $(cat screen)" get fineweb:2
    need "files: $(echo data/*)" [ "$(echo data/* | wc -w)" = 6 ]
    for file in val_000000 train_000001 train_000002; do
        need "$file differs" cmp -s $shards/fineweb_$file.bin data/fineweb_$file.bin
    done
    rm -r mirror/datasets/kjj0
    need "again failed: $(cat screen)" get fineweb:2
    need "says: $(cat screen)" shows 'fineweb_train_000002.bin: exists'
    end

    begin 'downloads.a file that changed afterwards'
    printf x | dd of=data/fineweb_train_000002.bin bs=1 seek=2000 conv=notrunc status=none
    need 'not seen' not get fineweb:2
    need "says: $(cat screen)" shows 'data/fineweb_train_000002.bin: its SHA-256 is'
    end

    begin 'downloads.missing'
    need 'was taken' not get fineweb:3
    need "says: $(cat screen)" shows 'fineweb_train_000002.bin: its SHA-256'
    rm data/fineweb_train_000002.bin*
    need 'was taken' not get fineweb:3
    need "says: $(cat screen)" shows 'fineweb_train_000002.bin: no such file'
    need 'a file is left' [ ! -e data/fineweb_train_000002.bin ]
    end

    begin 'downloads.resumed'
    cp out_train.bin $pack/gpt2_124M.bin
    rm -rf data && mkdir data
    # its own bytes
    {
        head -c 1024 out_train.bin
        tail -c +1025 out_train.bin | head -c 1976 | tr e E
    } >data/gpt2_124M.bin.part
    cp data/gpt2_124M.bin.part first
    tail -c +3001 out_train.bin | cat first - >joined
    get gpt2:124M
    need "says: $(cat screen)" cmp -s joined data/gpt2_124M.bin
    end

    begin 'downloads.cut short, not in llm.c format'
    rm -rf data
    head -c 20000 out_train.bin >$pack/gpt2_124M.bin
    need 'cut was taken' not get gpt2:124M
    need "says: $(cat screen)" shows 'it has 20000 bytes, but according to its header'
    printf '<html>%2000s' '' >$pack/gpt2_124M.bin
    need 'html was taken' not get gpt2:124M
    need "says: $(cat screen)" shows "not in one of llm.c's formats"
    need "left: $(echo data/*)" [ "$(echo data/*)" = 'data/*' ]
    end

    begin 'downloads.wrong checksum'
    cp tokenizer.bin $pack/gpt2_tokenizer.bin
    need 'was taken' not get tokenizer
    need "says: $(cat screen)" shows \
        'expected 6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13'
    need "left: $(echo data/*)" [ "$(echo data/*)" = 'data/*' ]
    end

    begin 'downloads.no network'
    no_proxy='*' LLMC_ZERO_MIRROR=http://127.0.0.1:9 DATA=$dir/data timeout 30 "$download" fineweb >screen \
        2>&1 </dev/null
    need 'status is not 1' [ $? = 1 ]
    need "says: $(cat screen)" shows 'no network, or http://127.0.0.1:9 does not answer'
    need 'more than a sentence' [ "$(wc -l <screen)" = 1 ]
    end

    while IFS='|' read -r what want; do
        begin "downloads.$what"
        # shellcheck disable=SC2086
        need 'was taken' not get $what
        need "says: $(head -n 1 screen)" shows "$want"
        end
    done <<'CASES'
|Usage: scripts/download.sh WHAT
everything|everything: unknown; expected
fineweb:0|0 shards: expected a number from 1 to 103
fineweb-edu:1002|1002 shards: expected a number from 1 to 1001
gpt2:1558M|not published in llm.c's format
CASES

    if [ -z "${TINY_SHAKESPEARE:-}" ]; then
        skip downloads.tinystories 'TINY_SHAKESPEARE names no folder with a tokenizer'
        return
    fi
    begin 'downloads.tinystories'
    local stories=mirror/datasets/roneneldan/TinyStories/resolve/main
    mkdir -p $stories
    cp "$TINY_SHAKESPEARE/gpt2_tokenizer.bin" $pack
    printf 'One day.\n<|endoftext|>\nOne more.\n' |
        tee $stories/TinyStoriesV2-GPT4-train.txt >$stories/TinyStoriesV2-GPT4-valid.txt
    need "failed: $(cat screen)" get tinystories
    for file in train val; do
        need "$file is $(tokens data/tinystories_$file.bin | xargs)" \
            [ "$(tokens data/tinystories_$file.bin | xargs)" \
            = '50256 3198 1110 13 198 50256 3198 517 13 198' ]
    done
    end
}

for group in "${@:-tokens shards errors downloads}"; do for g in $group; do "test_$g"; done; done
finish tokens
