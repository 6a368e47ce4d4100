// Gradients: the memory that backward adds to, and their reduction by buckets. Owns the buckets and buffers.
#ifndef LLMC_ZERO_GRADS_H
#define LLMC_ZERO_GRADS_H
#include "comm/comm.h"
#include "device/kernels.h"
#include "tiers/state.h"
#include "base/tasks.h"
#include "base/trace.h"

struct grads_unit {
    char *at;           // this micro-batch's gradient, from the first pre_backward to the last post_backward;
                        // otherwise NULL
    state_part opened;  // of the state, if backward adds to it directly: `at` points into it
    char *own;          // private memory of a unit used more than once; NULL: it uses its bucket's buffer
    float *earlier;     // accumulate_layers: this rank's part of the mean of earlier uses; NULL: one use
    stretches cleared;  // the parts to clear before backward
    task *read_by;      // see grads_read_with
};

struct grads_bucket {
    int n_pieces;
    int *units;          // (n_pieces) in backward's order
    comm_piece *pieces;  // (n_pieces) the part of each unit that is reduced
    trace_span *spans;   // (n_pieces) of the reduction, for the trace
    float scale;         // of the sum over ranks and, by layers, micro-batches: their mean
    int filled;          // units whose gradients are complete
    int add;             // adds the mean to that of earlier micro-batches or, by layers, of earlier uses
    int is_last;         // 1: this reduction completes the step's gradients
    int is_earlier;  // accumulate_layers: a use that is not the unit's last, so the mean goes to `earlier`
    comm_use use;
    task reduce;
    task gather;  // stage 0: sends the sums to every rank
};

struct grads_buffer {
    char *memory;
    int holder;  // its bucket; -1: none
};

struct grads {
    struct grads_unit *units;      // (n_units)
    struct grads_bucket *buckets;  // (n_buckets)
    struct grads_buffer *buffers;  // (n_buffers)
    int n_buffers;
    char *wire;  // one bucket's gradients as fp32; NULL: they are sent unconverted
};

int grads_create(zero *z);
// Called at creation: reduces the bucket once, on zeros, and adds the bytes sent to *counter.
int grads_rehearse(zero *z, int bucket, int64_t *counter);
// The unit's sums are overwritten only after this task, which reads them. It must stay at its address.
void grads_read_with(zero *z, int unit, task *by);

// Discards the gradients of an unfinished step.
int grads_begin_step(zero *z);
// Returns ZERO_ERR_MISUSE if backward may not use this unit now.
int grads_check(const zero *z, int unit);
// Clears the parts of the unit's gradient that backward adds to.
int grads_open(zero *z, int unit);
// accumulate_layers: adds the gradient of this micro-batch of the open use to the sum, and clears it.
int grads_finish_micro(zero *z, int unit, int micro);
char *grads_at(const zero *z, int unit);  // of an open unit
// Call it when the unit's gradient is complete, by layers that of a use. Starts the bucket's reduction if
// this was its last unit.
int grads_finish(zero *z, int unit);
// Returns 1 if the reduction that completes the unit's sum over micro-batches has been submitted or, for a
// unit without gradients, if this is the last micro-batch.
int grads_are_last(const zero *z, int unit);
const task *grads_reduction(const zero *z, int unit);  // without gradients: the trainer's task
// Returns when all reductions are done.
int grads_wait(zero *z);

#endif
