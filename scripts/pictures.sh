#!/usr/bin/env bash
# Draws the pictures of the tutorial as SVG into docs/tutorial/pictures/, from runs of the trainer on this
# machine, which take about a minute. dev/pictures/draw.pl reads all values from --plan, from the runs'
# folders and from their traces. Three pictures need a slow network: a private loopback device limited by tc,
# for which unshare and iproute2 suffice, without root.
# Usage: scripts/pictures.sh [NAME...]     NAME: four_stages, memory_by_stage, shard_map, buckets_timeline,
# sawtooth, same_loss, overlap_timeline or states_on_disk; default: all of them
set -eu
cd "$(dirname "$0")/.."
. scripts/mpi_env.sh
fail() { echo "pictures.sh: $*" >&2; exit 1; }
[ -x train_gpt2_zero ] || fail 'train_gpt2_zero does not exist: make train_gpt2_zero'
work=build/pictures out=docs/tutorial/pictures
mkdir -p "$work" "$out"
# Settings that would otherwise depend on the machine
fixed=(--device cpu --dtype fp32 --threads 1 -v 0 -s 0 -n 0)

# run FOLDER RANKS OPTION...: trains in a new folder, with a trace
run() {
    local folder=$work/$1 ranks=$2
    shift 2
    rm -rf "$folder" && mkdir -p "$folder"
    "${slow[@]}" mpirun --oversubscribe -np "$ranks" ./train_gpt2_zero "${fixed[@]}" -o "$folder" \
        --trace "$folder/trace.json" "$@" >"$folder/screen" 2>&1 </dev/null ||
        fail "a run failed: $(grep -a '^train_gpt2_zero: ' "$folder/screen" || tail -n 3 "$folder/screen")"
}
slow=(env)
export rate=1gbit           # also in the pictures' titles
# The same over TCP at that rate, both directions together
run_slowly() {
    command -v tc >/dev/null || fail 'tc is missing: apt-get install iproute2'
    slow=(unshare -rn sh -c "ip link set lo up &&
        tc qdisc add dev lo root tbf rate $rate burst 256kb latency 100ms && exec \"\$@\"" sh)
    OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo run "$@" --messages 1
    slow=(env)
}
plan() {            # STAGE RANKS: plans d12 in bf16
    mkdir -p "$work/plan"
    ./train_gpt2_zero --plan -e d12 -b 4 --device cpu --dtype bf16 -z "$1" --plan-ranks "$2" \
        >"$work/plan/stage$1.ranks$2" || fail "no plan of stage $1 for $2 ranks"
}

timed=(-e l8h4c128v257t64 -b 32 -x 15)      # for the traces: the model of lessons 5 and 6
draw() {
    perl dev/pictures/draw.pl "$1" "$work" >"$work/$1.svg" || fail "$1 could not be drawn"
    mv "$work/$1.svg" "$out" && echo "$out/$1.svg"
}
runs_of() {
    local n stage
    case $1 in
    four_stages) for stage in 0 1 2 3; do plan $stage 4; done ;;
    memory_by_stage) for stage in 0 1 2 3; do for n in 1 2 3 4 5 6 7 8; do plan $stage $n; done; done ;;
    shard_map) run shard_map 4 -e l2h1c16v257t32 -b 2 -x 1 -n 1 ;;
    buckets_timeline)
        run_slowly buckets1 2 "${timed[@]}" -z 2 --overlap 1
        run_slowly buckets3 2 "${timed[@]}" -z 2 --overlap 1 --bucket 400000 ;;
    sawtooth) run_slowly sawtooth 2 "${timed[@]}" -z 3 --overlap 1 --prefetch 1 ;;
    same_loss) for stage in 0 1 2 3; do run loss$stage 2 -z $stage -x 150 -u 20; done ;;
    overlap_timeline)
        run_slowly overlap0 2 "${timed[@]}" -z 3 --overlap 0
        run_slowly overlap1 2 "${timed[@]}" -z 3 --overlap 1 ;;
    states_on_disk)
        mkdir -p "$work/nvme"
        run states_on_disk 2 -e l6h6c384v4096t128 -b 2 -x 20 -z 3 --dtype bf16 --nvme "$work/nvme" \
            --offload-optimizer nvme --offload-param nvme ;;
    *) fail "there is no picture $1" ;;
    esac
}
[ $# -gt 0 ] || set -- four_stages memory_by_stage shard_map buckets_timeline sawtooth same_loss \
    overlap_timeline states_on_disk
for name in "$@"; do
    runs_of "$name"
    draw "$name"
done
