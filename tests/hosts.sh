# Sourced. Simulates hosts on one machine: network namespaces with separate names and addresses, joined by a
# bridge. Needs root.
#   hosts_make N    makes hosts 0 to N-1; on failure returns 1 and sets $hosts_why. Host I has the name hostI,
#                   the address 10.77.7.(I+1) and port I of the bridge
#   hosts_run I COMMAND...    becomes the command on host I; hosts_on does not replace the shell    hosts_end
#   hosts_rsh    prints a script for mpirun's plm_rsh_agent, in place of ssh to the address of a host
#   hosts_commands    puts it into PATH as ssh, and a script in place of Slurm's sbatch; both are in $dir/bin
#   hosts_limit RATE    limits what each host sends to RATE in tc's syntax (2gbit), or "unlimited"
hosts_tag=zn$$ hosts_bridge=zb$$ hosts_n=0 hosts_why=
hosts_cores=        # of each host, which uses no others; empty: all hosts share the machine's

hosts_end() {
    for ((i = 0; i < hosts_n; i++)); do ip netns del $hosts_tag$i 2>/dev/null; done
    ip netns del ${hosts_tag}sw 2>/dev/null
    hosts_n=0
}
# The bridge has a separate namespace, so the machine's network stays untouched.
hosts_try() {
    ip netns add ${hosts_tag}sw && ip -n ${hosts_tag}sw link add $hosts_bridge type bridge &&
        ip -n ${hosts_tag}sw link set $hosts_bridge up || return 1
    for ((i = 0; i < $1; i++)); do
        hosts_n=$((i + 1))
        ip netns add $hosts_tag$i &&
            ip -n $hosts_tag$i link add eth0 type veth peer name port$i netns ${hosts_tag}sw &&
        ip -n ${hosts_tag}sw link set port$i master $hosts_bridge up &&
        ip -n $hosts_tag$i addr add 10.77.7.$((i + 1))/24 dev eth0 &&
        ip -n $hosts_tag$i link set lo up && ip -n $hosts_tag$i link set eth0 up || return 1
    done
}
hosts_make() {
    local log; log=$(mktemp)
    if [ "$(id -u)" != 0 ]; then hosts_why="only root can make network namespaces"
    elif ! command -v ip >/dev/null ||
        ! command -v unshare >/dev/null; then hosts_why="needs ip (iproute2) and unshare (util-linux)"
    elif ! hosts_try "$1" 2>"$log"; then
        hosts_why="cannot make network namespaces: $(head -n 1 "$log")"
        hosts_end
    fi
    rm -f "$log"
    [ -z "$hosts_why" ]
}
# Undoes the settings of scripts/mpi_env.sh for one machine.
# shellcheck disable=SC2016
hosts_run() {
    local i=$1
    shift
    unset OMPI_MCA_btl OMPI_MCA_oob_tcp_if_include
    [ -z "$hosts_cores" ] || set -- taskset -c $((i * hosts_cores))-$(((i + 1) * hosts_cores - 1)) "$@"
    exec ip netns exec "$hosts_tag$i" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host$i" "$@"
}
hosts_on() { (hosts_run "$@"); }
# The script takes ssh's options, and cannot reach a host with the name "nowhere".
hosts_rsh() {
    printf '%s\n' '#!/usr/bin/env bash' "cd '$PWD' && . tests/hosts.sh" \
        "hosts_tag=$hosts_tag hosts_cores=$hosts_cores; cd /"
    cat <<'END'
while [ "${1#-}" != "$1" ]; do [ "$1" != -o ] || shift; shift; done
[ "$1" != nowhere ] || { echo "ssh: connect to host nowhere port 22: No route to host" >&2; exit 255; }
i=$((${1##*.} - 1)); shift; hosts_run $i sh -c "$*"
END
}
# The sbatch runs a copy of the script, as Slurm does, but immediately, in the caller's folder.
hosts_commands() {
    mkdir "$dir/bin"
    hosts_rsh >"$dir/bin/ssh"
    cat >"$dir/bin/sbatch" <<'END'
#!/usr/bin/env bash
while [ "${1#-}" != "$1" ]; do
    case $1 in --nodes=*) nodes=${1#*=} ;; --ntasks-per-node=*) tasks=${1#*=} ;; esac
    shift
done
spool=$(dirname "$0")
cp "$1" "$spool/slurm_script"; shift
export SLURM_JOB_ID=4711$$ SLURM_SUBMIT_DIR=$PWD SLURM_JOB_NUM_NODES=$nodes SLURM_NNODES=$nodes
export SLURM_NTASKS=$((nodes * tasks)) SLURM_NTASKS_PER_NODE=$tasks SLURM_TASKS_PER_NODE=$tasks
export SLURM_JOBID=$SLURM_JOB_ID SLURM_PROCID=0 SLURM_JOB_NODELIST=localhost SLURM_NODELIST=localhost
cd "$spool" && exec bash ./slurm_script "$@"
END
    chmod +x "$dir"/bin/*
    PATH=$dir/bin:$PATH
}
hosts_limit() {
    local i
    for ((i = 0; i < hosts_n; i++)); do
        tc -n "$hosts_tag$i" qdisc del dev eth0 root 2>/dev/null || true        # if one is set
        ip -n "$hosts_tag$i" link set eth0 gso_max_size 65536
        [ "$1" = unlimited ] && continue
        # A burst passes without a limit. It cannot be shorter than a packet.
        ip -n "$hosts_tag$i" link set eth0 gso_max_size 16384
        tc -n "$hosts_tag$i" qdisc add dev eth0 root tbf rate "$1" burst 18kb latency 50ms || return 1
    done
}
