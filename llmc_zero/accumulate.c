// The micro-batches are added in a binary tree: neighbours first, then pairs of pairs. Partial sum k has 2^k
// micro-batches. Micro-batch m completes as many of them as m ends in ones, and each is added to the next.
#include "accumulate.h"
#include "internal.h"

int accumulate_create(zero *z) {
    const memory_request *own = z->plan.own;
    struct accumulate *a = &z->accumulate;
    a->unit = -1;
    if (own[PLAN_MICRO].blocks) ZERO_TRY_ALLOC(a->micro = allocate(z, PLAN_MICRO));
    if (own[PLAN_PARTIALS].blocks) ZERO_TRY_ALLOC(a->partials = allocate(z, PLAN_PARTIALS));
    a->elems = own[PLAN_MICRO].bytes / dtype_bytes(z->config.numbers.dtype);
    return 0;
}

void accumulate_begin_step(zero *z) { z->accumulate.unit = -1; }

int accumulate_check(const zero *z, int unit) {
    const int other = z->accumulate.unit;
    if (other < 0 || other == unit) return 0;
    return zero_fail(
        ZERO_ERR_MISUSE,
        "unit %d (%s): unit %d (%s) is open for backward: with accumulate_layers all micro-batches "
        "pass one unit before backward opens the next; close it first",
        unit, z->layout.units[unit].name, other, z->layout.units[other].name);
}

char *accumulate_open(zero *z, int unit) {
    if (z->accumulate.micro) z->accumulate.unit = unit;
    return z->accumulate.micro;
}

// The highest partial sum is the result.
static int highest(const zero *z) { return plan_partial_sums(&z->config) - 1; }
static float *partial(const zero *z, int k, float *sum) {
    return k < highest(z) ? z->accumulate.partials + k * z->accumulate.elems : sum;
}

// to = x in fp32, plus `plus`; NULL: nothing
static int add(zero *z, int unit, float *to, zero_dtype type, const void *x, const float *plus) {
    const rank_parts one = { .ranks = 1, .own = x };
    device *d = &z->device;
    return d->f->sum_ranks(d, COMPUTE, ZERO_F32, to, type, &one, 1, z->layout.units[unit].padded, plus);
}

static int add_micro(zero *z, int unit, int micro, float *sum) {
    const void *carry = z->accumulate.micro;
    zero_dtype type = z->config.numbers.dtype;
    if (!(micro & 1)) return add(z, unit, partial(z, 0, sum), type, carry, NULL);
    for (int k = 0; micro >> k & 1; k++) {
        const int goes_on = micro >> (k + 1) & 1;
        float *to = partial(z, goes_on || k == highest(z) ? k : k + 1, sum);
        ZERO_TRY(add(z, unit, to, type, carry, partial(z, k, sum)));
        carry = to;
        type = ZERO_F32;
    }
    return 0;
}

// After the last of n micro-batches: adds the partial sums that are left, the odd ones out, lowest first.
static int add_rest(zero *z, int unit, int n, float *sum) {
    const float *last = NULL;
    for (int k = 0; k <= highest(z); k++) {
        float *to = partial(z, k, sum);
        if (!(n >> k & 1)) continue;
        if (last) ZERO_TRY(add(z, unit, to, ZERO_F32, last, to));
        last = to;
    }
    return !last || last == sum ? 0 : add(z, unit, sum, ZERO_F32, last, NULL);
}

int accumulate_add(zero *z, int unit, int micro, float *sum) {
    const int n = pass_micro_batches(z);
    device *d = &z->device;
    ZERO_TRY(add_micro(z, unit, micro, sum));
    if (micro < n - 1) return 0;
    ZERO_TRY(add_rest(z, unit, n, sum));
    z->accumulate.unit = -1;
    const size_t bytes = z->layout.units[unit].padded * dtype_bytes(z->config.numbers.dtype);
    return z->config.debug.poison ? d->f->fill_nan(d, COMPUTE, z->accumulate.micro, bytes) : 0;
}
