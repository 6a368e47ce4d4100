#include "blocks.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { RING_BYTES = 1 << 20, RING_BUFFERS = 8 };  // bytes per disk request; requests in flight
enum { THREADS = 4 };                             // for reads and writes
static const double alone_s = 300;                // the disk's time limit if no other rank waits
_Static_assert(RING_BYTES % BLOCK_BYTES == 0, "a buffer holds whole blocks");

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t whole_pages(int64_t bytes) { return bytes / FILE_ALIGN * FILE_ALIGN; }

// -------- buffers

// Returns the address of the byte at this offset of the file.
static char *ring_at(const ring *r, int64_t offset) {
    return r->memory + offset / r->each % r->n * r->each + offset % r->each;
}

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

// memory: for all buffers; NULL: allocates it.
static int ring_make(ring *r, const char *path, int n, int64_t each, char *memory, at_work *work) {
    *r = (ring){ .n = n, .each = each, .memory = memory, .given = memory != NULL, .work = work };
    r->transfers = calloc(n, sizeof *r->transfers);
    if (!r->transfers) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for %d buffers", path, n);
    return memory ? 0 : take_memory(r, path);
}

// reserve: 1 if the file is new. If the disk of an earlier file hung, the ring allocates new memory. Does not
// use io_uring: requests are few and large, and every system then handles checkpoints in the same way.
static int ring_open(ring *r, int fd, const char *path, int64_t bytes, int reserve) {
    const file_settings settings = { .path = path,
                                     .fd = fd,
                                     .reserve = reserve,
                                     .block_bytes = RING_BYTES,
                                     .depth = RING_BUFFERS,
                                     .threads = THREADS,
                                     .no_uring = 1,
                                     .timeout_s = r->work ? r->work->z->config.comm.timeout_s : alone_s };
    if (r->hangs) ZERO_TRY(take_memory(r, path));
    r->hangs = 0;
    return file_open(&r->engine, &settings, whole_pages(bytes));
}

// Starts reading or writing buffer i of the file. bytes: the file's size.
static int ring_start(ring *r, int64_t i, int64_t bytes, int write) {
    const int64_t at = i * r->each;
    file_transfer *t = &r->transfers[i % r->n];
    *t = (file_transfer){ .offset = at,
                          .data = ring_at(r, at),
                          .bytes = smaller(whole_pages(bytes) - at, r->each),
                          .write = write };
    return file_start(r->engine, t);
}

static int ring_wait(ring *r, int64_t i) {
    file_transfer *t = &r->transfers[i % r->n];
    if (!r->work) return file_wait(r->engine, t);
    for (int waits = 1; waits;) {
        waits = file_wait_for(r->engine, t, at_work_turn_s(r->work->z));
        if (waits < 0) return waits;
        ZERO_TRY(at_work_goes_on(r->work));
    }
    return 0;
}

static int ring_wait_all(ring *r) {
    for (int i = 0; i < r->n; i++) ZERO_TRY(ring_wait(r, i));
    return 0;
}

// Other ranks are waiting for this one, so it reports while it waits, even if only for unused read-ahead.
static void ring_close(ring *r) {
    if (r->engine) (void)ring_wait_all(r);
    r->hangs |= file_close(r->engine);
    r->engine = NULL;
}

static void ring_free(ring *r) {
    ring_close(r);
    if (r->memory && !r->given && !r->hangs) munmap(r->memory, (size_t)(r->n * r->each));
    free(r->transfers);
}

// -------- a file being written

int writer_begin(file_writer *w, const char *path, int64_t bytes, uint64_t *digests, char *copy,
                 at_work *work) {
    const int64_t buffers = copy ? bytes / RING_BYTES + 1 : RING_BUFFERS;
    *w = (file_writer){ .path = path, .fd = -1, .bytes = bytes, .digests = digests };
    ZERO_TRY(ring_make(&w->ring, path, (int)buffers, RING_BYTES, copy, work));
    ZERO_TRY(folder_create_file(path, &w->fd));
    return ring_open(&w->ring, w->fd, path, bytes, 1);
}

int writer_room(file_writer *w, void **to, int64_t *room) {
    const int64_t begin = w->filled % RING_BYTES, left = w->bytes - w->filled;
    if (!begin) ZERO_TRY(ring_wait(&w->ring, w->filled / RING_BYTES));
    *to = ring_at(&w->ring, w->filled);
    *room = smaller(RING_BYTES - begin, left);
    return 0;
}

// Computes the digests of the blocks completed by the bytes up to `end`.
static void digest_blocks(const file_writer *w, int64_t end) {
    for (int64_t at = w->filled / BLOCK_BYTES * BLOCK_BYTES; at < end; at += BLOCK_BYTES) {
        const int64_t n = smaller(w->bytes - at, BLOCK_BYTES);
        if (at + n <= end) w->digests[at / BLOCK_BYTES] = XXH3_64bits(ring_at(&w->ring, at), n);
    }
}

int writer_filled(file_writer *w, int64_t bytes) {
    const int64_t end = w->filled + bytes;
    digest_blocks(w, end);
    w->filled = end;
    if (!bytes || (end % RING_BYTES && end < w->bytes)) return 0;
    return ring_start(&w->ring, (end - 1) / RING_BYTES, w->bytes, 1);
}

// Writes the last bytes, less than a page, through the page cache.
static int write_rest(file_writer *w) {
    const int64_t at = whole_pages(w->bytes);
    if (at == w->bytes) return 0;
    if (fcntl(w->fd, F_SETFL, 0) || lseek(w->fd, at, SEEK_SET) != at)
        return zero_fail(ZERO_ERR_IO, "%s: %s", w->path, strerror(errno));
    return folder_write(w->fd, w->path, ring_at(&w->ring, at), w->bytes - at);
}

int writer_end(file_writer *w, int rc) {
    if (!rc) rc = ring_wait_all(&w->ring);
    ring_close(&w->ring);
    atomic_store(&w->syncs, 1);
    if (!rc) rc = write_rest(w);
    if (!rc)
        rc = folder_close_written(w->fd, w->path);
    else if (w->fd >= 0 && !w->ring.hangs)
        close(w->fd);  // without a sync, because the disk may hang
    if (rc && w->fd >= 0) unlink(w->path);
    ring_free(&w->ring);
    return rc;
}

// -------- files being read

// Uses at least two buffers, even for the largest blocks, of 64 MiB.
int blocks_begin(block_reader *b, const manifest *m, at_work *work) {
    const int64_t block = m->block_bytes, each = block < RING_BYTES ? RING_BYTES / block * block : block;
    const int64_t n = RING_BUFFERS * (int64_t)RING_BYTES / each;
    *b = (block_reader){ .m = m, .needs_until = INT64_MAX, .until = INT64_MAX, .file = -1, .block = -1 };
    return ring_make(&b->ring, m->path, n < 2 ? 2 : (int)n, each, NULL, work);
}

static void close_read(block_reader *b) {
    ring_close(&b->ring);
    if (b->file >= 0 && !b->ring.hangs) close(b->fd);  // nothing was written
    b->file = -1;
    b->block = -1;
    b->first = b->next = 0;
}

static int check_size(const block_reader *b, int64_t bytes) {
    struct stat st;
    if (fstat(b->fd, &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", b->path, strerror(errno));
    if (S_ISREG(st.st_mode) && st.st_size == bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld, but the manifest has %lld: truncated or damaged",
                     b->path, (long long)st.st_size, (long long)bytes);
}

static int open_file(block_reader *b, int file) {
    const manifest_file *f = &b->m->files[file];
    if (b->file == file) return 0;
    close_read(b);
    size_t folder = strlen(b->m->path) - strlen(MANIFEST);
    if (snprintf(b->path, sizeof b->path, "%.*s%s", (int)folder, b->m->path, f->name) >= PATH_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: the name is too long", f->name);
    // O_NONBLOCK: opening a pipe must not wait for its writer
    b->fd = open(b->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (b->fd < 0) return zero_fail(ZERO_ERR_IO, "%s: %s", b->path, strerror(errno));
    b->file = file;
    int rc = check_size(b, f->bytes);
    if (!rc) rc = ring_open(&b->ring, b->fd, b->path, f->bytes, 0);
    if (rc) close_read(b);
    return rc;
}

// Reads the bytes after the last whole page. O_DIRECT needs a request for a page that extends past the file.
static int read_rest(const block_reader *b, int64_t bytes) {
    const int64_t at = whole_pages(bytes);
    for (ssize_t n = -1; n < 0;) {
        n = pread(b->fd, ring_at(&b->ring, at), FILE_ALIGN, at);
        if (n < 0 && errno != EINTR)
            return zero_fail(ZERO_ERR_IO, "%s: cannot be read at offset %lld: %s", b->path, (long long)at,
                             strerror(errno));
        if (n >= 0 && n != bytes - at)
            return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld", b->path, (long long)(at + n));
    }
    return 0;
}

// Starts reading buffer i, and as many of the following ones as there is room for.
static int ask_for(block_reader *b, int64_t i) {
    const int64_t bytes = b->m->files[b->file].bytes, each = b->ring.each;
    if (i < b->first || i > b->next) {
        ZERO_TRY(ring_wait_all(&b->ring));
        b->first = b->next = i;
        b->block = -1;
    }
    b->first = i;
    while (b->next < i + b->ring.n && b->next * each < bytes) {
        if (b->next > i && b->next * each >= b->until) break;
        ZERO_TRY(ring_wait(&b->ring, b->next));  // its buffer's previous request, if that was skipped
        ZERO_TRY(ring_start(&b->ring, b->next, bytes, 0));
        b->next++;
    }
    return 0;
}

// Waits for the buffer with the block at this offset.
static int wait_for(block_reader *b, int64_t offset) {
    const int64_t bytes = b->m->files[b->file].bytes, i = offset / b->ring.each;
    ZERO_TRY(ask_for(b, i));
    ZERO_TRY(ring_wait(&b->ring, i));
    const int has_rest = smaller((i + 1) * b->ring.each, bytes) > whole_pages(bytes);
    return has_rest ? read_rest(b, bytes) : 0;
}

// Sets *data to a block whose digest has been checked.
static int read_block(block_reader *b, int file, int64_t block, const char **data) {
    const manifest_file *f = &b->m->files[file];
    const int64_t offset = block * b->m->block_bytes, bytes = smaller(f->bytes - offset, b->m->block_bytes);
    ZERO_TRY(open_file(b, file));
    *data = ring_at(&b->ring, offset);
    if (b->block == block) return 0;
    ZERO_TRY(wait_for(b, offset));
    if (XXH3_64bits(*data, bytes) != f->digests[block])
        return zero_fail(ZERO_ERR_IO,
                         "%s: damaged: the block of %lld bytes at offset %lld does not match its checksum",
                         b->path, (long long)bytes, (long long)offset);
    b->block = block;
    return 0;
}

static int read_bytes(block_reader *b, int file, int64_t at, int64_t bytes, void *to) {
    char *next = to;
    for (int64_t n; bytes; bytes -= n, at += n, next += n) {
        const int64_t block = at / b->m->block_bytes, begin = at % b->m->block_bytes;
        const char *data;
        n = smaller(b->m->block_bytes - begin, bytes);
        ZERO_TRY(read_block(b, file, block, &data));
        memcpy(next, data + begin, n);
    }
    return 0;
}

// Sets how far to read ahead: if the whole part is needed, also its next state, which follows in the file.
static void read_ahead_in(block_reader *b, const saved_stretch *s, const saved_part *p, int saved) {
    const int64_t shift = s->saved_from - s->from, last = p->from + p->elems;
    const int64_t until = smaller(b->needs_until, s->from + s->elems) + shift;
    const int64_t needed = smaller(last, until) - p->from;
    const int is_all = larger(b->needs_from, s->from) + shift <= p->from && last <= until;
    b->until = is_all ? INT64_MAX : p->at[saved] + needed * (int64_t)sizeof(float);
}

// Reads the elements of the saved unit's range [from, from + n), of a stretch, that are in the part.
static int read_overlap(block_reader *b, int file, const saved_stretch *s, const saved_part *p, int saved,
                        int64_t from, int64_t n, float *to) {
    const int64_t begin = larger(p->from, from), end = smaller(p->from + p->elems, from + n);
    const int64_t at = p->at[saved] + (begin - p->from) * (int64_t)sizeof(float);
    if (end <= begin) return 0;
    read_ahead_in(b, s, p, saved);
    return read_bytes(b, file, at, (end - begin) * (int64_t)sizeof(float), to + begin - from);
}

static int read_stretch(block_reader *b, const saved_stretch *s, int saved, int64_t from, int64_t n,
                        float *to) {
    for (int i = 0; i < b->m->n_files; i++) {
        const manifest_file *f = &b->m->files[i];
        for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++)
            if (p->unit == s->saved_unit) ZERO_TRY(read_overlap(b, i, s, p, saved, from, n, to));
    }
    return 0;
}

int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to) {
    memset(to, 0, n * sizeof *to);
    for (const saved_stretch *s = b->m->stretches; s < b->m->stretches + b->m->n_stretches; s++) {
        const int64_t begin = larger(s->from, from), end = smaller(s->from + s->elems, from + n);
        if (s->unit != unit || end <= begin) continue;
        ZERO_TRY(read_stretch(b, s, saved, begin - s->from + s->saved_from, end - begin, to + begin - from));
    }
    return 0;
}

int blocks_check_file(block_reader *b, int file) {
    const char *data;
    ZERO_TRY(open_file(b, file));  // an empty file has no blocks, but must exist
    for (int64_t i = 0; i < b->m->files[file].n_blocks; i++) ZERO_TRY(read_block(b, file, i, &data));
    return 0;
}

void blocks_end(block_reader *b) {
    close_read(b);
    ring_free(&b->ring);
}
