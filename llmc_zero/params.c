// Parameters: gather, get, release. At stage 3 a slot holds a unit's parameters from its pre hook to its post
// hook. Prefetching follows the schedule, across micro-batches and across the update.
//
// A rank updates its own part of a unit, and may keep more: all of it at stages 1 and 2, and at stage 3, with
// param_group, the parts of the ranks of equal place in all groups. Then the unit is spread as soon as it is
// updated: gathered in place by the ranks that keep the same parts. Gathers run within a group.
#include "params.h"
#include "internal.h"

// -------- the gather of a unit

static comm_use use_for(zero_purpose purpose, int unit) {
    return (comm_use){ .purpose = purpose, .unit = unit, .units = 1 };
}

static comm_use use_in_pass(const zero *z, int unit) {
    return use_for(pass_mode(z) == ZERO_TRAIN ? ZERO_FOR_STEP : ZERO_FOR_EVAL, unit);
}

// Returns the address of a part in the gathered unit.
static char *place_of(const zero *z, int stored, int part) {
    size_t before = layout_before(&z->layout.units[stored], part);
    return z->params.stored[stored].gather_to + before * dtype_bytes(z->config.numbers.dtype);
}
static char *own_place(const zero *z, int stored) { return place_of(z, stored, z->net.rank); }

static char *in_slot(const zero *z, int stored, char *slot) {
    return slot + z->layout.units[stored].slot_offset * dtype_bytes(z->config.numbers.dtype);
}

// Stage 3: the unit's next gather writes to this memory.
static void gather_into(zero *z, int unit, char *to) {
    for (int s = layout_first_stored(&z->layout, unit); s >= 0; s = z->layout.units[s].frozen)
        z->params.stored[s].gather_to = in_slot(z, s, to);
}

// Begins opening what this rank sends. If that is its own part alone, only the first elements, which may be
// read directly into their place in the gathered unit.
static int begin_source(zero *z, int stored, int64_t elems) {
    state *params = rank_state(z, ZERO_PARAM);
    const int is_own = state_parts(params) == 1;
    state_range r = state_all(params, stored, state_held(params));
    if (is_own) r.elems = elems;
    return state_begin(&z->params.stored[stored].source, params, z->comm.gather_stream, r, STATE_READ,
                       is_own ? own_place(z, stored) : NULL);
}

// -------- passing new parameters from the update to a gather
//
// Forward starts right after the update, so a gather should not reread from a file what AdamW still has in
// memory. Once the gather is submitted, the update also copies this rank's new parameters into the gathered
// unit. The gather runs after the update and reads only the pieces that were updated before it was submitted.

static void put_to(struct params_unit *u, char *to) { __atomic_store_n(&u->put_to, to, __ATOMIC_RELEASE); }

static void begin_put(zero *z, int unit) {
    const state *params = rank_state(z, ZERO_PARAM);
    struct params_unit *u = &z->params.units[unit];
    if (!params->files || z->device.asynchronous || !params->units[unit].away) return;
    u->put_from = z->layout.units[unit].shard;
    put_to(u, own_place(z, unit));
}

void params_put(zero *z, const state_part *p) {
    struct params_unit *u = &z->params.units[p->range.unit];
    const size_t size = dtype_bytes(p->of->dtype);
    char *to = __atomic_load_n(&u->put_to, __ATOMIC_ACQUIRE);
    if (!to) return;
    z->device.f->copy(&z->device, PROCESSOR, to + p->range.from * size, p->at, p->range.elems * size);
    if (p->range.from < u->put_from) u->put_from = p->range.from;
}

// After the unit's update: returns the number of elements at the start of this rank's part that the update
// did not copy. The update never changes a frozen unit.
static int64_t elems_left(const zero *z, int stored) {
    const struct params_unit *u = &z->params.units[z->layout.units[stored].of];
    const int is_put = u->put_to && stored < z->layout.n_units;
    return is_put ? u->put_from : z->layout.units[stored].shard;
}

// Begins reading these elements.
static int begin_rest(zero *z, int stored) {
    const int64_t left = elems_left(z, stored);
    return left ? begin_source(z, stored, left) : 0;
}

// Parameters on the host are copied to the GPU before they are gathered.
static int is_fetched(const zero *z, int stored) {
    const state *params = rank_state(z, ZERO_PARAM);
    return state_on_host(params, state_all(params, stored, params->rank));
}

// Sets *at to the parts that this rank sends; NULL: they are in their places already. If no source is open,
// the update has copied the whole part there.
static int open_source(zero *z, int stored, const char **at) {
    const state *params = rank_state(z, ZERO_PARAM);
    state_part *source = &z->params.stored[stored].source;
    *at = NULL;
    if (is_fetched(z, stored)) return 0;
    if (!source->of) ZERO_TRY(begin_rest(z, stored));
    if (params->files) {
        const state_range read = { stored, params->rank, 0, elems_left(z, stored) };
        z->params.units[z->layout.units[stored].of].gathered.not_read += state_files_not_read(params, read);
    }
    if (!source->of) return 0;
    ZERO_TRY(state_ready(source));
    *at = source->at;
    return 0;
}

// The ranks of a group keep one of as many consecutive parts each: a piece.
static int find_pieces(zero *z, int stored, comm_piece *pieces) {
    const state *params = rank_state(z, ZERO_PARAM);
    const int64_t shard = z->layout.units[stored].shard;
    const char *at;
    ZERO_TRY(open_source(z, stored, &at));
    for (int i = 0, part = state_first_part(params); i < state_parts(params); i++, part += params->group) {
        char *own = at ? (char *)at + i * shard * dtype_bytes(params->dtype) : place_of(z, stored, part);
        pieces[i] = (comm_piece){ place_of(z, stored, i * params->group), own, shard };
    }
    return 0;
}

static int run_gather(void *ctx, task *k) {
    zero *z = ctx;
    struct params_unit *u = &z->params.units[k->index];
    const trace_span span = trace_begin(&z->trace, k->stream);
    const int64_t size = dtype_bytes(z->config.numbers.dtype);
    const int first = layout_first_stored(&z->layout, k->index);
    const int parts = state_parts(rank_state(z, ZERO_PARAM));
    trace_event e = { .kind = EVENT_GATHER, .unit = k->index, .lane = traced_lane(z, k->lane) };
    comm_piece pieces[2 * parts];
    int n = 0, rc = 0;
    for (int s = first; s >= 0 && !rc; s = z->layout.units[s].frozen, n += parts) {
        rc = find_pieces(z, s, pieces + n);
        e.bytes += parts * z->layout.units[s].shard * size * (u->gather_use.of.ranks - 1);
    }
    put_to(u, NULL);
    if (!rc) rc = comm_all_gather(&z->comm, u->gather_use, pieces, n, size);
    for (int s = first; s >= 0; s = z->layout.units[s].frozen)
        rc = state_close_after(rc, &z->params.stored[s].source, 1);
    trace_end(&z->trace, &span, &e);
    return rc;
}

// Begins copying the next span of a part: as many elements as can be opened at once.
static int begin_fetch(zero *z, state_part *p, device_stream on, state_range *left) {
    state *params = rank_state(z, ZERO_PARAM);
    if (!left->elems) return 0;
    state_range r = *left;
    r.elems = state_span(params, r);
    char *to = place_of(z, r.unit, r.part) + r.from * dtype_bytes(params->dtype);
    ZERO_TRY(state_begin(p, params, on, r, STATE_READ, to));
    left->from += r.elems;
    left->elems -= r.elems;
    return 0;
}

// Copies a part from the host into the gathered unit: from files, one piece is read while another is copied.
static int fetch(zero *z, int stored, int part, const task *k) {
    state_moved *moved = z->params.stored[stored].source.moved;
    state_part parts[2] = { { .moved = moved }, { .moved = moved } };
    state_range left = state_all(rank_state(z, ZERO_PARAM), stored, part);
    int rc = begin_fetch(z, &parts[0], k->stream, &left);
    for (int i = 0; parts[i].of && !rc; i = !i) {
        rc = begin_fetch(z, &parts[!i], k->stream, &left);
        if (!rc) rc = state_ready(&parts[i]);
        rc = state_close_after(rc, &parts[i], 1);
    }
    return state_close_after(rc, parts, 2);
}

static int run_fetch(void *ctx, task *k) {
    zero *z = ctx;
    const state *params = rank_state(z, ZERO_PARAM);
    for (int s = layout_first_stored(&z->layout, k->index); s >= 0; s = z->layout.units[s].frozen)
        for (int part = state_first_part(params); part < z->layout.ranks; part += params->group)
            ZERO_TRY(fetch(z, s, part, k));
    return 0;
}

// The gather runs after the unit's update, and after all work that the trainer has queued, because that work
// may still read the slot.
static int submit_gather(zero *z, int unit, comm_use use) {
    struct params_unit *u = &z->params.units[unit];
    const int first = layout_first_stored(&z->layout, unit);
    u->gather_use = use;
    u->gather_use.counter = &u->gathered.sent;
    u->gather_use.of = comm_near(z->net.rank, rank_state(z, ZERO_PARAM)->group);
    if (is_fetched(z, first)) {
        ZERO_TRY(tasks_submit(&z->tasks, &u->fetch, AFTER(u->changed_by, &z->tasks.trainer)));
        return tasks_submit(&z->tasks, &u->gather, AFTER(&u->fetch));
    }
    // A failure is ignored here: the task retries, and reports it to all ranks in the lane's order.
    for (int s = first; s >= 0; s = z->layout.units[s].frozen) {
        if (s != unit || tasks_have_run(&z->tasks, u->changed_by))
            (void)begin_rest(z, s);
        else if (!u->put_to)
            begin_put(z, unit);
    }
    return tasks_submit(&z->tasks, &u->gather, AFTER(u->changed_by, &z->tasks.trainer));
}

// -------- spreading new parameters

static int run_spread(void *ctx, task *k) {
    zero *z = ctx;
    const state *params = rank_state(z, ZERO_PARAM);
    const trace_span span = trace_begin(&z->trace, k->stream);
    const int64_t bytes = z->layout.units[k->index].shard * dtype_bytes(params->dtype);
    const trace_event e = { .kind = EVENT_GATHER,
                            .unit = k->index,
                            .lane = traced_lane(z, k->lane),
                            .bytes = (state_parts(params) - 1) * bytes };
    ZERO_TRY(rank_state_gather(z, z->params.units[k->index].spread_use, ZERO_PARAM, k->index));
    trace_end(&z->trace, &span, &e);
    return 0;
}

// Spreads the unit if other ranks keep what this one has updated.
static int submit_spread(zero *z, int unit, comm_use use) {
    struct params_unit *u = &z->params.units[unit];
    task *after = u->changed_by;
    if (state_parts(rank_state(z, ZERO_PARAM)) == 1 || !z->layout.units[unit].padded) return 0;
    u->spread_use = use;
    u->changed_by = &u->spread;
    return tasks_submit(&z->tasks, &u->spread, AFTER(after, &z->tasks.trainer));
}

// -------- counting

static void add_bytes(params_bytes *to, const params_bytes *from) {
    to->sent += from->sent;
    to->files.read += from->files.read;
    to->not_read += from->not_read;
}

// Call it when the unit's gather has ended: its bytes count for this purpose.
static void count_gather(zero *z, struct params_unit *u, zero_purpose purpose) {
    add_bytes(&z->params.gathered[purpose], &u->gathered);
    u->gathered = (params_bytes){ .sent = 0 };
    u->for_next_pass = 0;
}

// -------- slots: stage 3

static int drop(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    size_t bytes = z->layout.units[unit].slot_elems * dtype_bytes(z->config.numbers.dtype);
    char *params = u->whole;
    count_gather(z, u, ZERO_FOR_UNUSED);  // a use has counted it already, if there was one
    if (u->slot >= 0) z->params.slots[u->slot].unit = -1;
    u->slot = -1;
    u->kept = 0;
    u->whole = NULL;
    return z->config.debug.poison ? z->device.f->fill_nan(&z->device, COMPUTE, params, bytes) : 0;
}

static int slots_are_open(const zero *z) {
    for (int i = 0; i < z->params.n_slots; i++)
        if (z->params.slots[i].unit >= 0 && pass_has_open(z, z->params.slots[i].unit)) return 1;
    return 0;
}

// Call it when no slot is free: drops a unit that was prefetched but not opened.
static int free_idle_slot(zero *z, int for_unit, int *slot) {
    for (int i = 0; i < z->params.n_slots; i++) {
        const int holder = z->params.slots[i].unit;
        if (pass_has_open(z, holder)) continue;
        *slot = i;
        ZERO_TRY(tasks_wait(&z->tasks, &z->params.units[holder].gather));
        return drop(z, holder);
    }
    return zero_fail(ZERO_ERR_MISUSE,
                     "unit %d (%s): all %d slots hold units that are open; close one first, or create with a "
                     "max_open above %d",
                     for_unit, z->layout.units[for_unit].name, z->params.n_slots, z->config.max_open);
}

// Sets u->whole, where the next gather writes to, to the unit's private memory or to a slot. If no slot is
// free and `must` is 0, it stays NULL.
static int find_room(zero *z, int unit, int must) {
    struct params_unit *u = &z->params.units[unit];
    int slot = 0;
    u->whole = u->own;
    if (!u->whole) {
        while (slot < z->params.n_slots && z->params.slots[slot].unit >= 0) slot++;
        if (slot == z->params.n_slots && !must) return 0;
        if (slot == z->params.n_slots) ZERO_TRY(free_idle_slot(z, unit, &slot));
        z->params.slots[slot].unit = unit;
        u->slot = slot;
        u->whole = z->params.slots[slot].memory;
    }
    gather_into(z, unit, u->whole);
    return 0;
}

// -------- gathering ahead: stage 3

// Starts the unit's gather if it needs one, unless no slot is free and `must` is 0.
static int start_gather(zero *z, int unit, comm_use use, int must) {
    struct params_unit *u = &z->params.units[unit];
    if (u->whole) return 0;
    ZERO_TRY(find_room(z, unit, must));
    return u->whole ? submit_gather(z, unit, use) : 0;
}

// Gathers the first unit of the step's next micro-batch.
static int gather_for_next_pass(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    if (u->whole) return 0;
    ZERO_TRY(start_gather(z, unit, use_for(ZERO_FOR_STEP, unit), 0));
    u->for_next_pass = u->whole != NULL;
    return 0;
}

// Gathers the next `prefetch` units after the one that is using a slot or, if none is, after the next one
// that will use one. Units with private memory need no slot, so they do not count. When all uses of this
// micro-batch have begun, the first unit of the next micro-batch is gathered too.
static int look_ahead(zero *z, int slot_in_use) {
    int left = z->config.prefetch + !slot_in_use;
    if (!z->config.prefetch) return 0;
    schedule_walk w = schedule_ahead(&z->schedule);
    while (schedule_next(&w)) {
        if (w.next_pass) return z->schedule.left ? 0 : gather_for_next_pass(z, w.unit);
        if (!z->params.units[w.unit].own) left--;
        if (left < 0) return 0;
        ZERO_TRY(start_gather(z, w.unit, use_in_pass(z, w.unit), 0));
    }
    return 0;
}

// -------- get and release

static int open_whole(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    if (u->whole) return 0;
    ZERO_TRY(tasks_wait(&z->tasks, u->changed_by));
    for (int s = layout_first_stored(&z->layout, unit); s >= 0; s = z->layout.units[s].frozen) {
        state_part *opened = &z->params.stored[s].opened;
        ZERO_TRY(state_open(opened, rank_state(z, ZERO_PARAM), COMPUTE, s, STATE_WHOLE, STATE_READ));
        u->whole = opened->at;
    }
    return 0;
}

static int close_whole(zero *z, int unit) {
    int rc = 0;
    z->params.units[unit].whole = NULL;
    for (int s = layout_first_stored(&z->layout, unit); s >= 0; s = z->layout.units[s].frozen)
        rc = state_close_after(rc, &z->params.stored[s].opened, 1);
    return rc;
}

int params_acquire(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    comm_use use = use_in_pass(z, unit);
    int sharded = z->config.stage == 3;
    if (sharded) ZERO_TRY(start_gather(z, unit, use, 1));
    schedule_use(&z->schedule, unit);  // only now, so that a rejected use is not recorded
    if (sharded) ZERO_TRY(look_ahead(z, u->slot >= 0 || slots_are_open(z)));
    ZERO_TRY(tasks_wait(&z->tasks, &u->gather));
    count_gather(z, u, use.purpose);
    return sharded ? 0 : open_whole(z, unit);
}

// Returns 1 if uses of the unit that read it are left in this micro-batch, repetitions aside.
static int reads_left(const zero *z, int unit, pass_direction d) {
    const layout_unit *l = &z->layout.units[unit];
    const int all = d == PASS_FORWARD ? l->first_uses : l->reading_uses;
    return (d == PASS_FORWARD || pass_mode(z) == ZERO_TRAIN) && pass_done(z, unit, d) < all;
}

// Returns 1 if a unit without private memory has reads left in this direction of this micro-batch.
static int slots_are_needed(const zero *z, pass_direction d) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (!z->params.units[i].own && reads_left(z, i, d)) return 1;
    return 0;
}

// Returns the first unit of the table that uses a slot; n_units: none does.
static int first_in_slots(const zero *z) {
    int unit = 0;
    while (unit < z->layout.n_units && z->params.units[unit].own) unit++;
    return unit;
}

// A unit stays gathered while the step will read it again before another unit needs its memory. Private
// memory is needed by no other. In the slots, backward begins with the unit that forward used last, and ends
// with the table's first, with which the next micro-batch begins. A unit whose forward is repeated is
// gathered for that and again for its backward, since other units use the slots in between.
static int kept_in_step(const zero *z, int unit) {
    const int is_own = z->params.units[unit].own != NULL;
    const int repeats = pass_done(z, unit, PASS_FORWARD) > z->layout.units[unit].first_uses;
    if (reads_left(z, unit, PASS_FORWARD)) return is_own;
    if (reads_left(z, unit, PASS_BACKWARD)) return is_own || (!repeats && !slots_are_needed(z, PASS_FORWARD));
    if (pass_is_last(z)) return 0;
    const int is_first = unit == first_in_slots(z) && z->layout.units[unit].reading_uses > 0;
    return is_own || (is_first && !slots_are_needed(z, PASS_BACKWARD));
}

// In inference parameters never change, so a unit with private memory is gathered only once.
static int kept_for_inference(const zero *z, int unit) {
    return z->config.inference && z->params.units[unit].own != NULL;
}

int params_release(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    if (pass_has_open(z, unit) || !u->whole) return 0;
    if (z->config.stage < 3) return close_whole(z, unit);
    u->kept = kept_in_step(z, unit);
    if (u->for_next_pass || u->kept) return 0;
    if (!kept_for_inference(z, unit)) ZERO_TRY(drop(z, unit));
    return look_ahead(z, slots_are_open(z));  // a slot is free now
}

// Drops units that were gathered ahead but not used: every pass gathers as many bytes as the plan predicts.
int params_begin_pass(zero *z, int continues) {
    if (z->config.stage < 3) return 0;
    for (int i = 0; i < z->layout.n_units; i++) {
        struct params_unit *u = &z->params.units[i];
        if (!u->whole || u->for_next_pass || (continues && u->kept) || kept_for_inference(z, i)) continue;
        ZERO_TRY(tasks_wait(&z->tasks, &u->gather));
        ZERO_TRY(drop(z, i));
    }
    return 0;
}

// -------- around the update

// Returns 1 if the unit is gathered as soon as it is updated: it is one of those that look_ahead would gather
// at the next step's first use. If an evaluation comes first, it uses them.
static int is_next(const zero *z, int unit) {
    int left = z->config.prefetch + 1;
    if (z->config.stage < 3 || !z->config.prefetch) return 0;
    for (schedule_walk w = schedule_next_step(&z->schedule); schedule_next(&w);) {
        if (!z->params.units[w.unit].own) left--;
        if (left < 0) return 0;
        if (w.unit == unit) return 1;
    }
    return 0;
}

int params_before_update(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    if (!is_next(z, unit)) return 0;
    ZERO_TRY(find_room(z, unit, 0));
    u->for_next_pass = u->whole != NULL;
    if (u->whole) begin_put(z, unit);
    return 0;
}

int params_updated(zero *z, int unit, task *by) {
    struct params_unit *u = &z->params.units[unit];
    u->changed_by = by;
    if (z->config.stage == 0) return 0;
    ZERO_TRY(submit_spread(z, unit, use_for(ZERO_FOR_STEP, unit)));
    return u->for_next_pass ? submit_gather(z, unit, use_for(ZERO_FOR_STEP, unit)) : 0;
}

static int wait_for_gathers(zero *z, int unit) {
    ZERO_TRY(tasks_wait(&z->tasks, &z->params.units[unit].spread));
    return tasks_wait(&z->tasks, &z->params.units[unit].gather);
}

int params_complete(zero *z) {
    for (int i = 0; i < z->layout.n_units; i++) ZERO_TRY(wait_for_gathers(z, i));
    return wait_for_device(z, COMPUTE);
}

int params_drop_all(zero *z) {
    for (int i = 0; i < z->layout.n_units; i++) {
        ZERO_TRY(wait_for_gathers(z, i));
        if (z->config.stage == 3 && z->params.units[i].whole) ZERO_TRY(drop(z, i));
    }
    return 0;
}

// -------- creation

static int create_slots(zero *z) {
    const layout *l = &z->layout;
    for (int i = 0; i < l->n_units; i++)
        if (l->units[i].shared)
            ZERO_TRY_ALLOC(z->params.units[i].own = allocate_for_unit(z, PLAN_SHARED_SLOTS, i));
    z->params.n_slots = z->plan.own[PLAN_SLOTS].blocks;
    ZERO_TRY_ALLOC(z->params.slots = allocate_array(z, z->params.n_slots, sizeof *z->params.slots));
    for (struct params_slot *s = z->params.slots; s < z->params.slots + z->params.n_slots; s++) {
        s->unit = -1;
        ZERO_TRY_ALLOC(s->memory = allocate(z, PLAN_SLOTS));
    }
    return 0;
}

int params_create(zero *z) {
    const int goes_across = placement_crosses(&z->config);
    ZERO_TRY_ALLOC(z->params.units = allocate_array(z, z->layout.n_units, sizeof *z->params.units));
    ZERO_TRY_ALLOC(z->params.stored = allocate_array(z, z->layout.n_stored, sizeof *z->params.stored));
    ZERO_TRY(rank_state_create(z, ZERO_PARAM));
    if (z->config.stage == 3) ZERO_TRY(create_slots(z));
    for (int i = 0; i < z->layout.n_units; i++) {
        struct params_unit *u = &z->params.units[i];
        u->slot = -1;
        u->changed_by = &z->tasks.trainer;  // no task changes it yet
        u->gather = (task){ .run = run_gather, .ctx = z, .lane = LANE_COLLECTIVES, .index = i, .unit = i };
        u->fetch = (task){ .run = run_fetch, .ctx = z, .lane = LANE_COPIES, .index = i, .unit = i };
        u->spread = (task){ .run = run_spread, .ctx = z, .lane = LANE_COLLECTIVES, .index = i, .unit = i };
        ZERO_TRY(tasks_prepare(&z->tasks, &u->gather, z->comm.gather_stream));
        ZERO_TRY(tasks_prepare(&z->tasks, &u->spread, z->comm.gather_stream));
        if (goes_across) ZERO_TRY(tasks_prepare(&z->tasks, &u->fetch, UP));
    }
    for (int s = 0; s < z->layout.n_stored; s++)
        z->params.stored[s].source.moved = &z->params.units[z->layout.units[s].of].gathered.files;
    return 0;
}

int params_rehearse(zero *z, int unit) {
    struct params_unit *u = &z->params.units[unit];
    comm_use use = use_for(ZERO_FOR_STEP, unit);
    use.counter = &u->gathered.sent;
    ZERO_TRY(submit_spread(z, unit, use));
    if (z->config.stage == 3) {
        gather_into(z, unit, u->own ? u->own : z->params.slots[unit % z->params.n_slots].memory);
        ZERO_TRY(submit_gather(z, unit, use));
    }
    ZERO_TRY(wait_for_gathers(z, unit));
    u->gathered = (params_bytes){ .sent = 0 };
    return 0;
}

char *params_at(const zero *z, int stored) {
    if (z->config.stage < 3) return z->params.stored[stored].opened.at;
    return in_slot(z, stored, z->params.units[z->layout.units[stored].of].whole);
}

// Returns the bytes by purpose. Those of gathers that no use has followed yet are unused so far.
static params_bytes gathered_for(const zero *z, zero_purpose purpose) {
    params_bytes sum = z->params.gathered[purpose];
    for (int i = 0; purpose == ZERO_FOR_UNUSED && i < z->layout.n_units; i++)
        add_bytes(&sum, &z->params.units[i].gathered);
    return sum;
}

void params_count(const zero *z, zero_traffic *t) {
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) t->all_gather[i] += gathered_for(z, i).sent;
}

void params_count_files(const zero *z, zero_files *f) {
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) {
        const params_bytes b = gathered_for(z, i);
        f->read[i] += b.files.read;
        f->not_read[i] += b.not_read;
    }
}
