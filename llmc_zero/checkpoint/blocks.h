// Reads a checkpoint's files block by block, past the page cache. What is handed out has been compared with
// its digest. The disk reads what comes next while the caller uses what is there.
#ifndef LLMC_ZERO_CHECKPOINT_BLOCKS_H
#define LLMC_ZERO_CHECKPOINT_BLOCKS_H
#include "manifest.h"
#include "ring.h"

typedef struct {
    const manifest *m;
    // Elements of each unit that the caller is going to ask for, so that no others are read ahead; the
    // caller's to set. All of them, unless it does.
    int64_t needs_from, needs_until;
    int64_t until;  // of the open file: nothing from here on is read before it is asked for
    int file;       // the open one; -1: none
    int fd;
    char path[PATH_MAX];  // of the open file
    ring ring;            // buffer i has bytes i x ring.each and following, which are whole blocks
    int64_t first, next;  // of these buffers [first, next) have been read or are on their way
    int64_t block;        // the last one that was compared; -1: none
} block_reader;

// Returns 0, or ZERO_ERR_MEMORY. m is the caller's and outlives it. work: as for ring_make. blocks_end comes
// next in any case.
int blocks_begin(block_reader *b, const manifest *m, at_work *work);
// Fills `to` with bytes [at, at + bytes) of a file. Returns 0, or ZERO_ERR_IO naming the file and the offset.
int blocks_read(block_reader *b, int file, int64_t at, int64_t bytes, void *to);
// Fills `to` with elements [from, from + n) of a unit of a saved state, from whichever files have them. What
// no file has is padding, and 0.
int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to);
void blocks_end(block_reader *b);

#endif
