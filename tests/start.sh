#!/usr/bin/env bash
# Tests trainers whose ranks connect without MPI: same bits, launchers' variables, bad input, ranks that die
# or stop, several hosts (network namespaces). Usage: tests/start.sh TRAINER [GROUP]...
#   KILLS=30    kills or stops 30 ranks, at random instants
# shellcheck disable=SC2016,SC2086
. "$(dirname "$0")/cases.sh"
. tests/hosts.sh
trainer=$(realpath "${1:-./train_gpt2_zero}") || exit 1
shift
hosts=
trap 'stop_all; [ -z "$hosts" ] || hosts_end; rm -rf "$dir" "$disk"' EXIT

export OMP_NUM_THREADS=1
small=(-e l2h2c32v257t32 -b 2 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --hash full --device cpu)
pids=()
stop_all() { [ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null; wait 2>/dev/null; pids=(); }

# fresh: resets everything before a group of ranks starts. The output of rank R goes to $dir/R.
fresh() {
    stop_all
    rm -f "$dir"/[0-9] "$dir"/[0-9].*
    port=$(free_port)
}
begin_fresh() { begin "$1"; fresh; }      # NAME
# start R ARGUMENT...: starts rank R in the background, with environment $variables. $launcher may name a
# function that runs the rank elsewhere.
launcher='' variables=()
start() {
    local r=$1
    shift
    $launcher env "${variables[@]}" "$trainer" "${small[@]}" "$@" >"$dir/$r" 2>&1 </dev/null &
    pids[r]=$!
}
# start_ranks N ARGUMENT...: starts ranks 0 to N - 1, which connect by TCP
start_ranks() {
    local n=$1 r
    shift
    for ((r = n - 1; r >= 0; r--)); do start $r -pi tcp -ps 127.0.0.1:$port -pn "$n" -pr $r "$@"; done
}
# all_end PATTERN: checks that all ranks except the stopped one end, with statuses that match
stopped=
all_end() {
    local r ranks=()
    for r in "${!pids[@]}"; do
        [ "${pids[r]}" != "$stopped" ] || continue
        ranks+=("${pids[r]}")
        unset "pids[r]"
    done
    ends_within $hang_limit "${ranks[@]}"
    need "statuses ${statuses[*]}: $(cat "$dir"/[0-9] | tail -n 3)" \
        not grep -qvE "$1" <(printf '%s\n' "${statuses[@]}")
}
messages() { cat "$dir"/[0-9] 2>/dev/null | grep -a '^train_gpt2_zero: '; }
all_succeed() { all_end '^0$'; }
all_fail() { all_end '[1-9]'; }
# Checks that all ranks fail, and that only one prints a message.
all_fail_once() {
    all_fail
    need "$(messages | wc -l) messages: $(messages)" [ "$(messages | wc -l)" = 1 ]
}
# reports PATTERN: checks that the ranks' message matches
reports() { need "wrong message: $(messages)" grep -qE "$1" <(messages); }
hash_of() { hashes "$1" | tail -n 1; }

# ---- bits

# reference NP: prints the digests of the same run under mpirun; starts that run only once per NP
reference() {
    grep -qs params_hash "$dir/mpi.$1" ||
        timeout $hang_limit mpirun --oversubscribe -np "$1" "$trainer" "${small[@]}" -x 4 -z 3 \
            >"$dir/mpi.$1" 2>&1 </dev/null
    hash_of "$dir/mpi.$1"
}
same_bits() {       # NP
    local expected
    expected=$(reference "$1")
    is digests "$(hash_of "$dir/0")" "${expected:-none}"
}
# same NAME RANKS VARIABLE=VALUE... ARGUMENT...: checks that ranks started this way end with the same bits as
# under mpirun. %R is the rank, %P the port. Without variables, -pr and -pn give the rank and the rank count.
same() {
    local ranks=$2 r given=() words
    begin_fresh "$1"
    shift 2
    while [[ ${1:-} = [A-Z]*=* ]]; do given+=("${1//%P/$port}"); shift; done
    [ ${#given[@]} != 0 ] || set -- -pn "$ranks" -pr %R "$@"
    for ((r = ranks - 1; r >= 0; r--)); do
        variables=("${given[@]//%R/$r}") words=("${@//%P/$port}")
        start "$r" -x 4 -z 3 "${words[@]//%R/$r}"
    done
    variables=()
    all_succeed
    same_bits "$ranks"
    need 'rank 1 prints too' [ ! -s "$dir/1" ]
    end
}
test_bits() {
    same 'start.bits tcp, 2 ranks' 2 -pi tcp -ps 127.0.0.1:%P
    same 'start.bits tcp, 3 ranks, messages, overlap' 3 -pi tcp -ps localhost:%P --messages 1 --overlap 1
    same 'start.bits file, 2 ranks, messages' 2 -pi fs -pf "$dir/meet.%P" --messages 1
    same 'start.bits file in a folder, 3 ranks, stage 2' 3 -pi fs -pf "$dir" -z 2
    same 'start.bits one rank' 1 -pi tcp
}

# ---- launchers' variables

test_launchers() {
    local srun=(SLURM_PROCID=%R SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=%P SLURM_STEP_ID=0)
    local nodes=(SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=2)
    same 'start.launchers RANK and WORLD_SIZE' 2 RANK=%R WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%P
    same 'start.launchers srun' 2 "${srun[@]}" "${nodes[@]}"
    same 'start.launchers srun --mpi=pmi2' 2 PMI_RANK=%R PMI_SIZE=2 "${srun[@]}" "${nodes[@]}"
    same 'start.launchers srun, with a start file' 2 "${srun[@]}" -pi fs -pf "$dir/slurm.%P"
    local agent held                                    # torchrun itself listens on MASTER_PORT
    agent=$(free_port)
    "$trainer" "${small[@]}" -x 4 -pi tcp -ps "127.0.0.1:$agent" --comm-timeout 60 -pn 2 -pr 0 >"$dir/agent" \
        2>&1 </dev/null &
    held=$!
    disown                                              # stop_all must not wait for it
    same 'start.launchers torchrun, under srun --mpi=pmix' 2 RANK=%R WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 \
        MASTER_ADDR=localhost MASTER_PORT="$agent" TORCHELASTIC_RUN_ID=%P TORCHELASTIC_USE_AGENT_STORE=True \
        PMIX_RANK=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=%P
    begin "start.launchers torchrun's port stayed in use"
    need "$(cat "$dir/agent")" kill -9 "$held"
    end
    begin_fresh 'start.launchers mpirun, over TCP, with the key that mpirun makes'
    timeout $hang_limit mpirun --oversubscribe -np 2 "$trainer" "${small[@]}" -x 4 -z 3 -pi tcp \
        -ps 127.0.0.1:$port >"$dir/0" 2>&1 </dev/null
    has "$dir/0" 'tcp, shared window'
    same_bits 2
    is 'warnings about the key' "$(grep -c ZERO_JOB_KEY "$dir/0")" 0
    end
}

# ---- ranks that start late

test_late() {
    local way
    for way in "-pi fs -pf $dir/late" "-pi tcp -ps 127.0.0.1:$(free_port)"; do
        begin_fresh "start.late, $way: rank 0 reports that it waits"
        start 0 -x 1 $way -pn 2 -pr 0
        await grep -qsE '^note: 1 of 2 ranks are connected; waiting at most [0-9]+ s more' "$dir/0" ||
            need 'it reports nothing' false
        start 1 -x 1 $way -pn 2 -pr 1
        all_succeed
        end
    done
}

# ---- the key of a job

test_key() {
    local key=0123456789abcdef r other
    for other in $key another-key-of-16 ''; do
        begin_fresh "start.key rank 0 has $key, rank 1 has '$other'"
        for r in 0 1; do
            variables=(ZERO_JOB_KEY="$([ $r = 0 ] && echo $key || echo "$other")")
            start $r -x 1 -pi tcp -ps 127.0.0.1:$port --comm-timeout 8 -pn 2 -pr $r
        done
        variables=()
        if [ "$other" = $key ]; then
            all_succeed
            is 'warnings about the key' "$(grep -c ZERO_JOB_KEY "$dir/0")" 0
        else
            all_fail
            has "$dir/0" "; 1 connection\(s\) rejected for lack of the job's key"
            has "$dir/1" 'has a different key from this rank'
        fi
        end
    done
    begin_fresh 'start.key no key: the start table has a warning'
    start_ranks 2 -x 1
    all_succeed
    has "$dir/0" '^start .*without ZERO_JOB_KEY: any process that reached rank 0'
    end
}

# ---- bad input

# refused: reads lines NAME|PATTERN|ARGUMENTS OF RANK 0[|ARGUMENTS OF RANK 1...]. Checks that all ranks fail,
# with one matching message. TCP stands for the options that connect the ranks.
refused() {
    local what pattern ranks r
    while IFS='|' read -r what pattern ranks; do
        begin_fresh "start.refused $what"
        mapfile -t ranks < <(tr '|' '\n' <<<"${ranks//TCP/-pi tcp -ps 127.0.0.1:$port --comm-timeout 1000}")
        for r in "${!ranks[@]}"; do
            [ -z "${ranks[r]}" ] || start $r -x 4 ${ranks[r]}
        done
        all_fail_once
        reports "$pattern"
        end
    done
}
with_little_memory() { (ulimit -v 400000; exec "$@"); }
test_refused() {
    local save="-n 2 -o $dir"
    mkdir "$dir/a" "$dir/b"
    refused <<END
different numbers of ranks|rank 1 .*was started as one of 3 ranks, rank 0 .* as one of 2|TCP -pn 2 -pr 0|\
TCP -pn 3 -pr 1
ranks with different arguments|rank 2 .* has -b = 4 and rank 0 .* has -b = 2|TCP -pn 4 -pr 0|\
TCP -pn 4 -pr 1|TCP -pn 4 -pr 2 -b 4|TCP -pn 4 -pr 3
checkpoints in two folders|rank 1 .* has -o = another folder and rank 0 .* has -o = the folder that rank \
0 writes to|TCP -pn 2 -pr 0 $save/a|TCP -pn 2 -pr 1 $save/b
a rank is missing|rank 1 of 3 did not connect|TCP --comm-timeout 8 -pn 3 -pr 0||\
TCP --comm-timeout 8 -pn 3 -pr 2
no address|start.server, the address of rank 0 .* is needed: .*\(-ps, -pf\)$|-pi tcp -pn 2 -pr 0
-ps without -pi|option -ps 127.0.0.1: needs -pi tcp|-ps 127.0.0.1
-pf with tcp|option -pf /tmp: needs -pi fs|-pi tcp -pf /tmp -pn 2 -pr 0
no file|option -pi fs: add -pf|-pi fs -pn 2 -pr 0
-pn without -pr|option -pn: also needs -pr|-pi tcp -ps 127.0.0.1 -pn 2
rank beyond the last|option -pr 2: with 2 ranks \(-pn\) the last one is 1|-pi tcp -ps 127.0.0.1 -pn 2 -pr 2
no launcher|start.rank and start.ranks are missing: no launcher says which rank this is .*\(-pr, -pn\)$|\
-pi tcp -ps 127.0.0.1
-pn for a single rank|options -pn 2 -pr 0: the launcher started rank 0 of 1|-pn 2 -pr 0
an unknown word|option -pi: 'nccl' is not one of auto, mpi, tcp, fs|-pi nccl
END
    begin 'start.refused checkpoints in two folders leave no files'
    is files "$(find "$dir"/{a,b} -name '.*' ! -path "$dir/[ab]" -o -name '*state*' -o -name 'step_*')" ''
    end
    variables=(RANK=0 WORLD_SIZE=2)
    refused <<<'no MASTER_ADDR|start.server is missing: the launcher has started 2 ranks, .* MASTER_P|-z 3'
    variables=()
    if with_little_memory "$trainer" --help >/dev/null 2>&1; then
        begin_fresh 'start.refused too little memory on one rank'
        for r in 3 2 1 0; do
            [ $r = 1 ] && launcher=with_little_memory || launcher=
            start $r -x 4 -z 0 -e l8h4c512v257t32 -pi tcp -ps 127.0.0.1:$port -pn 4 -pr $r
        done
        all_fail_once
        reports 'rank 1 \(host .*\): .* of host memory are needed, but RLIMIT_AS'
        end
    else skip 'start.refused too little memory on one rank' \
        'the program does not start under ulimit -v (AddressSanitizer)'; fi
}

# ---- ranks that die or stop

# Limits files to 8 KiB. The output goes through cat to escape the limit.
on_full_disk() (set -o pipefail; bash -c 'ulimit -f 8; exec "$@"' full "$@" 2>&1 | cat)
reaches_step() {        # N
    local i
    for i in 1 2; do await grep -aqsE "^step *$1/" "$dir/0" && return; done
    need "step $1 was not reached: $(messages)" false
}
# lose SIGNAL RANKS VICTIM DELAY ARGUMENT...: sends the signal to a rank, DELAY hundredths of a second after
# step 3, and checks that all ranks end with one message.
lose() {
    # After SIGKILL the limit is long, because the others must detect the death without waiting for it.
    local signal=$1 ranks=$2 victim=$3 delay=$4 limit=1000
    local in=' in (an? [-a-z]+ of (unit [0-9]+|scalars)|a barrier)'
    [ "$signal" = KILL ] || limit=6
    fresh
    start_ranks "$ranks" -x 1000000 --comm-timeout $limit "${@:5}"
    reaches_step 3
    sleep "$(printf '0.%02d' "$delay")"
    kill -"$signal" "${pids[victim]}" 2>/dev/null
    # The others cannot end a stopped rank; it exits once it continues.
    if [ "$signal" = STOP ]; then
        stopped=${pids[victim]}
        all_fail_once
        kill -CONT "$stopped" 2>/dev/null
        stopped=
    fi
    all_fail_once
    [ "$signal" = STOP ] || in="($in|at unit [0-9]+, in no collective)"
    reports "rank $victim \(host $(hostname)\)"
    reports "step [0-9]+: .*$in"
}
test_lost() {
    local n=${KILLS:-3} i r seed=${SEED:-$RANDOM} signals=(KILL STOP) \
        ways=('' '--messages 1' '--messages 1 --overlap 1' '--overlap 1')
    RANDOM=$seed
    for ((i = 0; i < n; i++)); do
        local ranks=$((2 + RANDOM % 3)) stage=$((RANDOM % 4)) way=${ways[(i + i / 2) % 4]} \
            signal=${signals[i % 2]} delay=$((RANDOM % 60))
        local victim=$((RANDOM % ranks))
        begin \
            "start.lost $i: $signal to rank $victim of $ranks, stage $stage $way, after 0.$delay s "\
"(SEED=$seed)"
        lose $signal $ranks $victim $delay -z $stage $way
        end
    done
    for way in '--messages 1' '' '--messages 0 -z 2'; do
        begin_fresh "start.lost a rank fails between collectives of the collective thread, $way"
        rm -rf "$dir/full"
        for r in 1 0; do
            [ $r = 0 ] && launcher=on_full_disk || launcher=
            start $r -x 1000000 -z 3 --overlap 1 $way -pi tcp -ps 127.0.0.1:$port -pn 2 -pr $r -o "$dir/full"
        done
        launcher=
        all_fail_once
        reports 'File too large'
        end
    done
    for ((i = 0; i < (n + 3) / 4 || i < 3; i++)); do
        victim=$((1 + RANDOM % 3)) delay=$((RANDOM % 80))
        begin_fresh "start.lost killed during the start: rank $victim of 4, after $delay ms (SEED=$seed)"
        start_ranks 4 -x 1000000 -z 3 --comm-timeout 8
        sleep "$(printf '0.%03d' "$delay")"
        kill -KILL "${pids[victim]}"
        all_fail_once
        reports "rank.* $victim"
        end
    done
    begin_fresh 'start.lost killed in a step without collectives'
    start_ranks 2 -x 1000 -z 0 -d 76800          # 600 micro-steps, which take most of a step
    reaches_step 1
    kill -KILL "${pids[1]}"
    all_fail_once
    reports 'step [0-9]+: rank 1 \(host .*\) is gone: .* at unit [0-9]*, in no collective'
    end
    begin_fresh 'start.lost stopped and continued in time'
    start_ranks 2 -x 800 -z 3
    reaches_step 3
    kill -STOP "${pids[1]}"
    sleep 1.5
    kill -CONT "${pids[1]}"
    all_succeed
    end
}

# ---- several hosts

on_host() { hosts_run "$host" "$@"; }
# on_hosts RANKS ARGUMENT...: starts rank R on host R
on_hosts() {
    local ranks=$1 r
    shift
    fresh
    launcher=on_host
    for ((r = ranks - 1; r >= 0; r--)); do host=$r; start $r -pn "$ranks" -pr $r -pg 1 "$@"; done
    launcher=
}
# mpirun_on_hosts RANKS ARGUMENT...: runs mpirun on host 0, with a script instead of ssh
mpirun_on_hosts() {
    local ranks=$1 list=10.77.7.1:1 i
    shift
    for ((i = 2; i <= ranks; i++)); do list=$list,10.77.7.$i:1; done
    printf '%s\n' '#!/bin/bash' ". $PWD/tests/hosts.sh" "hosts_tag=$hosts_tag" \
        'i=$((${1##*.} - 1)); shift; hosts_run $i sh -c "$*"' >"$dir/rsh"
    chmod +x "$dir/rsh"
    (hosts_run 0 timeout $hang_limit mpirun --mca plm_rsh_agent "$dir/rsh" --mca plm_rsh_no_tree_spawn 1 \
        -np "$ranks" --host $list \
        "$trainer" "${small[@]}" "$@" </dev/null)
}
sent_by_host() { (hosts_run "$1" cat /sys/class/net/eth0/statistics/tx_bytes); }
host_pid() {        # HOST: the trainer's process on it, if any
    local p
    for p in $(ip netns pids "$hosts_tag$1"); do
        [ "$(readlink "/proc/$p/exe")" = "$trainer" ] && echo "$p"
    done
}
test_hosts() {
    hosts_make 3 || { skip start.hosts "$hosts_why"; return; }
    hosts=made
    local way
    for way in '-pi tcp -ps 10.77.7.1:21007' "-pi fs -pf $dir/hosts.meet"; do
        begin "start.hosts 3 hosts, $way"
        on_hosts 3 -x 4 -z 3 $way
        all_succeed
        has "$dir/0" 'tcp, messages \(ranks on several nodes\)'
        same_bits 3
        end
    done
    begin_fresh 'start.hosts mpirun, 3 hosts'
    local sent
    sent=$(sent_by_host 2)
    mpirun_on_hosts 3 -x 40 -z 3 >"$dir/0" 2>&1
    sent=$(($(sent_by_host 2) - sent))
    need "host 2 sent only $sent bytes" [ $sent -gt 6400000 ]       # 0.16 MB per step
    mpirun_on_hosts 3 -x 4 -z 3 >"$dir/0" 2>&1
    has "$dir/0" 'mpi, messages \(ranks on several nodes\)'
    same_bits 3
    end
    for signal in KILL STOP; do
        begin_fresh "start.hosts mpirun, a rank on another host gets $signal"
        mpirun_on_hosts 3 -x 1000000 -z 3 --comm-timeout 8 >"$dir/0" 2>&1 & pids=($!)
        reaches_step 3
        kill -$signal "$(host_pid 2)"
        all_fail
        has "$dir/0" 'rank 2.*(host2|10\.77\.7\.3)|connect\(\) to 10\.77\.7\.3'
        # mpirun itself reports a killed rank.
        is 'messages of the trainer' "$(messages | wc -l)" $([ $signal = KILL ] && echo 0 || echo 1)
        is 'remaining ranks' "$(host_pid 0)$(host_pid 1)$(host_pid 2)" ''
        end
    done
    begin 'start.hosts a rank is killed'
    on_hosts 3 -x 1000000 -z 3 -pi tcp -ps 10.77.7.1:21008 --comm-timeout 1000
    reaches_step 3
    kill -9 "${pids[2]}"
    all_fail_once
    reports 'rank 2 \(host host2\)'
    end
    begin 'start.hosts a link is cut'
    on_hosts 3 -x 1000000 -z 2 -pi tcp -ps 10.77.7.1:21010 --comm-timeout 8
    reaches_step 3
    hosts_link 2 down
    all_fail
    cat "$dir/0" "$dir/1" >"$dir/connected"
    has "$dir/connected" 'rank 2 \(host host2\)'
    is 'messages of the connected ranks' "$(grep -ac '^train_gpt2_zero: ' "$dir/connected")" 1
    end
}

# Runs the collective thread on several ranks without MPI under ThreadSanitizer: Open MPI is not instrumented.
test_threads() {
    local way r
    for way in 0 1; do
        begin_fresh "start.threads messages $way"
        start_ranks 2 -e l3h2c32v257t32 -x 6 -v 3 -m 2 -z 3 --overlap 1 --messages $way
        all_succeed
        need "$(grep -h -A12 WARNING "$dir/0" "$dir/1")" [ -z "$(grep -h WARNING "$dir/0" "$dir/1")" ]
        end
    done
}

groups=("$@")
[ ${#groups[@]} != 0 ] || groups=(bits launchers late key refused lost hosts)
for group in "${groups[@]}"; do test_"$group"; done
finish start
