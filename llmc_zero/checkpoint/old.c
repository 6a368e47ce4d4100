// A file of version 3: a header, the trainer's bytes, then for each unit this rank's part of the masters (or
// of the parameters, where they are their own masters) and of both moments, all in fp32, with the padding;
// then the number of the save, then the XXH3-64 of everything before. The number was made of what is in the
// files of all ranks and is the same in all of them, so files with different numbers were not saved together.
// Version 2 has no such number.
#include "old.h"
#include "parts.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    char magic[8];  // "llmczero"
    uint32_t version, ranks, rank, dtype;
    uint64_t geometry;  // digest of the tables: another model is refused
    uint64_t elems, user_bytes;
    loss_scale scale;
} file_header;
enum { FILE_VERSION = 3, OLDEST_VERSION = 2, MOST_USER_BYTES = 1 << 20, PIECE = 1 << 18 };

// -------- the digest: the last 8 bytes, of all before

static int read_all(int fd, const char *path, int64_t bytes, char *piece, XXH3_state_t *digest) {
    for (int64_t at = 0; at < bytes;) {
        ssize_t n = pread(fd, piece, bytes - at < PIECE ? (size_t)(bytes - at) : PIECE, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return zero_fail(ZERO_ERR_IO, "%s: cannot be read at offset %lld: %s", path, (long long)at,
                             strerror(errno));
        if (n == 0) return zero_fail(ZERO_ERR_IO, "%s: ends at offset %lld", path, (long long)at);
        if (at == 0 && (n < (ssize_t)sizeof(file_header) || memcmp(piece, "llmczero", 8)))
            return zero_fail(ZERO_ERR_IO, "%s: neither a checkpoint's folder nor a state file", path);
        if (XXH3_64bits_update(digest, piece, (size_t)n) != XXH_OK)
            return zero_fail(ZERO_ERR_IO, "%s: xxhash failed", path);
        at += n;
    }
    return 0;
}

static int compare_digest(int fd, const char *path, int64_t bytes, char *piece, XXH3_state_t *digest) {
    uint64_t stored;
    if (bytes < (int64_t)(sizeof(file_header) + sizeof stored))
        return zero_fail(ZERO_ERR_IO, "%s: %lld bytes are no state file", path, (long long)bytes);
    bytes -= (int64_t)sizeof stored;
    ZERO_TRY(read_all(fd, path, bytes, piece, digest));
    if (pread(fd, &stored, sizeof stored, bytes) != sizeof stored)
        return zero_fail(ZERO_ERR_IO, "%s: cannot be read at offset %lld", path, (long long)bytes);
    if (stored == XXH3_64bits_digest(digest)) return 0;
    return zero_fail(ZERO_ERR_IO,
                     "%s: damaged: the checksum at offset %lld does not match the %lld bytes before it", path,
                     (long long)bytes, (long long)bytes);
}

int old_verify(int fd, const char *path, int64_t bytes) {
    char *piece = malloc(PIECE);
    XXH3_state_t *digest = XXH3_createState();
    int rc = piece && digest && XXH3_64bits_reset(digest) == XXH_OK
                 ? compare_digest(fd, path, bytes, piece, digest)
                 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", path);
    free(piece);
    XXH3_freeState(digest);
    return rc;
}

// -------- the header

static uint64_t geometry_digest(const layout *l) {
    uint64_t h = l->n_units;
    for (int i = 0; i < l->n_tensors; i++) {
        const zero_tensor *t = &l->tensors[i];
        int64_t numbers[] = { (int64_t)h, zero_tensor_elems(t), t->layers, t->unit };
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), XXH3_64bits(numbers, sizeof numbers));
    }
    return h;
}

typedef struct {
    FILE *f;
    const char *path;
    zero *z;
} stream;

static int take(stream *s, void *data, size_t bytes) {
    if (!bytes) return 0;
    if (fread(data, 1, bytes, s->f) == bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", s->path,
                     ferror(s->f) ? strerror(errno) : "it ends early");
}

static int check_ranks(const stream *s, const file_header *h) {
    const uint32_t ranks = s->z->comm.group.ranks, rank = s->z->comm.group.rank;
    if (h->ranks != ranks)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "%s: saved by rank %u of %u, this is rank %u of %u, and a file of version %u loads at "
            "the same number only; resume with mpirun -np %u, srun -n %u or start.ranks %u",
            s->path, h->rank, h->ranks, rank, ranks, h->version, h->ranks, h->ranks, h->ranks);
    if (h->rank != rank)
        return zero_fail(
            ZERO_ERR_IO,
            "%s: saved by rank %u of %u, this is rank %u: each rank loads the file that it saved", s->path,
            h->rank, h->ranks, rank);
    return 0;
}

// What follows the states: the number of the save and the digest; in version 2 the digest alone.
static size_t trailer_bytes(const file_header *h) { return (h->version == 2 ? 1 : 2) * sizeof(uint64_t); }

static int check_size(const stream *s, const file_header *h) {
    const uint64_t states = 3 * sizeof(float) * (uint64_t)s->z->layout.shard_elems;
    struct stat st;
    if (fstat(fileno(s->f), &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    if (h->user_bytes > MOST_USER_BYTES)
        return zero_fail(ZERO_ERR_IO, "%s: damaged: %llu bytes of the trainer's own", s->path,
                         (unsigned long long)h->user_bytes);
    uint64_t bytes = sizeof *h + h->user_bytes + states + trailer_bytes(h);
    if ((uint64_t)st.st_size == bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: %lld bytes, it must have %llu: truncated or damaged", s->path,
                     (long long)st.st_size, (unsigned long long)bytes);
}

// Only a run in fp16 has a scale, and takes it over.
static int check_scale(const stream *s, const file_header *h) {
    const loss_scale *l = &h->scale;
    if (h->dtype != ZERO_F16) return 0;
    if (l->value > 0 && isfinite(l->value) && l->steps >= 0 && l->steps <= INT64_MAX / 2 &&
        l->last_overflow >= -1 && l->last_overflow <= l->steps && l->left >= 0)
        return 0;
    return zero_fail(ZERO_ERR_IO, "%s: damaged: its loss scale cannot be: %g after %lld steps", s->path,
                     l->value, (long long)l->steps);
}

static int check_header(stream *s, file_header *h) {
    const zero *z = s->z;
    ZERO_TRY(take(s, h, sizeof *h));
    if (memcmp(h->magic, "llmczero", 8))
        return zero_fail(ZERO_ERR_IO, "%s: is no llmc_zero state file", s->path);
    if (h->version < OLDEST_VERSION || h->version > FILE_VERSION)
        return zero_fail(ZERO_ERR_IO, "%s: version %u; this library reads files of versions %d to %d",
                         s->path, h->version, OLDEST_VERSION, FILE_VERSION);
    ZERO_TRY(check_ranks(s, h));
    if (h->dtype != z->config.numbers.dtype)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: saved with dtype %s", s->path,
                         h->dtype <= ZERO_F16 ? dtype_name(h->dtype) : "that is unknown");
    if (h->geometry != geometry_digest(&z->layout) || h->elems != (uint64_t)z->layout.elems)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "%s: belongs to another model: other tensors or units (%lld parameters here, %llu there)",
            s->path, (long long)z->layout.elems, (unsigned long long)h->elems);
    ZERO_TRY(check_scale(s, h));
    return check_size(s, h);
}

// Before anything in it is used.
static int check_digest(const stream *s) {
    struct stat st;
    if (fstat(fileno(s->f), &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    return old_verify(fileno(s->f), s->path, st.st_size);
}

// A file of version 2 has none: the number is 0.
static int take_number(stream *s, const file_header *h, uint64_t *number) {
    if (trailer_bytes(h) == sizeof(uint64_t)) return 0;
    if (fseeko(s->f, -(off_t)trailer_bytes(h), SEEK_END))
        return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    return take(s, number, sizeof *number);
}

// Does not wait for the writer of a pipe, which then ends early.
static int open_file(stream *s) {
    int fd = open(s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    s->f = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (s->f) return 0;
    zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    if (fd >= 0) close(fd);  // nothing was written
    return ZERO_ERR_IO;
}

static int open_own(stream *s, file_header *h, uint64_t *number) {
    ZERO_TRY(open_file(s));
    ZERO_TRY(check_header(s, h));
    ZERO_TRY(check_digest(s));
    ZERO_TRY(take_number(s, h, number));
    return fseeko(s->f, sizeof *h, SEEK_SET) ? zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno)) : 0;
}

// -------- the values

// Each file is good; all of them must come from one save. The paths come last, since a long sentence is cut.
static int check_same_save(zero *z, const char *path, uint64_t number) {
    struct {
        uint64_t number;
        char path[PATH_MAX];
    } first = { .number = number };
    snprintf(first.path, sizeof first.path, "%s", path);
    ZERO_TRY(zero_broadcast(z, 0, &first, sizeof first));
    const net *ranks = &z->net;
    int rc = 0;
    if (first.number != number)
        rc = zero_fail_rank(ZERO_ERR_IO, ranks->rank, net_host(ranks, ranks->rank),
                            " has a state file of another save than rank 0 (host %s): give all ranks the "
                            "files of one; these are %s and %s",
                            net_host(ranks, 0), path, first.path);
    return agree(z, rc);
}

static int take_piece(void *ctx, int saved, state_range r) {
    stream *s = ctx;
    zero *z = s->z;
    ZERO_TRY(take(s, z->values, r.elems * sizeof(float)));
    return state_write(state_with(z, saved_values[saved]), COMM, r, STATE_WRITE, z->values, z->staging);
}

// {"bytes": "0a1b.."}
static int take_text(stream *s, size_t bytes, char **text) {
    unsigned char *raw = malloc(bytes + 1);
    char *to = malloc(2 * bytes + 16);
    int rc = raw && to ? take(s, raw, bytes) : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory", s->path);
    if (!rc) {
        size_t at = sprintf(to, "{\"bytes\":\"");
        for (size_t i = 0; i < bytes; i++) at += sprintf(to + at, "%02x", raw[i]);
        strcpy(to + at, "\"}");
        *text = to;
    } else
        free(to);
    free(raw);
    return rc;
}

static int read_own(stream *s, size_t user_bytes, char **text) {
    at_work work = at_work_begin(s->z);
    int rc = take_text(s, user_bytes, text);
    if (!rc) rc = visit_parts(&work, 1, take_piece, s);
    return at_work_end(&work, rc);
}

int old_load(zero *z, const char *path, char **text) {
    stream s = { .path = path, .z = z };
    file_header h = { .scale = z->scale };
    uint64_t number = 0;
    // nothing changes on any rank before all files are good
    int rc = agree(z, open_own(&s, &h, &number));
    if (!rc) rc = check_same_save(z, path, number);
    if (!rc) rc = read_own(&s, h.user_bytes, text);
    if (s.f) fclose(s.f);
    ZERO_TRY(rc);
    if (z->config.numbers.dtype == ZERO_F16 && z->config.numbers.loss_scale == 0) z->scale = h.scale;
    return 0;
}
