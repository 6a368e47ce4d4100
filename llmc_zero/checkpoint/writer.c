#include "writer.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(RING_BYTES % BLOCK_BYTES == 0, "a buffer holds whole blocks");

int writer_begin(file_writer *w, const char *path, int64_t bytes, uint64_t *digests, char *copy,
                 at_work *work) {
    const int64_t buffers = copy ? bytes / RING_BYTES + 1 : RING_BUFFERS;
    *w = (file_writer){ .fd = -1, .bytes = bytes, .digests = digests };
    snprintf(w->path, sizeof w->path, "%s", path);
    ZERO_TRY(ring_make(&w->ring, path, (int)buffers, RING_BYTES, copy, work));
    ZERO_TRY(folder_create_file(path, &w->fd));
    return ring_open(&w->ring, w->fd, path, ring_whole_pages(bytes), 1);
}

static char *data_at(const file_writer *w, int64_t at) {
    return ring_data(&w->ring, at / RING_BYTES) + at % RING_BYTES;
}

int writer_room(file_writer *w, void **to, int64_t *room) {
    const int64_t begin = w->filled % RING_BYTES, left = w->bytes - w->filled;
    if (!begin) ZERO_TRY(ring_wait(&w->ring, w->filled / RING_BYTES));
    *to = data_at(w, w->filled);
    *room = RING_BYTES - begin < left ? RING_BYTES - begin : left;
    return 0;
}

// Computes the digests of the blocks completed by the bytes up to `end`.
static void digest_blocks(const file_writer *w, int64_t end) {
    for (int64_t at = w->filled / BLOCK_BYTES * BLOCK_BYTES; at < end; at += BLOCK_BYTES) {
        int64_t n = w->bytes - at < BLOCK_BYTES ? w->bytes - at : BLOCK_BYTES;
        if (at + n <= end) w->digests[at / BLOCK_BYTES] = XXH3_64bits(data_at(w, at), n);
    }
}

int writer_filled(file_writer *w, int64_t bytes) {
    const int64_t end = w->filled + bytes;
    digest_blocks(w, end);
    w->filled = end;
    if (!bytes || (end % RING_BYTES && end < w->bytes)) return 0;
    return ring_start(&w->ring, (end - 1) / RING_BYTES, ring_whole_pages(w->bytes), 1);
}

// The last bytes are not a whole page, so they go through the page cache.
static int write_rest(file_writer *w) {
    const int64_t at = ring_whole_pages(w->bytes);
    if (at == w->bytes) return 0;
    if (fcntl(w->fd, F_SETFL, 0) || lseek(w->fd, at, SEEK_SET) != at)
        return zero_fail(ZERO_ERR_IO, "%s: %s", w->path, strerror(errno));
    return folder_write(w->fd, w->path, data_at(w, at), w->bytes - at);
}

// A failed file need not be synced to a disk that may hang.
static int close_file(const file_writer *w, int rc) {
    if (!rc)
        rc = folder_close_written(w->fd, w->path);
    else if (!w->ring.hangs)
        close(w->fd);
    if (rc) unlink(w->path);
    return rc;
}

int writer_end(file_writer *w, int rc) {
    if (!rc) rc = ring_wait_all(&w->ring);
    ring_close(&w->ring);
    atomic_store(&w->syncs, 1);
    if (!rc) rc = write_rest(w);
    if (w->fd >= 0) rc = close_file(w, rc);
    ring_free(&w->ring);
    return rc;
}
