// What happened when: a fixed array of events, to which the trainer's thread and those of lanes append.
//
//     trace_span span = trace_begin(&t, stream);
//     ... work, or work queued on the stream ...
//     trace_end(&t, &span, &(zero_event){ .kind = .., .unit = .., .thread = .., .bytes = .. });
//
// Of a device that queues its work the trace shows when the stream has done it: the span notes two timers on
// the stream, which are read later.
#ifndef LLMC_ZERO_TRACE_H
#define LLMC_ZERO_TRACE_H
#include <pthread.h>
#include "memory.h"
#include "zero.h"

// The lanes that are no thread's (tasks.h has those from 0 on). Reads are on the files' lane.
enum { TRACE_WRITES = 5, TRACE_TO_HOST, TRACE_TO_DEVICE, TRACE_SQUARES, TRACE_LANES };

typedef struct trace_timer trace_timer;
typedef struct {
    zero_event *events;
    int capacity;
    int used;        // taken atomically; counts on past capacity, and those events are dropped
    double start_s;  // zero_create: times are seconds since then
    // beside a device that queues its work
    device *device;  // NULL: none
    void *start;     // timer: the device has come to it at start_s
    trace_timer *timers;
    int next_timer;
    pthread_mutex_t lock;
} trace;

typedef struct {
    double start_s;
    device_stream on;
    trace_timer *timer;  // NULL: the host's clock is asked
} trace_span;

// Returns 0, or a negative error with the sentence set; in either case trace_close comes later.
int trace_open(trace *t, int capacity, device *d, memory *m, const memory_request *planned);
void trace_close(trace *t);  // after the device has done all its work
double trace_now(const trace *t);
// An event that began at start_s (from trace_now) and ends now.
void trace_add(trace *t, zero_event_kind kind, int unit, int thread, double start_s);
// The same with its times, by clock_now, in `what`.
void trace_add_past(trace *t, const zero_event *what);
// on: PROCESSOR for what the host itself does.
trace_span trace_begin(trace *t, device_stream on);
void trace_end(trace *t, const trace_span *span, const zero_event *what);  // `what` has no times
// Waits for what the device has not done yet. Then all events are in the array.
void trace_complete(trace *t);
int trace_write(trace *t, const char *path, int rank, const char *const *unit_names, int units);

#endif
