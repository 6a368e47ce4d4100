// The naive path, stage 0 only: what data-parallel training does before any ZeRO, in two plain loops. Every
// rank sends all of its gradients to everyone at the end of backward, and every rank updates every parameter.
// It is the first lesson, and the oracle that the tests hold every other path against, bit for bit; so it
// shares no reduction and no AdamW kernel with them.
#include "internal.h"
#include "device/numbers.h"
#include <math.h>
#include <stdlib.h>

static float load(zero_dtype t, const char *p, int64_t i) {
    if (t == ZERO_F32) return ((const float *)p)[i];
    uint16_t x = ((const uint16_t *)p)[i];
    return t == ZERO_BF16 ? bf16_widen(x) : fp16_widen(x);
}
static void store(zero_dtype t, char *p, int64_t i, float x) {
    if (t == ZERO_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = t == ZERO_BF16 ? bf16_round(x) : fp16_round(x);
}

static int all_reduce(zero *z, comm_use use, char *grads, int64_t n, char *theirs, float *sum) {
    zero_dtype wire = wire_type(z);
    for (int r = 0; r < z->comm.ranks; r++) {
        for (int64_t i = 0; i < n && r == z->comm.rank; i++)
            store(wire, theirs, i, load(z->grad_type, grads, i));
        ZERO_TRY(comm_broadcast(&z->comm, use, r, theirs, n * dtype_bytes(wire)));
        for (int64_t i = 0; i < n; i++)
            sum[i] = r == 0 ? load(wire, theirs, i) : sum[i] + load(wire, theirs, i);
    }
    for (int64_t i = 0; i < n; i++) store(z->grad_type, grads, i, sum[i] * (1.0f / z->comm.ranks));
    return 0;
}

static int run_naive(void *ctx, job *j) {
    (void)j;
    enum { CHUNK = 1 << 18 };
    zero *z = ctx;
    size_t size = dtype_bytes(z->grad_type);
    char *theirs = malloc(CHUNK * dtype_bytes(wire_type(z)));
    float *sum = malloc(CHUNK * sizeof(float));
    int rc = theirs && sum ? 0 : zero_fail(ZERO_ERR_MEMORY, "out of memory for the naive all-reduce");
    const comm_use use = { .purpose = ZERO_FOR_STEP, .unit = 0, .units = z->layout.n_units };
    for (int64_t at = 0; !rc && at < z->layout.flat_elems; at += CHUNK) {
        int64_t n = z->layout.flat_elems - at < CHUNK ? z->layout.flat_elems - at : CHUNK;
        rc = all_reduce(z, use, z->grads + at * size, n, theirs, sum);
    }
    free(theirs);
    free(sum);
    return rc;
}

int naive_reduce(zero *z) { return progress_run(&z->progress, run_naive, z); }

int naive_update(zero *z, const zero_hyper *h, double grad_scale) {
    const uint32_t update = noise_of_update(z->config.numbers.rounding_seed, h->t);
    const float step_size = (float)(h->lr / (1 - pow(h->beta1, h->t))),
                correction = (float)(1 / sqrt(1 - pow(h->beta2, h->t)));
    for (int k = 0; k < z->layout.n_places; k++) {
        const layout_place *p = &z->layout.places[k];
        const float keep = p->decay ? (float)(1 - (double)h->lr * h->weight_decay) : 1.0f;
        const uint32_t key = noise_key(update, p->tensor, p->layer);
        int64_t at = z->layout.units[layout_unit_of(&z->layout, p)].base + p->offset;
        for (int64_t i = at; i < at + p->elems; i++) {
            float g = load(z->grad_type, z->grads, i) * (float)grad_scale;
            float m = z->moment1[i] = fmaf(1 - h->beta1, g, h->beta1 * z->moment1[i]);
            float v = z->moment2[i] = fmaf((1 - h->beta2) * g, g, h->beta2 * z->moment2[i]);
            float old = z->master ? z->master[i] : load(z->config.numbers.dtype, z->params, i);
            float new = fmaf(-step_size, m / fmaf(sqrtf(v), correction, h->eps), keep * old);
            if (z->master) z->master[i] = new;
            uint32_t noise = noise_at(key, (uint32_t)(i - at));
            if (z->config.numbers.no_master)
                ((uint16_t *)z->params)[i] = bf16_round_with(new, noise);
            else
                store(z->config.numbers.dtype, z->params, i, new);
        }
    }
    return 0;
}
