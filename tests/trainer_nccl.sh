#!/usr/bin/env bash
# Tests the trainer with NCCL: when it loads the library, what it reports if it cannot use it, and that a hung
# collective ends the job with one message. Needs no GPU: uses the stand-ins for CUDA and NCCL (tests/cuda/).
# Usage: tests/trainer_nccl.sh TRAINER [OTHER]      OTHER: a trainer from the normal build, for a CPU run
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
trainer=$(realpath "${1:-build/stand-in/train_gpt2_zero}") || exit 1
other=$(realpath "${2:-$trainer}") || exit 1
ln -s "$trainer" "$dir/trainer" && trainer=$dir/trainer     # keeps pgrep from finding other tests' processes
export OMP_NUM_THREADS=1
small=(-e l2h2c64v257t32 -b 2 -x 2 -n 0 -u 0 -v 0 -s 0 -f 0 -ge 0 --threads 1 --hash full --dtype fp32 -z 3
    --progress lines --device cuda)
gpus=CUDA_STAND_IN_DEVICES=2

# ---- when it is loaded

# loads NP NAME ARGUMENT...: trains, and lists the CUDA libraries that the run loads in NAME.libraries
loads() {
    trains "$1" "$2" LD_DEBUG=libs LD_DEBUG_OUTPUT="$dir/$2.debug" "${@:3}"
    sed -nE 's/.*calling init: .*\/(lib(nccl|cuda|cudart|cublas|cublasLt|nvidia)[-.][^/]*)$/\1/p' \
        "$dir/$2".debug.* | sort -u >"$dir/$2.libraries"
    rm -f "$dir/$2".debug.*
}
begin 'a run on the CPU loads no CUDA library'
trainer=$other loads 2 cpu --device cpu
is libraries "$(<"$dir/cpu.libraries")" ''
end
begin 'only ranks that use NCCL load it'
loads 1 one
loads 2 host $gpus --comm host
loads 2 nccl $gpus --comm nccl
loads 2 memory $gpus --comm nccl --nccl-memory
is 'runs that load it' "$(cd "$dir" && grep -lx libnccl.so.2 -- *.libraries | xargs)" \
    'memory.libraries nccl.libraries'
same_result nccl host
same_result memory host
end

# ---- two groups. A host is a name, so ranks get their own.

apart='exec unshare --uts sh -c "hostname host$((rank / RANKS)) && exec \"\$0\" \"\$@\"" "$0" "$@"'
# hosts RANKS NP NAME ARGUMENT...: trains with so many ranks on each host
hosts() { wrap=${apart/RANKS/$1} trains "$2" "$3" CUDA_STAND_IN_DEVICES=4 --comm nccl "${@:4}"; }
named=
if ! unshare --uts hostname host0 2>/dev/null; then skip 'two groups' 'needs root, to name hosts'
else
    named=1
    begin 'hosts with a power of two of ranks reduce in two groups, others in one'
    trains 4 host_0 CUDA_STAND_IN_DEVICES=4 --comm nccl
    hosts 2 4 hosts_2
    hosts 1 4 hosts_1
    hosts 3 4 hosts_3
    screen host_0 '^ZeRO .*nccl, summed in tree order, '
    screen hosts_2 '^ZeRO .*nccl, summed in tree order by 2 ranks of a host, then between 2 hosts, '
    screen hosts_1 '^ZeRO .*nccl, summed in tree order \(ranks on several nodes\), '
    screen hosts_3 '^ZeRO .*nccl, summed in tree order \(nodes differ in their number of ranks, or these '
    for run in hosts_{1,2,3}; do same_result $run host_0; done
    end
fi

# ---- other libraries: the folder NAME is searched first

mkdir "$dir"/{none,old,own}
with=("$gpus" LD_LIBRARY_PATH="$dir/NAME:${LD_LIBRARY_PATH:-}")
echo nothing >"$dir/none/libnccl.so.2"
begin 'a library that cannot be loaded'
refuses 2 'rank 0 \(host [^ ]+\): libnccl.so.2 cannot be loaded: .*; install .*libnccl2.*LD_LIBRARY_PATH' \
    "${with[@]/NAME/none}" --comm nccl
trains 2 auto "${with[@]/NAME/none}"
screen auto \
    '^ZeRO .*shared window \(no NCCL: rank 0 \(host [^ ]+\): libnccl.so.2 cannot be loaded: [^;]*\), overlap'
end
echo 'int ncclGetVersion(int *v) { *v = 20400; return 0; }' |
    ${CC:-cc} -shared -fPIC -x c - -o "$dir/old/libnccl.so.2"
refused 'a library that lacks a function' 2 'libnccl.so.2 has no ncclAllGather: it is too old' \
    "${with[@]/NAME/old}" --comm nccl

own=$(ldconfig -p 2>/dev/null | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -n 1)
if [ -z "$own" ]; then skip "NVIDIA's library" 'libnccl.so.2 is not on this machine'
elif [ -e /dev/nvidiactl ]; then skip "NVIDIA's library" \
    'this machine has a GPU, and the streams are those of the stand-in'
else
    ln -s "$own" "$dir/own/libnccl.so.2"
    refused "NVIDIA's library has all functions, and its failure is reported" 2 \
        'rank [01] \(host [^ ]+\): ncclCommInitRankConfig failed; NCCL reports: unhandled cuda error.*; '\
'comm.nccl 0 sends the data through the host' "${with[@]/NAME/own}" --comm auto
fi

# ---- too few GPUs

refused 'fewer GPUs than ranks' 3 \
    'ranks 0 and 2 are on one GPU of host [^ ]+, where 3 ranks have 2 GPUs, and NCCL 2\.28\.9 needs one for '\
'each; start at most 2 ranks there, or send the data through the host \(comm.nccl 0'\
'.*NCCL_MULTI_RANK_GPU_ENABLE=1' $gpus --comm nccl
# ---- a rank in trouble

# patiently NAME COMMAND...: runs a case with a limit of 2 s. On a busy machine a rank may be later than that,
# so a failed case is repeated with longer limits. $limit replaces LIMIT in the messages.
limit=2
patiently() {
    begin "$1"
    for limit in 2 6 18; do
        why=
        "${@:2}"
        [ -n "$why" ] || break
    done
    end
}
# With ZERO_POISON, memory that a gather has not written is NaN. The message must not blame the loss.
trouble() {     # SETTING MESSAGE ARGUMENT...
    refuses 2 "rank [01] \(host $(hostname)\): ${2//LIMIT/$limit}" ZERO_POISON=1 $gpus \
        CUDA_STAND_IN_NCCL="$1" --comm nccl --comm-timeout $limit "${@:3}"
}
# The start reduces and gathers each unit once: six collectives, or five if a bucket holds two units.
while IFS='|' read -r what setting message arguments; do
    # shellcheck disable=SC2086
    patiently "$what" trouble "$setting" "$message" $arguments
done <<'TABLE'
a gather that does not end|hang:1:9|the all-gather of unit 2 \(collective 9\) did not end within LIMIT s
without overlap|hang:1:7|the reduce-scatter of unit 2 \(collective 7\) did not end|-z 2 --overlap 0
a gather during the start|hang:1:5|the all-gather of unit 1 \(collective 5\) did not end
a reduction that does not end|hang:1:7|the reduce-scatter of unit 2 \(collective 7\) did not end|-z 2
a hang of two units|hang:1:6|the reduce-scatter of units 1 to 2 \(collective 6\) did not end|-z 2 --bucket 1e8
an error|error:1:13|the [a-z-]+ of unit [0-9]+ \(collective [0-9]+\).* failed; NCCL reports: unhandled
an error during the start|error:1:2|the [a-z-]+ of unit [0-9]+ \(collective 2\): .*; NCCL reports: unhandled
TABLE

# The start has three reductions of two operations each and three gathers. Operations 10 and 11 are the first
# step's first reduction, inside the hosts and between them. Ranks 0 and 2 wait in it, the others in the next.
hangs_between() {
    local message='rank [0-3] \(host host[01]\): the reduce-scatter of unit '
    message+='(2 \(collective 7|1 \(collective 8)\) did not end'
    wrap=${apart/RANKS/2} refuses 4 "$message within $limit s" CUDA_STAND_IN_DEVICES=4 \
        CUDA_STAND_IN_NCCL=hang:2:11 --comm nccl --comm-timeout $limit -z 2
}
[ -z "$named" ] || patiently 'a reduction that does not end between hosts' hangs_between

# stopped OPERATION MESSAGE: rank 1 of three stops before OPERATION. Checks that one message names rank 1.
stopped() {
    run 3 $hang_limit "${small[@]}" CUDA_STAND_IN_DEVICES=3 CUDA_STAND_IN_NCCL=stop:1:$1 --comm nccl \
        -x 1000000 --comm-timeout $limit >"$dir/refused" 2>&1
    status=$?
    kill -KILL "$(rank_pid "$trainer" 1)" 2>/dev/null
    wait
    one_message "${2//LIMIT/$limit}"
}
for at in '20|[a-z-]+ of unit [0-9]+ \(collective 20' '1|reduce-scatter of unit 2 \(collective 1'; do
    patiently "rank 1 is stopped before collective ${at%|*}" stopped "${at%|*}" \
        "rank [02] \(host [^ ]+\): the ${at#*|}\) did not end within LIMIT s: .*; no word from rank 1 \("
done

begin 'rank 1 is killed'
begin_long 2 $gpus --comm nccl --comm-timeout 1000
kill -KILL "$(rank_pid "$trainer" 1)"
ends_within $hang_limit $job
need "status $status" [ "$status" != 0 ]
need 'a rank is left' not pgrep -f "^$trainer "
end
finish trainer_nccl
