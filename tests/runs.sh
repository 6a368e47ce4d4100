# Sourced after cases.sh: short runs of $trainer. Run NAME has the output folder $dir/NAME and its screen
# output in $dir/NAME.screen. Each script sets small, the arguments that all its runs get.
# shellcheck disable=SC2016,SC2086
data=()
compared='params_hash state_hash loss grad_norm'     # equal in runs with the same bits

# run NP LIMIT ARGUMENT...: runs the trainer on NP ranks, for LIMIT seconds at most. Arguments NAME=VALUE are
# environment variables. Each rank writes its process id to a file, then runs the shell code $wrap; the code
# may use $rank and change $@.
wrap=''
run() {
    local limit=$2 launcher argument variables=() arguments=()
    launch "$1"
    for argument in "${data[@]}" "${@:3}"; do
        case $argument in
            [A-Z]*=*) variables+=("$argument") ;;
            *) arguments+=("$argument") ;;
        esac
    done
    timeout -k 2 "$limit" env "${variables[@]}" "${launcher[@]}" bash \
        -c "rank=\${OMPI_COMM_WORLD_RANK:-0}; echo \$\$ >'$dir/pid.'\$rank; $wrap
        exec \"\$0\" \"\$@\"" "$trainer" "${arguments[@]}" </dev/null
}
# train NP NAME ARGUMENT...: trains; sets status, and shows the output of a failed run
train() {
    local np=$1 out=$dir/$2
    shift 2
    # a run that does not resume needs a folder without checkpoints
    case " $* " in *' -y 1 '*) ;; *) rm -rf "$out" ;; esac
    run "$np" $hang_limit "${small[@]}" -o "$out" "$@" >"$out.screen" 2>&1
    status=$?
    [ $status = 0 ] && return 0
    echo "--- status $status of: $*"
    tail -n 12 "$out.screen"
    return 1
}
# trains NP NAME ARGUMENT...: trains, and fails the case if the run fails. fails: trains, and fails the case
# if the run succeeds.
trains() { need "failed: ${*:3}" train "$@"; }
fails() { need "succeeded: ${*:3}" not train "$@" >/dev/null; }
# value NAME KEY: prints a value from the run's summary
value() { json_value "$dir/$1/summary.json" "$2"; }
result() {
    local key
    for key in $compared; do value "$1" "$key"; done | xargs
}
same_result() { is "$1 and $2" "$(result "$1")" "$(result "$2")"; }
figures() { sed -nE 's/.*"loss": ([^,]+), "grad_norm": ([^,]+),.*/\1 \2/p' "$dir/$1/metrics.jsonl"; }
# agree RUN RUN MOST: checks that the runs have the same steps, and that their losses and norms differ by at
# most this fraction
agree() {
    need "$1: $(figures "$1" | xargs); $2: $(figures "$2" | xargs)" awk -v most="$3" '
        function far(a, b) { return (a - b) ^ 2 > (most * b) ^ 2 }
        NF != 4 || far($1, $3) || far($2, $4) { bad = 1 }
        END { exit bad || !NR }' <(paste <(figures "$1") <(figures "$2"))
}
screen() { has "$dir/$1.screen" "${@:2}"; }             # NAME PATTERN...

# begin_long NP ARGUMENT...: starts an endless run in the background and waits for its first step. Sets job,
# and sets pids to the ranks' process ids; the output goes to $dir/long.
begin_long() {
    rm -f "$dir"/{long,pid.*}
    run "$1" $hang_limit "${small[@]}" -x 1000000 "${@:2}" >"$dir/long" 2>&1 &
    job=$!
    await grep -aqs '^step *1/' "$dir/long" || need "it does not start: $(<"$dir/long")" false
    mapfile -t pids < <(cat "$dir"/pid.*)
}

# one_message PATTERN: checks that the run with output $dir/refused failed with one matching message. Needs
# grep -a, because Open MPI 5 prints zero bytes between the lines when a rank aborts.
one_message() {
    need "status $status" [ $status != 0 -a $status -lt 124 ]
    grep -a '^train_gpt2_zero: ' "$dir/refused" >"$dir/message"
    is messages "$(wc -l <"$dir/message")" 1
    has "$dir/message" "$1"
}
# refuses NP PATTERN ARGUMENT...: starts a run and checks that it fails with one matching message. Without
# the MCA variable, mpirun waits one second before it kills the remaining ranks.
refuses() {
    OMPI_MCA_odls_base_sigkill_timeout=0 run "$1" $hang_limit "${small[@]}" "${@:3}" >"$dir/refused" 2>&1
    status=$?
    one_message "$2"
}
refused() {     # NAME NP PATTERN ARGUMENT...
    begin "$1"
    refuses "${@:2}"
    end
}
# refusals: runs `refused` for each input line NAME|NP|PATTERN|ARGUMENTS
refusals() {
    local name np pattern arguments
    while IFS='|' read -r name np pattern arguments; do
        refused "$name" "$np" "$pattern" $arguments
    done
}
