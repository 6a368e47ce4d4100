/* AdamW, one expression for every vector width: explicit fmaf, correctly rounded square root and division, nothing else. */
#include "kernels.h"
#include "bf16.h"
#include <math.h>

enum { BLOCK = 1024 };

adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, int decay) {
    double correction1 = 1 - pow(h->beta1, h->t), correction2 = 1 - pow(h->beta2, h->t);
    return (adamw_constants){
        .beta1 = h->beta1, .one_minus_beta1 = 1 - h->beta1, .beta2 = h->beta2, .one_minus_beta2 = 1 - h->beta2,
        .step_size = (float)(h->lr / correction1), .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)), .eps = h->eps,
        .keep = decay ? (float)(1 - (double)h->lr * h->weight_decay) : 1.0f, .grad_scale = (float)grad_scale };
}

/* One element; returns the new parameter. */
static inline float adamw_element(const adamw_constants *c, float p, float *m, float *v, float g) {
    float grad = g * c->grad_scale;
    *m = fmaf(c->one_minus_beta1, grad, c->beta1 * *m);
    *v = fmaf(c->one_minus_beta2 * grad, grad, c->beta2 * *v);
    float denominator = fmaf(sqrtf(*v), c->inv_sqrt_correction2, c->eps);
    return fmaf(-c->step_size, *m / denominator, c->keep * p);
}

ZERO_CLONES static void adamw_f32(const adamw_constants *constants, float *restrict p, float *restrict m, float *restrict v,
                                  const float *restrict g, int64_t n) {
    const adamw_constants c = *constants;
    for (int64_t i = 0; i < n; i++) p[i] = adamw_element(&c, p[i], &m[i], &v[i], g[i]);
}

/* Gradients and the parameters for compute in bf16. */
ZERO_CLONES static void adamw_bf16(const adamw_constants *constants, float *restrict p, float *restrict m, float *restrict v,
                                   const uint16_t *restrict g, uint16_t *restrict low, int64_t n) {
    const adamw_constants c = *constants;
    for (int64_t i = 0; i < n; i++) {
        p[i] = adamw_element(&c, p[i], &m[i], &v[i], bf16_widen(g[i]));
        low[i] = bf16_round(p[i]);
    }
}

void kernel_adamw(const adamw_constants *c, float *p, float *m, float *v, zero_dtype g_type, const void *g, uint16_t *low, int64_t n) {
    #pragma omp parallel for schedule(static) if (n > 8 * BLOCK)
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t len = n - b < BLOCK ? n - b : BLOCK;
        if (g_type == ZERO_BF16) {
            adamw_bf16(c, p + b, m + b, v + b, (const uint16_t *)g + b, low + b, len);
            continue;
        }
        adamw_f32(c, p + b, m + b, v + b, (const float *)g + b, len);
        if (low) kernel_convert(ZERO_BF16, low + b, ZERO_F32, p + b, len);
    }
}
