#include "trace.h"
#include "clock.h"
#include "error.h"
#include "../device/virtual_time.h"
#include <stdlib.h>

// -------- events

double trace_clock(const trace *t) { return t->time ? virtual_now(t->time) : clock_now(); }
double trace_now(const trace *t) { return trace_clock(t) - t->start_s; }

static void append(trace *t, const trace_event *e) {
    int i = __atomic_fetch_add(&t->used, 1, __ATOMIC_RELAXED);
    if (i < t->capacity) t->events[i] = *e;
}

void trace_add(trace *t, trace_kind kind, int unit, lane on, double start_s) {
    if (t->capacity) append(t, &(trace_event){ kind, unit, on, 0, start_s, trace_now(t) });
}

void trace_add_past(trace *t, const trace_event *what) {
    trace_event e = *what;
    e.start_s -= t->start_s;
    e.end_s -= t->start_s;
    if (t->capacity) append(t, &e);
}

// -------- timers of the device

struct trace_timer {
    void *begin, *end;
    enum { FREE, OPEN, QUEUED } is;
    trace_event event;
};
enum { TIMERS = 2048 };  // limits how many events the device has not reached or the trace has not read

// The caller holds the lock. Waits until the device has passed both timers, and appends the timed event.
static void read_timer(trace *t, trace_timer *r) {
    device *d = t->device;
    double start = 0, end = 0;
    int rc = d->f->wait_event(d, r->end);
    if (!rc) rc = d->f->seconds_between(d, t->start, r->begin, &start);
    if (!rc) rc = d->f->seconds_between(d, t->start, r->end, &end);
    r->event.start_s = start;
    r->event.end_s = end;
    if (!rc) append(t, &r->event);
    r->is = FREE;
}

// Returns the oldest timer that is not open; NULL: all are.
static trace_timer *take_timer(trace *t) {
    trace_timer *r = NULL;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < TIMERS && !r; i++) {
        trace_timer *next = &t->timers[t->next_timer];
        t->next_timer = (t->next_timer + 1) % TIMERS;
        if (next->is != OPEN) r = next;
    }
    if (r && r->is == QUEUED) read_timer(t, r);
    if (r) r->is = OPEN;
    pthread_mutex_unlock(&t->lock);
    return r;
}

static void give_timer(trace *t, trace_timer *r, int is) {
    pthread_mutex_lock(&t->lock);
    r->is = is;
    pthread_mutex_unlock(&t->lock);
}

trace_span trace_begin(trace *t, device_stream on) {
    trace_span span = { .start_s = trace_now(t), .on = on };
    device *d = t->device;
    if (!d || on == PROCESSOR) return span;
    span.timer = take_timer(t);
    if (span.timer && d->f->record(d, span.timer->begin, on)) {
        give_timer(t, span.timer, FREE);
        span.timer = NULL;
    }
    return span;
}

void trace_end(trace *t, const trace_span *span, const trace_event *what) {
    trace_event e = *what;
    if (!t->capacity) return;
    if (span->timer) {
        span->timer->event = e;
        const int rc = t->device->f->record(t->device, span->timer->end, span->on);
        give_timer(t, span->timer, rc ? FREE : QUEUED);
        return;
    }
    e.start_s = span->start_s;
    e.end_s = trace_now(t);
    append(t, &e);
}

void trace_complete(trace *t) {
    if (!t->device) return;
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < TIMERS; i++) {
        trace_timer *r = &t->timers[(t->next_timer + i) % TIMERS];
        if (r->is == QUEUED) read_timer(t, r);
    }
    pthread_mutex_unlock(&t->lock);
}

static int open_timers(trace *t, device *d) {
    t->timers = calloc(TIMERS, sizeof *t->timers);
    if (!t->timers || pthread_mutex_init(&t->lock, NULL)) {
        free(t->timers);
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the trace's timers");
    }
    t->device = d;
    for (trace_timer *r = t->timers; r < t->timers + TIMERS; r++) {
        ZERO_TRY(d->f->create_timer(d, &r->begin));
        ZERO_TRY(d->f->create_timer(d, &r->end));
    }
    ZERO_TRY(d->f->create_timer(d, &t->start));
    ZERO_TRY(d->f->record(d, t->start, COMPUTE));
    return d->f->wait_event(d, t->start);
}

int trace_open(trace *t, int capacity, device *d, memory *m, const memory_request *planned) {
    *t = (trace){ .time = d->time };
    if (capacity) ZERO_TRY_ALLOC(t->events = memory_alloc(m, planned));
    if (capacity && d->asynchronous) ZERO_TRY(open_timers(t, d));
    t->capacity = capacity;
    t->start_s = d->time ? 0 : clock_now();
    t->wall_s = clock_of(CLOCK_REALTIME);
    return 0;
}

void trace_close(trace *t) {
    device *d = t->device;
    if (!d) return;
    for (trace_timer *r = t->timers; r < t->timers + TIMERS; r++) {
        d->f->destroy_event(d, r->begin);
        d->f->destroy_event(d, r->end);
    }
    d->f->destroy_event(d, t->start);
    pthread_mutex_destroy(&t->lock);
    free(t->timers);
    t->device = NULL;
}
