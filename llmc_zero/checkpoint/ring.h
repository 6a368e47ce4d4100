// The buffers between the processor, which fills or reads one, and the disk, which has the others meanwhile.
#ifndef LLMC_ZERO_CHECKPOINT_RING_H
#define LLMC_ZERO_CHECKPOINT_RING_H
#include "../store/file.h"
#include "at_work.h"

enum { RING_BYTES = 1 << 20, RING_BUFFERS = 8 };  // of one request to the disk; at a time

typedef struct {
    int n;
    int64_t each;              // bytes of a buffer
    char *memory;              // (n, each)
    file_transfer *transfers;  // (n)
    file_engine *engine;       // NULL: no file is open
    int given;                 // 1: the memory is the caller's
    int hangs;                 // 1: a disk that does not answer may still use the memory and the file
    at_work *work;             // others wait for the thread that waits here; NULL: none does
} ring;

// Returns 0, or ZERO_ERR_MEMORY naming the path. ring_free comes next in any case. memory: of all buffers;
// NULL: it is allocated. work: of the rank, which says between waits that it is at work; NULL: of none.
int ring_make(ring *r, const char *path, int n, int64_t each, char *memory, at_work *work);
// Returns 0: transfers are those of this file. bytes: whole pages. reserve: 1: to be written, and the disk
// keeps space for them. If the disk of an earlier file hangs the ring takes other memory.
int ring_open(ring *r, int fd, const char *path, int64_t bytes, int reserve);
// Starts to read or write buffer i, counted without end, at i x each of the file, up to `end`.
int ring_start(ring *r, int64_t i, int64_t end, int write);
// Waits for the transfer of a buffer, or for those of all.
int ring_wait(ring *r, int64_t i);
int ring_wait_all(ring *r);
// Waits for what is under way, and sets r->hangs: 1: the caller keeps the file open, and memory of its own
// for ever.
void ring_close(ring *r);
void ring_free(ring *r);  // closes it too

static inline char *ring_data(const ring *r, int64_t i) { return r->memory + i % r->n * r->each; }
static inline int64_t ring_whole_pages(int64_t bytes) { return bytes / FILE_ALIGN * FILE_ALIGN; }

#endif
