// The order in which a pass uses the units, recorded in the last pass of the same mode, and the order of the
// update. A training step is
//
//   uses of micro-batch 0 | uses of micro-batch 1 | .. | update | uses of the next step's micro-batch 0 | ..
//
// Gathers ahead walk as far as they need:
//
//   schedule_walk w = schedule_ahead(&schedule);
//   while (schedule_next(&w) && near_enough(&w)) gather(w.unit);
//
// If a pass uses the units in a different order, the new order is recorded.
#ifndef LLMC_ZERO_SCHEDULE_H
#define LLMC_ZERO_SCHEDULE_H
#include "base/memory.h"
#include "zero.h"

// The kind of pass: forward and backward of a training step, or forward only.
typedef enum { ZERO_TRAIN, ZERO_EVAL } zero_mode;

typedef struct {
    int *units;  // (most_uses)
    int n;
    int used;  // by the current or the last pass
} schedule_order;

typedef struct {
    int n_units, most_uses;
    int uses_agree;              // 1: all ranks use the units in the same order
    schedule_order recorded[2];  // by mode
    int *update;                 // (n_units) the order of the update, unless it is stale
    int update_is_stale;
    // the pass in progress
    zero_mode mode;
    int left;     // uses left in it
    int is_last;  // 1: the step's last micro-batch, so the update follows
} schedule;

// most_uses: the maximum number of recorded uses per pass. Returns 0, or ZERO_ERR_MEMORY.
int schedule_create(schedule *s, memory *m, int n_units, int most_uses, int uses_agree);

// Call it when a pass of `uses` uses begins. is_last: the update follows, not another micro-batch.
void schedule_begin_pass(schedule *s, zero_mode mode, int uses, int is_last);
void schedule_use(schedule *s, int unit);  // records a use

// Returns the order of the update (n_units), which is the same on all ranks: that of the last training pass
// if all ranks use the units in the same order, otherwise the table's. Valid until the next pass begins.
// During backward it is a prediction: it still changes if the rest of this pass differs from the last one.
const int *schedule_update_order(schedule *s);

typedef struct {
    int unit;
    int next_pass;  // 1: a use in a later pass
    const schedule *of;
    zero_mode mode;
    int at;
} schedule_walk;

// Walks from the next use, nearest first, to the end of the step's next micro-batch. Ends earlier before an
// update, and where the order is unknown.
schedule_walk schedule_ahead(const schedule *s);
// Walks through the next step's first micro-batch, in the order of the last training pass.
schedule_walk schedule_next_step(const schedule *s);
int schedule_next(schedule_walk *w);  // 1: w has the next use; 0: nothing more is known

#endif
