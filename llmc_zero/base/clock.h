// The clock for waits, deadlines and the trace.
#ifndef LLMC_ZERO_BASE_CLOCK_H
#define LLMC_ZERO_BASE_CLOCK_H
#include <sched.h>
#include <time.h>

static inline double clock_of(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Seconds on a monotonic clock.
static inline double clock_now(void) { return clock_of(CLOCK_MONOTONIC); }

static inline void clock_nap(double seconds) {
    struct timespec t = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };
    nanosleep(&t, NULL);
}

// Between two polls of a wait that began `waited` seconds ago: yields, later also sleeps, and then longer.
static inline void clock_pause(double waited) {
    if (waited < 1e-3)
        sched_yield();
    else
        clock_nap(waited < 10e-3 ? 20e-6 : 200e-6);
}

#endif
