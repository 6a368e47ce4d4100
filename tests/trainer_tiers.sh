# Model states in files, as a user meets them. Sourced by tests/trainer.sh, whose functions it uses.

tiers_folder=$disk/nvme
files() { ls "$tiers_folder" 2>/dev/null; }
on_nvme=(--nvme "$tiers_folder" --offload-optimizer nvme --offload-param nvme)

tiers_same_bits() {
    local nvme="--nvme $tiers_folder" both="--offload-optimizer nvme --offload-param nvme" dtype np
    mkdir -p "$tiers_folder"
    for dtype in fp32 bf16; do
        np=$([ $dtype = fp32 ] && echo 1 || echo 2)
        same "tiers.bits, $dtype, $np ranks" "$np" "--dtype $dtype -d 512 --clip 0.5 -z 3" '' "$nvme $both" \
            "$nvme $both --overlap 1 --prefetch 3 --nvme-verify" \
            "$nvme --offload-optimizer nvme --offload-ratio 0.5 --sub-group-size 2048" \
            "$nvme $both --offload-gradients nvme --overlap 1 --sub-group-size 2048" \
            "$nvme --offload-param nvme --max-in-cpu 20000" '--offload-optimizer cpu --offload-param cpu'
    done
    same 'tiers.bits, an update that begins during backward' 2 '-z 3 --dtype bf16 -d 512 --clip 0' '' \
        "$nvme $both" "$nvme $both --offload-gradients nvme --overlap 1 --sub-group-size 2048"
    same 'tiers.bits, a delayed update' 2 '-z 3 --dtype bf16 -d 512 -x 6 --delayed-update 3' \
        '--offload-optimizer cpu' "$nvme $both --overlap 1" "$nvme $both --offload-gradients nvme -sg 1e9"
    same 'tiers.bits, a step that is skipped' 2 '-z 2 --dtype bf16 -x 6 -sg 0.1' '' \
        "$nvme --offload-optimizer nvme"
    begin 'tiers.no file is left'
    need "$(files)" [ -z "$(files)" ]
    end
}

tiers_checkpoints() {
    local common=(-z 3 -k constant)
    begin 'tiers.a checkpoint goes from files to memory and back'
    need 'did not run' train 2 whole "${common[@]}" -x 6
    need 'did not run on NVMe' train 2 moved "${common[@]}" -x 2 -n 2 "${on_nvme[@]}"
    need 'does not resume in memory' train 2 moved "${common[@]}" -x 4 -n 2 -y 1
    need 'it did not start at step 2' grep -q 'resuming at step 2' "$dir/moved.screen"
    need 'does not resume on NVMe' train 2 moved "${common[@]}" -x 6 -n 2 -y 1 "${on_nvme[@]}"
    need 'it did not start at step 4' grep -q 'resuming at step 4' "$dir/moved.screen"
    need "$(result moved), without a break $(result whole)" [ "$(result moved)" = "$(result whole)" ]
    end
}

tiers_delayed() {
    local delayed=(-z 3 -k constant -n 2 --delayed-update 2 --offload-optimizer cpu)
    begin 'tiers.a run with delayed updates resumes with its bits'
    need 'did not run' train 2 whole "${delayed[@]}" -x 6
    need 'did not run in two parts' train 2 moved "${delayed[@]}" -x 4
    need 'does not resume' train 2 moved "${delayed[@]}" -x 6 -y 1
    need 'it did not start at step 4' grep -q 'resuming at step 4' "$dir/moved.screen"
    need "$(result moved), without a break $(result whole)" [ "$(result moved)" = "$(result whole)" ]
    need 'did not run without delay' train 2 prompt "${delayed[@]}" -x 6 --delayed-update 7
    need 'a delay changes nothing' [ "$(result prompt)" != "$(result whole)" ]
    end
}

tiers_in_tables() {
    local all written day
    begin 'tiers.the table, the plan and the summary'
    need 'did not run' train 2 tabled -e l4h4c256v257t32 --dtype bf16 -z 3 "${on_nvme[@]}"
    need 'no plan' plan tiers_plan -e l4h4c256v257t32 --dtype bf16 -z 3 "${on_nvme[@]}" --plan-ranks 2
    need 'the plan has another table' [ "$(memory_table tiers_plan)" = "$(memory_table tabled)" ]
    need 'nothing is on NVMe' grep -qE 'master weights +[0-9.]+  on NVMe' "$dir/tabled.screen"
    need 'the summary has no bytes on NVMe' number "$(value tabled nvme_bytes) > 1e6"
    need 'what is moved is not told' grep -qE '^NVMe, per rank and step: [0-9.]+ MiB read' \
        "$dir/tabled.screen"
    all=$(sed -nE 's/^NVMe .* all ranks write ([0-9.]+)$/\1/p' "$dir/tabled.screen")
    written=$(value tabled written_by_all_ranks)
    need "both ranks write ${all:-?} MiB a step in the start table, ${written:-?} bytes in the summary" \
        number "${all:-0} > 0 && (${written:-0} / 1048576 - ${all:-0}) ^ 2 < 0.01 ^ 2"
    day=$(value tabled written_tb_a_day)
    need "that is ${day:-?} TB a day" number "(${day:-0} / (${written:-1} * 864e-10 * \
        $(value tabled tokens_per_s) / 128) - 1) ^ 2 < 1e-6"
    need 'they are not printed' grep -qE "^NVMe, all ranks: $all MiB written a step, [0-9.e+-]+ TB a day" \
        "$dir/tabled.screen"
    need 'without files of rank 0 it did not run' train 2 tabled -e l4h4c128v257t64 -z 2 \
        --offload-optimizer nvme --nvme "$tiers_folder" --offload-ratio 0.015
    need 'the table is without NVMe' grep -q '^NVMe       nothing of rank 0; .*all ranks write 0.0[1-9]' \
        "$dir/tabled.screen"
    end
}

# A disk of 8 MiB at $dir/small.
mount_small_disk() {
    mkdir -p "$dir/small" && truncate -s 8M "$dir/image" &&
        { mkfs.ext4 -q "$dir/image" && mount -o loop "$dir/image" "$dir/small"; } 2>/dev/null
}

tiers_refusals() {
    refused 'tiers.no folder' 0 'offload.nvme' '--nvme' -- -z 3 --offload-optimizer nvme
    refused 'tiers.a folder that is not there' 2 "$dir/nowhere" 'there is no folder' -- -z 3 \
        --offload-optimizer nvme --nvme "$dir/nowhere"
    refused 'tiers.a stage without shards' 0 'offload.optimizer' -- -z 0 --offload-optimizer nvme --nvme \
        "$tiers_folder"
    wrap='ulimit -v 400000;'
    refused 'tiers.more memory than a limit leaves' 0 'RLIMIT_AS is' 'MiB of host memory' -- -z 3 -e d12 \
        --dtype fp32 -b 1 -t 64
    wrap=
    if ! mkdir -p "$dir/small" || ! mount -t tmpfs -o size=1m tiers "$dir/small" 2>/dev/null; then
        skip 'tiers.a folder in memory' 'a tmpfs cannot be mounted here'
        return
    fi
    refused 'tiers.a folder in memory' 2 "names $dir/small, where files are in memory \(tmpfs\)" '--nvme' -- \
        -z 3 --offload-optimizer nvme --nvme "$dir/small"
    umount "$dir/small"
    if ! mount_small_disk; then
        skip 'tiers.a disk that is full' 'a file system cannot be made here'
        return
    fi
    refused 'tiers.a disk that is full' 2 "$dir/small" 'No space left' -- -z 3 -e l4h4c256v257t32 \
        --offload-optimizer nvme --nvme "$dir/small"
    umount "$dir/small"
}

# long_run NAME NP ARGUMENT...: in the background, until it has done 20 steps; sets job.
long_run() {
    local screen=$dir/$1 np=$2
    shift 2
    rm -f "$dir"/pid.* "$screen"
    run "$np" 60 "${small[@]}" -x 1000000 "$@" >"$screen" 2>&1 & job=$!
    wait_for_steps "$screen"
}

tiers_faults() {
    local pids bytes
    begin 'tiers.a second job in the same folder'
    need 'the first did not start' long_run tiers_first 2 -z 3 "${on_nvme[@]}"
    pids=("$(cat "$dir/pid.0")" "$(cat "$dir/pid.1")")
    need 'the second was not refused' not train 1 tiers_second -z 3 "${on_nvme[@]}" >/dev/null
    need "the second does not name process ${pids[0]}: $(tail -n 1 "$dir/tiers_second.screen")" \
        grep -qE "$tiers_folder.*${pids[0]}" "$dir/tiers_second.screen"
    need "of the first there is only $(files)" [ "$(files | wc -l)" = 2 ]
    end
    begin 'tiers.a killed run leaves nothing but locks, and the next one starts'
    kill -KILL "${pids[@]}"; wait $job
    bytes=$(du -s --apparent-size -B 1 "$tiers_folder" | cut -f 1)
    need "it left $bytes bytes: $(files)" [ "$bytes" -lt 10000 ]
    need 'the next did not run' train 2 tiers_second -z 3 "${on_nvme[@]}"
    need "left: $(files)" [ -z "$(files)" ]
    end
}

# The states are larger than what the run may take in memory.
tiers_memory() {
    local most table
    if ! grep -qs '^Pss:' /proc/self/smaps_rollup; then skip tiers.memory 'no smaps_rollup'; return; fi
    begin 'tiers.what the system sees is what was promised'
    need 'did not run' pss 2 held -e l6h8c512v257t32 -b 1 -x 4 --dtype bf16 -z 3 --hash params \
        --sub-group-size 65536 "${on_nvme[@]}"
    most=$peak
    table=$(sed -nE 's/.*on NVMe, ([0-9.]+) MiB in memory.*/\1/p' "$dir/held.screen")
    echo "   Pss of a rank at most $most KiB, $table MiB in memory, $(value held nvme_bytes) bytes on NVMe"
    need "a rank takes $most KiB, the table has $table MiB in memory" \
        number "$most <= 1024 * ($table * 1.05 + 64)"
    need 'the states are in memory' number "$most * 1024 < $(value held model_state_bytes)"
    end
}

# make_group MIB: a cgroup of version 1 or 2 that may take so much memory, and no swap beside it; sets cgroup.
# The trainer's ranks join it by $wrap.
make_group() {
    local bytes=$(($1 << 20)) top=/sys/fs/cgroup/memory limit=memory.limit_in_bytes
    local swap=memory.memsw.limit_in_bytes most=$bytes          # version 1 counts memory and swap together
    if [ ! -e $top/$limit ]; then top=/sys/fs/cgroup limit=memory.max swap=memory.swap.max most=0; fi
    cgroup=$top/llmc_zero_test_$$
    mkdir "$cgroup" 2>/dev/null || return 1
    trap 'remove_group; rm -rf "$dir" "$disk"' EXIT
    { echo $bytes >"$cgroup/$limit"; } 2>/dev/null || return 1
    [ ! -e "$cgroup/$swap" ] || echo $most >"$cgroup/$swap"
}
# What has just ended leaves a group a little later.
remove_group() {
    local tries=50
    until [ ! -d "$cgroup" ] || rmdir "$cgroup" 2>/dev/null; do
        [ $((tries--)) -gt 0 ] || return 1
        sleep 0.1
    done
}

# Runs join $cgroup.
# shellcheck disable=SC2016
in_group() { wrap="echo \$\$ >'$cgroup/cgroup.procs';"; }

# advice: the last refusal's sets of options, each behind its MiB, with a folder that is there.
advice() { sed -nE "s,FOLDER,$tiers_folder,; s/^  (-.*) \(([0-9]+) of [0-9]+ MiB.*/\2 \1/p" "$dir/refused"; }

# advised NP ARGUMENT...: the last refusal lists two sets of options, and the plan of each has its MiB.
advised() {
    local np=$1 mib options planned
    shift
    need "not two sets of options: $(cat "$dir/message")" [ "$(advice | wc -l)" = 2 ]
    while read -r mib options; do
        # shellcheck disable=SC2086
        need "no plan with $options" plan advised "$@" --plan-ranks "$np" $options
        planned=$(sed -nE 's/.*on NVMe, ([0-9.]+) MiB in memory.*/\1/p' "$dir/advised.screen")
        planned=${planned:-$(table advised together)}
        need "$options takes $planned MiB, not $mib" number "($mib - $planned) ^ 2 < 0.4"
    done < <(advice)
}

# GPT-2 with 1.5 and 0.4 billion parameters, whose states take 24 and 5.5 GB.
tiers_advice() {
    local model limit large
    while read -r model limit; do
        large=(-e "$model" -b 8 --dtype bf16)
        make_group "$limit"
        in_group
        refused "tiers.$model in $limit MiB" 0 'What would fit:$' -- "${large[@]}"
        begin "tiers.what is advised for $model in $limit MiB fits"
        advised 1 "${large[@]}"
        end
        wrap=
        remove_group
    done <<<'d48 3000
d24 2048'
}

# A model whose states need more than a cgroup allows. In memory it is refused; a run that does not see the
# limit, in a cgroup namespace, is killed. On NVMe it trains there, with each of the sets of options that the
# refusal advises.
tiers_capped() {
    local limit=160 model=(-e l8h8c384v257t32 -b 1 -x 3 --dtype bf16 -z 3) table options
    if ! make_group $limit; then
        skip 'tiers.a cgroup with too little memory' 'a cgroup with a memory limit cannot be made here'
        [ ! -d "$cgroup" ] || remove_group
        return
    fi
    begin 'tiers.the run that has all the memory it needs'
    need 'did not run' train 2 uncapped "${model[@]}"
    table=$(table uncapped together)
    need "2 ranks of $table MiB would fit into $limit" number "2 * $table > $limit"
    end
    in_group
    refused 'tiers.a cgroup with too little memory' 2 \
        "the cgroup's limit \(memory.*llmc_zero_test_$$\) is $limit.0 MiB" 'of host memory' \
        'would fit:$' -- "${model[@]}"
    begin 'tiers.what is advised runs'
    advised 2 "${model[@]}"
    while read -r _ options; do
        # shellcheck disable=SC2086
        need "$options: did not run" train 2 advised "${model[@]}" $options
        case $options in *-t*) continue ;; esac
        need "$options: other bits" [ "$(result advised)" = "$(result uncapped)" ]
    done < <(advice)
    end
    refused 'tiers.a model that no options make fit' 0 'would fit: nothing, at any stage' -- -e d48
    if mount_small_disk; then
        refused 'tiers.a disk with too little room' 2 'would fit:$' -- "${model[@]}" --nvme "$dir/small"
        begin 'tiers.another disk is advised'
        need "$(cat "$dir/refused")" grep -aq '^  .*--nvme FOLDER.* MiB on NVMe)$' "$dir/refused"
        end
        umount "$dir/small"
    else
        skip 'tiers.a disk with too little room' 'a file system cannot be made here'
    fi
    wrap="$wrap exec unshare --cgroup \"\$0\" \"\$@\";"
    if unshare --cgroup true 2>/dev/null; then
        begin 'tiers.the kernel kills a run in memory that does not see the limit'
        need 'it ran' not train 2 killed "${model[@]}" >/dev/null
        need "$(tail -n 3 "$dir/killed.screen")" grep -aqE 'signal 9|Killed' "$dir/killed.screen"
        end
    else
        skip 'tiers.the kernel kills a run in memory' 'unshare --cgroup does not work here'
    fi
    in_group
    begin 'tiers.states on NVMe train where the run in memory cannot'
    need 'did not run' train 2 capped "${model[@]}" "${on_nvme[@]}" --sub-group-size 65536
    need "$(result capped), without a limit $(result uncapped)" [ "$(result capped)" = "$(result uncapped)" ]
    need "left: $(files)" [ -z "$(files)" ]
    wrap=
    need 'its cgroup is not empty' remove_group
    end
    tiers_advice
}

test_tiers() {
    tiers_same_bits
    tiers_checkpoints
    tiers_delayed
    tiers_in_tables
    tiers_refusals
    tiers_faults
    tiers_memory
    tiers_capped
}
