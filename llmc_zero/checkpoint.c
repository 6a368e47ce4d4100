/*
 * Save and load. One file a rank: a header, the trainer's bytes, then for each unit this rank's part of the masters (or, in fp32, the
 * parameters) and of both moments, all fp32, then the XXH3-64 of everything before. What is written is the same at every stage, so a
 * file saved at one stage loads at another. The parameters in bf16 are not saved: they are the rounded masters.
 */
#include "internal.h"
#define XXH_INLINE_ALL
#include <errno.h>
#include <libgen.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    char magic[8];                      /* "llmczero" */
    uint32_t version, ranks, rank, dtype;
    uint64_t geometry;                  /* digest of the tables: another model is refused */
    uint64_t elems, user_bytes;
} file_header;

static uint64_t geometry_digest(const layout *l) {
    uint64_t h = l->n_units;
    for (int i = 0; i < l->n_tensors; i++) {
        const zero_tensor *t = &l->tensors[i];
        int64_t numbers[] = { (int64_t)h, t->elems, t->layers, t->unit };
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), XXH3_64bits(numbers, sizeof numbers));
    }
    return h;
}

static file_header header_of(const zero *z, size_t user_bytes) {
    file_header h = { .version = 1, .ranks = z->comm.ranks, .rank = z->comm.rank, .dtype = z->config.dtype,
                      .geometry = geometry_digest(&z->layout), .elems = z->layout.elems, .user_bytes = user_bytes };
    memcpy(h.magic, "llmczero", 8);
    return h;
}

static float *state_array(const zero *z, int which) {
    float *master = z->master ? z->master : (float *)z->params;
    return which == 0 ? master : which == 1 ? z->moment1 : z->moment2;
}
/* This rank's part of a unit in state 0 (masters), 1 or 2 (moments). */
static float *own_part(const zero *z, int which, int unit) {
    return state_array(z, which) + part_offset(z, unit, z->comm.rank, which == 0 && !z->master ? 3 : 1);
}

/* A file being read or written together with its digest. */
typedef struct { FILE *f; XXH3_state_t *digest; const char *path; } stream;

static int put(stream *s, const void *data, size_t bytes) {
    if (XXH3_64bits_update(s->digest, data, bytes) != XXH_OK) return zero_fail(ZERO_ERR_IO, "%s: xxhash failed", s->path);
    if (fwrite(data, 1, bytes, s->f) != bytes) return zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno));
    return 0;
}

static int write_file(const zero *z, stream *s, const void *user, size_t user_bytes) {
    file_header h = header_of(z, user_bytes);
    ZERO_TRY(put(s, &h, sizeof h));
    ZERO_TRY(put(s, user, user_bytes));
    for (int u = 0; u < z->layout.n_units; u++)
        for (int which = 0; which < 3; which++) ZERO_TRY(put(s, own_part(z, which, u), z->layout.units[u].shard * sizeof(float)));
    uint64_t digest = XXH3_64bits_digest(s->digest);
    ZERO_TRY(put(s, &digest, sizeof digest));
    if (fflush(s->f) || fsync(fileno(s->f))) return zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno));
    return 0;
}

static int sync_folder(const char *path) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY), rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) close(fd);
    return rc ? zero_fail(ZERO_ERR_IO, "%s: its folder cannot be synced: %s", path, strerror(errno)) : 0;
}

static int save_own(const zero *z, const char *path, const void *user, size_t user_bytes) {
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary) return zero_fail(ZERO_ERR_ARGUMENT, "%s: name too long", path);
    stream s = { fopen(temporary, "wb"), XXH3_createState(), temporary };
    int rc = s.f ? 0 : zero_fail(ZERO_ERR_IO, "%s: %s", temporary, strerror(errno));
    if (!rc && (!s.digest || XXH3_64bits_reset(s.digest) != XXH_OK)) rc = zero_fail(ZERO_ERR_MEMORY, "xxhash does not start");
    if (!rc) rc = write_file(z, &s, user, user_bytes);
    if (s.f && fclose(s.f) && !rc) rc = zero_fail(ZERO_ERR_IO, "%s: not written: %s", temporary, strerror(errno));
    XXH3_freeState(s.digest);
    if (!rc && rename(temporary, path)) rc = zero_fail(ZERO_ERR_IO, "%s: cannot be renamed: %s", temporary, strerror(errno));
    if (rc) unlink(temporary);
    return rc ? rc : sync_folder(path);
}

/* All ranks fail if one does, with the sentence of the lowest rank that failed. */
static int agree(zero *z, int rc) {
    char sentence[512] = "", first[512] = "";
    double failed = rc != 0;
    if (rc) snprintf(sentence, sizeof sentence, "%s", zero_last_error());
    int comm_rc = zero_sum(z, &failed, 1);
    for (int r = 0; !comm_rc && failed && !*first && r < z->comm.ranks; r++) {
        memcpy(first, sentence, sizeof first);
        comm_rc = zero_broadcast(z, r, first, sizeof first);
    }
    if (comm_rc || !failed) return comm_rc ? comm_rc : rc;
    return zero_fail(rc ? rc : ZERO_ERR_IO, "%s", first);
}

int zero_save(zero *z, const char *path, const void *user, size_t user_bytes) {
    if (z->begun) return zero_fail(ZERO_ERR_MISUSE, "zero_save: inside a training step; finish the step first");
    ZERO_TRY(check_closed(z, "zero_save"));
    ZERO_TRY(params_complete(z));
    return agree(z, save_own(z, path, user, user_bytes));
}

static int take(stream *s, void *data, size_t bytes) {
    if (fread(data, 1, bytes, s->f) == bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", s->path, ferror(s->f) ? strerror(errno) : "it ends early");
}

static int check_header(const zero *z, stream *s, size_t user_bytes) {
    file_header h, want = header_of(z, user_bytes);
    struct stat st;
    ZERO_TRY(take(s, &h, sizeof h));
    if (memcmp(h.magic, want.magic, 8)) return zero_fail(ZERO_ERR_IO, "%s: is no llmc_zero state file", s->path);
    if (h.version != want.version) return zero_fail(ZERO_ERR_IO, "%s: version %u; this library reads version %u", s->path, h.version, want.version);
    if (h.ranks != want.ranks || h.rank != want.rank)
        return zero_fail(ZERO_ERR_IO, "%s: saved by rank %u of %u, this is rank %u of %u; resume with mpirun -np %u", s->path, h.rank, h.ranks,
                         want.rank, want.ranks, h.ranks);
    if (h.dtype != want.dtype) return zero_fail(ZERO_ERR_IO, "%s: saved with dtype %s", s->path, h.dtype == ZERO_BF16 ? "bf16" : "fp32");
    if (h.geometry != want.geometry || h.elems != want.elems)
        return zero_fail(ZERO_ERR_IO, "%s: belongs to another model: other tensors or units (%llu parameters here, %llu there)", s->path,
                         (unsigned long long)want.elems, (unsigned long long)h.elems);
    if (h.user_bytes != want.user_bytes)
        return zero_fail(ZERO_ERR_IO, "%s: holds %llu bytes of the trainer's own, and %llu are asked for: another trainer or version wrote it",
                         s->path, (unsigned long long)h.user_bytes, (unsigned long long)want.user_bytes);
    uint64_t bytes = sizeof h + user_bytes + 3 * sizeof(float) * (uint64_t)z->layout.shard_elems + sizeof(uint64_t);
    if (fstat(fileno(s->f), &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    if ((uint64_t)st.st_size != bytes)
        return zero_fail(ZERO_ERR_IO, "%s: %lld bytes, it must have %llu: truncated or damaged", s->path, (long long)st.st_size, (unsigned long long)bytes);
    return 0;
}

/* Reads the file once against its digest before a byte of it is believed, and goes back to behind the header. */
static int check_digest(zero *z, stream *s) {
    struct stat st;
    uint64_t stored;
    if (fstat(fileno(s->f), &st) || fseeko(s->f, 0, SEEK_SET)) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    size_t left = (size_t)st.st_size - sizeof stored, room = VALUES_CHUNK * sizeof(float);
    for (size_t n; left; left -= n) {
        n = left < room ? left : room;
        ZERO_TRY(take(s, z->values, n));
        if (XXH3_64bits_update(s->digest, z->values, n) != XXH_OK) return zero_fail(ZERO_ERR_IO, "%s: xxhash failed", s->path);
    }
    ZERO_TRY(take(s, &stored, sizeof stored));
    if (stored != XXH3_64bits_digest(s->digest)) return zero_fail(ZERO_ERR_IO, "%s: damaged: its checksum does not match its contents", s->path);
    return fseeko(s->f, sizeof(file_header), SEEK_SET) ? zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno)) : 0;
}

static int open_own(zero *z, stream *s, size_t user_bytes) {
    if (!(s->f = fopen(s->path, "rb"))) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    s->digest = XXH3_createState();
    if (!s->digest || XXH3_64bits_reset(s->digest) != XXH_OK) return zero_fail(ZERO_ERR_MEMORY, "xxhash does not start");
    ZERO_TRY(check_header(z, s, user_bytes));
    return check_digest(z, s);
}

static int read_own(zero *z, stream *s, void *user, size_t user_bytes) {
    ZERO_TRY(take(s, user, user_bytes));
    for (int u = 0; u < z->layout.n_units; u++)
        for (int which = 0; which < 3; which++) ZERO_TRY(take(s, own_part(z, which, u), z->layout.units[u].shard * sizeof(float)));
    return 0;
}

/* Own parts are read; what this stage keeps whole is gathered, and bf16 parameters are rounded from the masters. */
static int run_complete(void *ctx, job *j) {
    (void)j;
    zero *z = ctx;
    z->comm.purpose = ZERO_FOR_CHECKPOINT;
    for (int u = 0; u < z->layout.n_units; u++) {
        const layout_unit *l = &z->layout.units[u];
        size_t size = dtype_bytes(z->config.dtype);
        char *own = z->params + part_offset(z, u, z->comm.rank, 3) * size;
        if (z->master) kernel_convert(ZERO_BF16, own, ZERO_F32, own_part(z, 0, u), l->shard);
        comm_piece params = { z->params + l->base * size, own, l->shard };
        if (z->config.stage < 3) ZERO_TRY(comm_all_gather(&z->comm, &params, 1, size));
        for (int which = z->master ? 0 : 1; z->config.stage == 0 && which < 3; which++) {
            comm_piece state = { (char *)(state_array(z, which) + l->base), (char *)own_part(z, which, u), l->shard };
            ZERO_TRY(comm_all_gather(&z->comm, &state, 1, sizeof(float)));
        }
    }
    return 0;
}

int zero_load(zero *z, const char *path, void *user, size_t user_bytes) {
    if (z->begun) return zero_fail(ZERO_ERR_MISUSE, "zero_load: inside a training step; finish the step first");
    ZERO_TRY(check_closed(z, "zero_load"));
    ZERO_TRY(params_drop_all(z));
    stream s = { .path = path };
    int rc = agree(z, open_own(z, &s, user_bytes));         /* nothing changes on any rank before all files are good */
    if (!rc) rc = agree(z, read_own(z, &s, user, user_bytes));
    if (s.f) fclose(s.f);
    XXH3_freeState(s.digest);
    ZERO_TRY(rc);
    for (int u = 0; u < z->layout.n_units; u++) z->units[u].stale = 0;
    return progress_run(&z->progress, run_complete, z);
}
