#include "tasks.h"
#include "error.h"
#include "turns.h"
#include "../device/virtual_time.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static void wait_virtually(tasks *t, const task *k, uint64_t number);

// -------- one task

// Waits until submission `number` of k has run. The caller holds the lock. who: the lane that waits.
static void wait_until_run(tasks *t, const task *k, uint64_t number, lane who) {
    const task_queue *q = &t->queues[k->lane];
    const int is_virtual = t->device->time != NULL;
    if (q->finished >= number && !is_virtual) return;
    double start = t->trace ? trace_now(t->trace) : 0;
    if (is_virtual) wait_virtually(t, k, number);
    while (q->finished < number) pthread_cond_wait(&t->done, &t->lock);
    if (is_virtual && t->trace && trace_now(t->trace) == start) return;
    if (t->trace) trace_add(t->trace, EVENT_WAIT, k->unit, who, start);
}

// Work queued on s from now on runs after the event. If other ranks can stall the event, the host waits for
// it, with the check's limit: the trainer waits for its own stream, COMPUTE, without one.
static int order(tasks *t, device_stream s, void *event) {
    device *d = t->device;
    return s == COMPUTE && d->check ? d->f->wait_event(d, event) : d->f->order(d, s, event);
}

// Orders k's work after what `stream` had queued before the event. A host task has no stream: the host waits.
static int order_after(tasks *t, const task *k, device_stream stream, void *event) {
    device *d = t->device;
    int is_queued = k->done || k->lane == LANE_TRAINER;
    if (!is_queued) return d->f->wait(d, stream);
    return event ? order(t, k->stream, event) : 0;
}

static int run_on_stream(tasks *t, task *k) {
    device *d = t->device;
    for (int i = 0; i < k->n_needs; i++) {
        const task *need = k->needs[i].task;
        if (need->done) ZERO_TRY(order_after(t, k, need->stream, need->done));
    }
    if (k->needs_trainer) ZERO_TRY(order_after(t, k, COMPUTE, k->ready));
    ZERO_TRY(k->run(k->ctx, k));
    return k->done ? d->f->record(d, k->done, k->stream) : 0;
}

// The caller holds the lock.
static void fail_all(tasks *t, int rc) {
    if (t->failed) return;
    t->failed = rc;
    t->failure = *zero_failed();
}

// The caller holds the lock, which is released while the task runs.
static void run_task(tasks *t, task *k, lane who) {
    for (int i = 0; i < k->n_needs; i++) wait_until_run(t, k->needs[i].task, k->needs[i].number, who);
    k->rc = t->failed;
    if (t->failed) return;
    pthread_mutex_unlock(&t->lock);
    int rc = run_on_stream(t, k);
    pthread_mutex_lock(&t->lock);
    k->rc = rc;
    if (rc) fail_all(t, rc);
}

static int relay(const tasks *t, const task *k) { return k->rc ? zero_fail_again(&t->failure) : 0; }

// -------- lanes

static void *lane_loop(void *arg) {
    task_queue *q = arg;
    tasks *t = q->of;
#ifdef _OPENMP
    omp_set_num_threads(q == &t->queues[LANE_CPU] ? t->cores : 1);
#endif
    if (q != &t->queues[LANE_CPU]) turns_short();
    int rc = t->device->f->enter(t->device);
    pthread_mutex_lock(&t->lock);
    if (rc) fail_all(t, rc);
    for (;;) {
        while (!q->first && !t->closing) pthread_cond_wait(&q->work, &t->lock);
        task *k = q->first;
        if (!k) break;
        run_task(t, k, k->lane);
        q->first = k->next;
        q->finished++;  // from now on the owner of k may reuse it
        pthread_cond_broadcast(&t->done);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static int start_thread(tasks *t, lane number) {
    static const char *const names[LANES] = { "the trainer", "collectives", "copies", "files",
                                              "the CPU's update" };
    task_queue *q = &t->queues[number];
    if (!q->may_have_thread || q->started || t->device->time) return 0;
    int rc = pthread_create(&q->thread, NULL, lane_loop, q);
    if (rc)
        return zero_fail(ZERO_ERR_MEMORY, "cannot start the thread for %s: %s", names[number], strerror(rc));
    q->started = 1;
    return 0;
}

// On the CPU the trainer's layers use all cores except one. With a GPU all cores are free.
static int free_cores(const device *d) {
#ifdef _OPENMP
    if (d->asynchronous) return omp_get_max_threads();
#endif
    return 1;
}

int tasks_open(tasks *t, device *d, trace *tr, unsigned threads) {
    *t = (tasks){ .device = d, .trace = tr, .cores = free_cores(d), .trainer = { .lane = LANE_TRAINER } };
    int rc = pthread_mutex_init(&t->lock, NULL);
    if (!rc) rc = pthread_cond_init(&t->done, NULL);
    for (int i = 0; i < LANES; i++) {
        task_queue *q = &t->queues[i];
        q->of = t;
        q->may_have_thread = threads >> i & 1;
        if (!rc) rc = pthread_cond_init(&q->work, NULL);
    }
    if (rc) return zero_fail(ZERO_ERR_MEMORY, "cannot create the task lanes: %s", strerror(rc));
    t->opened = 1;
    return 0;
}

void tasks_close(tasks *t) {
    if (!t->opened) return;
    pthread_mutex_lock(&t->lock);
    t->closing = 1;
    for (int i = 0; i < LANES; i++) pthread_cond_signal(&t->queues[i].work);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < LANES; i++) {
        if (t->queues[i].started) pthread_join(t->queues[i].thread, NULL);
        pthread_cond_destroy(&t->queues[i].work);
    }
    for (task *k = t->prepared; k; k = k->prepared_before) {
        t->device->f->destroy_event(t->device, k->ready);
        t->device->f->destroy_event(t->device, k->done);
    }
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    t->opened = 0;
}

// -------- in virtual time
//
// No lane has a thread. Pending tasks run in the order in which they would start, once the clock of the
// thread that submits or waits has reached that start, so each finds what a thread would have found.

// Returns when the first task of a lane starts; INFINITY: none is pending, or it needs a task that is.
static double start_of(const tasks *t, const task_queue *q) {
    const task *k = q->first;
    double start = k ? virtual_max(k->submitted_s, t->device->time->thread[k->lane]) : INFINITY;
    for (int i = 0; k && i < k->n_needs; i++) {
        const task *need = k->needs[i].task;
        if (t->queues[need->lane].finished < k->needs[i].number) return INFINITY;
        if (need->number == k->needs[i].number) start = virtual_max(start, need->ended_s);
    }
    return start;
}

// Runs the pending task that starts first, if it starts by `until`. Returns 0 if there is none.
static int run_first(tasks *t, double until) {
    virtual_time *v = t->device->time;
    task_queue *first = t->queues;
    for (task_queue *q = t->queues; q < t->queues + LANES; q++)
        if (start_of(t, q) < start_of(t, first)) first = q;
    const double start = start_of(t, first);
    if (start == INFINITY || start > until) return 0;
    const lane waiting = v->current;
    task *k = first->first;
    v->current = k->lane;
    virtual_wait(v, start);
    run_task(t, k, k->lane);
    k->ended_s = v->thread[k->lane];
    v->current = waiting;
    first->first = k->next;
    first->finished++;
    return 1;
}

// Runs what threads would have started by now. A task that looks at others does not run them.
static void catch_up(tasks *t) {
    const virtual_time *v = t->device->time;
    while (v && v->current == LANE_TRAINER && run_first(t, virtual_now(v))) {}
}

// The current thread waits for submission `number` of k.
static void wait_virtually(tasks *t, const task *k, uint64_t number) {
    while (t->queues[k->lane].finished < number && run_first(t, INFINITY)) {}
    virtual_wait(t->device->time, k->ended_s);
}

// -------- submitting and waiting

int tasks_prepare(tasks *t, task *k, device_stream s) {
    k->stream = s;
    k->prepared_before = t->prepared;
    t->prepared = k;
    ZERO_TRY(t->device->f->create_event(t->device, &k->ready));
    return t->device->f->create_event(t->device, &k->done);
}

// A task that needs one of the trainer's lane needs all work that the trainer has done or queued so far.
static int note_needs(tasks *t, task *k, const task *const *needs) {
    k->n_needs = k->needs_trainer = 0;
    for (; *needs; needs++) {
        if ((*needs)->lane == LANE_TRAINER)
            k->needs_trainer = 1;
        else if (k->n_needs == TASK_NEEDS)
            return zero_fail(ZERO_ERR_MISUSE, "a task needs more than %d others", TASK_NEEDS);
        else {
            k->needs[k->n_needs].task = *needs;
            k->needs[k->n_needs++].number = (*needs)->number;
        }
    }
    return k->needs_trainer && k->ready ? t->device->f->record(t->device, k->ready, COMPUTE) : 0;
}

int tasks_submit(tasks *t, task *k, const task *const *needs) {
    task_queue *q = &t->queues[k->lane];
    ZERO_TRY(note_needs(t, k, needs));
    ZERO_TRY(start_thread(t, k->lane));
    pthread_mutex_lock(&t->lock);
    k->number = ++q->submitted;
    if (t->device->time) k->submitted_s = virtual_now(t->device->time);
    catch_up(t);
    if (q->may_have_thread) {
        k->next = NULL;
        *(q->first ? &q->last->next : &q->first) = k;
        q->last = k;
        pthread_cond_signal(&q->work);
    } else {
        run_task(t, k, LANE_TRAINER);
        if (t->device->time) k->ended_s = virtual_now(t->device->time);
        q->finished++;
    }
    pthread_mutex_unlock(&t->lock);
    return q->may_have_thread ? 0 : relay(t, k);
}

int tasks_have_run(tasks *t, const task *k) {
    pthread_mutex_lock(&t->lock);
    catch_up(t);
    int has_run = t->queues[k->lane].finished >= k->number &&
                  (!t->device->time || k->ended_s <= virtual_now(t->device->time));
    pthread_mutex_unlock(&t->lock);
    return has_run;
}

int tasks_wait(tasks *t, task *k) {
    if (t->queues[k->lane].may_have_thread) {
        pthread_mutex_lock(&t->lock);
        wait_until_run(t, k, k->number, LANE_TRAINER);
        pthread_mutex_unlock(&t->lock);
    }
    ZERO_TRY(relay(t, k));
    return k->done ? order(t, COMPUTE, k->done) : 0;
}

int tasks_fail(tasks *t, int rc) {
    if (!rc) return 0;
    pthread_mutex_lock(&t->lock);
    fail_all(t, rc);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int tasks_run(tasks *t, int (*run)(void *, task *), void *ctx) {
    task k = { .run = run, .ctx = ctx, .lane = LANE_COLLECTIVES, .unit = -1 };
    ZERO_TRY(tasks_submit(t, &k, AFTER_NOTHING));
    return tasks_wait(t, &k);
}
