// The learning rate of each step, and z-scores of losses and gradient norms over a sliding window.
#include <math.h>
#include <string.h>
#include "gpt2_error.h"
#include "learning_rate.h"

int schedule_init(Schedule *s, const char *kind, float lr, int warmup, int steps, float final_fraction) {
    static const char *kinds[] = {
        [LR_COSINE] = "cosine", [LR_LINEAR] = "linear", [LR_CONSTANT] = "constant", [LR_WSD] = "wsd"
    };
    int k = 0;
    while (k <= LR_WSD && strcmp(kind, kinds[k])) k++;
    if (k > LR_WSD)
        return gpt2_fail("learning-rate schedule \"%s\" is unknown: choose cosine, linear, constant or wsd",
                         kind);
    if (!isfinite(lr) || lr < 0) return gpt2_fail("learning rate %g: must be finite and not negative", lr);
    if (warmup < 0) return gpt2_fail("%d warm-up steps: must not be negative", warmup);
    if (steps < 1) return gpt2_fail("learning-rate schedule over %d steps: needs at least one", steps);
    if (!(final_fraction >= 0 && final_fraction <= 1))
        return gpt2_fail("final learning-rate fraction %g: must be between 0 and 1", final_fraction);
    *s =
        (Schedule){ .kind = k, .lr = lr, .warmup = warmup, .steps = steps, .final_fraction = final_fraction };
    return 0;
}

// Returns how far `step` is between two steps, from 0 to 1.
static float progress(int step, int from, int to) {
    if (step >= to) return 1;
    return (float)(step - from) / (to - from);
}

float schedule_lr(const Schedule *s, int step) {
    if (s->kind == LR_CONSTANT) return s->lr;
    if (step < s->warmup) return s->lr * (float)(step + 1) / s->warmup;
    float lowest = s->lr * s->final_fraction;
    if (s->kind == LR_LINEAR) return s->lr - progress(step, s->warmup, s->steps) * (s->lr - lowest);
    float share = 1;  // of the way from the lowest to the highest rate
    if (s->kind == LR_COSINE) {
        share = 0.5f * (1.0f + cosf((float)(M_PI * progress(step, s->warmup, s->steps))));
    } else {  // warm-up, stable, decay over the last fifth (arXiv 2405.18392)
        int decay = (int)(0.8f * s->steps);
        if (step < decay) return s->lr;
        share = 1.0f - sqrtf(progress(step, decay, s->steps));
    }
    return lowest + share * (s->lr - lowest);
}

void outlier_init(OutlierDetector *d) { *d = (OutlierDetector){ 0 }; }

double outlier_update(OutlierDetector *d, double x) {
    int full = d->count == OUTLIER_WINDOW;
    double oldest = full ? d->buffer[d->index] : 0;
    d->sum = d->sum - oldest + x;
    d->sum_sq = d->sum_sq - oldest * oldest + x * x;
    d->buffer[d->index] = x;
    d->index = (d->index + 1) % OUTLIER_WINDOW;
    if (!full) {
        d->count++;
        return NAN;
    }
    double mean = d->sum / OUTLIER_WINDOW, variance = d->sum_sq / OUTLIER_WINDOW - mean * mean;
    return variance > 0 ? (x - mean) / sqrt(variance) : 0;
}
