// Gradients: memory for backward to add to, and their reduction bucket by bucket. It owns the buckets and
// their buffers. Each function that returns an int returns 0, or a negative error with the sentence set.
#ifndef LLMC_ZERO_GRADS_H
#define LLMC_ZERO_GRADS_H
#include "comm/comm.h"
#include "device/kernels.h"
#include "state.h"
#include "tasks.h"
#include "trace.h"

struct grads_unit {
    char *at;  // this micro-batch's, from the first pre_backward to the last post_backward; else NULL
    state_part opened;  // where backward adds to the state itself: what at points into
    char *own;          // room of a unit that is used more than once; NULL: it is in its bucket's buffer
    stretches cleared;  // of it, before backward
    task *read_by;
};

struct grads_bucket {
    int n_pieces;
    int *units;          // (n_pieces) in backward's order
    comm_piece *pieces;  // (n_pieces) what of each unit is reduced
    trace_span *spans;   // (n_pieces) of the reduction, for the trace
    int filled;          // units whose gradients are final
    int add;             // stages 2, 3: this micro-batch is added to the sum of the earlier ones
    int is_last;         // of the step's micro-batches: the sum is complete with this reduction
    comm_use use;
    task reduce;
    task gather;  // stage 0: what was reduced goes to everyone
};

struct grads {
    struct grads_unit *units;      // (n_units)
    struct grads_bucket *buckets;  // (n_buckets)
    char *buffer[2];
    int holder[2];  // which bucket fills the buffer; -1: none
    char *wire;     // one bucket's gradients as fp32; NULL: they travel as they are
};

int grads_create(zero *z);
void grads_free(zero *z);
// At creation: the bucket's reduction, of zeros; counter gets the bytes.
int grads_rehearse(zero *z, int bucket, int64_t *counter);
// The unit's sums are read by this task, which stays where it is. They are written over when it has run.
void grads_read_with(zero *z, int unit, task *by);

// Drops what an unfinished step has collected.
int grads_begin_step(zero *z);
// ZERO_ERR_MISUSE: backward may not come to this unit now.
int grads_check(const zero *z, int unit);
// Clears what backward adds to in the unit's gradient.
int grads_open(zero *z, int unit);
char *grads_at(const zero *z, int unit);  // of an open unit
// The unit's gradient is final. A bucket that is full now is reduced.
int grads_finish(zero *z, int unit);
// 1: the reduction that completes the unit's sum over micro-batches has been submitted.
int grads_are_last(const zero *z, int unit);
// The reduction of the unit's bucket.
const task *grads_reduction(const zero *z, int unit);
// Returns when all reductions are done.
int grads_wait(zero *z);

#endif
