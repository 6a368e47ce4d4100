// CUDA's errors, and the scratch that the CUDA layers share.
#include "cuda.h"

static void *scratch;

int cuda_check(cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return 0;
    cudaGetLastError();  // clears the error, so that the next call does not report it again
    return gpt2_fail("CUDA: %s: %s (%s)", what, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

void *cuda_scratch(void) {
    if (!scratch) gpt2_fail("layers: no scratch memory: plan returns its size, use_scratch sets it");
    return scratch;
}

int cuda_use_scratch(void *memory) {
    scratch = memory;
    return 0;
}
