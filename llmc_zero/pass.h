// Tracks the trainer's position in the step and what it may do next: the micro-batch, the open and finished
// uses of each unit, and the promise of zero_promise_update. Messages begin with `caller`.
#ifndef LLMC_ZERO_PASS_H
#define LLMC_ZERO_PASS_H
#include "schedule.h"
#include "base/trace.h"
#include "zero.h"

typedef enum { PASS_FORWARD, PASS_BACKWARD } pass_direction;

struct pass_uses {  // of a unit in one direction
    int done;       // finished in this pass
    int micro;      // micro-batches finished in the open use
    int is_open;    // 1: between a pre hook and its post hook
    trace_span span;
};

struct pass {
    struct pass_uses (*uses)[2];  // (n_units) by direction
    int in_pass;                  // from zero_begin_* to the end of the step
    int in_step;                  // from zero_begin_train to the end of the step
    int gradients_finished;       // zero_finish_gradients is done, so zero_update may follow
    zero_mode mode;
    int micro, micro_of;
    int in_use;           // accumulate_layers: number of micro-batches that pass each use; else 1
    int forward_left;     // forward uses left in this micro-batch, repetitions aside
    zero_hyper promised;  // the update promised for the current or the next step; t 0: none
    double began_s;       // when the step's first micro-batch began
};

int pass_create(zero *z);

// -------- checks: return 0 if the statement holds, else ZERO_ERR_MISUSE

// The plugin has gradients and an optimizer: it was not created for inference.
int pass_may_train(const zero *z, const char *caller);
// No training step is in progress, and no unit is open.
int pass_outside_step(const zero *z, const char *caller);
// This micro-batch is the next one, and the previous one is complete.
int pass_may_begin(const zero *z, int micro, int of);
// All micro-batches are complete, but zero_finish_gradients has not run yet.
int pass_may_finish_gradients(const zero *z);
// zero_finish_gradients has run.
int pass_gradients_are_finished(const zero *z, const char *caller);
// This micro-batch of the unit's open backward use is the next one.
int pass_may_finish_micro(zero *z, int unit, int micro);
// A use of the unit may be opened.
int pass_may_open(zero *z, int unit, pass_direction d);

// -------- changes

void pass_begin(zero *z, zero_mode mode, int micro, int of);  // an evaluation is micro-batch 0 of 1
void pass_open(zero *z, int unit, pass_direction d);
void pass_finish_micro(zero *z, int unit);
int pass_close(zero *z, int unit, pass_direction d);  // ZERO_ERR_MISUSE: it is not open
void pass_promise(zero *z, const zero_hyper *h);
void pass_finish_gradients(zero *z);
void pass_end_step(zero *z);
void pass_trace_step(zero *z, int t);  // t: of the update; 0: the step was discarded

// -------- the current position

int pass_in_step(const zero *z);  // 1: from zero_begin_train to the end of the step
// Returns the update promised for the current or the next step; NULL: none.
const zero_hyper *pass_promised(const zero *z);
zero_mode pass_mode(const zero *z);
int pass_is_first(const zero *z);  // of the step's micro-batches
int pass_is_last(const zero *z);
int pass_micro_batches(const zero *z);    // that pass each use: more than 1 only with accumulate_layers
int pass_forward_is_over(const zero *z);  // of this micro-batch: only repetitions are left
// Returns how many uses of the unit are finished in this micro-batch.
int pass_done(const zero *z, int unit, pass_direction d);
int pass_is_open(const zero *z, int unit, pass_direction d);
int pass_has_open(const zero *z, int unit);    // in either direction
int pass_micro_done(const zero *z, int unit);  // micro-batches finished in the open backward use

#endif
