// Reading the trace event by event. The plugin itself only writes traces to a file.
#ifndef TESTS_EVENTS_H
#define TESTS_EVENTS_H
#include "../llmc_zero/base/trace.h"

// Sets *e to event i, counted from 0 in the order in which events ended, and returns 1. Returns 0 after the
// last one. With overlap, call it only between steps and after a zero_barrier.
static inline int trace_at(const trace *t, int i, trace_event *e) {
    trace_complete((trace *)t);  // the device may still be working on the last events
    if (i < 0 || i >= t->used || i >= t->capacity) return 0;
    *e = t->events[i];
    return 1;
}

#endif
