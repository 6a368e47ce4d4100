// In saves and loads, ranks wait for each other, and one with a slow disk may need more than comm.timeout_s.
// So each reports about once a second that it is still working. One that is late counts as stalled.
//
//     at_work w = at_work_begin(z);
//     for each piece: ... at_work_goes_on(&w);
//     rc = at_work_end(&w, rc);
//
// Between the first and the last of these calls, a rank calls no other collective.
#ifndef LLMC_ZERO_CHECKPOINT_AT_WORK_H
#define LLMC_ZERO_CHECKPOINT_AT_WORK_H
#include "../internal.h"

typedef struct {
    zero *z;
    double reported_s;  // when this rank last reported, by clock_now
} at_work;

at_work at_work_begin(zero *z);
// Returns 0 or ZERO_ERR_COMM. Call it after each piece of work, and once per turn of a wait for the disk.
int at_work_goes_on(at_work *w);
// (collective) Returns when all ranks have called it. rc: this rank's result. If any has failed, all fail.
int at_work_end(at_work *w, int rc);

// (collective) Returns 1 if `done` is 1 on all ranks, 0 if not, or a negative error.
int at_work_share(zero *z, int done);
// Returns the length of a turn, the time that a rank works between reports.
double at_work_turn_s(const zero *z);

#endif
