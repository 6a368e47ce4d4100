// zero_save writes the states at once. zero_save_begin copies this rank's states into the image of its file,
// and a thread writes the image to the disk. The commit needs all ranks, so zero_save_end makes it, once all
// have written their files. Until then the folder holds the old checkpoint.
#include "../base/clock.h"
#include "save.h"
#include "save_calls.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct save_later {
    save save;
    pthread_t thread;
    int started;
    atomic_int written;      // 1: the thread has finished, and has set the next two
    int rc;                  // of writer_end
    failure_record failure;  // its sentence belongs to the thread
};

static void *write_copy(void *arg) {
    struct save_later *l = arg;
    l->rc = writer_end(&l->save.own, 0);
    if (l->rc) l->failure = *zero_failed();
    atomic_store(&l->written, 1);
    return NULL;
}

static void join(struct save_later *l) {
    if (l->started) pthread_join(l->thread, NULL);
    l->started = 0;
}

static void drop(zero *z) {
    join(z->saving.later);
    z->memory.disk_hangs |= z->saving.later->save.own.ring.hangs;
    save_free(&z->saving.later->save);
    free(z->saving.later);
    z->saving.later = NULL;
}

int save_later_create(zero *z) {
    const memory_request *copy = &z->plan.own[PLAN_SAVE_COPY];
    if (copy->blocks) z->saving.copy = memory_alloc_pinned(&z->memory, copy);
    return copy->blocks && !z->saving.copy ? ZERO_ERR_MEMORY : 0;
}

void save_later_drop(zero *z) {
    if (!z->saving.later) return;
    join(z->saving.later);
    unlink(z->saving.later->save.path);
    drop(z);
}

// -------- at once

int zero_save(zero *z, const char *path, const char *text) {
    save s;
    ZERO_TRY(pass_may_train(z, "zero_save"));
    ZERO_TRY(pass_outside_step(z, "zero_save"));
    ZERO_TRY(zero_save_end(z));
    int rc = save_open(&s, z, "zero_save", path, text);
    if (!rc) rc = save_commit(&s, writer_end(&s.own, save_states(&s, NULL)));
    save_free(&s);
    return rc;
}

// -------- the begin

static int start_thread(struct save_later *l) {
    l->save.own.ring.work = NULL;  // from here on the thread waits for the disk, not the rank
    int error = pthread_create(&l->thread, NULL, write_copy, l);
    l->started = !error;
    return error ? zero_fail(ZERO_ERR_MEMORY, "%s: no thread to write it: %s", l->save.path, strerror(error))
                 : 0;
}

static int begin(struct save_later *l, zero *z, const char *path, const char *text) {
    ZERO_TRY(save_open(&l->save, z, "zero_save_begin", path, text));
    int own = save_states(&l->save, z->saving.copy);
    if (!own) own = start_thread(l);
    if (!l->started) own = writer_end(&l->save.own, own);
    int rc = at_work_end(&l->save.work, own);
    if (!rc || own) return rc;
    join(l);  // another rank has failed
    unlink(l->save.path);
    return rc;
}

int zero_save_begin(zero *z, const char *path, const char *text) {
    ZERO_TRY(pass_may_train(z, "zero_save_begin"));
    ZERO_TRY(pass_outside_step(z, "zero_save_begin"));
    if (!z->saving.copy)
        return zero_fail_setting(ZERO_ERR_ARGUMENT, "async_save",
                                 " is 0, and zero_save_begin needs the memory that 1 reserves");
    ZERO_TRY(zero_save_end(z));
    struct save_later *l = calloc(1, sizeof *l);
    int rc = l ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for a save", path);
    if (z->memory.disk_hangs)
        rc = zero_fail(ZERO_ERR_IO, "%s: a disk that has not answered may still use the memory for copies",
                       path);
    rc = agree(z, rc);
    if (rc) {
        free(l);
        return rc;
    }
    z->saving.later = l;
    rc = begin(l, z, path, text);
    if (rc) drop(z);
    return rc;
}

// -------- the end

int zero_save_written(const zero *z) { return !z->saving.later || atomic_load(&z->saving.later->written); }

// Waits until the thread has finished, or it is time to report that this rank still writes. Every disk
// request has a time limit, but a sync has none. So the rank does not report during a sync: if it takes too
// long, the rank counts as stalled.
static void wait_a_turn(const zero *z) {
    struct save_later *l = z->saving.later;
    const double until = clock_now() + at_work_turn_s(z);
    while (!atomic_load(&l->written)) {
        if (clock_now() > until && !atomic_load(&l->save.own.syncs)) return;
        clock_nap(1e-3);
    }
}

// Returns when every rank's file is on disk, or has failed.
static int wait_for_all(zero *z) {
    for (int all = 0;;) {
        ZERO_TRY(at_work_share(z, zero_save_written(z), &all));
        if (all) return 0;
        wait_a_turn(z);
    }
}

int zero_save_end(zero *z) {
    struct save_later *l = z->saving.later;
    if (!l) return 0;
    ZERO_TRY(pass_outside_step(z, "zero_save_end"));
    ZERO_TRY(wait_for_all(z));
    join(l);
    int rc = save_commit(&l->save, l->rc ? zero_fail_again(&l->failure) : 0);
    drop(z);
    return rc;
}
