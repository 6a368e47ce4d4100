#!/usr/bin/env bash
# Downloads the headers of cuDNN's C++ frontend to third_party/cudnn_frontend/, unless they exist or this
# machine has no cudnn.h. 1.18 is the last version that does not need NVRTC at link time.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.18.0
target=third_party/cudnn_frontend
[ -e $target/include/cudnn_frontend.h ] && exit 0

: "${CUDA_HOME:=/usr/local/cuda}"
if ! echo '#include <cudnn.h>' | "${CC:-cc}" -E -I"$CUDA_HOME/include" - >/dev/null 2>&1; then
    echo "cuDNN not found (no cudnn.h): building without it"
    exit 0
fi

echo "Downloading the headers of cuDNN's frontend $version (2 MB, with pip or else git) to $target"
mkdir -p third_party
# On the target's file system, so that mv is atomic.
work=$(mktemp -d third_party/.cudnn_frontend.XXXXXX)
trap 'rm -rf "$work"' EXIT
from_wheel() {
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.11 --implementation cp \
        --dest "$work" nvidia-cudnn-frontend==$version &&
        python3 -m zipfile -e "$work"/nvidia_cudnn_frontend-*.whl "$work/source"
}
from_git() {
    rm -rf "$work/source"
    GIT_TERMINAL_PROMPT=0 git -c advice.detachedHead=false clone -q --depth 1 --branch v$version \
        https://github.com/NVIDIA/cudnn-frontend "$work/source"
}
{ from_wheel || from_git; } >"$work/log" 2>&1 || true
if ! [ -e "$work/source/include/cudnn_frontend.h" ]; then
    why=$(tail -n 1 "$work/log")
    echo "cuDNN's frontend $version could not be downloaded with pip or git ($why): copy its include/ to "\
"$target by hand" >&2
    exit 1
fi
mkdir "$work/ready"
mv "$work/source/include" "$work/ready/"
rm -rf $target
mv "$work/ready" $target
echo "cuDNN's frontend $version is in $target"
