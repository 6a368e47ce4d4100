// The clocks of a rank in virtual time (zero_virtual.h): one for each thread of the run, that is, each lane,
// one for each stream of a GPU, and the time at which the disk is free again. Everything runs on one thread,
// which acts for one lane after the other.
#ifndef LLMC_ZERO_DEVICE_VIRTUAL_TIME_H
#define LLMC_ZERO_DEVICE_VIRTUAL_TIME_H
#include "device.h"
#include "../base/lane.h"

typedef struct virtual_time {
    const zero_machine *machine;
    lane current;  // the lane for which the code runs
    double thread[LANES];
    double stream[DEVICE_STREAMS];
    double busy[ZERO_TIMES];
    double disk;  // when it is free
    int bursts;   // of transfers, with zero_machine.disk_bursts; this one is the last
    double burst_bytes, burst_ended;
    int slept[LANES];  // 1: the thread has waited since its last collective
    double worked;     // seconds that the trainer has computed since the last collective
    double taken;      // seconds that other lanes computed on the trainer's core since it last computed
} virtual_time;

static inline double virtual_max(double a, double b) { return a > b ? a : b; }
static inline double virtual_least(double a, double b) { return a < b ? a : b; }
static inline double virtual_now(const virtual_time *v) { return v->thread[v->current]; }
// The current thread waits until this time.
static inline void virtual_wait(virtual_time *v, double until) {
    double *now = &v->thread[v->current];
    if (until <= *now) return;
    if (v->current == LANE_TRAINER) v->taken = virtual_max(0, v->taken - (until - *now));
    *now = until;
    v->slept[v->current] = 1;
}
// Returns how much later a thread that shares its core notices what it waits for: measured with two to four
// ranks on two cores.
static inline double virtual_late(const virtual_time *v) {
    return v->machine->spare_core ? 0 : v->machine->turn_s / 20;
}
// The current thread computes for so long.
static inline void virtual_compute(virtual_time *v, double seconds) {
    if (v->current == LANE_TRAINER) {
        v->worked += seconds;
        seconds += v->taken;
        v->taken = 0;
    } else if (!v->machine->spare_core)
        v->taken += seconds;
    v->thread[v->current] += seconds;
}
// Returns how long an operation takes, and counts it.
static inline double virtual_seconds(virtual_time *v, zero_time what, double bytes) {
    const zero_rate *r = &v->machine->of[what];
    const double seconds = r->seconds + (r->bytes_per_s > 0 ? bytes / r->bytes_per_s : 0);
    v->busy[what] += seconds;
    return seconds;
}

#endif
