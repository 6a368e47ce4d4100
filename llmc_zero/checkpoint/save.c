// A checkpoint is a folder with one file per rank and a manifest. Each save uses new file names, and its
// manifest atomically replaces the old one, so after a crash at any point the folder has either the old
// checkpoint or the new one.
//
// zero_save_begin copies this rank's states into an image of its file, and a thread writes that to the disk.
// zero_save writes the file itself. zero_save_end commits when all ranks have written their files.
#include "save.h"
#include "../base/clock.h"
#include "blocks.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

// Chosen by rank 0 for all ranks.
typedef struct {
    char number[20];  // at the end of the files' names, in hex
    char folder[PATH_MAX];
} save_start;

// A save in progress.
typedef struct save {
    zero *z;
    char folder[PATH_MAX];
    save_start start;
    manifest to;          // before share_digests, has only the digests of this rank's file
    char path[PATH_MAX];  // of this rank's file
    file_writer own;
    pthread_t thread;
    int started;
    atomic_int written;      // 1: this rank's file is written, and the next two are set
    int rc;                  // result of writer_end
    failure_record failure;  // kept here, because failures are stored per thread
} save;

// -------- the files' names and sizes

static int describe_files(save *s) {
    const layout *l = &s->z->layout;
    manifest *m = &s->to;
    m->update_states = s->z->config.update_states;
    m->files = calloc(l->ranks, sizeof *m->files);
    if (!m->files) return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for its manifest", s->folder);
    m->n_files = l->ranks;
    for (int r = 0; r < l->ranks; r++) {
        manifest_file *f = &m->files[r];
        f->parts = calloc(l->n_stored, sizeof *f->parts);
        if (f->parts) f->n_parts = parts_of_rank(l, r, 1 + m->update_states, f->parts, &f->bytes);
        f->n_blocks = manifest_blocks(f->bytes, BLOCK_BYTES);
        f->digests = calloc(f->n_blocks + 1, sizeof *f->digests);
        if (!f->parts || !f->digests)
            return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for the digests of %lld blocks", s->folder,
                             (long long)f->n_blocks);
    }
    return folder_path(m->path, s->folder, MANIFEST);
}

static int make_folder(save *s) {
    uint64_t number;
    if (s->z->net.rank) return 0;
    strcpy(s->start.folder, s->folder);
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return zero_fail(ZERO_ERR_IO, "cannot get a random number for the names of files: %s",
                         strerror(errno));
    snprintf(s->start.number, sizeof s->start.number, "%016llx", (unsigned long long)number);
    return folder_make(s->folder);
}

static void name_files(save *s) {
    for (int r = 0; r < s->to.n_files; r++)
        snprintf(s->to.files[r].name, FILE_NAME, "rank%05d-%s" FILE_END, r, s->start.number);
}

static int take_start(save *s) {
    const net *n = &s->z->net;
    name_files(s);
    if (strcmp(s->start.folder, s->folder))
        return zero_fail_rank(ZERO_ERR_ARGUMENT, n->rank, net_host(n, n->rank),
                              " saves to %.300s and rank 0 to %.300s: all ranks must use one folder",
                              s->folder, s->start.folder);
    return folder_path(s->path, s->folder, s->to.files[n->rank].name);
}

static int parse_trainer(save *s, const char *caller, const char *text) {
    json_error_t e;
    if (!text) text = "{}";
    s->to.root = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (json_is_object(s->to.root)) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s: the trainer's text is not a JSON object: %s at line %d", caller,
                     s->to.root ? "another value" : e.text, e.line);
}

// (collective) Returns 0 when all ranks know the files' names and sizes.
static int prepare(save *s, const char *caller, const char *path, const char *text) {
    char manifest[PATH_MAX];
    const int length = snprintf(s->folder, sizeof s->folder, "%s", path);
    int rc = parse_trainer(s, caller, text);
    if (length >= PATH_MAX)
        rc = zero_fail(ZERO_ERR_ARGUMENT, "%s: %.64s...: the name is too long", caller, path);
    if (!rc) rc = folder_path(manifest, s->folder, "." MANIFEST ".0123456789abcdef");
    if (!rc) rc = describe_files(s);
    if (!rc) rc = make_folder(s);
    ZERO_TRY(agree(s->z, rc));
    ZERO_TRY(zero_broadcast(s->z, 0, &s->start, sizeof s->start));
    return agree(s->z, take_start(s));
}

// The manifest has this size whatever the digests are.
int zero_save_bytes(zero *z, const char *text, int64_t *bytes) {
    save s = { .z = z, .folder = ".", .start.number = "0123456789abcdef", .to.scale = step_scale(z) };
    int rc = parse_trainer(&s, "zero_save_bytes", text);
    if (!rc) rc = describe_files(&s);
    if (!rc) name_files(&s);
    char *manifest = rc ? NULL : manifest_write(z, &s.to);
    if (!rc && !manifest) rc = zero_fail(ZERO_ERR_MEMORY, "zero_save_bytes: out of memory for the manifest");
    *bytes = rc ? 0 : (int64_t)strlen(manifest);
    for (int r = 0; r < s.to.n_files; r++) *bytes += s.to.files[r].bytes;
    free(manifest);
    manifest_free(&s.to);
    return rc;
}

// -------- a rank's own file

// Reads a piece of a state into the writer's buffers.
static int write_piece(save *s, const saved_piece *p) {
    state_range r = p->at;
    const int64_t end = r.from + r.elems, size = sizeof(float);
    for (; r.from < end; r.from += r.elems) {
        void *to;
        int64_t room;
        ZERO_TRY(writer_room(&s->own, &to, &room));
        r.elems = end - r.from < room / size ? end - r.from : room / size;
        ZERO_TRY(rank_state_read(s->z, ZERO_FOR_CHECKPOINT, saved_values[p->saved], r, to));
        ZERO_TRY(finite_values(s->z, p->saved, r, to));
        ZERO_TRY(writer_filled(&s->own, r.elems * size));
    }
    return 0;
}

static int write_states(save *s, char *copy, at_work *work) {
    const manifest_file *f = &s->to.files[s->z->net.rank];
    ZERO_TRY(writer_begin(&s->own, s->path, f->bytes, f->digests, copy, work));
    for (saved_piece p = pieces_of(s->z, 0); pieces_next(&p);) {
        ZERO_TRY(write_piece(s, &p));
        ZERO_TRY(at_work_goes_on(work));
    }
    return 0;
}

static void *write_copy(void *arg) {
    save *s = arg;
    s->rc = writer_end(&s->own, 0);
    if (s->rc) s->failure = *zero_failed();
    atomic_store(&s->written, 1);
    return NULL;
}

static int start_thread(save *s) {
    s->own.ring.work = NULL;  // from now on only the thread waits for the disk, and it does not report
    int error = pthread_create(&s->thread, NULL, write_copy, s);
    s->started = !error;
    if (!error) return 0;
    return zero_fail(ZERO_ERR_MEMORY, "%s: cannot start a thread to write it: %s", s->path, strerror(error));
}

// (collective) Returns 0 when every rank's file is written or, with a copy, is being written by its thread.
static int write_file(save *s, char *copy) {
    at_work work = at_work_begin(s->z);
    int rc = write_states(s, copy, &work);
    if (!rc && copy) rc = start_thread(s);
    if (!s->started) rc = writer_end(&s->own, rc);
    if (!s->started) atomic_store(&s->written, 1);
    return at_work_end(&work, rc);
}

// -------- the manifest

// Sends all digests to rank 0, which writes them into the manifest.
static int share_digests(save *s) {
    for (int r = 0; r < s->to.n_files; r++) {
        manifest_file *f = &s->to.files[r];
        if (f->n_blocks) ZERO_TRY(zero_broadcast(s->z, r, f->digests, f->n_blocks * sizeof *f->digests));
    }
    return 0;
}

// Checks that rank 0 sees a rank's file: a load would notice too late that it is on another disk.
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
    if (!rc) rc = folder_sync(s->folder);  // the ranks' files must be on disk before the manifest
    return rc;
}

static void withdraw(const save *s, const char *temporary) {
    char path[PATH_MAX];
    unlink(temporary);
    for (int r = 0; r < s->to.n_files; r++)
        if (!folder_path(path, s->folder, s->to.files[r].name)) unlink(path);
}

// After the rename the new checkpoint is valid, so its files stay even if the rename cannot be synced.
static int commit(const save *s) {
    const char *path = s->to.path;
    char temporary[PATH_MAX], name[FILE_NAME];
    snprintf(name, sizeof name, "." MANIFEST ".%s", s->start.number);
    ZERO_TRY(folder_path(temporary, s->folder, name));
    char *text = manifest_write(s->z, &s->to);
    int rc = text ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for it, or a name is not UTF-8", path);
    for (int r = 0; r < s->to.n_files && !rc; r++) rc = check_file(s, &s->to.files[r]);
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
    snprintf(name, sizeof name, "-%s" FILE_END, s->start.number);
    (void)folder_clean(s->folder, name);  // leftovers are harmless, and the next save removes them
    return 0;
}

// -------- beginning a save

static void drop(save *s) {
    s->z->memory.disk_hangs |= s->own.ring.hangs && s->own.ring.given;  // the disk may still use the copy
    manifest_free(&s->to);
    free(s);
}

// Drops a save that will not be completed, and removes this rank's file.
static void abandon(save *s) {
    if (s->started) pthread_join(s->thread, NULL);
    if (*s->path) unlink(s->path);
    drop(s);
}

static int begin(zero *z, const char *caller, const char *path, const char *text, char *copy) {
    save *s = calloc(1, sizeof *s);
    int rc = s ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for a save", path);
    if (copy && z->memory.disk_hangs)
        rc = zero_fail(ZERO_ERR_IO, "%s: a disk that has not answered may still use the memory for copies",
                       path);
    rc = agree(z, rc);
    if (rc) {
        free(s);
        return rc;
    }
    s->z = z;
    s->to.scale = step_scale(z);
    s->own.fd = -1;
    rc = step_same_updates(z);
    if (!rc) rc = prepare(s, caller, path, text);
    // Completes a delayed update, because a resumed run takes its parameters from the masters. Not before the
    // arguments are known to be valid, because a refused call has no effect.
    if (!rc) rc = zero_finish_update(z);
    if (!rc) rc = step_settle(z);
    if (!rc) rc = write_file(s, copy);
    if (rc)
        abandon(s);
    else
        z->saving.begun = s;
    return rc;
}

// -------- ending a save

int zero_save_written(const zero *z) { return !z->saving.begun || atomic_load(&z->saving.begun->written); }

// Waits until the thread has finished, or until it is time to report that this rank is still writing. It does
// not report during a sync, which has no time limit: the rank counts as stalled if that takes too long.
static void wait_a_turn(const save *s) {
    const double until = clock_now() + at_work_turn_s(s->z);
    while (!atomic_load(&s->written)) {
        if (clock_now() > until && !atomic_load(&s->own.syncs)) return;
        clock_nap(1e-3);
    }
}

// Returns when every rank's file is on disk, or has failed.
static int wait_for_all(const save *s) {
    int all;
    while (!(all = at_work_share(s->z, atomic_load(&s->written)))) wait_a_turn(s);
    return all < 0 ? all : 0;
}

int zero_save_end(zero *z) {
    save *s = z->saving.begun;
    if (!s) return 0;
    ZERO_TRY(pass_outside_step(z, "zero_save_end"));
    ZERO_TRY(wait_for_all(s));
    if (s->started) pthread_join(s->thread, NULL);
    int rc = agree(z, s->rc ? zero_fail_again(&s->failure) : 0);
    if (rc && !s->rc) unlink(s->path);  // another rank has failed
    if (!rc) rc = share_digests(s);
    if (!rc) rc = agree(z, z->net.rank ? 0 : commit(s));
    z->saving.begun = NULL;
    drop(s);
    return rc;
}

// -------- the calls

int zero_save(zero *z, const char *path, const char *text) {
    ZERO_TRY(pass_may_train(z, "zero_save"));
    ZERO_TRY(pass_outside_step(z, "zero_save"));
    ZERO_TRY(zero_save_end(z));
    ZERO_TRY(begin(z, "zero_save", path, text, NULL));
    return zero_save_end(z);
}

int zero_save_begin(zero *z, const char *path, const char *text) {
    ZERO_TRY(pass_may_train(z, "zero_save_begin"));
    ZERO_TRY(pass_outside_step(z, "zero_save_begin"));
    if (!z->saving.copy)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "async_save",
                                 " is 0, but zero_save_begin needs the memory that 1 reserves");
    ZERO_TRY(zero_save_end(z));
    return begin(z, "zero_save_begin", path, text, z->saving.copy);
}

int save_create(zero *z) {
    const memory_request *copy = &z->plan.own[PLAN_SAVE_COPY];
    if (copy->blocks) z->saving.copy = memory_alloc_pinned(&z->memory, copy);
    return copy->blocks && !z->saving.copy ? ZERO_ERR_MEMORY : 0;
}

void save_drop(zero *z) {
    if (z->saving.begun) abandon(z->saving.begun);
    z->saving.begun = NULL;
}
