#!/usr/bin/env bash
# Hosts on one machine: three network namespaces with names and addresses of their own, joined by a bridge.
# Their ranks meet and exchange over it, and a host that is cut off ends them all. Needs root.
# Usage: tests/net_namespaces.sh TEST_NET
set -u
cd "$(dirname "$0")/.." || exit 1
program=$(realpath "$1")
. tests/cases.sh
. tests/hosts.sh
pids=()
stop_all() { [ ${#pids[@]} = 0 ] || kill -9 "${pids[@]}" 2>/dev/null; wait 2>/dev/null; pids=(); }
trap 'stop_all; hosts_end; rm -rf "$dir"' EXIT
hosts_make 3 || { skip net_namespaces "$hosts_why"; finish net_namespaces; exit; }

# start SERVER_OR_FILE SECONDS HOST...: a rank on each of the hosts; its last words are in $dir/RANK
start() {
    local where=$1 seconds=$2 r=0 i
    shift 2
    stop_all; rm -f "$dir"/[0-9]
    for i in "$@"; do
        hosts_run "$i" "$program" host $r $# "$where" "$seconds" >"$dir/$r" 2>&1 &
        pids+=($!); r=$((r + 1))
    done
}
all_say() { [ "$(grep -lE "$1" "$dir"/[0-9] | wc -l)" = ${#pids[@]} ]; }
# Waits until all ranks are connected, and half a second more, so that they are in their exchanges.
connected() { for _ in $(seq 150); do all_say node_rank && sleep 0.5 && return 0; sleep 0.1; done; return 1; }
ended() { for _ in $(seq $(($1 * 10))); do [ -n "$(jobs -rp)" ] || return 0; sleep 0.1; done; return 1; }

begin 'net_namespaces.three hosts'
start 10.77.7.1:21001 1 0 1 2
need 'no end' ended 20
need "contents: $(cat "$dir"/[0-9])" all_say ': done, 0 bytes wrong'
need "places: $(cat "$dir"/[0-9])" all_say 'node_rank 0 of 1, all here 0'
end
# Rank 1 reaches rank 0 on its own host by the loopback address, by which rank 2 cannot reach rank 1.
begin 'net_namespaces.by file, two ranks on a host'
start "$dir/meet" 1 0 0 1
need 'no end' ended 20
need "contents: $(cat "$dir"/[0-9])" all_say ': done, 0 bytes wrong'
need "places: $(cat "$dir"/[0-9])" grep -q 'node_rank 1 of 2' "$dir/1"
end
# Nothing tells the ranks that host 2 is cut off: by its link while they exchange, or by the host itself while
# the connections are idle, as beside NCCL. They allow a host 3 s of silence.
for way in 'hosts_link 0' 'hosts_network -1'; do
    begin "net_namespaces.host 2 is cut off: ${way% *}"
    start 10.77.7.1:21002 "${way#* }" 0 1 2
    need 'the ranks have not met' connected
    ${way% *} 2 down
    need 'no end after 3 + 7 s' ended 10
    for r in 0 1; do
        need "$(cat "$dir/$r")" grep -qE 'rank 2 \(host host2\)( is gone|.*ended)' "$dir/$r"
    done
    need "$(cat "$dir/2")" grep -qE 'rank [01] \(host host[01]\) is gone' "$dir/2"
    ${way% *} 2 up
    end
done
finish net_namespaces
