// A store for tests that exposes violations of the rules in llmc_zero/tiers/state.h: a violation changes the
// results or is recorded as a breach, a message that describes it. States are stored scrambled, and callers
// never access that memory. Opening a part returns a copy in a slot of a pool, which has only as many slots
// as the rules require. Closing writes the copy back and fills the slot with NaN.
#ifndef TESTS_COPIES_H
#define TESTS_COPIES_H
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../llmc_zero/base/error.h"
#include "../llmc_zero/tiers/state.h"

enum { COPIES_STATES = 5, COPIES_SLOTS = 16, COPIES_SCRAMBLED = 0x5a, COPIES_POISON = 0xff };

typedef struct {
    char *memory;
    state_part part;  // the part open in this slot; part.of is NULL if the slot is free
} copies_slot;

typedef struct {
    state *of;
    char *home;
    size_t slot_bytes;
    int n_slots;
    copies_slot slots[COPIES_SLOTS];
} copies_pool;

static struct {
    int params, grads;  // how many parts of these states may be open at once; 1 for other states
    copies_pool pools[COPIES_STATES];
    int n_pools;
    long opened;
    char breach[256];   // message about the first breach; "": none
    char *view, *made;  // host buffers for a copy's current and new bytes
    pthread_mutex_t lock;
} copies = { .lock = PTHREAD_MUTEX_INITIALIZER };

// Records the first breach and returns an error. If p has no elements, the part is unknown. Except in
// copies_create, the functions in this section run with copies.lock held.
static inline int copies_breach(const state_part *p, const char *what) {
    char place[64] = "";
    if (p->range.elems) snprintf(place, sizeof place, ", unit %d, part %d", p->range.unit, p->range.part);
    if (!copies.breach[0])
        snprintf(copies.breach, sizeof copies.breach, "%s%s: %s", p->of->name, place, what);
    return zero_fail(ZERO_ERR_MISUSE, "%s", copies.breach);
}

static inline int copies_written_late(const copies_pool *pool) {
    return copies_breach(&(state_part){ .of = pool->of }, "a copy was written after it was closed");
}

static inline copies_pool *copies_pool_of(const state *s) {
    for (int i = 0; i < copies.n_pools; i++)
        if (copies.pools[i].of == s) return &copies.pools[i];
    abort();
}

static inline size_t copies_bytes(const state_part *p) { return p->range.elems * dtype_bytes(p->of->dtype); }

static inline char *copies_home(const copies_pool *pool, const state_part *p) {
    const state_range *r = &p->range;
    int64_t at = layout_offset(p->of->layout, r->unit, r->part == STATE_WHOLE ? 0 : r->part, p->of->group);
    return pool->home + (at + r->from) * dtype_bytes(p->of->dtype);
}

// Copy from the device to the host, and back. A device failure ends the program.
static inline const char *copies_seen(device *d, const char *x, size_t n) {
    const char *view = device_view(d, x, n, copies.view);
    if (!view) abort();
    return view;
}
static inline void copies_set(device *d, char *x, const char *bytes, size_t n) {
    if (device_set(d, x, bytes, n)) abort();
}

static inline void copies_scramble(char *to, const char *from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = (char)(from[i] ^ COPIES_SCRAMBLED);
}

static inline int copies_is_poison(device *d, const char *x, size_t n) {
    const char *bytes = copies_seen(d, x, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)bytes[i] != COPIES_POISON) return 0;
    return 1;
}

static inline void copies_poison(device *d, char *x, size_t n) {
    memset(copies.made, COPIES_POISON, n);
    copies_set(d, x, copies.made, n);
}

static inline int copies_overlap(const state_part *p, const state_part *q) {
    const state_range *a = &p->range, *b = &q->range;
    const layout_unit *u = &p->of->layout->units[a->unit];
    if (a->unit != b->unit) return 0;
    int64_t from_a = a->from + (a->part == STATE_WHOLE ? 0 : a->part / p->of->group * u->shard);
    int64_t from_b = b->from + (b->part == STATE_WHOLE ? 0 : b->part / p->of->group * u->shard);
    return from_a < from_b + b->elems && from_b < from_a + a->elems;
}

// -------- the store

static inline int copies_most_open(const state *s) {
    if (!strcmp(s->name, "parameters")) return copies.params;
    return !strncmp(s->name, "gradients", 9) ? copies.grads : 1;
}

// Stores a zeroed state in scrambled form.
static inline void copies_scramble_home(const state *s, char *home) {
    char *bytes = malloc(state_bytes(s));
    if (!bytes) abort();
    memset(bytes, COPIES_SCRAMBLED, state_bytes(s));
    copies_set(s->device, home, bytes, state_bytes(s));
    free(bytes);
}

static inline int copies_create(state *s, memory *m, const memory_request *planned) {
    copies_pool *pool = &copies.pools[copies.n_pools];
    int64_t largest = 0;
    ZERO_TRY(state_in_memory.create(s, m, planned));
    for (int u = 0; u < s->layout->n_stored; u++)
        if (s->layout->units[u].padded > largest) largest = s->layout->units[u].padded;
    *pool = (copies_pool){ .of = s, .home = s->array, .n_slots = copies_most_open(s) };
    s->array = NULL;
    copies_scramble_home(s, pool->home);
    pool->slot_bytes = largest * dtype_bytes(s->dtype);
    memory_request slot = *planned;
    slot.class_ = ZERO_WORKING;
    slot.purpose = "copies";
    slot.bytes = pool->slot_bytes;
    copies.view = realloc(copies.view, largest * sizeof(float));
    copies.made = realloc(copies.made, largest * sizeof(float));
    if (!copies.view || !copies.made) abort();
    for (int i = 0; i < pool->n_slots; i++) {
        pool->slots[i].memory = memory_alloc(m, &slot);
        if (!pool->slots[i].memory) return ZERO_ERR_MEMORY;
        copies_poison(s->device, pool->slots[i].memory, pool->slot_bytes);
    }
    copies.n_pools++;
    return 0;
}

static inline int copies_choose(copies_pool *pool, const state_part *p, copies_slot **chosen) {
    *chosen = NULL;
    for (int i = 0; i < pool->n_slots; i++) {
        copies_slot *s = &pool->slots[i];
        if (!s->part.of) {
            *chosen = s;
            continue;
        }
        int reading = p->intent == STATE_READ && s->part.intent == STATE_READ;
        if (!reading && copies_overlap(p, &s->part))
            return copies_breach(p, "opened while already open, and one of the two is for writing");
    }
    if (!*chosen) return copies_breach(p, "too many parts are open");
    if (!copies_is_poison(p->of->device, (*chosen)->memory, pool->slot_bytes))
        return copies_written_late(pool);
    return 0;
}

static inline int copies_open_locked(state_part *p) {
    copies_pool *pool = copies_pool_of(p->of);
    device *d = p->of->device;
    const size_t n = copies_bytes(p);
    copies_slot *slot;
    if (p->range.part != STATE_WHOLE && p->range.part % p->of->group != state_first_part(p->of))
        return copies_breach(p, "opened on a rank that does not keep it");
    ZERO_TRY(copies_choose(pool, p, &slot));
    if (p->intent != STATE_WRITE) {
        copies_scramble(copies.made, copies_seen(d, copies_home(pool, p), n), n);
        copies_set(d, slot->memory, copies.made, n);
    }
    slot->part = *p;
    p->at = slot->memory;
    copies.opened++;
    return 0;
}

static inline int copies_begin(state_part *p) { return 0; }

static inline int copies_close_locked(state_part *p) {
    device *d = p->of->device;
    copies_pool *pool = copies_pool_of(p->of);
    char *home = copies_home(pool, p);
    copies_slot *slot = NULL;
    const size_t n = copies_bytes(p);
    for (int i = 0; i < pool->n_slots; i++)
        if (pool->slots[i].part.of && pool->slots[i].memory == p->at) slot = &pool->slots[i];
    if (!slot || memcmp(&slot->part.range, &p->range, sizeof p->range))
        return copies_breach(p, "closed, but not open");
    if (!copies_is_poison(d, slot->memory + n, pool->slot_bytes - n))
        return copies_breach(p, "written past its end");
    copies_scramble(copies.made, copies_seen(d, slot->memory, n), n);
    if (p->intent != STATE_READ)
        copies_set(d, home, copies.made, n);
    else if (memcmp(copies.made, copies_seen(d, home, n), n))
        copies_breach(p, "written, but opened for reading");
    copies_poison(d, slot->memory, n);
    slot->part.of = NULL;
    return 0;
}

// Waits for the part's stream, then runs `call` with the lock held.
static inline int copies_locked(state_part *p, int (*call)(state_part *p)) {
    device *d = p->of->device;
    ZERO_TRY(d->f->wait(d, p->on));
    pthread_mutex_lock(&copies.lock);
    int rc = call(p);
    pthread_mutex_unlock(&copies.lock);
    return rc;
}
static inline int copies_ready(state_part *p) { return copies_locked(p, copies_open_locked); }
static inline int copies_close(state_part *p) { return copies_locked(p, copies_close_locked); }

static const state_store copies_store = {
    .create = copies_create,
    .begin = copies_begin,
    .ready = copies_ready,
    .close = copies_close,
};

// -------- for the test

// Makes plugins created from now on copy their states. params, grads: how many parts of these states may be
// open at once.
static inline void copies_start(int params, int grads) {
    copies.params = params;
    copies.grads = grads;
    copies.n_pools = 0;
    copies.opened = 0;
    copies.breach[0] = 0;
    state_default_store = &copies_store;
}

// Ends copying, and checks the pools. Call it before zero_destroy, which frees them. Returns the number of
// parts still open, or 0 if states are not copied.
static inline int copies_stop(void) {
    int open = 0;
    if (state_default_store != &copies_store) return 0;
    pthread_mutex_lock(&copies.lock);
    for (const copies_pool *pool = copies.pools; pool < copies.pools + copies.n_pools; pool++)
        for (const copies_slot *s = pool->slots; s < pool->slots + pool->n_slots; s++) {
            open += s->part.of != NULL;
            if (!s->part.of && !copies_is_poison(pool->of->device, s->memory, pool->slot_bytes))
                copies_written_late(pool);
        }
    pthread_mutex_unlock(&copies.lock);
    state_default_store = &state_in_memory;
    return open;
}

#endif
