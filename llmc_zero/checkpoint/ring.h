// Buffers shared by the CPU and the disk: the CPU fills or reads one while the disk transfers the others.
#ifndef LLMC_ZERO_CHECKPOINT_RING_H
#define LLMC_ZERO_CHECKPOINT_RING_H
#include "../tiers/file.h"
#include "at_work.h"

enum { RING_BYTES = 1 << 20, RING_BUFFERS = 8 };  // bytes of a disk request; requests at a time

typedef struct {
    int n;
    int64_t each;              // bytes of a buffer
    char *memory;              // (n, each)
    file_transfer *transfers;  // (n)
    file_engine *engine;       // NULL: no file is open
    int given;                 // 1: the memory is the caller's
    int hangs;                 // 1: a hung disk may still use the memory and the file
    at_work *work;             // the rank that waits here, while others wait for it; NULL: none do
} ring;

// Returns 0, or ZERO_ERR_MEMORY naming the path. Call ring_free in either case. memory: for all buffers;
// NULL: allocated here. work: of the rank, which reports while it waits; NULL: none.
int ring_make(ring *r, const char *path, int n, int64_t each, char *memory, at_work *work);
// Returns 0: transfers now go to or from this file. bytes: whole pages. reserve: 1: the file is to be
// written, and disk space is reserved. If the disk of an earlier file hung, the ring allocates new memory.
int ring_open(ring *r, int fd, const char *path, int64_t bytes, int reserve);
// Starts to read or write buffer i, at i x each of the file, up to `end`. i grows without wrapping.
int ring_start(ring *r, int64_t i, int64_t end, int write);
// Waits for one buffer's transfer, or for all.
int ring_wait(ring *r, int64_t i);
int ring_wait_all(ring *r);
// Waits for pending transfers, and sets r->hangs: 1: the caller must keep the file open and its own memory
// allocated for ever.
void ring_close(ring *r);
void ring_free(ring *r);  // closes it too

static inline char *ring_data(const ring *r, int64_t i) { return r->memory + i % r->n * r->each; }
static inline int64_t ring_whole_pages(int64_t bytes) { return bytes / FILE_ALIGN * FILE_ALIGN; }

#endif
