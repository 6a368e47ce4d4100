#include "state_across.h"
#include "../base/error.h"
#include "../placement.h"
#include "state_file.h"
#include <string.h>

// -------- memory of the rings

enum { BLOCK_ALIGN = 256 };

static void plan_ring(across_plan *p, across_ring_name ring, int blocks, size_t block_bytes) {
    p->blocks[ring] = blocks;
    p->block_bytes[ring] = block_bytes;
    p->bytes[ring] = blocks * block_bytes;
}

// Plans room for two reductions: one is copied to the host while the next is computed.
static void plan_reductions(across_plan *p, const zero_config *c, const layout *l) {
    const size_t size = dtype_bytes(state_of(ZERO_GRADIENT, c, l, 0, NULL).dtype);
    size_t bytes[l->n_buckets];
    memset(bytes, 0, sizeof bytes);
    for (const layout_unit *u = l->units; u < l->units + l->n_units; u++) {
        if (u->bucket < 0) continue;
        size_t *of_bucket = &bytes[u->bucket];
        *of_bucket += round_up(u->shard * size, BLOCK_ALIGN);
        if (2 * *of_bucket > p->bytes[RING_REDUCTIONS]) p->bytes[RING_REDUCTIONS] = 2 * *of_bucket;
    }
    p->blocks[RING_REDUCTIONS] = 2 * l->n_units;
    p->block_bytes[RING_REDUCTIONS] = BLOCK_ALIGN;
}

// Plans three blocks per state: the update opens one piece, uses another, and copies back a third.
across_plan state_plan_across(const zero_config *c, const layout *l) {
    across_plan p = { .blocks = { 0 } };
    if (!placement_crosses(c)) return p;
    const int params = placement_tier(ZERO_PARAM, c) != ZERO_DEVICE;
    const int grads = placement_tier(ZERO_GRADIENT, c) != ZERO_DEVICE;
    const int optimizer = placement_tier(ZERO_MOMENT1, c) != ZERO_DEVICE;
    const int all_away = optimizer && c->offload.optimizer_ratio >= 1;
    const size_t piece = round_up(placement_piece_elems(c, l) * sizeof(float), BLOCK_ALIGN);
    p.blocks[RING_GATHERS] = params ? STATE_FETCHES : 0;
    if (c->inference) return p;
    if (optimizer) plan_ring(&p, RING_PROCESSOR, 3 * (!params + !grads), piece);
    if (!all_away) plan_ring(&p, RING_UPDATE, 3 * (params + grads), piece);
    if (grads) plan_reductions(&p, c, l);
    return p;
}

// -------- rings

// A section of a ring's memory that a part uses or used.
typedef struct across_block {
    size_t from, bytes;
    int taken;
    void *used;       // event: the last work on the memory
    state_part home;  // the same part, opened where it is stored
    int lingers;      // 1: home is still open, because a copy may still read it
} across_block;

typedef struct {
    char *memory;
    size_t bytes, block_bytes, head;
    across_block *blocks;  // (n) used one after another
    int n, next;
} ring;

struct state_across {
    device *device;
    trace *trace;
    ring rings[RINGS];
    int64_t down, up;  // bytes copied
};

// One state's data for crossing the bus. Each piece of this rank's part of a unit has an event, so that a
// piece can be copied to the device while the previous one is still being copied to the host.
struct state_crossed {
    struct state_across *of;
    const state_store *home;
    int *first;  // (state_units, state_parts) index of a part's first event
    int n_copied;
    void **copied;  // (n_copied) events: the last copy of a piece on the host
};

int state_across_open(struct state_across **out, const across_plan *plan, memory *m,
                      char *const memory[RINGS], device *d, trace *tr) {
    struct state_across *a = *out = memory_array(m, 1, sizeof *a);
    if (!a) return ZERO_ERR_MEMORY;
    a->device = d;
    a->trace = tr;
    for (int i = 0; i < RINGS; i++) {
        ring *r = &a->rings[i];
        *r = (ring){ .memory = memory[i], .bytes = plan->bytes[i], .block_bytes = plan->block_bytes[i] };
        r->blocks = memory_array(m, plan->blocks[i], sizeof *r->blocks);
        if (!r->blocks) return ZERO_ERR_MEMORY;
        for (; r->n < plan->blocks[i]; r->n++) ZERO_TRY(d->f->create_event(d, &r->blocks[r->n].used));
    }
    return 0;
}

void state_across_close(struct state_across *a) {
    for (ring *r = a ? a->rings : NULL; a && r < a->rings + RINGS; r++)
        for (int i = 0; i < r->n; i++) a->device->f->destroy_event(a->device, r->blocks[i].used);
}

void state_across_count(const struct state_across *a, int64_t *down, int64_t *up) {
    *down = __atomic_load_n(&a->down, __ATOMIC_RELAXED);
    *up = __atomic_load_n(&a->up, __ATOMIC_RELAXED);
}

static ring *ring_of(const state_part *p) {
    across_ring_name name = p->on == UP ? RING_UPDATE : RING_REDUCTIONS;
    if (p->into) name = RING_GATHERS;
    if (p->on == PROCESSOR) name = RING_PROCESSOR;
    return &p->of->crossed->of->rings[name];
}

// Makes the first access to the memory, by the copy or by the part's own stream, wait for its previous user.
static int reuse(const state_part *p, const across_block *b) {
    device *d = p->of->device;
    if (b->taken)
        return zero_fail(ZERO_ERR_MISUSE, "%s, unit %d: all memory for copies of states is in use",
                         p->of->name, p->range.unit);
    if (p->on == PROCESSOR) return d->f->wait_event(d, b->used);
    return d->f->order(d, p->intent == STATE_WRITE ? p->on : UP, b->used);
}

static int take_block(state_part *p) {
    ring *r = ring_of(p);
    across_block *b = &r->blocks[r->next];
    size_t bytes = p->into ? 0 : round_up(p->range.elems * dtype_bytes(p->of->dtype), BLOCK_ALIGN);
    if (bytes < r->block_bytes) bytes = r->block_bytes;
    const size_t from = r->head + bytes > r->bytes ? 0 : r->head;
    if (bytes > r->bytes || !r->n)
        return zero_fail(ZERO_ERR_MISUSE, "%s, unit %d: no memory for copying %lld elements", p->of->name,
                         p->range.unit, (long long)p->range.elems);
    for (const across_block *o = r->blocks; o < r->blocks + r->n; o++)
        if (o == b || (o->from < from + bytes && from < o->from + o->bytes)) ZERO_TRY(reuse(p, o));
    r->head = from + bytes;
    r->next = (r->next + 1) % r->n;
    if (b->lingers) {
        b->lingers = 0;
        ZERO_TRY(p->of->device->f->wait_event(p->of->device, b->used));
        ZERO_TRY(b->home.of->crossed->home->close(&b->home));
    }
    *b = (across_block){ .from = from, .bytes = bytes, .taken = 1, .used = b->used, .home = *p };
    b->home.into = NULL;
    p->block = b;
    p->at = p->into ? p->into : r->memory + from;
    return 0;
}

// -------- copies

// Returns the index of the event of a part's element.
static int event_of(const state *s, int unit, int part, int64_t at) {
    const int64_t before = layout_before(&s->layout->units[unit], part);
    return s->crossed->first[unit * state_parts(s) + part / s->group] +
           (int)((before % PAGE_ELEMS + at) / s->piece);
}

// Returns the events of the pieces in the range.
static void **copied_events(const state_part *p, int *n) {
    const state *s = p->of;
    const state_range *r = &p->range;
    const int is_all = r->part == STATE_WHOLE;
    const int first = is_all ? state_first_part(s) : r->part;
    const int last = is_all ? first + (state_parts(s) - 1) * s->group : first;
    const int64_t end = r->from + r->elems - (last - first) / s->group * s->layout->units[r->unit].shard;
    const int begin = event_of(s, r->unit, first, r->from);
    *n = r->elems ? event_of(s, r->unit, last, end - 1) + 1 - begin : 0;
    return s->crossed->copied + begin;
}

// ORDER_AFTER: later work on s runs after the last copies of the part. NOTE: the copy just queued on s is now
// the last. WAIT_FOR: the host waits for them.
typedef enum { ORDER_AFTER, NOTE, WAIT_FOR } copies_act;
static int last_copies(const state_part *p, copies_act act, device_stream s) {
    device *d = p->of->device;
    int n, rc = 0;
    void **copied = copied_events(p, &n);
    for (int i = 0; i < n && !rc; i++) {
        if (act == ORDER_AFTER) rc = d->f->order(d, s, copied[i]);
        if (act == NOTE) rc = d->f->record(d, copied[i], s);
        if (act == WAIT_FOR) rc = d->f->wait_event(d, copied[i]);
    }
    return rc;
}

// Copies to the host on DOWN, to the device on any other stream.
static int copy(const state_part *p, device_stream on, void *to, const void *from) {
    struct state_across *a = p->of->crossed->of;
    const int is_down = on == DOWN;
    const trace_event e = { .kind = is_down ? EVENT_TO_HOST : EVENT_TO_DEVICE,
                            .unit = p->range.unit,
                            .lane = is_down ? LANE_TO_HOST : LANE_TO_DEVICE,
                            .bytes = p->range.elems * dtype_bytes(p->of->dtype) };
    const trace_span span = trace_begin(a->trace, on);
    __atomic_add_fetch(is_down ? &a->down : &a->up, e.bytes, __ATOMIC_RELAXED);
    ZERO_TRY(a->device->f->copy(a->device, on, to, from, e.bytes));
    trace_end(a->trace, &span, &e);
    return 0;
}

// -------- a part on the device, opened by the CPU

static int begin_on_host(state_part *p) {
    device *d = p->of->device;
    ZERO_TRY(p->of->crossed->home->ready(&p->block->home));  // an address, without a wait
    if (p->intent == STATE_WRITE) return 0;
    ZERO_TRY(copy(p, DOWN, p->at, p->block->home.at));
    return d->f->record(d, p->block->used, DOWN);
}

static int close_on_host(state_part *p) {
    device *d = p->of->device;
    if (p->intent == STATE_READ) return 0;
    ZERO_TRY(copy(p, UP, p->block->home.at, p->at));
    return d->f->record(d, p->block->used, UP);
}

// -------- a part on the host, opened by a stream

// A copy to the caller's memory (`into`) runs on the caller's stream.
static int ready_on_device(state_part *p) {
    device *d = p->of->device;
    const device_stream by = p->into ? p->on : UP;
    ZERO_TRY(p->of->crossed->home->ready(&p->block->home));
    if (p->intent == STATE_WRITE) return 0;
    ZERO_TRY(last_copies(p, ORDER_AFTER, by));
    ZERO_TRY(copy(p, by, p->at, p->block->home.at));
    ZERO_TRY(d->f->record(d, p->block->used, by));
    ZERO_TRY(last_copies(p, NOTE, by));
    return d->f->order(d, p->on, p->block->used);
}

static int write_back(state_part *p) {
    device *d = p->of->device;
    ZERO_TRY(d->f->order(d, DOWN, p->block->used));
    ZERO_TRY(last_copies(p, ORDER_AFTER, DOWN));
    ZERO_TRY(copy(p, DOWN, p->block->home.at, p->at));
    ZERO_TRY(d->f->record(d, p->block->used, DOWN));
    return last_copies(p, NOTE, DOWN);
}

// A file's buffer is soon reused, so this waits for the copy from it. A part fetched for a gather instead
// keeps its buffer until its block is reused, so that the next read can start during the copy.
static int close_on_device(state_part *p) {
    device *d = p->of->device;
    ZERO_TRY(d->f->record(d, p->block->used, p->on));
    if (p->intent != STATE_READ) ZERO_TRY(write_back(p));
    if (!p->of->crossed->home->reuses) return 0;
    p->block->lingers = p->into != NULL;
    return p->block->lingers ? 0 : d->f->wait_event(d, p->block->used);
}

// -------- the store

static int across_begin(state_part *p) {
    const state_store *home = p->of->crossed->home;
    p->block = NULL;
    if (state_on_host(p->of, p->range) == (p->on == PROCESSOR)) return home->begin(p);
    ZERO_TRY(take_block(p));
    int rc = home->begin(&p->block->home);
    if (!rc && p->on == PROCESSOR) rc = begin_on_host(p);
    if (rc) p->block->taken = 0;
    return rc;
}

static int across_ready(state_part *p) {
    device *d = p->of->device;
    if (p->block) return p->on == PROCESSOR ? d->f->wait_event(d, p->block->used) : ready_on_device(p);
    ZERO_TRY(p->of->crossed->home->ready(p));
    // earlier copies may still read or write the part
    return p->on == PROCESSOR ? last_copies(p, WAIT_FOR, PROCESSOR) : 0;
}

static void across_abandon(state_part *p) {
    const state_store *home = p->of->crossed->home;
    if (home->abandon) home->abandon(p->block ? &p->block->home : p);
    if (p->block) p->block->taken = 0;
}

static int across_close(state_part *p) {
    const state_store *home = p->of->crossed->home;
    if (!p->block) return home->close(p);
    int rc = p->on == PROCESSOR ? close_on_host(p) : close_on_device(p);
    p->block->taken = 0;
    if (rc) {
        across_abandon(p);
        return rc;
    }
    return p->block->lingers ? 0 : home->close(&p->block->home);
}

static const state_store across = {
    .create = state_create_kept,
    .begin = across_begin,
    .ready = across_ready,
    .close = across_close,
    .abandon = across_abandon,
};

// Creates the events of all parts, one after another.
static int create_events(struct state_crossed *x, const state *s, memory *m, device *d) {
    const int parts = state_parts(s);
    int n = 0;
    x->first = memory_array(m, (size_t)state_units(s) * parts, sizeof *x->first);
    if (!x->first) return ZERO_ERR_MEMORY;
    for (int i = 0; i < state_units(s) * parts; i++) {
        const layout_unit *u = &s->layout->units[i / parts];
        const int part = state_first_part(s) + i % parts * s->group;
        x->first[i] = n;
        if (u->shard && (s->units[i / parts].away || s->kept_on_host))
            n = event_of(s, i / parts, part, u->shard - 1) + 1;
    }
    x->copied = memory_array(m, n, sizeof *x->copied);
    if (!x->copied) return ZERO_ERR_MEMORY;
    for (; x->n_copied < n; x->n_copied++) ZERO_TRY(d->f->create_event(d, &x->copied[x->n_copied]));
    return 0;
}

int state_go_across(state *s, const zero_config *c, struct state_across *a, memory *m,
                    const memory_request *away) {
    struct state_crossed *x = s->crossed = memory_array(m, 1, sizeof *x);
    if (!x) return ZERO_ERR_MEMORY;
    const int in_host_memory = placement_tier(s->what, c) == ZERO_HOST;
    *x = (struct state_crossed){ .of = a, .home = in_host_memory ? &state_in_memory : s->store };
    s->store = &across;
    s->kept_on_host = s->what == ZERO_PARAM && placement_in_files(s->what, c);
    if (!s->files) ZERO_TRY(state_split_units(s, c, m, state_units(s)));
    ZERO_TRY(create_events(x, s, m, a->device));
    if (!away->blocks || away->tier != ZERO_HOST) return 0;
    s->away = memory_alloc_pinned(m, away);
    return s->away ? 0 : ZERO_ERR_MEMORY;
}

void state_stay(const state *s, device *d) {
    const struct state_crossed *x = s->crossed;
    for (int i = 0; x && i < x->n_copied; i++) d->f->destroy_event(d, x->copied[i]);
}
