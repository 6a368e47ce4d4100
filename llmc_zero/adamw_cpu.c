/* AdamW, one expression for every vector width: explicit fmaf, correctly rounded square root and division, nothing else. */
#include "kernels.h"
#include "numbers.h"
#include <math.h>

enum { BLOCK = 1024 };

adamw_constants adamw_prepare(const zero_hyper *h, double grad_scale, int decay) {
    double correction1 = 1 - pow(h->beta1, h->t), correction2 = 1 - pow(h->beta2, h->t);
    return (adamw_constants){
        .beta1 = h->beta1, .one_minus_beta1 = 1 - h->beta1, .beta2 = h->beta2, .one_minus_beta2 = 1 - h->beta2,
        .step_size = (float)(h->lr / correction1), .inv_sqrt_correction2 = (float)(1 / sqrt(correction2)), .eps = h->eps,
        .keep = decay ? (float)(1 - (double)h->lr * h->weight_decay) : 1.0f, .grad_scale = (float)grad_scale };
}

ZERO_CLONES static void adamw_block(const adamw_constants *constants, float *restrict p, float *restrict m, float *restrict v,
                                    const float *restrict g, int64_t n) {
    const adamw_constants c = *constants;
    for (int64_t i = 0; i < n; i++) {
        float grad = g[i] * c.grad_scale;
        float mi = fmaf(c.one_minus_beta1, grad, c.beta1 * m[i]);
        float vi = fmaf(c.one_minus_beta2 * grad, grad, c.beta2 * v[i]);
        float denominator = fmaf(sqrtf(vi), c.inv_sqrt_correction2, c.eps);
        m[i] = mi;
        v[i] = vi;
        p[i] = fmaf(-c.step_size, mi / denominator, c.keep * p[i]);
    }
}

/* The noise changes from element to element: without it the same small updates would be lost at every step. */
ZERO_CLONES static void round_with_noise(uint16_t *low, const float *p, uint32_t key, uint32_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) low[i] = bf16_round_with(p[i], noise_at(key, first + (uint32_t)i));
}

void kernel_adamw(const adamw_constants *c, const adamw_arrays *a, int64_t n) {
    #pragma omp parallel for schedule(static) if (n > 8 * BLOCK)
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t len = n - b < BLOCK ? n - b : BLOCK;
        float wide[BLOCK], own[BLOCK];
        const float *grad = (const float *)a->g + b;
        float *p = a->p ? a->p + b : own;
        char *low = a->low ? (char *)a->low + b * dtype_bytes(a->low_type) : NULL;
        if (a->g_type != ZERO_F32) {
            kernel_convert(ZERO_F32, wide, a->g_type, (const uint16_t *)a->g + b, len);
            grad = wide;
        }
        if (!a->p) kernel_convert(ZERO_F32, own, ZERO_BF16, low, len);
        adamw_block(c, p, a->m + b, a->v + b, grad, len);
        if (!a->p) round_with_noise((uint16_t *)low, own, a->noise_key, a->noise_first + (uint32_t)b, len);
        else if (low) kernel_convert(a->low_type, low, ZERO_F32, p, len);
    }
}
