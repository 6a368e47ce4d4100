#!/usr/bin/env bash
# Tests the trainer as users run it, with small models and few steps: resuming, files, traffic, memory, bad
# input. Every command has a time limit; exceeding it is a failure. tests/same_bits.sh compares the bits of
# runs, tests/ranks.sh has ranks that fail, and tests/folder.sh damaged checkpoints.
# Usage: tests/trainer.sh TRAINER [GROUP]...
# shellcheck disable=SC2016,SC2059,SC2086
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1
shift

small=(-e l2h2c32v257t32 -b 2 -x 3 -u 0 -v 0 -s 0 -n 0 --threads 1 --overlap 0 --hash full)
data=(--device cpu)

# table NAME WORD: prints the MiB after WORD in the line below the memory table
table() { sed -nE "s/.*$2 ([0-9.]+)[, ].*/\1/p" "$dir/$1.screen" | tail -n 1; }
close_to() { number "($1 - $2) ^ 2 <= ($3 * $2) ^ 2"; }

# ---- resume

# checkpoints RUN: lists its complete checkpoints
checkpoints() { (cd "$dir/$1" && echo step_*/manifest.json | sed 's,/manifest.json,,g'); }
saved_files() { (cd "$dir/$1" && echo model_* step_*); }
test_resume() {
    begin 'resume.old checkpoints are removed'
    trains 2 kept -x 8 -n 2 -nk 2
    is 'files left' "$(saved_files kept)" 'model_00000006.bin model_00000008.bin step_00000006 step_00000008'
    # Simulates a killed removal of step 6.
    rm "$dir"/kept/{step_00000006/manifest.json,model_00000006.bin}
    trains 2 kept -x 10 -n 2 -nk 2 -y 1
    is 'files left' "$(saved_files kept)" 'model_00000008.bin model_00000010.bin step_00000008 step_00000010'
    trains 2 kept -x 16 -n 2 -nk 1 -nm 4 -y 1
    is 'left with -nm 4' "$(checkpoints kept)" 'step_00000008 step_00000012 step_00000016'
    end

    begin 'resume.--resume from another run, with another dtype'
    trains 2 first --dtype fp32 -k constant -x 6 -n 3
    trains 2 branch --dtype bf16 -k constant -x 6 --resume "$dir/first/step_00000003"
    screen branch '^changed since .*/step_00000003: --dtype fp32 -> bf16$'
    need "losses $(value branch loss) and $(value first loss)" \
        close_to "$(value branch loss)" "$(value first loss)" 1e-2
    end
    if command -v python3 >/dev/null; then
        begin 'resume.an independent reader, written from formats.md, reads a checkpoint'
        need 'it was refused' dev/read_checkpoint.py "$dir/first/step_00000003" >/dev/null
        dev/read_checkpoint.py "$dir/first/step_00000003" master >"$dir/masters"
        need 'masters and parameters differ' cmp -s "$dir/masters" \
            <(tail -c +1025 "$dir/first/model_00000003.bin")
        end
    else
        skip 'resume.an independent reader, written from formats.md, reads a checkpoint' 'no python3'
    fi

    begin 'resume.an unfinished save is no checkpoint'
    trains 2 good -x 4 -n 2
    cp -r "$dir/good" "$dir/saved"
    rm "$dir"/saved/{step_00000004/manifest.json,model_00000004.bin}
    trains 2 saved -x 4 -n 2 -y 1
    screen saved 'resuming at step 2'
    same_result saved good
    end
    local on="-x 5 -y 1 -o $dir/saved"
    refusals <<END
resume.different data|2|option -i .*_val.bin: shard 0 .*had [0-9]+|$on -i data/stories_val.bin
resume.a different batch|2|option -d 256: .*step_00000004 have 128 tokens|$on -d 256
resume.a different sequence length|2|option -t 16: .*step_00000004 have 32 tokens|$on -t 16 -b 4
END
    begin 'resume.changed settings are reported; --resume-anyway accepts the rest'
    trains 2 saved -x 5 -y 1 -l 1e-3 --clip 0.5 --seed 7 -z 1
    screen saved '^changed since .*/step_00000004: -x 4 -> 5$' ': -l 0.003 -> 0.001$' ': --clip 1 -> 0.5$' \
        ': --seed 42 -> 7$'
    is 'settings reported' "$(grep -c '^changed since' "$dir/saved.screen")" 4
    trains 2 saved -x 5 -y 1 -e l1h2c32v257t32 -i data/stories_val.bin -d 256 --resume-anyway
    is 'settings accepted anyway' "$(grep -c '^resuming anyway: option' "$dir/saved.screen")" 3
    end
}

# ---- resuming on another number of ranks: the run must read the same sequences as an uninterrupted one, even
# if an epoch ends within a step, and each loss and gradient norm must agree up to the rounding of sums

# part NAME FIRST TOKENS: writes a shard with TOKENS tokens of the stories, from token FIRST on
part() {
    {
        head -c 8 data/stories_train.bin
        int32 "$3"
        tail -c +13 data/stories_train.bin | head -c 1012
        tail -c +$((1025 + 2 * $2)) data/stories_train.bin | head -c $((2 * $3))
    } >"$dir/$1"
}
test_elastic() {
    local ranks arguments
    part rows_1.bin 0 $((50 * 32 + 1))
    part rows_2.bin 5000 $((41 * 32 + 1))
    # 91 sequences, 60 per step, so an epoch ends within every other step.
    local args=(--dtype fp32 -d 1920 -x 11 -k constant -i "$dir/rows_*.bin" --comm-timeout 20)
    trains 2 straight "${args[@]}" -b 6
    trains 2 five "${args[@]}" -b 6 -x 5 -n 5
    while read -r ranks arguments; do
        begin "elastic.resumed on $ranks ranks, $arguments"
        rm -rf "$dir/other" && cp -r "$dir/five" "$dir/other"
        trains "$ranks" other "${args[@]}" $arguments -y 1
        screen other '^resuming at step 5$'
        agree straight other 1e-6
        end
    done <<END
1 -b 4 -z 3 --offload-optimizer nvme --offload-param nvme --nvme $disk
3 -b 4 -z 2 --offload-optimizer cpu
5 -b 12 -z 1
END
}

# ---- model files, outputs

test_files() {
    local dtype version=5
    begin 'files.a run starts from a saved model, in bf16 and fp32'
    for dtype in bf16 fp32; do
        trains 2 first --dtype $dtype -x 3 -n 3 -v 3 -m 3
        is "llm.c's header" "$(od -An -tu4 -N 32 -w32 "$dir/first/model_00000003.bin" | tr -s ' ')" \
            " 20240326 $version 32 257 2 2 32 384"
        trains 2 $dtype --dtype $dtype -e "$dir/first/model_00000003.bin" -x 0 -v 1 -m 3
        is 'validation loss' "$(value $dtype val_loss)" "$(value first val_loss)"
        is parameters "$(value $dtype params_hash)" "$(value first params_hash)"
        [ $dtype = fp32 ] || trains 2 wide --dtype fp32 -e "$dir/first/model_00000003.bin" -x 0 -v 1 -m 3
        version=3
    done
    need "validation loss of a bf16 model in fp32: $(value wide val_loss), in bf16: $(value bf16 val_loss)" \
        close_to "$(value wide val_loss)" "$(value bf16 val_loss)" 1e-3
    end
}

# Reduces strings, numbers and names to letters, and each complete object to the letter V. Valid JSON
# becomes V.
valid_json() {
    [ "$(tr -d '\n' <"$1" | sed -E \
        's/"[^"\\]*"/S/g; s/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/V/g; s/null|true|false/V/g; s/ //g
        :again; s/S:[SV]/P/g; s/\{P(,P)*\}/V/g; tagain')" = V ]
}

test_outputs() {
    local key float='[0-9.]+'
    begin "outputs.summary.json, metrics.jsonl, and main.log in llm.c's format"
    trains 2 out -x 4 -v 2 -m 2 -z 3 -n 2 --dtype bf16 -r 3
    need 'not valid JSON' valid_json "$dir/out/summary.json"
    for key in steps ranks stage dtype device loss val_loss grad_norm params_hash state_hash tokens_per_s \
        model_state_bytes working_bytes activation_bytes comm_bytes all_gather reduce_scatter all_reduce \
        host_bytes nvme_bytes; do
        has "$dir/out/summary.json" "\"$key\": "
    done
    is facts "$(for key in steps ranks stage device host_bytes; do value out $key; done | xargs)" \
        '4 2 3 cpu 0'
    # In each step a rank sends its half of the 40192 parameters (with padding) twice, except of the embedding
    # (13568) and the last block (13312), and of all gradients once. Validation, checkpoints and recompute add
    # nothing.
    is 'bytes sent' "$(value out all_gather) $(value out reduce_scatter)" \
        "$((2 * 40192 - 13568 - 13312)) 40192"
    need 'a speed of 0' number "$(value out tokens_per_s) > 0"
    need 'temporary files remain' not compgen -G "$dir/out/*.tmp"
    is lines "$(wc -l <"$dir/out/metrics.jsonl")" 4
    is 'steps of valid lines' "$(sed -nE "s/^\{\"step\": ([0-9]+), \"loss\": $float, \"grad_norm\": $float, \
\"lr\": [0-9.e-]+, \"ms\": $float, \"tokens_per_s\": $float\}$/\1/p" "$dir/out/metrics.jsonl" | xargs)" \
        '1 2 3 4'
    has "$dir/out/metrics.jsonl" "\"step\": 4, \"loss\": $(value out loss),"
    is 'lines of main.log' "$(cut -d' ' -f1,2 "$dir/out/main.log" | cut -d: -f1,2 | xargs)" \
        's:0 tel s:0 trl s:1 trl s:2 tel s:2 trl s:3 trl s:4 tel'
    need 'wrong format' not grep -qvE \
        '^s:[0-9]+ (tel:[0-9]+\.[0-9]{4}|trl:[0-9]+\.[0-9]{4} lr:0\.[0-9]{6} norm:[0-9]+\.[0-9]{2})$' \
        "$dir/out/main.log"
    end
    begin 'outputs.validation and samples at the requested steps; options without effect are reported once'
    trains 2 quiet -v 0 -s 0 -ge 1 -f 1 -lg 5 --cpu-checkpointing
    need 'it validated or sampled' \
        not grep -qE 'val loss|generating' "$dir/quiet.screen" "$dir/quiet/main.log"
    is 'its validation loss' "$(value quiet val_loss)" null
    for key in '-ge 1' '-f 1' '-lg 5' '--cpu-checkpointing'; do
        is "reports of $key" "$(grep -c -- "option $key: no effect" "$dir/quiet.screen")" 1
    done
    trains 2 loud -v 1 -m 1 -s 1 -g 4
    is 'with -v 1' "$(grep -c 'val loss' "$dir/loud.screen")" 4
    is 'with -s 1' "$(grep -c 'generating' "$dir/loud.screen")" 3
    end
}

# The score must not depend on the stage nor, with the same parameters, on the number of ranks. 3 ranks do not
# divide 10 examples, and batches of 3 or 5 rows do not hold whole examples.
test_hellaswag() {
    local np stage rows first with=(-h 1 -v 2 -m 1 -x 3 --hellaswag tests/reference_hellaswag.bin)
    eval_lines() { grep eval: "$dir/$1/main.log" | xargs; }
    begin 'hellaswag.the same score at any number of ranks'
    while read -r np stage rows; do
        trains "$np" swag "${with[@]}" --dtype fp32 -x 0 -z "$stage" -b "$rows"
        [ "$np" != 1 ] || first=$(eval_lines swag)
        is "$np ranks" "$(eval_lines swag)" "$first"
    done <<'END'
1 0 2
2 3 5
3 2 3
END
    is screen "$(grep HellaSwag: "$dir/swag.screen" | cut -d' ' -f1-3)" \
        "HellaSwag: $(awk -F: '{ printf "%d/10 =", 10 * $3 }' <<<"$first")"
    end
    begin 'hellaswag.a resumed run logs each score once'
    trains 2 swag3 "${with[@]}" --dtype bf16 -z 3 -n 2
    first=$(eval_lines swag3)
    is steps "$(sed -E 's/:0\.[0-9]{4}//g' <<<"$first")" 's:2 eval s:3 eval'
    rm "$dir"/swag3/{step_00000003/manifest.json,model_00000003.bin}
    trains 2 swag3 "${with[@]}" --dtype bf16 -z 3 -n 2 -y 1
    is 'scores of a resumed run' "$(eval_lines swag3)" "$first"
    trains 2 swag3 "${with[@]}" --dtype bf16 -z 3 -n 2 -y 1
    screen swag3 '^all 3 steps are done' '^HellaSwag: '
    is 'scores of a finished run' "$(eval_lines swag3)" "$first"
    end
    refusals <<'END'
hellaswag.a missing file|2|no such file; scripts/download.sh hellaswag|-h 1 -v 1 --hellaswag hellaswag_val.bin
hellaswag.another format|2|not a file of multiple-choice examples|-h 1 -v 1 --hellaswag data/stories_val.bin
hellaswag.short rows|1|needs rows of [0-9]+|-h 1 -v 1 -t 4 --hellaswag tests/reference_hellaswag.bin
END
}

# ---- memory

# pss NP NAME ARGUMENT...: trains, and sets peak to the largest sampled Pss of a rank in KiB. Pss divides a
# shared page among the processes that map it, so the last rank to exit is charged for all of it. Therefore a
# sample counts only if every rank still maps the window afterwards.
pss() {
    local np=$1 out=$2 job pid key kib r most
    shift 2
    peak=0
    rm -f "$dir"/pid.*
    train "$np" "$out" "$@" & job=$!
    while kill -0 $job 2>/dev/null; do
        most=0
        for ((r = 0; r < np; r++)); do
            read -r pid 2>/dev/null <"$dir/pid.$r" || continue
            while read -r key kib _; do
                [ "$key" = Pss: ] && [ "$kib" -gt "$most" ] && most=$kib
            done 2>/dev/null <"/proc/$pid/smaps_rollup"
        done
        for ((r = 0; r < np; r++)); do
            read -r pid 2>/dev/null <"$dir/pid.$r" && grep -qs 'memfd:llmc_zero' "/proc/$pid/maps" || most=0
        done
        [ "$most" -gt "$peak" ] && peak=$most
        nap 0.02
    done
    wait $job
}

# The table leaves out what the process takes itself (process_bytes in room.c): up to 16 MiB here, and more
# with files. columns: ranks, MiB beside the table, arguments
test_memory() {
    local np more setting together
    if ! grep -qs '^Pss:' /proc/self/smaps_rollup; then skip memory 'no /proc/PID/smaps_rollup'; return; fi
    while read -r np more setting; do
        begin "memory.the system agrees with the table, $np ranks, $setting"
        need 'failed' pss "$np" held --hash params $setting
        together=$(in_memory_mib held)
        together=${together:-$(table held together)}
        need "a rank takes $peak KiB, the table has $together MiB in memory" \
            number "$peak <= 1024 * ($together * 1.1 + $more)"
        need "$peak KiB is less than the model states in memory" \
            number "$peak * 1024 >= $(value held model_state_bytes) - $(value held nvme_bytes)"
        end
    done <<END
4 16 -e l6h4c256v257t32 --dtype fp32 -z 0 -b 1 -x 3
4 16 -e l6h4c256v257t32 --dtype fp32 -z 3 -b 16 -x 2 -r 0
4 16 -e l6h4c256v257t32 --dtype bf16 -z 3 -b 4 -d 2560 -x 2 -r 3 --accumulate layers
2 64 -e l6h8c512v257t32 --dtype bf16 -z 3 -b 1 -x 3 --sub-group-size 65536 ${on_nvme[*]}
END
    begin 'memory.the states on NVMe are not in memory'
    need "a rank takes $peak KiB" number "$peak * 1024 < $(value held model_state_bytes)"
    end
}

# ---- plan

# plan NAME ARGUMENT...: runs --plan, with little memory and without data
plan() {
    local name=$1
    shift
    (
        ulimit -v 1500000
        timeout 60 "$trainer" "${data[@]}" "${small[@]}" -i nowhere -j nowhere --plan "$@"
    ) >"$dir/$name.screen" 2>&1
}
memory_table() {
    sed -n '/^memory per rank/,/together/p; /^  of which/p; /plain data parallel/p' "$dir/$1.screen"
}
# same_tables RUN PLAN LINES: checks that the memory tables are equal and have at least LINES lines
same_tables() {
    need 'no table' [ "$(memory_table "$2" | wc -l)" -ge "$3" ]
    need "tables differ: $(diff <(memory_table "$1") <(memory_table "$2") | head -n 4 | tr '\n' ' ')" \
        [ "$(memory_table "$1")" = "$(memory_table "$2")" ]
}

test_plan() {
    local np options gathers units mib=() larger=(-e l3h4c256v257t64 -b 8)
    # The model is large enough for every line to be at least 0.1 MiB.
    while read -r np options; do
        begin "plan.the same table as a run on $np ranks, $options"
        trains "$np" planned "${larger[@]}" -x 0 $options
        need 'no plan' plan plan --plan-ranks "$np" "${larger[@]}" $options
        same_tables planned plan 9
        gathers=$(sed -nE 's/^traffic .*gathers ([0-9.]+).*/\1/p' "$dir/planned.screen")
        screen plan "step: gathers +$gathers\$"
        end
    done <<END
1 --dtype bf16 -z 1
2 --dtype bf16 -z 0 -r 3
3 --dtype bf16 -z 3 --comm-type fp32 --prefetch 2 -r 0
2 --dtype fp32 -z 2 -d 3072 --bucket 1e6 --messages 1 -r 2 --trace $dir/planned.json
2 --dtype bf16 -z 3 -d 5120 --accumulate layers -r 3
2 --dtype bf16 --units matrix -r 3 -d 5120 --accumulate layers --prefetch 2
2 --dtype bf16 --units matrix -r 3 -d 3072 -s 1 ${on_nvme[*]}
END

    # A matrix has at most 4C^2 of a block's 12C^2 elements. Small tensors add 3 %.
    begin 'plan.--units matrix takes a third of the slots and buckets'
    for units in block matrix; do
        need 'no plan' plan $units "${larger[@]}" --dtype bf16 --plan-ranks 2 -d 4096 --units $units
        mib+=("$(sed -nE 's/^  working +(slots|buckets) +([0-9.]+)$/\2/p' "$dir/$units.screen" | xargs)")
    done
    need "MiB of slots and buckets: ${mib[*]}" awk -v a="${mib[*]}" 'BEGIN {
        n = split(a, x); exit !(n == 4 && x[3] < x[1] * 0.35 && x[4] < x[2] * 0.35 && x[3] > 0.3 * x[1]) }'
    screen matrix '^units +13: 4 a block'
    end

    # The step is the last of several, so that its parameters were gathered as in every other.
    while read -r options; do
        begin "plan.a step sends the bytes of the start table, $options"
        trains 2 sends "${larger[@]}" -b 2 -x 3 -n 0 --dtype bf16 --units matrix $options
        is 'MiB per step' "$(sed -nE 's/.*sent per rank and step ([0-9.]+) MiB.*/\1/p' "$dir/sends.screen")" \
            "$(sed -nE 's/^traffic +a rank sends ([0-9.]+) MiB.*/\1/p' "$dir/sends.screen")"
        end
    done <<END
-r 3 -d 768 --prefetch 4
-r 3 -d 768 --accumulate layers
END

    begin 'plan.131 billion parameters on 128 ranks'
    need 'no plan' plan large -e l105h96c10176v50257t2048 -t 2048 -b 1 --dtype bf16 \
        --plan-ranks 128 -pg 8 -o "$dir/not_made"
    screen large ' 131020874304 parameters' '^  3  16P/N +15618\.9 +15619\.1 ' '^  stage 3 does not fit' \
        'step: reductions +277238\.95 +58571\.61$'     # the second number: to other hosts
    need 'a folder was made' [ ! -e "$dir/not_made" ]
    end

    begin 'plan.for a model file, and for the ranks that mpirun started'
    trains 1 planned -x 1 -n 1
    need 'no plan' plan file -e "$dir/planned/model_00000001.bin" --plan-ranks 2
    need 'no plan' plan descriptor --plan-ranks 2
    same_tables file descriptor 9
    screen file '^  \* fits into memory$' \
        '^  stage 3 fits: it needs .* per rank, of which the process itself about [0-9]+; .* each of 2 ranks$'
    run 2 $hang_limit "${small[@]}" -z 1 --plan >"$dir/started.screen" 2>&1
    is 'plans for two ranks' "$(grep -c '^plan .* for 2 ranks' "$dir/started.screen")" 1
    end
    refusals <<'END'
plan.--plan-ranks without --plan|1|--plan-ranks 4: needs --plan$|--plan-ranks 4
plan.window too small|1|65536 .* 1000 .* 262144 \(--window\)|--plan --plan-ranks 1000 --window 65536
plan.too many ranks|1|serves at most 65536 ranks, not 65537 \(--window\)|--plan --plan-ranks 65537
END
}

# ---- prompts

# answer NP NAME ARGUMENT...: runs --prompts, and fails the case if the run fails
answer() { trains "$1" "$2" --prompts "$dir/prompts" -g 12 --verbose "${@:3}"; }
answers() { cat "$dir/$1/answers.jsonl"; }
tokens() { sed -nE "$2s/.*\"tokens\": \[(.*)\]\}\$/\1/p" "$dir/$1/answers.jsonl"; }  # NAME LINE
figure() { json_value "$dir/$1/inference.json" "$2"; }
# says NP ARGUMENT...: answers prompts from standard input, without an output folder
says() {
    local launcher np=$1
    launch "$np"
    shift
    timeout -k 2 30 "${launcher[@]}" "$trainer" "${data[@]}" "${small[@]}" "$@" 2>"$dir/errors" ||
        need "failed: $*: $(tail -n 1 "$dir/errors")" false
}
# Prints the text between the last two lines of dashes.
text() { sed -n '/^---$/,/^---$/p' "$dir/$1.screen" | tac | sed '1d; /^---$/,$d' | tac; }

test_prompts() {
    local np i line first= trained=(-e l2h2c64v257t64 -t 64)
    printf '%s\n' 'Once upon a time' 'The' '' 'Lily liked to play with her' 'A dog was' >"$dir/all_prompts"
    cp "$dir/all_prompts" "$dir/prompts"
    begin 'prompts.the same answers on any number of ranks, at any stage, up to the last position'
    trains 2 model "${trained[@]}" -b 8 -x 60 -l 1e-2 -n 60 --dtype bf16
    while read -r np line; do
        answer $np all -e "$dir/model" --dtype bf16 -g 50 $line
        first=${first:-$(answers all)}
        is "$np ranks, $line" "$(answers all)" "$first"
    done <<<$'1 -z 0\n3 -z 3\n2 -z 3 --overlap 1'
    screen all '^note: an answer ends where its.* 64 tok'
    is 'tokens of the answers' "$(for i in {1..5}; do tokens all $i | wc -w; done | xargs)" '49 50 50 38 50'
    is 'tokens generated' "$(figure all tokens)" $((49 + 50 + 50 + 38 + 50 - 5))
    end
    begin "prompts.a prompt's answer does not depend on the others"
    for i in 1 3 5; do
        sed -n "${i}p" "$dir/all_prompts" >"$dir/prompts"
        answer 1 alone -e "$dir/model" --dtype bf16 -g 50 --seed $((41 + i))      # prompt i's seed
        is "prompt $i" "$(tokens alone 1)" "$(tokens all "$i")"
    done
    end
    begin "prompts.a sample is the answer to an empty line"
    trains 2 sampled "${trained[@]}" -e "$dir/model" -x 0 -s 1 -g 30 --dtype bf16
    echo >"$dir/prompts"
    answer 2 empty -e "$dir/model" --dtype bf16 -g 29
    is text "$(text empty)" "<|endoftext|>$(text sampled)"
    end
    begin 'prompts.one after the other: from the command line and from standard input'
    printf 'The\nA dog was\n' >"$dir/prompts"
    answer 1 two -e "$dir/model" --dtype bf16
    line=$(text two) first=$(sed -n '/^answer 1$/,/^answer 2$/p' "$dir/two.screen" | sed '1,2d' | head -n -2)
    is '--prompt' "$(says 1 -e "$dir/model" --dtype bf16 -g 12 --prompt The)" "$first"
    is notes "$(<"$dir/errors")" 'note: prompts train nothing and ignore -b 2, -x 3'
    printf 'The\nA\n' | says 2 -e "$dir/model" -g 90 --prompts - >/dev/null
    is 'notes on length' "$(grep -c '^note: an answer ends where its sequence has 64 tokens' "$dir/errors")" 1
    for np in 1 2; do
        # The second line has no newline, and arrives after rank 1's time limit for a silent rank 0.
        is "standard input, $np ranks" "$({ echo The; sleep 4; printf 'A dog was'; } |
            says $np -e "$dir/model" --dtype bf16 -g 12 --prompts - --comm-timeout 3)" "$first"$'\n'"$line"
    done
    end
    begin 'prompts.lines that cannot be answered: messages on stderr, a failure at the end, the other answers'
    printf '%080d\r\nThe\r\n\377\nA dog was' 0 >"$dir/prompts"
    line=(-e "$dir/model" --dtype bf16 -g 12 --temperature 0)
    first=$(says 1 "${line[@]}" --prompt The; says 1 "${line[@]}" --prompt 'A dog was')
    (why=; says 2 "${line[@]}" --prompts - <"$dir/prompts" >"$dir/said"; [ -n "$why" ]) ||
        need 'standard input: status 0' false
    is 'standard input, answers' "$(<"$dir/said")" "$first"
    has "$dir/errors" 'line 1: its 80 tokens do not fit into 64 positions' 'prompts -: line 3 is not UTF-8$'
    fails 2 bad --prompts "$dir/prompts" "${line[@]}"
    screen bad 'line 1: its 80 tokens' '/prompts: line 3 is not UTF-8$' '^answer 2$' '^answer 4$'
    is 'the first answer' "$(sed -n '/^answer 2$/{n;n;p}' "$dir/bad.screen")" "${first%%$'\n'*}"
    is 'prompts answered' "$(answers bad | sed -E 's/.*"prompt": ([0-9]+),.*/\1/' | xargs)" '2 4'
    end
    begin "prompts.the tokenizer travels with the output folder"
    cp data/stories_tokenizer.bin "$dir/own.bin"
    printf E | dd of="$dir/own.bin" bs=1 seek=$((1025 + 2 * 101)) conv=notrunc status=none
    printf e | dd of="$dir/own.bin" bs=1 seek=$((1025 + 2 * 69)) conv=notrunc status=none
    trains 2 own "${trained[@]}" -e "$dir/model" -x 0 -n -1 --tokenizer "$dir/own.bin"
    rm "$dir/own.bin"
    trains 1 own "${trained[@]}" -x 0 -y 1
    for i in own own/model_00000000.bin; do
        is "$i" "$(says 1 -e "$dir/$i" --prompt '' -g 40 | sed 's/<|endoftext|>//g' | tr eE Ee)" "$(
            says 1 -e "$dir/$i" --prompt '' -g 40 --tokenizer data/stories_tokenizer.bin |
                sed 's/<|endoftext|>//g')"
    done
    end
    begin 'prompts.prompts as token numbers'
    printf '5 299\n0\n' >"$dir/prompts"
    answer 2 numbers -e l2h2c32v300t32 --tokenizer none
    screen numbers '^note: the model l2h2c32v300t32 is untrained'
    is prompts "$(sed -E 's/.*prompt_tokens": \[([^]]*).*/\1/' "$dir/numbers/answers.jsonl" |
        tr '\n' ';')" '5, 299;0;'
    end
    cp "$dir/all_prompts" "$dir/prompts"

    begin 'prompts.memory equals the plan, and the formula of stage 3 on three ranks'
    line=(-e l3h4c256v257t64 --dtype bf16)
    answer 3 held "${line[@]}"
    need 'no plan' plan plan --prompts "$dir/prompts" -g 12 --plan-ranks 3 "${line[@]}"
    same_tables held plan 7
    screen plan '^  activations +keys and values'
    need 'the plan has more than parameters' \
        not grep -qE 'gradients|master|moment|bucket|tables' "$dir/plan.screen"
    # A rank holds a third of the parameters, with padding. In every pass it sends its shard of each block to
    # two ranks, and in the first also its shard of the embeddings.
    i=$((2 * $(sed -nE 's/.* ([0-9]+) parameters,.*/\1/p' "$dir/plan.screen") / 3))
    need "$(figure held model_state_bytes) bytes, formula: $i" number \
        "$(figure held model_state_bytes) >= $i && $(figure held model_state_bytes) <= 1.01 * $i + 4096"
    line=$(figure held sent_bytes_a_pass)
    need "sends $line bytes per pass, expected $((2 * i))" number "$line >= 1.86 * $i && $line <= 2.02 * $i"
    end

    begin 'prompts.inference.json and the printed figures'
    need 'not valid JSON' valid_json "$dir/held/inference.json"
    is 'prompts and tokens' "$(figure held prompts) $(figure held tokens)" '5 55'
    need 'no speed' number "$(figure held tokens_per_s) > 0 && $(figure held prefill_tokens_per_s) > 0"
    # rank 0 of 3 has two prompts of 16 and 27 tokens, and feeds back 11 tokens of each answer
    screen held '^generation 55 tokens in 11 passes of ' ' keys and values of 96 positions$'
    while read -r line; do
        echo "$line" >"$dir/line"
        need 'an answer is not valid JSON' valid_json "$dir/line"
    done < <(answers held | sed -E 's/\[[0-9, ]*\]/0/g')
    end

    mkdir "$dir/hollow"
    printf '7\n8 x\n' >"$dir/no_number"
    printf '7\n\n300\n' >"$dir/no_token"
    : >"$dir/no_prompt"
    local p='-g 12 --prompts' numbers='-e l2h2c32v300t32 --tokenizer none'
    refusals <<END
prompts.too long|2|line 4: its 27 tokens do not fit into 24 positions|$p $dir/prompts -t 24
prompts.both options|1|leave out --prompts|$p $dir/prompts --prompt abc
prompts.an output folder without a file|1|option -o: .* nothing is written there|--prompt abc -o $dir/model
prompts.not a number|2|line 2: "x" is not a token number|$p $dir/no_number $numbers
prompts.token outside the vocabulary|1|line 3: token 300.* 0 to 299|$p $dir/no_token $numbers
prompts.an empty file|1|the file has no prompts|$p $dir/no_prompt
prompts.a missing file|2|$dir/nowhere: No such file|$p $dir/nowhere
prompts.with training options|1|nothing is trained|$p $dir/prompts -y 1 -o $dir/model
prompts.a folder without a checkpoint|1|neither a complete checkpoint|$p $dir/prompts -e $dir/hollow
END
    wrap='[ $rank = 0 ] || set -- "${@/%\/prompts/\/all_prompts}";'
    echo more >>"$dir/all_prompts"
    refused 'prompts.different prompts on one rank' 2 'rank 1 .* has --prompts = a file of .* and rank 0' \
        --prompts "$dir/prompts" -g 2 -e l2h2c32v257t64 -t 64
    wrap=
}

# ---- bad input

test_options() {
    refusals <<'END'
bad.unknown tier|1|--offload-param.*'disk' is not one of none, cpu, nvme|--offload-param disk
bad.unknown option|2|unknown option -Z; --help lists them$|-Z 3
bad.misspelt option|1|--offload-optimiser; the nearest is --offload-optimizer,|--offload-optimiser cpu
bad.setting as an option|1|unknown option --stage; the nearest is -z,|--stage=3
bad.flag with a value|1|option --plan takes no value|--plan=1
bad.an empty name|1|option --to: its value is empty|--export nowhere --to=
bad.NCCL on the CPU|2|option --comm nccl: .*--device cuda|--comm nccl
bad.option without a value|1|-b.*value|-b
bad.not a number|2|-b.*'x'.*number|-b x
bad.not a whole number|1|-x.*'1.5'.*whole|-x 1.5
bad.not finite|1|-l.*'nan'|-l nan
bad.large range in plain numbers|1|--bucket: -1 is out of range, 0 to 1000000000000000$|--bucket -1
bad.fractional range|1|--beta1: 1 is out of range, 0 to 0.999999$|--beta1 1
bad.row longer than the model|1|-t 33: .* is 32 tokens; use -t 32 or less, or .* -e l2h2c32v257t33$|-t 33
bad.batch that does not divide|2|-d 300: .*multiple.* = 128; use -d 256 or -d 384$|-d 300
bad.batch below the smallest|2|-d 64: .*; use -b 1, or -d 128$|-d 64
bad.any ranks, batch by batch|1|--any-ranks 1: .*layers, not batches$|--any-ranks 1 --accumulate batches
bad.any ranks, 3 ranks|3|--any-ranks 1: 3 ranks; .*: start 2 or 4$|--any-ranks 1
bad.any ranks, 3 micro-batches|2|--any-ranks 1: 3 .*: use -d 256 or -d 512$|--any-ranks 1 -d 384
bad.matrices by layers|1|--units matrix: .*leave out|--units matrix --accumulate layers --cpu-checkpointing
bad.naive by layers|1|naive path sums after backward.*--naive, --accumulate|--naive 1 -z 0 --accumulate layers
bad.batch larger than the data|2|stories_train.bin: .* rows .*, fewer than the 2000000 that|-b 1000000
bad.naive above stage 0|1|option --naive 1: needs -z 0$|--naive 1 -z 3
bad.checkpoints without a folder|1|-o|-n 5
bad.too many validation batches|2|-m 9999: data/stories_val.bin has only [0-9]+ batch|-v 1 -m 9999
bad.--nvme without anything there|1|--nvme /x: needs --offload-optimizer nvme or|--nvme /x
bad.checkpoints never removed anyway|1|option -nm 4: needs -nk above 0$|-nm 4
bad.--resume-anyway without -y|1|--resume-anyway: needs -y 1 or --resume$|--resume-anyway -y 0
bad.fp16 on a CPU|1|--dtype fp16.*--device cuda|--dtype fp16
bad.tuning file on a CPU|1|--tune products.txt.*--device cuda|--tune products.txt
bad.block inputs on the host without -r 3|1|--cpu-checkpointing.*needs -r 3, not -r 2|-r 2 --cpu-checkpointing
bad.HellaSwag without batches|1|option -h 1: no effect with -m 0|-h 1 -v 1 -m 0
bad.no master weights in fp32|1|-w 0.*--dtype bf16|-w 0 --dtype fp32
bad.missing model|1|option -e no/folder: no file or folder of this name, nor a known model: d12,|-e no/folder
bad.file that is no model|1|option -e Makefile: a model file's name must end in .bin|-e Makefile
bad.missing tokenizer|1|option --tokenizer no.bin: no such file|--tokenizer no.bin -s 1
bad.parameters off the device below stage 3|1|--offload-param cpu: needs -z 3$|--offload-param cpu -z 2
END
    begin 'options.help, version, and name=value'
    for option in --help -h '-h -z 3'; do
        run 1 20 $option >"$dir/help.screen" 2>&1
        screen help '^usage: ' '^  -h +HellaSwag' '^  --async-save'
    done
    is version "$(run 1 20 --version)" \
        "train_gpt2_zero $(sed -nE 's/#define ZERO_VERSION "(.*)".*/\1/p' llmc_zero/zero.h)"
    need 'dev/make_options.sh failed' dev/make_options.sh "$trainer" "$dir/options.md"
    need 'docs/reference/options.md is out of date: run dev/make_options.sh' \
        cmp -s "$dir/options.md" docs/reference/options.md
    trains 1 equals -h 0 --prefetch=2 --dtype=fp32 -z=3 -m 5 --hellaswag x
    trains 1 blanks --prefetch 2 --dtype fp32 -z 3
    same_result equals blanks
    screen equals '^config .*prefetch 2' '^option -m 5: no effect with -v 0$' \
        '^option --hellaswag x: no effect without' \
        '^step +1/3 . loss [0-9.]+ \(-\). norm [0-9.]+ \(-\). lr '
    end
    begin 'options.overlap and the environment, with the reasons'
    ZERO_CHECK=1 ZERO_POISON=0 trains 1 told --overlap 1
    screen told '^ZeRO .*overlap on \(option --overlap\)' '^config .*poison 0 \(ZERO_POISON in the env' \
        '^config .*check_steps 2147483647 \(ZERO_CHECK in the environment: all steps'
    screen equals '^ZeRO .*overlap off \(option --overlap\)'
    need 'it lists environment variables that are not set' not grep -q '(ZERO_' "$dir/equals.screen"
    for option in yes -1 10 ' 1'; do
        ZERO_CHECK=$option refuses 1 "ZERO_CHECK=$option in the environment: must be 0 or 1"
    done
    end
    if command -v nvidia-smi >/dev/null; then skip 'bad.device' 'there is a CUDA device'
    else refused 'bad.device' 2 '--device cuda' --device cuda; fi
}

# test_deepspeed covers the settings of a DeepSpeed file. This tests how they combine with options.
test_zero_config() {
    local j=$dir/zero.json z="--zero-config $dir"
    local tiny=(-e l2h2c32v257t32 -v 0 -s 0 --threads 1 --overlap 0 --hash full)
    json() { cat >"$dir/$1.json"; }
    json zero <<'END'
{
  // comments, 2e8, a trailing comma
  "train_batch_size": 24, "gradient_accumulation_steps": 2,
  "gradient_clipping": 0.5,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3, "betas": [0.8, 0.99], "weight_decay": 0.1 } },
  "zero_optimization": { "stage": 3, "reduce_bucket_size": 2e8, "sub_group_size": 1e9 },
}
END
    begin 'zero config.settings from the file are used'
    trains 2 config --dtype fp32 -b 6 --zero-config "$j"
    trains 2 options --dtype fp32 -z 3 -b 6 -d 768 -l 1e-3 --beta1 0.8 --beta2 0.99 -c 0.1 --clip 0.5 \
        --bucket 2e8
    same_result config options
    is buckets "$(grep '^buckets' "$dir/config.screen")" "$(grep '^buckets' "$dir/options.screen")"
    screen config 'no effect  zero.json:6: zero_optimization.sub_group_size' \
        '^config .*micro_batches 2 \(zero.json:3\)'
    need 'summary.json is not valid' valid_json "$dir/config/summary.json"
    has "$dir/config/summary.json" '"trainer.lr": \{"value": 0.001, "reason": "zero.json:5"\}' \
        '"stage": 3,' '"reduce_bucket_size": \{"value": 200000000, '
    end
    json fp16 <<<'{ "fp16": { "enabled": true } }'
    json warmup <<'END'
{ "scheduler": { "type": "WarmupDecayLR", "params": { "total_num_steps": 8, "warmup_num_steps": 2 } },
"train_batch_size": 4 }
END
    json batch <<<'{ "train_batch_size": 12 }'
    json micro <<<'{ "gradient_accumulation_steps": 2 }'
    json tier <<'END'
{ "zero_optimization": { "stage": 3, "offload_optimizer": { "device": "nvme", "nvme_path": "/n", },
"offload_param": { "device": "cpu", "pin_memory": true } }, "aio": { "block_size": 262144 } }
END
    json list <<'END'
{ "gradient_clipping": 2.0, "scheduler": { "type": "OneCycle" }, "wall_clock_breakdown": true,
"zero_optimization": { "stage": 1, "zero_quantized_weights": true, "stge3_max_live_parameters": 1e9 },
"fp16": { "enabled": true }, "train_micro_batch_size_per_gpu": 0, "train_batch_size": 13 }
END
    refusals <<END
zero config.accumulation contradicts -d|2|gradient_accumulation_steps: 2: .*1 micro|-d 128 $z/micro.json
zero config.batch contradicts -d|2|train_batch_size: 12: .*4 rows|-d 128 $z/batch.json
zero config.tier contradicts an option|1|offload_param.device: cpu: option|--offload-param nvme $z/tier.json
zero config.folder contradicts --nvme|1|nvme_path: /n: option --nvme |--nvme /m $z/tier.json
zero config.a schedule contradicts -k, -u and -x|1|3 keys cannot|-k wsd $z/warmup.json
zero config.all refusals at once|2|9 keys cannot be honoured|--clip 1.5 -z 2 $z/list.json
END
    begin 'zero config.the list of refusals'
    has "$dir/refused" 'list.json:1: gradient_clipping: 2: option --clip ' ':1: scheduler.type: .*option -k' \
        ':2: zero_optimization.stage: 1: option -z ' ':2: .*zero_quantized_weights: true: ' \
        ':2: .*stge3_max_live_parameters: .*nearest .*stage3_max' ':1: wall_clock_breakdown: .*--trace' \
        ':3: fp16.enabled: fp16: .*--dtype' ':3: train_batch_size: 13: ' \
        ':3: train_micro_batch_size_per_gpu: 0: must be .*option -b'
    end
    begin 'zero config.--dtype overrides the file; a scheduler sets the schedule'
    trains 2 fp16 -x 2 --dtype bf16 --zero-config "$dir/fp16.json"
    screen fp16 '^no effect  fp16.json:1: fp16.enabled: option --dtype bf16 overrides it' \
        '^config .*trainer.beta2 0.95 .*DeepSpeed.*0.999' '^config .*trainer.schedule cosine .*constant'
    need 'failed' run 1 30 "${tiny[@]}" -o "$dir/warmup" --zero-config "$dir/warmup.json" \
        >"$dir/warmup.screen" 2>&1
    need 'failed' run 1 30 "${tiny[@]}" -o "$dir/linear" -b 4 -k linear -u 2 -q 0 -l 1e-3 -x 8 \
        >"$dir/linear.screen" 2>&1
    same_result warmup linear
    screen warmup '^config .*trainer.schedule linear \(warmup.json:1: the warm-up is linear'
    end
    begin 'zero config.--print-config'
    json zero <<<'{ "zero_optimization": { "stage": 2, "reduce_bucket_size": "auto" } }'
    need 'failed' run 2 $hang_limit "${small[@]}" --print-config --zero-config "$j" --window 65536 \
        -o "$dir/no_config" >"$dir/print.screen" 2>&1
    is 'lists' "$(grep -c '^config ' "$dir/print.screen")" 1
    screen print '^  stage +2 +zero.json:1$' '^  comm.window_bytes +65536 +option --window$' \
        '^  reduce_bucket_size +0 +zero.json:1' \
        '^  offload.sub_group_size +4194304 +default$'
    need 'it trained' not grep -q '^step' "$dir/print.screen"
    need 'it succeeded' not run 2 20 "${small[@]}" --print-config --zero-config "$dir/list.json" \
        >"$dir/refused.screen" 2>&1
    screen refused '^  numbers.dtype +fp16 +list.json:3$' '^noted .*fp16 needs' '^buckets' \
        ': 7 keys cannot be honoured'
    need 'a folder was made' [ ! -e "$dir/no_config" ]
    run 1 $hang_limit "${small[@]}" --print-config --zero-config "$dir/tier.json" >"$dir/file.screen" 2>&1
    screen file '^  offload.optimizer +nvme' '^  offload.params +cpu' '^  offload.nvme +/n ' \
        '^  offload.gradients +cpu +follows' '^noted  .*nothing moves' \
        '^  offload.nvme_block_bytes +524288 +tier.json:2: raised to at least 524288' \
        '^no effect  tier.json:2: .*pin_memory: .*always pins'
    end
}

# int32 NUMBER...: writes each number as four bytes, little-endian
int32() {
    local x i
    for x in "$@"; do
        for i in 0 8 16 24; do printf "\\x$(printf %02x $((x >> i & 255)))"; done
    done
}
# shard FILE TOKENS: writes a shard whose tokens are all 1
shard() {
    {
        int32 20240520 1 "$2"
        head -c 1012 /dev/zero
        for ((i = 0; i < $2; i += 2)); do printf '\x01\0\x01\0'; done
    } >"$1"
}

# test_damage covers every kind of damage. This checks that each reader's message reaches the user, with
# the file's name.
test_input_files() {
    shard "$dir/token" 1000
    printf '\x2c\x01' | dd of="$dir/token" bs=1 seek=1424 conv=notrunc status=none
    head -c 700 data/stories_tokenizer.bin >"$dir/words"
    head -c 2000 docs/reference/data.md >"$dir/text.txt"
    refusals <<END
bad.missing shard|2|option -j my.bin: no file matches; build/make_tokens|-j my.bin -v 1
bad.missing model of a download|1|no such file; scripts/download.sh gpt2:124M creates|-e gpt2_124M.bin
bad.text as a shard|2|text.txt: text, not a shard of tokens; .*build/make_tokens .*text.txt|-i $dir/text.txt
bad.token outside the vocabulary|2|$dir/token.*token 200.*300.*257|-i $dir/token -x 40
bad.truncated tokenizer|1|$dir/words|--tokenizer $dir/words -s 1
bad.model in a foreign format|2|data/stories_val.bin.*not a model.*20240326|-e data/stories_val.bin
bad.folder below a file|2|-o.*/dev/null/x|-o /dev/null/x
bad.file as the folder|2|$dir/token|-o $dir/token
END
}

# ---- ranks started with different files or machines

# mpi_same covers every comparison. This covers messages about files, and warnings.
test_unlike() {
    local file='a file of [0-9]+ bytes, digest [0-9a-f]{16}' what
    begin 'unlike.checkpoints of two runs'
    trains 2 saved -x 1 -n 1
    trains 2 second -l 1e-3 -x 1 -n 1
    wrap='[ $rank != 1 ] || set -- "$@" -o "'$dir/second'";'
    refuses 2 "^train_gpt2_zero: rank 1 \\(host [^ ]+\\) has its manifest.json = $file and rank 0 "\
"\\(host [^ ]+\\) has its manifest.json = $file; it must be" -y 1 -o "$dir/saved"
    end
    begin 'unlike.different build, threads, instruction set: one warning each'
    wrap="[ \$rank != 1 ] || { cp \"\$0\" $dir/built; echo >>$dir/built
        ONEDNN_MAX_CPU_ISA=SSE41 exec $dir/built \"\$@\" --threads 2; };"
    trains 2 noted --dtype fp32
    wrap=
    for what in program threads 'instruction set'; do
        # ONEDNN_MAX_CPU_ISA changes nothing on a CPU without AVX2.
        [ "$what" = 'instruction set' ] && ! grep -qs avx2 /proc/cpuinfo && continue
        is "warnings of $what" "$(grep -cE \
            "^warning: rank 1 .* has $what = .* and rank 0 .* has $what = .*bits" "$dir/noted.screen")" 1
    done
    end
}

# ---- launching

test_launch() {
    local asked sleep threads=$(($(nproc) + 1))
    begin 'launch.waiting threads sleep if the ranks have more threads than there are cores'
    while read -r sleep asked; do
        trains 2 spin OMP_DISPLAY_ENV=verbose -x 1 --threads $threads $asked
        is "ranks that sleep $asked" "$(grep -ac "GOMP_SPINCOUNT = '0'" "$dir/spin.screen")" "$sleep"
    done <<<$'2\n0 OMP_WAIT_POLICY=active'
    screen spin "$threads threads per rank"
    end
    begin 'launch.closed standard input and output are empty files'
    trains 1 closed -n 1 -x 1
    need 'no input: failed' timeout $hang_limit "$trainer" "${data[@]}" -e "$dir/closed" -g 2 --prompts - \
        <&- >"$dir/said" 2>&1
    need 'it read another file' not grep -q 'prompts -' "$dir/said"
    rm -rf "$dir/closed"
    need 'no output: failed' timeout $hang_limit "$trainer" "${data[@]}" "${small[@]}" -o "$dir/closed" \
        >&- 2>"$dir/said"
    is run.lock "$(wc -l <"$dir/closed/run.lock")" 1
    end
    if [ "$(nproc)" -lt 2 ]; then skip 'launch.binding' 'one core'; return; fi
    begin 'launch.a bound rank is reported once'
    # Open MPI 5 does not bind with --oversubscribe.
    need 'failed' mpirun --bind-to core -np 1 "$trainer" "${data[@]}" "${small[@]}" --threads 0 \
        >"$dir/bound.screen" 2>&1
    is reports "$(grep -c 'rank is bound to 1 of' "$dir/bound.screen")" 1
    screen bound ', 1 thread per rank'
    trains 1 unbound --threads 0
    need 'it was reported without binding' not grep -q 'rank is bound' "$dir/unbound.screen"
    end
}

# ---- digests of steps, and scripts/replay.sh, which compares them

digest='"params_hash": "([0-9a-f]{16})"\}$'
# digests RUN: prints the steps of metrics.jsonl that have a digest. digest_of RUN STEP: prints one.
digests() { sed -nE "s/^\{\"step\": ([0-9]+),.*, $digest/\1/p" "$dir/$1/metrics.jsonl" | xargs; }
digest_of() { sed -nE "s/^\{\"step\": $2,.*, $digest/\1/p" "$dir/$1/metrics.jsonl"; }
# replays STATUS PATTERN RUN FROM TO ARGUMENT...: replays a part of a run, and checks the status and a line
replays() {
    TRAINER=$trainer timeout -k 2 $hang_limit scripts/replay.sh "$dir/$3" "${@:4}" >"$dir/replayed" 2>&1 \
        </dev/null
    is "status of the replay ${*:3}" $? "$1"
    has "$dir/replayed" "$2"
}

test_replay() {
    local name pattern arguments data_file="$dir/the \"data\", Ann's.bin"
    local same='--dtype fp32 -x 7 -l 1e-3 --shuffle 0'
    cp data/stories_train.bin "$data_file"
    begin 'replay.--hash-every writes the digest of every second step and of the last, and changes none'
    trains 2 recorded -i "${data_file/the/\\the}" $same -n 2 --hash-every 2
    is 'steps with a digest' "$(digests recorded)" '2 4 6 7'
    is 'the last digest' "$(digest_of recorded 7)" "$(value recorded params_hash)"
    trains 2 plain $same -n 2
    is 'the digest without it' "$(value plain params_hash)" "$(value recorded params_hash)"
    end
    begin 'replay.--stop-after: the learning rate follows -x, and -y 1 continues to the same bits'
    trains 2 stopped $same -n -1 --hash-every 2 --stop-after 3
    screen stopped '^stopped after step 3 of 7; its checkpoint is saved; .* with -y 1 resumes it$'
    is checkpoints "$(checkpoints stopped)" step_00000003
    trains 2 stopped $same -n -1 --hash-every 2 -y 1
    is 'steps with a digest' "$(digests stopped)" '2 4 6 7'
    same_result stopped recorded
    refuses 2 'option --stop-after 6: the checkpoint is already at step 7' --dtype fp32 -x 8 -k cosine \
        -o "$dir/stopped" -y 1 --stop-after 6
    trains 2 unsaved -x 7 --stop-after 3
    screen unsaved '^stopped after step 3 of 7; nothing is saved, because -n is 0$'
    is checkpoints "$(checkpoints unsaved)" 'step_*'
    end
    refused 'replay.--hash-every with a delayed update' 1 \
        'option --hash-every 1: with --delayed-update .*; leave out one of the two$' -o "$dir/late" \
        --hash-every 1 --delayed-update 1 --offload-optimizer cpu --dtype fp32
    # Two micro-batches have one sum, whether they are on one rank or on two.
    while IFS='|' read -r name arguments; do
        begin "replay.equal $name"
        replays 0 '^steps [35] to [467]: equal \([1-3] hash(es)?\)$' recorded $arguments
        end
    done <<END
on the same ranks|2 7
up to a step without a digest|2 5 -np 2
on one rank, with smaller buckets|4 7 -np 1 -- --bucket 1000
END
    begin 'replay.equal on four ranks, of a run with eight micro-batches and --any-ranks'
    trains 2 any $same -d 512 -n 4 --hash-every 2 --any-ranks 1
    replays 0 '^steps 5 to 7: equal \(2 hashes\)$' any 4 7 -np 4 -- -z 1
    end
    begin 'replay.equal on one rank with the threads of the run; OUT keeps its files'
    trains 2 threads $same -n 4 --hash-every 3 --threads 0
    OUT=$dir/replay_kept replays 0 '^steps 5 to 7: equal \(2 hashes\)$' threads 4 7 -np 1
    is threads "$(json_value "$dir/replay_kept/run.json" threads)" \
        "$(json_value "$dir/threads/run.json" threads)"
    end
    begin 'replay.differs with another learning rate'
    replays 1 '^step 4 differs: recorded [0-9a-f]{16}, replayed [0-9a-f]{16}$' recorded 2 7 -- -l 2e-3
    has "$dir/replayed" '^changed since .*/step_00000002: -l 0.001 -> 0.002$'
    end
    begin 'replay.differs with a flipped byte in the data, in a row of step 5'
    flip_byte "$data_file" $((1024 + 2 * (4 * 128 + 20)))
    replays 2 '^train_gpt2_zero: .*option -i .*: shard 0 .* has .* digest .*, but that of' recorded 2 7
    replays 1 '^step 6 differs: .*; equal up to step 4$' recorded 2 7 -- --resume-anyway
    cp data/stories_train.bin "$data_file"
    end
    while IFS='|' read -r name pattern arguments; do
        begin "replay.refused $name"
        replays 2 "^replay.sh: $pattern$" $arguments
        end
    done <<'END'
no checkpoint|.*/step_00000003 is not a complete checkpoint; .* has those of steps: 2 4 6 7|recorded 3 7
no later step|step 4 is not after step 4|recorded 4 4
beyond the run|.*/metrics.jsonl ends at step 7, before step 8|recorded 4 8
no run|.*/none/run.json does not exist, so .*|none 2 4
a run that failed|the replay of .*/recorded from step 2 did not reach step 7|recorded 2 7 -- -b x
END
    begin 'replay.refused a run without digests'
    replays 2 '^replay.sh: .* has no params_hash for steps 3 to 4; --hash-every records them$' plain 2 4
    end
}

# ----

. tests/trainer_tiers.sh
all_groups='resume elastic files outputs hellaswag memory plan prompts options zero_config
            input_files unlike launch replay tiers'
for group in "${@:-$all_groups}"; do
    for g in $group; do
        since=$EPOCHREALTIME
        "test_$g" || failed=$((failed + 1))
        awk "BEGIN { printf \"   $g: %.1f s\\n\", $EPOCHREALTIME - $since }"
    done
done
finish trainer
