// What a run leaves behind whose updates begin during backward, bit for bit (zero_promise_update).
#ifndef TESTS_EARLY_H
#define TESTS_EARLY_H
#include "../llmc_zero/internal.h"
#include "outcome.h"

enum { EARLY_STEPS = 4 };
typedef struct {
    char params[17], full[17];
    double norms[EARLY_STEPS];
    float gradient[33], eval;
} early_outcome;

// Whether some unit was updated before backward had ended.
static inline int overlapped(const zero *z) {
    trace_event e;
    double backward_s = 0;
    int found = 0;
    for (int i = 0; trace_at(&z->trace, i, &e); i++)
        if (e.kind == EVENT_BACKWARD && e.end_s > backward_s) backward_s = e.end_s;
    for (int i = 0; trace_at(&z->trace, i, &e); i++)
        found |= e.kind == EVENT_UPDATE && e.unit >= 0 && e.start_s < backward_s;
    return found;
}

// Nothing is clipped, so that the update need not wait for the norm.
static inline early_outcome early_outcome_of(const zero_config *c, int early, double compute_s,
                                             int *overlap) {
    early_outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, c));
    t.compute_s = compute_s;
    for (int step = 0; step < EARLY_STEPS; step++) {
        const zero_hyper h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = step + 1 };
        zero_step_result result;
        if (early) MUST(zero_promise_update(t.z, &h));
        MUST(toy_passes(&t, c->micro_batches));
        MUST(zero_finish_gradients(t.z, &result));
        o.norms[step] = result.grad_norm;
        if (step == 1) MUST(zero_get(t.z, ZERO_GRADIENT, 2, 3, 2490, 33, o.gradient));
        MUST(zero_update(t.z, &h));
        if (overlap && step == 0) *overlap = overlapped(t.z);
        if (step == 2) MUST(toy_eval(&t));
        if (step == 2) o.eval = outcome_activation(&t);
    }
    MUST(zero_hash(t.z, 0, o.params));
    MUST(zero_hash(t.z, 1, o.full));
    zero_destroy(t.z);
    return o;
}

#endif
