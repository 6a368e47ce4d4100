#!/usr/bin/env bash
# Measures the cost of keeping model states on NVMe: GPT-2 124M, bf16, 2 ranks of 1 thread, batch 2 x 256
# (BATCH=N: N x 256), stage 3, with clipping. These runs alternate: all states in memory, the optimizer states
# on NVMe, the parameters too, and the same with checksums. Two more settings each run with all states in
# memory and with all on NVMe: no clipping, so that the update begins during backward, and a delayed update,
# which runs during the next step. Compares each NVMe step with the longer of its two parts: computation,
# timed as the step in memory, and disk transfers at fio's rate in the same folders. Prints medians, and
# writes JSON lines to build/bench.jsonl.
#   MODES="behind delayed"  runs only these modes; include the run in memory that each is compared with:
#                           memory, unclipped or behind
#   PEERS=/path/to/python   a Python with torch and deepspeed: DeepSpeed ZeRO-3 then alternates with ours,
#                           in the first three modes, in the first folder
# Needs fio and make train_gpt2_zero build/bench/nvme. Fails if the bits differ.
#   dev/bench/offload.sh [FOLDER[,FOLDER..] [ROUNDS [STEPS]]]       build/, 3 rounds of 8 steps
. "$(dirname "$0")/common.sh"
folders=${1:-build} rounds=${2:-3} steps=${3:-8} batch=${BATCH:-2} folder=
modes=${MODES:-memory optimizer both verify unclipped early behind delayed}
trap 'rm -rf "$work" ${folder:+"$folder"}' EXIT
model=(-e d12 -b "$batch" -t 256 -r 1 -z 3 --dtype bf16 --threads 1 -x "$steps")
both="--nvme $folders --offload-optimizer nvme --offload-param nvme --prefetch 2"
declare -A options=([memory]='' [optimizer]="--nvme $folders --offload-optimizer nvme" [both]="$both"
    [verify]="$both --nvme-verify" [unclipped]='--clip 0' [early]="$both --clip 0"
    [behind]='--offload-optimizer cpu --delayed-update 1' [delayed]="$both --delayed-update 1")

ours() {  # MODE
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=1 OMPI_MCA_hwloc_base_binding_policy=none begin_train 2 "${model[@]}" ${options[$1]}
    most VmHWM status
    echo "$1 $(field tokens_per_s) $(field params_hash) $(nvme_traffic) $((peak / 1024))" >>"$work/runs"
}
step_peer() {   # MODE
    local name=deepspeed
    [ "$1" = memory ] || name=deepspeed-$1
    folder=$(mktemp -d "${folders%%,*}/deepspeed.XXXXXX")
    OMP_NUM_THREADS=1 peer $name 900 2 peers.py $name bf16 "$batch" 256 "$steps" "$folder"
    rm -rf "$folder" && folder=
    cat "$work/peer" >>"$out"
    sed -nE "s/.*\"tokens_per_s\": ([0-9.]+).*\"resident_mib\": ([0-9]+).*/deepspeed-$1 \1 - - - \2/p" \
        "$work/peer" >>"$work/runs"
}

for round in $(seq "$rounds"); do
    echo "states on NVMe, round $round of $rounds ..."
    for mode in $modes; do
        ours "$mode"
        case ${peers:+$mode} in memory|optimizer|both) step_peer "$mode" ;; esac
    done
    build/bench/nvme "$folders" --rounds 3 >"$work/nvme" || or "$work/nvme"
    tail -n 1 "$work/nvme" | awk '{ print "fio", $11 }' >>"$work/runs"     # both at once
done

print_machine
sort -k1,1 -k2,2n "$work/runs" | awk -v tokens=$((2 * batch * 256)) -v out="$out" '
    function median(list, n, x) {       # of a sorted list
        n = split(list, x, " ")
        return (x[int((n + 1) / 2)] + x[int(n / 2) + 1]) / 2
    }
    # base: the run in memory with the same computation
    function row(mode, name, base, rate, compute, step, disk, most) {
        if (!(mode in rates) || !(base in rates)) return
        rate = median(rates[mode]); compute = tokens / median(rates[base])
        step = tokens / rate; disk = moved[mode] / 1e9 / fio
        most = disk > compute ? disk : compute
        printf "%-36s %8.0f %7.2f %9.2f %7.2f %8.2f %12d  %s\n", name, rate, step, compute, disk,
            step / most, resident[mode], hash[mode] == hash[base] ? "same" : "DIFFER"
        if (hash[mode] != hash[base]) differs = 1
        printf "{\"name\": \"offload-%s\", \"tokens_per_s\": %.1f, \"step_s\": %.3f, \"disk_s\": %.3f, " \
            "\"resident_mib\": %d}\n", mode, rate, step, disk, resident[mode] >>out
    }
    function peer_row(mode, name, rate, ratio) {
        if (!(("deepspeed-" mode) in rates)) return
        rate = median(rates["deepspeed-" mode]); ratio = median(rates[mode]) / rate
        printf "%-36s %8.0f %7.2f %39d  ours: %.2f times as fast, %.0f %% of the memory\n", name, rate,
            tokens / rate, resident["deepspeed-" mode], ratio,
            100 * resident[mode] / resident["deepspeed-" mode]
        printf "{\"name\": \"offload-%s-to-deepspeed\", \"ratio\": %.3f}\n", mode, ratio >>out
    }
    $1 == "fio" { disks = disks " " $2; next }
    {
        rates[$1] = rates[$1] " " $2; hash[$1] = $3; moved[$1] = 2 * ($4 + $5)
        if ($6 > resident[$1] + 0) resident[$1] = $6
    }
    END {
        fio = median(disks)
        printf "fio reads and writes %.2f GB/s together\n", fio
        printf "%-36s %8s %7s %9s %7s %8s %12s  bits\n", "model states on NVMe", "tokens/s", "step s",
            "compute s", "disk s", "step/max", "resident MiB"
        row("memory", "none", "memory")
        row("optimizer", "masters, moments", "memory")
        row("both", "parameters, masters, moments", "memory")
        row("verify", "the same, with checksums", "memory")
        row("unclipped", "none; no clipping", "unclipped")
        row("early", "all three; no clipping", "unclipped")
        row("behind", "none; delayed update", "behind")
        row("delayed", "all three; delayed update", "behind")
        peer_row("memory", "DeepSpeed: none")
        peer_row("optimizer", "DeepSpeed: masters, moments")
        peer_row("both", "DeepSpeed: parameters too")
        exit differs
    }'
