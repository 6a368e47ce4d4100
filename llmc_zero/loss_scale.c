// The dynamic loss scale of fp16 (Micikevicius et al., arXiv 1710.03740, section 3.2), with DeepSpeed's
// settings and rules.
#include "loss_scale.h"
#include "base/error.h"
#include <math.h>

void loss_scale_init(loss_scale *s, const zero_config *c) {
    double value = c->numbers.dtype != ZERO_F16 ? 1
                   : c->numbers.loss_scale > 0  ? c->numbers.loss_scale
                                                : ldexp(1, c->numbers.initial_scale_power);
    *s = (loss_scale){ value, 0, -1, c->numbers.hysteresis };
}

int loss_scale_step(loss_scale *s, const zero_config *c, int overflow) {
    if (c->numbers.dtype != ZERO_F16 || c->numbers.loss_scale > 0) return 0;
    if (overflow) {
        if (s->left > 1)
            s->left--;
        else if (s->value <= c->numbers.min_loss_scale)
            return zero_fail(
                ZERO_ERR_ARGUMENT,
                "the gradients overflow at the smallest loss scale, min_loss_scale %g: the loss or the "
                "learning rate is too high for fp16",
                c->numbers.min_loss_scale);
        else
            s->value = s->value / 2 > c->numbers.min_loss_scale ? s->value / 2 : c->numbers.min_loss_scale;
        s->last_overflow = s->steps;
    } else {
        if (c->numbers.consecutive_hysteresis) s->left = c->numbers.hysteresis;
        int64_t clean = s->steps - s->last_overflow - 1;  // earlier steps without overflow
        if (clean > 0 && clean % c->numbers.loss_scale_window == 0) {
            s->value *= 2;
            s->left = c->numbers.hysteresis;
        }
    }
    s->steps++;
    return 0;
}
