#!/usr/bin/env bash
# Needs root. Tests that ranks on three hosts (tests/hosts.sh) connect and exchange data, and end if one is
# cut off.
# Usage: tests/net_namespaces.sh TEST_NET
. "$(dirname "$0")/cases.sh"
. tests/hosts.sh
program=$(realpath "$1")
trap 'hosts_end; rm -rf "$dir" "$disk"' EXIT
hosts_make 3 || { skip net_namespaces "$hosts_why"; finish net_namespaces; exit; }

# start SERVER_OR_FILE SECONDS HOST...: starts a rank on each host; its output is in $dir/RANK
start() {
    local r=0 i
    pids=()
    rm -f "$dir"/[0-9]
    for i in "${@:3}"; do
        hosts_run "$i" "$program" host $r $(($# - 2)) "$1" "$2" >"$dir/$r" 2>&1 &
        pids+=($!)
        r=$((r + 1))
    done
}
all_print() { [ "$(grep -lE "$1" "$dir"/[0-9] | wc -l)" = ${#pids[@]} ]; }
must_print() { need "no '$1': $(cat "$dir"/[0-9])" all_print "$1"; }

begin 'net_namespaces.three hosts'
start 10.77.7.1:21001 1 0 1 2
ends_within $hang_limit "${pids[@]}"
must_print ': done, 0 bytes wrong'
must_print 'node_rank 0 of 1, all here 0'
end
# Rank 1 reaches rank 0 on the same host through loopback. That address cannot lead rank 2 to rank 1.
begin 'net_namespaces.start file, two ranks on one host'
start "$dir/meet" 1 0 0 1
ends_within $hang_limit "${pids[@]}"
must_print ': done, 0 bytes wrong'
has "$dir/1" 'node_rank 1 of 2'
end
# Cuts off host 2 silently: at its link while the ranks exchange data, or inside the host while the
# connections are idle, as with NCCL. Ranks tolerate 3 s of silence from a host.
for way in 'hosts_link 0' 'hosts_network -1'; do
    begin "net_namespaces.host 2 is cut off: ${way% *}"
    start 10.77.7.1:21002 "${way#* }" 0 1 2
    need 'the ranks are not connected' await all_print node_rank
    sleep 0.5                           # until they exchange data
    ${way% *} 2 down
    ends_within $hang_limit "${pids[@]}"
    for r in 0 1; do has "$dir/$r" 'rank 2 \(host host2\)( is gone|.*ended)'; done
    has "$dir/2" 'rank [01] \(host host[01]\) is gone'
    ${way% *} 2 up
    end
done
finish net_namespaces
