#!/usr/bin/env bash
# Trains GPT-2 1558M on several machines with Open MPI's mpirun, which uses ssh. Settings: settings.sh.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
hostfile=$(mktemp)
trap 'rm -f "$hostfile"' EXIT
printf "%s slots=$GPUS\n" "${hosts[@]}" >"$hostfile"
cd "$root"
# Each rank uses several threads, so it must not be bound to one core. MPI_OPTIONS: for example --mca
# btl_tcp_if_include eth0
# shellcheck disable=SC2086
mpirun --hostfile "$hostfile" -np "$ranks" --map-by ppr:"$GPUS":node --bind-to none ${passed_on[@]/#/-x } \
    ${MPI_OPTIONS:-} \
    "$trainer" "${arguments[@]}"
