#!/usr/bin/env bash
# Tests scripts/multi_node/ on one machine, with fake ssh and Slurm commands: each recipe runs three steps,
# and all must end with the same bits. The ssh recipe also runs on network namespaces as hosts, and must end
# cleanly after an error, Ctrl-C, kill -9 or the loss of a host.
# Usage: tests/test_multi_node.sh TRAINER [GROUP]...      groups: same refused ends hosts
# shellcheck disable=SC2016
. "$(dirname "$0")/cases.sh"
. tests/hosts.sh
ln -s "$(realpath "$1")" "$dir/trainer"
export TRAINER=$dir/trainer             # keeps pgrep from finding other tests' processes
shift
recipes=$PWD/scripts/multi_node
export TRY=1 ARGUMENTS='--device cpu --dtype fp32 --threads 1 --overlap 0' OMP_NUM_THREADS=1 TMPDIR=$dir/tmp
mkdir "$dir/bin" "$dir/tmp"
trap 'hosts_end; rm -rf "$dir" "$disk"' EXIT

# ssh [OPTION]... HOST COMMAND: runs the command on this machine, or on a host of tests/hosts.sh. Like sshd,
# it runs a shell, whose input ends when ssh's input ends or ssh dies.
cat >"$dir/bin/ssh" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
host=$1; shift
[ "$host" != nowhere ] || { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }
cd /                        # a login does not start in the caller's folder
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
# sbatch [OPTION]... SCRIPT [ARGUMENT]...: runs a copy of the script, as Slurm does, but immediately. srun
# COMMAND...: runs the command once per task.
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

nothing_runs() { not pgrep -f "$TRAINER" >/dev/null; }
nothing_left() { await nothing_runs || need "processes remain: $(pgrep -fa "$TRAINER")" false; }
# recipe NAME COMMAND...: runs a recipe, with its output in $dir/NAME; sets screen and status
recipe() {
    screen=$dir/$1
    PORT=$(free_port) timeout -k 2 $hang_limit "${@:2}" >"$screen" 2>&1 </dev/null; status=$?
    nothing_left
}
prints() { has "$screen" "$@"; }
end_run() {
    [ -z "$why" ] || tail -n 12 "$screen" | sed 's/^/    /'
    end
}

# ---- the same bits

# trains NAME CASE COMMAND...: checks that three steps of a recipe end with the same bits as the first recipe
hash=
trains() {
    begin "$2"
    recipe "$1" "${@:3}"
    is status "$status" 0
    prints 'step    3/3 ' ' x 2 ranks '
    hash=${hash:-$(sed -nE 's/.*params_hash ([0-9a-f]{16}).*/\1/p' "$screen")}
    prints "params_hash ${hash:-none}"
}
export HOSTS=localhost GPUS=2
test_same() {
    local start steps ssh=$recipes/run_gpt2_1558M_ssh.sh
    trains mpi 'mpirun.two ranks' "$recipes/run_gpt2_1558M_mpi.sh"; end_run
    for start in tcp fs; do
        SHARED=$dir START=$start trains ssh_$start "ssh.two ranks on one host, $start" "$ssh"
        need 'a line lacks the host name' not grep -qvE '^localhost: ' "$screen"
        end_run
    done
    GPUS=1 HOSTS='localhost me@localhost' trains ssh_two 'ssh.one rank on each of two hosts' "$ssh"; end_run
    trains slurm 'sbatch.two tasks' "$recipes/run_gpt2_1558M.sbatch" --partition=none; end_run

    # Uses the recipe's real settings (TRY=0), but a smaller model, other data and fewer steps; then resumes.
    mkdir -p "$dir/shared/data"
    ln -s "$PWD/data/stories_train.bin" "$dir/shared/data/edu_fineweb_train_000001.bin"
    ln -s "$PWD/data/stories_val.bin" "$dir/shared/data/edu_fineweb_val_000000.bin"
    begin 'whole.a run starts and resumes'
    for steps in 2 3; do
        TRY=0 SHARED=$dir/shared ARGUMENTS+=" -e l1h1c32v257t1024 -b 1 -d 2048 -m 1 -s 0 -x $steps" EVERY=2 \
            recipe whole "$ssh"
        is "status to step $steps" "$status" 0
    done
    prints 'resuming at step 2$' 'step    3/3 .* lr 2.57e-06 '      # a warm-up of 700 steps to 6e-4
    end_run
}

# ---- refused

test_refused() {
    local bad ssh=$recipes/run_gpt2_1558M_ssh.sh
    begin 'refused.ranks that do not divide the batch'
    TRY=0 HOSTS='a b c' GPUS=1 recipe three "$ssh"
    is status "$status" 1
    prints '3 ranks: .*1024 rows'
    end
    begin 'refused.no trainer'
    TRAINER=$dir/none recipe none "$recipes/run_gpt2_1558M_mpi.sh"
    prints 'make train_gpt2_zero'
    end
    for bad in '-b x' '-i none.bin'; do
        begin "refused.$bad, reported once by ssh"
        HOSTS='localhost 127.0.0.1' ARGUMENTS="$ARGUMENTS $bad" recipe bad "$ssh"
        is status "$status" 2
        is messages "$(grep -c 'train_gpt2_zero: ' "$screen")" 1
        prints "localhost: train_gpt2_zero: .*'?${bad#* }"
        end
    done
    begin 'refused.sbatch without the numbers of nodes and tasks'
    SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SLURM_NTASKS=1 recipe bare bash "$recipes/run_gpt2_1558M.sbatch"
    prints 'Slurm started 1 tasks, but settings.sh sets 2'
    end
}

# ---- how a run ends

# begin_run CASE ARGUMENT...: starts a long run on two hosts in the background and waits for its third step
run=("$recipes/run_gpt2_1558M_ssh.sh")
begin_run() {
    begin "$1"
    screen=$dir/long
    rm -f "$dir/pid" "$screen"; : >"$SSH_PIDS"
    # Background shells ignore SIGINT, and their children would inherit that.
    setsid env --default-signal=INT bash -c 'echo $$ >"$0"; exec "$@"' "$dir/pid" env PORT="$(free_port)" \
        GPUS=1 ARGUMENTS="$ARGUMENTS -x 1000000 ${*:2}" HOSTS="${two:-localhost 127.0.0.1}" "${run[@]}" \
        >"$screen" 2>&1 & job=$!
    need 'it did not start' await grep -qs 'step    3/' "$screen"
}
# ends_with [STATUS]: checks that the run ends with STATUS, or with any nonzero status
ends_with() {
    ends_within $hang_limit $job
    need "status $status" [ "$status" = "${1:-$status}" -a "$status" != 0 ]
    nothing_left
}
messages() { grep -acE '^([^ ]+: )?train_gpt2_zero: ' "$screen"; }
test_ends() {
    begin_run 'end.a rank is killed: all end, with one message'
    kill -9 "$(rank_pid "$TRAINER" 1)"
    ends_with
    is messages "$(messages)" 1
    prints 'train_gpt2_zero: (step [0-9]+: )?rank 1 \(host .*\) is gone'
    end_run
    begin_run 'end.Ctrl-C: all end'
    kill -INT -- "-$(cat "$dir/pid")"
    ends_with 130
    prints 'stopped'
    end_run
    begin_run 'end.the recipe itself is killed: all end'
    kill -9 "$(cat "$dir/pid")"
    ends_with 137
    end_run
    begin_run 'end.the connection to a host is lost: all end'
    kill -9 "$(tail -n 1 "$SSH_PIDS")"
    ends_with 137
    end_run
    begin 'end.a host that cannot be reached'
    ARGUMENTS+=' --comm-timeout 5' HOSTS='localhost nowhere' GPUS=1 recipe nowhere "${run[@]}"
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    prints '^nowhere: ssh: .*No route'
    end_run
}

# ---- hosts

test_hosts() {
    local start from_0
    if ! hosts_make 2; then skip 'hosts' "$hosts_why"; return; fi
    export HOSTS_TAG=$hosts_tag
    two='10.77.7.1 10.77.7.2'
    for start in tcp fs; do
        START=$start SHARED=$dir HOSTS=$two GPUS=1 trains hosts_$start "hosts.two, $start" "${run[@]}"
        prints 'several nodes'
        end_run
    done
    from_0=(bash -c '. tests/hosts.sh; hosts_tag=$HOSTS_TAG; hosts_run 0 "$@"' - \
        "$recipes/run_gpt2_1558M_mpi.sh")
    HOSTS=$two GPUS=1 trains hosts_mpi 'hosts.two, mpirun' "${from_0[@]}"
    prints 'mpi, messages \(ranks on several nodes\)'
    end_run
    run=("${from_0[@]}")
    begin_run 'hosts.mpirun, a rank hangs: all end, with one message' --comm-timeout 8
    kill -STOP "$(rank_pid "$TRAINER" 1)"
    ends_with
    is messages "$(messages)" 1
    prints '^train_gpt2_zero: step [0-9]+: rank 0 \(host host0\) waited 8 s .* for rank 1 \(host host1\): '
    end_run
    begin_run 'hosts.mpirun, a rank is killed: all end' --comm-timeout 1000
    kill -9 "$(rank_pid "$TRAINER" 1)"
    ends_with
    need "$(messages) messages" [ "$(messages)" -le 1 ]
    prints 'process rank 1 .* on node 10.77.7.2 exited on signal 9|rank 1 \(host host1\)'
    end_run
    run=("$recipes/run_gpt2_1558M_ssh.sh")
    begin_run 'hosts.a host is cut off: all end, and the message names it' --comm-timeout 8
    hosts_link 1 down
    ends_with 1
    prints '^10.77.7.1: train_gpt2_zero: .*rank 1 \(host host1\)'
    end_run
}
for group in "${@:-same refused ends hosts}"; do for g in $group; do test_$g; done; done
finish test_multi_node
