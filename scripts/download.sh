#!/usr/bin/env bash
# Downloads data and models in llm.c's formats into data/. Usage: scripts/download.sh WHAT...
#   tokenizer           GPT-2's tokenizer, data/gpt2_tokenizer.bin
#   tinyshakespeare     data/tiny_shakespeare_train.bin, _val.bin: 338028 tokens
#   tinystories         data/tinystories_train.bin, _val.bin: 2.2 GB of text, converted to tokens locally
#   fineweb[:N]         data/fineweb_val_000000.bin and the first N of 103 training shards (1), 200 MB each
#   fineweb-100B[:N]    files with the same names, the first N of 1030 of a larger sample; set DATA
#   fineweb-edu[:N]     data/edu_fineweb_val_000000.bin and the first N of 1001 training shards (1), 200 MB
#                       each
#   hellaswag           data/hellaswag_val.bin: 10042 examples of 12 MB of JSON, converted to tokens locally
#   gpt2:124M           data/gpt2_124M.bin, 498 MB; gpt2:124M_bf16: data/gpt2_124M_bf16.bin, 249 MB
# After an interruption, the same command continues; it also checks existing files. Downloads from
# https://huggingface.co (hellaswag: https://raw.githubusercontent.com), or from the URL in LLMC_ZERO_MIRROR.
#
# If a file's checksum is not listed below, the script uses the one that the server sends (X-Linked-Etag, for
# large files). If there is none, it checks only size and header. It stores every file's SHA-256 in
# NAME.sha256, and later runs check the file against that.
set -euo pipefail
cd "$(dirname "$0")/.."
mirror=${LLMC_ZERO_MIRROR:-https://huggingface.co}
data=${DATA:-data}
tool=${MAKE_TOKENS:-build/make_tokens}
meter=$([ -t 2 ] && echo --progress-bar || echo --silent)

die() { echo "download.sh: $*" >&2; exit 1; }
checksum() { sha256sum "$1" | cut -d ' ' -f 1; }

# Prints the size that a file's header implies, or nothing if the header does not determine it.
expected_size() {
    local h
    read -ra h < <(od -An -tu4 -N 32 -w32 "$1")
    case ${h[0]:-} in
        20240520) echo $((1024 + 2 * h[2])) ;;                  # tokens
        20240326) local T=${h[2]} L=${h[4]} C=${h[6]} V=${h[7]} # a model
                  echo $((1024 + (V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C) * (h[1] == 3 ? 4 : 2))) \
                      ;;
        20240328) ;;                                            # a tokenizer
        *) echo "no header" ;;
    esac
}
# fault FILE NAME SHA256: prints the error if the file is damaged. SHA256 may be empty (unknown).
fault() {
    local file=$1 name=$2 sum=$3 size expected is
    size=$(stat -c %s "$file")
    [ "$size" != 0 ] || { echo "it is empty"; return; }
    if [ "${name##*.}" = bin ]; then
        expected="no header"
        [ "$size" -lt 1024 ] || expected=$(expected_size "$file")
        [ "$expected" != "no header" ] || { echo "it is not in one of llm.c's formats"; return; }
        [ "${expected:-$size}" = "$size" ] || {
            echo "it has $size bytes, but according to its header $expected"
            return
        }
    fi
    [ -z "$sum" ] && return
    is=$(checksum "$file")
    [ "$is" = "$sum" ] || echo "its SHA-256 is $is, expected $sum"
}

# Prints the SHA-256 that the server sends for a file, or nothing.
server_sum() {
    curl -sI --max-time 30 "$1" | tr -d '\r' | sed -nE 's/^x-linked-etag: *"?([0-9a-f]{64})"?$/\1/Ip' || true
}

# Prints the meaning of curl's exit status.
reason() {
    case $1 in
        5|6|7|28|35) echo \
            "no network, or $mirror does not answer; run the same command again to continue" ;;
        18|52|55|56|92) echo "the connection broke; run the same command again to continue" ;;
        22|37) echo "no such file, or no permission to read it" ;;
        23) echo "cannot write to $data/; is the disk full?" ;;
        33) echo "the server cannot resume a file; remove $data/*.part and run this again" ;;
        *) echo "curl ended with status $1" ;;
    esac
}
# transfer URL PART: downloads URL to PART, resuming where PART ends. Status 416 means that PART is complete.
transfer() {
    local status=0 code
    code=$(curl -fL "$meter" --connect-timeout 20 --speed-time 60 -C - -o "$2" -w '%{http_code}' "$1") ||
        status=$?
    [ "$status" = 0 ] || [ "$code" = 416 ] || die "$1: $(reason "$status")"
}

# fetch PATH [SHA256]: downloads a file from the mirror and renames it once it is complete and checked
fetch() {
    local url=$mirror/$1 name=${1##*/} sum=${2:-} file wrong
    file=$data/$name
    if [ -e "$file" ]; then
        [ -n "$sum" ] || [ ! -e "$file.sha256" ] || sum=$(cut -d ' ' -f 1 "$file.sha256")
        wrong=$(fault "$file" "$name" "$sum")
        [ -z "$wrong" ] || die "$file: $wrong; remove it and run this again"
        echo "$file: exists"
    else
        [ -n "$sum" ] || sum=$(server_sum "$url")
        transfer "$url" "$file.part"
        wrong=$(fault "$file.part" "$name" "$sum")
        [ -z "$wrong" ] || {
            rm -f "$file.part"
            die "$url: $wrong; the download was removed; run this again"
        }
        mv "$file.part" "$file"
        echo "$file: $(stat -c %s "$file") bytes, $([ -n "$sum" ] && echo 'SHA-256 as expected' || echo \
            'no known SHA-256 to compare with')"
    fi
    [ -e "$file.sha256" ] || (cd "$data" && sha256sum "$name" >"$name.sha256.tmp" && mv "$name.sha256.tmp" \
        "$name.sha256")
}

pack=datasets/karpathy/llmc-starter-pack/resolve/main
tokenizer() {
    fetch $pack/gpt2_tokenizer.bin 6f3abc21e444e4e8300e225f4e03da48ea121cf17e30f67009b8dad7a66c2f13
}

# shards NAME REPOSITORY COUNT MOST: downloads the validation shard and COUNT training shards
shards() {
    local i
    if ! [[ $3 =~ ^[1-9][0-9]{0,3}$ ]] || [ "$3" -gt "$4" ]; then
        die "$1: $3 shards: expected a number from 1 to $4"
    fi
    fetch "datasets/$2/resolve/main/$1_val_000000.bin"
    for ((i = 1; i <= $3; i++)); do fetch "datasets/$2/resolve/main/$1_train_$(printf %06d "$i").bin"; done
}
tinystories() {
    local text=TinyStoriesV2-GPT4
    tokenizer
    fetch datasets/roneneldan/TinyStories/resolve/main/$text-valid.txt
    fetch datasets/roneneldan/TinyStories/resolve/main/$text-train.txt
    [ -x "$tool" ] || make --no-print-directory "$tool"
    "$tool" -o "$data/tinystories" --tokenizer "$data/gpt2_tokenizer.bin" --documents mark --val 100% \
        "$data/$text-valid.txt"
    "$tool" -o "$data/tinystories" --tokenizer "$data/gpt2_tokenizer.bin" --documents mark --val 0 \
        "$data/$text-train.txt"
}

hellaswag() {
    local convert=${tool%tokens}hellaswag
    tokenizer
    mirror=${LLMC_ZERO_MIRROR:-https://raw.githubusercontent.com} \
        fetch rowanz/hellaswag/master/data/hellaswag_val.jsonl
    [ -x "$convert" ] || make --no-print-directory "$convert"
    "$convert" -o "$data/hellaswag_val.bin" --tokenizer "$data/gpt2_tokenizer.bin" "$data/hellaswag_val.jsonl"
}

get() {
    local count=${1#*:}
    [ "$count" != "$1" ] || count=1
    case $1 in
        tokenizer) tokenizer ;;
        tinyshakespeare)
            fetch $pack/tiny_shakespeare_train.bin \
                8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8
            fetch $pack/tiny_shakespeare_val.bin \
                fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62 ;;
        tinystories) tinystories ;;
        hellaswag) hellaswag ;;
        fineweb|fineweb:*) shards fineweb kjj0/fineweb10B-gpt2 "$count" 103 ;;
        fineweb-100B|fineweb-100B:*) shards fineweb kjj0/fineweb100B-gpt2 "$count" 1030 ;;
        fineweb-edu|fineweb-edu:*) shards edu_fineweb karpathy/fineweb-edu-100B-gpt2-token-shards "$count" \
            1001 ;;
        gpt2:124M|gpt2:124M_bf16) fetch "$pack/gpt2_$count.bin" ;;
        gpt2:355M|gpt2:774M|gpt2:1558M)
            die "$1: not published in llm.c's format; llm.c's train_gpt2.py --model gpt2-medium, "\
"gpt2-large or gpt2-xl writes it" ;;
        *) die \
            "$1: unknown; expected tokenizer, tinyshakespeare, tinystories, fineweb[:N], fineweb-100B[:N], "\
"fineweb-edu[:N], hellaswag, gpt2:124M, gpt2:124M_bf16" ;;
    esac
}

[ $# -gt 0 ] || { sed -n '2,/^#$/s/^# \{0,1\}//p' "$0"; exit 1; }
command -v curl >/dev/null || die "needs curl: apt-get install curl"
mkdir -p "$data"
for what in "$@"; do get "$what"; done
