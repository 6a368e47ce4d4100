#!/usr/bin/env bash
# Installs what the project needs and does not find: by apt on Debian and Ubuntu; elsewhere it names the packages and stops.
#   scripts/install_deps.sh           what make demo and make test need
#   scripts/install_deps.sh check     also what make check needs
#   scripts/install_deps.sh bench     also what all of make bench needs
set -eu

# package | how to see that it is there | what it is for
packages="gcc|command -v gcc|the compiler
g++|command -v g++|the tests that run the CUDA kernels on the processor
libc6-dev|test -e /usr/include/stdio.h|the C library's headers
make|command -v make|the build
openmpi-bin|command -v mpirun|mpirun: the ranks
libopenmpi-dev|command -v mpicc|MPI between the ranks
libdnnl-dev|test -e /usr/include/oneapi/dnnl/dnnl.h|oneDNN: matrix products
libxxhash-dev|test -e /usr/include/xxhash.h|XXH3: digests and checksums
libpcre2-dev|test -e /usr/include/pcre2.h|PCRE2: text is split into words
libjansson-dev|test -e /usr/include/jansson.h|configuration files in JSON
libcmocka-dev|test -e /usr/include/cmocka.h|the unit tests"
[ "${1:-}" = check ] && packages="$packages
cppcheck|command -v cppcheck|static analysis"
[ "${1:-}" = bench ] && packages="$packages
iproute2|command -v tc|ip and tc: hosts of one machine with a slow network between them"
[ "${1:-}" = plots ] && packages="$packages
gnuplot-nox|command -v gnuplot|pictures"

missing=""; why=""
while IFS='|' read -r package probe purpose; do
    sh -c "$probe" >/dev/null 2>&1 || { missing="$missing $package"; why="$why  $package: $purpose"$'\n'; }
done <<<"$packages"
# Not from apt: NVIDIA's own CUDA toolkit, cuDNN and NCCL are used where they are. Of cuDNN's frontend only headers are needed.
nccl() {
    local home
    home=$(realpath "$(command -v nvcc)")
    echo '#include <nccl.h>' | cc -I"${home%/bin/nvcc}/include" -x c -E - >/dev/null 2>&1 ||
        echo "going on without NCCL, so between GPUs all goes through the host: NVIDIA's packages libnccl2 and libnccl-dev have it"
}
nvidia() {
    command -v nvcc >/dev/null 2>&1 && { scripts/fetch_cudnn_frontend.sh || echo "going on without cuDNN's attention"; nccl; }
    exit 0
}
cd "$(dirname "$0")/.."
[ -z "$missing" ] && nvidia

if ! command -v apt-get >/dev/null 2>&1; then
    printf 'These are missing (Debian names), and this system has no apt-get; install them with its own tool, then run make again:\n%s' "$why" >&2
    exit 1
fi
printf 'Installing with apt-get, because they are missing:\n%s' "$why"
sudo=""
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null 2>&1 || { echo "This needs root, and there is no sudo: run as root: apt-get install$missing" >&2; exit 1; }
    sudo="sudo"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"; }
# shellcheck disable=SC2086
run install -y --no-install-recommends $missing >"$log" 2>&1 || {
    run update >>"$log" 2>&1 || { echo "apt-get update failed:" >&2; tail -n 5 "$log" >&2; exit 1; }
    run install -y --no-install-recommends $missing >>"$log" 2>&1 || { echo "apt-get install failed:" >&2; tail -n 5 "$log" >&2; exit 1; }
}
nvidia
