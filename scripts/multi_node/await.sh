# To be sourced. await PID...: waits for these children until one has failed or all have ended; sets status,
# and failed to the one. In steps, so that a signal is heard, and without wait -n, which tells of other
# children too.
await() {
    local left=("$@") still pid
    status=0
    while [ ${#left[@]} -gt 0 ]; do
        still=()
        for pid in "${left[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then
                still+=("$pid")
            else
                wait "$pid" 2>/dev/null || {
                    status=$? failed=$pid
                    return
                }
            fi
        done
        left=("${still[@]}")
        sleep 0.2
    done
}
# await_all TENTHS PID...: until all have ended, so long at most
await_all() {
    local tenths=$1 pid i
    shift
    for pid in "$@"; do
        for (( ; tenths > 0; tenths--)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    done
}
