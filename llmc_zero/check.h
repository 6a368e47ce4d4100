// The checks of debug.check_steps and ZERO_CHECK: mistakes of a trainer that would give wrong numbers without
// an error. They compare digests of values, within a step and between ranks. Owns the digests. Functions that
// return an int return 0, or a negative error code with the error set; without checks they return at once.
// Two checks run once without any setting and only leave a note: of the first batch, and of gradients that
// are 0.
#ifndef LLMC_ZERO_CHECK_H
#define LLMC_ZERO_CHECK_H
#include "layout.h"
#include "zero.h"

struct check {
    int64_t steps;     // training steps begun; the checks end after step debug.check_steps
    uint64_t *set;     // (n_places) digests of the values passed to zero_set; NULL: no checks
    uint64_t *first;   // (n_places) the same on rank 0
    int64_t *n_set;    // (n_places) number of parameters passed to zero_set
    uint64_t *params;  // (n_places) digests of the parameters of units marked in is_read
    char *is_read;     // (n_units) 1: this step or evaluation has read the unit
    uint64_t *grads;   // (n_places) digests of the gradient of unit `held`
    int held;          // a unit after its last post_backward, until check_settle; -1: none
    int batch_seen;    // 1: the ranks have compared a batch
    int grads_seen;    // 1: the first step's gradients are reduced
    char note[256];    // of the first step
};

int check_create(zero *z);

// Call them after zero_set or zero_load has changed values.
void check_set(zero *z, zero_value what, const layout_place *p, int64_t offset, int64_t n,
               const float *values);
void check_loaded(zero *z);

// Call it when a step or an evaluation begins. A step is collective: compares what the ranks passed to
// zero_set, and fails if a parameter was never set.
int check_begin(zero *z, int is_step);
// Call it at both hooks of a use that reads the unit. Fails if the parameters have changed since the first
// such hook of the step or evaluation.
int check_params(zero *z, int unit);
// Call it when a unit's gradient is complete. With checks, sets *holds: check_settle then calls grads_finish,
// so that a change of the gradient before the next hook is noticed.
int check_gradient(zero *z, int unit, int *holds);
// Call it first in each hook, in zero_begin_train and in zero_finish_gradients. Fails if the gradient of the
// unit that is held has changed.
int check_settle(zero *z);
// (collective) Call it when the gradients of a step are reduced. In the first step, sets *note to a sentence
// if two ranks had the same first batch or a tensor's gradient is 0 on all ranks; otherwise to NULL.
int check_first_step(zero *z, const char **note);

#endif
