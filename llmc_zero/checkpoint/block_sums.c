#include "block_sums.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

// Blocks of 64 MiB, the largest size, are read two at a time.
int blocks_begin(block_reader *b, const manifest *m, at_work *work) {
    const int64_t block = m->block_bytes, each = block < RING_BYTES ? RING_BYTES / block * block : block;
    const int64_t n = RING_BUFFERS * (int64_t)RING_BYTES / each;
    *b = (block_reader){ .m = m, .needs_until = INT64_MAX, .until = INT64_MAX, .file = -1, .block = -1 };
    return ring_make(&b->ring, m->path, n < 2 ? 2 : (int)n, each, NULL, work);
}

// -------- the file

static void close_file(block_reader *b) {
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
    return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld, and the manifest says %lld: truncated or damaged",
                     b->path, (long long)st.st_size, (long long)bytes);
}

static int open_file(block_reader *b, int file) {
    const manifest_file *f = &b->m->files[file];
    if (b->file == file) return 0;
    close_file(b);
    size_t folder = strlen(b->m->path) - strlen(MANIFEST);
    if (snprintf(b->path, sizeof b->path, "%.*s%s", (int)folder, b->m->path, f->name) >= PATH_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: the name is too long", f->name);
    // O_NONBLOCK: opening a pipe must not wait for its writer
    b->fd = open(b->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (b->fd < 0) return zero_fail(ZERO_ERR_IO, "%s: %s", b->path, strerror(errno));
    b->file = file;
    int rc = check_size(b, f->bytes);
    if (!rc) rc = ring_open(&b->ring, b->fd, b->path, ring_whole_pages(f->bytes), 0);
    if (rc) close_file(b);
    return rc;
}

// -------- buffers

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Reads what follows the last whole page. O_DIRECT reads only whole pages, so it asks for one, in which the
// file ends.
static int read_rest(const block_reader *b, int64_t bytes) {
    const int64_t at = ring_whole_pages(bytes), each = b->ring.each;
    char *to = ring_data(&b->ring, at / each) + at % each;
    for (ssize_t n = -1; n < 0;) {
        n = pread(b->fd, to, FILE_ALIGN, at);
        if (n < 0 && errno != EINTR)
            return zero_fail(ZERO_ERR_IO, "%s: cannot be read at offset %lld: %s", b->path, (long long)at,
                             strerror(errno));
        if (n >= 0 && n != bytes - at)
            return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld", b->path, (long long)(at + n));
    }
    return 0;
}

// Starts reading buffer i, and as many of the next ones as there is room for.
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
        ZERO_TRY(ring_wait(&b->ring, b->next));  // for skipped buffers
        ZERO_TRY(ring_start(&b->ring, b->next, ring_whole_pages(bytes), 0));
        b->next++;
    }
    return 0;
}

// Waits for the buffer with a block.
static int wait_for(block_reader *b, int64_t offset) {
    const int64_t bytes = b->m->files[b->file].bytes, i = offset / b->ring.each;
    ZERO_TRY(ask_for(b, i));
    ZERO_TRY(ring_wait(&b->ring, i));
    const int has_rest = smaller((i + 1) * b->ring.each, bytes) > ring_whole_pages(bytes);
    return has_rest ? read_rest(b, bytes) : 0;
}

// Sets *data to a block whose digest has been checked.
static int read_block(block_reader *b, int file, int64_t block, const char **data) {
    const manifest_file *f = &b->m->files[file];
    const int64_t offset = block * b->m->block_bytes, bytes = smaller(f->bytes - offset, b->m->block_bytes);
    ZERO_TRY(open_file(b, file));
    *data = ring_data(&b->ring, offset / b->ring.each) + offset % b->ring.each;
    if (b->block == block) return 0;
    ZERO_TRY(wait_for(b, offset));
    if (XXH3_64bits(*data, bytes) != f->digests[block])
        return zero_fail(ZERO_ERR_IO,
                         "%s: damaged: the block of %lld bytes at offset %lld does not match its checksum",
                         b->path, (long long)bytes, (long long)offset);
    b->block = block;
    return 0;
}

int blocks_read(block_reader *b, int file, int64_t at, int64_t bytes, void *to) {
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

// The next saved state of a part follows in the file, so it is read ahead if the whole part is needed.
static void read_ahead_in(block_reader *b, const saved_part *p, int saved) {
    const int64_t last = p->from + p->elems, needed = smaller(last, b->needs_until) - p->from;
    const int is_all = b->needs_from <= p->from && last <= b->needs_until;
    b->until = is_all ? INT64_MAX : p->at[saved] + needed * (int64_t)sizeof(float);
}

// Reads the elements of [from, from + n) of a unit that a part has.
static int read_overlap(block_reader *b, int file, const saved_part *p, int saved, int64_t from, int64_t n,
                        float *to) {
    int64_t begin = p->from > from ? p->from : from;
    int64_t end = p->from + p->elems < from + n ? p->from + p->elems : from + n;
    if (end <= begin) return 0;
    int64_t at = p->at[saved] + (begin - p->from) * (int64_t)sizeof(float);
    read_ahead_in(b, p, saved);
    return blocks_read(b, file, at, (end - begin) * (int64_t)sizeof(float), to + begin - from);
}

int blocks_read_unit(block_reader *b, int unit, int saved, int64_t from, int64_t n, float *to) {
    memset(to, 0, n * sizeof *to);
    for (int i = 0; i < b->m->n_files; i++) {
        const manifest_file *f = &b->m->files[i];
        for (const saved_part *p = f->parts; p < f->parts + f->n_parts; p++)
            if (p->unit == unit) ZERO_TRY(read_overlap(b, i, p, saved, from, n, to));
    }
    return 0;
}

void blocks_end(block_reader *b) {
    close_file(b);
    ring_free(&b->ring);
}
