#!/usr/bin/env bash
# What it costs to keep model states on NVMe: GPT-2 124M, bf16, 2 ranks of 1 thread, batch 2 x 256, stage 3,
# with clipping in the step. In turn: all in memory, the optimizer's states on NVMe, the parameters too.
# Beside each step stands the longer of its two parts: computing, which is the step in memory, and reading and
# writing, at the rate that fio reaches on the same folder in the same run. Prints medians, and JSON lines to
# build/bench.jsonl.
# Needs fio, and make train_gpt2_zero build/bench/nvme. Fails where the bits differ.
#   dev/bench/offload.sh [FOLDER[,FOLDER..] [ROUNDS [STEPS]]]       build/, 3 rounds of 8 steps
set -eu
cd "$(dirname "$0")/../.."
. scripts/mpi_env.sh
folders=${1:-build} rounds=${2:-3} steps=${3:-8} work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=(-e d12 -b 2 -t 256 -r 1 -z 3 --dtype bf16 --threads 1 -v 0 -s 0 -x "$steps")
declare -A options=([memory]='' [optimizer]="--nvme $folders --offload-optimizer nvme"
    [both]="--nvme $folders --offload-optimizer nvme --offload-param nvme --prefetch 2")

# of the run's summary
field() { sed -nE "s/.*\"$1\": \"?([^\",{}]+).*/\1/p" "$work/run/summary.json" | head -n 1; }
traffic() {
    sed -nE 's/.*"nvme_traffic": \{"read": ([0-9.]+), "written": ([0-9.]+).*/\1 \2/p' \
        "$work/run/summary.json"
}
for round in $(seq "$rounds"); do
    for mode in memory optimizer both; do
        # shellcheck disable=SC2086
        OMP_NUM_THREADS=1 mpirun --oversubscribe --bind-to none -np 2 ./train_gpt2_zero "${model[@]}" \
            ${options[$mode]} -o "$work/run" >"$work/log" || { cat "$work/log"; exit 1; }
        echo "$mode $(field tokens_per_s) $(field params_hash) $(traffic)" >>"$work/runs"
        rm -rf "$work/run"
    done
    build/bench/nvme "$folders" --rounds 3 >"$work/nvme" || { cat "$work/nvme"; exit 1; }
    tail -n 1 "$work/nvme" | awk '{ print "fio", $11 }' >>"$work/runs"     # both at once
done

machine="$(sed -n 's/^model name.*: //p' /proc/cpuinfo | sed 1q), $(nproc) cores"
echo "machine: $machine; $(date +%F); load $(cut -d' ' -f1 /proc/loadavg)"
awk -v tokens=1024 -v out=build/bench.jsonl '
    function median(list, n, i, j, x, t) {
        n = split(list, x, " ")
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && x[j] + 0 < x[j - 1] + 0; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
        return (x[int((n + 1) / 2)] + x[int(n / 2) + 1]) / 2
    }
    function row(mode, name, rate, step, disk, most) {
        rate = median(rates[mode]); step = tokens / rate; disk = moved[mode] / 1e9 / fio
        most = disk > compute ? disk : compute
        printf "%-32s %8.0f %8.2f %9.2f %8.2f %8.2f  %s\n", name, rate, step, compute, disk, step / most,
            hash[mode] == hash["memory"] ? "same" : "DIFFER"
        if (hash[mode] != hash["memory"]) differs = 1
        printf "{\"name\": \"offload-%s\", \"tokens_per_s\": %.1f, \"step_s\": %.3f, \"disk_s\": %.3f}\n",
            mode, rate, step, disk >>out
    }
    $1 == "fio" { disks = disks " " $2; next }
    { rates[$1] = rates[$1] " " $2; hash[$1] = $3; moved[$1] = 2 * ($4 + $5) }
    END {
        fio = median(disks); compute = tokens / median(rates["memory"])
        printf "fio reads and writes %.2f GB/s together\n", fio
        printf "%-32s %8s %8s %9s %8s %8s  bits\n", "model states on NVMe", "tokens/s", "step s", "compute s",
            "disk s", "step/max"
        row("memory", "none"); row("optimizer", "masters and moments")
        row("both", "parameters, masters and moments")
        exit differs
    }' "$work/runs"
