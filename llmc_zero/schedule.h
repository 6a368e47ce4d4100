// The order in which a pass uses the units, as the last pass of its mode recorded it, and the order of the
// update. A training step is
//
//   uses of micro-batch 0 | uses of micro-batch 1 | .. | update | uses of the next step's micro-batch 0 | ..
//
// Whoever fetches ahead (gathers, copies, reads) asks here what comes next, and goes as far as it likes:
//
//   schedule_walk w = schedule_ahead(&schedule);
//   while (schedule_next(&w) && near_enough(&w)) fetch(w.unit);
//
// A pass that uses the units in another order than the last one is noticed, and its order learnt anew.
#ifndef LLMC_ZERO_SCHEDULE_H
#define LLMC_ZERO_SCHEDULE_H
#include "zero.h"

// What a pass is: forward and backward of a training step, or forward only.
typedef enum { ZERO_TRAIN, ZERO_EVAL } zero_mode;

typedef struct {
    int *units;
    int n, capacity;
    int used;  // by the pass under way, or by the last one
} schedule_order;

typedef struct {
    int n_units;
    int uses_agree;              // all ranks use the units in the same order
    schedule_order recorded[2];  // by mode
    int *update;                 // (n_units) the order of the update, unless it is stale
    int update_is_stale;
    // the pass under way, then the update
    zero_mode mode;
    int left;     // uses still to come in it
    int is_last;  // of the step's micro-batches: the update follows
    int updating, updated;
} schedule;

int schedule_create(schedule *s, int n_units, int uses_agree);
void schedule_free(schedule *s);

// A pass of `uses` uses begins. is_last: the update follows it, and not another micro-batch.
void schedule_begin_pass(schedule *s, zero_mode mode, int uses, int is_last);
int schedule_use(schedule *s, int unit);  // the unit is used now

// The update begins. Returns its order (n_units), the same on all ranks: that of the last training pass where
// ranks agree on it, else the table's. It is valid until the next pass begins.
const int *schedule_begin_update(schedule *s);
// The same before it begins, as far as is known: the order changes if the pass under way goes on in another
// one than the last pass.
const int *schedule_update_order(schedule *s);
void schedule_updated(schedule *s);  // the next unit in that order is done

// The unit that the next training pass uses first, as far as is known; -1 before the first one.
int schedule_first_use(const schedule *s);

typedef enum { SCHEDULED_USE, SCHEDULED_UPDATE } scheduled;
typedef struct {
    scheduled what;
    int unit;
    int next_pass;  // a use by the next training pass
    schedule *of;
    enum { WALK_PASS, WALK_UPDATE, WALK_NEXT_PASS } part;
    int at;
} schedule_walk;

// Walks from the next use or update, nearest first, to the end of the training pass that follows. It ends
// earlier where the order is not known any further; what follows an evaluation is never known.
schedule_walk schedule_ahead(schedule *s);
int schedule_next(schedule_walk *w);  // 1: w says what comes next; 0: nothing more is known

#endif
