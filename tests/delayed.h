// What a run leaves behind whose updates run beside the next step, bit for bit (offload.delayed_update).
#ifndef TESTS_DELAYED_H
#define TESTS_DELAYED_H
#include "outcome.h"

enum { DELAYED_STEPS = 6, FIRST_DELAYED = 3 };
typedef struct {
    char params[17], full[17], finished[17];
    double norms[DELAYED_STEPS];
    float gradient[33], eval;
} delayed_outcome;

static inline zero_hyper delayed_hyper(int t) {
    return (zero_hyper){ .lr = 1e-2f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_clip = 1.0f,
                         .t = t };
}

static inline void end_delayed(toy *t, delayed_outcome *o) {
    MUST(zero_finish_update(t->z));
    MUST(zero_hash(t->z, 1, o->full));
    MUST(zero_hash(t->z, 0, o->finished));
    zero_destroy(t->z);
}

// One step is skipped.
static inline void run_delayed_step(toy *t, int micro_batches, int step, delayed_outcome *o) {
    const zero_hyper h = delayed_hyper(step < 5 ? step : step - 1);
    zero_step_result result;
    MUST(toy_passes(t, micro_batches));
    MUST(zero_finish_gradients(t->z, &result));
    o->norms[step - 1] = result.grad_norm;
    if (step == 2) MUST(zero_get(t->z, ZERO_GRADIENT, 2, 3, 2490, 33, o->gradient));
    if (step == 5)
        MUST(zero_discard(t->z));
    else
        MUST(zero_update(t->z, &h));
}

static inline delayed_outcome delayed_outcome_of(const zero_config *c, double compute_s) {
    delayed_outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, c));
    t.compute_s = compute_s;
    for (int step = 1; step <= DELAYED_STEPS; step++) run_delayed_step(&t, c->micro_batches, step, &o);
    MUST(zero_hash(t.z, 0, o.params));
    MUST(toy_eval(&t));  // with the parameters of before, which a device may still be reading
    MUST(zero_finish_update(t.z));
    o.eval = outcome_activation(&t);
    end_delayed(&t, &o);
    return o;
}

enum { ALL_ELEMS = TOY_LARGEST + 50 + TOY_BLOCKS * (129 + 5003 + 33 + 1280) };

// Masters of all tensors, to and fro.
static inline void copy_masters(toy *t, zero_value what, int set, float *values) {
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++) {
            const int64_t n = toy_elems(k);
            if (set)
                MUST(zero_set(t->z, what, k, l, 0, n, values));
            else
                MUST(zero_get(t->z, what, k, l, 0, n, values));
            values += n;
        }
}

// The same without any delay in the plugin: each step is given the parameters of the step before, and its
// update the masters of this one.
static inline delayed_outcome delayed_by_hand(const zero_config *c) {
    static float kept[2][ALL_ELEMS];
    delayed_outcome o;
    toy t;
    int newest = 0, is_behind = 0;
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, c));
    for (int step = 1; step <= DELAYED_STEPS; step++) {
        copy_masters(&t, ZERO_MASTER, 0, kept[newest]);
        copy_masters(&t, ZERO_PARAM, 1, kept[is_behind ? !newest : newest]);
        copy_masters(&t, ZERO_MASTER, 1, kept[newest]);
        run_delayed_step(&t, c->micro_batches, step, &o);
        is_behind = step >= FIRST_DELAYED && step != 5;  // a step that is skipped leaves nothing behind
        newest = !newest;
    }
    copy_masters(&t, ZERO_MASTER, 0, kept[newest]);
    copy_masters(&t, ZERO_PARAM, 1, kept[!newest]);
    copy_masters(&t, ZERO_MASTER, 1, kept[newest]);
    MUST(zero_hash(t.z, 0, o.params));
    MUST(toy_eval(&t));
    o.eval = outcome_activation(&t);
    copy_masters(&t, ZERO_PARAM, 1, kept[newest]);
    end_delayed(&t, &o);
    return o;
}

// What a delayed update must give with `c`, in which nothing is offloaded. fp32 parameters are their own
// masters, so that nothing can be done by hand: what is in memory stands for it.
static inline delayed_outcome delayed_wanted(zero_config c) {
    if (c.numbers.dtype != ZERO_F32) return delayed_by_hand(&c);
    c.offload.delayed_update = FIRST_DELAYED;
    c.offload.optimizer = ZERO_HOST;
    return delayed_outcome_of(&c, 0);
}

#endif
