// Optimizers for zero_config.update_with. Each has one state: config.update_states is 1.
#ifndef DEV_EXAMPLES_OPTIMIZERS_H
#define DEV_EXAMPLES_OPTIMIZERS_H
#include "llmc_zero/zero.h"

// SGD with momentum beta1 (Polyak 1964): m = b1 m + g; p -= lr (m + wd p).
static void sgd_momentum(void *ctx, const zero_piece *p) {
    float *m = p->states[0];
    (void)ctx;
    for (int64_t i = 0; i < p->n; i++) {
        m[i] = p->hyper->beta1 * m[i] + p->gradient[i];
        p->weights[i] -= p->lr * (m[i] + p->weight_decay * p->weights[i]);
    }
}

// Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): p -= lr (sign(b1 m + (1-b1) g) + wd p);
// m = b2 m + (1-b2) g.
static void lion(void *ctx, const zero_piece *p) {
    const float beta1 = p->hyper->beta1, beta2 = p->hyper->beta2;
    float *m = p->states[0];
    (void)ctx;
    for (int64_t i = 0; i < p->n; i++) {
        const float g = p->gradient[i], mixed = beta1 * m[i] + (1 - beta1) * g;
        p->weights[i] -= p->lr * ((mixed > 0) - (mixed < 0) + p->weight_decay * p->weights[i]);
        m[i] = beta2 * m[i] + (1 - beta2) * g;
    }
}

#endif
