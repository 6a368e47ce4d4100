// Reads a checkpoint's files block by block. What is handed out has been compared with its digest.
#ifndef LLMC_ZERO_CHECKPOINT_BLOCKS_H
#define LLMC_ZERO_CHECKPOINT_BLOCKS_H
#include "manifest.h"

typedef struct {
    const manifest *m;
    int file;  // the open one; -1: none
    int fd;
    char path[PATH_MAX];  // of the open file
    int64_t block;        // of it that is in `bytes`; -1: none
    char *bytes;          // (block_bytes)
} block_reader;

// Returns 0, or ZERO_ERR_MEMORY. m is the caller's and outlives it. blocks_end comes next in any case.
int blocks_begin(block_reader *b, const manifest *m);
// Fills `to` with bytes [at, at + bytes) of a file. Returns 0, or ZERO_ERR_IO naming the file and the offset.
int blocks_read(block_reader *b, int file, int64_t at, int64_t bytes, void *to);
// Fills `to` with elements [from, from + n) of a unit of a saved state, from whichever files have them. What
// no file has is padding, and 0.
int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to);
void blocks_end(block_reader *b);

#endif
