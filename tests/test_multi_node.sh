#!/usr/bin/env bash
# Tests scripts/multi_node/ on one machine, with scripts that imitate ssh and Slurm: each recipe runs three
# steps, and both must end with the same bits, also on network namespaces as hosts. A run must end cleanly
# after an error, Ctrl-C and kill -9. tests/ranks.sh has ranks that die or hang.
# Usage: tests/test_multi_node.sh TRAINER [GROUP]...      groups: same refused ends hosts
# shellcheck disable=SC2016
. "$(dirname "$0")/cases.sh"
. tests/hosts.sh
ln -s "$(realpath "$1")" "$dir/trainer"
export TRAINER=$dir/trainer             # keeps pgrep from finding other tests' processes
shift
recipe=$PWD/scripts/multi_node/run_gpt2_1558M_mpi.sh batch=$PWD/scripts/multi_node/run_gpt2_1558M.sbatch
export TRY=1 ARGUMENTS='--device cpu --dtype fp32 --threads 1 --overlap 0' OMP_NUM_THREADS=1 TMPDIR=$dir/tmp
mkdir "$dir/bin" "$dir/tmp"
trap 'hosts_end; rm -rf "$dir" "$disk"' EXIT

# ssh [OPTION]... HOST COMMAND: runs the command on a host of tests/hosts.sh
cat >"$dir/bin/ssh" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
host=$1; shift
[ "$host" != nowhere ] || { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }
cd /                        # a login does not start in the caller's folder
. "$TESTS/hosts.sh"; hosts_tag=$HOSTS_TAG
hosts_run $((${host##*.} - 1)) sh -c "$*"
END
# sbatch [OPTION]... SCRIPT [ARGUMENT]...: runs a copy of the script, as Slurm does, but immediately
cat >"$dir/bin/sbatch" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do
    case $1 in --nodes=*) nodes=${1#*=} ;; --ntasks-per-node=*) tasks=${1#*=} ;; esac
    shift
done
cp "$1" "$SPOOL/slurm_script"; shift
export SLURM_JOB_ID=4711$$ SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NUM_NODES=$nodes SLURM_NNODES=$nodes
export SLURM_NTASKS=$((nodes * tasks)) SLURM_NTASKS_PER_NODE=$tasks SLURM_TASKS_PER_NODE=$tasks
export SLURM_JOBID=$SLURM_JOB_ID SLURM_PROCID=0 SLURM_JOB_NODELIST=localhost SLURM_NODELIST=localhost
cd "$SPOOL" && exec bash ./slurm_script "$@"
END
chmod +x "$dir"/bin/*
export SPOOL=$dir TESTS=$PWD/tests PATH=$dir/bin:$PATH HOSTS=localhost GPUS=2

nothing_runs() { not pgrep -f "$TRAINER" >/dev/null; }
nothing_left() { await nothing_runs || need "processes remain: $(pgrep -fa "$TRAINER")" false; }
# run NAME COMMAND...: runs a recipe, with its output in $dir/NAME; sets screen and status
run() {
    screen=$dir/$1
    timeout -k 2 $hang_limit "${@:2}" >"$screen" 2>&1 </dev/null; status=$?
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
    run "$1" "${@:3}"
    is status "$status" 0
    prints 'step    3/3 ' ' x 2 ranks '
    hash=${hash:-$(sed -nE 's/.*params_hash ([0-9a-f]{16}).*/\1/p' "$screen")}
    prints "params_hash ${hash:-none}"
}
test_same() {
    local steps
    trains mpi 'mpirun.two ranks' "$recipe"; end_run
    trains slurm 'sbatch.two tasks' "$batch" --partition=none; end_run

    # Uses the recipe's real settings (TRY=0), but a smaller model, other data and fewer steps; then resumes.
    mkdir -p "$dir/shared/data"
    ln -s "$PWD/data/stories_train.bin" "$dir/shared/data/edu_fineweb_train_000001.bin"
    ln -s "$PWD/data/stories_val.bin" "$dir/shared/data/edu_fineweb_val_000000.bin"
    begin 'whole.a run starts and resumes'
    for steps in 2 3; do
        TRY=0 SHARED=$dir/shared ARGUMENTS+=" -e l1h1c32v257t1024 -b 1 -d 2048 -m 1 -s 0 -x $steps" EVERY=2 \
            run whole "$recipe"
        is "status to step $steps" "$status" 0
    done
    prints 'resuming at step 2$' 'step    3/3 .* lr 2.57e-06 '      # a warm-up of 700 steps to 6e-4
    end_run
}

# ---- refused

test_refused() {
    local bad
    begin 'refused.ranks that do not divide the batch'
    TRY=0 HOSTS='a b c' GPUS=1 run three "$recipe"
    is status "$status" 1
    prints '3 ranks: .*1024 rows'
    end
    begin 'refused.no trainer'
    TRAINER=$dir/none run none "$recipe"
    prints 'make train_gpt2_zero'
    end
    for bad in '-b x' '-i none.bin'; do
        begin "refused.$bad, reported once"
        ARGUMENTS="$ARGUMENTS $bad" run bad "$recipe"
        is status "$status" 2
        is messages "$(grep -c 'train_gpt2_zero: ' "$screen")" 1
        prints "train_gpt2_zero: .*'?${bad#* }"
        end
    done
    begin 'refused.sbatch without the numbers of nodes and tasks'
    SLURM_JOB_ID=1 SLURM_SUBMIT_DIR=$PWD SLURM_NTASKS=1 run bare bash "$batch"
    prints 'Slurm started 1 tasks, but settings.sh sets 2'
    end
}

# ---- how a run ends

# begin_run CASE: starts a long run in the background and waits for its third step
begin_run() {
    begin "$1"
    screen=$dir/long
    rm -f "$dir/pid" "$screen"
    # Background shells ignore SIGINT, and their children would inherit that.
    setsid env --default-signal=INT bash -c 'echo $$ >"$0"; exec "$@"' "$dir/pid" \
        env ARGUMENTS="$ARGUMENTS -x 1000000" "$recipe" >"$screen" 2>&1 & job=$!
    need 'it did not start' await grep -qs 'step    3/' "$screen"
}
# ends_with [STATUS]: checks that the run ends with STATUS, or with any nonzero status
ends_with() {
    ends_within $hang_limit $job
    need "status $status" [ "$status" = "${1:-$status}" -a "$status" != 0 ]
    nothing_left
}
test_ends() {
    begin_run 'end.a rank is killed: all end'
    kill -9 "$(rank_pid "$TRAINER" 1)"
    ends_with
    prints 'process rank 1 .* exited on signal 9'
    end_run
    begin_run 'end.Ctrl-C: all end'
    kill -INT -- "-$(cat "$dir/pid")"
    ends_with
    end_run
    begin_run 'end.mpirun itself is killed: all end'
    kill -9 "$(cat "$dir/pid")"
    ends_with 137
    end_run
    begin 'end.a host that cannot be reached'
    HOSTS='localhost nowhere' GPUS=1 run nowhere "$recipe"
    need "status $status" [ "$status" != 0 -a "$status" != 124 ]
    prints '^ssh: .*No route'
    end_run
}

# ---- hosts

test_hosts() {
    if ! hosts_make 2; then skip 'hosts' "$hosts_why"; return; fi
    export HOSTS_TAG=$hosts_tag
    HOSTS='10.77.7.1 10.77.7.2' GPUS=1 trains hosts 'hosts.two' \
        bash -c '. tests/hosts.sh; hosts_tag=$HOSTS_TAG; hosts_run 0 "$@"' - "$recipe"
    prints 'mpi, messages \(ranks on several nodes\)'
    end_run
}
for group in "${@:-same refused ends hosts}"; do for g in $group; do test_$g; done; done
finish test_multi_node
