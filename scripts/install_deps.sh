#!/usr/bin/env bash
# Installs missing packages with apt on Debian and Ubuntu; on other systems it lists them and stops.
#   scripts/install_deps.sh           for make demo and make test
#   scripts/install_deps.sh check     also for make check
#   scripts/install_deps.sh bench     also for all of make bench
#   scripts/install_deps.sh plots     also for make plots
set -eu
cd "$(dirname "$0")/.."

# package | command that succeeds if it is installed | purpose
packages="gcc|command -v gcc|the compiler
g++|command -v g++|tests that run the CUDA kernels on the CPU
libc6-dev|test -e /usr/include/stdio.h|the C library's headers
make|command -v make|the build
openmpi-bin|command -v mpirun|mpirun: starts the ranks
libopenmpi-dev|command -v mpicc|MPI between the ranks
libdnnl-dev|test -e /usr/include/oneapi/dnnl/dnnl.h|oneDNN: matmuls
libxxhash-dev|test -e /usr/include/xxhash.h|XXH3: digests and checksums
libpcre2-dev|test -e /usr/include/pcre2.h|PCRE2: splits text into words
libjansson-dev|test -e /usr/include/jansson.h|configuration files in JSON
liburing-dev|test -e /usr/include/liburing.h|io_uring: model states on NVMe
libcmocka-dev|test -e /usr/include/cmocka.h|the unit tests
procps|command -v pgrep|pgrep: the tests look for ranks to send signals to"
[ "${1:-}" != check ] || packages="$packages
cppcheck|command -v cppcheck|static analysis"
[ "${1:-}" != bench ] || packages="$packages
iproute2|command -v tc|ip and tc: network namespaces as hosts on a slow network
fio|command -v fio|fio: the rate of the disks, for comparison"
[ "${1:-}" != plots ] || packages="$packages
gnuplot-nox|command -v gnuplot|pictures"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
sudo=""
apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1; }
apt_install() { apt install -y --no-install-recommends "$@"; }
may_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" != 0 ] || return 0
    command -v sudo >/dev/null 2>&1 || return 1
    sudo="sudo"
}
failed() {          # COMMAND; shows the end of apt-get's output
    echo "$1 failed:" >&2
    tail -n 5 "$log" >&2
    exit 1
}

install() {         # PACKAGE...
    printf 'Installing missing packages with apt-get:\n%s' "$why"
    if ! may_install; then
        echo "This needs root, and sudo is not available. Run as root: apt-get install $*" >&2
        exit 1
    fi
    apt_install "$@" && return 0
    apt update || failed "apt-get update"
    apt_install "$@" || failed "apt-get install"
}

missing=()
why=""
while IFS='|' read -r package probe purpose; do
    sh -c "$probe" >/dev/null 2>&1 && continue
    missing+=("$package")
    why="$why  $package: $purpose"$'\n'
done <<<"$packages"
if [ "${#missing[@]}" != 0 ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "These packages are missing (Debian names), and this system has no apt-get; install them with" \
            "its package manager, then run make again:" >&2
        printf '%s' "$why" >&2
        exit 1
    fi
    install "${missing[@]}"
fi

# optional PROBE PACKAGES EFFECT: installs PACKAGES unless PROBE succeeds. On failure, prints EFFECT.
optional() {
    sh -c "$1" >/dev/null 2>&1 && return
    echo "Installing with apt-get: $2"
    # shellcheck disable=SC2086
    { may_install && { apt_install $2 || { apt update && apt_install $2; }; }; } ||
        echo "Continuing without it: $3."
}
optional 'command -v ccache' ccache 'make test compiles the plugin fifteen times'
if [ "${1:-}" = check ]; then
    # Only version 14, because later versions of clang-format format C differently.
    optional 'command -v clang-format-14' clang-format-14 'the format of C is not checked'
    optional "echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer,address -x c - -o '$log'" 'clang libclang-rt-dev' \
        'the file readers are not fuzzed, because clang has no libFuzzer'
fi

# The build uses NVIDIA's CUDA toolkit, cuDNN and NCCL if they are installed; this script does not install
# them. cuDNN also needs the headers of its frontend.
command -v nvcc >/dev/null 2>&1 || exit 0
scripts/fetch_cudnn_frontend.sh || echo "continuing without cuDNN's attention"
home=$(realpath "$(command -v nvcc)")
echo '#include <nccl.h>' | cc -I"${home%/bin/nvcc}/include" -x c -E - >/dev/null 2>&1 ||
    echo "continuing without NCCL, so data between GPUs goes through the host:" \
        "NVIDIA's packages libnccl2 and libnccl-dev provide it"
