// Sends tokens and targets to the device through a ring of slots in pinned memory, so that neither side waits
// for the other. A slot is reused only after its last copy is done, normally long before the ring wraps.
#include <string.h>
#include "cuda.h"

enum { SLOTS = 16 };  // more calls can be queued only if each has few rows

static struct {
    int *pinned, next;
    size_t ints;
    cudaEvent_t sent[SLOTS];
} ring;

int staging_plan(size_t ints, size_t *scratch_bytes) {
    staging_free();
    CUDA_TRY(cudaHostAlloc((void **)&ring.pinned, SLOTS * ints * sizeof(int), cudaHostAllocDefault));
    ring.ints = ints;
    for (int i = 0; i < SLOTS; i++) CUDA_TRY(cudaEventCreateWithFlags(&ring.sent[i], cudaEventDisableTiming));
    *scratch_bytes = ints * sizeof(int);
    return 0;
}

void staging_free(void) {
    for (int i = 0; i < SLOTS; i++) {
        if (!ring.sent[i]) continue;
        cuda_check(cudaEventSynchronize(ring.sent[i]), "wait for tokens on their way to the device");
        cuda_check(cudaEventDestroy(ring.sent[i]), "cudaEventDestroy");
    }
    if (ring.pinned) cuda_check(cudaFreeHost(ring.pinned), "cudaFreeHost");
    memset(&ring, 0, sizeof ring);
}

int *staging_slot(size_t ints) {
    if (ints > ring.ints) {
        gpt2_fail("layers: %zu integers for the device at once, planned for %zu: plan for the largest B, T "
                  "and chunk",
                  ints, ring.ints);
        return NULL;
    }
    if (cuda_check(cudaEventSynchronize(ring.sent[ring.next]), "wait for tokens on their way to the device"))
        return NULL;
    return ring.pinned + ring.next * ring.ints;
}

int staging_send(size_t ints, const int **device) {
    void *scratch = cuda_scratch();
    if (!scratch) return -1;
    CUDA_TRY(cudaMemcpyAsync(scratch, ring.pinned + ring.next * ring.ints, ints * sizeof(int),
                             cudaMemcpyHostToDevice, 0));
    CUDA_TRY(cudaEventRecord(ring.sent[ring.next], 0));
    ring.next = (ring.next + 1) % SLOTS;
    *device = scratch;
    return 0;
}
