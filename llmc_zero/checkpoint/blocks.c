#include "blocks.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

int blocks_begin(block_reader *b, const manifest *m) {
    *b = (block_reader){ .m = m, .file = -1, .block = -1, .bytes = malloc(m->block_bytes) };
    return b->bytes ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for a block", m->path);
}

static void close_file(block_reader *b) {
    if (b->file >= 0) close(b->fd);  // nothing was written
    b->file = -1;
    b->block = -1;
}

static int open_file(block_reader *b, int file) {
    const manifest_file *f = &b->m->files[file];
    struct stat st;
    if (b->file == file) return 0;
    close_file(b);
    size_t folder = strlen(b->m->path) - strlen(MANIFEST);
    if (snprintf(b->path, sizeof b->path, "%.*s%s", (int)folder, b->m->path, f->name) >= PATH_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: the name is too long", f->name);
    // Opening a pipe does not wait for its writer.
    b->fd = open(b->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (b->fd < 0) return zero_fail(ZERO_ERR_IO, "%s: %s", b->path, strerror(errno));
    b->file = file;
    int rc = 0;
    if (fstat(b->fd, &st))
        rc = zero_fail(ZERO_ERR_IO, "%s: %s", b->path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size != f->bytes)
        rc = zero_fail(ZERO_ERR_IO,
                       "%s: ends at offset %lld, and the manifest says %lld: truncated or damaged", b->path,
                       (long long)st.st_size, (long long)f->bytes);
    if (rc) close_file(b);
    return rc;
}

static int read_whole(const block_reader *b, char *to, int64_t bytes, int64_t offset) {
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(b->fd, to + done, bytes - done, offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return zero_fail(ZERO_ERR_IO, "%s: cannot be read at offset %lld: %s", b->path,
                             (long long)(offset + done), strerror(errno));
        if (n == 0)
            return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld", b->path, (long long)(offset + done));
        done += n;
    }
    return 0;
}

static int read_block(block_reader *b, int file, int64_t block) {
    const manifest_file *f = &b->m->files[file];
    const int64_t size = b->m->block_bytes, offset = block * size;
    ZERO_TRY(open_file(b, file));
    if (b->block == block) return 0;
    b->block = -1;
    int64_t bytes = f->bytes - offset < size ? f->bytes - offset : size;
    ZERO_TRY(read_whole(b, b->bytes, bytes, offset));
    if (XXH3_64bits(b->bytes, bytes) != f->digests[block])
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
        n = b->m->block_bytes - begin < bytes ? b->m->block_bytes - begin : bytes;
        ZERO_TRY(read_block(b, file, block));
        memcpy(next, b->bytes + begin, n);
    }
    return 0;
}

// Of elements [from, from + n) of a unit those that a part has.
static int read_overlap(block_reader *b, int file, const saved_part *p, int saved, int64_t from, int64_t n,
                        float *to) {
    int64_t begin = p->from > from ? p->from : from;
    int64_t end = p->from + p->elems < from + n ? p->from + p->elems : from + n;
    if (end <= begin) return 0;
    int64_t at = p->at[saved] + (begin - p->from) * (int64_t)sizeof(float);
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
    free(b->bytes);
}
