#include "writer.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { THREADS = 4 };  // that write

// -------- the file and the buffers

static int64_t whole_pages(int64_t bytes) { return bytes / FILE_ALIGN * FILE_ALIGN; }

// Pages of 2 MiB reach a disk in fewer pieces. Not from malloc: a disk that does not answer may still read
// them when they are given back.
static int make_buffers(file_writer *w) {
    const size_t bytes = (size_t)w->n * WRITER_BYTES;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    w->transfers = calloc(w->n, sizeof *w->transfers);
    if (memory != MAP_FAILED) w->memory = memory;
    if (!w->memory || !w->transfers)
        return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for %zu bytes of buffers", w->path, bytes);
    madvise(w->memory, bytes, MADV_HUGEPAGE);  // a wish only
    return 0;
}

// Requests are made by threads even where there is io_uring: there are few, each is large, and so a
// checkpoint is written the same way everywhere.
int writer_begin(file_writer *w, const char *path, int64_t bytes, uint64_t *digests, int n,
                 double timeout_s) {
    const file_settings settings = { .block_bytes = WRITER_BYTES,
                                     .depth = WRITER_BUFFERS,
                                     .threads = THREADS,
                                     .no_uring = 1,
                                     .timeout_s = timeout_s };
    *w = (file_writer){ .fd = -1, .bytes = bytes, .digests = digests, .n = n };
    snprintf(w->path, sizeof w->path, "%s", path);
    ZERO_TRY(make_buffers(w));
    ZERO_TRY(folder_create_file(path, &w->fd));
    return file_open_given(&w->engine, &settings, w->fd, path, whole_pages(bytes));
}

// -------- filling

static char *buffer_at(const file_writer *w, int64_t at) {
    return w->memory + at / WRITER_BYTES % w->n * WRITER_BYTES;
}
static file_transfer *transfer_at(const file_writer *w, int64_t at) {
    return &w->transfers[at / WRITER_BYTES % w->n];
}

int writer_room(file_writer *w, void **to, int64_t *room) {
    const int64_t begin = w->filled % WRITER_BYTES, left = w->bytes - w->filled;
    if (!begin) ZERO_TRY(file_wait(w->engine, transfer_at(w, w->filled)));
    *to = buffer_at(w, w->filled) + begin;
    *room = WRITER_BYTES - begin < left ? WRITER_BYTES - begin : left;
    return 0;
}

// Those of the blocks that are complete with the bytes up to `end`.
static void digest_blocks(const file_writer *w, int64_t end) {
    int64_t block = w->filled / BLOCK_BYTES, last = manifest_blocks(w->bytes, BLOCK_BYTES) - 1;
    for (; (block + 1) * BLOCK_BYTES <= end || (block == last && end == w->bytes); block++) {
        const int64_t at = block * BLOCK_BYTES, left = w->bytes - at;
        w->digests[block] = XXH3_64bits(buffer_at(w, at) + at % WRITER_BYTES,
                                        left < BLOCK_BYTES ? left : BLOCK_BYTES);
    }
}

// Starts to write the buffer that begins at `at`.
static int start_buffer(file_writer *w, int64_t at) {
    const int64_t left = whole_pages(w->bytes) - at;
    file_transfer *t = transfer_at(w, at);
    *t = (file_transfer){
        .offset = at, .data = buffer_at(w, at), .bytes = left < WRITER_BYTES ? left : WRITER_BYTES, .write = 1
    };
    return file_start(w->engine, t);
}

int writer_filled(file_writer *w, int64_t bytes) {
    const int64_t end = w->filled + bytes;
    digest_blocks(w, end);
    w->filled = end;
    if (!bytes || (end % WRITER_BYTES && end < w->bytes)) return 0;
    return start_buffer(w, (end - 1) / WRITER_BYTES * WRITER_BYTES);
}

// -------- the end

static int wait_for_all(file_writer *w) {
    for (int i = 0; i < w->n; i++) ZERO_TRY(file_wait(w->engine, &w->transfers[i]));
    return 0;
}

// The last bytes are no whole page, so they go through the page cache.
static int write_rest(file_writer *w) {
    const int64_t at = whole_pages(w->bytes);
    if (at == w->bytes) return 0;
    if (fcntl(w->fd, F_SETFL, 0) || lseek(w->fd, at, SEEK_SET) != at)
        return zero_fail(ZERO_ERR_IO, "%s: %s", w->path, strerror(errno));
    return folder_write(w->fd, w->path, buffer_at(w, at) + at % WRITER_BYTES, w->bytes - at);
}

int writer_end(file_writer *w, int rc) {
    if (!rc) rc = wait_for_all(w);
    file_close(w->engine);
    if (!rc) rc = write_rest(w);
    if (w->fd >= 0) {
        int closed = folder_close_written(w->fd, w->path);
        if (!rc) rc = closed;
        if (rc) unlink(w->path);
    }
    if (w->memory) munmap(w->memory, (size_t)w->n * WRITER_BYTES);
    free(w->transfers);
    return rc;
}
