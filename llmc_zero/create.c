// zero_create and zero_destroy: check the settings, connect the ranks, open the device, allocate.
#include "checkpoint/save.h"
#include "internal.h"
#include "net/failure.h"
#include "device/room.h"
#include "settings/settings.h"
#include <stdlib.h>
#include <string.h>

// Called with the connection that the settings request and, as that may be unavailable, with the one in use.
static int make_plan(zero *z, comm_way way) {
    plan_rank of = { z->net.rank, z->net.ranks_on_node, way };
    return plan_make(&z->plan, &z->config, &z->layout, &of);
}

static int create_states(zero *z) {
    const layout *l = &z->layout;
    int reading = 0;  // uses in a training pass that read parameters
    for (int i = 0; i < l->n_units; i++) reading += l->units[i].forward_uses + l->units[i].reading_uses;
    ZERO_TRY(memory_reserve(&z->memory, plan_own_bytes(&z->plan, &z->config, l)));
    ZERO_TRY(trace_open(&z->trace, z->config.debug.trace_events, &z->device, &z->memory,
                        &z->plan.own[PLAN_TRACE]));
    // only stage 3 has collectives at each use, so only there do all ranks use the units in the same order
    ZERO_TRY(schedule_create(&z->schedule, &z->memory, l->n_units, reading, z->config.stage == 3));
    ZERO_TRY(pass_create(z));
    ZERO_TRY(check_create(z));
    ZERO_TRY(rank_states_open(z));
    ZERO_TRY(params_create(z));
    ZERO_TRY(save_create(z));
    if (!z->config.inference) ZERO_TRY(grads_create(z));
    return step_create(z);
}

// Collectives that only queue work need a thread only if they depend on CPU tasks: copies of states, or AdamW
// on the CPU. end_collectives starts that thread now, so that all ranks fail if one cannot create it.
static int open_lanes(zero *z) {
    const int crosses = placement_crosses(&z->config);
    unsigned threads = 0;
    if (z->config.overlap && (crosses || !z->comm.only_queues)) threads |= LANE_BIT(LANE_COLLECTIVES);
    if (z->config.overlap && crosses) threads |= LANE_BIT(LANE_COPIES);
    if (crosses || z->plan.own[PLAN_FILE_BUFFERS].blocks || z->config.offload.delayed_update)
        threads |= LANE_BIT(LANE_CPU);
    ZERO_TRY(tasks_open(&z->tasks, &z->device, &z->trace, threads));
    return end_collectives(z);
}

// Runs each collective of a step once, on zeros. These bytes are not reported as traffic.
static int rehearse(void *ctx) {
    zero *z = ctx;
    int64_t not_reported = 0;
    if (!z->config.inference)
        for (int i = 0; i < z->layout.n_buckets; i++) ZERO_TRY(grads_rehearse(z, i, &not_reported));
    if (z->config.stage == 0) return 0;
    for (int i = 0; i < z->layout.n_units; i++) ZERO_TRY(params_rehearse(z, i));
    return 0;
}

// Linux commits pages only when they are touched and, if none are left, kills a process without a message. So
// zero_create compares the plan with the available memory before it allocates anything.
static int check_room(const zero *z) {
    host_room room;
    zero_plan info;
    size_t bytes = z->config.device == ZERO_CPU ? z->config.memory_beside : 0;
    plan_describe(&z->plan, &z->config, &z->layout, 0, &info);
    for (int i = 0; i < info.n_lines; i++) {
        const zero_memory_line *l = &info.lines[i];
        if (l->tier == ZERO_HOST || (l->tier == ZERO_DEVICE && z->config.device == ZERO_CPU))
            bytes += l->bytes;
    }
    ZERO_TRY(host_room_find(&room, z->net.ranks_on_node, ""));
    if (bytes <= room.left) return 0;
    const double mib = 1 << 20;
    if (z->net.ranks_on_node == 1)
        return zero_fail(ZERO_ERR_MEMORY, "%.1f MiB of host memory are needed, but %s", bytes / mib,
                         room.limit);
    return zero_fail(ZERO_ERR_MEMORY, "%.1f MiB of host memory are needed, but %s: %.1f MiB for each",
                     bytes / mib, room.limit, room.left / mib);
}

static int create(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units) {
    zero_config *c = &z->config;
    ZERO_TRY(zero_settings_from_env(c));
    if (c->debug.poison < 0) c->debug.poison = 0;
    if (c->machine) c->debug.check_steps = 0;  // no memory has values
    c->overlap = c->overlap != 0;
    z->memory.device = &z->device;
    z->device = device_host;
    ZERO_TRY(net_start(&z->net, c));
    ZERO_TRY(same_settings(z, tensors, n_tensors, units, n_units));
    ZERO_TRY(net_agree(&z->net, device_open(&z->device, c, z->net.node_rank)));
    ZERO_TRY(
        layout_init(&z->layout, z->net.ranks, c->reduce_bucket_size, tensors, n_tensors, units, n_units));
    ZERO_TRY(make_plan(z, comm_way_asked(c, z->net.ranks, z->net.ranks_on_node)));
    if (!c->machine) ZERO_TRY(net_agree(&z->net, check_room(z)));
    ZERO_TRY(comm_open(&z->comm, &z->net, c, &z->device, &z->memory, z->plan.comm));
    ZERO_TRY(make_plan(z, z->comm.way));
    ZERO_TRY(net_agree(&z->net, comm_stage(&z->comm, &z->memory)));
    ZERO_TRY(net_agree(&z->net, open_lanes(z)));
    ZERO_TRY(agree(z, create_states(z)));
    ZERO_TRY(comm_prepare(&z->comm, &z->memory, rehearse, z));
    trace_complete(&z->trace);
    z->trace.used = 0;  // the rehearsal is not part of the trace
    return 0;
}

static void destroy(zero *z, int clean) {
    save_drop(z);
    tasks_close(&z->tasks);
    rank_states_stop_files(z);
    clean = clean && !z->tasks.failed;
    comm_close(&z->comm, clean);
    rank_states_free(z);
    net_close(&z->net, clean);
    layout_free(&z->layout);
    trace_close(&z->trace);
    memory_free_all(&z->memory);
    device_close(&z->device);
    free(z);
}

int zero_create(zero **out, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                const zero_unit *units, int n_units) {
    *out = NULL;
    ZERO_TRY(settings_check(config));
    zero *z = calloc(1, sizeof *z);
    if (!z) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the plugin's state");
    z->config = *config;
    int rc = create(z, tensors, n_tensors, units, n_units);
    if (rc && z->net.link && zero_failed()->lower < 0) zero_failed_after(!failure_reports(&z->net, 1));
    if (rc)
        destroy(z, 0);
    else
        *out = z;
    return rc;
}

void zero_destroy(zero *z) {
    if (z) destroy(z, 1);
}
