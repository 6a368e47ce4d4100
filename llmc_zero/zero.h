// llmc_zero: ZeRO stages 0 to 3 for any trainer in C. MIT licence, see LICENSE.
//
// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) removes what data-parallel ranks hold twice: the optimizer
// state (stage 1), the gradients too (stage 2), the parameters too (stage 3). The trainer describes its
// tensors once, puts a hook before and after each use of a unit, and calls one step function:
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
// What holds for every function unless its comment says otherwise:
// - It returns 0, or a negative ZERO_ERR_* with a sentence in zero_last_error(). What communicates may fail
//   with ZERO_ERR_COMM, what allocates with ZERO_ERR_MEMORY, on CUDA everything with ZERO_ERR_DEVICE, with
//   states on NVMe with ZERO_ERR_TIER.
// - After ZERO_ERR_ARGUMENT and ZERO_ERR_MISUSE nothing has changed, and the plugin goes on. After
//   ZERO_ERR_COMM, ZERO_ERR_DEVICE and ZERO_ERR_TIER the plugin is of no use: end the job (zero_job.h).
// - (collective): all ranks call it at the same place of the same sequence, else it fails with ZERO_ERR_COMM.
// - z comes from zero_create. Arrays and strings are the caller's, and are used during the call only.
// - One thread of a rank calls the library. It never prints.
// - Sizes are elements where a name says elems, bytes where it says bytes.
//
// dev/examples/mlp_zero.c is a complete trainer; docs/porting.md leads through a port; docs/details.md has
// what each rule means in detail.
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION "0.2.0"  // of the plugin; ranks of different versions refuse to start together

typedef struct zero zero;  // the plugin of one rank

enum {
    ZERO_ERR_ARGUMENT = -1,  // a value that cannot be honoured
    ZERO_ERR_MISUSE = -2,    // hooks or accessors in the wrong order
    ZERO_ERR_MEMORY = -3,    // no memory for what the sentence names
    ZERO_ERR_COMM = -4,      // a collective failed, or did not finish within comm.timeout_s
    ZERO_ERR_IO = -5,        // a file that cannot be read or written, is damaged, or belongs to another run
    ZERO_ERR_DEVICE = -6,    // no usable CUDA device, or an operation on it failed
    ZERO_ERR_TIER = -7       // a file of model states (offload.nvme) failed, and what was in it is lost
};
// Returns the sentence of the calling thread's last failure, "" before the first; valid until the next one.
const char *zero_last_error(void);
// Returns the same failure in fields.
typedef struct {
    int code;             // ZERO_ERR_*; 0: nothing has failed yet
    int rank, unit;       // the rank that the sentence names first, and the unit it failed at; -1: none
    char setting[48];     // of zero_config, "comm.nccl", or several with blanks between them; "": none
    char sentence[1024];  // zero_last_error()
} zero_failure;
const zero_failure *zero_last_failure(void);

// -------- tensors and units

typedef enum { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;  // float; 16-bit types as uint16_t
typedef enum { ZERO_CPU, ZERO_CUDA } zero_device;           // same bits on both; docs/details.md: streams
enum { ZERO_MAX_DIMS = 4 };

// One row of the tensor table; its number is the `tensor` of zero_param and the others. The order of the rows
// is the order of checkpoints and digests.
typedef struct {
    const char *name;             // in messages and checkpoints
    int n_dims;                   // 1 to ZERO_MAX_DIMS
    int64_t dims[ZERO_MAX_DIMS];  // shape of one layer, slowest dimension first
    int layers;                   // 1, or the number of layers that have one; layer l lies in unit `unit + l`
    int unit;                     // the unit of layer 0
    int decay;                    // 1: weight decay applies
    int backward_overwrites;      // 1: backward's first use writes the whole gradient (=): not cleared
} zero_tensor;
// Returns the elements of one layer, or -1 if the shape is none.
int64_t zero_tensor_elems(const zero_tensor *t);

// Tensors that are gathered and released together: a layer or a block, in the order of the forward pass. A
// unit that is used more than once (tied weights) has working memory of its own. GPT-2's embeddings, used by
// the encoder and by the head, whose encoder's backward only adds to gradients: { "embedding", 2, 2, 1 }.
typedef struct {
    const char *name;
    int forward_uses;        // pairs of pre/post_forward in a micro-batch, at least 1
    int backward_uses;       // pairs of pre/post_backward in a micro-batch, at least 1
    int gradient_only_uses;  // the last so many of these read no parameters: stage 3 does not gather for them
} zero_unit;

// -------- settings

// How the ranks find each other: docs/details.md.
typedef enum { ZERO_START_AUTO, ZERO_START_MPI, ZERO_START_TCP, ZERO_START_FILE } zero_start;

// Which numbers are computed in which type, and the loss scale.
typedef struct {
    zero_dtype dtype;        // of parameters and gradients; 16-bit ones have fp32 master weights on the shard
    int no_master;           // 1, with ZERO_BF16: no masters; the update rounds stochastically instead
    unsigned rounding_seed;  // of that rounding. The noise depends on it, t, tensor, layer and element only
    double loss_scale;       // ZERO_F16: above 0, always this; 0: dynamic, by the next five
    int initial_scale_power;     // the scale begins at 2 to this power, 0 to 126
    int loss_scale_window;       // steps without overflow after which it doubles, at least 1
    int hysteresis;              // overflows before it halves, at least 1
    int consecutive_hysteresis;  // 1: a step without overflow forgets earlier ones; 0: until the scale
                                 // doubles
    double min_loss_scale;       // an overflow at this scale is an error, at least 2^-126
} zero_numbers_config;

// How bytes travel between the ranks.
typedef struct {
    int64_t window_bytes;  // staging per rank, 64 KiB to 16 MiB, shared between the ranks of a node; 0: as
                           // needed, 4 MiB, with NCCL at most 256 MiB for all ranks together
    int shared_window;     // 1: through shared memory where all ranks are on one node; 0: by messages
    int nccl;              // ZERO_CUDA: 1: NCCL; 0: through the host; -1: NCCL where it can be used, else
                           // zero_job.comm says why not. docs/nccl.md has versions, limits, its failures
    int reduce_nccl;   // 1, with nccl 1: NCCL sums in its own order, and bits depend on it; 0: in rank order
    int reduce_fp32;   // 1: 16-bit gradients travel as fp32: the same bits for twice the bytes, but with
                       // reduce_nccl NCCL then sums in fp32
    double timeout_s;  // 0.001 to 1e6; a collective that takes longer is an error
} zero_comm_config;

// How the ranks of the job find each other. The launcher's own settings are used where nothing is given. With
// ZERO_START_TCP and _FILE the environment's ZERO_JOB_KEY, 16 characters or more, keeps others out.
typedef struct {
    zero_start method;
    int rank;            // this process; -1: as the launcher says
    int ranks;           // how many there are; 0: as the launcher says
    const char *server;  // ZERO_START_TCP: "host:port" of rank 0, "[address]:port" with IPv6; the port
                         // defaults to 12345; NULL: as the launcher says
    const char *file;    // ZERO_START_FILE: a path that all ranks see, in a folder llmc_zero.start. Rank 0
                       // writes the file, and removes it when all are connected; only such a file is replaced
    void *mpi_comm;  // MPI_Comm *, duplicated at creation; NULL: MPI_COMM_WORLD
    const char
        *same;  // further text that must be the same on all ranks, as for zero_require_same; NULL: none
} zero_start_config;

// Where something lies: on the configuration's device, whose memory with ZERO_CPU is the host's; in the
// host's memory; in files on NVMe disks.
typedef enum { ZERO_DEVICE, ZERO_HOST, ZERO_NVME } zero_tier;

// Where model states have their home. What lies elsewhere comes to the device when it is needed. The bits are
// the same on every tier.
typedef struct {
    zero_tier params;        // stage 3: each rank's shards of the parameters
    zero_tier optimizer;     // from stage 1 on: masters and moments; the update runs where they are
    zero_tier gradients;     // from stage 2 on: the reduced shards; ZERO_DEVICE or below the optimizer's
    double optimizer_ratio;  // the part of the optimizer's states that leaves the device, 0 to 1
    int64_t params_in_host;  // elements of a rank's parameters kept in host memory with params on NVMe
    int64_t sub_group_size;  // most elements that are read, updated and written at once
    int delayed_update;      // from this update (zero_hyper.t) on each runs beside the next step, which uses
                             // the parameters before it; 0: none
    const char *nvme;        // folders on the disks, with commas between them; blocks alternate
    int64_t nvme_block_bytes;  // of a request, a multiple of 4096, at least 512 KiB
    int nvme_depth;            // requests under way at once
    int nvme_threads;          // that read and write where the kernel has no io_uring
    int nvme_verify;           // 1: every block that is read is compared with a checksum
} zero_offload_config;

// For finding mistakes, and for measuring.
typedef struct {
    int naive;         // 1: the naive path, stage 0 only: all-reduce of everything at the end, whole AdamW
    int poison;        // 1: memory that nobody may use is NaN; -1: as the environment's ZERO_POISON says
    int trace_events;  // events kept for zero_trace_*; 0: none
} zero_debug_config;

// The settings of zero_create. A program starts from zero_defaults() and changes what it wants. settings.def
// has the default and the range of each.
typedef struct {
    size_t size;                 // sizeof(zero_config), by zero_defaults; anything else is refused
    int stage;                   // 0 plain data parallel, 1, 2, 3
    int inference;               // 1: parameters only, for passes of zero_begin_eval; nothing can train
    int micro_batches;           // most micro-batches of a step; above 1, gradients are summed in fp32
    zero_device device;          // ZERO_CPU or ZERO_CUDA
    int cuda_device;             // its number; -1: the rank's number on its node, modulo the devices there
    void *cuda_stream;           // cudaStream_t of the trainer's kernels; NULL: the default stream
    int64_t reduce_bucket_size;  // elements that a bucket must reach; 0: the largest unit used once
    int prefetch;                // stage 3: units gathered ahead along the recorded order, 0 to 1024
    int max_open;                // stage 3: single-use units that can always be open at once, 1 to 1024
    size_t memory_beside;  // ZERO_CPU: bytes that the trainer takes itself, counted by zero_create when it
                           // refuses what does not fit into memory
    int async_save;        // 1: host memory for a copy of this rank's masters and moments: zero_save_begin
    int overlap;           // 1: collectives run while the trainer computes; 0: where they are asked for
    zero_numbers_config numbers;
    zero_comm_config comm;
    zero_start_config start;
    zero_offload_config offload;
    zero_debug_config debug;
} zero_config;

// Returns the defaults: stage 0, fp32, the processor, one micro-batch, prefetch 1, no overlap.
zero_config zero_defaults(void);
// Returns 0: *config has taken over what a DeepSpeed JSON file asks of the plugin (docs/details.md lists the
// keys). Keys that cannot be honoured are ZERO_ERR_ARGUMENT, all of them with file, line and value, and
// *config is unchanged; a file that cannot be read is ZERO_ERR_IO. Every rank reads the file for itself.
// offload.nvme of the file is valid until the calling thread reads the next one.
int zero_config_from_file(zero_config *config, const char *path);
// The same from the environment: ZERO_STAGE=0..3, and ZERO_CONFIG=path of such a file. They must not
// contradict.
int zero_config_from_env(zero_config *config);
// Returns how many CUDA devices the plugin can use here, at least 1, or an error that says what is missing.
int zero_cuda_devices(void);

// -------- life

// (collective) Returns 0 and a plugin that is the caller's to destroy, or an error and NULL. Connects the
// ranks and allocates the model states, all 0. All ranks pass the same settings and tables, or all fail
// before anything is allocated; device numbers, streams, overlap, debug.poison, debug.trace_events and start
// may differ. Tables are copied. An MPI that is initialised is used as it is; else it is initialised here and
// finalised by zero_destroy.
int zero_create(zero **z, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units);
// (collective unless after a failure) Waits for what is under way and frees everything. NULL is allowed.
void zero_destroy(zero *z);

// -------- hooks

// A use of a unit lies between a pre hook and its post hook. Several units may be open at once (max_open),
// and one for forward and backward together. A hook out of order is ZERO_ERR_MISUSE. All ranks open the same
// units in the same order, in evaluation and sampling too.

// Returns 0: micro-batch `micro` of `of`, counted from 0, begins; of is at most micro_batches. micro 0 begins
// a new step, and what an unfinished one has collected is dropped; the next ones follow all backward uses of
// the last.
int zero_begin_train(zero *z, int micro, int of);
// Returns 0: a pass of forward uses only begins, outside of a step.
int zero_begin_eval(zero *z);
// (collective at stage 3) Returns 0 when the unit's parameters are there, until zero_post_forward. At stage 3
// the next units of the recorded order are on their way.
int zero_pre_forward(zero *z, int unit);
// (collective at stage 3) Returns 0: the use is closed and its pointers are invalid. At stage 3 the
// parameters are released, unless backward begins with this unit.
int zero_post_forward(zero *z, int unit);
// (collective at stage 3) Returns 0 when the parameters and the memory of the unit's gradients are there. May
// wait for an earlier bucket's reduction.
int zero_pre_backward(zero *z, int unit);
// (collective at stage 3, and at the unit's last use) Returns 0: the use is closed. The last one hands the
// gradients to their bucket; a full bucket starts its reduction, at stages 0 and 1 in the last micro-batch
// only.
int zero_post_backward(zero *z, int unit);

// Returns the tensor's values of a layer in numbers.dtype, contiguous, 256-byte aligned, read-only; NULL and
// an error while the unit is not open for reading. Valid until the post hook of the open use: ask again in
// the next one.
void *zero_param(zero *z, int tensor, int layer);
// Returns the gradient of the same values, likewise. The trainer adds the gradient of this rank's own loss,
// scaled by 1/A with A micro-batches, and by zero_loss_scale. It is 0 at the unit's first pre_backward of a
// micro-batch (with zero_tensor.backward_overwrites anything, with debug.poison NaN) and keeps its contents
// until the last post_backward.
void *zero_grad(zero *z, int tensor, int layer);

// -------- step

typedef struct {        // the same on all ranks and at every stage
    double grad_norm;   // L2 norm of the mean gradient, before clipping, the loss scale taken out
    int finite;         // 0: some rank's gradients hold an infinity or a NaN
    double loss_scale;  // that this step's gradients carry; 1 but for ZERO_F16
} zero_step_result;

typedef struct {  // all ranks pass the same
    float lr, beta1, beta2, eps, weight_decay;
    float grad_clip;  // the norm is clipped to this (Pascanu et al., arXiv 1211.5063); 0: never
    int t;            // number of this update, from 1, for the bias correction
} zero_hyper;

// Returns what the trainer multiplies its loss by in this step: 1 but for ZERO_F16. A dynamic scale follows
// Micikevicius et al. (arXiv 1710.03740, section 3.2) with DeepSpeed's rules.
double zero_loss_scale(const zero *z);
// (collective) Returns 0 when all gradients are reduced, with the norm in *result (NULL is allowed). After
// the last micro-batch, once in a step; zero_update or zero_discard comes next.
int zero_finish_gradients(zero *z, zero_step_result *result);
// (collective) Returns 0: the step is over. AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) on
// what this rank owns, with the clipped gradients: m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr (m /
// (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + lr wd p. With ZERO_F16, gradients that are not finite update
// nothing.
int zero_update(zero *z, const zero_hyper *hyper);
// Returns 0: the next step ends with zero_update of the same values, which then begins during the backward
// passes of the last micro-batch, where states lie in files; elsewhere this changes nothing. Outside of a
// step. grad_clip is 0, since the norm is not known yet; not with ZERO_F16. That step cannot be discarded,
// nor begun again.
int zero_promise_update(zero *z, const zero_hyper *hyper);
// Returns 0: the step is over and has changed nothing but the loss scale. ZERO_ERR_ARGUMENT, from zero_update
// too: the gradients have overflowed at min_loss_scale.
int zero_discard(zero *z);
// (collective) Returns 0: what the last update made is in the parameters now, if offload.delayed_update has
// put that off. The next step is then computed without delay. Outside of a step. zero_save begins with it.
int zero_finish_update(zero *z);
// (collective) zero_finish_gradients, then zero_update. A trainer that wants to stop at an infinity calls the
// two itself.
int zero_step(zero *z, const zero_hyper *hyper, zero_step_result *result);

// -------- values in and out

// Where the parameter is its own master (fp32, no_master), ZERO_MASTER is ZERO_PARAM. ZERO_GRADIENT is the
// mean over the ranks, summed over the micro-batches, before clipping, with the loss scale.
typedef enum { ZERO_PARAM, ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_GRADIENT } zero_value;

// Returns 0: elements [offset, offset + n) of a tensor's layer are values[0..n), rounded to what is stored.
// Every rank passes the same values and keeps its part; nothing is sent. ZERO_PARAM sets the master too.
// Outside of a step.
int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, const float *values);
// (collective) Returns 0 and the same elements as fp32 on every rank, streamed: nothing is gathered whole.
// Outside of a step; ZERO_GRADIENT between zero_finish_gradients and zero_update.
int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values);
// (collective) Returns 0 and 16 hex digits: XXH3-64 over the digests of every tensor of every layer in
// tensor-major order, of the parameters (full 0) or of masters and moments (full 1). Equal at any stage and
// number of ranks.
int zero_hash(zero *z, int full, char hex[17]);

#ifdef __cplusplus
}
#endif
#include "zero_checkpoint.h"
#include "zero_job.h"
#include "zero_plan.h"
#endif
