#!/usr/bin/env bash
# The trainer and NCCL: what loads the library, what is said where it cannot be used, and that a collective
# that does not end ends the job with one sentence. Where there is no card: built with stand-ins for CUDA and
# NCCL (tests/cuda/).
# Usage: tests/trainer_nccl.sh TRAINER [OTHER]      OTHER: a trainer of the usual build, of which a run on the
# processor is looked at
set -u
cd "$(dirname "$0")/.." || exit 1
trainer=$(realpath "${1:-build/stand-in/train_gpt2_zero}") || exit 1
other=$(realpath "${2:-$trainer}") || exit 1
. scripts/mpi_env.sh
. tests/cases.sh
export OMP_NUM_THREADS=1
model=(-e l2h2c64v257t32 -b 2 -u 0 -v 0 -s 0 -f 0 -ge 0 --threads 1 --hash full --dtype fp32 -z 3 --progress \
    lines)

# train NAME TRAINER NP SETTING... -- ARGUMENT...: its screen in NAME.screen, its status in $status. SETTING:
# of the environment.
train() {
    local name=$1 program=$2 np=$3 settings=()
    shift 3
    while [ "$1" != -- ]; do settings+=("$1"); shift; done
    shift
    env "${settings[@]}" timeout -k 2 60 mpirun --oversubscribe -np "$np" "$program" "${model[@]}" -x 2 "$@" \
        >"$dir/$name.screen" 2>&1 </dev/null
    status=$?
}
ran() { [ $status = 0 ] || { echo "--- status $status:"; tail -n 5 "$dir/$1.screen"; return 1; }; }
hashes() { grep -ao 'params_hash .*' "$dir/$1.screen"; }
says() {
    grep -aqE -- "$2" "$dir/$1.screen" || {
        echo "--- $1 does not say: $2"
        tail -n 5 "$dir/$1.screen"
        return 1
    }
}
# The program's own sentence stands there once, and is this one.
ended() {
    [ $status != 0 ] && [ $status -lt 124 ] || { echo "--- $1: status $status"; return 1; }
    [ "$(grep -ac 'train_gpt2_zero: ' "$dir/$1.screen")" = 1 ] || {
        echo "--- $1: not one sentence"
        tail -n 5 "$dir/$1.screen"
        return 1
    }
    says "$1" "train_gpt2_zero: .*$2"
}

# ---- loaded

# NAME TRAINER NP SETTING... -- ARGUMENT...: what of CUDA its processes load is in NAME.libraries
loads() {
    train "$1" "$2" "$3" LD_DEBUG=libs LD_DEBUG_OUTPUT="$dir/$1.debug" "${@:4}"
    ran "$1" || return
    sed -nE 's/.*calling init: .*\/(lib(nccl|cuda|cudart|cublas|cublasLt|nvidia)[-.][^/]*)$/\1/p' \
        "$dir/$1".debug.* |
        sort -u >"$dir/$1.libraries"
    rm -f "$dir/$1".debug.*
}
begin 'a run on the processor loads nothing of CUDA'
need 'did not run' loads cpu "$other" 2 X= -- --device cpu
need "loaded: $(paste -sd' ' "$dir/cpu.libraries")" not test -s "$dir/cpu.libraries"
end
begin 'NCCL is loaded where ranks use it'
need 'did not run' loads one "$trainer" 1 X= -- --device cuda
need 'one rank loads it' not grep -q nccl "$dir/one.libraries"
need 'did not run' loads host "$trainer" 2 CUDA_STAND_IN_DEVICES=2 -- --device cuda --comm host
need 'ranks that do not use it load it' not grep -q nccl "$dir/host.libraries"
need 'did not run' loads nccl "$trainer" 2 CUDA_STAND_IN_DEVICES=2 -- --device cuda --comm nccl
need 'nobody loads it' grep -qx libnccl.so.2 "$dir/nccl.libraries"
need "$(hashes nccl), through the host $(hashes host)" [ "$(hashes nccl)" = "$(hashes host)" ]
end

# ---- other libraries

# with LIBRARY NAME NP ARGUMENT...: the folder LIBRARY goes before all others
with() {
    train "$2" "$trainer" "$3" CUDA_STAND_IN_DEVICES=2 LD_LIBRARY_PATH="$dir/$1:${LD_LIBRARY_PATH:-}" -- \
        --device cuda "${@:4}"
}
mkdir "$dir"/{none,old,plain,own}
echo nothing >"$dir/none/libnccl.so.2"
begin 'a library that cannot be loaded'
with none none_nccl 2 --comm nccl
need '--comm nccl' ended none_nccl \
    'rank 0 \(host [^ ]+\): libnccl.so.2 cannot be loaded: .*; install .*libnccl2.*LD_LIBRARY_PATH'
with none none_auto 2
need '--comm auto does not run' ran none_auto
need 'no reason' says none_auto \
    '^ZeRO .*shared window \(no NCCL: rank 0 \(host [^ ]+\): libnccl.so.2 cannot be loaded: [^;]*\), overlap'
end
begin 'a library without what is needed'
echo 'int ncclGetVersion(int *v) { *v = 20400; return 0; }' |
    ${CC:-cc} -shared -fPIC -x c - -o "$dir/old/libnccl.so.2"
with old old 2 --comm nccl
need 'its sentence' ended old 'libnccl.so.2 has no ncclAllGather: it is too old'
end
begin 'a library that registers no memory'
sed 's/ncclCommRegister/ncclCommRegisteX/g' "$(dirname "$trainer")/libnccl.so.2" >"$dir/plain/libnccl.so.2"
with plain plain 2 --comm nccl
need 'did not run' ran plain
need "$(hashes plain), with registration $(hashes nccl)" [ "$(hashes plain)" = "$(hashes nccl)" ]
end

own=$(ldconfig -p 2>/dev/null | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -n 1)
if [ -z "$own" ]; then skip "NVIDIA's library" 'libnccl.so.2 is not on this machine'
elif [ -e /dev/nvidiactl ]; then skip "NVIDIA's library" \
    'here is a card, and the streams are those of the stand-in'
else
    begin "NVIDIA's library has what is needed, and its failure is told"
    ln -s "$own" "$dir/own/libnccl.so.2"
    with own own 2 --comm nccl
    need 'its sentence' ended own \
        'rank [01] on [^ ]+: ncclCommInitRankConfig failed; NCCL reports: unhandled cuda error'
    end
fi

# ---- too few GPUs

begin 'fewer GPUs than ranks'
train few "$trainer" 3 CUDA_STAND_IN_DEVICES=2 -- --device cuda --comm nccl
need '--comm nccl' ended few \
    'ranks 0 and 2 are on one GPU of host [^ ]+, where 3 ranks have 2 GPUs, '\
'and NCCL 2\.28\.9 needs one for each; '\
'start at most 2 ranks there, or send the data through the host \(comm.nccl 0'\
'.*NCCL_MULTI_RANK_GPU_ENABLE=1'
end
begin 'ranks of one GPU through NCCL 2.30'
train many "$trainer" 2 CUDA_STAND_IN_NCCL_VERSION=23007 -- --device cuda --comm nccl
need 'did not run' ran many
need 'not through NCCL' says many '^ZeRO .*, nccl, summed in rank order,'
need "$(hashes many), through the host $(hashes host)" [ "$(hashes many)" = "$(hashes host)" ]
end

# ---- rank in trouble

# patient COMMAND...: checks with waits of 2 s at most. Where other work on the machine makes a rank late by
# so much, the check runs again with longer waits. $limit is the limit, and stands for LIMIT in the sentences
# that are wanted.
limit=2
patient() {
    for limit in 2 6 18; do
        why=
        "$@"
        [ -n "$why" ] || break
    done
}
# ZERO_POISON: what a gather that was broken off has not written is NaN. The loss must not be what is
# complained of.
in_trouble() {  # NAME SETTING SENTENCE [OPTION]...
    begin "$1"
    patient trouble "${@:2}"
    end
}
trouble() {
    train trouble "$trainer" 2 ZERO_POISON=1 CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN_NCCL="$1" -- \
        --device cuda --comm nccl --comm-timeout $limit "${@:3}"
    need 'its end' ended trouble "rank [01] on $(hostname): the ${2//LIMIT/$limit}"
}
# The start has run each unit's reduction and gather once: six collectives, or five with two units in one
# bucket.
in_trouble 'a gather that does not end' hang:1:9 \
    'all-gather of unit 2 \(collective 9\): did not end within LIMIT s'
in_trouble 'a gather that does not end at the start' hang:1:5 \
    'all-gather of unit 1 \(collective 5\): did not end within LIMIT s'
in_trouble 'a reduction that does not end, the last unit first' hang:1:7 \
    'reduce-scatter of unit 2 \(collective 7\): did not end' -z 2
in_trouble 'a reduction of several units' hang:1:6 \
    'reduce-scatter of units 1 to 2 \(collective 6\): did not end' -z 2 --bucket 100000000
in_trouble 'a collective that fails' error:1:13 \
    '[a-z-]+ of unit [0-9]+ \(collective [0-9]+\): .*; NCCL reports: unhandled system error: as '
# stuck NAME SETTING: a gather that does not end, and neither does the abort
stuck() {
    begin "$1"
    patient stays "$2"
    end
}
stays() {
    train stuck "$trainer" 2 CUDA_STAND_IN_DEVICES=2 CUDA_STAND_IN_NCCL=hang:1:9 "$1" -- --device cuda \
        --comm nccl --comm-timeout $limit
    need "status $status" [ $status != 0 ] && need 'a time-out' [ $status -lt 124 ]
    need 'its sentence' says stuck \
        '^llmc_zero: rank [01] on [^ ]+: the all-gather of unit 2 \(collective 9\): did not end within '\
"$limit s: .*; and NCCL did not abort within $limit s: the job ends"
    need 'not once' [ "$(grep -ac 'NCCL did not abort' "$dir/stuck.screen")" = 1 ]
}
stuck 'an abort that does not end' CUDA_STAND_IN_NCCL_STUCK=1
# stopped NAME OPERATION SENTENCE COMMAND...: a run of three ranks as COMMAND starts them, of which rank 1,
# whose number is then in the file `pid`, stops before its k-th operation: the others name it, in one
# sentence, soon after their limit
stopped() {
    begin "$1"
    patient stops "${@:2}"
    end
}
stops() {
    LIMIT=$limit CUDA_STAND_IN_DEVICES=3 CUDA_STAND_IN_NCCL=stop:1:$1 "${@:3}" >"$dir/stopped.screen" 2>&1 \
        </dev/null
    status=$?
    { kill -KILL "$(cat "$dir/pid")"; wait; } 2>/dev/null
    need 'the sentence' ended stopped "${2//LIMIT/$limit}\$"
}
in_step="rank [02] on $(hostname): the [a-z-]+ of unit [0-9]+ \(collective 20\): did not end within LIMIT "
in_step+="s: .*; no word from rank 1 \(host $(hostname)\)"
at_start="rank [02] \(host $(hostname)\) waited LIMIT s in an all-gather of scalars for rank 1 \(host "\
"$(hostname)\): .*"
cat >"$dir/rank" <<END
#!/bin/bash
[ \$1 != 1 ] || echo \$\$ >"$dir/pid"
exec "$trainer" ${model[*]} --device cuda --comm nccl -x 1000000 --comm-timeout \$LIMIT "\${@:2}"
END
# shellcheck disable=SC2016
printf '#!/bin/bash\nexec "%s/rank" $OMPI_COMM_WORLD_RANK\n' "$dir" >"$dir/mpi_rank"
chmod +x "$dir/rank" "$dir/mpi_rank"
by_file() {
    local pids=() r
    for r in 0 1 2; do timeout -k 2 60 "$dir/rank" $r -pi fs -pn 3 -pr $r -pf "$dir/start" & pids[r]=$!; done
    wait "${pids[0]}"; local status=$?
    wait "${pids[2]}"
    return $status
}
stopped 'a rank that is stopped, under mpirun' 20 "$in_step" timeout -k 2 60 mpirun --oversubscribe -np 3 \
    "$dir/mpi_rank"
stopped 'a rank that is stopped, without a launcher' 20 "$in_step" by_file
stopped 'a rank that is stopped at its first collective' 1 "$at_start" timeout -k 2 60 mpirun \
    --oversubscribe -np 3 "$dir/mpi_rank"
begin 'a rank that dies, without a launcher'
for r in 0 1; do
    CUDA_STAND_IN_DEVICES=2 timeout -k 2 60 "$trainer" "${model[@]}" -pi fs -pn 2 -pr $r -pf "$dir/start" \
        --device cuda --comm nccl \
        -x 1000000 --comm-timeout 60 >"$dir/dies$r.screen" 2>&1 </dev/null & pids[r]=$!
done
for ((i = 0; i < 300; i++)); do grep -aqs '^step ' "$dir/dies0.screen" && break; sleep 0.1; done
began=$SECONDS
read -r child <"/proc/${pids[1]}/task/${pids[1]}/children"
{ kill -KILL "$child"; wait "${pids[1]}"; } 2>/dev/null
wait "${pids[0]}"; status=$?
need "only after $((SECONDS - began)) s" [ $((SECONDS - began)) -lt 20 ]
# by NCCL's watchdog, or where a sum of losses waits
need 'the sentence' ended dies0 ".*rank 1 \(host $(hostname)\) is gone: "
end
finish trainer_nccl
