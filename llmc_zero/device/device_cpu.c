// The CPU as a device: every operation is done when it returns, and the host can read all memory. The
// functions that choose between devices are at the end.
#include "device.h"
#include "room.h"
#include "../base/error.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

// Begins with a large page, if it holds one: these save TLB misses, and a disk transfers fewer segments.
static void *cpu_alloc(device *d, size_t bytes, const char **why) {
    enum { LARGE_PAGE = 2 << 20 };
    const size_t around = bytes < LARGE_PAGE ? 0 : LARGE_PAGE;
    char *p = mmap(NULL, bytes + around, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        *why = strerror(errno);
        return NULL;
    }
    const size_t before = around ? -(uintptr_t)p % LARGE_PAGE : 0;
    if (before) munmap(p, before);
    if (around > before) munmap(p + before + bytes, around - before);
    madvise(p + before, bytes, MADV_HUGEPAGE);  // a hint, which the system need not follow
    return p + before;
}
static void cpu_release(device *d, void *p, size_t bytes) { munmap(p, bytes); }

// Nothing is queued, so waiting, ordering and marking do nothing.
static int cpu_pin(device *d, void *host, size_t bytes) { return 0; }
static void cpu_unpin(device *d, void *host) {}
static int cpu_enter(device *d) { return 0; }
static int cpu_wait(device *d, device_stream s) { return 0; }
static int cpu_create_event(device *d, void **event) {
    *event = NULL;
    return 0;
}
static void cpu_destroy_event(device *d, void *event) {}
static int cpu_record(device *d, void *event, device_stream s) { return 0; }
static int cpu_order(device *d, device_stream s, void *event) { return 0; }
static int cpu_wait_event(device *d, void *event) { return 0; }
static int cpu_seconds_between(device *d, void *from, void *to, double *seconds) {
    *seconds = 0;
    return 0;
}
static void cpu_mark(device *d, const char *what, const char *name) {}

static int cpu_copy(device *d, device_stream s, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}

static int cpu_clear(device *d, device_stream s, void *x, size_t bytes) {
    char *p = x;
    if (bytes <= 1 << 20) {  // a parallel region would cost more
        memset(p, 0, bytes);
        return 0;
    }
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < bytes; i += 1 << 16) memset(p + i, 0, bytes - i < 1 << 16 ? bytes - i : 1 << 16);
    return 0;
}

static int cpu_clear_stretches(device *d, device_stream s, zero_dtype type, void *x, const stretches *of_x) {
    size_t size = dtype_bytes(type);
    for (int i = 0; i < of_x->n; i++)
        cpu_clear(d, s, (char *)x + of_x->list[i].offset * size, of_x->list[i].elems * size);
    return 0;
}

static int cpu_fill_nan(device *d, device_stream s, void *x, size_t bytes) {
    kernel_fill_nan(x, bytes);
    return 0;
}

static int cpu_sum_ranks(device *d, device_stream s, zero_dtype to_type, void *to, zero_dtype type,
                         const rank_parts *parts, float scale, int64_t n, const float *plus) {
    const void *list[parts->ranks];
    for (int r = 0; r < parts->ranks; r++)
        list[r] = r == parts->rank ? parts->own : parts->others + r * parts->stride;
    kernel_sum_ranks(to_type, to, type, list, parts->ranks, scale, n, plus);
    return 0;
}

static int cpu_add_squares(device *d, device_stream s, uint64_t *words, const stretches *of_x,
                           zero_dtype type, const void *x) {
    for (int i = 0; i < of_x->n; i++) {
        const stretch *part = &of_x->list[i];
        kernel_add_squares(words, type, (const char *)x + part->offset * dtype_bytes(type), part->elems);
    }
    return 0;
}

static int cpu_update(device *d, device_stream s, const own_update *own, const adamw_constants *c,
                      const adamw_arrays *a, const adamw_table *t) {
    kernel_update(own, c, a, t);
    return 0;
}

static const device_functions cpu_functions = {
    cpu_alloc,           cpu_release,       cpu_pin,    cpu_unpin, cpu_enter,           cpu_wait,
    cpu_create_event,    cpu_destroy_event, cpu_record, cpu_order, cpu_wait_event,      cpu_create_event,
    cpu_seconds_between, cpu_mark,          cpu_copy,   cpu_clear, cpu_clear_stretches, cpu_fill_nan,
    cpu_sum_ranks,       cpu_add_squares,   cpu_update,
};

device device_host = { .f = &cpu_functions, .number = -1, .name = "cpu" };

// -------- choosing the device

#ifndef ZERO_HAVE_CUDA
int device_cuda_open(device *d, const zero_config *config, int node_rank) {
    return zero_fail(ZERO_ERR_DEVICE, "the plugin was built without CUDA: rebuild it with nvcc");
}
void device_cuda_close(device *d) {}
int device_cuda_count(void) { return device_cuda_open(NULL, NULL, 0); }
int device_cuda_left(size_t *left) { return device_cuda_count(); }
#endif

int device_open(device *d, const zero_config *config, int node_rank) {
    if (config->machine) return device_virtual_open(d, config);
    if (config->device == ZERO_CUDA) return device_cuda_open(d, config, node_rank);
    *d = device_host;
    return 0;
}

void device_close(device *d) {
    if (d->state) device_cuda_close(d);
    if (d->time) device_virtual_close(d);
    *d = (device){ 0 };
}

int zero_cuda_devices(void) { return device_cuda_count(); }

int zero_memory_left(const zero_config *config, int ranks_on_host, size_t *left) {
    host_room room;
    if (config->device == ZERO_CUDA) return device_cuda_left(left);
    ZERO_TRY(host_room_find(&room, ranks_on_host, ""));
    *left = room.left;
    return 0;
}

const void *device_view(device *d, const void *x, size_t bytes, void *staging) {
    if (!d->asynchronous) return x;
    return d->f->copy(d, COMM, staging, x, bytes) || d->f->wait(d, COMM) ? NULL : staging;
}

int device_commit(device *d, void *x, size_t bytes, const void *staging) {
    return d->asynchronous ? device_set(d, x, staging, bytes) : 0;
}

int device_set(device *d, void *to, const void *from, size_t bytes) {
    ZERO_TRY(d->f->copy(d, COMM, to, from, bytes));
    if (d->time) memcpy(to, from, bytes);  // tables, by whose sizes the virtual device takes time
    return d->f->wait(d, COMM);
}
