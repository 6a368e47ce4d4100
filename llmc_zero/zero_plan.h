// Memory, traffic and traces: planned before anything exists, and counted while it runs. Part of zero.h,
// which includes this file at its end.
#ifndef LLMC_ZERO_PLAN_INFO_H
#define LLMC_ZERO_PLAN_INFO_H
#ifdef __cplusplus
extern "C" {
#endif

// -------- memory and traffic

// Model states (parameters, gradients, optimizer state), the plugin's working buffers, the trainer's
// activations; last, their number.
typedef enum { ZERO_STATES, ZERO_WORKING, ZERO_ACTIVATIONS, ZERO_MEMORY_CLASSES } zero_memory_class;

// Returns zeroed memory that zero_destroy frees, or NULL and an error: with ZERO_DEVICE of the configured
// device, 4096-byte aligned (256 on CUDA); with ZERO_HOST of the host, pinned where there is a CUDA device,
// so that copies run beside its work. It counts under class and purpose in the memory table.
void *zero_alloc(zero *z, zero_tier tier, zero_memory_class class_, const char *purpose, size_t bytes);
// Bits: which collectives read or write memory in place.
typedef enum { ZERO_MOVED_BY_NONE = 0, ZERO_MOVED_BY_GATHERS = 1, ZERO_MOVED_BY_REDUCTIONS = 2 } zero_movers;
typedef struct {
    const char *purpose;
    zero_memory_class class_;
    size_t bytes;
    zero_tier tier;
    int moved_by;  // of zero_movers
    int assumed;   // in a plan: 1: zero_create may find it otherwise, see zero_make_plan
} zero_memory_line;
// Returns 1 and line i, from 0, of the memory table; 0, which is no failure, after the last. Allocations of
// one class, purpose and tier are one line, whose string is valid until zero_destroy.
int zero_memory(const zero *z, int i, zero_memory_line *line);
// Returns the bytes of a class that this rank holds now, in all tiers.
size_t zero_memory_bytes(const zero *z, zero_memory_class class_);
// Returns 0 and in *left the bytes that this rank can still get of the configuration's device: of the current
// CUDA device; or of the host's memory, which ranks_on_host ranks share evenly, as far as the limits of its
// cgroups and of the process allow. ZERO_ERR_DEVICE, ZERO_ERR_IO.
int zero_memory_left(const zero_config *config, int ranks_on_host, size_t *left);

// What a rank sends bytes for; the last is the number of the others.
typedef enum {
    ZERO_FOR_STEP,
    ZERO_FOR_EVAL,
    ZERO_FOR_CHECKPOINT,
    ZERO_FOR_HASH,
    ZERO_FOR_SCALARS,
    ZERO_TRAFFIC_PURPOSES
} zero_purpose;
typedef struct {
    int64_t all_gather[ZERO_TRAFFIC_PURPOSES], reduce_scatter[ZERO_TRAFFIC_PURPOSES],
        other[ZERO_TRAFFIC_PURPOSES];
} zero_traffic;
// Writes to *traffic the bytes that this rank has sent since zero_create, counted where they are copied or
// sent. Waits for what is under way. docs/details.md says which purpose a gather ahead belongs to.
void zero_traffic_info(zero *z, zero_traffic *traffic);
typedef struct {
    const char *comm;     // "one rank", "mpi, shared window", "tcp, messages (why no window)", "nccl, ..", ..
    const char *device;   // "cpu", or the CUDA device's own name
    int cuda_device;      // its number, -1 on the processor
    int ranks_on_host;    // on this rank's
    int open_start;       // 1: by TCP without a key, so that anyone who reached rank 0's port could take part
    int ranks_on_device;  // on this rank's CUDA device; 1 on the processor
} zero_job;
// Writes to *job how the ranks are connected and what they run on. Its strings are valid until zero_destroy.
void zero_job_info(const zero *z, zero_job *job);

typedef struct {
    const char *how;        // "io_uring, direct, 2 folders"; valid until zero_destroy; NULL: no files
    int64_t read, written;  // bytes, since zero_create
    double waited_s;        // that threads have waited for them, together
    // How often this rank's part of a unit was in memory when it was gathered (offload.params_in_host), and
    // how often not.
    int64_t gathers_from_memory, gathers_from_files;
    int64_t not_read;  // bytes that gathers from files got from the update instead, while it wrote them
    int64_t copied_down, copied_up;  // bytes of states, from a CUDA device to the host and back
} zero_files;
// Writes to *files what this rank has moved of states that lie in files on NVMe or, beside a CUDA device, in
// host memory. Waits for what is being written.
void zero_files_info(zero *z, zero_files *files);

// -------- plan

// Bytes of model states by the papers' formula (ZeRO, arXiv 1910.02054, section 5): for each parameter, whole
// on every rank and sharded among the ranks. No padding.
typedef struct {
    int whole, sharded;
    size_t bytes;
} zero_formula;

// What a rank holds and sends.
enum { ZERO_PLAN_LINES = 32 };
typedef struct {
    zero_memory_line lines[ZERO_PLAN_LINES];  // the memory table, but for what the trainer allocates
    int n_lines;
    size_t bytes[ZERO_MEMORY_CLASSES];  // of the lines
    zero_formula formulas[4];           // at stages 0 to 3
    int64_t parameters;                 // without padding
    int64_t bucket_elems;               // of the largest bucket of units used once
    int64_t bucket_bytes;               // of all bucket buffers
    int slots;                          // stage 3: gathered single-use units there is room for
    size_t nccl_bytes;                  // taken by NCCL: measured at creation, and 0 before
    // Bytes that the rank sends: ZERO_FOR_STEP and ZERO_FOR_SCALARS (the norm) in one training step of
    // config.micro_batches, ZERO_FOR_EVAL in one forward pass; and what of it goes to other nodes. Padding
    // is included. With inference, units used more than once are sent in the first pass only, and left out.
    zero_traffic traffic, traffic_between_nodes;
    int64_t file_read, file_written;  // bytes that a training step moves from and to files on NVMe; what is
                                      // read may be less, see zero_files.not_read
    int64_t copied_down, copied_up;  // bytes of states that it copies from a CUDA device to the host and back
} zero_plan;

// Returns 0 and in *plan the plan by which zero_create allocates with these settings and tables, for rank
// config.start.rank (-1: rank 0) of `ranks`, of which `ranks_on_node` are on its node; or ZERO_ERR_ARGUMENT.
// Starts nothing and allocates only small tables. Lines that depend on what is found later are marked as
// assumed: a shared window, NCCL, and NCCL's own memory, which is measured once it is connected and planned
// as 0 bytes.
int zero_make_plan(zero_plan *plan, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                   const zero_unit *units, int n_units, int ranks, int ranks_on_node);
// Writes to *plan the plan that z was created by, with what NCCL took.
void zero_plan_info(const zero *z, zero_plan *plan);

// -------- trace

// Returns 0 when this rank's events are in the file `path`, as JSON for chrome://tracing or Perfetto; the
// path differs from rank to rank. Waits for collectives. A file that cannot be written is ZERO_ERR_IO, and
// not left half-written.
int zero_trace_write(zero *z, const char *path);

#ifdef __cplusplus
}
#endif
#endif
