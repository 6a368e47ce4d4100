// Ranks wait for each other in a save and in a load, and one whose disk is slow may take longer than
// comm.timeout_s. So each says every second or so that it is still at work, and the others wait for the next
// time that it does. A rank that does not say so in time is late, as in any collective.
//
//     at_work w = at_work_begin(z);
//     for each piece: ... at_work_goes_on(&w);
//     rc = at_work_end(&w, rc);
//
// Between the first and the last of these calls a rank takes part in no other collective.
#ifndef LLMC_ZERO_CHECKPOINT_AT_WORK_H
#define LLMC_ZERO_CHECKPOINT_AT_WORK_H
#include "../internal.h"

typedef struct {
    zero *z;
    double said_s;  // by clock_now, when this rank last said so
} at_work;

at_work at_work_begin(zero *z);
// Returns 0, or ZERO_ERR_COMM. To be called between pieces of work, and once a turn while the disk is waited
// for: it has a limit of its own.
int at_work_goes_on(at_work *w);
// (collective) Returns when all ranks have come here. rc: of this rank; if one has failed, all fail.
int at_work_end(at_work *w, int rc);

// (collective) Sets *all to 1 if all ranks are done (1), to 0 if one is not (0).
int at_work_share(zero *z, int done, int *all);
// A turn: how long a rank works before it says so.
double at_work_turn_s(const zero *z);

#endif
