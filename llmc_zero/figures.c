// Figures that a trainer can report: memory, traffic, how the ranks are connected, and the trace.
#include "internal.h"

void *zero_alloc(zero *z, zero_tier tier, zero_memory_class class_, const char *purpose, size_t bytes) {
    if (tier == ZERO_HOST && z->device.asynchronous)
        return memory_alloc_pinned(&z->memory, &(memory_request){ class_, purpose, ZERO_HOST, bytes, 1, 0 });
    return memory_alloc(&z->memory, &(memory_request){ class_, purpose, ZERO_DEVICE, bytes, 1, 0 });
}

int zero_memory(const zero *z, int i, zero_memory_line *line) {
    if (i < 0 || i >= z->memory.n_lines) return 0;
    *line = z->memory.lines[i];
    return 1;
}

size_t zero_memory_bytes(const zero *z, zero_memory_class class_) { return memory_bytes(&z->memory, class_); }

void zero_traffic_info(zero *z, zero_traffic *t) {
    end_collectives(z);  // a failure is reported by the next call that uses collectives
    *t = z->comm.traffic;
    params_count(z, t);
}

void zero_job_info(const zero *z, zero_job *job) {
    *job = (zero_job){ .comm = z->comm.name,
                       .device = z->device.name,
                       .cuda_device = z->device.number,
                       .ranks_on_host = z->net.ranks_on_node,
                       .open_start = z->net.is_open,
                       .ranks_on_device = z->comm.ranks_on_device };
}

void zero_files_info(zero *z, zero_files *f) {
    *f = (zero_files){ .how = NULL };
    if (!states_are_away(z)) return;
    // A failure is reported by the next call that uses the states.
    grads_wait(z);
    update_wait(z);
    states_count(z, f);
}

void zero_plan_info(const zero *z, zero_plan *info) {
    plan_describe(&z->plan, &z->config, &z->layout, 0, info);
}

int zero_trace_write(zero *z, const char *path) {
    const char *names[z->layout.n_stored];
    for (int i = 0; i < z->layout.n_stored; i++) names[i] = z->layout.units[i].name;
    ZERO_TRY(grads_wait(z));
    ZERO_TRY(update_settle(z));
    return trace_write(&z->trace, path, z->comm.group.rank, names, z->layout.n_stored);
}
