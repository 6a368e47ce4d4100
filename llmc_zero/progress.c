#include "progress.h"
#include "error.h"
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int run_between_events(progress *p, job *j) {
    device *d = p->device;
    if (j->ready) ZERO_TRY(d->f->order(d, j->stream, j->ready));
    ZERO_TRY(j->run(j->ctx, j));
    return j->done ? d->f->record(d, j->done, j->stream) : 0;
}

static void run_job(progress *p, job *j) {
    if (p->failed) {
        j->rc = p->failed;
        memcpy(j->error, p->error, sizeof j->error);
        return;
    }
    j->rc = run_between_events(p, j);
    if (!j->rc) return;
    p->failed = j->rc;
    snprintf(j->error, sizeof j->error, "%s", zero_last_error());
    memcpy(p->error, j->error, sizeof p->error);
}

static void *progress_loop(void *arg) {
    progress *p = arg;
#ifdef _OPENMP
    omp_set_num_threads(1);  // the other cores are busy with the trainer's layers
#endif
    int rc = p->device->f->enter(p->device);
    pthread_mutex_lock(&p->lock);
    if (rc) {
        p->failed = rc;
        snprintf(p->error, sizeof p->error, "%s", zero_last_error());
    }
    for (;;) {
        while (!p->first && !p->stopping) pthread_cond_wait(&p->work, &p->lock);
        job *j = p->first;
        if (!j) break;
        p->first = j->next;
        pthread_mutex_unlock(&p->lock);
        run_job(p, j);
        pthread_mutex_lock(&p->lock);
        j->pending = 0;
        pthread_cond_broadcast(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int progress_start(progress *p, device *d, int threaded) {
    *p = (progress){ .device = d, .threaded = threaded };
    if (!threaded) return 0;
    int rc = pthread_mutex_init(&p->lock, NULL);
    if (!rc) rc = pthread_cond_init(&p->work, NULL);
    if (!rc) rc = pthread_cond_init(&p->done, NULL);
    if (!rc) rc = pthread_create(&p->thread, NULL, progress_loop, p);
    if (rc) return zero_fail(ZERO_ERR_MEMORY, "the progress thread does not start: %s", strerror(rc));
    p->started = 1;
    return 0;
}

void progress_stop(progress *p) {
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = 1;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    p->started = 0;
}

int progress_prepare(progress *p, job *j, device_stream s) {
    j->stream = s;
    ZERO_TRY(p->device->f->create_event(p->device, &j->ready));
    return p->device->f->create_event(p->device, &j->done);
}

void progress_forget(progress *p, job *j) {
    p->device->f->destroy_event(p->device, j->ready);
    p->device->f->destroy_event(p->device, j->done);
    j->ready = j->done = NULL;
}

static int relay(const job *j) { return j->rc ? zero_fail(j->rc, "%s", j->error) : 0; }

int progress_submit(progress *p, job *j) {
    if (j->ready) ZERO_TRY(p->device->f->record(p->device, j->ready, COMPUTE));
    if (!p->threaded) {
        run_job(p, j);
        return relay(j);
    }
    pthread_mutex_lock(&p->lock);
    j->pending = 1;
    j->rc = 0;
    j->next = NULL;
    if (p->first)
        p->last->next = j;
    else
        p->first = j;
    p->last = j;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

// With the lock held.
static void wait_while_pending(progress *p, job *j) {
    double start = p->trace ? trace_now(p->trace) : 0;
    while (j->pending) pthread_cond_wait(&p->done, &p->lock);
    if (p->trace) trace_add(p->trace, ZERO_EV_WAIT, j->unit, 0, start);
}

int progress_wait(progress *p, job *j) {
    if (p->threaded) {
        pthread_mutex_lock(&p->lock);
        if (j->pending) wait_while_pending(p, j);
        pthread_mutex_unlock(&p->lock);
    }
    ZERO_TRY(relay(j));
    return j->done ? p->device->f->order(p->device, COMPUTE, j->done) : 0;
}

int progress_run(progress *p, int (*run)(void *, job *), void *ctx) {
    job j = { .run = run, .ctx = ctx, .unit = -1 };
    ZERO_TRY(progress_submit(p, &j));
    return progress_wait(p, &j);
}
