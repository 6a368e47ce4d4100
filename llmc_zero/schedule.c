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

const int *schedule_update_order(schedule *s) {
    if (s->update_is_stale) order_update(s);
    return s->update;
}

// -------- looking ahead

schedule_walk schedule_ahead(const schedule *s) {
    return (schedule_walk){ .of = s, .mode = s->mode, .at = s->recorded[s->mode].used };
}

schedule_walk schedule_next_step(const schedule *s) {
    return (schedule_walk){ .of = s, .mode = ZERO_TRAIN, .next_pass = 1 };
}

int schedule_next(schedule_walk *w) {
    const schedule *s = w->of;
    const schedule_order *o = &s->recorded[w->mode];
    if (w->at >= o->n && !w->next_pass) {
        const int rest_is_known = o->n - o->used == s->left;
        if (w->mode == ZERO_EVAL || s->is_last || !rest_is_known) return 0;
        w->next_pass = 1;
        w->at = 0;
    }
    if (w->at >= o->n) return 0;
    w->unit = o->units[w->at++];
    return 1;
}
