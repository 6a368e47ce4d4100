// The hooks and the accessors. They check the rules of use; params.c, grads.c and step.c do the work.
#include "grads.h"
#include "params.h"
#include "update.h"
#include "uses.h"
#include "internal.h"
#include "net/failure.h"
#include "clock.h"
#include <stdio.h>

// Looks for ranks that are gone outside collectives too: a step of many micro-batches may have none for
// minutes.
static int check_ranks(zero *z, int unit) {
    double now = clock_now();
    if (now - z->looked < 0.1) return 0;
    z->looked = now;
    char tail[160];
    snprintf(tail, sizeof tail, ", noticed by rank %d (host %s) at unit %d, in no collective", z->net.rank,
             net_host(&z->net, z->net.rank), unit);
    return failure_lost(&z->net, tail) < 0 ? 0 : ZERO_ERR_COMM;
}

static int check_hook(zero *z, int unit) {
    if (unit < 0 || unit >= z->layout.n_units)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d: there are units 0 to %d", unit, z->layout.n_units - 1);
    if (!z->pass)
        return zero_fail(ZERO_ERR_MISUSE, "unit %d (%s): zero_begin_train or zero_begin_eval comes first",
                         unit, z->layout.units[unit].name);
    return check_ranks(z, unit);
}

static int check_micro_batch(const zero *z, int micro, int of) {
    ZERO_TRY(uses_closed(z, "zero_begin_train"));
    if (of < 1 || of > z->config.micro_batches || micro < 0 || micro >= of)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_begin_train: micro-batch %d of %d; the configuration allows %d", micro, of,
                         z->config.micro_batches);
    if (micro == 0 && z->begun && z->promised.t)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_begin_train: the step under way was promised to zero_update_early, and its "
                         "update may have begun; finish it with zero_reduce and zero_update");
    if (micro == 0) return 0;
    if (!z->begun || micro != z->micro + 1 || of != z->micro_of)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_begin_train: micro-batch %d of %d does not follow micro-batch %d of %d", micro,
                         of, z->micro, z->micro_of);
    return uses_done(z, "zero_begin_train");
}

static int begin_pass(zero *z, zero_mode mode, int is_last) {
    z->mode = mode;
    z->pass = 1;
    z->forward_left = 0;
    int reads = 0;
    for (int i = 0; i < z->layout.n_units; i++) {
        const layout_unit *l = &z->layout.units[i];
        z->units[i].forward_done = z->units[i].backward_done = 0;
        z->forward_left += l->forward_uses;
        reads += l->forward_uses + l->reading_uses;
    }
    ZERO_TRY(params_begin_pass(z));
    schedule_begin_pass(&z->schedule, mode, reads, is_last);
    return 0;
}

int zero_begin_train(zero *z, int micro, int of) {
    ZERO_TRY(uses_may_train(z, "zero_begin_train"));
    ZERO_TRY(check_micro_batch(z, micro, of));
    ZERO_TRY(begin_pass(z, ZERO_TRAIN, micro == of - 1));
    z->micro = micro;
    z->micro_of = of;
    if (micro > 0) return 0;
    ZERO_TRY(grads_begin_step(z));
    z->begun = 1;
    z->reduced = 0;
    return 0;
}

int zero_begin_eval(zero *z) {
    ZERO_TRY(uses_closed(z, "zero_begin_eval"));
    if (z->begun)
        return zero_fail(ZERO_ERR_MISUSE,
                         "zero_begin_eval: an evaluation inside a training step; finish the step first");
    return begin_pass(z, ZERO_EVAL, 0);
}

int zero_pre_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    const char *name = z->layout.units[unit].name;
    if (u->forward_open)
        return zero_fail(ZERO_ERR_MISUSE, "pre_forward: unit %d (%s) is open already", unit, name);
    if (z->mode == ZERO_TRAIN && u->forward_done == z->layout.units[unit].forward_uses)
        return zero_fail(ZERO_ERR_MISUSE,
                         "pre_forward: unit %d (%s) has had all its %d forward uses in this micro-batch",
                         unit, name, u->forward_done);
    ZERO_TRY(params_acquire(z, unit));
    z->device.f->mark(&z->device, "forward", name);
    u->forward_open = 1;
    u->forward = trace_begin(&z->trace, COMPUTE);
    return 0;
}

int zero_post_forward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    if (!u->forward_open)
        return zero_fail(ZERO_ERR_MISUSE, "post_forward: unit %d (%s) is not open for forward", unit,
                         z->layout.units[unit].name);
    u->forward_open = 0;
    u->forward_done++;
    z->forward_left--;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_end(&z->trace, &u->forward, &(zero_event){ .kind = ZERO_EV_FORWARD, .unit = unit });
    return params_release(z, unit);
}

int zero_pre_backward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    const layout_unit *l = &z->layout.units[unit];
    if (z->mode != ZERO_TRAIN || !z->begun)
        return zero_fail(ZERO_ERR_MISUSE, "pre_backward: unit %d (%s): this pass is no training pass", unit,
                         l->name);
    if (u->backward_open)
        return zero_fail(ZERO_ERR_MISUSE, "pre_backward: unit %d (%s) is open already", unit, l->name);
    if (u->backward_done == l->backward_uses)
        return zero_fail(ZERO_ERR_MISUSE,
                         "pre_backward: unit %d (%s) has had all its %d backward uses in this micro-batch",
                         unit, l->name, l->backward_uses);
    if (u->backward_done == 0) ZERO_TRY(grads_check(z, unit));  // before anything changes
    u->backward_reads = u->backward_done < l->reading_uses;
    if (u->backward_reads) ZERO_TRY(params_acquire(z, unit));
    if (u->backward_done == 0) ZERO_TRY(grads_open(z, unit));
    z->device.f->mark(&z->device, "backward", l->name);
    u->backward_open = 1;
    u->backward = trace_begin(&z->trace, COMPUTE);
    return 0;
}

int zero_post_backward(zero *z, int unit) {
    ZERO_TRY(check_hook(z, unit));
    unit_state *u = &z->units[unit];
    if (!u->backward_open)
        return zero_fail(ZERO_ERR_MISUSE, "post_backward: unit %d (%s) is not open for backward", unit,
                         z->layout.units[unit].name);
    u->backward_open = 0;
    u->backward_done++;
    z->device.f->mark(&z->device, NULL, NULL);
    trace_end(&z->trace, &u->backward, &(zero_event){ .kind = ZERO_EV_BACKWARD, .unit = unit });
    ZERO_TRY(params_release(z, unit));
    if (u->backward_done == z->layout.units[unit].backward_uses) ZERO_TRY(grads_finish(z, unit));
    return update_during_backward(z);
}

void *zero_param(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    int unit = layout_unit_of(&z->layout, p);
    const unit_state *u = &z->units[unit];
    if (!u->forward_open && !(u->backward_open && u->backward_reads)) {
        zero_fail(ZERO_ERR_MISUSE, "zero_param(%s, layer %d): unit %d (%s) is not open for reading",
                  z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
        return NULL;
    }
    return u->params + p->offset * dtype_bytes(z->config.numbers.dtype);
}

void *zero_grad(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    int unit = layout_unit_of(&z->layout, p);
    const unit_state *u = &z->units[unit];
    if (!u->backward_open) {
        zero_fail(ZERO_ERR_MISUSE, "zero_grad(%s, layer %d): unit %d (%s) is not open for backward",
                  z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
        return NULL;
    }
    return u->grads + p->offset * dtype_bytes(z->config.numbers.dtype);
}
