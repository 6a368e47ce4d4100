// A checkpoint's files, written and read in blocks with O_DIRECT: the disk transfers some buffers while the
// CPU fills or uses another. When reading, a block's digest is checked before any of its bytes are returned.
#ifndef LLMC_ZERO_CHECKPOINT_BLOCKS_H
#define LLMC_ZERO_CHECKPOINT_BLOCKS_H
#include "../tiers/file.h"
#include "at_work.h"
#include "manifest.h"
#include <stdatomic.h>

// Buffers shared by the CPU and the disk. Buffer i % n holds `each` bytes of the file, from i * each on.
typedef struct {
    int n;
    int64_t each;              // bytes of a buffer: whole blocks
    char *memory;              // (n, each)
    file_transfer *transfers;  // (n)
    file_engine *engine;       // NULL: no file is open
    int given;                 // 1: the caller owns the memory
    int hangs;                 // 1: a hung disk may still use the memory and the file, so neither is released
    at_work *work;             // reports while this rank waits; NULL: the other ranks do not wait for it
} ring;

// -------- a file being written
//
//     writer_begin(&w, path, bytes, digests, NULL, &work);
//     until all bytes are written:
//         writer_room(&w, &to, &room); ... put up to `room` bytes there ... writer_filled(&w, filled);
//     writer_end(&w, rc);

typedef struct {
    const char *path;
    int fd;             // -1: not open
    int64_t bytes;      // size of the whole file
    int64_t filled;     // bytes so far
    uint64_t *digests;  // of the blocks
    atomic_int syncs;   // 1: all requests have ended, and the file is being synced
    ring ring;          // for the whole pages; the rest is written separately
} file_writer;

// Creates the file and reserves its space. Call writer_end even after an error; path must stay valid until
// then. digests: receives the digests of all blocks. copy: memory for the whole file, in whole pages, so that
// only writer_end waits for the disk; NULL: uses a few buffers. work: see ring.
int writer_begin(file_writer *w, const char *path, int64_t bytes, uint64_t *digests, char *copy,
                 at_work *work);
// Returns memory for the next *room bytes, a multiple of 4 except at the end. May wait for the disk.
int writer_room(file_writer *w, void **to, int64_t *room);
// bytes: how many the caller has stored there. Returns 0 or an error.
int writer_filled(file_writer *w, int64_t bytes);
// Returns 0 when the file is on disk. After a failure, rc or its own, removes the file and returns the first.
int writer_end(file_writer *w, int rc);

// -------- reading the files of a manifest

typedef struct {
    const manifest *m;
    // Set by the caller: it needs these elements of the model's unit; no others are read ahead. Default: all.
    int64_t needs_from, needs_until;
    int64_t until;  // of the open file: read-ahead stops here
    int file;       // the open one; -1: none
    int fd;
    char path[PATH_MAX];  // of the open file
    ring ring;
    int64_t first, next;  // buffers [first, next) have been read or are being read
    int64_t block;        // the last block checked; -1: none
} block_reader;

// Returns 0, or ZERO_ERR_MEMORY. Call blocks_end in either case. m must outlive b. work: see ring.
int blocks_begin(block_reader *b, const manifest *m, at_work *work);
// Reads elements [from, from + n) of a unit of the model and of a saved state, from the files that have them.
// Elements in no file are padding and are set to 0. Returns 0, or ZERO_ERR_IO and the file and the offset.
int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to);
// Reads and checks a whole file. Returns the same errors as blocks_read_unit.
int blocks_check_file(block_reader *b, int file);
void blocks_end(block_reader *b);

#endif
