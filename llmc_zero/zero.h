// llmc_zero: ZeRO stages 0 to 3 for any trainer in C.                                              (MIT
// licence, see LICENSE)
//
// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) removes what data-parallel ranks hold twice: the optimizer
// state (stage 1), the gradients too (stage 2), the parameters too (stage 3). The trainer describes its
// tensors once, puts a hook before and after each use of a unit, and calls one step function:
//
//     zero_create(&z, &config, tensors, n_tensors, units, n_units);
//     zero_set(z, ZERO_PARAM, tensor, layer, 0, n, values);     initial values, tensor by tensor
//     for each step:
//         for each micro-batch m of A:
//             zero_begin(z, ZERO_TRAIN, m, A);
//             for each unit u, forwards:   zero_pre_forward(z, u);  ... zero_param(z, tensor, layer) ...
//             zero_post_forward(z, u); for each unit u, backwards:  zero_pre_backward(z, u); ... zero_grad(z,
//             tensor, layer) += ... zero_post_backward(z, u);
//         zero_step(z, &hyper, &info);
//     zero_destroy(z);
//
// What holds for every function, unless its comment says otherwise:
// - int is 0, or a negative ZERO_ERR_* with a sentence in zero_last_error(). ZERO_ERR_COMM and
// ZERO_ERR_MEMORY may come from any that
//   communicates or allocates, ZERO_ERR_DEVICE from any that uses a CUDA device; the comments name the other
//   errors. After ARGUMENT and MISUSE the call has changed nothing and the plugin goes on; after COMM and
//   DEVICE the ranks no longer agree, and only zero_last_error, zero_first_to_fail, zero_end_all and
//   zero_destroy make sense.
// - (collective): all ranks call it, at the same place of the same sequence. Where they do not, it fails with
// ZERO_ERR_COMM; it never
//   mixes up data.
// - z comes from zero_create and is not NULL. What a pointer argument points to is the caller's, and read or
// written during the call only.
// - One thread of a rank calls the library. It never prints, and never exits (zero_end_all and
// zero_first_to_fail
//   excepted, and zero_config.nccl's last resort).
// - Sizes are elements where a name says elems, bytes where it says bytes.
//
// A program's own check, so that a failure is told once and ends all ranks (the rank that speaks ends the
// others as they sleep):
//
//     if (rc) { if (!zero_first_to_fail(z)) sleep(3); fprintf(stderr, "%s\n", zero_last_error());
//     zero_end_all(z, 1); }
//
// dev/examples/mlp_zero.c is a complete trainer in 150 lines; docs/porting.md leads through the port of
// another one.
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

// Of the plugin: the same on all ranks, or they do not start.
#define ZERO_VERSION "0.1.0"

// The plugin of one rank.
typedef struct zero zero;

// What failed; zero_last_error says it in a sentence.
enum {
    ZERO_ERR_ARGUMENT = -1,  // a value that cannot be honoured
    ZERO_ERR_MISUSE = -2,    // hooks or accessors in the wrong order: access outside an open use, a use too
                             // many, a wrong unit
    ZERO_ERR_MEMORY = -3,    // the system has no memory for what the sentence names
    ZERO_ERR_COMM = -4,      // a collective failed, or did not finish within comm_timeout_s
    ZERO_ERR_IO = -5,        // a file that cannot be read or written, is damaged, or belongs to another run
    ZERO_ERR_DEVICE = -6     // no usable CUDA device, or an operation on it failed
};

// Returns the sentence of the calling thread's last failure, "" before the first. It belongs to the library
// and is valid until the thread's next failure.
const char *zero_last_error(void);

// -------- what the trainer describes

// fp32, a float; bfloat16, the upper 16 bits of a float, a uint16_t; or fp16, IEEE's half precision, a
// uint16_t, which needs a loss scale.
typedef enum { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;

// Where parameters, gradients, optimizer state and what zero_alloc gives lie, and where the plugin computes:
// the processor, or a CUDA device. The same numbers on both, bit for bit. With ZERO_CUDA:
// - zero_create makes the device the calling thread's current one. The trainer's kernels run on one stream,
// config.cuda_stream. Hooks do
//   not wait for the device: what the trainer queues on that stream after a pre hook runs when the parameters
//   and gradients are there, and what it has queued before a post hook is done before the plugin reads or
//   reuses the memory. The plugin's own streams do not synchronise with the default stream.
// - zero_param, zero_grad and zero_alloc give device memory. All other pointers are host memory, and the
// functions that fill them wait.
// - Between several ranks the bytes go by NCCL (config.nccl), or through host memory by MPI or TCP: then a
// hook that waits for another rank's
//   bytes waits on the host.
typedef enum { ZERO_CPU, ZERO_CUDA } zero_device;

// One row of the tensor table; the row's number is what zero_param and the others call `tensor`. Layer l lies
// in unit `unit + l`. How a layer's elements are shaped is the trainer's own affair. The order of the rows is
// the tensor-major order of digests.
typedef struct {
    const char *name;  // for messages and checkpoints
    int64_t elems;     // of one layer, at least 1
    int layers;        // 1, or the number of layers that have one
    int unit;          // the unit that holds layer 0
    int decay;         // 1: weight decay applies
    int written;       // 1: the first backward use of a micro-batch writes the whole gradient (=),
                       // which is not cleared before; 0: backward adds to it (+=), and finds 0
} zero_tensor;

// Tensors gathered and released together: a layer, or a block of layers. Every unit holds at least one
// tensor. The units are listed in the order of the forward pass; backward goes through them in the reverse
// order (buckets are filled in it), except that a unit used more than once (tied weights) ends where its last
// use is. Such a unit has working memory of its own, which no other unit shares. GPT-2's embeddings: {
// "embedding", 2, 2, 1 << 1 }, used by the encoder and the head; backward the head comes first, and the
// encoder's backward, use number 1, only adds to gradients.
typedef struct {
    const char *name;
    int forward_uses;             // pairs of pre/post_forward in one micro-batch of training, at least 1
    int backward_uses;            // pairs of pre/post_backward in one micro-batch, 1 to 32
    unsigned backward_no_params;  // bit i: backward use i, from 0, reads no parameters, so stage 3 need not
                                  // gather them for it
} zero_unit;

// How the ranks of a job find each other, and what carries their messages. MPI: Open MPI does both, under its
// mpirun or another launcher that it knows. TCP, FILE: no MPI is started; rank 0 listens at an address that
// all know, or that it writes into a file that all see, every two ranks connect by TCP, and between hosts the
// bytes go there. Who these are says the configuration, or the launcher: RANK and WORLD_SIZE (with
// MASTER_ADDR and MASTER_PORT; torchrun), Slurm's srun, Open MPI's mpirun. Who reaches the ports can take
// part: the network must be a trusted one, as for MPI and NCCL. AUTO: MPI with mpi_comm, under mpirun, and
// under srun --mpi=pmix; else FILE with start_file, TCP with server, where srun has started several tasks, or
// where RANK and WORLD_SIZE are there; else one rank alone. Ranks on one host share memory, and GPUs use
// NCCL, with each of them.
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
               // zero_effective.comm says why not. docs/nccl.md has versions, limits, its failures
    int reduce_nccl;   // 1, with nccl 1: NCCL sums in its own order, and bits depend on it; 0: in rank order
    int reduce_fp32;   // 1: 16-bit gradients travel as fp32: the same bits for twice the bytes, but with
                       // reduce_nccl NCCL then sums in fp32
    double timeout_s;  // above 0, at most 1e6; a collective that takes longer is an error
} zero_comm_config;

// How the ranks of the job find each other. The launcher's own settings are used where nothing is given.
typedef struct {
    zero_start method;
    int rank;            // this process; -1: as the launcher says
    int ranks;           // how many there are; 0: as the launcher says
    const char *server;  // ZERO_START_TCP: "host:port" of rank 0, "[address]:port" with IPv6; the port
                         // defaults to 12345; NULL: as the launcher says
    const char *file;    // ZERO_START_FILE: a path that all ranks see, in a folder llmc_zero.start. Rank 0
                       // writes the file, and removes it when all are connected; only such a file is replaced
    void *mpi_comm;    // MPI_Comm *, duplicated at creation; NULL: MPI_COMM_WORLD
    const char *same;  // further text that must be the same on all ranks, as for zero_same; NULL: none
} zero_start_config;

// For finding mistakes, and for measuring.
typedef struct {
    int naive;         // 1: the naive path, stage 0 only: all-reduce of everything at the end, whole AdamW
    int poison;        // 1: memory that nobody may use is NaN; -1: as the environment's ZERO_POISON says
    int trace_events;  // events kept for zero_trace_*; 0: none
} zero_debug_config;

// The settings of zero_create. A program starts from zero_defaults() and changes what it wants.
typedef struct {
    size_t size;                 // sizeof(zero_config), by zero_defaults; anything else is refused
    int stage;                   // 0 plain data parallel, 1, 2, 3
    int micro_batches;           // most micro-batches of a step; above 1, gradients are summed in fp32
    zero_device device;          // ZERO_CPU or ZERO_CUDA
    int cuda_device;             // its number; -1: the rank's number on its node, modulo the devices there
    void *cuda_stream;           // cudaStream_t of the trainer's kernels; NULL: the default stream
    int64_t reduce_bucket_size;  // elements that a bucket must reach; 0: the largest unit used once
    int prefetch;                // stage 3: units gathered ahead along the recorded order, 0 to 1024
    int max_open;                // stage 3: single-use units that can always be open at once, 1 to 1024
    int overlap;                 // 1: collectives run while the trainer computes; 0: where they are asked for
    zero_numbers_config numbers;
    zero_comm_config comm;
    zero_start_config start;
    zero_debug_config debug;
} zero_config;

// Returns the defaults: stage 0, fp32, the processor, one micro-batch, prefetch 1, overlap 0.
zero_config zero_defaults(void);

// Returns how many CUDA devices the plugin can use on this machine, at least 1; or a negative error whose
// sentence says what is missing: built without CUDA, no driver, no device, or none of compute capability 8.0
// or newer.
int zero_cuda_devices(void);

// Returns 0: *config has taken over what a DeepSpeed configuration file (JSON; comments, and commas before a
// closing bracket, are allowed) asks of the plugin: zero_optimization.stage; .reduce_bucket_size (0: every
// unit alone); .overlap_comm; .stage3_prefetch_bucket_size (0: prefetch 0; above: at least 1); bf16.enabled
// and fp16.enabled (dtype); fp16's loss_scale, initial_scale_power, loss_scale_window, hysteresis,
// consecutive_hysteresis, min_loss_scale; gradient_accumulation_steps (micro_batches);
// communication_data_type (fp32: reduce_fp32 1; bf16 or fp16, where gradients travel as that by themselves:
// 0). A key that is absent, null or "auto" leaves its setting as it is; a key that asks for what the plugin
// does anyway is taken. All else is ZERO_ERR_ARGUMENT, with file, line, key and value: what the trainer sets
// (batch sizes, learning rate, clipping), what is not built, unknown keys. ZERO_ERR_IO: the file cannot be
// read. *config comes from zero_defaults(); after an error it is unchanged. Every rank reads the file for
// itself.
int zero_config_from_file(zero_config *config, const char *path);
// The same from the environment: ZERO_STAGE=0, 1, 2 or 3, and ZERO_CONFIG=path of such a file; unset or
// empty, they change nothing. A file that asks for another stage than ZERO_STAGE is ZERO_ERR_ARGUMENT.
int zero_config_from_env(zero_config *config);

// (collective) Returns 0 and a plugin in *z that is the caller's to destroy, or an error and NULL.
// ZERO_ERR_ARGUMENT: a setting or a row of the tables, which the sentence names. Connects the ranks and
// allocates the model states, all 0: zero_set or zero_load comes next. All ranks pass the same settings and
// tables, or all of them fail, as in zero_same, before anything is allocated; they may differ in device
// numbers and streams, overlap, poison, trace_events, and in how they were started. The tables are copied,
// strings included. An MPI that is initialised is used as it is (with overlap at MPI_THREAD_SERIALIZED at
// least); otherwise, where ranks start by MPI, it is initialised here and finalised by zero_destroy, which
// MPI allows once in a process.
int zero_create(zero **z, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units);
// (collective unless after a failure) Waits for what is under way and frees everything: every pointer that
// came from z is invalid then. NULL is allowed.
void zero_destroy(zero *z);

// -------- ranks

// What the launcher (Open MPI, PMIx, Slurm, RANK and WORLD_SIZE) says in the environment, before or without
// zero_create: rank 0 of 1, 1 on this node, without a launcher. All three pointers are written.
void zero_launched_as(int *rank, int *ranks, int *ranks_on_node);
// Return this rank's number, from 0, and how many ranks there are: the same from zero_create to zero_destroy.
int zero_rank(const zero *z);
int zero_ranks(const zero *z);
// (collective) Returns 0 when all ranks have come here.
int zero_barrier(zero *z);
// (collective) Returns 0 and in values[0..n), n from 1 to 64, their sums over the ranks: added in rank order,
// the same bits on all ranks. For losses, counts, decisions that all ranks must take alike. Allowed at any
// time, between hooks too.
int zero_sum(zero *z, double *values, int n);
// (collective) Returns 0 and in data, of `bytes` bytes on every rank, what rank `root` has in it. Allowed at
// any time.
int zero_broadcast(zero *z, int root, void *data, size_t bytes);
// (collective) Returns 0 when all ranks pass the same text: lines "name = value", at most 16 MiB, each name
// once and in one order. Else ZERO_ERR_ARGUMENT on all ranks, with the first line that differs: "rank 1 (host
// b) has threads = 8 and rank 0 (host a) has threads = 4". What must be alike before there is a plugin goes
// into config.same. Allowed at any time.
int zero_same(zero *z, const char *lines);
// After a failure: returns 1 on the rank that is to print, 0 on the others; z may be NULL. With a shared
// window the first rank that calls it gets the 1, and others that wait in a collective fail. Without one the
// ranks cannot agree: rank r returns 1 after r * 0.2 s, from the 15th on little more than 3 s, by when
// zero_end_all of an earlier one has most likely ended it. Connected by TCP, a rank that hears that another
// one has ended the job ends here, with that one's status, as MPI's launcher would end it. With NULL the
// launcher's rank 0 gets the 1; without MPI, where zero_create has failed on all ranks, the lowest that is
// left, and the others end here a second later.
int zero_first_to_fail(zero *z);
// Ends all ranks of the job with this exit status, and does not return. z may be NULL: then this process
// exits, and the launcher ends the others where status is not 0 (srun with --kill-on-bad-exit).
void zero_end_all(zero *z, int status);

// -------- hooks

// A use of a unit is what lies between a pre hook and its post hook. One unit may be open for forward and
// backward together, and several units at once (config.max_open). A hook out of order is ZERO_ERR_MISUSE,
// with hook, unit and rule in its sentence. All ranks open the same units in the same order, in validation
// and sampling too, whatever they compute in between.

// What a pass is: forward and backward of a training step, or forward only.
typedef enum { ZERO_TRAIN, ZERO_EVAL } zero_mode;

// Returns 0: a micro-batch has begun, number `micro` of `of`, counted from 0; of is at most
// config.micro_batches. It comes before every forward pass. ZERO_TRAIN, micro 0: a new step; what an
// unfinished one has collected is dropped. micro above 0: the next of the same step, after all backward uses
// of the one before. ZERO_EVAL: forward uses only, any number of them, outside of a step; micro and of are
// not looked at. ZERO_ERR_MISUSE: a unit is still open, or the order is another. The order of units is
// recorded per mode and is what prefetching follows; a changed order is learnt anew.
int zero_begin(zero *z, zero_mode mode, int micro, int of);
// (collective at stage 3) Returns 0 when the unit's parameters are there: from here to zero_post_forward
// zero_param gives pointers to them. At stage 3 the next units of the recorded order are on their way.
int zero_pre_forward(zero *z, int unit);
// (collective at stage 3) Returns 0: the use is closed and its pointers are invalid. At stage 3 the
// parameters are released, unless the unit is open for backward or is the one that backward begins with, and
// the next unit is gathered into their memory.
int zero_post_forward(zero *z, int unit);
// (collective at stage 3) Returns 0 when the parameters (as in zero_pre_forward) and the
// memory of the unit's gradients are there; the first use of a micro-batch finds it 0. Only in a ZERO_TRAIN
// pass. May wait for an earlier bucket's reduction.
int zero_pre_backward(zero *z, int unit);
// (collective at stage 3, and at the unit's last use of the micro-batch) Returns 0: the use is closed and its
// pointers are invalid. The last one hands the gradients to their bucket; a full bucket starts its reduction,
// at stages 0 and 1 in the last micro-batch only. At stage 3 the parameters are released first, and the
// gather of the next unit starts before that reduction.
int zero_post_backward(zero *z, int unit);

// Returns a pointer to the tensor's `elems` values of a layer, in config.dtype, contiguous, 256-byte aligned,
// as zero_set, zero_load or the last update left them; or NULL and an error while the unit is not open for
// reading. It belongs to the plugin, is valid until the post hook of the use that is open, and never to be
// kept: ask again in the next use. Not to be written.
void *zero_param(zero *z, int tensor, int layer);
// Returns a pointer to the gradient of the same values, in the same form; or NULL and an error while the unit
// is not open for backward. The trainer adds to it the gradient of this rank's own loss. It is 0 at the
// unit's first pre_backward of the micro-batch and keeps its contents from use to use until the last
// post_backward; the pointer is valid until the post hook of the open use. The plugin takes the mean over the
// ranks (added in rank order in fp32) and the sum over the micro-batches: with A of them the trainer scales
// its loss by 1/A, and with ZERO_F16 by zero_loss_scale too. With zero_tensor.written the first use finds
// anything there, with poison NaN, and must write every element.
void *zero_grad(zero *z, int tensor, int layer);

// -------- step

// What zero_reduce found: the same on all ranks, at every stage.
typedef struct {
    double grad_norm;   // L2 norm over all parameters of the mean gradient, before clipping, the loss scale
                        // taken out
    int finite;         // 0: an infinity or a NaN is in the gradients of some rank, and grad_norm is one
    double loss_scale;  // that this step's gradients carry: 1 but for ZERO_F16
} zero_info;

// Returns what the trainer multiplies its loss, and so its gradients, by in the step that comes next or is
// under way: 1 but for ZERO_F16. With a dynamic scale (Micikevicius et al., arXiv 1710.03740, section 3.2,
// with DeepSpeed's rules) an overflow, a step whose gradients are not finite, halves it, but for the first
// hysteresis - 1 ones since it last doubled; loss_scale_window steps without overflow double it.
double zero_loss_scale(const zero *z);

// The constants of an update: all ranks pass the same.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay;  // beta1 and beta2: at least 0, below 1
    float grad_clip;  // gradients are scaled so that the norm is at most this (Pascanu et al., arXiv
                      // 1211.5063); 0: never
    int t;            // number of this update, from 1, for the bias correction
} zero_hyper;

// (collective) Returns 0 when all reductions are done, with the norm in *info (NULL is allowed). After all
// backward uses of the last micro-batch, once in a step; ZERO_ERR_MISUSE names the unit whose uses are
// missing. zero_update or zero_discard comes next.
int zero_reduce(zero *z, zero_info *info);
// (collective) Returns 0: the step is over. AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) on
// what this rank owns, with the clipped gradients of zero_reduce, which must have come before, the loss scale
// taken out:
//     m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps) + lr
//     wd p
// wd is 0 for tensors without decay. The units are updated in the order of the table, at stage 3 in the order
// in which the last training pass first used them. At stages 1 and 2 the gather of a unit's new parameters
// starts as soon as its AdamW is done (on CUDA: queued); at stage 3 the first unit's gather does, unless
// prefetch is 0. With overlap the unit's next use waits for it, the update does not. With ZERO_F16, gradients
// that are not finite update nothing: the step ends as with zero_discard.
int zero_update(zero *z, const zero_hyper *hyper);
// Returns 0: the step is over and has changed nothing but the loss scale (zero_loss_scale). In place of
// zero_update, for gradients that are not wanted. ZERO_ERR_ARGUMENT, of zero_update too: they have overflowed
// at min_loss_scale.
int zero_discard(zero *z);
// (collective) zero_reduce, then zero_update, whatever the gradients hold: a trainer that wants to stop at an
// infinity calls the two itself (with ZERO_F16 zero_update does not use one). Returns what they return; info
// may be NULL.
int zero_step(zero *z, const zero_hyper *hyper, zero_info *info);

// -------- values in and out

// In fp32, and with no_master, the parameter is its own master: ZERO_MASTER and ZERO_PARAM are the same.
// ZERO_GRADIENT: the mean over the ranks and sum over the micro-batches, before clipping; with ZERO_F16 it
// still carries the loss scale.
typedef enum { ZERO_PARAM, ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_GRADIENT } zero_value;

// Returns 0: elements [offset, offset + n) of a tensor's layer are values[0..n), given in fp32 and rounded to
// what is stored. Every rank passes the same values and keeps what it holds; sends nothing. ZERO_PARAM sets
// the master too, ZERO_MASTER only the master; gradients cannot be set. Outside of a step, with no unit open.
// ZERO_ERR_ARGUMENT: the range; ZERO_ERR_MISUSE: the tensor, the layer, the moment.
int zero_set(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, const float *values);
// (collective) Returns 0 and in values[0..n), on every rank, the same elements as fp32. Streams through the
// staging window: nothing is ever gathered whole. Errors and moment as for zero_set, but ZERO_GRADIENT is
// there between zero_reduce and zero_update, and only then.
int zero_get(zero *z, zero_value what, int tensor, int layer, int64_t offset, int64_t n, float *values);

// (collective) Returns 0 and in hex, on every rank, 16 digits and a 0: XXH3-64 of the table of XXH3-64
// digests of every tensor of every layer in tensor-major order: of the parameters as stored for compute (full
// = 0), or of the master weights and both moments (full = 1). Equal values give equal digests at any stage
// and any number of ranks; the dtype counts. Outside of a step.
int zero_hash(zero *z, int full, char hex[17]);

// (collective) Returns 0 when this rank's masters and moments, and `user_bytes` bytes of the trainer's own,
// are on disk under `path`, which differs from rank to rank. Written beside it as path.tmp, synced, and
// renamed: the file is complete or not there. All ranks fail if one does, with its sentence; files of the
// others may be there all the same, so a trainer gives each save paths of its own, and marks it as good only
// after the 0. Outside of a step.
int zero_save(zero *z, const char *path, const void *user, size_t user_bytes);
// (collective) Returns 0 when the plugin and user[0..user_bytes) are what zero_save wrote: with the same
// tensors, units, ranks, dtype and user_bytes; the stage may differ. A file that is missing, damaged or of
// another model, or that was not saved together with rank 0's (known of files of version 3 on), is
// ZERO_ERR_IO on all ranks, found before anything has changed. Outside of a step, with no unit open.
int zero_load(zero *z, const char *path, void *user, size_t user_bytes);

// -------- memory and traffic

// Model states (parameters, gradients, optimizer state), the plugin's working buffers, the trainer's
// activations; last, their number.
typedef enum { ZERO_STATES, ZERO_WORKING, ZERO_ACTIVATIONS, ZERO_MEMORY_CLASSES } zero_memory_class;

// Returns `bytes` bytes of zeroed memory of the configuration's device, 4096-byte aligned (256 on CUDA), or
// NULL with the sentence set: what was asked for, what is held, on CUDA what the device has. It is the
// trainer's until zero_destroy, which frees it. It is counted, rounded up to pages, under class and purpose,
// a string that is copied: so the memory table holds every byte of plugin and trainer, small tables apart.
void *zero_alloc(zero *z, zero_memory_class class_, const char *purpose, size_t bytes);
// Returns 0 and line i, from 0, of the memory table, or ZERO_ERR_ARGUMENT after the last. Allocations of one
// class, purpose and tier are one line; its string is valid until zero_destroy. ZERO_DEVICE is the memory of
// the configuration's device, with ZERO_CPU the only tier there is; ZERO_HOST what a CUDA run keeps in the
// host's memory, to stage what goes to other ranks and to files.
typedef enum { ZERO_DEVICE, ZERO_HOST } zero_tier;
typedef struct {
    const char *purpose;
    zero_memory_class class_;
    size_t bytes;
    zero_tier tier;
} zero_memory_line;
int zero_memory(const zero *z, int i, zero_memory_line *line);
// Returns the bytes of a class that this rank holds now, in all tiers.
size_t zero_memory_bytes(const zero *z, zero_memory_class class_);
// Returns the bytes of model states that the formula (ZeRO, arXiv 1910.02054, section 5) gives a rank at
// `stage`, 0 to 3, which need not be the one in use, with these tables, ranks, dtype and micro-batches; no
// padding.
size_t zero_states_formula(const zero *z, int stage);
// The same before there is a plugin: for a configuration (of it dtype, no_master and micro_batches count),
// parameters and ranks.
size_t zero_states_bytes(const zero_config *config, int64_t parameters, int ranks, int stage);
// Returns 0 and in *left the bytes that this process can still get of the configuration's device (of the CUDA
// device that is current; of the processor's memory what the system calls available), or ZERO_ERR_DEVICE,
// ZERO_ERR_IO.
int zero_memory_left(const zero_config *config, size_t *left);

// What a rank sends bytes for; the last is the number of the others.
typedef enum {
    ZERO_FOR_STEP,
    ZERO_FOR_EVAL,
    ZERO_FOR_CHECKPOINT,
    ZERO_FOR_HASH,
    ZERO_FOR_SCALARS,
    ZERO_TRAFFIC_PURPOSES
} zero_purpose;
// Writes to *t the bytes that this rank has sent since zero_create, counted where they are copied or sent.
// Waits for what is under way. The gather of updated parameters at stages 1 and 2 belongs to the step that
// made them. What stage 3 gathers before its pass begins counts as that pass's, from the unit's first use on;
// if zero_set or zero_load comes first, and so the gather was in vain, it counts as a step's.
typedef struct {
    int64_t all_gather[ZERO_TRAFFIC_PURPOSES], reduce_scatter[ZERO_TRAFFIC_PURPOSES],
        other[ZERO_TRAFFIC_PURPOSES];
} zero_traffic;
void zero_get_traffic(zero *z, zero_traffic *t);
// Returns the bytes, padding included, that a rank sends in a training step of this many micro-batches, from
// the tables alone (ZeRO, section 7; the naive path, which sends everything to everybody, excepted). At stage
// 3 it takes the forward pass to end with the unit that is used more than once, if there is one, as in a net
// with tied weights; where it does not, that unit is gathered once more.
typedef struct {
    int64_t all_gather, reduce_scatter;
} zero_step_traffic;
zero_step_traffic zero_expected_traffic(const zero *z, int micro_batches);

// Writes to *e what was settled at creation, for the trainer's start table. The string is valid until
// zero_destroy.
typedef struct {
    int64_t bucket_elems, bucket_bytes;  // largest bucket in effect, and the bytes of all bucket buffers
    int64_t num_parameters;              // without padding
    int slots;                           // stage 3: gathered single-use units there is room for
    const char *comm;  // "self", "mpi, shared window", the same "and direct reads", "mpi, messages (...why)",
                       // "tcp, ..", "nccl .."
    const char *device;   // "cpu", or the CUDA device's own name
    int cuda_device;      // its number, -1 on the processor
    int ranks_on_host;    // on this rank's
    int ranks_on_device;  // on this rank's CUDA device; 1 on the processor
} zero_effective;
void zero_get_effective(const zero *z, zero_effective *e);

// -------- trace

// An event that has ended (on CUDA: whose work has been queued; a profiler shows when it ran, under the same
// names): its unit, its thread (1: the progress thread, else 0), seconds since zero_create. ZERO_EV_UPDATE:
// each unit's AdamW, and with unit -1 the whole update. ZERO_EV_WAIT: a call waited for the progress thread
// to finish the gather or reduction of the unit (a bucket's first), or, with unit -1, a collective of no
// unit, such as a sum of scalars. Collectives run in the order in which they were started: the progress
// thread's own events tell which ones took the time.
typedef enum {
    ZERO_EV_FORWARD,
    ZERO_EV_BACKWARD,
    ZERO_EV_GATHER,
    ZERO_EV_REDUCE,
    ZERO_EV_UPDATE,
    ZERO_EV_WAIT,
    ZERO_EV_KINDS
} zero_event_kind;
typedef struct {
    zero_event_kind kind;
    int unit;
    int thread;
    double start_s, end_s;
} zero_event;
// Returns 0 and event i, from 0, of this rank, in the order in which they ended, or ZERO_ERR_ARGUMENT after
// the last. config.trace_events are kept, later ones are not. With overlap, only between steps and after a
// zero_barrier.
int zero_trace_event(const zero *z, int i, zero_event *e);
// Returns 0 when this rank's events are in the file `path`, as JSON for chrome://tracing or Perfetto; the
// path differs from rank to rank. Waits for collectives under way; a file that cannot be written is
// ZERO_ERR_IO and not left half-written.
int zero_trace_write(zero *z, const char *path);

#ifdef __cplusplus
}
#endif
#endif
