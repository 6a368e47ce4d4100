#include "schedule.h"
#include <string.h>

int schedule_create(schedule *s, memory *m, int n_units, int most_uses, int uses_agree) {
    int *all = memory_array(m, n_units + 2 * most_uses, sizeof *all);
    *s = (schedule){ .n_units = n_units,
                     .most_uses = most_uses,
                     .uses_agree = uses_agree,
                     .update = all,
                     .update_is_stale = 1 };
    if (!all) return ZERO_ERR_MEMORY;
    s->recorded[ZERO_TRAIN].units = all + n_units;
    s->recorded[ZERO_EVAL].units = all + n_units + most_uses;
    return 0;
}

// -------- recording

// Cuts or extends the record to n uses.
static void set_length(schedule *s, zero_mode mode, int n) {
    s->recorded[mode].n = n;
    if (mode == ZERO_TRAIN) s->update_is_stale = 1;
}

void schedule_begin_pass(schedule *s, zero_mode mode, int uses, int is_last) {
    schedule_order *o = &s->recorded[mode];
    if (o->used < o->n) set_length(s, mode, o->used);  // the last pass was shorter than its record
    o->used = 0;
    s->mode = mode;
    s->updating = 0;
    s->left = uses;
    s->is_last = is_last;
}

void schedule_use(schedule *s, int unit) {
    schedule_order *o = &s->recorded[s->mode];
    if (o->used < o->n && o->units[o->used] != unit) set_length(s, s->mode, o->used);
    if (o->used == o->n && o->n < s->most_uses) {
        set_length(s, s->mode, o->n + 1);
        o->units[o->used] = unit;
    }
    o->used++;
    s->left--;
}

// -------- the update

// Lists each unit once: in the order of first use, then unused units in the table's order.
static void order_update(schedule *s) {
    const schedule_order *o = &s->recorded[ZERO_TRAIN];
    int uses = s->uses_agree ? o->n : 0, n = 0;
    char seen[s->n_units];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < uses + s->n_units; i++) {
        int unit = i < uses ? o->units[i] : i - uses;
        if (!seen[unit]) s->update[n++] = unit;
        seen[unit] = 1;
    }
    s->update_is_stale = 0;
}

static const int *update_order(schedule *s) {
    if (s->update_is_stale) order_update(s);
    return s->update;
}

const int *schedule_begin_update(schedule *s) {
    s->updating = 1;
    s->updated = 0;
    return update_order(s);
}

void schedule_updated(schedule *s) { s->updated++; }

// -------- looking ahead

int schedule_first_use(const schedule *s) {
    const schedule_order *o = &s->recorded[ZERO_TRAIN];
    return o->n ? o->units[0] : -1;
}

schedule_walk schedule_ahead(schedule *s) {
    if (s->updating) return (schedule_walk){ .of = s, .part = WALK_UPDATE, .at = s->updated };
    return (schedule_walk){ .of = s, .part = WALK_PASS, .at = s->recorded[s->mode].used };
}

int schedule_next(schedule_walk *w) {
    schedule *s = w->of;
    for (;;) {
        const int updates = w->part == WALK_UPDATE;
        const schedule_order *o = &s->recorded[w->part == WALK_PASS ? s->mode : ZERO_TRAIN];
        if (w->at < (updates ? s->n_units : o->n)) {
            w->what = updates ? SCHEDULED_UPDATE : SCHEDULED_USE;
            w->next_pass = w->part == WALK_NEXT_PASS;
            w->unit = (updates ? update_order(s) : o->units)[w->at++];
            return 1;
        }
        // The walk ends after the next pass, or after this one if the rest of it was not recorded.
        const int rest_is_known = s->mode == ZERO_TRAIN && o->n - o->used == s->left;
        if (w->part == WALK_NEXT_PASS || (w->part == WALK_PASS && !rest_is_known)) return 0;
        w->part = w->part == WALK_PASS && s->is_last ? WALK_UPDATE : WALK_NEXT_PASS;
        w->at = 0;
    }
}
