// The clock for waits, deadlines and the trace.
#ifndef LLMC_ZERO_BASE_CLOCK_H
#define LLMC_ZERO_BASE_CLOCK_H
#include <time.h>

// Seconds of a monotonic clock.
static inline double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void clock_nap(double seconds) {
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&t, NULL);
}

#endif
