// If all states are in memory, a unit is one piece. If states are in files, a piece fills one of the file
// buffers, and reading the next pieces, updating this one and writing the previous ones overlap
// (ZeRO-Infinity, Rajbhandari et al. 2021, section 5.2.2).
#include "update.h"
#include "internal.h"
#include "tiers/state_file.h"
#include <stdlib.h>
#include <string.h>

// -------- tables, built once at creation

static int run_adamw(void *ctx, task *k);
static int run_publish(void *ctx, task *k);

// Adds a segment for each tensor in the piece. Offsets are relative to the piece, the same for every state.
static void add_segments(const zero *z, struct update_piece *piece, adamw_segment *segments) {
    const state_range *r = &piece->range;
    const layout_unit *u = &z->layout.units[r->unit];
    const state *moments = rank_state(z, ZERO_MOMENT1);
    int64_t before = state_before(moments, r->unit, r->part) + r->from;  // in the unit
    adamw_table *t = &piece->table;
    for (int i = u->first_place; i < u->first_place + u->n_places; i++) {
        const layout_place *p = &z->layout.places[i];
        int64_t begin = p->offset > before ? p->offset : before, end = p->offset + p->elems;
        if (end > before + r->elems) end = before + r->elems;
        if (begin >= end) continue;
        segments[t->n++] = (adamw_segment){ .offset = begin - before,
                                            .inside = begin - p->offset,
                                            .elems = end - begin,
                                            .first = t->chunks,
                                            .tensor = p->tensor,
                                            .layer = p->layer,
                                            .lr_factor = p->lr_factor,
                                            .decay = p->decay };
        t->chunks += adamw_chunks(end - begin);
    }
}

static void list_pieces(zero *z) {
    const int across = placement_crosses(&z->config);
    const device_stream on_device = across ? UP : COMPUTE;
    int n = 0;
    for (int u = 0; u < z->layout.n_units; u++) {
        const int64_t away = placement_away(ZERO_MOMENT1, &z->config, &z->layout, z->net.rank, u);
        z->update.units[u].first_piece = n;
        for (state_range r = plan_first_piece(&z->config, &z->layout, z->net.rank, u); r.elems;
             r = plan_next_piece(&z->config, &z->layout, z->net.rank, r)) {
            // The update runs where the piece's optimizer states are stored.
            const int on_host = across && r.from < away;
            z->update.pieces[n++] = (struct update_piece){ .range = r,
                                                           .by = on_host && !z->device.time ? &device_host
                                                                                            : &z->device,
                                                           .on = on_host ? PROCESSOR : on_device };
        }
        z->update.units[u].n_pieces = n - z->update.units[u].first_piece;
    }
}

// A piece's table is stored where its update runs; the trainer's own update needs it on the host.
static int create_tables(zero *z, adamw_segment *segments) {
    const memory_request *on_host = &z->plan.own[PLAN_UPDATE_HOST];
    adamw_segment *table, *host_table = NULL;
    ZERO_TRY_ALLOC(table = allocate(z, PLAN_UPDATE));
    if (on_host->blocks) ZERO_TRY_ALLOC(host_table = allocate(z, PLAN_UPDATE_HOST));
    for (int64_t i = 0, n = 0; i < z->update.n_pieces; n += z->update.pieces[i++].table.n) {
        struct update_piece *piece = &z->update.pieces[i];
        add_segments(z, piece, segments + n);
        piece->table.segments = (piece->on == PROCESSOR && host_table ? host_table : table) + n;
    }
    if (host_table) memcpy(host_table, segments, on_host->bytes);
    device *of_table = z->config.update_with ? &device_host : &z->device;
    return device_set(of_table, table, segments, z->plan.own[PLAN_UPDATE].bytes);
}

static int create_pieces(zero *z) {
    const plan_pieces count = plan_count_pieces(&z->config, &z->layout, z->net.rank);
    z->update.n_pieces = count.pieces;
    ZERO_TRY_ALLOC(z->update.pieces = allocate_array(z, count.pieces, sizeof *z->update.pieces));
    list_pieces(z);
    adamw_segment *segments = calloc(count.segments + 1, sizeof *segments);
    int rc = segments ? create_tables(z, segments)
                      : zero_fail(ZERO_ERR_MEMORY, "out of memory for the update's table");
    free(segments);
    return rc;
}

static int create_own(zero *z) {
    const memory_request *room = &z->plan.own[PLAN_UPDATE_ROOM];
    z->update.own = (own_update){ .update = z->config.update_with,
                                  .ctx = z->config.update_ctx,
                                  .room_elems = room->bytes / sizeof(float) };
    if (room->blocks) ZERO_TRY_ALLOC(z->update.own.room = allocate(z, PLAN_UPDATE_ROOM));
    return 0;
}

// If states are off the device, the update runs on a separate lane while the trainer continues with the next
// step. Forward waits for each unit's update or, if the update is delayed, backward does.
static int create_tasks(zero *z, int unit) {
    const int has_lane = z->update.is_ahead || z->config.offload.delayed_update;
    const lane on = has_lane ? LANE_CPU : LANE_TRAINER;
    struct update_unit *u = &z->update.units[unit];
    u->adamw = (task){ .run = run_adamw, .ctx = z, .lane = on, .index = unit, .unit = unit };
    u->publish = (task){ .run = run_publish, .ctx = z, .lane = on, .index = unit, .unit = unit };
    grads_read_with(z, unit, &u->adamw);
    if (!placement_crosses(&z->config)) return 0;
    ZERO_TRY(tasks_prepare(&z->tasks, &u->adamw, UP));
    return tasks_prepare(&z->tasks, &u->publish, UP);
}

int update_create(zero *z) {
    const int n = z->layout.n_units;
    z->update.is_ahead = rank_states_are_away(z);
    ZERO_TRY(state_keep_next(&z->update.next_params, rank_state(z, ZERO_PARAM), &z->config, &z->memory));
    ZERO_TRY_ALLOC(z->update.units = allocate_array(z, n, sizeof *z->update.units));
    ZERO_TRY_ALLOC(z->update.order = allocate_array(z, n, sizeof *z->update.order));
    ZERO_TRY(create_pieces(z));
    ZERO_TRY(create_own(z));
    for (int u = 0; u < n; u++) ZERO_TRY(create_tasks(z, u));
    return 0;
}

// -------- one unit

static int has_next(const zero *z, int unit) {
    return placement_has_next(&z->config, &z->layout, z->net.rank, unit);
}

static int begin_state(zero *z, zero_value what, const struct update_piece *piece, state_part parts[STATES]) {
    const int is_delayed = what == ZERO_PARAM && z->update.is_delayed;
    state *s = is_delayed ? &z->update.next_params : rank_state(z, what);
    state_intent intent = STATE_CHANGE;
    if (what == ZERO_GRADIENT) intent = STATE_READ;
    if (what == ZERO_PARAM && rank_state(z, ZERO_MASTER)->kept) intent = STATE_WRITE;  // rounded masters
    if (!s->kept || (is_delayed && !has_next(z, piece->range.unit))) return 0;
    return state_begin(&parts[what], s, piece->on, piece->range, intent, NULL);
}

// Tasks of previous units begin pieces of later ones, perhaps before their reduction. If the device has
// streams, its work may even be queued still, and only the unit's own task is ordered after it.
static int is_reduced(zero *z, int at) {
    const int unit = z->update.order[at];
    if (at == z->update.at) return 1;
    if (at >= __atomic_load_n(&z->update.n_submitted, __ATOMIC_ACQUIRE)) return 0;
    if (z->device.asynchronous && z->update.units[unit].is_early) return 0;
    return tasks_have_run(&z->tasks, grads_reduction(z, unit));
}

// If pieces are begun ahead, traces how long the update waits for each: for reads, for copies, and for
// buffers that are still being written.
static void trace_wait(zero *z, const struct update_piece *piece, double start) {
    const lane on = traced_lane(z, z->update.units[piece->range.unit].adamw.lane);
    if (z->update.is_ahead && on != LANE_TRAINER)
        trace_add(&z->trace, EVENT_WAIT, piece->range.unit, on, start);
}

// Begins opening the piece's states, except those already begun, and gradients that are not reduced yet.
static int begin_piece(zero *z, struct update_opened *o) {
    const double start = trace_now(&z->trace);
    for (int what = 0; what < STATES; what++)
        if (!o->parts[what].of && (what != ZERO_GRADIENT || is_reduced(z, o->at)))
            ZERO_TRY(begin_state(z, what, o->piece, o->parts));
    trace_wait(z, o->piece, start);
    return 0;
}

static int wait_for_piece(zero *z, struct update_opened *o) {
    const double start = trace_now(&z->trace);
    for (int what = 0; what < STATES; what++)
        if (o->parts[what].of) ZERO_TRY(state_ready(&o->parts[what]));
    trace_wait(z, o->piece, start);
    return 0;
}

static int update_piece(zero *z, struct update_opened *o) {
    const struct update_piece *piece = o->piece;
    const state_part *parts = o->parts;
    device *d = piece->by;
    const int own_master = z->config.numbers.dtype == ZERO_F32 && !rank_state(z, ZERO_MASTER)->kept;
    ZERO_TRY(wait_for_piece(z, o));
    const adamw_arrays a = {
        .p = (float *)parts[own_master ? ZERO_PARAM : ZERO_MASTER].at,
        .m = (float *)parts[ZERO_MOMENT1].at,
        .v = (float *)parts[ZERO_MOMENT2].at,
        .g = parts[ZERO_GRADIENT].at,
        .low = own_master || !parts[ZERO_PARAM].of ? NULL : parts[ZERO_PARAM].at,
        .g_type = rank_state(z, ZERO_GRADIENT)->dtype,
        .low_type = z->config.numbers.dtype,
    };
    ZERO_TRY(d->f->update(d, piece->on, &z->update.own, &z->update.constants, &a, &piece->table));
    if (parts[ZERO_PARAM].of && !z->update.is_delayed) params_put(z, &parts[ZERO_PARAM]);
    return 0;
}

// -------- the open pieces

static struct update_opened *opened(zero *z, int i) {
    return &z->update.opened[(z->update.first + i) % UPDATE_OPENED];
}

// There are buffers for three pieces: one that is read, one in use, and one that is written. While none is
// written, three can be read. Gradients in files have one buffer less, and so have copies across the bus.
static int most_opened(const zero *z) {
    if (!z->update.is_ahead) return 1;
    return placement_crosses(&z->config) || rank_state(z, ZERO_GRADIENT)->files ? 2 : UPDATE_OPENED;
}

// Adds the next piece, with nothing begun. Returns NULL if enough are open or the order is not known further.
static struct update_opened *open_next(zero *z) {
    struct update *s = &z->update;
    const int known = __atomic_load_n(&s->n_known, __ATOMIC_ACQUIRE);
    if (s->n_opened == most_opened(z)) return NULL;
    while (s->next_at < known && s->next_piece == s->units[s->order[s->next_at]].n_pieces) {
        s->next_at++;
        s->next_piece = 0;
    }
    if (s->next_at >= known) return NULL;
    struct update_opened *o = opened(z, s->n_opened++);
    const int first = s->units[s->order[s->next_at]].first_piece;
    *o = (struct update_opened){ .piece = &s->pieces[first + s->next_piece++], .at = s->next_at };
    return o;
}

// Begins as many pieces as can be open. A third one must not wait for a buffer that is still being written,
// unless the first one waits for its gradients anyway.
static int begin_pieces(zero *z) {
    struct update *s = &z->update;
    for (int i = 0; i < s->n_opened; i++) ZERO_TRY(begin_piece(z, opened(z, i)));
    for (struct update_opened *o;
         s->n_opened < 2 || !is_reduced(z, opened(z, 0)->at) || rank_states_have_buffers(z);) {
        if (!(o = open_next(z))) return 0;
        ZERO_TRY(begin_piece(z, o));
    }
    return 0;
}

// Updates the first open piece, and closes it.
static int update_first(zero *z) {
    struct update *s = &z->update;
    struct update_opened *o = opened(z, 0);
    ZERO_TRY(begin_pieces(z));
    ZERO_TRY(update_piece(z, o));
    s->first = (s->first + 1) % UPDATE_OPENED;
    s->n_opened--;
    return state_close_after(0, o->parts, STATES);
}

static void drop_opened(zero *z) {
    struct update *s = &z->update;
    for (int i = 0; i < s->n_opened; i++) state_close_after(ZERO_ERR_MISUSE, opened(z, i)->parts, STATES);
    s->n_opened = s->next_at = s->next_piece = 0;
}

static int update_pieces(zero *z, const struct update_unit *u) {
    for (int i = 0; i < u->n_pieces; i++) ZERO_TRY(update_first(z));
    return z->update.is_ahead ? begin_pieces(z) : 0;
}

// Runs a unit's update. Backward or the previous tasks may have begun its first pieces. The task's own stream
// already waits for the tasks it needs; the stream of copies to the host must wait for the reduction too.
static int run_adamw(void *ctx, task *k) {
    zero *z = ctx;
    device *d = &z->device;
    const struct update_unit *u = &z->update.units[k->index];
    double start = trace_now(&z->trace);
    if (u->n_pieces) {
        if (placement_crosses(&z->config)) ZERO_TRY(d->f->order(d, DOWN, grads_reduction(z, k->index)->done));
        const int rc = update_pieces(z, u);
        if (rc) drop_opened(z);
        ZERO_TRY(rc);
        trace_add(&z->trace, EVENT_UPDATE, k->index, traced_lane(z, k->lane), start);
    }
    z->update.at++;
    return 0;
}

// -------- delayed by a step (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840, section 5.1)
//
// A step's update changes masters and moments during the next step, whose passes read the old parameters. At
// the end of that step the masters become the parameters, and the next update may begin. So masters and
// parameters are two versions. Parameters in files keep both versions there, and publishing swaps them.
// Gradients need only one version: units are updated in backward's order, so the update reads a unit's
// gradients before the next step overwrites them.

// Rounds the masters of a piece to the parameters' dtype.
static int round_piece(zero *z, const struct update_piece *piece) {
    state *params = rank_state(z, ZERO_PARAM), *masters = rank_state(z, ZERO_MASTER);
    device *d = piece->by;
    state_part low, master;
    ZERO_TRY(state_open_range(&low, params, piece->on, piece->range, STATE_WRITE));
    int rc = state_open_range(&master, masters, piece->on, piece->range, STATE_READ);
    if (!rc)
        rc = device_convert(d, piece->on, params->dtype, low.at, masters->dtype, master.at,
                            piece->range.elems, 0);
    return state_close_after(state_close_after(rc, &master, 1), &low, 1);
}

static int run_publish(void *ctx, task *k) {
    zero *z = ctx;
    const struct update_unit *u = &z->update.units[k->index];
    if (!u->is_delayed) return 0;
    if (has_next(z, k->index)) {
        state_publish(rank_state(z, ZERO_PARAM), &z->update.next_params, k->index);
        return 0;
    }
    for (const struct update_piece *p = &z->update.pieces[u->first_piece];
         p < &z->update.pieces[u->first_piece + u->n_pieces]; p++)
        ZERO_TRY(round_piece(z, p));
    return 0;
}

int update_is_unpublished(const zero *z) { return z->update.unpublished; }

// Publishes the units in the order in which forward uses them.
int update_publish(zero *z) {
    if (!z->update.unpublished) return 0;
    ZERO_TRY(update_wait(z));
    const int *order = schedule_update_order(&z->schedule);
    for (int i = 0; i < z->layout.n_units; i++) {
        struct update_unit *u = &z->update.units[order[i]];
        u->is_delayed = 1;
        ZERO_TRY(params_before_update(z, order[i]));
        ZERO_TRY(tasks_submit(&z->tasks, &u->publish, AFTER(&z->tasks.trainer)));
        ZERO_TRY(params_updated(z, order[i], &u->publish));
    }
    z->update.unpublished = 0;
    return 0;
}

// -------- reading the first pieces of the update during backward
//
// Unless the update is promised, no unit may be updated before the norm is known, but during backward the
// buffers are free and the disk only reads parameters. So all states except gradients are read early;
// gradients follow when the update begins.

int update_discard(zero *z) {
    ZERO_TRY(update_wait(z));
    drop_opened(z);
    return 0;
}

int update_pieces_read_ahead(const zero *z) { return z->update.n_opened; }

// Reads one piece at a time, because backward's reads of parameters queue up behind it. The order is a
// prediction: see update_now.
static int read_ahead(zero *z) {
    struct update *s = &z->update;
    struct update_opened *o;
    const size_t bytes = z->layout.n_units * sizeof *s->order;
    const int last = s->order[z->layout.n_units - 1];
    if (!z->plan.own[PLAN_FILE_BUFFERS].blocks || z->config.debug.naive || !pass_is_last(z)) return 0;
    if (!tasks_have_run(&z->tasks, &s->units[last].adamw) || !rank_states_have_buffers(z)) return 0;
    if (!s->n_opened) {
        memcpy(s->order, schedule_update_order(&z->schedule), bytes);
        s->n_known = z->layout.n_units;
        s->n_submitted = s->next_at = s->next_piece = 0;
    }
    if (!(o = open_next(z))) return 0;
    for (int what = 0; what < ZERO_GRADIENT; what++)
        if (rank_state(z, what)->files) ZERO_TRY(begin_state(z, what, o->piece, o->parts));
    return 0;
}

// -------- the order of the units

// First ends and publishes the last update, so that no unit is being updated while these fields are set.
static int begin_update(zero *z, const zero_hyper *h, double grad_scale) {
    const int first_delayed = z->config.offload.delayed_update;
    ZERO_TRY(update_wait(z));
    ZERO_TRY(update_publish(z));
    z->update.constants = adamw_prepare(h, grad_scale, z->config.numbers.rounding_seed);
    z->update.own.hyper = *h;
    z->update.n_known = z->update.n_submitted = z->update.at = 0;
    if (!z->update.n_opened) z->update.next_at = z->update.next_piece = 0;
    z->update.is_delayed = first_delayed && h->t >= first_delayed;
    for (int i = 0; i < z->layout.n_units; i++) z->update.units[i].is_early = 0;
    return 0;
}

// At most two units are submitted during backward: one is updated while the states of the other are read. The
// others wait, so that units not yet updated when backward ends are updated in forward's order.
enum { EARLY = 2 };

// Submits the update of the next unit in reverse table order, in which backward reaches them. The two after
// it become known too, so that their states are read before their gradients are there.
static int submit_early(zero *z, int unit) {
    struct update *s = &z->update;
    const int known = s->n_early + 1 + (unit < EARLY ? unit : EARLY);
    s->units[unit].is_early = 1;
    s->n_early++;
    for (int at = s->n_known; at < known; at++) s->order[at] = z->layout.n_units - 1 - at;
    __atomic_store_n(&s->n_submitted, s->n_early, __ATOMIC_RELEASE);
    __atomic_store_n(&s->n_known, known, __ATOMIC_RELEASE);
    return tasks_submit(&z->tasks, &s->units[unit].adamw, AFTER(grads_reduction(z, unit)));
}

// After all forward uses and the unit's last backward use, only the next step needs its parameters.
int update_during_backward(zero *z) {
    struct update *s = &z->update;
    const int has_own_lane = s->units[0].adamw.lane != LANE_TRAINER;
    const int may_be_delayed = z->config.offload.delayed_update > 0;
    if (!pass_forward_is_over(z) || !has_own_lane || may_be_delayed) return 0;
    if (!pass_promised(z)) return read_ahead(z);
    while (s->n_early < z->layout.n_units) {
        const int n = s->n_early, unit = z->layout.n_units - 1 - n;
        if (n >= EARLY && !tasks_have_run(&z->tasks, &s->units[s->order[n - EARLY]].adamw)) return 0;
        if (!grads_are_last(z, unit)) return 0;
        if (!n) {
            ZERO_TRY(begin_update(z, pass_promised(z), 1));
            drop_opened(z);  // what the same step has read if it was begun before, without a promise
        }
        ZERO_TRY(submit_early(z, unit));
    }
    return 0;
}

// The order is complete, and all gradients are reduced.
static void all_are_known(zero *z) {
    __atomic_store_n(&z->update.n_submitted, z->layout.n_units, __ATOMIC_RELEASE);
    __atomic_store_n(&z->update.n_known, z->layout.n_units, __ATOMIC_RELEASE);
}

// Updates units in reverse table order, the order in which backward will overwrite their gradients. Shared
// units come first if backward adds to the gradients in place, because their first backward use clears them.
static int update_delayed(zero *z) {
    int n = 0;
    for (int shared = 1; shared >= 0; shared--)
        for (int unit = z->layout.n_units - 1; unit >= 0; unit--) {
            const int comes_first = z->layout.units[unit].shared && !plan_uses_buckets(&z->config);
            if (comes_first == shared) z->update.order[n++] = unit;
        }
    all_are_known(z);
    for (int i = 0; i < n; i++)
        ZERO_TRY(tasks_submit(&z->tasks, &z->update.units[z->update.order[i]].adamw, AFTER_NOTHING));
    z->update.unpublished = 1;
    return 0;
}

void update_forget(zero *z) { z->update.unpublished = 0; }

// -------- the update

static int submit_adamw(zero *z, int unit) {
    return tasks_submit(&z->tasks, &z->update.units[unit].adamw, AFTER(&z->tasks.trainer));
}

// If later updates may be delayed, gathers must not wait for them, so they wait for `publish`.
static int submit_unit(zero *z, int unit) {
    struct update_unit *u = &z->update.units[unit];
    const int may_be_delayed = z->config.offload.delayed_update > 0;
    ZERO_TRY(params_before_update(z, unit));
    if (!u->is_early) ZERO_TRY(submit_adamw(z, unit));
    u->is_delayed = 0;
    if (may_be_delayed) ZERO_TRY(tasks_submit(&z->tasks, &u->publish, AFTER(&u->adamw)));
    return params_updated(z, unit, may_be_delayed ? &u->publish : &u->adamw);
}

// Submits the units in forward's order, so that units that forward needs first are gathered while the others
// are updated. Those known during backward come first, because their states may have been read. Otherwise,
// pieces that backward has read are dropped if it has predicted a different order.
static int update_now(zero *z) {
    struct update *s = &z->update;
    const int n = z->layout.n_units, n_first = s->n_known, *order = schedule_update_order(&z->schedule);
    if (!n_first && s->n_opened && memcmp(s->order, order, n * sizeof *order)) drop_opened(z);
    for (int i = s->n_early; i < n_first; i++) {
        s->units[s->order[i]].is_early = 1;
        ZERO_TRY(submit_adamw(z, s->order[i]));
    }
    for (int i = 0, at = n_first; i < n; i++)
        if (!s->units[order[i]].is_early) s->order[at++] = order[i];
    s->n_early = 0;
    all_are_known(z);
    for (int i = 0; i < n; i++) ZERO_TRY(submit_unit(z, order[i]));
    return 0;
}

int update_units(zero *z, const zero_hyper *h, double grad_scale) {
    if (!z->update.n_early) ZERO_TRY(begin_update(z, h, grad_scale));
    return z->update.is_delayed ? update_delayed(z) : update_now(z);
}

int update_wait(zero *z) {
    for (int u = 0; z->update.units && u < z->layout.n_units; u++) {
        ZERO_TRY(tasks_wait(&z->tasks, &z->update.units[u].publish));
        ZERO_TRY(tasks_wait(&z->tasks, &z->update.units[u].adamw));
    }
    return 0;
}
