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

void kernel_adamw(const adamw_constants *c, float *p, float *m, float *v, zero_dtype g_type, const void *g, uint16_t *low, int64_t n) {
    #pragma omp parallel for schedule(static) if (n > 8 * BLOCK)
    for (int64_t b = 0; b < n; b += BLOCK) {
        int64_t len = n - b < BLOCK ? n - b : BLOCK;
        float wide[BLOCK];
        const float *grad = (const float *)g + b;
        if (g_type == ZERO_BF16) {
            kernel_convert(ZERO_F32, wide, ZERO_BF16, (const uint16_t *)g + b, len);
            grad = wide;
        }
        adamw_block(c, p + b, m + b, v + b, grad, len);
        if (low) kernel_convert(ZERO_BF16, low + b, ZERO_F32, p + b, len);
    }
}
