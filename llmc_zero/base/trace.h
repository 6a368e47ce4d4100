// The trace: an array of fixed size, to which the trainer's thread and the lanes' threads append events.
//
//     trace_span span = trace_begin(&t, stream);
//     ... work, or work queued on the stream ...
//     trace_end(&t, &span, &(trace_event){ .kind = .., .unit = .., .lane = .., .bytes = .. });
//
// If the device queues its work, the trace shows when the stream ran it, from two timers on the stream.
#ifndef LLMC_ZERO_BASE_TRACE_H
#define LLMC_ZERO_BASE_TRACE_H
#include <pthread.h>
#include "lane.h"
#include "memory.h"
#include "../zero.h"

// docs/reference/details.md defines what each kind covers, and its begin and end on CUDA.
typedef enum {
    EVENT_FORWARD,
    EVENT_BACKWARD,
    EVENT_GATHER,
    EVENT_REDUCE,
    EVENT_UPDATE,
    EVENT_WAIT,
    EVENT_READ,  // from files on NVMe
    EVENT_WRITE,
    EVENT_TO_HOST,    // a copy of states from a CUDA device to the host
    EVENT_TO_DEVICE,  // a copy of states from the host
    EVENT_SQUARES,    // of gradients, for the norm
    EVENT_STEP,       // unit: the update's t; 0: the step was discarded
    EVENT_KINDS
} trace_kind;
typedef struct {
    trace_kind kind;
    int unit;
    lane lane;
    int64_t bytes;          // moved, or sent by a collective; 0: none. EVENT_STEP: allocated at its end
    double start_s, end_s;  // since zero_create
} trace_event;

typedef struct trace_timer trace_timer;
typedef struct {
    trace_event *events;
    int capacity;
    int used;                   // incremented atomically; events beyond capacity are dropped but counted
    double start_s;             // when zero_create began; times are seconds since then
    struct virtual_time *time;  // NULL: the system's clock
    double wall_s;              // the same moment on the system's clock, to align the ranks
    // if the device queues its work
    device *device;  // NULL: none
    void *start;     // a timer recorded on the device at start_s
    trace_timer *timers;
    int next_timer;
    pthread_mutex_t lock;
} trace;

typedef struct {
    double start_s;
    device_stream on;
    trace_timer *timer;  // NULL: the host's clock is used
} trace_span;

// Returns 0, or a negative error with the error set; call trace_close in either case.
int trace_open(trace *t, int capacity, device *d, memory *m, const memory_request *planned);
void trace_close(trace *t);          // after the device has finished its work
double trace_clock(const trace *t);  // clock_now, or the current thread's virtual time
double trace_now(const trace *t);    // the same, since zero_create
// Adds an event that began at start_s (from trace_now) and ends now.
void trace_add(trace *t, trace_kind kind, int unit, lane on, double start_s);
// Adds an event with times from trace_clock.
void trace_add_past(trace *t, const trace_event *what);
// on: PROCESSOR for work on the CPU.
trace_span trace_begin(trace *t, device_stream on);
void trace_end(trace *t, const trace_span *span, const trace_event *what);  // `what` has no times
// Waits until the device has finished its work, and completes the array, in the order in which events ended.
void trace_complete(trace *t);

#endif
