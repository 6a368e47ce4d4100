// Where the big arrays lie and who computes on them: the processor (device/cpu.c) or a CUDA device
// (device/cuda.c). The engine says what is to be done and on which stream; on the processor it is done when
// the call returns, on CUDA it is queued, and `wait` waits for it.
//
//   COMPUTE   the trainer's stream: what hooks clear, add up and update is ordered with the trainer's own
//   kernels COMM      the plugin's: copies and sums of the collectives, beside the trainer's kernels GATHER
//   the plugin's too: gathers by NCCL, beside reductions
//
// Events order the two: see progress.c. Every operation gives the same bits on both devices (kernels.h says
// which).
#ifndef LLMC_ZERO_DEVICE_H
#define LLMC_ZERO_DEVICE_H
#include "kernels.h"
#include "../zero.h"

typedef enum { COMPUTE, COMM, GATHER, DEVICE_STREAMS } device_stream;
typedef struct device device;

// Unless a comment says otherwise: 0, or a negative error with the sentence set.
typedef struct {
    void *(*alloc)(device *d, size_t bytes,
                   const char **why);  // zeroed, page-aligned; or NULL and the reason
    void (*release)(device *d, void *p, size_t bytes);
    int (*pin)(device *d, void *host,
               size_t bytes);  // host memory that copies may go to and from while the host goes on
    void (*unpin)(device *d, void *host);
    int (*enter)(device *d);                  // the calling thread is going to use the device
    int (*wait)(device *d, device_stream s);  // the host waits until everything queued is done
    int (*create_event)(device *d, void **event);
    void (*destroy_event)(device *d, void *event);
    int (*record)(device *d, void *event, device_stream s);
    int (*order)(device *d, device_stream s,
                 void *event);  // what is queued on s from here on comes after the event's last record
    void (*mark)(device *d, const char *what,
                 const char *name);  // a named range begins, for a profiler; NULL: the last one ends

    int (*copy)(device *d, device_stream s, void *to, const void *from,
                size_t bytes);  // either may be host memory, pinned if it lives on
    int (*clear)(device *d, device_stream s, void *x, size_t bytes);
    int (*clear_stretches)(device *d, device_stream s, zero_dtype type, void *x, const stretches *of_x);
    int (*fill_nan)(device *d, device_stream s, void *x, size_t bytes);
    int (*convert)(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype from_type,
                   const void *from, int64_t n);
    int (*sum_ranks)(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                     const void *const *parts, int ranks, float scale, int64_t n, int add);
    int (*accumulate)(device *d, device_stream s, float *to, zero_dtype type, const void *from, int64_t n,
                      int first);
    int (*sum_squares)(device *d, device_stream s, const norm_table *t, zero_dtype type, const void *x);
    int (*adamw)(device *d, device_stream s, const adamw_constants *c, const adamw_arrays *a,
                 const adamw_table *t);
} device_functions;

struct device {
    const device_functions *f;
    int asynchronous;    // operations are queued, and the host cannot read the memory
    int untabled;        // ranks that sum_ranks takes without `table`; 0: any number
    const void **table;  // NULL; or (ranks) memory of the device for sum_ranks, which is then called on one
                         // stream only
    int number;          // of the CUDA device; -1: the processor
    unsigned char uuid[16];  // of the CUDA device
    char name[128];          // "cpu", "NVIDIA H100 80GB HBM3"
    void *state;             // of the implementation
};

// The device that the configuration asks for; node_rank chooses among several.
int device_open(device *d, const zero_config *config, int node_rank);
void device_close(device *d);
// The processor: what the host's own memory is handled with, whatever the device.
extern device device_host;

// The host's view of n bytes of the device's memory: the memory itself, or `staging`, into which they have
// been copied. NULL: the sentence is set. The streams have been waited for before.
const void *device_view(device *d, const void *x, size_t bytes, void *staging);
// Where the host writes what is to become x: x itself, or `staging`, which device_commit then copies.
static inline void *device_target(const device *d, void *x, void *staging) {
    return d->asynchronous ? staging : x;
}
int device_commit(device *d, void *x, size_t bytes, const void *staging);
// Copies from the host's memory, whatever the device, and waits for it.
int device_set(device *d, void *to, const void *from, size_t bytes);

// device/cuda.c
int device_cuda_open(device *d, const zero_config *config, int node_rank);
void device_cuda_close(device *d);
int device_cuda_count(void);  // see zero_cuda_devices
int device_cuda_left(size_t *left);

#endif
