#!/usr/bin/env bash
# make check: the rule of dependence, zero.h alone, cppcheck, the tests under ASan + UBSan, the progress thread under TSan.
set -eu
cd "$(dirname "$0")/.."
scripts/install_deps.sh check
. scripts/mpi_env.sh
mkdir -p build
failed=0
say() { if [ "$1" = 0 ]; then echo "ok     $2"; else echo "FAILED $2"; failed=$((failed + 1)); fi; }

# ---- dependence: trainer -> gpt2, llmc_zero; gpt2 knows no MPI and no plugin; the plugin knows no GPT-2; zero.h includes only the C library
! grep -nE '#include.*(mpi\.h|nccl|llmc_zero|zero\.h)' gpt2/*.[ch] gpt2/*.c[up]*; say $? "gpt2/ includes neither MPI nor the plugin"
! grep -nE '#include.*gpt2/|gpt2_' llmc_zero/*.[ch] llmc_zero/*/*.[ch] llmc_zero/*/*.cu; say $? "llmc_zero/ knows nothing of GPT-2"
! grep -nE '#include.*trainer/' gpt2/* llmc_zero/*.* llmc_zero/*/* dev/*/*; say $? "only the trainer and its tests include trainer/"
! grep -ln "mpi\.h" llmc_zero/*.[ch] llmc_zero/*/*.[ch] | grep -v net/mpi.c; say $? "only net/mpi.c includes mpi.h"
! grep -nE 'fprintf\(std|\b(printf|puts|perror|abort|exit)\(' llmc_zero/*.c llmc_zero/*/*.c | grep -vE 'exit\(status\)|net->abort\(|comm/nccl.c:.*NCCL did not abort'; say $? "llmc_zero/ never prints and never exits"
! grep -nE '#include <(mpi|cuda|nccl)' llmc_zero/zero.h; say $? "zero.h includes no MPI, CUDA or NCCL header"
! grep -lE '#include <(cuda|cublas|cudnn|nvtx)' llmc_zero/*.* llmc_zero/*/* gpt2/* | grep -vE 'cuda|cudnn'; say $? "only files with cuda or cudnn in their names include CUDA's headers"
echo '#include "llmc_zero/zero.h"' | cc -std=c11 -Wall -Wextra -Werror -I. -x c -fsyntax-only -; say $? "zero.h compiles alone as C11"
if command -v g++ >/dev/null; then
    echo '#include "llmc_zero/zero.h"' | g++ -std=c++17 -Wall -Wextra -Werror -I. -x c++ -fsyntax-only -; say $? "zero.h compiles alone as C++17"
fi

# ---- format: no tabs, no trailing blanks, no line over 160 columns
! grep -nP '\t| +$|^.{161,}' llmc_zero/*.[ch]* llmc_zero/*/*.[ch]* gpt2/*.[ch]* train_gpt2_zero.cu trainer/*.[ch] tests/*.[ch]* tests/cuda/*.[ch]* dev/*/*.[ch]; say $? "format"

cppcheck --quiet --error-exitcode=1 --inline-suppr --std=c11 --enable=warning --suppress=missingIncludeSystem \
    -D_OPENMP=201511 -D__x86_64__ -DZERO_HAVE_CUDA -DGPT2_CUDA -U__cplusplus -U__CUDACC__ -UCUDA_STAND_IN -UGPT2_CUDNN -I. llmc_zero/*.c llmc_zero/*/*.c gpt2/*.c trainer/*.c dev/*/*.c && status=0 || status=1
say $status "cppcheck"

# ---- llm.c's own CUDA trainer with the plugin compiles and links: where nvcc is, and llm.c is (LLMC=folder) or can be fetched
if command -v nvcc >/dev/null; then
    llmc=${LLMC:-build/llm.c}
    [ -e "$llmc/.git" ] || { timeout 60 git clone -q https://github.com/karpathy/llm.c "$llmc" && git -C "$llmc" checkout -q f1e2ace; } >build/clone.log 2>&1 ||
        { rm -rf build/llm.c; llmc=; }
    if [ -z "$llmc" ]; then echo "skip   llm.c's train_gpt2.cu with the plugin: no LLMC=folder, and it cannot be fetched: $(tail -n 1 build/clone.log)"
    else
        LLMC=$llmc timeout 300 tests/test_patch.sh llmc >build/llmc.log 2>&1 && status=0 || { status=1; tail -n 20 build/llmc.log; }
        say $status "llm.c's train_gpt2.cu with the plugin compiles and links: $(tail -n 1 build/llmc.log)"
    fi
fi

# ---- ranks that hang, fail or are killed in NCCL's collectives (the stand-in's): takes half a minute, so not in make test
make --no-print-directory -j2 CUDA=stand-in stand-in-tests >build/stand_in.log 2>&1 && status=0 || { status=1; tail -n 20 build/stand_in.log; }
say $status "build of the CUDA code for the processor"
for how in hang error start "kill 3"; do
    launcher="mpirun --oversubscribe -np 3"; [ "${how% *}" = kill ] && launcher=
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=1 timeout 60 $launcher build/stand-in/tests/mpi_nccl $how >build/nccl.log 2>&1 && status=0 || { status=1; tail -n 20 build/nccl.log; }
    say $status "NCCL, a rank in trouble: $how"
done

# ---- sanitizers. Leaks are not looked for: Open MPI and its libraries keep memory to the end.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
make --no-print-directory -j2 SAN=address CFLAGS="-O1 -g" sanitized >build/asan.log 2>&1 && status=0 || { status=1; tail -n 20 build/asan.log; }
say $status "build with ASan and UBSan"
tests/run.sh build/address build/address/train_gpt2_zero short && status=0 || status=1
say $status "tests under ASan and UBSan"
timeout 400 tests/trainer.sh build/address/train_gpt2_zero resume files outputs options >build/asan_trainer.log 2>&1 && status=0 || { status=1; grep -vE '^ok' build/asan_trainer.log | tail -n 30; }
say $status "the trainer under ASan and UBSan: $(tail -n 1 build/asan_trainer.log)"
timeout 60 tests/net_namespaces.sh build/address/tests/test_net >build/net.log 2>&1 && status=0 || { status=1; grep -v '^ok' build/net.log | tail -n 20; }
say $status "ranks in network namespaces: $(tail -n 1 build/net.log)"
# One after the other and beside nothing else: they go by seconds. KILLS=30 make check: more of them.
KILLS=${KILLS:-10} timeout 400 tests/start.sh build/address/train_gpt2_zero >build/asan_start.log 2>&1 && status=0 || { status=1; grep -vE '^ok|Killed' build/asan_start.log | tail -n 30; }
say $status "ranks without MPI, killed and stopped ${KILLS:-10} times, under ASan and UBSan: $(tail -n 1 build/asan_start.log)"
timeout 200 tests/test_multi_node.sh build/address/train_gpt2_zero >build/multi_node.log 2>&1 && status=0 || { status=1; grep -v '^ok' build/multi_node.log | tail -n 30; }
say $status "the recipes for several machines: $(tail -n 1 build/multi_node.log)"
timeout 900 tests/kills.sh build/address/train_gpt2_zero "${KILLS:-10}" >build/kills.log 2>&1 && status=0 || { status=1; grep -A 20 '^FAIL' build/kills.log | tail -n 60; }
say $status "ranks by MPI, killed and stopped ${KILLS:-10} times each, under ASan and UBSan: $(tail -n 1 build/kills.log)"
make --no-print-directory -j2 SAN=address CUDA=stand-in CFLAGS="-O1 -g" stand-in-tests >build/asan_cuda.log 2>&1 && status=0 || { status=1; tail -n 20 build/asan_cuda.log; }
say $status "build of the CUDA code, for the processor, with ASan and UBSan"
for t in test_layers_cuda test_device; do
    OMP_NUM_THREADS=1 timeout 200 build/address/stand-in/tests/$t >build/asan_$t.log 2>&1 && status=0 || { status=1; tail -n 20 build/asan_$t.log; }
    say $status "$t under ASan and UBSan"
done
make --no-print-directory -j2 SAN=thread CFLAGS="-O1 -g" sanitized >build/tsan.log 2>&1 && status=0 || { status=1; tail -n 20 build/tsan.log; }
say $status "build with TSan"
# One rank without MPI runs the same progress thread; Open MPI itself is not built for TSan.
timeout 120 build/thread/tests/test_hooks >build/tsan_hooks.log 2>&1 && status=0 || { status=1; tail -n 40 build/tsan_hooks.log; }
say $status "hooks under TSan, with and without the progress thread"
TSAN_OPTIONS=halt_on_error=1 timeout 300 build/thread/train_gpt2_zero -e l3h2c32v257t32 -b 2 -x 6 -v 3 -m 2 -s 0 --overlap 1 -z 3 >build/tsan_run.log 2>&1 && status=0 || { status=1; tail -n 40 build/tsan_run.log; }
say $status "progress thread under TSan"
KILLS=4 TSAN_OPTIONS=halt_on_error=1 timeout 300 tests/start.sh build/thread/train_gpt2_zero threads lost >build/tsan_start.log 2>&1 && status=0 || { status=1; tail -n 40 build/tsan_start.log; }
say $status "several ranks by TCP under TSan, two of them killed and two stopped"
[ $failed = 0 ] && echo "check: all well" || { echo "check: $failed failed"; exit 1; }
