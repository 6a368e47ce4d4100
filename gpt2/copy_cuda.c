// Copies between the device and pinned host memory, on a stream concurrent with the layers'.
#include <string.h>
#include "cuda.h"

static struct {
    cudaStream_t stream;  // NULL: no copy yet
    cudaEvent_t queued;   // on the default stream, when the last copy was requested
    cudaEvent_t done[LAYERS_COPIES];
} beside;

static int begin(void) {
    CUDA_TRY(cudaStreamCreateWithFlags(&beside.stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&beside.queued, cudaEventDisableTiming));
    for (int i = 0; i < LAYERS_COPIES; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&beside.done[i], cudaEventDisableTiming));
    return 0;
}

int cuda_copy_beside(void *to, const void *from, size_t bytes, int which) {
    if (!beside.stream && begin()) return -1;
    CUDA_TRY(cudaEventRecord(beside.queued, 0));
    CUDA_TRY(cudaStreamWaitEvent(beside.stream, beside.queued, 0));
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, beside.stream));
    CUDA_TRY(cudaEventRecord(beside.done[which], beside.stream));
    return 0;
}

// Waiting for an event that was never recorded returns at once.
int cuda_await_copy(int which) {
    if (beside.stream) CUDA_TRY(cudaStreamWaitEvent(0, beside.done[which], 0));
    return 0;
}

void copy_cuda_free(void) {
    if (!beside.stream) return;
    cuda_check(cudaStreamSynchronize(beside.stream), "wait for copies concurrent with the layers");
    for (int i = 0; i < LAYERS_COPIES; i++)
        if (beside.done[i]) cuda_check(cudaEventDestroy(beside.done[i]), "cudaEventDestroy");
    if (beside.queued) cuda_check(cudaEventDestroy(beside.queued), "cudaEventDestroy");
    cuda_check(cudaStreamDestroy(beside.stream), "cudaStreamDestroy");
    memset(&beside, 0, sizeof beside);
}
