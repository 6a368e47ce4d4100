#include "pass.h"
#include "base/clock.h"
#include "internal.h"

#define MISUSE(...) zero_fail(ZERO_ERR_MISUSE, __VA_ARGS__)

// By direction: names for messages and the trace.
static const char *const names[] = { "forward", "backward" };
static const trace_kind events[] = { EVENT_FORWARD, EVENT_BACKWARD };

static int all_uses(const zero *z, int unit, pass_direction d) {
    const layout_unit *l = &z->layout.units[unit];
    return d == PASS_FORWARD ? l->forward_uses : l->backward_uses;
}

int pass_create(zero *z) {
    ZERO_TRY_ALLOC(z->pass.uses = allocate_array(z, z->layout.n_units, sizeof *z->pass.uses));
    z->pass.in_use = 1;
    return 0;
}

// -------- checks

int pass_may_train(const zero *z, const char *caller) {
    if (!z->config.inference) return 0;
    return MISUSE("%s: with inference 1 the plugin has only parameters", caller);
}

static int all_closed(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (pass_has_open(z, i))
            return MISUSE("%s: unit %d (%s) is still open", caller, i, z->layout.units[i].name);
    return 0;
}

int pass_outside_step(const zero *z, const char *caller) {
    if (z->pass.in_step) return MISUSE("%s: inside a training step; finish the step first", caller);
    return all_closed(z, caller);
}

// Returns the first unit that has uses left in this micro-batch, in direction *d; -1: none has.
static int first_unfinished(const zero *z, int *d) {
    for (int i = 0; i < z->layout.n_units; i++)
        for (*d = PASS_FORWARD; *d <= PASS_BACKWARD; ++*d)
            if (pass_done(z, i, *d) < all_uses(z, i, *d)) return i;
    return -1;
}

static int all_done(const zero *z, const char *caller) {
    int d;
    const int unit = first_unfinished(z, &d);
    if (unit < 0) return 0;
    return MISUSE("%s: unit %d (%s) has finished %d of its %d %s uses", caller, unit,
                  z->layout.units[unit].name, pass_done(z, unit, d), all_uses(z, unit, d), names[d]);
}

// Micro-batch 0 may discard a step only before all its gradients are there: later, the trainer has most
// likely meant to add to them.
static int may_restart(const zero *z, const char *caller) {
    const struct pass *p = &z->pass;
    int d;
    if (!p->in_step) return 0;
    if (p->promised.t)
        return MISUSE("%s: zero_promise_update has promised this step's update, which may have begun; "
                      "finish it with zero_finish_gradients and zero_update",
                      caller);
    if (!pass_is_last(z) || first_unfinished(z, &d) >= 0) return 0;
    return MISUSE("%s: micro-batch 0 would discard the gradients of a complete step: to update with them, "
                  "call zero_step; to add up A micro-batches, number them 0 to A - 1 of A and set "
                  "config.micro_batches; to drop them, call zero_finish_gradients and zero_discard",
                  caller);
}

int pass_may_begin(const zero *z, int micro, int of) {
    const char *me = "zero_begin_train";
    const struct pass *p = &z->pass;
    ZERO_TRY(pass_may_train(z, me));
    ZERO_TRY(all_closed(z, me));
    if (of < 1 || of > z->config.micro_batches || micro < 0 || micro >= of)
        return MISUSE("%s: micro-batch %d of %d; the configuration allows %d", me, micro, of,
                      z->config.micro_batches);
    if (micro == 0) return may_restart(z, me);
    if (z->config.accumulate_layers)
        return MISUSE("%s: micro-batch %d of %d; with accumulate_layers one call, for micro-batch 0, begins "
                      "them all, and zero_post_micro ends each of them in each backward use",
                      me, micro, of);
    if (!p->in_step || micro != p->micro + 1 || of != p->micro_of)
        return MISUSE("%s: micro-batch %d of %d does not follow micro-batch %d of %d", me, micro, of,
                      p->micro, p->micro_of);
    return all_done(z, me);
}

int pass_may_finish_gradients(const zero *z) {
    const char *me = "zero_finish_gradients";
    ZERO_TRY(pass_may_train(z, me));
    if (z->pass.gradients_finished)
        return MISUSE("%s: already called in this step; zero_update or zero_discard comes next", me);
    if (!z->pass.in_step) return MISUSE("%s: no training pass has run since the last step", me);
    if (!pass_is_last(z))
        return MISUSE("%s: after micro-batch %d of %d; the others have not run", me, z->pass.micro + 1,
                      z->pass.micro_of);
    ZERO_TRY(all_closed(z, me));
    return all_done(z, me);
}

int pass_gradients_are_finished(const zero *z, const char *caller) {
    return z->pass.gradients_finished ? 0 : MISUSE("%s: zero_finish_gradients comes first", caller);
}

// -------- a pass

void pass_begin(zero *z, zero_mode mode, int micro, int of) {
    struct pass *p = &z->pass;
    const int by_layers = mode == ZERO_TRAIN && z->config.accumulate_layers;
    int reads = 0;
    p->mode = mode;
    p->micro = micro;
    p->micro_of = by_layers ? 1 : of;
    p->in_use = by_layers ? of : 1;
    p->in_pass = 1;
    p->in_step = mode == ZERO_TRAIN;
    if (micro == 0) p->began_s = trace_clock(&z->trace);
    p->gradients_finished = 0;
    p->forward_left = 0;
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        p->uses[i][PASS_FORWARD].done = p->uses[i][PASS_BACKWARD].done = 0;
        p->forward_left += l->first_uses;
        reads += l->forward_uses + l->reading_uses;
    }
    schedule_begin_pass(&z->schedule, mode, reads, pass_is_last(z));
}

void pass_promise(zero *z, const zero_hyper *h) { z->pass.promised = *h; }

void pass_finish_gradients(zero *z) { z->pass.gradients_finished = 1; }

void pass_end_step(zero *z) {
    z->pass.gradients_finished = z->pass.in_step = z->pass.in_pass = 0;
    z->pass.promised.t = 0;
}

void pass_trace_step(zero *z, int t) {
    trace_event e = { EVENT_STEP, t, LANE_STEPS, 0, z->pass.began_s, trace_clock(&z->trace) };
    for (int c = 0; c < ZERO_MEMORY_CLASSES; c++) e.bytes += (int64_t)memory_bytes(&z->memory, c);
    trace_add_past(&z->trace, &e);
}

// -------- a use

static int check_hook(zero *z, int unit) {
    if (unit < 0 || unit >= z->layout.n_units)
        return MISUSE("unit %d: must be 0 to %d", unit, z->layout.n_units - 1);
    if (!z->pass.in_pass)
        return MISUSE("unit %d (%s): zero_begin_train or zero_begin_eval comes first", unit,
                      z->layout.units[unit].name);
    return 0;
}

int pass_may_open(zero *z, int unit, pass_direction d) {
    ZERO_TRY(check_hook(z, unit));
    const char *name = z->layout.units[unit].name;
    if (d == PASS_BACKWARD && !z->pass.in_step)
        return MISUSE("pre_backward: unit %d (%s): this pass is not a training pass", unit, name);
    if (pass_is_open(z, unit, d)) return MISUSE("pre_%s: unit %d (%s) is open already", names[d], unit, name);
    if (z->pass.mode == ZERO_EVAL) return 0;
    const layout_unit *l = &z->layout.units[unit];
    const int repeats = d == PASS_FORWARD && pass_done(z, unit, d) >= l->first_uses;
    if (repeats && pass_done(z, unit, PASS_BACKWARD) == l->backward_uses)
        return MISUSE("pre_forward: unit %d (%s): all its backward uses are over; the last %d of its %d "
                      "forward uses (repeated_uses) come before",
                      unit, name, l->forward_uses - l->first_uses, l->forward_uses);
    if (pass_done(z, unit, d) < all_uses(z, unit, d)) return 0;
    return MISUSE("pre_%s: unit %d (%s) has had all its %d %s uses in this micro-batch", names[d], unit, name,
                  all_uses(z, unit, d), names[d]);
}

void pass_open(zero *z, int unit, pass_direction d) {
    struct pass_uses *u = &z->pass.uses[unit][d];
    z->device.f->mark(&z->device, names[d], z->layout.units[unit].name);
    u->is_open = 1;
    u->micro = 0;
    u->span = trace_begin(&z->trace, COMPUTE);
}

int pass_may_finish_micro(zero *z, int unit, int micro) {
    const char *me = "zero_post_micro";
    ZERO_TRY(check_hook(z, unit));
    const struct pass_uses *u = &z->pass.uses[unit][PASS_BACKWARD];
    const char *name = z->layout.units[unit].name;
    if (!u->is_open)
        return MISUSE("%s: unit %d (%s) is not open for backward: call it between zero_pre_backward and "
                      "zero_post_backward",
                      me, unit, name);
    if (!z->config.accumulate_layers) {
        if (micro == z->pass.micro) return 0;
        return MISUSE("%s: unit %d (%s): micro-batch %d, but zero_begin_train began %d: pass that number", me,
                      unit, name, micro, z->pass.micro);
    }
    if (u->micro == z->pass.in_use)
        return MISUSE("%s: unit %d (%s): all %d micro-batches of this use are complete; "
                      "zero_post_backward comes next",
                      me, unit, name, z->pass.in_use);
    if (micro == u->micro) return 0;
    return MISUSE("%s: unit %d (%s): micro-batch %d, but %d is next: each use passes 0 to %d in order", me,
                  unit, name, micro, u->micro, z->pass.in_use - 1);
}

void pass_finish_micro(zero *z, int unit) { z->pass.uses[unit][PASS_BACKWARD].micro++; }

int pass_close(zero *z, int unit, pass_direction d) {
    ZERO_TRY(check_hook(z, unit));
    struct pass_uses *u = &z->pass.uses[unit][d];
    if (!u->is_open)
        return MISUSE("post_%s: unit %d (%s) is not open for %s", names[d], unit, z->layout.units[unit].name,
                      names[d]);
    if (d == PASS_BACKWARD && z->config.accumulate_layers && u->micro < z->pass.in_use)
        return MISUSE("post_backward: unit %d (%s): zero_post_micro has ended %d of %d micro-batches; "
                      "call it after each, before zero_post_backward",
                      unit, z->layout.units[unit].name, u->micro, z->pass.in_use);
    u->is_open = 0;
    u->done++;
    z->pass.forward_left -= d == PASS_FORWARD && u->done <= z->layout.units[unit].first_uses;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_end(&z->trace, &u->span, &(trace_event){ .kind = events[d], .unit = unit });
    return 0;
}

// -------- the current position

const zero_hyper *pass_promised(const zero *z) { return z->pass.promised.t ? &z->pass.promised : NULL; }
zero_mode pass_mode(const zero *z) { return z->pass.mode; }
int pass_in_step(const zero *z) { return z->pass.in_step; }
int pass_is_first(const zero *z) { return z->pass.micro == 0; }
int pass_is_last(const zero *z) { return z->pass.micro == z->pass.micro_of - 1; }
int pass_micro_batches(const zero *z) { return z->pass.in_use; }
int pass_forward_is_over(const zero *z) { return !z->pass.forward_left; }
int pass_done(const zero *z, int unit, pass_direction d) { return z->pass.uses[unit][d].done; }
int pass_is_open(const zero *z, int unit, pass_direction d) { return z->pass.uses[unit][d].is_open; }
int pass_micro_done(const zero *z, int unit) { return z->pass.uses[unit][PASS_BACKWARD].micro; }

int pass_has_open(const zero *z, int unit) {
    return pass_is_open(z, unit, PASS_FORWARD) || pass_is_open(z, unit, PASS_BACKWARD);
}
