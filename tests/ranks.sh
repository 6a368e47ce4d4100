#!/usr/bin/env bash
# Tests how jobs of several ranks start and end under mpirun, on one host and on several (network namespaces):
# ranks that are refused, that fail, are killed or are stopped.
# Usage: tests/ranks.sh TRAINER MPI_NET [GROUP]...      groups: refused levels ports fails lost hosts
#   KILLS=30    kills or stops 30 ranks, at random instants
# shellcheck disable=SC2016,SC2046,SC2086
. "$(dirname "$0")/cases.sh"
. tests/hosts.sh
ln -s "$(realpath "${1:-./train_gpt2_zero}")" "$dir/trainer"
trainer=$dir/trainer                    # keeps pgrep from finding other tests' processes
mpi_net=$(realpath "${2:-build/tests/mpi_net}") || exit 1
shift 2
hosts=
trap 'stop_all; [ -z "$hosts" ] || hosts_end; rm -rf "$dir" "$disk"' EXIT
# mpirun waits this many seconds after SIGCONT, and again after SIGTERM: a busy rank may need them to print.
export OMP_NUM_THREADS=1 OMPI_MCA_odls_base_sigkill_timeout=3
small=(-e l2h2c32v257t32 -b 2 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --hash full --device cpu)
host=$(hostname) screen=$dir/screen job=

ranks() { pgrep -f "^$trainer "; }
nothing_runs() { not ranks >/dev/null; }
stop_all() { [ -z "$job" ] || kill -9 $(ranks) $job 2>/dev/null; wait 2>/dev/null; job=; }
# start RANKS ARGUMENT...: starts a run in the background. Each rank first runs the shell code $wrap, which
# may use $rank.
wrap=
start() {
    local np=$1
    shift
    : >"$screen"        # the background command empties it only when it starts
    timeout $hang_limit mpirun --oversubscribe -np "$np" bash -c \
        "rank=\$OMPI_COMM_WORLD_RANK; $wrap exec \"\$0\" \"\$@\"" "$trainer" "${small[@]}" "$@" \
        >"$screen" 2>&1 </dev/null & job=$!
}
messages() { grep -aE '^(train_gpt2_zero|llmc_zero): |exited without zero_destroy' "$screen"; }
# fails_once PATTERN [MOST]: checks that the job ends with a nonzero status and one message, or at most MOST
# of which one matches, and leaves no process
fails_once() {
    ends_within $hang_limit $job
    job=
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    need "$(messages | wc -l) messages: $(messages)" [ "$(messages | wc -l)" -le "${2:-1}" ]
    need "wrong message: $(messages)" grep -qE "$1" <(messages)
    await nothing_runs || need "processes remain: $(ranks)" false
}
reaches_step() {        # N
    await grep -aqsE "^step *$1/" "$screen" || need "step $1 was not reached: $(messages)" false
}

# ---- starts that are refused

# refused NAME PATTERN COMMAND...: checks that the command fails with this message
refused() {
    begin "ranks.refused $1"
    timeout $hang_limit "${@:3}" >"$screen" 2>&1 </dev/null & job=$!
    fails_once "$2"
    end
}
test_refused() {
    local alone=("$trainer" "${small[@]}" -x 1) how='start .*mpirun -np N, .*srun --mpi=pmix, .*sbatch job$'
    refused '-pi tcp' "option -pi tcp: Open MPI connects the ranks: $how" \
        "${alone[@]}" -pi tcp -ps a:1 -pn 2 -pr 0
    refused '-pi fs' "option -pi fs: Open MPI connects the ranks: $how" "${alone[@]}" -pi fs -pf "$dir"
    refused '-pn for one rank' "option -pn 2: the launcher started 1 rank: $how" "${alone[@]}" -pn 2
    refused '-pr of another rank' 'option -pr 1: the launcher made this rank 0 of 1' "${alone[@]}" -pr 1
    refused 'torchrun' 'RANK=0 and WORLD_SIZE=2, set by torchrun or a script: ' \
        env RANK=0 WORLD_SIZE=2 "${alone[@]}"
    refused 'srun without PMIx' 'SLURM_STEP_NUM_TASKS=2, set by srun: .*srun --mpi=pmix' \
        env SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 "${alone[@]}"
    refused 'a launcher that MPI does not know' 'started 2 ranks, but MPI sees 1' \
        env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "${alone[@]}"
    begin "ranks.llm.c's letters without effect, and one rank without MPI"
    need "$(tail -n 2 "$screen")" "${alone[@]}" -pi mpi -pn 1 -pr 0 -pg 8 -ps a -pf b >"$screen" 2>&1
    has "$screen" 'option -ps a: no effect' 'option -pf b: no effect' 'stage 3, self'
    end
    begin 'ranks.refused different arguments, before anything is allocated'
    wrap='[ $rank != 2 ] || set -- "$@" -b 4;' start 4 -x 4
    fails_once 'rank 2 .* has -b = 4 and rank 0 .* has -b = 2'
    need 'memory was allocated' not grep -q 'model states' "$screen"
    end
    if ! (ulimit -v 400000; "$trainer" --help) >/dev/null 2>&1; then
        skip 'ranks.refused too little memory' 'the program does not start under ulimit -v (AddressSanitizer)'
        return
    fi
    begin 'ranks.refused too little memory on one rank'
    wrap='[ $rank != 1 ] || ulimit -v 600000;' start 4 -x 4 -z 0 -e l8h4c768v512t32
    fails_once 'rank 1 \(host .*\): .* of host memory are needed, but RLIMIT_AS'
    end
}

# The program initialises MPI itself, with a level of threads.
test_levels() {
    local level overlap pattern
    while IFS='|' read -r level overlap pattern; do
        begin "ranks.MPI's level of threads is $level, overlap $overlap"
        need 'it failed' timeout $hang_limit mpirun --oversubscribe -np 2 "$mpi_net" level $level $overlap \
            >"$screen" 2>&1 </dev/null
        is messages "$(grep -cE "$pattern" "$screen")" 2
        end
    done <<'END'
0|0|needs MPI_THREAD_FUNNELED, .* level 0: call MPI_Init_thread with it
1|0|^accepted$
1|1|^overlap needs MPI_THREAD_SERIALIZED, .* level 1
2|1|^accepted$
END
}

# Prints the TCP ports on which these processes listen.
ports() {       # PID...
    local pid
    for pid; do find "/proc/$pid/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null; done | tr -dc '0-9\n' |
        grep -wFf - <(awk '$4 == "0A" { print $10, $2 }' /proc/net/tcp /proc/net/tcp6)
}
test_ports() {
    begin 'ranks.no port is open on one machine'
    start 2 -x 1000000 --messages 1
    reaches_step 3
    is ports "$(ports $(ranks))" ''
    need 'mpirun has none either' [ -n "$(ports $(pgrep -P "$job"))" ]      # so that the check can fail
    kill -TERM "$(ranks | head -n 1)"
    ends_within $hang_limit $job
    is status "$status" 0
    end
}

# ---- ranks that fail

# full RANK: from now on, the rank's files can have at most 8 KiB
full() { need 'no limit' prlimit --pid "$(rank_pid "$trainer" "$1")" --fsize=8192; }
test_fails() {
    local way
    for way in '--messages 1' '' '-z 2 --overlap 0'; do
        begin "ranks.fails between collectives of the collective thread, $way"
        rm -rf "$dir/full"
        start 2 -x 1000000 -z 3 --overlap 1 $way -o "$dir/full"
        reaches_step 3
        full 0
        fails_once 'File too large'
        end
    done
    begin 'ranks.fails on two ranks: the message is that of the lower one'
    rm -rf "$dir/full"
    start 3 -x 1000000 -z 3 -o "$dir/full" -n 100
    reaches_step 3
    full 1
    full 2
    fails_once 'rank 1 \(host .*\): .*may write at most'
    end
    begin 'ranks.fails, with zero_destroy left out'
    timeout $hang_limit mpirun --oversubscribe -np 2 "$mpi_net" leaves >"$screen" 2>&1 </dev/null & job=$!
    fails_once 'rank 1 \(host .*\) exited without zero_destroy'
    end
}

# ---- ranks that die or stop

# lose SIGNAL RANKS VICTIM DELAY ARGUMENT...: sends the signal to a rank, DELAY hundredths of a second after
# step 3, and checks that the job ends with one message of the other ranks.
lose() {
    # After SIGKILL the limit is long, because the others must not need it to end.
    local signal=$1 limit=1000 names="rank $3 \(host $host\)"
    local in='waited [0-9.]+ s in (an? [-a-z]+ of (unit [0-9]+|scalars)|a barrier)'
    [ "$signal" = KILL ] || limit=6
    start "$2" -x 1000000 --comm-timeout $limit "${@:5}"
    reaches_step 3
    sleep "$(printf '0.%02d' "$4")"
    kill -"$signal" "$(rank_pid "$trainer" "$3")"
    if [ "$signal" = STOP ]; then
        fails_once "^train_gpt2_zero: step [0-9]+: .* $in for $names: stuck"
    else
        # A rank that is one exchange ahead also waits for one that waits for the victim, and cannot know it.
        fails_once "^llmc_zero: the launcher ends the job; .* $in for ranks? .*${names#rank }" $(($2 - 1))
        has "$screen" "process rank $3 .* exited on signal 9"
    fi
}
test_lost() {
    local n=${KILLS:-4} i seed=${SEED:-$RANDOM} signals=(KILL STOP) \
        ways=('' '--messages 1' '--messages 1 --overlap 1' '--overlap 1')
    RANDOM=$seed
    for ((i = 0; i < n; i++)); do
        local ranks=$((2 + RANDOM % 3)) stage=$((RANDOM % 4)) way=${ways[(i + i / 2) % 4]} \
            signal=${signals[i % 2]} delay=$((RANDOM % 60))
        local victim=$((RANDOM % ranks))
        begin "ranks.lost $i: $signal to rank $victim of $ranks, stage $stage $way, after 0.$delay s "\
"(SEED=$seed)"
        lose $signal $ranks $victim $delay -z $stage $way
        end
    done
    begin 'ranks.lost stopped and continued in time'
    start 2 -x 800 -z 3
    reaches_step 3
    kill -STOP "$(rank_pid "$trainer" 1)"
    sleep 1.5
    kill -CONT "$(rank_pid "$trainer" 1)"
    ends_within $hang_limit $job
    is status "$status" 0
    is messages "$(messages)" ''
    end
}

# ---- several hosts

# on_hosts RANKS ARGUMENT...: runs mpirun on host 0 in the background, with a script instead of ssh
on_hosts() {
    local ranks=$1 list=10.77.7.1:1 i
    shift
    for ((i = 2; i <= ranks; i++)); do list=$list,10.77.7.$i:1; done
    hosts_rsh >"$dir/rsh"
    chmod +x "$dir/rsh"
    : >"$screen"
    (hosts_run 0 timeout $hang_limit mpirun --mca plm_rsh_agent "$dir/rsh" --mca plm_rsh_no_tree_spawn 1 \
        -np "$ranks" --host $list "$trainer" "${small[@]}" "$@" >"$screen" 2>&1 </dev/null) & job=$!
}
sent_by_host() { (hosts_run "$1" cat /sys/class/net/eth0/statistics/tx_bytes); }
hash_of() { hashes "$screen" | tail -n 1; }
test_hosts() {
    hosts_make 3 || { skip ranks.hosts "$hosts_why"; return; }
    hosts=made
    local sent signal expected
    begin 'ranks.hosts three, with the bits of one'
    start 3 -x 40 -z 3
    ends_within $hang_limit $job
    expected=$(hash_of)
    sent=$(sent_by_host 2)
    on_hosts 3 -x 40 -z 3
    ends_within $hang_limit $job
    sent=$(($(sent_by_host 2) - sent))
    need "host 2 sent only $sent bytes" [ $sent -gt 6400000 ]       # 0.16 MB per step
    has "$screen" 'mpi, messages \(ranks on several nodes\)'
    is digests "$(hash_of)" "${expected:-none}"
    end
    # Open MPI itself reports the connection that a killed rank leaves.
    for signal in KILL STOP; do
        begin "ranks.hosts a rank on another host gets $signal"
        on_hosts 2 -x 1000000 -z 3 --comm-timeout $([ $signal = KILL ] && echo 1000 || echo 8)
        reaches_step 3
        kill -$signal "$(rank_pid "$trainer" 1)"
        fails_once 'rank 0 \(host host0\) (has )?waited .* s in an? .* for rank 1 \(host host1\)'
        end
    done
}

groups=("$@")
[ ${#groups[@]} != 0 ] || groups=(refused levels ports fails lost hosts)
for group in "${groups[@]}"; do test_"$group"; done
finish ranks
