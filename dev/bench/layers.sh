#!/usr/bin/env bash
# Compares --accumulate layers with batches on CPUs, 2 ranks of 1 thread, stage 3, bf16; the two alternate.
# Prints medians of tokens/s and their ratio, and appends JSON lines to build/bench.jsonl. Parts:
#   ranks     GPT-2 124M, one micro-batch: --any-ranks 1 compared with the default
#   hosts     two hosts (network namespaces) at RATE (1gbit), 8 micro-batches, 6 layers of GPT-2 124M's width;
#             needs root, ip and tc
#   disk      GPT-2 124M, all states on NVMe in FOLDER, 8 micro-batches, without clipping;
#             DISK_MB=1000 limits the folder's disk to so many MB/s of reads and of writes (cgroup v1 or v2;
#             needs root). Micro-batches of 1 x 16, for which the disk is the limit, compare layers with
#             batches; those of 1 x 128 compare a step by layers with the longer of computing, timed in
#             memory, and of moving the bytes at that rate. EXTRA: more options of the runs on NVMe
#   dev/bench/layers.sh [FOLDER [ROUNDS [PART...]]]       build/, 3 rounds, all parts
. "$(dirname "$0")/common.sh"
folder=${1:-build} rounds=${2:-3}
[ $# -le 2 ] || parts=${*:3}
rate=${RATE:-1gbit} group=
trap 'rm -rf "$work"; unlimit; [ $hosts_n = 0 ] || hosts_end' EXIT
export OMP_NUM_THREADS=1 OMPI_MCA_hwloc_base_binding_policy=none
common=(-z 3 --dtype bf16 --threads 1)

# -------- the limit of the disk: a cgroup that this shell joins, so that its runs are in it

limit_disk() {
    local bytes=$((DISK_MB * 1000000)) disk parent
    disk=$(findmnt -no SOURCE -T "$folder")
    parent=$(lsblk -ndo PKNAME "$disk")
    disk=$(lsblk -ndo MAJ:MIN "${parent:+/dev/}${parent:-$disk}" | tr -d ' ')
    if [ -d /sys/fs/cgroup/blkio ]; then
        group=/sys/fs/cgroup/blkio/layers$$
        mkdir $group
        echo "$disk $bytes" >$group/blkio.throttle.read_bps_device
        echo "$disk $bytes" >$group/blkio.throttle.write_bps_device
    else
        group=/sys/fs/cgroup/layers$$
        mkdir $group
        echo "$disk rbps=$bytes wbps=$bytes" >$group/io.max
    fi
    echo $$ >$group/cgroup.procs
}
unlimit() {
    [ -z "$group" ] || { echo $$ >"${group%/*}/cgroup.procs"; rmdir "$group"; }
    group=
}

# -------- runs

# keep NAME: appends the tokens/s of the last run to $work/NAME
keep() { field tokens_per_s >>"$work/$1"; }
# compare NAME TITLE A B: prints the medians of $work/A and $work/B
compare() {
    awk -v a="$(median <"$work/$3")" -v b="$(median <"$work/$4")" -v name="$1" -v title="$2" -v out="$out" \
        -v first="$3" -v second="$4" 'BEGIN {
            printf "%-60s %9.1f %9.1f %7.3f\n", title ": " first ", " second, a, b, b / a
            printf "{\"name\": \"layers-%s\", \"ratio\": %.4f}\n", name, b / a >>out
        }'
}
part_ranks() {
    local model=(-e d12 -b 2 -t 256 -r 0 -x 10)
    for _ in $(seq "$rounds"); do
        train 2 "${common[@]}" "${model[@]}"; keep default
        train 2 "${common[@]}" "${model[@]}" --any-ranks 1; keep any
    done
    compare ranks 'one micro-batch' default any
}

part_hosts() {
    two_hosts "$rate" || { echo "hosts: skipped: $hosts_why"; return; }
    for _ in $(seq "$rounds"); do
        for way in batches layers; do
            rm -rf "$work/run"
            on_hosts ./train_gpt2_zero "${common[@]}" -e l6h12c768v50257t1024 -b 1 -t 256 -d 4096 -x 4 \
                -v 0 -s 0 -n 0 --overlap 1 -o "$work/run" --accumulate $way >"$work/log" 2>&1 ||
                or "$work/log"
            keep $way
        done
    done
    hosts_end
    compare hosts "two hosts, $rate, 8 micro-batches" batches layers
}

# on_disk NAME: appends the seconds that the disk needs for a step of the last run, both ranks, to $work/NAME
on_disk() {
    nvme_traffic |
        awk -v rate="${DISK_MB:-0}" '{ print rate ? 2 * ($1 > $2 ? $1 : $2) / 1e6 / rate : 0 }' >>"$work/$1"
}

part_disk() {
    local model=(-e d12 -b 1 -x 4 --clip 0) short=(-t 16 -d 256) long=(-t 128 -d 2048)
    local nvme=(--nvme "$folder" --offload-optimizer nvme --offload-param nvme --overlap 1) extra
    read -ra extra <<<"${EXTRA:-}"
    nvme+=("${extra[@]}")
    [ -z "${DISK_MB:-}" ] || limit_disk
    for _ in $(seq "$rounds"); do
        for way in batches layers; do
            train 2 "${common[@]}" "${model[@]}" "${short[@]}" "${nvme[@]}" --accumulate $way; keep $way
            on_disk disk-$way
        done
        train 2 "${common[@]}" "${model[@]}" "${long[@]}" "${nvme[@]}" --accumulate layers; keep nvme
        on_disk disk-nvme
        train 2 "${common[@]}" "${model[@]}" "${long[@]}" --accumulate layers; keep memory
    done
    unlimit
    compare disk "all states on NVMe${DISK_MB:+ at $DISK_MB MB/s}, 8 micro-batches of 1 x 16" batches layers
    compare disk-memory 'by layers, 8 micro-batches of 1 x 128' memory nvme
    for way in batches layers nvme; do
        awk -v way=$way -v step="$(median <"$work/$way")" -v disk="$(median <"$work/disk-$way")" \
            -v memory="$(median <"$work/memory")" 'BEGIN {
                tokens = way == "nvme" ? 2048 : 256; computing = 2048 / memory
                printf "%s: a step %.2f s; the disk at least %.2f", way, tokens / step, disk
                if (way != "nvme") { print ""; exit }
                printf ", computing %.2f: %.2f of the longer\n", computing,
                    tokens / step / (disk > computing ? disk : computing)
            }'
    done
}

print_machine
printf '%-60s %19s %7s\n' 'tokens/s' '' ratio
for part in ${parts:-ranks hosts disk}; do
    part_"$part"
    rm -f "$work"/{batches,layers,nvme,memory,default,any,disk-*}
done
