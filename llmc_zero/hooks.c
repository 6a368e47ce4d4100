// The hooks and the accessors. pass.c checks the rules of use; params.c, grads.c and update.c do the work.
#include "grads.h"
#include "internal.h"
#include "params.h"
#include "pass.h"
#include "update.h"

int zero_begin_train(zero *z, int micro, int of) {
    ZERO_TRY(pass_may_begin(z, micro, of));
    ZERO_TRY(params_begin_pass(z));
    if (micro == 0) ZERO_TRY(grads_begin_step(z));
    pass_begin(z, ZERO_TRAIN, micro, of);
    return 0;
}

int zero_begin_eval(zero *z) {
    ZERO_TRY(pass_outside_step(z, "zero_begin_eval"));
    ZERO_TRY(params_begin_pass(z));
    pass_begin(z, ZERO_EVAL, 0, 1);
    return 0;
}

int zero_pre_forward(zero *z, int unit) {
    ZERO_TRY(pass_check_forward(z, unit));
    ZERO_TRY(params_acquire(z, unit));
    pass_open_forward(z, unit);
    return 0;
}

int zero_post_forward(zero *z, int unit) {
    ZERO_TRY(pass_close_forward(z, unit));
    return params_release(z, unit);
}

int zero_pre_backward(zero *z, int unit) {
    int first, reads;
    ZERO_TRY(pass_check_backward(z, unit, &first, &reads));
    if (first) ZERO_TRY(grads_check(z, unit));  // before anything changes
    if (reads) ZERO_TRY(params_acquire(z, unit));
    if (first) ZERO_TRY(grads_open(z, unit));
    pass_open_backward(z, unit, reads);
    return 0;
}

int zero_post_backward(zero *z, int unit) {
    int last;
    ZERO_TRY(pass_close_backward(z, unit, &last));
    ZERO_TRY(params_release(z, unit));
    if (last) ZERO_TRY(grads_finish(z, unit));
    return update_during_backward(z);
}

void *zero_param(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    const int unit = layout_unit_of(&z->layout, p);
    if (pass_reads(z, unit)) return params_whole(z, unit) + p->offset * dtype_bytes(z->config.numbers.dtype);
    zero_fail(ZERO_ERR_MISUSE, "zero_param(%s, layer %d): unit %d (%s) is not open for reading",
              z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
    return NULL;
}

void *zero_grad(zero *z, int tensor, int layer) {
    const layout_place *p = layout_find(&z->layout, tensor, layer);
    if (!p) return NULL;
    const int unit = layout_unit_of(&z->layout, p);
    if (pass_adds(z, unit)) return grads_at(z, unit) + p->offset * dtype_bytes(z->config.numbers.dtype);
    zero_fail(ZERO_ERR_MISUSE, "zero_grad(%s, layer %d): unit %d (%s) is not open for backward",
              z->layout.tensors[tensor].name, layer, unit, z->layout.units[unit].name);
    return NULL;
}
