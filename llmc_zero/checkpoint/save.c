// A checkpoint is a folder with a file for each rank and the manifest, which makes it a checkpoint. Each save
// uses new file names, and its manifest atomically replaces the old one. So after a crash at any point, the
// folder holds the old checkpoint or the new one.
#include "finite.h"
#include "save.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// -------- the files' names and sizes

static int describe_files(save *s) {
    const layout *l = &s->z->layout;
    int64_t blocks = 0;
    s->files = calloc(l->ranks, sizeof *s->files);
    s->parts = calloc((size_t)l->ranks * l->n_units, sizeof *s->parts);
    if (!s->files || !s->parts)
        return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for what the manifest says", s->folder);
    for (int r = 0; r < l->ranks; r++) {
        manifest_file *f = &s->files[r];
        f->parts = s->parts + (size_t)r * l->n_units;
        f->n_parts = parts_of_rank(l, r, f->parts, &f->bytes);
        f->n_blocks = manifest_blocks(f->bytes, BLOCK_BYTES);
        blocks += f->n_blocks;
    }
    s->digests = calloc(blocks + 1, sizeof *s->digests);
    if (!s->digests)
        return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for the digests of its %lld blocks", s->folder,
                         (long long)blocks);
    uint64_t *next = s->digests;
    for (int r = 0; r < l->ranks; next += s->files[r++].n_blocks) s->files[r].digests = next;
    return 0;
}

void save_free(save *s) {
    json_decref(s->trainer);
    free(s->files);
    free(s->parts);
    free(s->digests);
}

// Rank 0's decisions for all ranks.
typedef struct {
    uint64_t number;
    char folder[PATH_MAX];
} save_start;

static int make_folder(save *s, save_start *start) {
    if (s->z->net.rank) return 0;
    snprintf(start->folder, sizeof start->folder, "%s", s->folder);
    if (getrandom(&start->number, sizeof start->number, 0) != sizeof start->number)
        return zero_fail(ZERO_ERR_IO, "no random number for the names of files: %s", strerror(errno));
    return folder_make(s->folder);
}

static int take_start(save *s, const save_start *start) {
    const net *n = &s->z->net;
    if (strcmp(start->folder, s->folder))
        return zero_fail_rank(ZERO_ERR_ARGUMENT, n->rank, net_host(n, n->rank),
                              " saves to %.300s and rank 0 to %.300s: all ranks name one folder", s->folder,
                              start->folder);
    for (int r = 0; r < s->z->layout.ranks; r++)
        snprintf(s->files[r].name, FILE_NAME, "rank%05d-%016llx.states", r,
                 (unsigned long long)start->number);
    return folder_path(s->path, s->folder, s->files[n->rank].name);
}

static int prepare(save *s) {
    save_start start = { 0 };
    char manifest[PATH_MAX];
    int rc = folder_path(manifest, s->folder, "." MANIFEST ".0123456789abcdef");
    if (!rc) rc = describe_files(s);
    if (!rc) rc = make_folder(s, &start);
    ZERO_TRY(agree(s->z, rc));
    ZERO_TRY(zero_broadcast(s->z, 0, &start, sizeof start));
    s->number = start.number;
    return agree(s->z, take_start(s, &start));
}

// -------- a rank's own file

// Copies the elements from the state to the writer's buffer.
static int put_piece(void *ctx, int saved, state_range r) {
    save *s = ctx;
    zero *z = s->z;
    const int64_t end = r.from + r.elems, size = sizeof(float);
    for (; r.from < end; r.from += r.elems) {
        void *to;
        int64_t room;
        ZERO_TRY(writer_room(&s->own, &to, &room));
        r.elems = end - r.from < room / size ? end - r.from : room / size;
        ZERO_TRY(states_read(z, saved_values[saved], r, to));
        ZERO_TRY(finite_values(z, saved, r, to));
        ZERO_TRY(writer_filled(&s->own, r.elems * size));
    }
    return 0;
}

int save_states(save *s, char *copy) {
    zero *z = s->z;
    const manifest_file *f = &s->files[z->net.rank];
    s->work = at_work_begin(z);
    ZERO_TRY(writer_begin(&s->own, s->path, f->bytes, f->digests, copy, &s->work));
    return visit_parts(&s->work, 0, put_piece, s);
}

// -------- the manifest

// Rank 0 needs the digests of all blocks; they come rank by rank.
static int share_digests(save *s) {
    for (int r = 0; r < s->z->layout.ranks; r++) {
        manifest_file *f = &s->files[r];
        if (f->n_blocks) ZERO_TRY(zero_broadcast(s->z, r, f->digests, f->n_blocks * sizeof *f->digests));
    }
    return 0;
}

// A rank that writes to another disk would otherwise be noticed only when loading, which is too late.
static int check_file(const save *s, const manifest_file *f) {
    char path[PATH_MAX];
    struct stat st;
    ZERO_TRY(folder_path(path, s->folder, f->name));
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return zero_fail(ZERO_ERR_IO,
                         "%s: rank 0 cannot open it: %s; all ranks must see one folder, and only one job may "
                         "save there",
                         path, strerror(errno));
    int failed = fstat(fd, &st);
    close(fd);
    if (failed) return zero_fail(ZERO_ERR_IO, "%s: %s", path, strerror(errno));
    if (st.st_size == f->bytes) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: rank 0 sees %lld bytes of %lld; all ranks must see one folder", path,
                     (long long)st.st_size, (long long)f->bytes);
}

static int write_manifest(const save *s, const char *temporary, const char *text) {
    int fd;
    ZERO_TRY(folder_create_file(temporary, &fd));
    int rc = folder_write(fd, temporary, text, strlen(text));
    int closed = folder_close_written(fd, temporary);
    if (!rc) rc = closed;
    if (!rc) rc = folder_sync(s->folder);  // the rank's files must be on disk before the manifest
    return rc;
}

static int keep_own(const void *ctx, const char *name) {
    const save *s = ctx;
    for (int r = 0; r < s->z->layout.ranks; r++)
        if (!strcmp(s->files[r].name, name)) return 1;
    return !strcmp(name, MANIFEST);
}

static void withdraw(const save *s, const char *temporary) {
    char path[PATH_MAX];
    unlink(temporary);
    for (int r = 0; r < s->z->layout.ranks; r++)
        if (!folder_path(path, s->folder, s->files[r].name)) unlink(path);
}

// Once the manifest has its name the new checkpoint is the valid one, so none of its files is removed any
// more, even if the rename may not be on disk.
static int commit(const save *s) {
    char path[PATH_MAX], temporary[PATH_MAX], name[FILE_NAME];
    snprintf(name, sizeof name, "." MANIFEST ".%016llx", (unsigned long long)s->number);
    ZERO_TRY(folder_path(path, s->folder, MANIFEST));
    ZERO_TRY(folder_path(temporary, s->folder, name));
    char *text = manifest_write(s->z, s->files, &s->scale, s->trainer);
    int rc = text ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for it, or a name is not UTF-8", path);
    for (int r = 0; r < s->z->layout.ranks && !rc; r++) rc = check_file(s, &s->files[r]);
    if (!rc) rc = write_manifest(s, temporary, text);
    if (!rc && rename(temporary, path))
        rc = zero_fail(ZERO_ERR_IO, "%s: cannot be renamed to %s: %s", temporary, MANIFEST, strerror(errno));
    free(text);
    if (rc) {
        withdraw(s, temporary);
        return rc;
    }
    ZERO_TRY(folder_sync(s->folder));
    ZERO_TRY(folder_sync_parent(s->folder));
    (void)folder_clean(s->folder, keep_own, s);  // leftovers do no harm, and the next save removes them
    return 0;
}

// -------- all of it

static int parse_trainer(const char *caller, const char *text, json_t **trainer) {
    json_error_t e;
    if (!text) text = "{}";
    *trainer = manifest_parse(text, strlen(text), &e);
    if (json_is_object(*trainer)) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s: the trainer's text is not a JSON object: %s at line %d", caller,
                     *trainer ? "another value" : e.text, e.line);
}

int save_open(save *s, zero *z, const char *caller, const char *path, const char *text) {
    *s = (save){ .z = z, .scale = step_scale(z) };
    int n = snprintf(s->folder, sizeof s->folder, "%s", path);
    // A run resumed from the file gets its parameters from the masters, so this one does too.
    ZERO_TRY(zero_finish_update(z));
    ZERO_TRY(update_settle(z));
    int rc = parse_trainer(caller, text, &s->trainer);
    if (n >= PATH_MAX) rc = zero_fail(ZERO_ERR_ARGUMENT, "%s: %.64s...: the name is too long", caller, path);
    ZERO_TRY(agree(z, rc));
    return prepare(s);
}

int save_commit(save *s, int rc) {
    zero *z = s->z;
    const int written = rc;
    rc = at_work_end(&s->work, written);
    if (rc && !written) unlink(s->path);  // another rank has failed
    if (!rc) rc = share_digests(s);
    return rc ? rc : agree(z, z->net.rank ? 0 : commit(s));
}

int zero_checkpoint_remove(const char *path) {
    char manifest[PATH_MAX];
    struct stat st;
    if (stat(path, &st) && errno == ENOENT) return 0;
    ZERO_TRY(folder_path(manifest, path, MANIFEST));
    if (unlink(manifest) && errno != ENOENT)
        return zero_fail(ZERO_ERR_IO, "%s: cannot be removed: %s", manifest, strerror(errno));
    ZERO_TRY(folder_sync(path));  // from here on it is not a checkpoint, whatever happens
    ZERO_TRY(folder_clean(path, NULL, NULL));
    if (rmdir(path)) return zero_fail(ZERO_ERR_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return 0;
}
