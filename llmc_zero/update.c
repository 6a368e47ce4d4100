// The update of the parts that this rank owns, unit by unit, piece by piece. If all states are in memory, a
// unit is one piece. If states are in files, a piece fills one of the file buffers, and reading the next
// piece, updating this one and writing the previous one overlap (ZeRO-Infinity, Rajbhandari et al. 2021,
// section 5.2.2).
#include "update.h"
#include "internal.h"
#include "tiers/state_file.h"
#include <stdlib.h>
#include <string.h>

// -------- tables, built once at creation

static int run_adamw(void *ctx, task *k);
static int run_publish(void *ctx, task *k);

// Adds a segment for each tensor in the piece, without padding. Offsets are relative to the piece, so they
// hold for every state.
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

// A unit's task runs after its bucket's reduction. But the previous unit's task begins this unit's first
// piece and may run before that reduction, so it must check.
static int is_reduced(zero *z, int unit) { return tasks_have_run(&z->tasks, grads_reduction(z, unit)); }

// If pieces are begun ahead, traces how long the update waits for each: for reads, for copies, and for
// buffers that are still being written.
static void trace_wait(zero *z, const struct update_piece *piece, double start) {
    const lane on = traced_lane(z, z->update.units[piece->range.unit].adamw.lane);
    if (z->update.is_ahead && on != LANE_TRAINER)
        trace_add(&z->trace, EVENT_WAIT, piece->range.unit, on, start);
}

// Begins opening the piece's states, except those already begun. Gradients are opened only if they are
// reduced.
static int begin_piece(zero *z, const struct update_piece *piece, state_part parts[STATES]) {
    const double start = trace_now(&z->trace);
    for (int what = 0; what < STATES; what++)
        if (!parts[what].of && (what != ZERO_GRADIENT || is_reduced(z, piece->range.unit)))
            ZERO_TRY(begin_state(z, what, piece, parts));
    trace_wait(z, piece, start);
    return 0;
}

static int wait_for_piece(zero *z, const struct update_piece *piece, state_part parts[STATES]) {
    const double start = trace_now(&z->trace);
    if (!parts[ZERO_GRADIENT].of) ZERO_TRY(begin_state(z, ZERO_GRADIENT, piece, parts));
    for (int what = 0; what < STATES; what++)
        if (parts[what].of) ZERO_TRY(state_ready(&parts[what]));
    trace_wait(z, piece, start);
    return 0;
}

static int update_opened(zero *z, const struct update_piece *piece, state_part parts[STATES]) {
    device *d = piece->by;
    const int own_master = z->config.numbers.dtype == ZERO_F32 && !rank_state(z, ZERO_MASTER)->kept;
    ZERO_TRY(wait_for_piece(z, piece, parts));
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

// Returns the piece to begin while piece i of unit order[at] is updated; NULL: none, or not known yet.
static const struct update_piece *piece_after(const zero *z, int i) {
    const struct update_unit *u = &z->update.units[z->update.order[z->update.at]];
    if (i + 1 < u->n_pieces) return &z->update.pieces[u->first_piece + i + 1];
    if (!z->update.is_ahead) return NULL;
    const int known = __atomic_load_n(&z->update.n_known, __ATOMIC_ACQUIRE);
    int at = z->update.at + 1;
    while (at < known && !z->update.units[z->update.order[at]].n_pieces) at++;  // units without gradients
    if (at >= known) return NULL;
    const struct update_unit *next = &z->update.units[z->update.order[at]];
    // A reduction task may have run while its work is still queued on the device. Only the unit's own task is
    // ordered after that work.
    if (z->device.asynchronous && next->is_early) return NULL;
    return &z->update.pieces[next->first_piece];
}

// Updates a piece that begin_piece has begun, and begins the next one.
static int update_piece(zero *z, const struct update_piece *piece, const struct update_piece *next) {
    state_part *parts = z->update.opened[z->update.window];
    z->update.window = !z->update.window;
    int rc = next ? begin_piece(z, next, z->update.opened[z->update.window]) : 0;
    if (!rc) rc = update_opened(z, piece, parts);
    rc = state_close_after(rc, parts, STATES);
    return rc ? state_close_after(rc, z->update.opened[z->update.window], STATES) : 0;
}

// Runs a unit's update. Backward or the previous task may have begun its first piece. The task's own stream
// already waits for the tasks it needs; the stream of copies to the host must wait for the reduction too.
static int run_adamw(void *ctx, task *k) {
    zero *z = ctx;
    device *d = &z->device;
    const struct update_unit *u = &z->update.units[k->index];
    double start = trace_now(&z->trace);
    if (!u->n_pieces) {
        z->update.at++;
        return 0;
    }
    if (placement_crosses(&z->config)) ZERO_TRY(d->f->order(d, DOWN, grads_reduction(z, k->index)->done));
    ZERO_TRY(begin_piece(z, &z->update.pieces[u->first_piece], z->update.opened[z->update.window]));
    for (int i = 0; i < u->n_pieces; i++)
        ZERO_TRY(update_piece(z, &z->update.pieces[u->first_piece + i], piece_after(z, i)));
    z->update.at++;
    trace_add(&z->trace, EVENT_UPDATE, k->index, traced_lane(z, k->lane), start);
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
        ZERO_TRY(tasks_submit(&z->tasks, &u->publish, AFTER(&z->tasks.trainer)));
        ZERO_TRY(params_updated(z, order[i], &u->publish));
    }
    z->update.unpublished = 0;
    return 0;
}

// -------- reading the first pieces of the update during backward
//
// No unit may be updated before the norm is known, but during backward the buffers are free and the disk only
// reads parameters. So all states except gradients are read early; gradients follow when the update begins.

void update_discard(zero *z) {
    for (int i = 0; i < 2; i++) {
        if (z->update.read_ahead[i]) state_close_after(ZERO_ERR_MISUSE, z->update.opened[i], STATES);
        z->update.read_ahead[i] = NULL;
    }
}

int update_pieces_read_ahead(const zero *z) {
    return (z->update.read_ahead[0] != NULL) + (z->update.read_ahead[1] != NULL);
}

// Finds the first two pieces of an update in this order; NULL if it has fewer.
static void first_pieces(const zero *z, const int *order, const struct update_piece *first[2]) {
    int n = 0;
    first[0] = first[1] = NULL;
    for (int i = 0; i < z->layout.n_units && n < 2; i++) {
        const struct update_unit *u = &z->update.units[order[i]];
        for (int k = 0; k < u->n_pieces && n < 2; k++) first[n++] = &z->update.pieces[u->first_piece + k];
    }
}

// Reads one piece at a time, because backward's reads of parameters queue up behind it.
static int read_ahead(zero *z) {
    struct update *s = &z->update;
    const struct update_piece *first[2];
    const int at = s->read_ahead[s->window] ? !s->window : s->window;
    const int last = s->order[z->layout.n_units - 1];
    if (!z->plan.own[PLAN_FILE_BUFFERS].blocks || z->config.debug.naive) return 0;
    if (s->read_ahead[at] || !pass_is_last(z)) return 0;
    // The last update must have ended, including its writes.
    if (!tasks_have_run(&z->tasks, &s->units[last].adamw) || !rank_states_are_written(z)) return 0;
    first_pieces(z, schedule_update_order(&z->schedule), first);
    const struct update_piece *piece = s->read_ahead[at] = first[at != s->window];
    for (int what = 0; piece && what < ZERO_GRADIENT; what++)
        if (rank_state(z, what)->files) ZERO_TRY(begin_state(z, what, piece, s->opened[at]));
    return 0;
}

// Takes the pieces that were read ahead. Drops them if they are not the first ones of the update's final
// order.
static void take_read_ahead(zero *z) {
    struct update *s = &z->update;
    const struct update_piece *first[2], *one = s->read_ahead[s->window], *two = s->read_ahead[!s->window];
    first_pieces(z, s->order, first);
    if ((one && one != first[0]) || (two && two != first[1])) update_discard(z);
    s->read_ahead[0] = s->read_ahead[1] = NULL;
}

// -------- the order of the units

// First waits for the last update and publishes it, so that no unit is being updated while these fields are
// set.
static int begin_update(zero *z, const zero_hyper *h, double grad_scale) {
    const int first_delayed = z->config.offload.delayed_update;
    ZERO_TRY(update_wait(z));
    ZERO_TRY(update_publish(z));
    z->update.constants = adamw_prepare(h, grad_scale, z->config.numbers.rounding_seed);
    z->update.own.hyper = *h;
    z->update.n_known = z->update.at = 0;
    z->update.is_delayed = first_delayed && h->t >= first_delayed;
    for (int i = 0; i < z->layout.n_units; i++) z->update.units[i].is_early = 0;
    return 0;
}

// Backward reaches units in reverse table order. After all forward uses and the unit's last backward use, no
// hook needs the unit's parameters before the next step.
int update_during_backward(zero *z) {
    struct update *s = &z->update;
    const int has_own_lane = s->units[0].adamw.lane != LANE_TRAINER;
    const int may_be_delayed = z->config.offload.delayed_update > 0;
    if (!pass_forward_is_over(z) || !has_own_lane || may_be_delayed) return 0;
    if (!pass_promised(z)) return read_ahead(z);
    while (s->n_early < z->layout.n_units) {
        const int n = s->n_early, unit = z->layout.n_units - 1 - n;
        // At most two units are submitted: one is updated while the states of the other are read. The others
        // wait, so that units not yet updated when backward ends are updated in forward's order.
        if (n > 1 && !tasks_have_run(&z->tasks, &s->units[s->order[n - 2]].adamw)) return 0;
        if (!grads_are_last(z, unit)) return 0;
        if (!n) ZERO_TRY(begin_update(z, pass_promised(z), 1));
        s->order[s->n_early++] = unit;
        s->units[unit].is_early = 1;
        __atomic_store_n(&s->n_known, s->n_early, __ATOMIC_RELEASE);
        ZERO_TRY(tasks_submit(&z->tasks, &s->units[unit].adamw, AFTER(grads_reduction(z, unit))));
    }
    return 0;
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
    __atomic_store_n(&z->update.n_known, n, __ATOMIC_RELEASE);
    for (int i = 0; i < n; i++)
        ZERO_TRY(tasks_submit(&z->tasks, &z->update.units[z->update.order[i]].adamw, AFTER_NOTHING));
    z->update.unpublished = 1;
    return 0;
}

void update_forget(zero *z) { z->update.unpublished = 0; }

// -------- the update

// Submits the unit's update unless backward has, and its gather. If later updates may be delayed, gathers
// must not wait for them, so they wait for `publish`.
static int submit_unit(zero *z, int unit) {
    struct update_unit *u = &z->update.units[unit];
    const int may_be_delayed = z->config.offload.delayed_update > 0;
    if (!u->is_early) ZERO_TRY(tasks_submit(&z->tasks, &u->adamw, AFTER(&z->tasks.trainer)));
    u->is_delayed = 0;
    if (may_be_delayed) ZERO_TRY(tasks_submit(&z->tasks, &u->publish, AFTER(&u->adamw)));
    return params_updated(z, unit, may_be_delayed ? &u->publish : &u->adamw);
}

// Submits the units in forward's order, so that units that forward needs first are gathered while the others
// are updated. Those updated during backward come first.
static int update_now(zero *z) {
    const int n = z->layout.n_units;
    const int *order = schedule_update_order(&z->schedule);
    for (int i = 0, at = z->update.n_early; i < n; i++)
        if (!z->update.units[order[i]].is_early) z->update.order[at++] = order[i];
    if (!z->update.n_early) take_read_ahead(z);
    z->update.n_early = 0;
    __atomic_store_n(&z->update.n_known, n, __ATOMIC_RELEASE);
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
