#!/usr/bin/env bash
# Hosts on one machine: three network namespaces with names and addresses of their own, joined by a bridge.
# Their ranks meet and exchange over it, and a link that is cut in the middle ends them all. Needs root.
# Usage: tests/net_namespaces.sh TEST_NET
set -u
program=$(realpath "$1")
skip() { echo "skip net_namespaces: $1"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
. "$(dirname "$0")/hosts.sh"

work=$(mktemp -d) pids=() passed=0 failed=0
clean() {
    trap '' INT TERM                                                # nothing comes between
    kill -9 "${pids[@]}" 2>/dev/null
    wait 2>/dev/null
    hosts_end
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM

hosts_make 3 || skip "$hosts_why"

# start SERVER_OR_FILE SECONDS LIMIT HOST...: a rank on each of the hosts; its last words are in $work/RANK
start() {
    local where=$1 seconds=$2 limit=$3 r=0 i
    shift 3
    pids=(); rm -f "$work"/[0-9]
    for i in "$@"; do
        hosts_run "$i" "$program" host $r $# "$where" "$seconds" "$limit" >"$work/$r" 2>&1 &
        pids+=($!); r=$((r + 1))
    done
}
check() {
    if [ "$1" = 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $2"
        cat "$work"/[0-9]
    fi
}
all_say() { [ "$(grep -lE "$1" "$work"/[0-9] | wc -l)" = ${#pids[@]} ]; }
# Waits until all ranks are connected, and half a second more, so that they are in their exchanges.
connected() {
    local i
    for ((i = 0; i < 150; i++)); do all_say "node_rank" && sleep 0.5 && return 0; sleep 0.1; done
    return 1
}
# Waits for the ranks, so many seconds at most; sets `took`.
await() {
    local from=$SECONDS
    while [ -n "$(jobs -rp)" ] && [ $((SECONDS - from)) -lt "$1" ]; do sleep 0.1; done
    took=$((SECONDS - from))
    [ -z "$(jobs -rp)" ] && return 0
    kill -9 "${pids[@]}" 2>/dev/null                                # not to be in the way of the next ones
    return 1
}

start 10.77.7.1:21001 1 15 0 1 2; await 20; check $? "ranks on three hosts: no end"
all_say ": done, 0 bytes wrong"; check $? "ranks on three hosts: contents"
all_say "node_rank 0 of 1, all here 0"; check $? "three hosts count as three nodes"

# Rank 1 reaches rank 0 on its own host by the loopback address, by which ranks 2 and 3 cannot reach rank 1.
start "$work/meet" 1 15 0 0 1 2; await 20; check $? "by file, two ranks on a host: no end"
all_say ": done, 0 bytes wrong"; check $? "by file, two ranks on a host: contents"
grep -q "node_rank 1 of 2" "$work/1"; check $? "by file, two ranks on a host: places"

# The cut leaves host 2 without a way out; nothing tells the ranks. They allow a host 3 s of silence.
start 10.77.7.1:21002 0 15 0 1 2; connected; check $? "cut link: the ranks have not met"; hosts_link 2 down
await 10; check $? "cut link: no end after 3 + 7 s"; echo "       cut link: all ranks ended after $took s"
for i in 0 1; do
    grep -qE "rank 2 \(host host2\)( is gone|.*ended)" "$work/$i"
    check $? "cut link: rank $i does not name rank 2"
done
grep -qE "rank [01] \(host host[01]\) is gone" "$work/2"; check $? "cut link: rank 2 does not say who is gone"

# The same from inside, the host itself takes its network down; and the connections are idle, as beside NCCL.
hosts_link 2 up
start 10.77.7.1:21003 -1 15 0 1 2; connected; check $? "network down: the ranks have not met"
hosts_network 1 down
await 10
check $? "network of host 1 down: no end after 3 + 7 s"
echo "       network down: all ranks ended after $took s"
for i in 0 2; do
    grep -qE "rank 1 \(host host1\)( is gone|.*ended)" "$work/$i"
    check $? "network down: rank $i does not name rank 1"
done

hosts_network 1 up; hosts_link 2 down
start 10.77.7.1:21004 1 2 0 1 2; await 20; check $? "unreachable host: no end"
all_say "did not come within|does not answer at 10.77.7.1:21004"; check $? "unreachable host: sentence"
echo "net_namespaces: $passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
