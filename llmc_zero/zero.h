/*
 * llmc_zero: ZeRO stages 0 to 3 for any trainer in C.                                              (MIT licence, see LICENSE)
 *
 * ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) removes what data-parallel ranks hold twice: the optimizer state (stage 1), the
 * gradients too (stage 2), the parameters too (stage 3). The trainer describes its tensors once, puts a hook before and after each
 * use of a unit, and calls one step function:
 *
 *     zero_create(&z, &config, tensors, n_tensors, units, n_units);
 *     zero_set(z, tensor, layer, 0, n, values);                 initial values, tensor by tensor
 *     for each step:
 *         for each micro-batch m of A:
 *             zero_begin(z, ZERO_TRAIN, m, A);
 *             for each unit u, forwards:   zero_pre_forward(z, u);  ... zero_param(z, tensor, layer) ...   zero_post_forward(z, u);
 *             for each unit u, backwards:  zero_pre_backward(z, u); ... zero_grad(z, tensor, layer) += ... zero_post_backward(z, u);
 *         zero_step(z, &hyper, &info);
 *     zero_destroy(z);
 *
 * Every function that returns int returns 0, or a negative ZERO_ERR_* with a sentence in zero_last_error(). The library never prints
 * and never exits (zero_end_all excepted). Functions marked (collective) must be called by all ranks, in the same order; where they
 * are not, the call fails. One thread of a rank calls the library. Sizes are elements where a name says elems, bytes where it says bytes.
 * A program's own check, so that a failure is told once and ends all ranks:
 *
 *     if (rc) { if (zero_first_to_fail(z)) fprintf(stderr, "%s\n", zero_last_error()); else sleep(3); zero_end_all(z, 1); }
 */
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero zero;

enum {
    ZERO_ERR_ARGUMENT = -1,     /* a value that cannot be honoured */
    ZERO_ERR_MISUSE = -2,       /* hooks or accessors in the wrong order: access outside an open use, a use too many, a wrong unit */
    ZERO_ERR_MEMORY = -3,
    ZERO_ERR_COMM = -4,         /* a collective failed, or did not finish within comm_timeout_s */
    ZERO_ERR_IO = -5
};

/* The sentence of the calling thread's last failure, "" before the first. Valid until the next failure. */
const char *zero_last_error(void);

/* ---------------------------------------------------------------------------------------------- what the trainer describes */

typedef enum { ZERO_F32, ZERO_BF16 } zero_dtype;

/* One row of the tensor table. Layer l of the tensor lies in unit `unit + l`. The order of the table is the tensor-major order of
 * files and digests. All strings are copied. */
typedef struct {
    const char *name;
    int64_t elems;              /* of one layer */
    int layers;                 /* 1, or the number of layers that have one */
    int unit;                   /* the unit that holds layer 0 */
    int decay;                  /* 1: weight decay applies */
} zero_tensor;

/* Tensors gathered and released together. The units are listed in the order of the forward pass; backward goes through them in the
 * reverse order (buckets are filled in it), except that a unit used more than once (tied weights) ends where its last use is. GPT-2's
 * embeddings: { "embedding", 2, 2, 1 << 1 }, used by the encoder and the head; backward the head comes first, and the encoder's
 * backward, use number 1, only adds to gradients. */
typedef struct {
    const char *name;
    int forward_uses;           /* pairs of pre/post_forward in one micro-batch, at least 1 */
    int backward_uses;          /* pairs of pre/post_backward in one micro-batch, at least 1 */
    unsigned backward_no_params;/* bit i: the i-th backward use reads no parameters, so stage 3 need not gather them for it */
} zero_unit;

typedef struct {
    size_t size;                /* sizeof(zero_config): ZERO_CONFIG_INIT fills it, anything else is refused */
    int stage;                  /* 0 plain data parallel, 1, 2, 3 */
    int naive;                  /* 1: the naive path, stage 0 only: all-reduce of everything at the end, whole AdamW */
    zero_dtype dtype;           /* parameters and gradients; with ZERO_BF16 the shard keeps fp32 master weights */
    int micro_batches;          /* most micro-batches of a step; above 1, gradients are summed in fp32 */
    int64_t reduce_bucket_size; /* elements that a bucket must reach; 0: the largest unit used once */
    int prefetch;               /* units gathered ahead along the recorded order */
    int max_open;               /* single-use units that can always be open at once; more only while no unit is gathered ahead */
    int overlap;                /* 1: a progress thread runs collectives while the trainer computes; 0: they run where they are asked for */
    int poison;                 /* 1: released parameters and gradients nobody may touch are NaN; -1: as ZERO_POISON in the environment */
    int64_t window_bytes;       /* staging of a collective, per rank, 64 KiB to 16 MiB; shared between the ranks of a node */
    int shared_window;          /* 1: through shared memory where all ranks are on one node; 0: by messages */
    double comm_timeout_s;      /* a collective that takes longer is an error */
    int trace_events;           /* events kept for zero_trace_*; 0: none */
    void *mpi_comm;             /* MPI_Comm * to use; NULL: MPI_COMM_WORLD under a launcher, else one rank without MPI */
} zero_config;
#define ZERO_CONFIG_INIT { sizeof(zero_config), 0, 0, ZERO_F32, 1, 0, 1, 1, 0, -1, 4 << 20, 1, 300.0, 0, NULL }

/* (collective) Allocates the model states, all 0, and connects the ranks. *z is the caller's to destroy, NULL on failure. An MPI
 * that is initialised is used as it is; otherwise, under mpirun or srun, it is initialised here and finalised by zero_destroy. */
int zero_create(zero **z, const zero_config *config, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units);
/* (collective unless after a failure) Waits for what is under way, frees everything. NULL is allowed. */
void zero_destroy(zero *z);

/* ------------------------------------------------------------------------------------------------------------------ ranks */

/* What the launcher (Open MPI, PMIx, Slurm) says in the environment, before or without zero_create: 0 and 1, 1 without a launcher. */
void zero_launched_as(int *rank, int *ranks, int *ranks_on_node);
int zero_rank(const zero *z);
int zero_ranks(const zero *z);
int zero_barrier(zero *z);                                  /* (collective) */
int zero_sum(zero *z, double *values, int n);               /* (collective) in place, in rank order: the same bits on all ranks; n <= 64 */
int zero_broadcast(zero *z, int root, void *data, size_t bytes);    /* (collective) */
/* 1 for the first rank that calls it after a failure, which is the one to print; 0 for the others. Without a shared window the ranks
 * cannot agree: rank r returns 1 after r * 0.2 s, by when zero_end_all of an earlier one has most likely ended it. */
int zero_first_to_fail(zero *z);
/* Ends all ranks of the job with this exit status. Does not return. z may be NULL before zero_create. */
void zero_end_all(zero *z, int status);

/* ------------------------------------------------------------------------------------------------------------------ hooks */

typedef enum { ZERO_TRAIN, ZERO_EVAL } zero_mode;

/* Starts a micro-batch: number `micro` of `of`, counted from 0. ZERO_EVAL: forward uses only, any number. Closes nothing: a unit that
 * is still open is a misuse. The order of units is recorded per mode and is what prefetching follows. */
int zero_begin(zero *z, zero_mode mode, int micro, int of);
/* (collective at stage 3, and at stages 1 and 2 after a step) The unit's parameters are there when it returns. */
int zero_pre_forward(zero *z, int unit);
int zero_post_forward(zero *z, int unit);
/* As zero_pre_forward; the first one of a micro-batch also clears the unit's gradient memory. */
int zero_pre_backward(zero *z, int unit);
/* (collective from the last use on) Hands the gradients to their bucket; a full bucket starts its reduction. */
int zero_post_backward(zero *z, int unit);

/* Pointer to a tensor of a layer, in config.dtype, contiguous, 256-byte aligned. Valid from the unit's pre hook to its matching post
 * hook; never keep it. NULL and an error outside of that. The values are not to be written. */
void *zero_param(zero *z, int tensor, int layer);
/* The tensor's gradient of this micro-batch, in config.dtype. The trainer adds to it the gradient of this rank's own loss; it is 0 at
 * the unit's first pre_backward and keeps its contents until the unit's last post_backward. The plugin takes the mean over the ranks
 * and the sum over the micro-batches, so with A of them the trainer scales its loss by 1/A. NULL and an error outside of an open
 * backward use. */
void *zero_grad(zero *z, int tensor, int layer);

/* ------------------------------------------------------------------------------------------------------------------- step */

typedef struct {
    double grad_norm;           /* L2 norm of the mean gradient over all ranks, all parameters */
    int finite;                 /* 0: an infinity or a NaN is in the gradients of some rank */
} zero_info;

typedef struct {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_clip;            /* the norm is clipped to it; 0: never */
    int t;                      /* number of this update, from 1, for the bias correction */
} zero_hyper;

/* (collective) After the last micro-batch's backward: waits for the reductions, computes the norm. */
int zero_reduce(zero *z, zero_info *info);
/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) on what this rank owns, with the gradients of the last zero_reduce:
 *     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + lr wd p
 * The new parameters reach the other ranks at the next hooks that need them. */
int zero_update(zero *z, const zero_hyper *hyper);
int zero_discard(zero *z);                                              /* drops the gradients instead */
/* zero_reduce, then zero_update, whatever the gradients hold: a trainer that wants to stop at an infinity calls the two itself. info may
 * be NULL. */
int zero_step(zero *z, const zero_hyper *hyper, zero_info *info);

/* ------------------------------------------------------------------------------------------------------- values in and out */

typedef enum { ZERO_PARAM, ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_GRADIENT } zero_value;

/* Elements [offset, offset + n) of a tensor's layer, as fp32, whatever is stored. Between steps only; ZERO_GRADIENT, the mean over the
 * ranks and sum over the micro-batches before clipping, is the exception: it is read between zero_reduce and zero_update, never set.
 * set: every rank passes the same values and keeps what it stores (ZERO_PARAM also sets the master). No traffic.
 * get: (collective) every rank receives the values; streams through the staging window, nothing is ever gathered whole. */
int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, const float *values);
int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values);

/* (collective) XXH3-64, as 16 hex digits, of the table of XXH3-64 digests of every tensor of every layer in tensor-major order: the
 * parameters as stored for compute (full = 0), or the master weights and both moments (full = 1). Equal models give equal digests at
 * any stage, dtype permitting, and any number of ranks. */
int zero_hash(zero *z, int full, char hex[17]);

/* (collective) This rank's shards, and `user_bytes` of the trainer's own, into one file a rank: complete under its name or not there.
 * load wants the same tensors, units, ranks and dtype; the stage may differ. A damaged file is an error on all ranks, and nothing of
 * what the plugin held is changed then. */
int zero_save(zero *z, const char *path, const void *user, size_t user_bytes);
int zero_load(zero *z, const char *path, void *user, size_t user_bytes);

/* ------------------------------------------------------------------------------------------------------ memory and traffic */

typedef enum { ZERO_STATES, ZERO_WORKING, ZERO_ACTIVATIONS, ZERO_MEMORY_CLASSES } zero_memory_class;

/* Every byte the plugin (small tables apart) or, through this function, the trainer holds: zeroed, 4096-byte aligned, named. Freed by
 * zero_destroy. NULL with the sentence set: what was asked for and what is held. */
void *zero_alloc(zero *z, zero_memory_class class_, const char *purpose, size_t bytes);
typedef struct { const char *purpose; zero_memory_class class_; size_t bytes; } zero_memory_line;
int zero_memory(const zero *z, int i, zero_memory_line *line);          /* the i-th line of the table; ZERO_ERR_ARGUMENT after the last */
size_t zero_memory_bytes(const zero *z, zero_memory_class class_);      /* what is held now */
/* Bytes of model states that the ZeRO paper's formula gives a rank at `stage`, with these tables, dtype and micro-batches; no padding. */
size_t zero_states_formula(const zero *z, int stage);

typedef enum { ZERO_FOR_STEP, ZERO_FOR_EVAL, ZERO_FOR_CHECKPOINT, ZERO_FOR_HASH, ZERO_FOR_SCALARS, ZERO_TRAFFIC_PURPOSES } zero_purpose;
/* Bytes this rank has sent since zero_create, counted where they are copied or sent. */
typedef struct { int64_t all_gather[ZERO_TRAFFIC_PURPOSES], reduce_scatter[ZERO_TRAFFIC_PURPOSES], other[ZERO_TRAFFIC_PURPOSES]; } zero_traffic;
void zero_get_traffic(zero *z, zero_traffic *t);
/* Bytes that a rank sends in one training step of A micro-batches, by the formula, from the table alone (the naive path, which sends
 * everything to everybody, excepted). */
typedef struct { int64_t all_gather, reduce_scatter; } zero_step_traffic;
zero_step_traffic zero_expected_traffic(const zero *z, int micro_batches);

/* What was settled at creation, for the trainer's start table. */
typedef struct {
    int64_t bucket_elems, bucket_bytes;     /* largest bucket in effect, and the bytes of all bucket buffers */
    int64_t num_parameters;                 /* without padding */
    int slots;                              /* stage 3: gathered single-use units there is room for */
    const char *comm;                       /* "self", "mpi, shared window", "mpi, messages (...why)" */
} zero_effective;
void zero_get_effective(const zero *z, zero_effective *e);

/* ------------------------------------------------------------------------------------------------------------------- trace */

typedef enum { ZERO_EV_FORWARD, ZERO_EV_BACKWARD, ZERO_EV_GATHER, ZERO_EV_REDUCE, ZERO_EV_UPDATE, ZERO_EV_KINDS } zero_event_kind;
typedef struct { zero_event_kind kind; int unit; int thread; double start_s, end_s; } zero_event;   /* thread 1: the progress thread */
int zero_trace_event(const zero *z, int i, zero_event *e);              /* ZERO_ERR_ARGUMENT after the last */
int zero_trace_write(zero *z, const char *path);                        /* as JSON for chrome://tracing or Perfetto, one file a rank */

#ifdef __cplusplus
}
#endif
#endif
