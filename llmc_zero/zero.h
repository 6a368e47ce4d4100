// llmc_zero: ZeRO stages 0 to 3 for any trainer in C. MIT licence; see LICENSE.
//
// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) removes the redundant copies that data-parallel ranks
// keep: of the optimizer state (stage 1), then of the gradients (stage 2), then of the parameters (stage 3).
// The trainer describes its tensors once and calls a hook before and after each use of a unit:
//
//     zero_create(&z, &config, tensors, n_tensors, units, n_units);
//     zero_set(z, ZERO_PARAM, tensor, layer, 0, n, values);    initial values, tensor by tensor
//     for each step:
//         for each micro-batch m of A:
//             zero_begin_train(z, m, A);
//             for each unit u, forwards:
//                 zero_pre_forward(z, u); ... zero_param(z, tensor, layer) ... zero_post_forward(z, u);
//             for each unit u, backwards:
//                 zero_pre_backward(z, u); ... zero_grad(z, tensor, layer) += ... zero_post_backward(z, u);
//         zero_step(z, &hyper, &result);
//     zero_destroy(z);
//
// Unless its comment says otherwise, every function follows these rules:
// - It returns 0 or a negative ZERO_ERR_*, which zero_last_error() explains. Functions that communicate can
// fail with ZERO_ERR_COMM, functions that allocate with ZERO_ERR_MEMORY. On CUDA any function can fail
//   with ZERO_ERR_DEVICE, and if states are on NVMe, with ZERO_ERR_TIER.
// - A call that fails with ZERO_ERR_ARGUMENT or ZERO_ERR_MISUSE has no effect, and the plugin remains
//   usable. After ZERO_ERR_COMM, ZERO_ERR_DEVICE or ZERO_ERR_TIER, end the job (zero_job.h).
// - (collective): all ranks must make the same calls in the same order, or they fail with ZERO_ERR_COMM.
// - z was returned by zero_create. The caller owns all arrays and strings; calls keep no pointers to them.
// - Only one thread per rank may call the library. The library prints only when it ends the job.
// - Names with elems count elements; names with bytes count bytes.
//
// dev/examples/mlp_zero.c is a complete trainer; docs/porting.md and docs/reference/details.md explain rules.
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H
#include <stddef.h>
#include <stdint.h>
#include "zero_config.h"
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION "0.2.0"  // ranks with different versions of the plugin refuse to start together

typedef struct zero zero;  // one rank's instance of the plugin

enum {
    ZERO_ERR_ARGUMENT = -1,  // an invalid argument or setting
    ZERO_ERR_MISUSE = -2,    // hooks or accessors in the wrong order
    ZERO_ERR_MEMORY = -3,    // out of memory; the message names the purpose of the allocation
    ZERO_ERR_COMM = -4,      // a collective failed, or took longer than comm.timeout_s
    ZERO_ERR_IO = -5,        // a file cannot be read or written, is damaged, or belongs to another run
    ZERO_ERR_DEVICE = -6,    // no usable CUDA device, or an operation on it failed
    ZERO_ERR_TIER = -7       // I/O on a file of model states (offload.nvme) failed; the states are lost
};
// Returns the message of the calling thread's last failure, "" before the first; valid until the next one.
const char *zero_last_error(void);
// Returns the same failure as a struct.
typedef struct {
    int code;             // ZERO_ERR_*; 0: nothing has failed yet
    int rank, unit;       // the first rank in the message, and the unit where the call failed; -1: none
    char setting[48];     // fields of zero_config at fault, "comm.nccl", separated by spaces; "": none
    char sentence[1024];  // zero_last_error()
} zero_failure;
const zero_failure *zero_last_failure(void);

// -------- tensors and units

enum { ZERO_MAX_DIMS = 4 };

// One row of the tensor table. Functions such as zero_param identify a tensor by its index in the table.
// Checkpoints and digests follow the order of the rows.
typedef struct {
    const char *name;             // used in messages and checkpoints
    int n_dims;                   // 1 to ZERO_MAX_DIMS
    int64_t dims[ZERO_MAX_DIMS];  // shape in one layer, slowest dimension first
    int layers;               // number of layers that have this tensor; layer l belongs to unit
                              // unit + l * unit_step
    int unit;                 // the unit of layer 0
    float decay;              // factor of weight_decay; 0: none
    int backward_overwrites;  // 1: backward's first use assigns (=) the whole gradient, so it is not cleared
    float lr_factor;          // factor of lr; 0 means 1
    int frozen;               // 1: never trained; no gradients, no optimizer states, and no traffic for them
    int unit_step;            // units per layer; 0 means 1
} zero_tensor;
// Returns the number of elements in one layer, or -1 if the shape is invalid.
int64_t zero_tensor_elems(const zero_tensor *t);

// Tensors that are gathered and released together: a layer or a block. The table lists units in forward
// order. A unit with several uses (tied weights) has its own working memory. GPT-2's encoder and LM head use
// the same embeddings, and the encoder's backward only adds to gradients: { "embedding", 2, 2, 1 }.
typedef struct {
    const char *name;
    int forward_uses;        // pairs of pre/post_forward in a micro-batch, 1 to 4096
    int backward_uses;       // pairs of pre/post_backward in a micro-batch, 1 to 4096
    int gradient_only_uses;  // how many of the last backward uses read no parameters: stage 3 gathers none
    int repeated_uses;       // how many of the last forward uses only repeat earlier ones during backward, to
                             // recompute activations: they gather the unit again, into shared memory
} zero_unit;

// -------- creation

// Returns the defaults: stage 0, fp32, CPU, one micro-batch, prefetch 1, no overlap.
zero_config zero_defaults(void);
// Returns the number of usable CUDA devices; 0 if this machine has no device or no driver; ZERO_ERR_DEVICE if
// its devices or its driver cannot be used. After 0 or an error, zero_last_error() names the reason.
int zero_cuda_devices(void);

// (collective) Connects the ranks and allocates the model states, all 0. Sets *z to an instance that the
// caller destroys; after an error, to NULL. All ranks must pass the same settings and tables, or all fail
// before anything is allocated; only device numbers, streams, overlap, debug.poison, debug.trace_events and
// start may differ. Tables are copied. If MPI is already initialised, it is used as it is; otherwise
// zero_create initialises it and zero_destroy finalises it.
int zero_create(zero **z, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units);
// (collective, except after a failure) Waits for pending work and frees everything. NULL is allowed. If a
// program with several ranks exits without it, the library ends the job with a message (zero_job.h).
void zero_destroy(zero *z);

// -------- hooks

// A pre hook opens a unit for a use, and its post hook closes it. Several units may be open at once
// (max_open), and one unit may be open for forward and backward at once. A hook called out of order fails
// with ZERO_ERR_MISUSE. All ranks must open the same units in the same order, in evaluation and sampling too.

// Begins micro-batch `micro` of `of`, counted from 0; of is at most micro_batches. micro 0 begins a new step
// and discards a previous one whose last micro-batch is not complete; one that is complete must first end
// with zero_update or zero_discard. A later micro-batch may begin only when all backward uses of the previous
// one are closed.
// With accumulate_layers, one call for micro-batch 0 begins the whole step of `of` micro-batches.
int zero_begin_train(zero *z, int micro, int of);
// Begins a forward-only pass, outside of a step.
int zero_begin_eval(zero *z);
// (collective at stage 3) Returns 0 when the unit's parameters are available; they stay so until
// zero_post_forward. Also starts gathering the next units of the recorded order.
int zero_pre_forward(zero *z, int unit);
// (collective at stage 3) Closes the use; its pointers become invalid. Stage 3 releases the parameters,
// unless backward begins with this unit.
int zero_post_forward(zero *z, int unit);
// (collective at stage 3) Returns 0 when the unit's parameters and the memory for its gradients are
// available. May wait for the reduction of an earlier bucket.
int zero_pre_backward(zero *z, int unit);
// Call it in a backward use when the gradients of micro-batch `micro` are complete. With accumulate_layers,
// all micro-batches of the step pass each backward use, in order, each ended by this call: it adds their
// gradients in fp32 in a binary tree (neighbours first, then pairs of pairs), and the next micro-batch begins
// with gradients of 0. Only one unit may be open for backward. Without accumulate_layers the call is optional
// and changes nothing.
int zero_post_micro(zero *z, int unit, int micro);
// (collective at stage 3, and at the unit's last use) Closes the use. The last use completes the unit's
// gradients, and a full bucket starts its reduction (stages 0 and 1: only in the last micro-batch). With
// accumulate_layers each use is reduced separately.
int zero_post_backward(zero *z, int unit);

// Returns one layer of the tensor in numbers.dtype, contiguous, 256-byte aligned and read-only, or NULL and
// an error if the unit is not open for reading. Valid until the use's post hook: call it again in each use.
const void *zero_param(zero *z, int tensor, int layer);
// Returns the gradient of the same values, under the same rules. The trainer adds the gradient of this rank's
// loss, multiplied by zero_loss_scale and, with A micro-batches, by 1/A; with accumulate_layers not by 1/A,
// because the plugin takes the mean. At the unit's first pre_backward of a micro-batch it is 0 (undefined
// with zero_tensor.backward_overwrites, NaN with debug.poison), and it keeps its contents until the last
// post_backward. A frozen tensor has no gradient: the call returns NULL and fails with ZERO_ERR_MISUSE, so
// backward must not compute one.
void *zero_grad(zero *z, int tensor, int layer);

// -------- checks

// In the first debug.check_steps steps, or in all with ZERO_CHECK=1, the plugin looks for mistakes that would
// give wrong numbers without an error: parameters changed during a pass; a gradient changed between its last
// post_backward and the next hook; parameters that were never set; values passed to zero_set that differ
// between ranks. In these steps zero_begin_train is collective. A failed check returns ZERO_ERR_MISUSE or
// ZERO_ERR_ARGUMENT and names the rank and the tensor; end the job after it. docs/porting.md has the details.
//
// Two checks take almost no time and also run without any setting, in the first step, unless ZERO_CHECK is 0:
// whether two ranks have the same batch, and whether a tensor's gradient is 0 on all ranks. Either may be
// intended, so they do not fail, but report it in zero_step_result.note. Gradients on NVMe or, on CUDA, in
// host memory are not checked.

// (collective) In checked steps, fails if two ranks pass the same batch. At its first call, the batches are
// compared for the note. Otherwise does nothing. Call it for each training batch, outside the hooks. batch:
// in host memory.
int zero_check_batch(zero *z, const void *batch, size_t bytes);

// -------- step

typedef struct {        // the same on all ranks and at every stage
    double grad_norm;   // L2 norm of the mean gradient, before clipping and without the loss scale
    int finite;         // 0: the gradients of some rank contain Inf or NaN
    double loss_scale;  // of this step's gradients; always 1 unless ZERO_F16
    const char *note;   // for the user: what the first step's quick checks found; NULL: nothing
} zero_step_result;

typedef struct zero_hyper {  // the same on all ranks, or the next step or zero_save fails with ZERO_ERR_COMM
    float lr, beta1, beta2, eps, weight_decay;
    float grad_clip;  // maximum norm (Pascanu et al., arXiv 1211.5063); 0: no clipping
    int t;            // number of this update, counted from 1, for the bias correction
} zero_hyper;

// Returns the factor by which the trainer must multiply its loss in this step: always 1 unless ZERO_F16. A
// dynamic scale follows Micikevicius et al. (arXiv 1710.03740, section 3.2) with DeepSpeed's rules.
double zero_loss_scale(const zero *z);
// (collective) Returns 0 when all gradients are reduced, with the norm in *result (NULL is allowed). Call it
// once per step, after the last micro-batch, and then zero_update or zero_discard.
int zero_finish_gradients(zero *z, zero_step_result *result);
// (collective) Ends the step with update_with or AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2)
// on this rank's shard, with the clipped gradients: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m /
// (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + lr wd p. With ZERO_F16, gradients with Inf or NaN update nothing.
int zero_update(zero *z, const zero_hyper *hyper);
// Promises that the next step ends with zero_update and these values, and is neither discarded nor restarted.
// If states are on NVMe or, on CUDA, in host memory, the update can then start during the last micro-batch's
// backward pass; otherwise the call has no effect. Call it outside of a step, with grad_clip 0, and not with
// ZERO_F16.
int zero_promise_update(zero *z, const zero_hyper *hyper);
// Ends the step without an update; only the loss scale changes. Like zero_update, it fails with
// ZERO_ERR_ARGUMENT if the gradients overflowed at min_loss_scale.
int zero_discard(zero *z);
// (collective) With offload.delayed_update, waits until the parameters contain the last update, so that the
// next step uses it. Call it outside of a step. zero_save calls it first.
int zero_finish_update(zero *z);
// (collective) Calls zero_finish_gradients, then zero_update. To stop at NaN or Inf, call the two separately.
int zero_step(zero *z, const zero_hyper *hyper, zero_step_result *result);

// -------- values in and out

// If parameters have no separate masters (fp32, no_master, frozen), ZERO_MASTER means ZERO_PARAM. Moments are
// the optimizer's states, of which there are update_states. ZERO_GRADIENT is the mean over the ranks, summed
// over the micro-batches, before clipping, times the loss scale. Frozen tensors have only parameters: asking
// for their moments or gradients fails with ZERO_ERR_MISUSE.
typedef enum { ZERO_PARAM, ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_GRADIENT } zero_value;

// Sets elements [offset, offset + n) of a tensor's layer to values[0..n), rounded to the stored type, outside
// of a step. Every rank passes the same values and keeps its part. ZERO_PARAM also sets the master.
int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, const float *values);
// (collective) Gets the same elements as fp32 on every rank. They are streamed, so no whole tensor is
// gathered. Call it outside of a step; for ZERO_GRADIENT, between zero_finish_gradients and zero_update.
int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values);
// (collective) Writes 16 hex digits: the XXH3-64 digest of all tensors' digests in the table's order, of the
// parameters (full 0) or of masters and moments (full 1). It is the same at any stage and number of ranks.
// Of frozen tensors, both digests include only the parameters.
int zero_hash(zero *z, int full, char hex[17]);

#ifdef __cplusplus
}
#endif
#include "zero_checkpoint.h"
#include "zero_deepspeed.h"
#include "zero_job.h"
#include "zero_info.h"
#include "zero_virtual.h"
#endif
