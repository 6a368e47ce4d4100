// What a trainer reports of its plugin: memory, traffic, what was settled at creation, and the trace.
#include "internal.h"

void *zero_alloc(zero *z, zero_memory_class class_, const char *purpose, size_t bytes) {
    return memory_alloc(&z->memory, class_, purpose, bytes);
}

int zero_memory(const zero *z, int i, zero_memory_line *line) {
    if (i < 0 || i >= z->memory.n_lines)
        return zero_fail(ZERO_ERR_ARGUMENT, "the memory table has %d lines", z->memory.n_lines);
    *line = z->memory.lines[i];
    return 0;
}

size_t zero_memory_bytes(const zero *z, zero_memory_class class_) { return memory_bytes(&z->memory, class_); }

typedef struct {
    zero *z;
    zero_traffic *traffic;
} traffic_request;
static int run_traffic(void *ctx, job *j) {
    (void)j;
    traffic_request *r = ctx;
    *r->traffic = r->z->comm.traffic;
    return 0;
}
void zero_get_traffic(zero *z, zero_traffic *t) {
    traffic_request s = { z, t };
    if (progress_run(&z->progress, run_traffic, &s)) *t = z->comm.traffic;
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) t->all_gather[i] += z->gathered_ahead[i];
}

void zero_get_effective(const zero *z, zero_effective *e) {
    size_t size = dtype_bytes(z->config.numbers.dtype);
    int64_t bytes = 0;
    for (int i = 0; uses_buckets(z) && i < 2; i++)
        if (z->bucket_buffer[i]) bytes += z->layout.largest_bucket * size;
    for (int i = 0; uses_buckets(z) && i < z->layout.n_units; i++)
        if (z->own_grads[i]) bytes += z->layout.units[i].padded * size;
    *e = (zero_effective){ z->layout.largest_bucket,
                           bytes,
                           z->layout.elems,
                           z->n_slots,
                           z->comm.name,
                           z->device.name,
                           z->device.number,
                           z->comm.ranks_on_node,
                           z->ranks_on_device };
}

int zero_trace_event(const zero *z, int i, zero_event *e) {
    int n = z->trace.used < z->trace.capacity ? z->trace.used : z->trace.capacity;
    if (i < 0 || i >= n) return zero_fail(ZERO_ERR_ARGUMENT, "the trace holds %d events", n);
    *e = z->trace.events[i];
    return 0;
}

int zero_trace_write(zero *z, const char *path) {
    const char *names[z->layout.n_units];
    for (int i = 0; i < z->layout.n_units; i++) names[i] = z->layout.units[i].name;
    ZERO_TRY(grads_wait(z));
    ZERO_TRY(params_complete(z));
    return trace_write(&z->trace, path, z->comm.rank, names, z->layout.n_units);
}
