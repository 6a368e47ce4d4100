// Where the trainer is in the step, and what it may do next: the micro-batch, the uses of the units that are
// open or done, and the promise of zero_update_early. A function that takes `caller` returns 0, or
// ZERO_ERR_MISUSE with a sentence that begins with it.
#ifndef LLMC_ZERO_PASS_H
#define LLMC_ZERO_PASS_H
#include "schedule.h"
#include "trace.h"
#include "zero.h"

struct pass_unit {
    int forward_done, backward_done;  // uses finished in this micro-batch
    int forward_open, backward_open;  // 1 between a pre hook and its post hook
    int backward_reads;               // the open backward use reads parameters
    trace_span forward, backward;     // the open uses, for the trace
};

struct pass {
    struct pass_unit *units;  // (n_units)
    int in_pass;              // from zero_begin_* to the end of the step
    int in_step;              // a training step is under way: from zero_begin_train to its end
    int reduced;              // zero_reduce is done, zero_update may come
    zero_mode mode;
    int micro, micro_of;
    int forward_left;     // forward uses still to come in this micro-batch
    zero_hyper promised;  // of the step under way, or of the next one; t 0: none
    double looked_s;      // when a hook last looked for ranks that are gone
};

int pass_create(zero *z);
void pass_free(zero *z);

// -------- what the trainer may do

// The plugin was not made for inference, so it has gradients and an optimizer.
int pass_may_train(const zero *z, const char *caller);
// No training step is under way, and no unit is open.
int pass_outside_step(const zero *z, const char *caller);
// zero_reduce is done.
int pass_is_reduced(const zero *z, const char *caller);
// The next micro-batch is this one, and the one before is complete.
int pass_may_begin(const zero *z, int micro, int of);
// All micro-batches are complete, and not reduced yet.
int pass_may_reduce(const zero *z);

// -------- what the trainer does

// An evaluation is micro-batch 0 of 1.
void pass_begin(zero *z, zero_mode mode, int micro, int of);
// Each checks a use, and looks for ranks that are gone. Then the use is opened with the other function.
int pass_check_forward(zero *z, int unit);
void pass_open_forward(zero *z, int unit);
int pass_close_forward(zero *z, int unit);
// first: backward comes to the unit for the first time in this micro-batch. reads: it reads parameters.
int pass_check_backward(zero *z, int unit, int *first, int *reads);
void pass_open_backward(zero *z, int unit, int reads);
// last: backward does not come to the unit again in this micro-batch.
int pass_close_backward(zero *z, int unit, int *last);
void pass_promise(zero *z, const zero_hyper *h);
void pass_reduced(zero *z);
void pass_end_step(zero *z);

// -------- where it is

// What ends the step under way, or the next one; NULL: not known yet.
const zero_hyper *pass_promised(const zero *z);
int pass_is_training(const zero *z);
int pass_is_first(const zero *z);  // of the step's micro-batches
int pass_is_last(const zero *z);
int pass_forward_is_over(const zero *z);  // of this micro-batch
// Forward is over, and backward has not come to the unit.
int pass_turns_at(const zero *z, int unit);
int pass_has_open(const zero *z, int unit);
// The open use may read parameters, or add to gradients.
int pass_reads(const zero *z, int unit);
int pass_adds(const zero *z, int unit);

#endif
