// The settings of zero_create. Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_CONFIG_H
#define LLMC_ZERO_CONFIG_H
#include <stddef.h>
#include <stdint.h>
#include "zero_optimizer.h"

// -------- settings

typedef enum { ZERO_F32, ZERO_BF16, ZERO_F16 } zero_dtype;  // stored as float, and as uint16_t
typedef enum { ZERO_CPU, ZERO_CUDA } zero_device;           // results are bit-identical on both

// Precision, and the loss scale of ZERO_F16.
typedef struct {
    zero_dtype dtype;            // of parameters and gradients; 16-bit types keep sharded fp32 master weights
    int no_master;               // 1: no masters; the update rounds stochastically. Needs ZERO_BF16
    unsigned rounding_seed;      // the rounding noise depends on this seed, t, tensor, layer and element
    double loss_scale;           // above 0: constant; 0: dynamic, set by the next five
    int initial_scale_power;     // the scale starts at 2 to this power, 0 to 126
    int loss_scale_window;       // steps without overflow before it doubles, at least 1
    int hysteresis;              // overflows before it halves, at least 1
    int consecutive_hysteresis;  // 1: a step without overflow resets the count; 0: only doubling does
    double min_loss_scale;       // an overflow at this scale is an error, at least 2^-126
} zero_numbers_config;

// How ranks exchange data.
typedef struct {
    int64_t window_bytes;  // staging per rank, 64 KiB to 16 MiB, shared between the ranks of a node; 0: up
                           // to 4 MiB as needed, with NCCL at most 256 MiB for all ranks together
    int shared_window;     // 1: shared memory if all ranks are on one node; 0: messages
    int nccl;  // with ZERO_CUDA, 1: NCCL; 0: through the host; -1: NCCL if all ranks can use it (if not,
               // zero_job.comm has the reason). See docs/internals/nccl.md
    int nccl_memory;  // needs nccl 1. 1: NCCL allocates what collectives move, and does not copy it on the
                      // way; 0: cudaMalloc
    int reduce_nccl;  // needs nccl 1. 1: NCCL sums, in an order of its choice; 0: tree order
    int reduce_fp32;  // 1: send 16-bit gradients as fp32, twice the bytes. The sums stay bit-identical unless
                      // reduce_nccl is set; NCCL then sums in fp32
    double timeout_s;  // 0.001 to 1e6; a collective that takes longer is an error
} zero_comm_config;

// The ranks of the job (docs/multi-node.md). Under mpirun or srun --mpi=pmix they are those that the launcher
// has started; without a launcher this process is the only rank, and MPI is not used.
typedef struct {
    int rank;          // expected number of this rank, -1: any; zero_make_plan: the rank, -1: rank 0
    int ranks;         // expected number of ranks; 0: any
    void *mpi_comm;    // MPI_Comm *, duplicated by zero_create; NULL: MPI_COMM_WORLD
    const char *same;  // more lines that must be the same on all ranks, see zero_require_same; NULL: none
} zero_start_config;

// Where a state resides: on the configured device (host memory if ZERO_CPU), in host memory, or on NVMe.
typedef enum { ZERO_DEVICE, ZERO_HOST, ZERO_NVME } zero_tier;

// Home tiers of the model states. States off the device are copied to it when they are needed. The bits are
// the same on every tier.
typedef struct {
    zero_tier params;        // stage 3: each rank's shards of the parameters
    zero_tier optimizer;     // stage 1 and above: masters and moments; the update runs where they reside
    zero_tier gradients;     // stage 2 and above: reduced shards; no farther from the device than `optimizer`
    double optimizer_ratio;  // the fraction of the optimizer states moved off the device, 0 to 1
    int64_t params_in_host;  // with params on NVMe: elements per rank kept in host memory
    int64_t sub_group_size;  // maximum number of elements read, updated and written at once
    int delayed_update;  // from this update (zero_hyper.t) on, each update runs during the next step, which
                         // still uses the old parameters; 0: no delay
    const char *nvme;    // folders on the disks, separated by commas; blocks alternate between them
    int64_t nvme_block_bytes;  // size of a request, a multiple of 4096, at least 512 KiB
    int nvme_depth;            // requests in flight
    int nvme_threads;          // for reads and writes if the kernel has no io_uring
    int nvme_verify;           // 1: verify the checksum of every block read
} zero_offload_config;

// For debugging and measuring.
typedef struct {
    int naive;         // 1: the naive path, stage 0 only: all-reduce everything, then update everything
    int poison;        // 1: fill memory that must not be read with NaN; -1: only if ZERO_POISON is 1
    int check_steps;   // how many of the first training steps are checked: see zero_check_batch; 0: none; -1:
                       // all if ZERO_CHECK is 1, none if it is 0, otherwise only what takes almost no time
    int trace_events;  // maximum number of events for zero_trace_write; 0: no trace
} zero_debug_config;

// The settings of zero_create, with the defaults and ranges of settings.def; zero_defaults() fills them in.
typedef struct {
    size_t size;            // sizeof(zero_config), set by zero_defaults; zero_create refuses any other value
    int stage;              // 0 (plain data parallelism) to 3
    int inference;          // 1: parameters only, for zero_begin_eval; no training
    int micro_batches;      // maximum per step; above 1, gradients are summed in fp32
    int accumulate_layers;  // 1: all micro-batches of a step pass a unit during each of its uses, see
                            // zero_post_micro; 0: one micro-batch after the other passes all units
    zero_device device;     // ZERO_CPU or ZERO_CUDA
    int cuda_device;        // device number; -1: the rank's number on its node, modulo the number of devices
    void *cuda_stream;      // cudaStream_t of the trainer's kernels; NULL: the default stream
    int64_t reduce_bucket_size;  // minimum elements per bucket; 0: the largest single-use unit
    int prefetch;                // stage 3: units gathered ahead in the recorded order, 0 to 1024
    int param_group;       // stage 3: parameters are sharded over so many consecutive ranks, all else over
                           // all ranks. Divides their number; 0: all ranks
    int max_open;          // how many single-use units may be open at once, 1 to 1024: slots at stage 3,
                           // and above 2 bucket buffers
    size_t memory_beside;  // ZERO_CPU: bytes that the trainer allocates itself; zero_create counts them when
                           // it checks whether everything fits in memory
    zero_update_with update_with;  // the trainer's optimizer (zero_optimizer.h); NULL: AdamW
    void *update_ctx;              // its first argument, which must stay valid until zero_destroy
    int update_states;             // its number of fp32 states per parameter, 0 to 2; AdamW has 2
    const char *update_name;       // its name in ASCII; checkpoints record it, and one with another name is
                                   // refused. NULL: not recorded, loads all. AdamW is "AdamW". Valid until
                                   // zero_destroy
    int async_save;                // 1: reserve host memory for zero_save_begin's copy of this rank's file
    int overlap;  // 1: collectives run while the trainer computes; 0: within the call that starts them
    zero_numbers_config numbers;
    zero_comm_config comm;
    zero_start_config start;
    zero_offload_config offload;
    zero_debug_config debug;
    const struct zero_machine *machine;  // not NULL: a rank in virtual time (zero_virtual.h), which is rank
                                         // start.rank of start.ranks; valid until zero_destroy
} zero_config;

#endif
