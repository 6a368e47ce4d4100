#include "rank_states.h"
#include "internal.h"
#include "tiers/state_across.h"
#include "tiers/state_file.h"

static int create_room(zero *z) {
    struct rank_states *s = &z->rank_states;
    ZERO_TRY_ALLOC(s->values = allocate(z, PLAN_VALUES));
    s->low = (uint16_t *)(s->values + VALUES_CHUNK);
    s->staging = (float *)(s->low + VALUES_CHUNK);
    s->scalars = (double *)(s->staging + (z->device.asynchronous ? VALUES_CHUNK : 0));
    ZERO_TRY(z->device.f->pin(&z->device, s->values, z->plan.own[PLAN_VALUES].bytes));
    s->pinned = 1;
    return 0;
}

// Opens the files, if some states are in files.
static int open_files(zero *z) {
    const memory_request *pool = &z->plan.own[PLAN_FILE_BUFFERS];
    if (!pool->blocks) return 0;
    char *memory;
    ZERO_TRY_ALLOC(memory = memory_alloc_pinned(&z->memory, pool));
    ZERO_TRY(state_files_open(&z->rank_states.files, &z->config, &z->layout, z->net.rank, &z->memory, memory,
                              &z->trace));
    memory_request tables = z->plan.own[PLAN_FILE_TABLES];
    tables.bytes = memory_whole_pages(tables.bytes);
    ZERO_TRY(memory_note(&z->memory, &tables));
    for (int what = 0; what < STATES; what++) {
        if (z->plan.away[what].tier != ZERO_NVME) continue;
        ZERO_TRY(state_keep_in_files(&z->rank_states.of[what], z->rank_states.files, &z->config, &z->memory));
        ZERO_TRY(memory_note(&z->memory, &z->plan.away[what]));
    }
    return 0;
}

// With a GPU: prepares for copying states that are stored on one side of the bus and used on the other.
static int open_across(zero *z) {
    struct rank_states *all = &z->rank_states;
    char *memory[RINGS] = { NULL };
    if (!placement_crosses(&z->config)) return 0;
    for (int i = 0; i < RINGS; i++) {
        const memory_request *r = &z->plan.own[PLAN_PINNED + i];
        if (!z->plan.across.bytes[i]) continue;
        memory[i] = r->tier == ZERO_HOST ? memory_alloc_pinned(&z->memory, r) : memory_alloc(&z->memory, r);
        ZERO_TRY_ALLOC(memory[i]);
    }
    ZERO_TRY(state_across_open(&all->across, &z->plan.across, &z->memory, memory, &z->device, &z->trace));
    for (int what = 0; what < STATES; what++) {
        state *s = &all->of[what];
        if (s->kept) ZERO_TRY(state_go_across(s, &z->config, all->across, &z->memory, &z->plan.away[what]));
    }
    return 0;
}

int rank_states_open(zero *z) {
    for (int what = 0; what < STATES; what++)
        z->rank_states.of[what] = state_of(what, &z->config, &z->layout, z->net.rank, &z->device);
    ZERO_TRY(create_room(z));
    ZERO_TRY(open_files(z));
    return open_across(z);
}

int rank_state_create(zero *z, zero_value what) {
    return state_create(&z->rank_states.of[what], &z->memory, &z->plan.own[plan_item_of_state(what)]);
}

// A hung disk may still write to memory that units use.
void rank_states_stop_files(zero *z) { z->memory.disk_hangs |= state_files_close(z->rank_states.files); }

void rank_states_free(zero *z) {
    struct rank_states *s = &z->rank_states;
    for (device_stream on = DOWN; s->across && on <= UP; on++) z->device.f->wait(&z->device, on);
    for (int what = 0; what < STATES; what++) state_stay(&s->of[what], &z->device);
    state_across_close(s->across);
    if (s->pinned) z->device.f->unpin(&z->device, s->values);
}

state *rank_state(const zero *z, zero_value what) { return (state *)&z->rank_states.of[what]; }

state *rank_state_with(const zero *z, zero_value what, int stored) {
    const int has_masters = z->rank_states.of[ZERO_MASTER].kept && stored < z->layout.n_units;
    const int is_own_master = what == ZERO_MASTER && !has_masters;
    return rank_state(z, is_own_master ? ZERO_PARAM : what);
}

int rank_state_read(zero *z, zero_purpose purpose, zero_value what, state_range r, float *values) {
    struct rank_states *s = &z->rank_states;
    return state_move(rank_state_with(z, what, r.unit), COMM, r, STATE_READ, values, NULL, s->staging,
                      &s->moved[purpose]);
}

int rank_state_write(zero *z, zero_value what, state_range r, state_intent intent, const float *values) {
    struct rank_states *s = &z->rank_states;
    return state_move(rank_state_with(z, what, r.unit), COMM, r, intent, NULL, values, s->staging,
                      &s->moved[ZERO_FOR_CHECKPOINT]);
}

int rank_state_gather(zero *z, comm_use use, zero_value what, int unit) {
    state *s = rank_state(z, what);
    const size_t size = dtype_bytes(s->dtype);
    const state_range all = state_all(s, unit, STATE_WHOLE);
    const int on_host = state_on_host(s, all);
    state_part p;
    use.of = comm_far(s->rank, s->layout->ranks, s->group);
    ZERO_TRY(state_open_range(&p, s, on_host ? PROCESSOR : z->comm.gather_stream, all, STATE_CHANGE));
    const comm_piece piece = { p.at, state_own(&p), s->layout->units[unit].shard };
    const int rc = on_host ? comm_gather_in_host(&z->comm, use, &piece, size)
                           : comm_all_gather(&z->comm, use, &piece, 1, size);
    return state_close_after(rc, &p, 1);
}

float *rank_states_room(zero *z) { return z->rank_states.values; }

const void *rank_states_room_as(zero *z, zero_dtype dtype, int64_t n) {
    if (dtype == ZERO_F32) return z->rank_states.values;
    kernel_convert(dtype, z->rank_states.low, ZERO_F32, z->rank_states.values, n);
    return z->rank_states.low;
}

double *rank_states_scalars(zero *z) { return z->rank_states.scalars; }

int rank_states_are_touched(const zero *z) { return z->rank_states.touched; }
void rank_states_touch(zero *z) { z->rank_states.touched = 1; }

int rank_states_are_away(const zero *z) { return z->rank_states.files || z->rank_states.across; }
int rank_states_have_buffers(const zero *z) {
    return z->rank_states.files && state_files_have_buffers(z->rank_states.files);
}

void rank_states_count(const zero *z, zero_files *f) {
    if (z->rank_states.files) state_files_describe(z->rank_states.files, f);
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) {
        f->read[i] += z->rank_states.moved[i].read;
        f->written[i] += z->rank_states.moved[i].written;
    }
    if (z->rank_states.across) state_across_count(z->rank_states.across, &f->copied_down, &f->copied_up);
}
