#!/usr/bin/env bash
# Tests how jobs of several ranks start and end: under mpirun, on one host and on two (network namespaces),
# and by the recipes in scripts/multi_node/. Ranks are refused, fail, are killed or are stopped.
# Usage: tests/ranks.sh TRAINER MPI_NET [GROUP]...
#   groups: refused levels ports fails lost continued hosts recipes ends
#   KILLS=30    kills or stops 30 ranks, at random instants
# shellcheck disable=SC2016,SC2046,SC2086
. "$(dirname "$0")/cases.sh"
. tests/runs.sh
. tests/hosts.sh
ln -s "$(realpath "${1:-./train_gpt2_zero}")" "$dir/trainer"
trainer=$dir/trainer                    # keeps pgrep from finding other tests' processes
mpi_net=$(realpath "${2:-build/tests/mpi_net}") || exit 1
shift 2
job=
trap 'stop_all; hosts_end; rm -rf "$dir" "$disk"' EXIT
# mpirun waits this many seconds after SIGCONT, and again after SIGTERM: a busy rank may need them to print.
export OMP_NUM_THREADS=1 OMPI_MCA_odls_base_sigkill_timeout=3
small=(-e l2h2c32v257t32 -b 2 -u 0 -v 0 -s 0 -x 1 --threads 1 --overlap 0 --hash full --device cpu)
host=$(hostname) screen=$dir/long
hosts_commands

ranks() { pgrep -f "^$trainer "; }
nothing_runs() { not ranks >/dev/null; }
nothing_left() { await nothing_runs || need "processes remain: $(ranks)" false; }
stop_all() { [ -z "$job" ] || kill -9 $(ranks) $job 2>/dev/null; wait 2>/dev/null; job=; }
# starts COMMAND...: runs it in the background
starts() {
    : >"$screen"        # the background command empties it only when it starts
    "$@" >"$screen" 2>&1 </dev/null & job=$!
}
start() { starts run "$1" $hang_limit "${small[@]}" "${@:2}"; }         # NP ARGUMENT...
messages() { grep -aE '^(train_gpt2_zero|llmc_zero): |exited without zero_destroy' "$screen"; }
# fails_once PATTERN [MOST]: checks that the job ends with a nonzero status and one message, or at most MOST
# of which one matches, and leaves no process
fails_once() {
    ends_within $hang_limit $job
    job=
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    need "$(messages | wc -l) messages: $(messages)" [ "$(messages | wc -l)" -le "${2:-1}" ]
    need "wrong message: $(messages)" grep -qE "$1" <(messages)
    nothing_left
}
reaches_step() {        # N
    await grep -aqsE "^step *$1/" "$screen" || need "step $1 was not reached: $(messages)" false
}

# ---- starts that are refused

# test_launch covers what a launcher puts into the environment.
test_refused() {
    local how='start .*mpirun -np N, .*srun --mpi=pmix, .*sbatch job$'
    refusals <<END
ranks.refused -pi tcp|1|option -pi tcp: Open MPI connects the ranks: $how|-pi tcp -ps a:1 -pn 2 -pr 0
ranks.refused -pn for one rank|1|option -pn 2: the launcher started 1 rank: $how|-pn 2
ranks.refused -pr of another rank|1|option -pr 1: the launcher made this rank 0 of 1|-pr 1
ranks.refused a launcher that MPI does not know|1|started 2 ranks, but MPI sees 1|OMPI_COMM_WORLD_RANK=0 \
OMPI_COMM_WORLD_SIZE=2
END
    begin "ranks.llm.c's letters without effect, and one rank without MPI"
    trains 1 letters -pi mpi -pn 1 -pr 0 -pg 8 -ps a -pf b
    screen letters 'option -ps a: no effect' 'option -pf b: no effect' 'stage 3, self'
    end
    begin 'ranks.refused different arguments, before anything is allocated'
    wrap='[ $rank != 2 ] || set -- "$@" -b 4;'
    refuses 4 'rank 2 .* has -b = 4 and rank 0 .* has -b = 2' --messages 1
    wrap=
    need 'memory was allocated' not grep -q 'model states' "$dir/refused"
    end
    if ! (ulimit -v 400000; "$trainer" --help) >/dev/null 2>&1; then
        skip 'ranks.refused too little memory' 'the program does not start under ulimit -v (AddressSanitizer)'
        return
    fi
    wrap='[ $rank != 1 ] || ulimit -v 600000;'
    refused 'ranks.refused too little memory on one rank' 4 \
        'rank 1 \(host .*\): .* of host memory are needed, but RLIMIT_AS' -z 0 -e l8h4c768v512t32
    wrap=
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
    # so that the check can fail
    need 'mpirun has none either' [ -n "$(ports $(processes $job | grep -vxFf <(ranks)))" ]
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
    starts timeout $hang_limit mpirun --oversubscribe -np 2 "$mpi_net" leaves
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
    for way in '--messages 1' '--overlap 1'; do
        begin "ranks.lost stopped and continued in time, $way"
        start 2 -x 400 -z 3 $way --comm-timeout 20
        reaches_step 3
        kill -STOP "$(rank_pid "$trainer" 1)"
        sleep 1.5
        kill -CONT "$(rank_pid "$trainer" 1)"
        ends_within $hang_limit $job
        is 'status, messages' "$status $(messages)" '0 '
        end
    done
}
# A signal handler on the stack of the thread that computes would overwrite what oneDNN keeps there.
test_continued() {
    local wide=(-e l2h12c768v257t32 -b 1 -r 3 -u 0 -v 0 -s 0 -x 15 --dtype fp32 --threads 1 --overlap 0 \
        --hash full --device cpu) pids
    begin 'ranks.continued again and again while they compute: the same bits'
    need 'failed' run 2 $hang_limit "${wide[@]}" >"$dir/alone" 2>&1
    starts run 2 $hang_limit "${wide[@]}"
    reaches_step 1
    pids=$(ranks)
    while kill -CONT $pids 2>/dev/null; do sleep 0.005; done
    ends_within $hang_limit $job
    job=
    is 'status' "$status" 0
    is 'hash' "$(grep -o 'params_hash.*' "$screen")" "$(grep -o 'params_hash.*' "$dir/alone")"
    end
}

# Open MPI itself reports the connection that a killed rank leaves. tests/same_bits.sh compares the bits of
# ranks on several hosts.
# The ranks of two groups wait for each other: one of them names the victim, and if it is stopped, all do.
on_hosts() {            # RANKS_PER_HOST COMMAND...
    hosts_on 0 timeout $hang_limit mpirun --oversubscribe -np $((2 * $1)) --host 10.77.7.1:$1,10.77.7.2:$1 \
        "${@:2}"
}
test_hosts() {
    local signal limit each victim most
    hosts_make 2 || { skip ranks.hosts "$hosts_why"; return; }
    while read -r signal limit each victim most; do
        begin "ranks.hosts $each on each, rank $victim gets $signal"
        starts on_hosts $each "$trainer" "${small[@]}" -x 1000000 -z 3 --comm-timeout $limit
        reaches_step 3
        kill -$signal "$(rank_pid "$trainer" $victim)"
        fails_once "rank [0-9] \(host host.\) (has )?waited .* s in an? .* for rank $victim \(host " $most
        end
    done <<'END'
KILL 1000 1 1 1
STOP 8 1 1 1
KILL 1000 2 3 3
STOP 8 2 3 1
STOP 8 2 0 1
END
    sent_by_hosts windows 0
    sent_by_hosts messages 1
}
# Compares what ten steps send from host 0 with the plan: both two groups and one.
sent_by_hosts() {       # NAME MESSAGES
    local big=(-e l4h4c256v512t64 -b 2 -d 512 -u 0 -v 0 -s 0 --threads 1 --overlap 0 --device cpu --dtype bf16
        --messages "$2") steps sent=() planned
    local -x OMPI_MCA_mpi_show_mca_params=enviro
    begin "ranks.hosts bytes on the interface, $1"
    for steps in 2 12; do
        sent+=(-"$(sent_by_host_0)")
        on_hosts 2 "$trainer" "${big[@]}" -x $steps >"$screen" 2>&1 </dev/null || need "$(messages)" false
        sent+=("$(sent_by_host_0)")
    done
    need 'TCP does not send in parts' grep -q 'btl_tcp_flags=send' "$screen"
    "$trainer" "${big[@]}" --plan --plan-ranks 4 -pg 2 >"$screen" 2>&1
    planned=$(awk '/^  step: / { mib += $NF } END { printf "%d", 10 * 2 * mib * 1048576 }' "$screen")
    sent=$((sent[3] + sent[2] - sent[1] - sent[0]))
    # Headers, and packets that TCP repeats, are counted too.
    need "$sent bytes, planned $planned" [ $((100 * sent)) -ge $((99 * planned)) -a \
        $((100 * sent)) -le $((105 * planned)) ]
    end
}
sent_by_host_0() { ip netns exec "${hosts_tag}0" cat /sys/class/net/eth0/statistics/tx_bytes; }

# ---- scripts/multi_node/. tests/same_bits.sh compares the bits of ranks that they start

recipe=$PWD/scripts/multi_node/run_gpt2_1558M_mpi.sh batch=${recipe%_mpi.sh}.sbatch
export TRY=1 TRAINER=$trainer ARGUMENTS='--device cpu --dtype fp32 --threads 1 --overlap 0' HOSTS=localhost \
    GPUS=2 TMPDIR=$dir
# runs COMMAND...: runs a recipe. prints PATTERN...: checks what it printed.
runs() {
    timeout -k 2 $hang_limit "$@" >"$screen" 2>&1 </dev/null
    status=$?
    nothing_left
}
prints() { has "$screen" "$@"; }

test_recipes() {
    local steps
    # Uses the recipe's real settings (TRY=0), but a smaller model, other data and fewer steps; then resumes.
    mkdir -p "$dir/shared/data"
    ln -s "$PWD/data/stories_train.bin" "$dir/shared/data/edu_fineweb_train_000001.bin"
    ln -s "$PWD/data/stories_val.bin" "$dir/shared/data/edu_fineweb_val_000000.bin"
    begin 'recipes.a run starts and resumes'
    for steps in 2 3; do
        TRY=0 SHARED=$dir/shared ARGUMENTS+=" -e l1h1c32v257t1024 -b 1 -d 2048 -m 1 -s 0 -x $steps" EVERY=2 \
            runs "$recipe"
        is "status to step $steps" "$status" 0
    done
    prints 'resuming at step 2$' 'step    3/3 .* lr 2.57e-06 '      # a warm-up of 700 steps to 6e-4
    end
    begin 'recipes.ranks that do not divide the batch, no trainer, a wrong option, other ranks under Slurm'
    TRY=0 HOSTS='a b c' GPUS=1 runs "$recipe"
    is status "$status" 1
    prints '3 ranks: .*1024 rows'
    TRAINER=$dir/none runs "$recipe"
    prints 'make train_gpt2_zero'
    ARGUMENTS="$ARGUMENTS -b x" runs "$recipe"
    is 'status, messages' "$status $(messages | wc -l)" '2 1'
    prints "train_gpt2_zero: .*'x'"
    SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SLURM_NTASKS=1 runs bash "$batch"
    prints 'Slurm started 1 tasks, but settings.sh sets 2'
    end
}

# ends_after SIGNAL -|'' [STATUS]: sends the signal to the group of a long run, or to mpirun, and checks that
# all of it ends with STATUS, or with any other than 0
ends_after() {
    # Background shells ignore SIGINT, and their children would inherit that.
    ARGUMENTS="$ARGUMENTS -x 1000000" starts setsid env --default-signal=INT \
        bash -c 'echo $$ >"$0"; exec "$@"' "$dir/pid" "$recipe"
    reaches_step 3
    kill -"$1" -- "$2$(cat "$dir/pid")"
    ends_within $hang_limit $job
    job=
    need "status $status" [ "$status" = "${3:-$status}" -a "$status" != 0 ]
    nothing_left
}
test_ends() {
    begin 'ends.Ctrl-C: all end'
    ends_after INT -
    end
    begin 'ends.mpirun itself is killed: all end'
    ends_after KILL '' 137
    end
    begin 'ends.a host that cannot be reached'
    HOSTS='localhost nowhere' GPUS=1 runs "$recipe"
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    prints '^ssh: .*No route'
    end
}

groups=("$@")
[ ${#groups[@]} != 0 ] || groups=(refused levels ports fails lost continued hosts recipes ends)
for group in "${groups[@]}"; do test_"$group"; done
finish ranks
