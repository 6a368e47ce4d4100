// Memory and traffic, planned before a run and counted during it, and traces. Part of zero.h, which includes
// this file.
#ifndef LLMC_ZERO_INFO_H
#define LLMC_ZERO_INFO_H
#ifdef __cplusplus
extern "C" {
#endif

// -------- memory and traffic

// Classes of memory: model states (parameters, gradients, optimizer state), the plugin's working buffers, and
// the trainer's activations.
typedef enum { ZERO_STATES, ZERO_WORKING, ZERO_ACTIVATIONS, ZERO_MEMORY_CLASSES } zero_memory_class;

// Returns zeroed memory that zero_destroy frees, or NULL and an error. ZERO_DEVICE: memory of the configured
// device, 4096-byte aligned (256 on CUDA). ZERO_HOST: host memory, pinned if the device is a GPU, so that
// copies can overlap with kernels. The memory table lists it under this class and purpose.
void *zero_alloc(zero *z, zero_tier tier, zero_memory_class class_, const char *purpose, size_t bytes);
// Bits: which collectives read or write a buffer in place.
typedef enum { ZERO_MOVED_BY_NONE = 0, ZERO_MOVED_BY_GATHERS = 1, ZERO_MOVED_BY_REDUCTIONS = 2 } zero_movers;
typedef struct {
    const char *purpose;
    zero_memory_class class_;
    size_t bytes;
    zero_tier tier;
    int moved_by;  // bits of zero_movers
    int assumed;   // 1: only in a plan; zero_create may still change it, see zero_make_plan
} zero_memory_line;
// Sets *line to line i of the memory table, counted from 0, and returns 1; returns 0 (not a failure) after
// the last. Allocations with the same class, purpose and tier share a line. The string is valid until
// zero_destroy.
int zero_memory(const zero *z, int i, zero_memory_line *line);
// Returns the bytes of a class that this rank holds now, in all tiers.
size_t zero_memory_bytes(const zero *z, zero_memory_class class_);
// Sets *left to the bytes that this rank can still allocate on the configured device: the current CUDA
// device, or host memory, shared evenly by ranks_on_host ranks within the limits of cgroups and of the
// process. Can fail with ZERO_ERR_DEVICE or ZERO_ERR_IO.
int zero_memory_left(const zero_config *config, int ranks_on_host, size_t *left);

// Why a rank sends bytes, or moves them to and from files.
typedef enum {
    ZERO_FOR_STEP,
    ZERO_FOR_EVAL,
    ZERO_FOR_CHECKPOINT,  // also zero_get, zero_set and zero_check_finite
    ZERO_FOR_HASH,
    ZERO_FOR_SCALARS,
    ZERO_FOR_UNUSED,  // stage 3: gathers ahead that no pass has used yet, or that none can use any more
    ZERO_TRAFFIC_PURPOSES
} zero_purpose;
typedef struct {
    int64_t all_gather[ZERO_TRAFFIC_PURPOSES], reduce_scatter[ZERO_TRAFFIC_PURPOSES],
        other[ZERO_TRAFFIC_PURPOSES];
} zero_traffic;
// Sets *traffic to the bytes that this rank has sent since zero_create, counted where they are copied or
// sent. Waits for pending collectives. Gathers ahead: see docs/reference/details.md.
void zero_traffic_info(zero *z, zero_traffic *traffic);
typedef struct {
    const char *comm;     // "one rank", "mpi, shared window", "mpi, messages (why no window)", ..
    const char *device;   // "cpu", or the name of the CUDA device
    int cuda_device;      // device number; -1 on a CPU
    int ranks_on_host;    // ranks on this rank's host
    int ranks_on_device;  // ranks that share this rank's CUDA device; 1 on a CPU
} zero_job;
// Sets *job to how the ranks are connected and where they run. Its strings are valid until zero_destroy.
void zero_job_info(const zero *z, zero_job *job);

typedef struct {
    const char *how;  // "io_uring, direct, 2 folders"; valid until zero_destroy; NULL: no files
    int64_t read[ZERO_TRAFFIC_PURPOSES], written[ZERO_TRAFFIC_PURPOSES];  // bytes, since zero_create
    // Bytes that gathers took from the update's buffers instead of reading them back. read + not_read depends
    // on no timing.
    int64_t not_read[ZERO_TRAFFIC_PURPOSES];
    double waited_s;                 // summed over all threads
    int64_t copied_down, copied_up;  // bytes of states copied from a CUDA device to the host, and back
} zero_files;
// Sets *files to the bytes that this rank has moved to and from files on NVMe and, on CUDA, host memory.
// Waits for the update, for gathers and for pending writes.
void zero_files_info(zero *z, zero_files *files);

// -------- plan

// Bytes of model states by the paper's formula (ZeRO, arXiv 1910.02054, section 5), without padding: per
// trained parameter, the bytes that every rank keeps, the bytes sharded among param_group ranks if they are
// fewer than all, and those sharded among all ranks; and the total per rank, which includes the parameters of
// frozen tensors.
typedef struct {
    int whole, grouped, sharded;
    size_t bytes;
} zero_formula;

// The planned memory and traffic of one rank.
enum { ZERO_PLAN_LINES = 40 };
typedef struct {
    zero_memory_line lines[ZERO_PLAN_LINES];  // the memory table without the trainer's allocations
    int n_lines;
    size_t bytes[ZERO_MEMORY_CLASSES];  // of the lines
    zero_formula formulas[4];           // at stages 0 to 3
    int64_t parameters;                 // including frozen ones, without padding
    int64_t bucket_elems;               // of the largest bucket of single-use units
    int64_t bucket_bytes;               // of all bucket buffers
    int slots;                          // stage 3: single-use units that can be gathered at once
    size_t nccl_bytes;                  // allocated by NCCL: measured by zero_create, 0 before
    // Bytes that the rank sends, in total and to other nodes, including padding: ZERO_FOR_STEP and
    // ZERO_FOR_SCALARS (the norm) in one training step of config.micro_batches, ZERO_FOR_EVAL in one forward
    // pass. With inference, units with several uses are sent only in the first pass, which is not counted.
    zero_traffic traffic, traffic_between_nodes;
    // Bytes per training step from and to files on NVMe: a step's zero_files.read + not_read, and written.
    // With delayed_update, a step whose update is delayed.
    int64_t file_read, file_written;
    int64_t copied_down, copied_up;  // bytes of states per step, from a CUDA device to the host, and back
} zero_plan;

// Sets *plan to what zero_create would allocate with these settings and tables on rank config.start.rank (-1:
// rank 0) of `ranks`, with `ranks_on_node` ranks on its node; or fails with ZERO_ERR_ARGUMENT. Connects to no
// other rank and allocates only small tables. Lines that zero_create may still change are marked as assumed:
// shared windows, NCCL, and NCCL's memory, which is planned as 0 bytes.
int zero_make_plan(zero_plan *plan, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                   const zero_unit *units, int n_units, int ranks, int ranks_on_node);
// Sets *plan to the plan of z, including the memory that NCCL has allocated.
void zero_plan_info(const zero *z, zero_plan *plan);

// -------- trace

// (collective) Rank 0 writes the events (debug.trace_events) of all ranks to the file `path`, as JSON for
// Perfetto or chrome://tracing. Waits for pending collectives, and needs about 200 bytes of memory per event.
// If it fails with ZERO_ERR_IO, it leaves no partial file. Times of different hosts are only as
// comparable as their clocks.
int zero_trace_write(zero *z, const char *path);

#ifdef __cplusplus
}
#endif
#endif
