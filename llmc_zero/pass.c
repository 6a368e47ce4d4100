#include "pass.h"
#include "clock.h"
#include "internal.h"
#include "net/failure.h"
#include <stdio.h>
#include <stdlib.h>

int pass_create(zero *z) {
    z->pass.units = calloc(z->layout.n_units, sizeof *z->pass.units);
    return z->pass.units ? 0 : zero_fail(ZERO_ERR_MEMORY, "out of memory for the uses of the units");
}

void pass_free(zero *z) { free(z->pass.units); }

// -------- what the trainer may do

int pass_may_train(const zero *z, const char *caller) {
    if (!z->config.inference) return 0;
    return zero_fail(ZERO_ERR_MISUSE, "%s: with inference 1 the plugin holds parameters and nothing else",
                     caller);
}

static int all_closed(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++)
        if (pass_has_open(z, i))
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) is still open", caller, i,
                             z->layout.units[i].name);
    return 0;
}

int pass_outside_step(const zero *z, const char *caller) {
    if (z->pass.in_step)
        return zero_fail(ZERO_ERR_MISUSE, "%s: inside a training step; finish the step first", caller);
    return all_closed(z, caller);
}

// Every unit has had all its uses of this micro-batch.
static int all_done(const zero *z, const char *caller) {
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        const struct pass_unit *u = &z->pass.units[i];
        int forward = u->forward_done < l->forward_uses;
        if (forward || u->backward_done < l->backward_uses)
            return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) has finished %d of its %d %s uses", caller, i,
                             l->name, forward ? u->forward_done : u->backward_done,
                             forward ? l->forward_uses : l->backward_uses, forward ? "forward" : "backward");
    }
    return 0;
}

int pass_may_begin(const zero *z, int micro, int of) {
    const char *me = "zero_begin_train";
    const struct pass *p = &z->pass;
    ZERO_TRY(pass_may_train(z, me));
    ZERO_TRY(all_closed(z, me));
    if (of < 1 || of > z->config.micro_batches || micro < 0 || micro >= of)
        return zero_fail(ZERO_ERR_MISUSE, "%s: micro-batch %d of %d; the configuration allows %d", me, micro,
                         of, z->config.micro_batches);
    if (micro == 0 && p->in_step && p->promised.t)
        return zero_fail(ZERO_ERR_MISUSE,
                         "%s: the step under way was promised to zero_update_early, and its update may have "
                         "begun; finish it with zero_reduce and zero_update",
                         me);
    if (micro == 0) return 0;
    if (!p->in_step || micro != p->micro + 1 || of != p->micro_of)
        return zero_fail(ZERO_ERR_MISUSE, "%s: micro-batch %d of %d does not follow micro-batch %d of %d", me,
                         micro, of, p->micro, p->micro_of);
    return all_done(z, me);
}

int pass_may_reduce(const zero *z) {
    const char *me = "zero_reduce";
    ZERO_TRY(pass_may_train(z, me));
    if (z->pass.reduced)
        return zero_fail(ZERO_ERR_MISUSE,
                         "%s: done already in this step; zero_update or zero_discard comes next", me);
    if (!z->pass.in_step)
        return zero_fail(ZERO_ERR_MISUSE, "%s: no training pass has run since the last step", me);
    if (!pass_is_last(z))
        return zero_fail(ZERO_ERR_MISUSE, "%s: after micro-batch %d of %d; the others have not run", me,
                         z->pass.micro + 1, z->pass.micro_of);
    ZERO_TRY(all_closed(z, me));
    return all_done(z, me);
}

int pass_is_reduced(const zero *z, const char *caller) {
    return z->pass.reduced ? 0 : zero_fail(ZERO_ERR_MISUSE, "%s: zero_reduce comes first", caller);
}

// -------- a pass

void pass_begin(zero *z, zero_mode mode, int micro, int of) {
    struct pass *p = &z->pass;
    int reads = 0;
    p->mode = mode;
    p->micro = micro;
    p->micro_of = of;
    p->in_pass = 1;
    p->in_step = mode == ZERO_TRAIN;
    p->reduced = 0;
    p->forward_left = 0;
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        p->units[i].forward_done = p->units[i].backward_done = 0;
        p->forward_left += l->forward_uses;
        reads += l->forward_uses + l->reading_uses;
    }
    schedule_begin_pass(&z->schedule, mode, reads, pass_is_last(z));
}

void pass_promise(zero *z, const zero_hyper *h) { z->pass.promised = *h; }

void pass_reduced(zero *z) { z->pass.reduced = 1; }

void pass_end_step(zero *z) {
    z->pass.reduced = z->pass.in_step = z->pass.in_pass = 0;
    z->pass.promised.t = 0;
}

// -------- a use

// Looks for ranks that are gone outside collectives too: a step of many micro-batches may have none for
// minutes.
static int check_ranks(zero *z, int unit) {
    double now = clock_now();
    if (now - z->pass.looked_s < 0.1) return 0;
    z->pass.looked_s = now;
    char tail[160];
    snprintf(tail, sizeof tail, ", noticed by rank %d (host %s) at unit %d, in no collective", z->net.rank,
             net_host(&z->net, z->net.rank), unit);
    return failure_lost(&z->net, tail) < 0 ? 0 : ZERO_ERR_COMM;
}

static int check_hook(zero *z, int unit) {
    if (unit < 0 || unit >= z->layout.n_units)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d: there are units 0 to %d", unit, z->layout.n_units - 1);
    if (!z->pass.in_pass)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d (%s): zero_begin_train or zero_begin_eval comes first",
                         unit, z->layout.units[unit].name);
    return check_ranks(z, unit);
}

// hook: the name of the caller, for a use that is not open, or is.
static int misused(const zero *z, int unit, const char *hook, const char *problem) {
    return zero_fail(ZERO_ERR_MISUSE, "%s: unit %d (%s) %s", hook, unit, z->layout.units[unit].name, problem);
}

static int had_all_uses(const zero *z, int unit, const char *hook, const char *direction, int uses) {
    char problem[96];
    snprintf(problem, sizeof problem, "has had all its %d %s uses in this micro-batch", uses, direction);
    return misused(z, unit, hook, problem);
}

int pass_check_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    const struct pass_unit *u = &z->pass.units[unit];
    const int uses = z->layout.units[unit].forward_uses;
    if (u->forward_open) return misused(z, unit, "pre_forward", "is open already");
    if (z->pass.mode == ZERO_TRAIN && u->forward_done == uses)
        return had_all_uses(z, unit, "pre_forward", "forward", uses);
    return 0;
}

void pass_open_forward(zero *z, int unit) {
    struct pass_unit *u = &z->pass.units[unit];
    z->device.f->mark(&z->device, "forward", z->layout.units[unit].name);
    u->forward_open = 1;
    u->forward = trace_begin(&z->trace, COMPUTE);
}

int pass_close_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    struct pass_unit *u = &z->pass.units[unit];
    if (!u->forward_open) return misused(z, unit, "post_forward", "is not open for forward");
    u->forward_open = 0;
    u->forward_done++;
    z->pass.forward_left--;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_end(&z->trace, &u->forward, &(zero_event){ .kind = ZERO_EV_FORWARD, .unit = unit });
    return 0;
}

int pass_check_backward(zero *z, int unit, int *first, int *reads) {
    ZERO_TRY(check_hook(z, unit));
    const struct pass_unit *u = &z->pass.units[unit];
    const layout_unit *l = &z->layout.units[unit];
    if (!z->pass.in_step)
        return zero_fail(ZERO_ERR_MISUSE, "pre_backward: unit %d (%s): this pass is no training pass", unit,
                         l->name);
    if (u->backward_open) return misused(z, unit, "pre_backward", "is open already");
    if (u->backward_done == l->backward_uses)
        return had_all_uses(z, unit, "pre_backward", "backward", l->backward_uses);
    *first = u->backward_done == 0;
    *reads = u->backward_done < l->reading_uses;
    return 0;
}

void pass_open_backward(zero *z, int unit, int reads) {
    struct pass_unit *u = &z->pass.units[unit];
    z->device.f->mark(&z->device, "backward", z->layout.units[unit].name);
    u->backward_open = 1;
    u->backward_reads = reads;
    u->backward = trace_begin(&z->trace, COMPUTE);
}

int pass_close_backward(zero *z, int unit, int *last) {
    ZERO_TRY(check_hook(z, unit));
    struct pass_unit *u = &z->pass.units[unit];
    if (!u->backward_open) return misused(z, unit, "post_backward", "is not open for backward");
    u->backward_open = 0;
    u->backward_done++;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_end(&z->trace, &u->backward, &(zero_event){ .kind = ZERO_EV_BACKWARD, .unit = unit });
    *last = u->backward_done == z->layout.units[unit].backward_uses;
    return 0;
}

// -------- where it is

const zero_hyper *pass_promised(const zero *z) { return z->pass.promised.t ? &z->pass.promised : NULL; }

int pass_is_training(const zero *z) { return z->pass.mode == ZERO_TRAIN; }
int pass_is_first(const zero *z) { return z->pass.micro == 0; }
int pass_is_last(const zero *z) { return z->pass.micro == z->pass.micro_of - 1; }
int pass_forward_is_over(const zero *z) { return !z->pass.forward_left; }

int pass_turns_at(const zero *z, int unit) {
    return pass_is_training(z) && pass_forward_is_over(z) && !z->pass.units[unit].backward_done;
}

int pass_has_open(const zero *z, int unit) {
    return z->pass.units[unit].forward_open || z->pass.units[unit].backward_open;
}

int pass_reads(const zero *z, int unit) {
    const struct pass_unit *u = &z->pass.units[unit];
    return u->forward_open || (u->backward_open && u->backward_reads);
}

int pass_adds(const zero *z, int unit) { return z->pass.units[unit].backward_open; }
