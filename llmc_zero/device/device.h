// The device that stores the large arrays and computes on them: the CPU (device_cpu.c) or a CUDA device
// (device_cuda.c). On the CPU an operation is done when the call returns; CUDA queues it on the given stream,
// and `wait` waits for it. Every operation gives the same bits on both.
#ifndef LLMC_ZERO_DEVICE_DEVICE_H
#define LLMC_ZERO_DEVICE_DEVICE_H
#include "kernels.h"
#include "../zero.h"

// Streams. Events order them; see tasks.h.
typedef enum {
    COMPUTE,  // the trainer's: work queued by hooks runs in order with the trainer's kernels
    COMM,     // the plugin's: copies and sums of the collectives, concurrent with the trainer's kernels
    GATHER,   // the plugin's: gathers by NCCL, concurrent with reductions
    DOWN,     // the plugin's: copies of model states to the host, concurrent with all others
    UP,       // the plugin's: copies of model states to the device, and their updates there
    DEVICE_STREAMS,
    PROCESSOR = DEVICE_STREAMS  // no stream: CPU threads of the host (tiers/state.h)
} device_stream;
typedef struct device device;

// Unless a comment states otherwise, each returns 0 or a negative error.
typedef struct {
    // Returns zeroed, page-aligned memory, or NULL and the reason.
    void *(*alloc)(device *d, size_t bytes, const char **why);
    void (*release)(device *d, void *p, size_t bytes);
    // Pins host memory, so that copies to and from it run while the host continues.
    int (*pin)(device *d, void *host, size_t bytes);
    void (*unpin)(device *d, void *host);
    int (*enter)(device *d);  // each thread calls it before it uses the device

    int (*wait)(device *d, device_stream s);  // returns when everything queued on s is done
    int (*create_event)(device *d, void **event);
    void (*destroy_event)(device *d, void *event);
    int (*record)(device *d, void *event, device_stream s);
    // Work queued on s from now on runs after the event's last record.
    int (*order)(device *d, device_stream s, void *event);
    int (*wait_event)(device *d, void *event);     // returns when the event's last record is done
    int (*create_timer)(device *d, void **timer);  // an event that also records the time
    // Sets *seconds to the time between the last records of two timers, both done.
    int (*seconds_between)(device *d, void *from, void *to, double *seconds);
    // Begins a named range for profilers; what NULL: ends the last range.
    void (*mark)(device *d, const char *what, const char *name);

    // to and from may be host memory. It must be pinned if it can change before the copy is done.
    int (*copy)(device *d, device_stream s, void *to, const void *from, size_t bytes);
    int (*clear)(device *d, device_stream s, void *x, size_t bytes);
    int (*clear_stretches)(device *d, device_stream s, zero_dtype type, void *x, const stretches *of_x);
    int (*fill_nan)(device *d, device_stream s, void *x, size_t bytes);
    int (*sum_ranks)(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                     const rank_parts *parts, float scale, int64_t n, const float *plus);
    // Adds the squares of the stretches, in pieces of SUM_BLOCK, to an exact sum.
    int (*add_squares)(device *d, device_stream s, uint64_t *words, const stretches *of_x, zero_dtype type,
                       const void *x);
    // AdamW, or the trainer's own update: then the segments are in host memory, and CUDA needs a->p.
    int (*update)(device *d, device_stream s, const own_update *own, const adamw_constants *c,
                  const adamw_arrays *a, const adamw_table *t);
} device_functions;

struct device {
    const device_functions *f;
    int asynchronous;        // 1: operations are queued, and the host cannot access the memory
    int number;              // CUDA device number; -1: the CPU
    int visible;             // number of CUDA devices that this process sees
    char bus_id[32];         // the bus address of the CUDA device, "0000:01:00.0"
    unsigned char uuid[16];  // of the CUDA device
    char name[128];          // "cpu", "NVIDIA H100 80GB HBM3"
    void *state;             // of the implementation
    // Set while other ranks can stall the device's streams (comm/nccl_wait.c), except COMPUTE: called every
    // 50 ms while the host waits, and ends the wait if it fails. NULL: none
    int (*check)(void *ctx);
    void *check_ctx;
    struct virtual_time *time;  // the clocks of a rank in virtual time; NULL: a real device
    int is_stalled;             // 1: a stream may never end; its memory stays until the process ends
};

// Opens the configured device; node_rank selects one if config->cuda_device is -1.
int device_open(device *d, const zero_config *config, int node_rank);
void device_close(device *d);
// The CPU, for operations on host memory with any configured device.
extern device device_host;

// Returns x, or a copy of it in `staging` if the host cannot read x; NULL after an error. The caller must
// have waited for the streams that write x.
const void *device_view(device *d, const void *x, size_t bytes, void *staging);
// Returns where the host must write the new contents of x: x, or `staging`, which device_commit copies to x.
static inline void *device_target(const device *d, void *x, void *staging) {
    return d->asynchronous ? staging : x;
}
int device_commit(device *d, void *x, size_t bytes, const void *staging);
// to[i] = from[i] in another dtype, or += from[i] in fp32 if add is 1: a sum over one rank.
static inline int device_convert(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                                 const void *from, int64_t n, int add) {
    const rank_parts one = { .ranks = 1, .own = from };
    return d->f->sum_ranks(d, s, to_type, to, type, &one, 1, n, add ? (const float *)to : NULL);
}
// Copies from host memory and waits until the copy is done.
int device_set(device *d, void *to, const void *from, size_t bytes);

// device_virtual.c
int device_virtual_open(device *d, const zero_config *config);
void device_virtual_close(device *d);
// An operation on the stream takes so long.
void device_virtual_run(device *d, device_stream s, double seconds);

// device_cuda.c
int device_cuda_open(device *d, const zero_config *config, int node_rank);
void device_cuda_close(device *d);
int device_cuda_count(void);  // see zero_cuda_devices
int device_cuda_left(size_t *left);

#endif
