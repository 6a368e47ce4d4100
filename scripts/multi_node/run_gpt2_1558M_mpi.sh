#!/usr/bin/env bash
# Trains GPT-2 1558M on several machines with Open MPI's mpirun, which uses ssh. Settings: settings.sh.
set -eu
. "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
cd "$root"
start_ranks --host "$(IFS=,; echo "${hosts[*]/%/:$GPUS}")"
