# Sourced by the benchmarks: changes to the project's root, creates $work for a run's files, and defines
# functions for runs and medians.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. scripts/mpi_env.sh
. tests/hosts.sh
export DS_ACCELERATOR=cpu
peers=${PEERS:-} out=build/bench.jsonl work=$(mktemp -d)
trap 'rm -rf "$work"; [ $hosts_n = 0 ] || hosts_end' EXIT
trap 'exit 1' INT TERM
mkdir -p build

record() { printf '%s\n' "$1" >>"$out"; }
has() { if grep -qw "$1" /proc/cpuinfo; then echo ", $2"; fi; }
machine="$(sed -n 's/^model name.*: //p' /proc/cpuinfo | sed 1q), $(nproc --all) "\
"cores$(has avx512_bf16 'AVX-512 BF16')$(has amx_bf16 AMX)"
print_machine() { echo "machine: $machine; $(date +%F); load $(cut -d' ' -f1 /proc/loadavg)"; }
# or FILE: after a failed command, prints the file and exits
or() { cat "$1"; exit 1; }
# begin_train NP OPTION...: starts the trainer in the background, with -o $work/run; sets job. field KEY:
# prints a value from its summary. nvme_traffic: prints the bytes that a rank reads and writes in a step
begin_train() {
    rm -rf "$work/run"   # a new run needs an empty folder
    mpirun --oversubscribe -np "$1" ./train_gpt2_zero "${@:2}" -v 0 -s 0 -n 0 -o "$work/run" \
        >"$work/log" & job=$!
}
train() { begin_train "$@"; wait $job || or "$work/log"; }
field() { sed -nE "s/.*\"$1\": \"?([^\",{}]+).*/\1/p" "$work/run/summary.json" | head -n 1; }
nvme_traffic() {
    sed -nE 's/.*"nvme_traffic": \{"read": ([0-9.]+), "written": ([0-9.]+).*/\1 \2/p' \
        "$work/run/summary.json"
}
# two_hosts RATE: makes two hosts (tests/hosts.sh), each with half of the cores, that send at this rate; on
# failure returns 1 and sets hosts_why. on_hosts PROGRAM ARGUMENT...: runs the program with a rank on each
two_hosts() {
    hosts_make 2 || return 1
    [ "$(env -u OMP_NUM_THREADS nproc)" = 1 ] || hosts_cores=$(($(env -u OMP_NUM_THREADS nproc) / 2))
    hosts_rsh >"$work/rsh" && chmod +x "$work/rsh"
    hosts_limit "$1" 2>"$work/why" && return
    hosts_why="tc (iproute2) cannot limit the network to $1: $(head -n 1 "$work/why")"
    return 1
}
on_hosts() {
    (hosts_run 0 timeout 580 mpirun --mca plm_rsh_agent "$work/rsh" --mca plm_rsh_no_tree_spawn 1 -np 2 \
        --host 10.77.7.1:1,10.77.7.2:1 --bind-to none "$(realpath "$1")" "${@:2}" </dev/null)
}
# most KEY FILE: samples a key in the ranks' /proc/PID/FILE until the job ends; sets peak to the maximum (KiB)
most() {
    local pid kib
    peak=0
    while kill -0 $job 2>/dev/null; do
        for pid in $(pgrep -P $job -f '^./train_gpt2_zero' || true); do
            kib=$(awk -v key="$1:" '$1 == key { print $2 }' "/proc/$pid/$2" 2>/dev/null || true)
            [ "${kib:-0}" -le $peak ] || peak=$kib
        done
        sleep 0.1
    done
    wait $job || or "$work/log"
}
# Prints the median of the input's numbers, one per line.
median() {
    sort -n | awk '{ x[NR] = $1 } END { if (NR) print (x[int((NR + 1) / 2)] + x[int(NR / 2) + 1]) / 2 }'
}
# peer NAME SECONDS RANKS PROGRAM ARGUMENT...: runs a PyTorch program; writes its JSON lines to $work/peer.
# DeepSpeed's first run takes minutes, because it compiles its kernels.
peer() {
    PATH="$(dirname "$peers"):$PATH" timeout "$2" "$peers" -m torch.distributed.run --nproc-per-node "$3" \
        "dev/bench/$4" "${@:5}" 2>"$work/err" | grep '^{' >"$work/peer" ||
        { echo "peer $1 failed:"; tail -n 3 "$work/err"; }
}
