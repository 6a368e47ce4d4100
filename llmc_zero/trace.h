// What happened when: a fixed array of events, to which the trainer's thread and those of lanes append.
#ifndef LLMC_ZERO_TRACE_H
#define LLMC_ZERO_TRACE_H
#include "memory.h"
#include "zero.h"

typedef struct {
    zero_event *events;
    int capacity;
    int used;        // taken atomically; counts on past capacity, and those events are dropped
    double start_s;  // zero_create: times are seconds since then
} trace;

int trace_init(trace *t, int capacity, memory *m, const memory_request *planned);
double trace_now(const trace *t);
// An event that began at start_s (from trace_now) and ends now.
void trace_add(trace *t, zero_event_kind kind, int unit, int thread, double start_s);
// The same with its end; both by clock_now.
void trace_add_past(trace *t, zero_event_kind kind, int unit, int thread, double start_s, double end_s);
int trace_write(const trace *t, const char *path, int rank, const char *const *unit_names, int units);

#endif
