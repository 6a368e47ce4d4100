// The device of a rank in virtual time: operations take time and do nothing else. As a CPU they advance the
// clock of the thread that calls them; as a GPU, that of their stream. Memory is address space that is never
// touched, except small tables.
#include "device.h"
#include "../base/error.h"
#include "virtual_time.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void *virtual_alloc(device *d, size_t bytes, const char **why) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) return p;
    *why = strerror(errno);
    return NULL;
}
static void virtual_release(device *d, void *p, size_t bytes) { munmap(p, bytes); }
static int virtual_pin(device *d, void *host, size_t bytes) { return 0; }
static void virtual_unpin(device *d, void *host) {}
static int virtual_enter(device *d) { return 0; }
static void virtual_mark(device *d, const char *what, const char *name) {}

// -------- streams and events: an event is the time at which its stream reaches it

static int virtual_stream_wait(device *d, device_stream s) {
    if (d->asynchronous) virtual_wait(d->time, d->time->stream[s]);
    return 0;
}

static int virtual_create_event(device *d, void **event) {
    *event = d->asynchronous ? calloc(1, sizeof(double)) : NULL;
    return d->asynchronous && !*event ? zero_fail(ZERO_ERR_MEMORY, "out of memory for an event") : 0;
}
static void virtual_destroy_event(device *d, void *event) { free(event); }

static int virtual_record(device *d, void *event, device_stream s) {
    if (d->asynchronous) *(double *)event = virtual_max(d->time->stream[s], virtual_now(d->time));
    return 0;
}
static int virtual_order(device *d, device_stream s, void *event) {
    if (d->asynchronous) d->time->stream[s] = virtual_max(d->time->stream[s], *(double *)event);
    return 0;
}
static int virtual_wait_event(device *d, void *event) {
    if (d->asynchronous) virtual_wait(d->time, *(double *)event);
    return 0;
}
static int virtual_seconds_between(device *d, void *from, void *to, double *seconds) {
    *seconds = d->asynchronous ? *(double *)to - *(double *)from : 0;
    return 0;
}

// -------- operations

void device_virtual_run(device *d, device_stream s, double seconds) {
    virtual_time *v = d->time;
    if (!d->asynchronous || s == PROCESSOR) {
        virtual_compute(v, seconds);
        return;
    }
    virtual_compute(v, v->machine->queue_s);
    v->stream[s] = virtual_max(v->stream[s], virtual_now(v)) + seconds;
}

static int take(device *d, device_stream s, zero_time what, double bytes) {
    const virtual_time *v = d->time;
    const int slower = d->asynchronous || v->current == LANE_TRAINER ? 1 : v->machine->threads;
    device_virtual_run(d, s, slower * virtual_seconds(d->time, what, bytes));
    return 0;
}

static int virtual_copy(device *d, device_stream s, void *to, const void *from, size_t bytes) {
    if (d->asynchronous && s == DOWN) return take(d, s, ZERO_TIME_TO_HOST, bytes);
    if (d->asynchronous && s == UP) return take(d, s, ZERO_TIME_TO_DEVICE, bytes);
    return take(d, s, ZERO_TIME_COPY, 2.0 * bytes);
}
static int virtual_clear(device *d, device_stream s, void *x, size_t bytes) {
    return take(d, s, ZERO_TIME_CLEAR, bytes);
}

static double elems_of(const stretches *of_x) {
    double elems = 0;
    for (int i = 0; i < of_x->n; i++) elems += of_x->list[i].elems;
    return elems;
}
static int virtual_clear_stretches(device *d, device_stream s, zero_dtype type, void *x,
                                   const stretches *of_x) {
    return take(d, s, ZERO_TIME_CLEAR, elems_of(of_x) * dtype_bytes(type));
}

static int virtual_sum_ranks(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                             const rank_parts *parts, float scale, int64_t n, const float *plus) {
    const double read = parts->ranks * dtype_bytes(type) + (plus ? sizeof *plus : 0);
    return take(d, s, ZERO_TIME_SUM, n * (read + dtype_bytes(to_type)));
}
// A GPU is limited by its memory, a CPU by its arithmetic, which is the same for all types.
static int virtual_add_squares(device *d, device_stream s, uint64_t *words, const stretches *of_x,
                               zero_dtype type, const void *x) {
    const size_t each = d->asynchronous ? dtype_bytes(type) : sizeof(float);
    return take(d, s, ZERO_TIME_SQUARES, elems_of(of_x) * each);
}

// AdamW reads and writes masters and moments, reads the gradient and writes the parameters.
static int virtual_update(device *d, device_stream s, const own_update *own, const adamw_constants *c,
                          const adamw_arrays *a, const adamw_table *t) {
    const int written = (a->p != NULL) + (a->m != NULL) + (a->v != NULL);
    const double each = 2.0 * written * sizeof(float) + dtype_bytes(a->g_type) +
                        (a->low ? dtype_bytes(a->low_type) : 0);
    double elems = 0;
    for (int i = 0; i < t->n; i++) elems += t->segments[i].elems;
    return take(d, s, s == PROCESSOR ? ZERO_TIME_HOST_UPDATE : ZERO_TIME_UPDATE, elems * each);
}

static const device_functions functions = {
    virtual_alloc,           virtual_release,     virtual_pin,          virtual_unpin,
    virtual_enter,           virtual_stream_wait, virtual_create_event, virtual_destroy_event,
    virtual_record,          virtual_order,       virtual_wait_event,   virtual_create_event,
    virtual_seconds_between, virtual_mark,        virtual_copy,         virtual_clear,
    virtual_clear_stretches, virtual_clear,       virtual_sum_ranks,    virtual_add_squares,
    virtual_update,
};

// -------- opening and closing

int device_virtual_open(device *d, const zero_config *config) {
    virtual_time *time = calloc(1, sizeof *time);
    if (!time) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the virtual device");
    time->machine = config->machine;
    *d = (device){ .f = &functions, .number = -1, .time = time };
    d->asynchronous = config->device == ZERO_CUDA;
    snprintf(d->name, sizeof d->name, "%s", config->machine->name);
    return 0;
}

void device_virtual_close(device *d) { free(d->time); }
