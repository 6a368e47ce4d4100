// The end of a step: the global norm, clipping, and the update (update.c).
#include "step.h"
#include "internal.h"
#include "naive.h"
#include <math.h>
#include <string.h>

int step_create(zero *z) {
    loss_scale_init(&z->step.scale, &z->config);
    if (z->config.inference) return 0;
    for (int what = ZERO_MASTER; what <= ZERO_MOMENT2; what++) ZERO_TRY(rank_state_create(z, what));
    ZERO_TRY(norm_create(z));
    return update_create(z);
}

// -------- the last update was the same on all ranks
//
// zero_update does not communicate, so the ranks compare its arguments in the next step, and before a save.
// The last bits may differ: a learning rate may come from the C library's cosf, whose bits depend on the CPU.

static void last_update(const zero *z, double *values) {
    const zero_hyper *h = &z->step.last;
    const double last[HYPER_VALUES] = {
        h->t, h->lr, h->beta1, h->beta2, h->eps, h->weight_decay, h->grad_clip,
    };
    memcpy(values, last, sizeof last);
}

static int differ(double a, double b) {
    return !(fabs(a - b) <= 1e-5 * fabs(a)) && !(isnan(a) && isnan(b)) && a != b;
}

static int compare_updates(const zero *z, const double *all, int stride) {
    static const char *const names[HYPER_VALUES] = {
        "t", "lr", "beta1", "beta2", "eps", "weight_decay", "grad_clip",
    };
    for (int r = 1; r < z->comm.group.ranks; r++)
        for (int i = 0; i < HYPER_VALUES; i++) {
            const double first = all[i], other = all[r * stride + i];
            if (differ(first, other))
                return zero_fail_rank(
                    ZERO_ERR_COMM, r, net_host(&z->net, r),
                    " passed %s = %.9g to its last zero_update, and rank 0 (host %s) passed "
                    "%.9g: zero_hyper must be the same on all ranks",
                    names[i], other, net_host(&z->net, 0), first);
        }
    return 0;
}

int step_same_updates(zero *z) {
    double mine[HYPER_VALUES], all[z->comm.group.ranks * HYPER_VALUES];
    last_update(z, mine);
    ZERO_TRY(zero_gather(z, mine, all, HYPER_VALUES));
    return compare_updates(z, all, HYPER_VALUES);
}

// -------- step

int zero_finish_gradients(zero *z, zero_step_result *result) {
    struct step *s = &z->step;
    double squares, last[HYPER_VALUES];
    const double *of_all;
    const char *note;
    ZERO_TRY(check_settle(z));
    ZERO_TRY(pass_may_finish_gradients(z));
    ZERO_TRY(z->config.debug.naive ? naive_reduce(z) : grads_wait(z));
    last_update(z, last);
    ZERO_TRY(norm_sum_all(z, last, &of_all, &squares));
    ZERO_TRY(compare_updates(z, of_all, NORM_VALUES));
    ZERO_TRY(check_first_step(z, &note));
    s->grad_norm = sqrt(squares) / s->scale.value;
    s->overflow = z->config.numbers.dtype == ZERO_F16 && !isfinite(squares);
    pass_finish_gradients(z);
    if (result) *result = (zero_step_result){ s->grad_norm, isfinite(squares), s->scale.value, note };
    return 0;
}

static int check_hyper(const char *caller, const zero_hyper *h) {
    if (h->t < 1)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: t is %d; updates are counted from 1", caller, h->t);
    if (!(h->beta1 >= 0 && h->beta1 < 1 && h->beta2 >= 0 && h->beta2 < 1))
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: beta1 %g and beta2 %g must be at least 0 and below 1",
                         caller, h->beta1, h->beta2);
    return 0;
}

// A promised update may change a unit before the norm is known, so it can be neither clipped nor skipped.
int zero_promise_update(zero *z, const zero_hyper *h) {
    const char *me = "zero_promise_update";
    ZERO_TRY(pass_may_train(z, me));
    ZERO_TRY(pass_outside_step(z, me));
    ZERO_TRY(check_hyper(me, h));
    if (h->grad_clip > 0)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "%s: grad_clip %g needs the norm of all gradients first; it must be 0", me,
                         h->grad_clip);
    if (z->config.numbers.dtype == ZERO_F16)
        return zero_fail(
            ZERO_ERR_ARGUMENT,
            "%s: with fp16 a step whose gradients overflow is skipped, and this is known only after "
            "backward",
            me);
    pass_promise(z, h);
    return 0;
}

static int end_step(zero *z, int t) {
    pass_trace_step(z, t);
    pass_end_step(z);
    return loss_scale_step(&z->step.scale, &z->config, z->step.overflow);
}

int zero_update(zero *z, const zero_hyper *h) {
    const zero_hyper *promised = pass_promised(z);
    ZERO_TRY(pass_may_train(z, "zero_update"));
    ZERO_TRY(pass_gradients_are_finished(z, "zero_update"));
    if (promised && memcmp(h, promised, sizeof *h))
        return zero_fail(ZERO_ERR_ARGUMENT, "zero_update: zero_promise_update was given different values");
    ZERO_TRY(check_hyper("zero_update", h));
    if (z->step.overflow) return zero_discard(z);
    z->step.last = *h;
    double start = trace_now(&z->trace);
    int clips = h->grad_clip > 0 && z->step.grad_norm > h->grad_clip;
    double scale = (clips ? h->grad_clip / z->step.grad_norm : 1) / z->step.scale.value;
    ZERO_TRY(params_drop_all(z));
    rank_states_touch(z);
    z->device.f->mark(&z->device, "update", "");
    int rc = z->config.debug.naive ? naive_update(z, h, scale) : update_units(z, h, scale);
    z->device.f->mark(&z->device, NULL, NULL);
    ZERO_TRY(rc);
    trace_add(&z->trace, EVENT_UPDATE, -1, 0, start);
    return end_step(z, h->t);
}

int zero_discard(zero *z) {
    ZERO_TRY(pass_may_train(z, "zero_discard"));
    ZERO_TRY(pass_gradients_are_finished(z, "zero_discard"));
    if (pass_promised(z))
        return zero_fail(
            ZERO_ERR_MISUSE,
            "zero_discard: zero_promise_update has promised this step's update, which may have begun");
    ZERO_TRY(update_discard(z));
    ZERO_TRY(params_drop_all(z));
    ZERO_TRY(update_publish(z));
    return end_step(z, 0);
}

int zero_finish_update(zero *z) {
    ZERO_TRY(pass_may_train(z, "zero_finish_update"));
    ZERO_TRY(pass_outside_step(z, "zero_finish_update"));
    if (update_is_unpublished(z)) ZERO_TRY(params_drop_all(z));
    return update_publish(z);
}

int step_settle(zero *z) {
    ZERO_TRY(update_wait(z));
    return params_complete(z);
}

// Only fp16 runs have a scale to restore.
void step_restore_scale(zero *z, zero_dtype dtype, const loss_scale *saved) {
    const int scales = z->config.numbers.dtype == ZERO_F16 && z->config.numbers.loss_scale == 0;
    if (dtype == ZERO_F16 && scales) z->step.scale = *saved;
}

loss_scale step_scale(const zero *z) { return z->step.scale; }
double zero_loss_scale(const zero *z) { return z->step.scale.value; }

int zero_step(zero *z, const zero_hyper *hyper, zero_step_result *result) {
    ZERO_TRY(zero_finish_gradients(z, result));
    return zero_update(z, hyper);
}
