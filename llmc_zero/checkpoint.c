// Save and load. Each rank has a file: a header, the trainer's bytes, then for each unit this rank's part of
// the masters (or of the parameters, where they are their own masters) and of both moments, all in fp32, then
// the number of the save, then the XXH3-64 of everything before. The contents are the same at every stage and
// on every device, so a file saved at one loads at another. Parameters that have masters are not saved, since
// they are the rounded masters. The number is made of what is in the files of all ranks and is the same in
// all of them, so files with different numbers were not saved together.
#include "internal.h"
#include "params.h"
#include "uses.h"
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
    char magic[8];  // "llmczero"
    uint32_t version, ranks, rank, dtype;
    uint64_t geometry;  // digest of the tables: another model is refused
    uint64_t elems, user_bytes;
    loss_scale scale;
} file_header;
enum { FILE_VERSION = 3, OLDEST_VERSION = 2 };

static uint64_t geometry_digest(const layout *l) {
    uint64_t h = l->n_units;
    for (int i = 0; i < l->n_tensors; i++) {
        const zero_tensor *t = &l->tensors[i];
        int64_t numbers[] = { (int64_t)h, zero_tensor_elems(t), t->layers, t->unit };
        h = XXH3_64bits_withSeed(t->name, strlen(t->name), XXH3_64bits(numbers, sizeof numbers));
    }
    return h;
}

static file_header header_of(const zero *z, size_t user_bytes) {
    file_header h = { .version = FILE_VERSION,
                      .scale = z->scale,
                      .ranks = z->comm.group.ranks,
                      .rank = z->comm.group.rank,
                      .dtype = z->config.numbers.dtype,
                      .geometry = geometry_digest(&z->layout),
                      .elems = z->layout.elems,
                      .user_bytes = user_bytes };
    memcpy(h.magic, "llmczero", 8);
    return h;
}

static const zero_value saved[] = { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 };
enum { SAVED = sizeof saved / sizeof *saved };

// A file being read or written together with its digest.
typedef struct {
    FILE *f;
    XXH3_state_t *digest;
    const char *path;
} stream;

static int put(stream *s, const void *data, size_t bytes) {
    if (!bytes) return 0;  // a trainer without bytes of its own may pass NULL
    if (XXH3_64bits_update(s->digest, data, bytes) != XXH_OK)
        return zero_fail(ZERO_ERR_IO, "%s: xxhash failed", s->path);
    if (fwrite(data, 1, bytes, s->f) != bytes)
        return zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno));
    return 0;
}

// Calls fn for this rank's part of everything that is saved, in pieces of VALUES_CHUNK elements at most.
typedef int (*piece_visitor)(zero *z, state *s, state_range r, stream *file);

static int visit_pieces(zero *z, state *s, int unit, stream *file, piece_visitor fn) {
    const int64_t shard = z->layout.units[unit].shard;
    state_range r = { .unit = unit, .part = z->comm.group.rank };
    for (; r.from < shard; r.from += r.elems) {
        r.elems = shard - r.from < VALUES_CHUNK ? shard - r.from : VALUES_CHUNK;
        ZERO_TRY(fn(z, s, r, file));
    }
    return 0;
}

static int visit_parts(zero *z, stream *file, piece_visitor fn) {
    for (int u = 0; u < z->layout.n_units; u++)
        for (int i = 0; i < SAVED; i++) ZERO_TRY(visit_pieces(z, state_with(z, saved[i]), u, file, fn));
    return 0;
}

static int put_piece(zero *z, state *s, state_range r, stream *file) {
    ZERO_TRY(state_read(s, COMM, r, z->values, z->staging));
    return put(file, z->values, r.elems * sizeof(float));
}

static int start_digest(stream *s) {
    s->digest = XXH3_createState();
    return s->digest && XXH3_64bits_reset(s->digest) == XXH_OK
               ? 0
               : zero_fail(ZERO_ERR_MEMORY, "xxhash does not start");
}

// Writes all that comes before the number of the save, to a temporary file beside `path`.
static int begin_file(zero *z, stream *s, char temporary[PATH_MAX], const char *path, const void *user,
                      size_t user_bytes) {
    if (snprintf(temporary, PATH_MAX, "%s.tmp", path) >= PATH_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: name too long", path);
    s->path = temporary;
    if (!(s->f = fopen(temporary, "wb"))) return zero_fail(ZERO_ERR_IO, "%s: %s", temporary, strerror(errno));
    ZERO_TRY(start_digest(s));
    file_header h = header_of(z, user_bytes);
    ZERO_TRY(put(s, &h, sizeof h));
    ZERO_TRY(put(s, user, user_bytes));
    ZERO_TRY(visit_parts(z, s, put_piece));
    return fflush(s->f) ? zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno)) : 0;
}

// Adds up all ranks' digests so far, in halves, so that a double holds the sums exactly. No random number is
// used: equal saves are equal files.
static int number_of_save(zero *z, const stream *s, uint64_t *number) {
    uint64_t own = XXH3_64bits_digest(s->digest);
    double sums[2] = { (double)(own >> 32), (double)(own & UINT32_MAX) };
    ZERO_TRY(zero_sum(z, sums, 2));
    *number = XXH3_64bits(sums, sizeof sums);
    return 0;
}

static int sync_folder(const char *path) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY), rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) close(fd);
    return rc ? zero_fail(ZERO_ERR_IO, "%s: its folder cannot be synced: %s", path, strerror(errno)) : 0;
}

static int close_file(stream *s) {
    int rc = fclose(s->f);
    s->f = NULL;
    return rc;
}

static int finish_file(stream *s, uint64_t number, const char *path) {
    ZERO_TRY(put(s, &number, sizeof number));
    uint64_t digest = XXH3_64bits_digest(s->digest);
    ZERO_TRY(put(s, &digest, sizeof digest));
    if (fflush(s->f) || fsync(fileno(s->f)))
        return zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno));
    if (close_file(s)) return zero_fail(ZERO_ERR_IO, "%s: not written: %s", s->path, strerror(errno));
    if (rename(s->path, path))
        return zero_fail(ZERO_ERR_IO, "%s: cannot be renamed: %s", s->path, strerror(errno));
    s->path = NULL;
    return sync_folder(path);
}

int zero_save(zero *z, const char *path, const void *user, size_t user_bytes) {
    ZERO_TRY(uses_may_train(z, "zero_save"));
    ZERO_TRY(uses_outside_step(z, "zero_save"));
    // A run that goes on from the file has the parameters that its masters make, so this one has them too.
    ZERO_TRY(zero_finish_update(z));
    ZERO_TRY(params_complete(z));
    char temporary[PATH_MAX];
    stream s = { 0 };
    uint64_t number = 0;
    int rc = agree(z, begin_file(z, &s, temporary, path, user, user_bytes));
    if (!rc) rc = number_of_save(z, &s, &number);
    if (!rc) rc = finish_file(&s, number, path);
    if (s.f) fclose(s.f);  // it has failed
    if (s.path) unlink(s.path);
    XXH3_freeState(s.digest);
    return agree(z, rc);  // waits until all have cleaned up, since a program ends the others on failure
}

static int take(stream *s, void *data, size_t bytes) {
    if (!bytes) return 0;
    if (fread(data, 1, bytes, s->f) == bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", s->path,
                     ferror(s->f) ? strerror(errno) : "it ends early");
}

static int check_ranks(const stream *s, const file_header *h, const file_header *want) {
    if (h->ranks != want->ranks)
        return zero_fail(ZERO_ERR_IO,
                         "%s: saved by rank %u of %u, this is rank %u of %u; resume with mpirun -np %u, srun "
                         "-n %u or start.ranks %u",
                         s->path, h->rank, h->ranks, want->rank, want->ranks, h->ranks, h->ranks, h->ranks);
    if (h->rank != want->rank)
        return zero_fail(
            ZERO_ERR_IO,
            "%s: saved by rank %u of %u, this is rank %u: each rank loads the file that it saved", s->path,
            h->rank, h->ranks, want->rank);
    return 0;
}

// What follows the states: the number of the save and the digest; in version 2 the digest alone.
static size_t trailer_bytes(const file_header *h) { return (h->version == 2 ? 1 : 2) * sizeof(uint64_t); }

static int check_header(const zero *z, stream *s, size_t user_bytes, file_header *header) {
    file_header h, want = header_of(z, user_bytes);
    struct stat st;
    ZERO_TRY(take(s, &h, sizeof h));
    if (memcmp(h.magic, want.magic, 8))
        return zero_fail(ZERO_ERR_IO, "%s: is no llmc_zero state file", s->path);
    if (h.version < OLDEST_VERSION || h.version > FILE_VERSION)
        return zero_fail(ZERO_ERR_IO, "%s: version %u; this library reads versions %d to %d", s->path,
                         h.version, OLDEST_VERSION, FILE_VERSION);
    ZERO_TRY(check_ranks(s, &h, &want));
    if (h.dtype != want.dtype)
        return zero_fail(ZERO_ERR_IO, "%s: saved with dtype %s", s->path, dtype_name(h.dtype));
    if (h.geometry != want.geometry || h.elems != want.elems)
        return zero_fail(
            ZERO_ERR_IO,
            "%s: belongs to another model: other tensors or units (%llu parameters here, %llu there)",
            s->path, (unsigned long long)want.elems, (unsigned long long)h.elems);
    if (h.user_bytes != want.user_bytes)
        return zero_fail(ZERO_ERR_IO,
                         "%s: holds %llu bytes of the trainer's own, and %llu are asked for: another trainer "
                         "or version wrote it",
                         s->path, (unsigned long long)h.user_bytes, (unsigned long long)want.user_bytes);
    uint64_t bytes = sizeof h + user_bytes + 3 * sizeof(float) * (uint64_t)z->layout.shard_elems +
                     trailer_bytes(&h);
    if (fstat(fileno(s->f), &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    if ((uint64_t)st.st_size != bytes)
        return zero_fail(ZERO_ERR_IO, "%s: %lld bytes, it must have %llu: truncated or damaged", s->path,
                         (long long)st.st_size, (unsigned long long)bytes);
    *header = h;
    return 0;
}

// Reads the whole file once and compares its digest, before anything in it is used.
static int check_digest(zero *z, stream *s) {
    struct stat st;
    uint64_t stored;
    if (fstat(fileno(s->f), &st) || fseeko(s->f, 0, SEEK_SET))
        return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    size_t left = (size_t)st.st_size - sizeof stored, room = VALUES_CHUNK * sizeof(float);
    for (size_t n; left; left -= n) {
        n = left < room ? left : room;
        ZERO_TRY(take(s, z->values, n));
        if (XXH3_64bits_update(s->digest, z->values, n) != XXH_OK)
            return zero_fail(ZERO_ERR_IO, "%s: xxhash failed", s->path);
    }
    ZERO_TRY(take(s, &stored, sizeof stored));
    if (stored != XXH3_64bits_digest(s->digest))
        return zero_fail(ZERO_ERR_IO, "%s: damaged: its checksum does not match its contents", s->path);
    return 0;
}

// A file of version 2 has none: the number is 0.
static int take_number(stream *s, const file_header *h, uint64_t *number) {
    if (trailer_bytes(h) == sizeof(uint64_t)) return 0;
    if (fseeko(s->f, -(off_t)trailer_bytes(h), SEEK_END))
        return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    return take(s, number, sizeof *number);
}

static int open_own(zero *z, stream *s, size_t user_bytes, file_header *h, uint64_t *number) {
    if (!(s->f = fopen(s->path, "rb"))) return zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno));
    ZERO_TRY(start_digest(s));
    ZERO_TRY(check_header(z, s, user_bytes, h));
    ZERO_TRY(check_digest(z, s));
    ZERO_TRY(take_number(s, h, number));
    return fseeko(s->f, sizeof *h, SEEK_SET) ? zero_fail(ZERO_ERR_IO, "%s: %s", s->path, strerror(errno)) : 0;
}

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

static int take_piece(zero *z, state *s, state_range r, stream *file) {
    ZERO_TRY(take(file, z->values, r.elems * sizeof(float)));
    return state_write(s, COMM, r, STATE_WRITE, z->values, z->staging);
}

static int read_own(zero *z, stream *s, void *user, size_t user_bytes) {
    ZERO_TRY(take(s, user, user_bytes));
    return visit_parts(z, s, take_piece);
}

// Gathers a unit on all ranks, and waits: nothing else runs on the device.
static int gather_now(zero *z, state *s, int unit) {
    const comm_use use = { .purpose = ZERO_FOR_CHECKPOINT, .unit = unit, .units = 1 };
    state_part p;
    ZERO_TRY(wait_for_device(z, COMM));
    ZERO_TRY(state_open(&p, s, z->comm.gather_stream, unit, STATE_WHOLE, STATE_CHANGE));
    comm_piece piece = { p.at, state_own(&p), z->layout.units[unit].shard };
    int rc = comm_all_gather(&z->comm, use, &piece, 1, dtype_bytes(s->dtype));
    ZERO_TRY(state_close_after(rc, &p, 1));
    return wait_for_device(z, z->comm.gather_stream);
}

// Where one of the two lies on the host's side of the bus they go through the host, in small pieces.
static int round_on_host(zero *z, state_range r) {
    const int64_t end = r.from + r.elems;
    for (; r.from < end; r.from += r.elems) {
        r.elems = end - r.from < VALUES_CHUNK ? end - r.from : VALUES_CHUNK;
        ZERO_TRY(state_read(&z->states[ZERO_MASTER], COMM, r, z->values, z->staging));
        ZERO_TRY(state_write(&z->states[ZERO_PARAM], COMM, r, STATE_WRITE, z->values, z->staging));
    }
    return 0;
}

static int round_range(zero *z, state_range r) {
    return z->across ? round_on_host(z, r) : params_round(z, COMM, r);
}

static int round_masters(zero *z, int unit) {
    const int64_t shard = z->layout.units[unit].shard;
    state_range r = { .unit = unit, .part = z->comm.group.rank };
    for (; r.from < shard; r.from += r.elems) {
        r.elems = shard - r.from;
        r.elems = state_span(&z->states[ZERO_PARAM], r);
        r.elems = state_span(&z->states[ZERO_MASTER], r);
        ZERO_TRY(round_range(z, r));
    }
    return 0;
}

// Every rank has read its own parts. Rounds parameters from their masters and gathers what this stage keeps
// whole.
static int run_complete(void *ctx, task *k) {
    (void)k;
    zero *z = ctx;
    for (int u = 0; u < z->layout.n_units; u++) {
        if (z->states[ZERO_MASTER].kept) ZERO_TRY(round_masters(z, u));
        for (int what = 0; what < STATES; what++) {
            state *s = &z->states[what];
            if (what != ZERO_GRADIENT && s->kept && !s->sharded) ZERO_TRY(gather_now(z, s, u));
        }
    }
    return z->device.f->wait(&z->device, COMM);
}

int zero_load(zero *z, const char *path, void *user, size_t user_bytes) {
    ZERO_TRY(uses_may_train(z, "zero_load"));
    ZERO_TRY(uses_outside_step(z, "zero_load"));
    ZERO_TRY(wait_for_update(z));
    ZERO_TRY(params_drop_all(z));
    ZERO_TRY(z->device.f->wait(&z->device, COMPUTE));
    stream s = { .path = path };
    file_header h = { .scale = z->scale };
    uint64_t number = 0;
    // nothing changes on any rank before all files are good
    int rc = agree(z, open_own(z, &s, user_bytes, &h, &number));
    if (!rc) rc = check_same_save(z, path, number);
    if (!rc) rc = agree(z, read_own(z, &s, user, user_bytes));
    if (s.f) fclose(s.f);
    XXH3_freeState(s.digest);
    ZERO_TRY(rc);
    z->unpublished = 0;
    if (z->config.numbers.dtype == ZERO_F16 && z->config.numbers.loss_scale == 0) z->scale = h.scale;
    return tasks_run(&z->tasks, run_complete, z);
}
