// The hooks and the accessors. pass.c checks the order of the calls, and check.c what the trainer does
// between them; params.c, grads.c and update.c do the work.
#include "internal.h"

int zero_begin_train(zero *z, int micro, int of) {
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_may_begin(z, micro, of));
    if (micro == 0) ZERO_TRY(check_begin(z, 1));
    ZERO_TRY(params_begin_pass(z, micro > 0));
    if (micro == 0) {
        ZERO_TRY(grads_begin_step(z));
        ZERO_TRY(norm_begin_step(z));
    }
    pass_begin(z, ZERO_TRAIN, micro, of);
    return 0;
}

int zero_begin_eval(zero *z) {
    ZERO_TRY(pass_outside_step(z, "zero_begin_eval"));
    ZERO_TRY(check_begin(z, 0));
    ZERO_TRY(params_begin_pass(z, 0));
    pass_begin(z, ZERO_EVAL, 0, 1);
    return 0;
}

int zero_pre_forward(zero *z, int unit) {
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_may_open(z, unit, PASS_FORWARD));
    ZERO_TRY(params_acquire(z, unit));
    pass_open(z, unit, PASS_FORWARD);
    return check_params(z, unit);
}

int zero_post_forward(zero *z, int unit) {
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_close(z, unit, PASS_FORWARD));
    ZERO_TRY(check_params(z, unit));
    return params_release(z, unit);
}

// Returns 1 if the unit's open backward use, or its next one, reads parameters.
static int backward_reads(const zero *z, int unit) {
    return pass_done(z, unit, PASS_BACKWARD) < z->layout.units[unit].reading_uses;
}

int zero_pre_backward(zero *z, int unit) {
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_may_open(z, unit, PASS_BACKWARD));
    const int is_first = pass_done(z, unit, PASS_BACKWARD) == 0, reads = backward_reads(z, unit);
    if (is_first) ZERO_TRY(grads_check(z, unit));  // before any change
    if (reads) ZERO_TRY(params_acquire(z, unit));
    if (is_first) ZERO_TRY(grads_open(z, unit));
    pass_open(z, unit, PASS_BACKWARD);
    return reads ? check_params(z, unit) : 0;
}

int zero_post_backward(zero *z, int unit) {
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_close(z, unit, PASS_BACKWARD));
    const int done = pass_done(z, unit, PASS_BACKWARD);
    if (done <= z->layout.units[unit].reading_uses) ZERO_TRY(check_params(z, unit));
    ZERO_TRY(params_release(z, unit));
    const int is_complete = done == z->layout.units[unit].backward_uses;
    int holds = 0;
    if (is_complete) ZERO_TRY(check_gradient(z, unit, &holds));
    if (is_complete && !holds) ZERO_TRY(grads_finish(z, unit));
    return update_during_backward(z);
}

static void *not_open(const zero *z, const char *caller, int tensor, int layer, int unit, const char *what) {
    zero_fail(ZERO_ERR_MISUSE, "%s(%s, layer %d): unit %d (%s) is not open for %s", caller,
              z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name, what);
    return NULL;
}

const void *zero_param(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    const int unit = layout_unit_of(&z->layout, p);
    if (!pass_is_open(z, unit, PASS_FORWARD) &&
        !(pass_is_open(z, unit, PASS_BACKWARD) && backward_reads(z, unit)))
        return not_open(z, "zero_param", tensor, layer, unit, "reading");
    return params_at(z, p->unit) + p->offset * dtype_bytes(z->config.numbers.dtype);
}

void *zero_grad(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    const int unit = layout_unit_of(&z->layout, p);
    if (p->unit != unit) {
        zero_fail(ZERO_ERR_MISUSE, "zero_grad(%s, layer %d): the tensor is frozen, so it has no gradient",
                  z->layout.tensors[tensor].name, layer);
        return NULL;
    }
    if (!pass_is_open(z, unit, PASS_BACKWARD))
        return not_open(z, "zero_grad", tensor, layer, unit, "backward");
    return grads_at(z, unit) + p->offset * dtype_bytes(z->config.numbers.dtype);
}
