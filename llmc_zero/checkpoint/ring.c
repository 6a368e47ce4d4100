#include "ring.h"
#include <stdlib.h>
#include <sys/mman.h>

enum { THREADS = 4 };               // for reads and writes
static const double alone_s = 300;  // the disk's time limit if no other rank waits

// Buffers in 2 MiB pages reach the disk in fewer pieces.
static int take_memory(ring *r, const char *path) {
    const size_t bytes = (size_t)(r->n * r->each);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->memory = memory == MAP_FAILED ? NULL : memory;
    if (!r->memory)
        return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for %zu bytes of buffers", path, bytes);
    madvise(r->memory, bytes, MADV_HUGEPAGE);  // only a hint
    return 0;
}

int ring_make(ring *r, const char *path, int n, int64_t each, char *memory, at_work *work) {
    *r = (ring){ .n = n, .each = each, .memory = memory, .given = memory != NULL, .work = work };
    r->transfers = calloc(n, sizeof *r->transfers);
    if (!r->transfers) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for %d buffers", path, n);
    return memory ? 0 : take_memory(r, path);
}

// Uses threads even if io_uring is available: requests are few and large, and checkpoints are then written
// and read the same way everywhere.
int ring_open(ring *r, int fd, const char *path, int64_t bytes, int reserve) {
    const file_settings settings = { .block_bytes = RING_BYTES,
                                     .depth = RING_BUFFERS,
                                     .threads = THREADS,
                                     .no_uring = 1,
                                     .timeout_s = r->work ? r->work->z->config.comm.timeout_s : alone_s };
    if (r->hangs) ZERO_TRY(take_memory(r, path));
    r->hangs = 0;
    return file_open_given(&r->engine, &settings, fd, path, bytes, reserve);
}

int ring_start(ring *r, int64_t i, int64_t end, int write) {
    const int64_t at = i * r->each;
    file_transfer *t = &r->transfers[i % r->n];
    *t = (file_transfer){ .offset = at,
                          .data = ring_data(r, i),
                          .bytes = end - at < r->each ? end - at : r->each,
                          .write = write };
    return file_start(r->engine, t);
}

int ring_wait(ring *r, int64_t i) {
    file_transfer *t = &r->transfers[i % r->n];
    if (!r->work) return file_wait(r->engine, t);
    for (int waits = 1; waits;) {
        waits = file_wait_for(r->engine, t, at_work_turn_s(r->work->z));
        if (waits < 0) return waits;
        ZERO_TRY(at_work_goes_on(r->work));
    }
    return 0;
}

int ring_wait_all(ring *r) {
    for (int i = 0; i < r->n; i++) ZERO_TRY(ring_wait(r, i));
    return 0;
}

// Data that was read ahead may no longer be needed, but other ranks wait while the disk reads it.
void ring_close(ring *r) {
    if (r->engine) (void)ring_wait_all(r);
    r->hangs |= file_close(r->engine);
    r->engine = NULL;
}

void ring_free(ring *r) {
    ring_close(r);
    if (r->memory && !r->given && !r->hangs) munmap(r->memory, (size_t)(r->n * r->each));
    free(r->transfers);
}
