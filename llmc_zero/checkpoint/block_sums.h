// Reads a checkpoint's files block by block with O_DIRECT. Every byte it returns has passed its block's
// digest. The disk reads ahead while the caller uses a block.
#ifndef LLMC_ZERO_CHECKPOINT_BLOCK_SUMS_H
#define LLMC_ZERO_CHECKPOINT_BLOCK_SUMS_H
#include "manifest.h"
#include "ring.h"

typedef struct {
    const manifest *m;
    // The elements of each unit that the caller will ask for, so that no others are read ahead. Default: all;
    // set by the caller.
    int64_t needs_from, needs_until;
    int64_t until;  // of the open file: read-ahead stops here
    int file;       // the open one; -1: none
    int fd;
    char path[PATH_MAX];  // of the open file
    ring ring;            // buffer i has the bytes from i x ring.each on, which are whole blocks
    int64_t first, next;  // buffers [first, next) have been read or are being read
    int64_t block;        // the last one checked; -1: none
} block_reader;

// Returns 0, or ZERO_ERR_MEMORY. m must outlive it. work: as for ring_make. Call blocks_end in either case.
int blocks_begin(block_reader *b, const manifest *m, at_work *work);
// Fills `to` with bytes [at, at + bytes) of a file. Returns 0, or ZERO_ERR_IO naming the file and the offset.
int blocks_read(block_reader *b, int file, int64_t at, int64_t bytes, void *to);
// Fills `to` with elements [from, from + n) of a unit of a saved state, from whichever files have them.
// Elements in no file are padding, and 0.
int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to);
void blocks_end(block_reader *b);

#endif
