# shellcheck shell=bash
# The card, and what the build needs: where it is, and the kit's where it is missing.

smi() { nvidia-smi -i "$card" --query-gpu="$1" --format=csv,noheader,nounits; }
no_gpu() { echo "gpu_check.sh: no usable GPU: $*" >&2; exit 2; }

find_card() {
    command -v nvidia-smi >/dev/null || no_gpu "nvidia-smi is not there; install NVIDIA's driver"
    local line need have folder
    line=$(smi name,memory.total,driver_version,compute_cap,clocks.max.sm,power.limit 2>&1) ||
        no_gpu "nvidia-smi -i $card: ${line%%$'\n'*}"
    IFS=, read -r card_name card_mib driver capability clock watts <<<"${line//, /,}"
    number "${capability:-0} >= 8" ||
        no_gpu "$card_name has compute capability ${capability:-unknown}, and 8.0 or more is needed"
    command -v nvcc >/dev/null ||
        PATH=$PATH:$(dirname "$(ls -d /usr/local/cuda/bin/nvcc /usr/local/cuda*/bin/nvcc 2>/dev/null | head \
        -n 1)")
    command -v nvcc >/dev/null ||
        no_gpu "nvcc is not there; install the CUDA toolkit, or put its bin folder into PATH"
    cuda_home=$(realpath "$(command -v nvcc)")
    cuda_home=${cuda_home%/bin/nvcc}
    # The profiler and the sanitizer come with the toolkit, but not always into PATH.
    for folder in "$cuda_home"/{bin,compute-sanitizer} /opt/nvidia/nsight-compute/*; do
        [ ! -d "$folder" ] || append PATH "$folder"
    done
    need=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    have=$(nvidia-smi | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p')
    cuda=$need
    [ "${have%%.*}" -ge "${need%%.*}" ] 2>/dev/null || [ -z "$have" ] ||
        no_gpu \
        "driver $driver is for CUDA up to $have, and nvcc is $need; install a newer driver or an older "\
"toolkit"
    export PATH CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$card
}
# For NCCL: a card for each of four or two ranks; one card is for two ranks.
find_cards() {
    local list n
    [ -n "$cards" ] || cards=$(nvidia-smi --query-gpu=index,compute_cap --format=csv,noheader,nounits |
        awk -F', *' '$2 >= 8 { print $1 }' | paste -sd,)
    IFS=, read -ra list <<<"${cards:-$card}"
    n=${#list[@]}
    ranks=$((n >= 4 ? 4 : 2))
    cards=$(IFS=,; echo "${list[*]:0:$ranks}")
}

# ---------------------------------------------------------------------------------------- headers, libraries

wheels=()           # folders of NVIDIA's libraries as pip installs them: .../nvidia/cudnn, .../nvidia/cu13
plain_libraries=${LD_LIBRARY_PATH:-}        # what PyTorch runs with

# append NAME FOLDER: appends to a variable that is a list of folders. The compilers look into C_INCLUDE_PATH
# after the toolkit's own folders.
append() { export "$1=${!1:+${!1}:}$2"; }
first() { local path; for path; do [ ! -e "$path" ] || { echo "$path"; return; }; done; return 1; }

has_header() {
    # shellcheck disable=SC2086
    printf '#include <%s>\n' "$1" | ${CC:-cc} $mpi_flags -I"$cuda_home/include" -x c -E - >/dev/null 2>&1
}
has_library() {     # whether the linker finds it
    ${CC:-cc} -shared -nostdlib -o "$out/links/probe" -L"$cuda_home/lib64" -L"$cuda_home/lib64/stubs" \
        -L"$cuda_home/lib" "-l$1" 2>/dev/null
}

find_wheels() {
    local base
    while read -r base; do
        wheels+=("$base"/*/)
    done < <("$python" -c 'import nvidia; print(*nvidia.__path__, sep="\n")' 2>/dev/null)
    wheels=("${wheels[@]%/}")
}
# A header that the compiler does not find: its folder among pip's or the kit's is looked into last.
find_header() {
    local found
    ! has_header "$1" || return 0
    found=$(first "${wheels[@]/%//include/$1}" ${kit:+"$kit/include/$1"}) || return 0
    found=${found%/"$1"}
    append C_INCLUDE_PATH "$found"
    append CPLUS_INCLUDE_PATH "$found"
    say "$1 is that of $found"
}
# NAME: the file libNAME.so.N that pip or the driver brought
library_file() {
    local folder file
    for folder in "${wheels[@]/%//lib}" /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
        for file in "$folder/lib$1".so.[0-9]*; do
            [ ! -e "$file" ] || { echo "$file"; return; }
        done
    done
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n "s/.*lib$1\\.so\\.[0-9]* .*=> //p" |
        head -n 1 | grep .
}
# A library for which the linker wants the name without a version, which only packages for development bring.
find_library() {
    local file
    ! has_library "$1" || return 0
    file=$(library_file "$1") || return 0
    ln -sfn "$file" "$out/links/lib$1.so"
    append LD_LIBRARY_PATH "${file%/*}"
    say "lib$1 is $file"
}
# cuDNN as a folder with include/ and lib/, where the toolkit has none. It is loaded from where it lies: the
# wheels' libraries find each other, and NVRTC, from their own folder on.
find_cudnn() {
    local header file
    [ -z "${CUDNN_HOME:-}" ] || return 0
    [ ! -e "$cuda_home/include/cudnn.h" ] || ! has_library cudnn || return 0
    header=$(first "${wheels[@]/%//include/cudnn.h}" "$cuda_home/include/cudnn.h" /usr/include/cudnn.h \
        /usr/include/*-linux-gnu/cudnn.h ${kit:+"$kit/include/cudnn.h"}) || return 0
    file=$(library_file cudnn) || return 0
    rm -rf "$out/cudnn"
    mkdir -p "$out/cudnn/include" "$out/cudnn/lib"
    ln -s "${header%/*}"/cudnn*.h "$out/cudnn/include/"
    ln -s "${file%/*}"/libcudnn*.so.* "$out/cudnn/lib/"
    ln -sfn "$file" "$out/links/libcudnn.so"
    append LD_LIBRARY_PATH "${file%/*}"
    append C_INCLUDE_PATH "$out/cudnn/include"
    append CPLUS_INCLUDE_PATH "$out/cudnn/include"
    export CUDNN_HOME=$out/cudnn
    say "cuDNN is ${file%/*}, its headers ${header%/*}"
}
nccl_folder=''
find_needs() {
    local name
    lacking=$(missing)
    if [ -n "$kit" ] && [ -n "$lacking" ]; then
        unpack_kit
        lacking=$(missing)
    fi
    mpi_flags=$(mpicc --showme:compile 2>/dev/null)
    find_wheels
    for name in cublasLt.h nccl.h nvtx3/nvToolsExt.h; do find_header $name; done
    find_cudnn
    for name in cublas cublasLt nvidia-ml; do find_library $name; done
    # Loaded by the runs that use it: the kit's, or else pip's where no other is found. The stand-in finds its
    # own.
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
    if [ "${CUDA:-yes}" != stand-in ] &&
        name=$(first ${kit:+"$kit/nccl/libnccl.so.2"} "${wheels[@]/%//lib/libnccl.so.2}"); then
        nccl_folder=${name%/*}
    fi
    append LIBRARY_PATH "$out/links"
    frontend=$(first third_party/cudnn_frontend/include/cudnn_frontend.h \
        ${kit:+"$kit/cudnn_frontend/include/cudnn_frontend.h"} \
        "$llmc/cudnn-frontend/include/cudnn_frontend.h" \
        "${HOME:-}/cudnn-frontend/include/cudnn_frontend.h") &&
        frontend=$(realpath "${frontend%/include/*}")
    export frontend
}

# --------------------------------------------------------------------------------------------------- the kit

# Packages of other releases are only for what is missing: all that the system has goes first.
unpack_kit() {
    local package name folder root=$out/kit
    [ -n "$kit" ] && [ -n "$(ls "$kit"/*.deb 2>/dev/null)" ] || return 0
    command -v dpkg >/dev/null || bad "--kit $kit: dpkg is not here, which unpacks its packages"
    if [ ! -e "$root/unpacked" ]; then
        rm -rf "$root"
        mkdir -p "$root/bin"
        for package in "$kit"/*.deb; do
            dpkg -x "$package" "$root" || bad "--kit $kit: dpkg cannot unpack $package"
        done
        # Names that a package's scripts would have made.
        [ ! -e "$root/usr/bin/orterun" ] || ln -s ../usr/bin/orterun "$root/bin/mpirun"
        [ ! -e "$root/usr/bin/opal_wrapper" ] || ln -s ../usr/bin/opal_wrapper "$root/bin/mpicc"
        touch "$root/unpacked"
    fi
    say "the packages of $kit are unpacked in $root"
    command -v mpirun >/dev/null ||
        export OPAL_PREFIX=$root/usr OMPI_MCA_mca_base_component_show_load_errors=0
    append PATH "$root/bin"
    append PATH "$root/usr/bin"
    for folder in "$root"/usr/include "$root"/usr/include/*-linux-gnu; do
        append C_INCLUDE_PATH "$folder"
        append CPLUS_INCLUDE_PATH "$folder"
    done
    for folder in "$root"/usr/lib/*-linux-gnu "$root"/usr/lib; do
        append LIBRARY_PATH "$folder"
        append LD_LIBRARY_PATH "$folder"
    done
}

# What the build needs and this machine lacks, a line each: the name, and what brings it.
missing() {
    local what package mpi_flags
    mpi_flags=$(mpicc --showme:compile 2>/dev/null)
    while read -r what package; do
        case $what in *.h) has_header "$what" ;; *) command -v "$what" >/dev/null ;; esac ||
            echo "$what ($package)"
    done < <(printf '%s\n' 'make make' "${CC:-cc} gcc" 'g++ g++' 'mpirun openmpi-bin' 'mpicc libopenmpi-dev' \
        'mpi.h libopenmpi-dev' \
        'oneapi/dnnl/dnnl.h libdnnl-dev' 'jansson.h libjansson-dev' 'xxhash.h libxxhash-dev' \
        'sodium.h libsodium-dev' 'cmocka.h libcmocka-dev')
}
# Without cmocka only the tests are left out.
look_for_needs() {
    local list status=0 what
    list=$(printf %s "$lacking${lacking:+$'\n'}"; for what in cublasLt.h nvtx3/nvToolsExt.h; do has_header \
        $what || echo "$what (NVIDIA's cuda-toolkit)"; done)
    forget needs
    [ -n "$list" ] || return 0
    what='so that nothing can be built and measured'
    status=1
    if [ "$list" = 'cmocka.h (libcmocka-dev)' ]; then
        what='so that no GPU test can be built; all else is done'
        status=0
    fi
    list=$(paste -sd, <<<"$list")
    problem needs \
        "missing here: ${list//,/, }, $what. scripts/install_deps.sh installs Debian's packages; without a "\
"network, --kit names \
a folder of them, and of headers"
    return $status
}
# Nothing where attention is by cuDNN.
why_no_cudnn() {
    local home=${CUDNN_HOME:-$cuda_home}
    if [ "${CUDA:-yes}" = stand-in ]; then echo "the stand-in has no cuDNN"
    elif [ -z "$frontend" ]; then echo "cuDNN's frontend is not in third_party/"
    elif [ ! -e "$home/include/cudnn.h" ]; then echo "cudnn.h is not in $home/include"; fi
}

# -------------------------------------------------------------------------------------------------- versions

version() {         # of a library, from its header: HEADER PREFIX
    local file
    file=$(printf '#include <%s>\n' "$1" | ${CC:-cc} -I"${CUDNN_HOME:-$cuda_home}/include" \
        -I"$cuda_home/include" -x c -M - 2>/dev/null |
        tr ' ' '\n' | grep -m1 "/$1\$") || { echo none; return; }
    awk -v p="$2" '$1 == "#define" && index($2, p) == 1 { v[substr($2, length(p) + 1)] = $3 }
        END { print v["MAJOR"] "." v["MINOR"] "." v["PATCH"] v["PATCHLEVEL"] }' "$file"
}
# What the caller's LD_LIBRARY_PATH names goes before pip's, and the kit's before all.
nccl_libraries() {
    case $nccl_folder in
        '') echo "$LD_LIBRARY_PATH" ;;
        "$kit/nccl") echo "$nccl_folder:$LD_LIBRARY_PATH" ;;
        *) echo "$LD_LIBRARY_PATH:$nccl_folder" ;;
    esac
}
# The version that is loaded, which need not be that of the header.
nccl_library() {
    LD_LIBRARY_PATH=$(nccl_libraries) "$python" - 2>/dev/null <<'END' || echo unknown
import ctypes
version = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
print(f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}")
END
}
describe_machine() {
    local used commit
    used=$(smi memory.used)
    if commit=$(git rev-parse --short HEAD 2>/dev/null); then
        git diff --quiet HEAD || commit+=', changed since'
    fi
    cat >"$out/machine.txt" <<END
card      $card_name, compute capability $capability, $card_mib MiB, \
SM clock up to $clock MHz, power limit $watts W, driver $driver
versions  CUDA $cuda, cuBLASLt $(version cublas_api.h CUBLAS_VER_), cuDNN $(version cudnn_version.h CUDNN_), \
NCCL $(nccl_library), its header $(version nccl.h NCCL_)
host      $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1), $cores cores
compiler  $(${CC:-cc} --version | head -n 1); MPI: $(mpirun --version 2>/dev/null | head -n 1)
source    ${commit:-not a git checkout}, digest of the files $sources_now; $(date +%F)
END
    cat "$out/machine.txt"
    [ "${used:-0}" -lt 1000 ] ||
        say "careful: $used MiB of the card are in use already; what uses them may disturb the times"
}
