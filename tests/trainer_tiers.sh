# Tests runs with model states on NVMe. Sourced by tests/trainer.sh; uses its functions.
# shellcheck disable=SC2016,SC2086

tiers_folder=$disk/nvme
mkdir "$tiers_folder"
files() { ls "$tiers_folder" 2>/dev/null; }
on_nvme=(--nvme "$tiers_folder" --offload-optimizer nvme --offload-param nvme)
in_memory_mib() { sed -nE 's/.*on NVMe, ([0-9.]+) MiB in memory.*/\1/p' "$dir/$1.screen"; }

tiers_in_tables() {
    local all written day float='[0-9.e+-]+'
    begin 'tiers.the table and the summary'
    trains 2 tabled -e l4h4c256v257t32 --dtype bf16 -z 3 "${on_nvme[@]}"
    need 'the summary has no bytes on NVMe' number "$(value tabled nvme_bytes) > 1e6"
    all=$(sed -nE 's/^NVMe .* all ranks write ([0-9.]+)$/\1/p' "$dir/tabled.screen")
    screen tabled 'master weights +[0-9.]+  on NVMe' '^NVMe, per rank and step: [0-9.]+ of [0-9.]+ MiB read' \
        "^NVMe, all ranks: ${all:-none} MiB written per step, $float TB per day"
    written=$(value tabled written_by_all_ranks)
    need "written per step: ${all:-?} MiB in the start table, ${written:-?} bytes in the summary" \
        number "${all:-0} > 0 && (${written:-0} / 1048576 - ${all:-0}) ^ 2 < 0.01 ^ 2"
    day=$(value tabled written_tb_a_day)
    need "written per day: ${day:-?} TB" number "(${day:-0} / (${written:-1} * 864e-10 * \
        $(value tabled tokens_per_s) / 128) - 1) ^ 2 < 1e-6"
    trains 2 tabled -e l4h4c128v257t64 -z 2 --offload-optimizer nvme --nvme "$tiers_folder" \
        --offload-ratio 0.015
    screen tabled '^NVMe       rank 0 has no files; .*all ranks write 0.0[1-9]'
    end
}

# test_file and test_room cover the folders and the limits. This covers the messages.
tiers_refusals() {
    local on="--offload-optimizer nvme --nvme"
    refusals <<END
tiers.no folder|1|offload.nvme: no folder.*--nvme|-z 3 --offload-optimizer nvme
tiers.a missing folder|2|there is no folder .*nowhere.*--nvme|-z 3 $on $dir/nowhere
tiers.a stage without shards|1|offload.optimizer|-z 0 $on $tiers_folder
END
}

# make_group MIB: makes a cgroup (version 1 or 2) limited to MIB of memory and no swap, and sets cgroup. Sets
# wrap so that the trainer's ranks join the cgroup.
make_group() {
    local bytes=$(($1 << 20)) top=/sys/fs/cgroup/memory limit=memory.limit_in_bytes
    local swap=memory.memsw.limit_in_bytes most=$bytes          # version 1 limits memory plus swap
    if [ ! -e $top/$limit ]; then top=/sys/fs/cgroup limit=memory.max swap=memory.swap.max most=0; fi
    cgroup=$top/llmc_zero_test_$$
    mkdir "$cgroup" 2>/dev/null || return 1
    trap 'remove_group; rm -rf "$dir" "$disk"' EXIT
    { echo $bytes >"$cgroup/$limit"; } 2>/dev/null || return 1
    [ ! -e "$cgroup/$swap" ] || echo $most >"$cgroup/$swap"
    wrap="echo \$\$ >'$cgroup/cgroup.procs';"
}
group_is_gone() { [ ! -d "$cgroup" ] || rmdir "$cgroup" 2>/dev/null; }
remove_group() {
    wrap=
    await group_is_gone         # processes leave their group shortly after they exit
}

# advice: prints lines "MIB OPTIONS" from the last refusal, with an existing folder for FOLDER
advice() { sed -nE "s,FOLDER,$tiers_folder,; s/^  (-.*) \(([0-9]+) of [0-9]+ MiB.*/\2 \1/p" "$dir/refused"; }

# advised NP ARGUMENT...: checks that the last refusal lists two sets of options, with the MiB of their plans
advised() {
    local np=$1 mib options planned
    shift
    is "sets of options in $(<"$dir/message")" "$(advice | wc -l)" 2
    while read -r mib options; do
        need "no plan with $options" plan advised "$@" --plan-ranks "$np" $options
        planned=$(in_memory_mib advised)
        planned=${planned:-$(table advised together)}
        need "$options takes $planned MiB, not $mib" number "($mib - $planned) ^ 2 < 0.4"
    done < <(advice)
}

# The states exceed a cgroup's limit. With states in memory the run is refused. With states on NVMe, or with
# any advised set of options, it trains.
tiers_capped() {
    # An advised run takes 152 MiB by its plan; the rest is for the processes and the checkpoints' buffers.
    local limit=192 model=(-e l8h8c384v257t32 -b 1 -x 2 --dtype bf16 -z 3) table options joined
    if ! make_group $limit; then
        skip 'tiers.a cgroup with too little memory' 'a cgroup with a memory limit cannot be made here'
        remove_group
        return
    fi
    joined=$wrap wrap=
    begin 'tiers.a run without the limit'
    trains 2 uncapped "${model[@]}"
    table=$(table uncapped together)
    need "2 ranks of $table MiB would fit into $limit" number "2 * $table > $limit"
    end
    wrap=$joined
    refused 'tiers.a cgroup with too little memory' 2 \
        "the cgroup's limit \(memory.*llmc_zero_test_$$\) is $limit.0 MiB.*would fit:$" "${model[@]}" \
        -o "$dir/saved"
    begin 'tiers.the advised options run'
    advised 2 "${model[@]}"
    while read -r _ options; do
        trains 2 advised "${model[@]}" $options
        case $options in *-t*) ;; *) same_result advised uncapped ;; esac
    done < <(advice)
    end
    refused 'tiers.a model that does not fit with any options' 1 'would fit: nothing, at any stage' -e d48
    mkdir "$dir/small"
    truncate -s 8M "$dir/image"
    if { mkfs.ext4 -q "$dir/image" && mount -o loop "$dir/image" "$dir/small"; } 2>/dev/null; then
        refused 'tiers.a disk with too little space' 2 'would fit:$' "${model[@]}" \
            --offload-param nvme --nvme "$dir/small"
        begin 'tiers.the message advises another disk'
        has "$dir/refused" '^  .*--nvme FOLDER.* MiB on NVMe\)$'
        end
        umount "$dir/small"
    else
        skip 'tiers.a disk with too little space' 'a file system cannot be made here'
    fi
    begin 'tiers.with states on NVMe, the run trains under the limit'
    trains 2 capped "${model[@]}" "${on_nvme[@]}" --sub-group-size 65536
    same_result capped uncapped
    is files "$(files)" ''
    need 'its cgroup is not empty' remove_group
    end
    begin 'tiers.a run trains within what its plan needs, and 8 MiB'
    model=(-e l1h12c768v257t128 -b 1 -x 3 --dtype fp32 --threads 1)
    limit=$("$trainer" "${small[@]}" "${model[@]}" --plan --plan-ranks 2 -o "$dir/saved" |
        sed -nE 's/.*it needs ([0-9]+) MiB per rank, of which the process itself.*/\1/p')
    need 'no plan or no cgroup' make_group $((2 * limit + 8))
    trains 2 exact "${model[@]}"
    need 'its cgroup is not empty' remove_group
    end
}

# A run that is refused trains with each set of options that the message lists.
refused_and_advised() {
    local options
    cp "$dir/limited.screen" "$dir/refused"
    one_message 'What would fit:|less than the 16 MiB of memory that oneDNN may need'
    is steps "$(grep -c '^step ' "$dir/refused")" 0
    while read -r _ options; do trains 1 advised "$@" $options; done < <(advice)
}
# Under any limit on its address space a run trains, or is refused before its first step.
tiers_limited() {
    local limit trained=0 refused=0
    local model=(-e l19h4c256v2000t64 -b 1 -x 1 -n 1 -z 0 --dtype fp32 --threads 2)
    for limit in {190..640..225}000; do
        (ulimit -v $limit && exec "$trainer" --version) >/dev/null 2>&1 || continue
        begin "tiers.ulimit -v $limit"
        wrap="ulimit -v $limit;"
        if train 1 limited "${model[@]}" >/dev/null; then
            trained=$((trained + 1))
        else
            refused=$((refused + 1))
            refused_and_advised "${model[@]}"
        fi
        end
    done
    begin 'tiers.ulimit -d: smaller units, where nothing else fits'
    wrap='ulimit -d 218000;' model=(-e l4h8c512v257t32 -b 1 -x 1 -n 1 -z 0 --dtype fp32 --threads 1)
    need 'it was not refused' not train 1 limited "${model[@]}" >/dev/null
    refused_and_advised "${model[@]}"
    need 'no smaller units' grep -q -- '--units matrix' <(advice)
    end
    wrap=
    begin "tiers.ulimit -v: $refused limits refused the run"
    [ $((trained + refused)) = 0 ] || need "$trained trained" [ $trained -gt 0 -a $refused -gt 0 ]
    end
}

test_tiers() {
    local part
    for part in in_tables refusals limited capped; do tiers_$part; done
}
