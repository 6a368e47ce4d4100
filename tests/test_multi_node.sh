#!/usr/bin/env bash
# scripts/multi_node/ on this machine: three steps by each recipe, which must end in the same bits; for ssh
# and Slurm, scripts that stand for them. The ssh recipe also on network namespaces as hosts, where there can
# be some; and its ends: an error, Ctrl-C, kill -9, a lost host.
# Usage: tests/test_multi_node.sh TRAINER [GROUP]...      groups: same refused ends hosts
set -u
cd "$(dirname "$0")/.." || exit 1
TRAINER=$(realpath "$1"); export TRAINER
shift
. tests/cases.sh
. scripts/mpi_env.sh
. tests/hosts.sh
recipes=$PWD/scripts/multi_node
export TRY=1 ARGUMENTS='--device cpu --dtype fp32 --threads 1 --overlap 0' OMP_NUM_THREADS=1 TMPDIR=$dir/tmp
mkdir "$dir/bin" "$dir/tmp"
trap 'hosts_end; rm -rf "$dir"' EXIT

# ssh [OPTION]... HOST COMMAND: on this machine, or on a host of tests/hosts.sh. Like sshd, it has the command
# run by a shell, whose input ends with its own, or when it is gone.
cat >"$dir/bin/ssh" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
host=$1; shift
[ "$host" != nowhere ] || { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }
cd /                        # a login does not begin where its caller is
echo $$ >>"$SSH_PIDS"
input=$TMPDIR/ssh.$$
mkfifo "$input"
login() {
    [ -n "${HOSTS_TAG:-}" ] || exec sh -c "$*"
    . "$TESTS/hosts.sh"; hosts_tag=$HOSTS_TAG
    hosts_run $((${host##*.} - 1)) sh -c "$*"
}
login "$*" <"$input" & session=$!
exec 7>"$input"
while kill -0 $session 2>/dev/null; do
    read -r -t 0.1 line
    case $? in
        0) echo "$line" >&7 ;;
        1) exec 7>&-; break ;;
    esac
done
wait $session
END
# sbatch [OPTION]... SCRIPT [ARGUMENT]...: runs it at once, as Slurm would, from a copy. srun COMMAND...: the
# tasks.
cat >"$dir/bin/sbatch" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do
    case $1 in --nodes=*) nodes=${1#*=} ;; --ntasks-per-node=*) tasks=${1#*=} ;; esac
    shift
done
cp "$1" "$SPOOL/slurm_script"; shift
export SLURM_JOB_ID=4711$$ SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NUM_NODES=$nodes
export SLURM_NTASKS=$((nodes * tasks)) SLURM_NTASKS_PER_NODE=$tasks
export SLURM_JOB_NODELIST=localhost
cd "$SPOOL" && exec bash ./slurm_script "$@"
END
cat >"$dir/bin/srun" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost
export SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_TASKS_PER_NODE=$SLURM_NTASKS
pids=() worst=0
for ((i = 0; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || worst=$?; done
exit $worst
END
chmod +x "$dir"/bin/*
export SSH_PIDS=$dir/ssh_pids SPOOL=$dir TESTS=$PWD/tests PATH=$dir/bin:$PATH

hash_of() { sed -nE 's/.*params_hash ([0-9a-f]{16}).*/\1/p' "$1"; }
# Process ids of what still runs of a recipe: they have a variable that only they have, and name the trainer.
processes() {
    local p name
    for p in $(grep -alF "$TRAINER" /proc/[0-9]*/cmdline 2>/dev/null); do
        p=${p%/cmdline}
        grep -aqF "TMPDIR=$TMPDIR" "$p/environ" 2>/dev/null && read -r name 2>/dev/null <"$p/comm" &&
            [ "$name" != grep ] && echo "${p#/proc/}"
    done
}
left() { for p in $(processes); do tr '\0' ' ' <"/proc/$p/cmdline"; echo; done 2>/dev/null; }
nothing_runs() {
    local i
    for ((i = 0; i < 50; i++)); do
        [ -z "$(processes)" ] && return 0
        sleep 0.1
    done
    return 1
}
# recipe SECONDS NAME COMMAND...: its screen is $dir/NAME, its status $status
recipe() {
    local limit=$1 screen=$dir/$2 since=$EPOCHREALTIME
    shift 2
    timeout -k 2 "$limit" "$@" >"$screen" 2>&1 </dev/null; status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $since }")
    nothing_runs || need "processes are left: $(left)" false
}
port() {        # a free one, below those that the system gives away
    until PORT=$((12000 + RANDOM % 8000)); ! (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; do :; done
    export PORT
}
shown() { [ -z "$why" ] || tail -n 12 "$dir/$1" | sed 's/^/    /'; }

# ---- the same bits

hash=
# trained NAME: with the same bits as the first one
trained() {
    need "status $status" [ "$status" = 0 ]
    need 'no three steps' grep -q 'step    3/3 ' "$dir/$1"
    need 'no two ranks' grep -qE ' x 2 ranks ' "$dir/$1"
    hash=${hash:-$(hash_of "$dir/$1")}
    need "params_hash '$(hash_of "$dir/$1")' after '$hash'" [ -n "$hash" -a "$(hash_of "$dir/$1")" = "$hash" ]
    shown "$1"
    end
}
export HOSTS=localhost GPUS=2
test_same() {
    begin 'mpirun.two ranks'; recipe 40 mpi "$recipes/run_gpt2_1558M_mpi.sh"; trained mpi
    for start in tcp fs; do
        port
        begin "ssh.two ranks on one host, $start"
        SHARED=$dir START=$start recipe 40 ssh_$start "$recipes/run_gpt2_1558M_ssh.sh"
        need 'the host is not before each line' not grep -qvE '^localhost: ' "$dir/ssh_$start"
        trained ssh_$start
    done
    begin 'ssh.one rank on each of two hosts'
    port; GPUS=1 HOSTS='localhost me@localhost' recipe 40 ssh_two "$recipes/run_gpt2_1558M_ssh.sh"
    trained ssh_two
    begin 'sbatch.two tasks'
    recipe 40 slurm "$recipes/run_gpt2_1558M.sbatch" --partition=none
    trained slurm

    # The run itself, its options but with another model, other data, and fewer of them; then it goes on.
    mkdir -p "$dir/shared/data"
    ln -s "$PWD/data/stories_train.bin" "$dir/shared/data/edu_fineweb_train_000001.bin"
    ln -s "$PWD/data/stories_val.bin" "$dir/shared/data/edu_fineweb_val_000000.bin"
    begin 'whole.begins, and goes on'
    for steps in 2 3; do
        port
        TRY=0 SHARED=$dir/shared ARGUMENTS+=" -e l1h1c32v257t1024 -b 1 -d 2048 -m 1 -s 0 -x $steps" EVERY=2 \
            recipe 40 whole "$recipes/run_gpt2_1558M_ssh.sh"
        need "to step $steps: status $status" [ "$status" = 0 ]
    done
    need 'it did not go on' grep -q 'resuming at step 2$' "$dir/whole"
    need 'no warm-up of 700 steps to 6e-4' grep -q 'step    3/3 .* lr 2.57e-06 ' "$dir/whole"
    shown whole; end
}

# ---- refused

test_refused() {
    begin 'refused.ranks that do not divide a step'
    TRY=0 HOSTS='a b c' GPUS=1 recipe 5 three "$recipes/run_gpt2_1558M_ssh.sh"
    need "status $status" [ "$status" = 1 ]
    need "$(head -n 1 "$dir/three")" grep -q '3 ranks: a step has 1024 rows' "$dir/three"
    end
    begin 'refused.no trainer'
    TRAINER=$dir/none recipe 5 none "$recipes/run_gpt2_1558M_mpi.sh"
    need "status $status: $(cat "$dir/none")" grep -q 'make train_gpt2_zero' "$dir/none"
    end
    for bad in '-b x' '-i none.bin'; do
        begin "refused.$bad, told once by ssh"
        port
        GPUS=2 HOSTS='localhost 127.0.0.1' ARGUMENTS="$ARGUMENTS $bad" recipe 20 bad \
            "$recipes/run_gpt2_1558M_ssh.sh"
        need "status $status" [ "$status" = 2 ]
        need "$(cat "$dir/bad")" [ "$(grep -c 'train_gpt2_zero: ' "$dir/bad")" = 1 ]
        need "$(cat "$dir/bad")" grep -q "localhost: train_gpt2_zero: .*'\?${bad#* }" "$dir/bad"
        end
    done
    begin 'refused.sbatch without the numbers'
    SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SLURM_NTASKS=1 recipe 5 bare bash "$recipes/run_gpt2_1558M.sbatch"
    need "status $status: $(cat "$dir/bare")" grep -q 'Slurm gave 1 tasks, settings.sh stands for 2' \
        "$dir/bare"
    end
}

# ---- how it ends

# begin_run ARGUMENT...: a long run on two hosts, in the background; waits for its third step
run=("$recipes/run_gpt2_1558M_ssh.sh")
begin_run() {
    port; rm -f "$dir/pid" "$dir/long"; : >"$SSH_PIDS"
    # in the background a shell ignores Ctrl-C, and so would what it starts
    # shellcheck disable=SC2016
    setsid env --default-signal=INT bash -c 'echo $$ >"$0"; exec "$@"' "$dir/pid" \
        env GPUS=1 ARGUMENTS="$ARGUMENTS -x 1000000 $*" HOSTS="${two:-localhost 127.0.0.1}" "${run[@]}" \
        >"$dir/long" 2>&1 & job=$!
    local i
    for ((i = 0; i < 200; i++)); do grep -qs 'step    3/' "$dir/long" && return; sleep 0.1; done
    need 'it did not start' false
}
wait_for_job() {        # sets status and took
    local i since=$EPOCHREALTIME
    for ((i = 0; i < 400; i++)); do kill -0 $job 2>/dev/null || break; sleep 0.1; done
    [ $i -lt 400 ] || {
        need 'it hangs' false
        kill -TERM "$(cat "$dir/pid")"
        sleep 5
        kill -9 $job 2>/dev/null
    }
    wait $job 2>/dev/null; status=$?
    took=$(awk "BEGIN { print $EPOCHREALTIME - $since }")
}
ended() {       # STATUS SECONDS
    need "status $status" [ "$status" = "$1" ]
    need "took $took s" number "$took < $2"
    nothing_runs || need "processes are left: $(left)" false
    shown long
    end
}
messages() { grep -acE '^([^ ]+: )?train_gpt2_zero: ' "$dir/long"; }
rank_pid() {    # RANK: by its last option, or by mpirun's variable
    local p name
    for p in $(processes); do
        read -r name <"/proc/$p/comm" && [ "$name" = "$(basename "$TRAINER" | cut -c 1-15)" ] || continue
        if tr '\0' '\n' <"/proc/$p/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1" ||
            tr '\0' ' ' <"/proc/$p/cmdline" | grep -q -- " -pr $1 \$"; then
            echo "$p"
        fi
    done
}

test_ends() {
    begin 'end.a rank is killed: one message, all end'
    begin_run
    kill -9 "$(rank_pid 1)"
    wait_for_job
    need "$(messages) messages" [ "$(messages)" = 1 ]
    need 'the message does not name the rank' grep \
        -qE 'train_gpt2_zero: (step [0-9]+: )?rank 1 \(host .*\) is gone' "$dir/long"
    need "status $status" [ $status != 0 ]
    ended "$status" 12
    begin 'end.Ctrl-C: all end'
    begin_run
    kill -INT -- "-$(cat "$dir/pid")"
    wait_for_job
    need 'it does not say so' grep -q 'stopped' "$dir/long"
    ended 130 6
    begin 'end.the recipe itself is killed: all end'
    begin_run
    kill -9 "$(cat "$dir/pid")"
    wait_for_job
    ended 137 6
    begin 'end.the connection to a host is lost: all end'
    begin_run
    kill -9 "$(tail -n 1 "$SSH_PIDS")"
    wait_for_job
    ended 137 12
    begin 'end.a host that cannot be reached'
    port
    ARGUMENTS+=' --comm-timeout 1.5' HOSTS='localhost nowhere' GPUS=1 recipe 40 nowhere \
        "$recipes/run_gpt2_1558M_ssh.sh"
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    need 'it does not say which' grep -q '^nowhere: ssh: .*No route' "$dir/nowhere"
    need "took $took s" number "$took < 20"
    shown nowhere; end
}

# ---- hosts

test_hosts() {
    if hosts_make 2; then
        export HOSTS_TAG=$hosts_tag
        two='10.77.7.1 10.77.7.2'
        for start in tcp fs; do
            begin "hosts.two, $start"
            port
            START=$start SHARED=$dir HOSTS=$two GPUS=1 recipe 40 hosts_$start "$recipes/run_gpt2_1558M_ssh.sh"
            need 'not on two hosts' grep -q 'several nodes' "$dir/hosts_$start"
            trained hosts_$start
        done
        begin 'hosts.two, mpirun'
        # shellcheck disable=SC2016
        from_0=(bash -c '. tests/hosts.sh; hosts_tag=$HOSTS_TAG; hosts_run 0 "$@"' - \
            "$recipes/run_gpt2_1558M_mpi.sh")
        HOSTS=$two GPUS=1 recipe 40 hosts_mpi "${from_0[@]}"
        need 'not on two hosts' grep -q 'mpi, messages (ranks on several nodes)' "$dir/hosts_mpi"
        trained hosts_mpi
        run=("${from_0[@]}")
        begin 'hosts.mpirun, a rank hangs: one message, all end'
        begin_run --comm-timeout 2
        kill -STOP "$(rank_pid 1)"
        wait_for_job
        need "$(messages) messages" [ "$(messages)" = 1 ]
        need 'the message does not name ranks and hosts' grep -qE \
            '^train_gpt2_zero: step [0-9]+: rank 0 \(host host0\) waited 2 s in an? .* for rank 1 \(host '\
'host1\): ' "$dir/long"
        ended "$status" 12
        begin 'hosts.mpirun, a rank is killed: all end'
        begin_run --comm-timeout 20
        kill -9 "$(rank_pid 1)"
        wait_for_job
        need "$(messages) messages" [ "$(messages)" -le 1 ]
        need 'nobody names it' grep \
            -qE 'process rank 1 .* on node 10.77.7.2 exited on signal 9|rank 1 \(host host1\)' "$dir/long"
        ended "$status" 12
        begin 'hosts.a host is cut off: all end, and it is named'
        run=("$recipes/run_gpt2_1558M_ssh.sh")
        begin_run --comm-timeout 4
        hosts_link 1 down
        wait_for_job
        need "not named: $(grep -a train_gpt2_zero: "$dir/long")" grep \
            -qE '^10.77.7.1: train_gpt2_zero: .*rank 1 \(host host1\)' "$dir/long"
        ended 1 15
    else skip 'hosts' "$hosts_why"; fi
}
for group in "${@:-same refused ends hosts}"; do for g in $group; do test_$g; done; done
finish test_multi_node
