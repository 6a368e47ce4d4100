// A CUDA device: memory, streams, events. Plain C on the CUDA runtime, without the kernels.
#ifdef ZERO_HAVE_CUDA
#include "device.h"
#include "../base/clock.h"
#include "../base/error.h"
#include "kernels_cuda.h"
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_MAJOR = 8 };  // compute capability 8.0; the kernels are compiled for 8.0 and newer

typedef struct {
    cudaStream_t streams[DEVICE_STREAMS];  // without overlap, all are the trainer's
    int n_created;                         // streams of the plugin, after the trainer's
} cuda_state;

static int result_of(cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return 0;
    cudaGetLastError();  // so that the next launch does not report this error again
    return zero_fail(ZERO_ERR_DEVICE, "CUDA: %s: %s (%s)", what, cudaGetErrorString(rc),
                     cudaGetErrorName(rc));
}
#define CUDA(call) result_of(call, #call)
#define CUDA_TRY(call) ZERO_TRY(CUDA(call))

static cudaStream_t stream_of(device *d, device_stream s) { return ((cuda_state *)d->state)->streams[s]; }
cudaStream_t device_cuda_stream(device *d, device_stream s) { return stream_of(d, s); }

static void *cuda_alloc(device *d, size_t bytes, const char **why) {
    static _Thread_local char text[160];
    void *p;
    size_t left, all;
    cudaError_t rc = cudaMalloc(&p, bytes);
    if (rc == cudaSuccess) {
        rc = cudaMemsetAsync(p, 0, bytes, stream_of(d, COMPUTE));
        if (rc == cudaSuccess) rc = cudaStreamSynchronize(stream_of(d, COMPUTE));
        if (rc == cudaSuccess) return p;
        cudaFree(p);
    }
    *why = text;
    if (rc != cudaErrorMemoryAllocation || cudaMemGetInfo(&left, &all) != cudaSuccess)
        snprintf(text, sizeof text, "%s", cudaGetErrorString(rc));
    else
        snprintf(text, sizeof text, "%.1f of the %.1f MiB of %s are free", left / 1048576.0, all / 1048576.0,
                 d->name);
    cudaGetLastError();  // so that the next launch does not report this error again
    return NULL;
}
// CUDA frees memory only when all work is done.
static void cuda_release(device *d, void *p, size_t bytes) {
    if (!d->is_stalled) cudaFree(p);
}

static int cuda_pin(device *d, void *host, size_t bytes) {
    return CUDA(cudaHostRegister(host, bytes, cudaHostRegisterDefault));
}
static void cuda_unpin(device *d, void *host) {
    if (!d->is_stalled) cudaHostUnregister(host);
}

static int cuda_enter(device *d) { return CUDA(cudaSetDevice(d->number)); }

// Polls an event, or all of the stream if it is NULL.
static int poll(device *d, device_stream s, void *event) {
    const double began = clock_now(), every = 50e-3;
    for (double now = began, next = began + every;; now = clock_now()) {
        cudaError_t rc = event ? cudaEventQuery(event) : cudaStreamQuery(stream_of(d, s));
        if (rc != cudaErrorNotReady) return result_of(rc, "a wait for the device");
        cudaGetLastError();  // the next launch must not report "not ready" as an error
        if (now > next) {
            ZERO_TRY(d->check(d->check_ctx));
            next = now + every;
        }
        clock_pause(now - began);
    }
}
static int cuda_wait(device *d, device_stream s) {
    if (d->is_stalled) return zero_fail(ZERO_ERR_DEVICE, "CUDA: a stream of the device is stalled");
    return d->check ? poll(d, s, NULL) : CUDA(cudaStreamSynchronize(stream_of(d, s)));
}

static int cuda_create_event(device *d, void **event) {
    return CUDA(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming));
}
static void cuda_destroy_event(device *d, void *event) {
    if (event) cudaEventDestroy(event);
}
static int cuda_record(device *d, void *event, device_stream s) {
    return CUDA(cudaEventRecord(event, stream_of(d, s)));
}
static int cuda_order(device *d, device_stream s, void *event) {
    return CUDA(cudaStreamWaitEvent(stream_of(d, s), event, 0));
}

static int cuda_wait_event(device *d, void *event) {
    return d->check ? poll(d, COMPUTE, event) : CUDA(cudaEventSynchronize(event));
}

static int cuda_create_timer(device *d, void **timer) { return CUDA(cudaEventCreate((cudaEvent_t *)timer)); }
static int cuda_seconds_between(device *d, void *from, void *to, double *seconds) {
    float ms = 0;
    CUDA_TRY(cudaEventElapsedTime(&ms, from, to));
    *seconds = ms / 1e3;
    return 0;
}

static void cuda_mark(device *d, const char *what, const char *name) {
    char text[96];
    if (!what) {
        nvtxRangePop();
        return;
    }
    snprintf(text, sizeof text, "%s %s", what, name);
    nvtxRangePushA(text);
}

static int cuda_copy(device *d, device_stream s, void *to, const void *from, size_t bytes) {
    return bytes ? CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(d, s))) : 0;
}
static int cuda_clear(device *d, device_stream s, void *x, size_t bytes) {
    return CUDA(cudaMemsetAsync(x, 0, bytes, stream_of(d, s)));
}
static int queue_clear_stretches(device *d, device_stream s, zero_dtype type, void *x,
                                 const stretches *of_x) {
    return CUDA(cuda_clear_stretches(stream_of(d, s), type, x, of_x));
}
static int cuda_fill_nan(device *d, device_stream s, void *x, size_t bytes) {
    return CUDA(cudaMemsetAsync(x, 0xff, bytes, stream_of(d, s)));  // all ones is a NaN in every dtype
}

static int queue_sum_ranks(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                           const rank_parts *parts, float scale, int64_t n, const float *plus) {
    return CUDA(cuda_sum_ranks(stream_of(d, s), to_type, to, type, parts, scale, n, plus));
}
static int queue_add_squares(device *d, device_stream s, uint64_t *words, const stretches *of_x,
                             zero_dtype type, const void *x) {
    return CUDA(cuda_add_squares(stream_of(d, s), words, of_x, type, x));
}

// The own update queues its kernels on the stream, so the next piece can use the room again.
static int queue_piece(device *d, device_stream s, const own_update *own, float grad_scale,
                       const adamw_arrays *a, zero_piece *piece, int64_t at) {
    const rank_parts gradient = { .ranks = 1, .own = (const char *)a->g + at * dtype_bytes(a->g_type) };
    ZERO_TRY(queue_sum_ranks(d, s, ZERO_F32, own->room, a->g_type, &gradient, grad_scale, piece->n, NULL));
    piece->gradient = own->room;
    piece->on_device = 1;
    piece->stream = stream_of(d, s);
    own->update(own->ctx, piece);
    ZERO_TRY(result_of(cudaGetLastError(), "config.update_with"));
    if (!a->low) return 0;
    char *low = (char *)a->low + at * dtype_bytes(a->low_type);
    return device_convert(d, s, a->low_type, low, ZERO_F32, a->p + at, piece->n, 0);
}

static int queue_update(device *d, device_stream s, const own_update *own, const adamw_constants *c,
                        const adamw_arrays *a, const adamw_table *t) {
    if (!own->update) return CUDA(cuda_adamw(stream_of(d, s), c, a, t));
    for (const adamw_segment *g = t->segments; g < t->segments + t->n; g++)
        for (int64_t at = 0, n; at < g->elems; at += n) {
            n = g->elems - at < own->room_elems ? g->elems - at : own->room_elems;
            zero_piece piece = own_piece(own, a, g, at, n);
            ZERO_TRY(queue_piece(d, s, own, c->grad_scale, a, &piece, g->offset + at));
        }
    return 0;
}

static const device_functions cuda_functions = {
    cuda_alloc,
    cuda_release,
    cuda_pin,
    cuda_unpin,
    cuda_enter,
    cuda_wait,
    cuda_create_event,
    cuda_destroy_event,
    cuda_record,
    cuda_order,
    cuda_wait_event,
    cuda_create_timer,
    cuda_seconds_between,
    cuda_mark,
    cuda_copy,
    cuda_clear,
    queue_clear_stretches,
    cuda_fill_nan,
    queue_sum_ranks,
    queue_add_squares,
    queue_update,
};

static int none_there(const char *why) {
    zero_fail(ZERO_ERR_DEVICE, "%s", why);
    return 0;
}

int device_cuda_count(void) {
    int n = 0, driver = 0;
    struct cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceCount(&n);
    cudaGetLastError();
    if (rc == cudaErrorNoDevice || (rc == cudaSuccess && !n))
        return none_there("there is no CUDA device on this machine");
    if (rc == cudaErrorInsufficientDriver) {
        if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
            return none_there("no NVIDIA driver is loaded on this machine");
        return zero_fail(ZERO_ERR_DEVICE,
                         "the NVIDIA driver is too old: it supports at most CUDA %d.%d; install a newer one",
                         driver / 1000, driver % 1000 / 10);
    }
    ZERO_TRY(result_of(rc, "cudaGetDeviceCount"));
    for (int i = 0; i < n; i++) {
        CUDA_TRY(cudaGetDeviceProperties(&p, i));
        if (p.major < LEAST_MAJOR)
            return zero_fail(ZERO_ERR_DEVICE,
                             "device %d (%s) has compute capability %d.%d, but %d.0 or newer is needed; "
                             "CUDA_VISIBLE_DEVICES can exclude it",
                             i, p.name, p.major, p.minor, LEAST_MAJOR);
    }
    return n;
}

int device_cuda_left(size_t *left) {
    size_t all;
    return CUDA(cudaMemGetInfo(left, &all));
}

// Gives the plugin's streams priority, because the next layer waits for them.
static int open_streams(cuda_state *s, const zero_config *config) {
    int least, greatest;
    const int copies_states = config->offload.params || config->offload.optimizer;
    for (int i = 0; i < DEVICE_STREAMS; i++) s->streams[i] = config->cuda_stream;
    if (!config->overlap) return 0;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int i = COMPUTE + 1; i < (copies_states ? DEVICE_STREAMS : DOWN); i++) {
        CUDA_TRY(cudaStreamCreateWithPriority(&s->streams[i], cudaStreamNonBlocking, greatest));
        s->n_created++;
    }
    return 0;
}

int device_cuda_open(device *d, const zero_config *config, int node_rank) {
    struct cudaDeviceProp p;
    int devices = device_cuda_count();
    if (devices <= 0) return ZERO_ERR_DEVICE;
    int number = config->cuda_device < 0 ? node_rank % devices : config->cuda_device;
    if (number >= devices)
        return zero_fail(ZERO_ERR_ARGUMENT, "cuda_device %d: must be 0 to %d", number, devices - 1);
    cuda_state *s = calloc(1, sizeof *s);
    if (!s) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the device's state");
    *d =
        (device){ .f = &cuda_functions, .asynchronous = 1, .number = number, .visible = devices, .state = s };
    CUDA_TRY(cudaSetDevice(number));
    CUDA_TRY(cudaGetDeviceProperties(&p, number));
    snprintf(d->name, sizeof d->name, "%.*s", (int)sizeof d->name - 1, p.name);
    memcpy(d->uuid, p.uuid.bytes, sizeof d->uuid);
    CUDA_TRY(cudaDeviceGetPCIBusId(d->bus_id, sizeof d->bus_id, number));
    return open_streams(s, config);
}

void device_cuda_close(device *d) {
    cuda_state *s = d->state;
    while (s->n_created && !d->is_stalled) cudaStreamDestroy(s->streams[s->n_created--]);
    free(s);
}
#endif
