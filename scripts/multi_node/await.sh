# Source this file. await PID...: waits until one of these children fails or all have ended; sets status, and
# sets failed to the PID of the failed child. It polls, so that traps run, and because wait -n would also
# return when other children end.
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
# await_all TENTHS PID...: waits until all have ended, for at most TENTHS tenths of a second
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
