// AdamW as one expression for every vector width: explicit fmaf, and correctly rounded square root and
// division.
#include "thread_blocks.h"
#include "kernels.h"
#include "numbers.h"
#include <math.h>

adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, unsigned rounding_seed) {
    double correction1 = 1 - pow(h->beta1, h->t), correction2 = 1 - pow(h->beta2, h->t);
    return (adamw_constants){ .beta1 = h->beta1,
                              .one_minus_beta1 = 1 - h->beta1,
                              .beta2 = h->beta2,
                              .one_minus_beta2 = 1 - h->beta2,
                              .step_size = (float)(h->lr / correction1),
                              .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)),
                              .eps = h->eps,
                              .grad_scale = (float)grad_scale,
                              .keep = { 1.0f, (float)(1 - (double)h->lr * h->weight_decay) },
                              .noise = noise_of_update(rounding_seed, h->t) };
}

ZERO_CLONES static void adamw_block(const adamw_constants *constants, float keep, float *restrict p,
                                    float *restrict m, float *restrict v, const float *restrict g,
                                    int64_t n) {
    const adamw_constants c = *constants;
    for (int64_t i = 0; i < n; i++) {
        float grad = g[i] * c.grad_scale;
        float mi = fmaf(c.one_minus_beta1, grad, c.beta1 * m[i]);
        float vi = fmaf(c.one_minus_beta2 * grad, grad, c.beta2 * v[i]);
        float denominator = fmaf(sqrtf(vi), c.inv_sqrt_correction2, c.eps);
        m[i] = mi;
        v[i] = vi;
        p[i] = fmaf(-c.step_size, mi / denominator, keep * p[i]);
    }
}

// The noise differs from element to element, so that small updates are not all lost at every step.
ZERO_CLONES static void round_with_noise(uint16_t *low, const float *p, uint32_t key, uint32_t first,
                                         int64_t n) {
    for (int64_t i = 0; i < n; i++) low[i] = bf16_round_with(p[i], noise_at(key, first + (uint32_t)i));
}

static void *at(void *p, zero_dtype t, int64_t i) { return p ? (char *)p + i * dtype_bytes(t) : NULL; }

typedef struct {
    const adamw_constants *constants;
    const adamw_arrays *arrays;
    const adamw_segment *segment;
} adamw_work;

static void adamw_of_block(const void *ctx, int64_t b, int64_t len) {
    const adamw_work *w = ctx;
    const adamw_constants *c = w->constants;
    const adamw_arrays *a = w->arrays;
    const adamw_segment *s = w->segment;
    int64_t from = s->offset + b;
    float wide[BLOCK], own[BLOCK];
    const float *grad = (const float *)a->g + from;
    float *p = a->p ? a->p + from : own;
    void *low = at(a->low, a->low_type, from);
    if (a->g_type != ZERO_F32) {
        kernel_convert(ZERO_F32, wide, a->g_type, (const uint16_t *)a->g + from, len);
        grad = wide;
    }
    if (!a->p) kernel_convert(ZERO_F32, own, ZERO_BF16, low, len);
    adamw_block(c, c->keep[s->decay], p, a->m + from, a->v + from, grad, len);
    if (!a->p)
        round_with_noise(low, own, noise_key(c->noise, s->tensor, s->layer), (uint32_t)(s->inside + b), len);
    else if (low)
        kernel_convert(a->low_type, low, ZERO_F32, p, len);
}

void kernel_adamw(const adamw_constants *c, const adamw_arrays *a, const adamw_table *t) {
    for (int i = 0; i < t->n; i++)
        for_each_block(t->segments[i].elems, adamw_of_block, &(adamw_work){ c, a, &t->segments[i] });
}
