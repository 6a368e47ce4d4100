// Writes a checkpoint file with O_DIRECT. The disk writes full buffers while the caller fills the next one,
// and each block's digest is computed while the block is in the CPU's cache.
//
//     writer_begin(&w, path, bytes, digests, NULL, &work);
//     until all bytes are there:
//         writer_room(&w, &to, &room); ... put up to `room` bytes there ... writer_filled(&w, filled);
//     writer_end(&w, rc);
#ifndef LLMC_ZERO_CHECKPOINT_WRITER_H
#define LLMC_ZERO_CHECKPOINT_WRITER_H
#include "manifest.h"
#include "ring.h"
#include <stdatomic.h>

typedef struct {
    char path[PATH_MAX];
    int fd;             // -1: not open
    int64_t bytes;      // of the whole file
    int64_t filled;     // so far
    uint64_t *digests;  // of the blocks
    atomic_int syncs;   // 1: the disk requests have ended, and the file is being synced
    ring ring;          // for whole pages; the rest of the last page is written separately
} file_writer;

// Returns 0 with a new file created and its space reserved. Call writer_end in either case. digests: for all
// blocks, the caller's. copy: whole pages for all bytes, so that only the end waits for the disk; NULL: a few
// buffers. work: as for ring_make.
int writer_begin(file_writer *w, const char *path, int64_t bytes, uint64_t *digests, char *copy,
                 at_work *work);
// Returns 0 and memory for the next bytes, a multiple of 4 except at the end of the file. Waits for the disk
// if all buffers are full.
int writer_room(file_writer *w, void **to, int64_t *room);
// The caller has put so many bytes there. Returns 0 or an error.
int writer_filled(file_writer *w, int64_t bytes);
// Returns 0 when the file is on disk, or the first failure (rc or its own), and then the file is removed.
int writer_end(file_writer *w, int rc);

#endif
