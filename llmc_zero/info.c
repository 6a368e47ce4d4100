// Figures that a trainer can report: memory, traffic, how the ranks are connected, and the trace.
#include "base/trace_file.h"
#include "internal.h"
#include <stdlib.h>
#include <string.h>

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
                       .ranks_on_device = z->comm.ranks_on_device };
}

void zero_files_info(zero *z, zero_files *f) {
    *f = (zero_files){ .how = NULL };
    if (!rank_states_are_away(z)) return;
    // A failure is reported by the next call that uses the states.
    grads_wait(z);
    step_settle(z);
    rank_states_count(z, f);
    params_count_files(z, f);
}

void zero_plan_info(const zero *z, zero_plan *info) {
    plan_describe(&z->plan, &z->config, &z->layout, 0, info);
}

// -------- the trace

// Copies the other ranks' text to rank 0's file, in parts that fit on the stack.
static int write_other_ranks(zero *z, const char *text, uint64_t length, FILE *to) {
    char part[1 << 16];
    if (z->device.time) return 0;  // there are none
    for (int r = 1; r < z->comm.group.ranks; r++) {
        uint64_t left = length;
        ZERO_TRY(zero_broadcast(z, r, &left, sizeof left));
        for (uint64_t at = 0, n; left; at += n, left -= n) {
            n = left < sizeof part ? left : sizeof part;
            if (r == z->comm.group.rank) memcpy(part, text + at, n);
            ZERO_TRY(zero_broadcast(z, r, part, n));
            if (to) fwrite(part, 1, n, to);
        }
    }
    return 0;
}

// The time axis of all ranks is the system's clock, from the start of the earliest trace.
static char *text_of_rank(zero *z, size_t *length) {
    const char *names[z->layout.n_stored];
    double starts[z->comm.group.ranks], first = z->trace.wall_s;
    if (zero_gather(z, &z->trace.wall_s, starts, 1)) return NULL;
    for (int r = 0; r < z->comm.group.ranks; r++) first = starts[r] < first ? starts[r] : first;
    for (int i = 0; i < z->layout.n_stored; i++) names[i] = z->layout.units[i].name;
    return trace_text(&z->trace, z->comm.group.rank, z->trace.wall_s - first, names, z->layout.n_stored,
                      length);
}

int zero_trace_write(zero *z, const char *path) {
    trace_file file = { .to = NULL };
    size_t length;
    ZERO_TRY(grads_wait(z));
    ZERO_TRY(step_settle(z));
    char *text = text_of_rank(z, &length);
    int rc = text ? 0 : zero_failed()->fields.code;
    if (text && z->comm.group.rank == 0) rc = trace_file_open(&file, path);
    rc = agree(z, rc);
    if (!rc && file.to) fwrite(text, 1, length, file.to);
    if (!rc) rc = write_other_ranks(z, text, length, file.to);
    free(text);
    const int closed = trace_file_close(&file, !rc);
    return rc ? rc : agree(z, closed);
}
