// The naive path, stage 0 only: data-parallel training without ZeRO, in plain loops. At the end of backward
// every rank sends all its gradients to all others and updates every parameter. It is the easiest path to
// read. Tests compare every other path with it bit for bit, so it has its own reduction and update code.
#include "naive.h"
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

enum { CHUNK = 1 << 18 };

// Adds the last two of the chunks in `sums` and returns how many are left.
static int add_last_two(float *sums, int chunks, int64_t n) {
    float *left = sums + (int64_t)(chunks - 2) * CHUNK, *right = left + CHUNK;
    for (int64_t i = 0; i < n; i++) left[i] += right[i];
    return chunks - 1;
}

// Two sums of equally many ranks are added at once, so the order of additions is a binary tree.
static int all_reduce(zero *z, comm_use use, char *grads, int64_t n, char *theirs, float *sums) {
    zero_dtype wire = plan_wire_type(&z->config), type = rank_state(z, ZERO_GRADIENT)->dtype;
    int chunks = 0;
    for (int r = 0; r < z->comm.group.ranks; r++) {
        for (int64_t i = 0; i < n && r == z->comm.group.rank; i++)
            store(wire, theirs, i, load(type, grads, i));
        ZERO_TRY(comm_broadcast(&z->comm, use, r, theirs, n * dtype_bytes(wire)));
        float *last = sums + (int64_t)chunks++ * CHUNK;
        for (int64_t i = 0; i < n; i++) last[i] = load(wire, theirs, i);
        for (int m = r + 1; m % 2 == 0; m /= 2) chunks = add_last_two(sums, chunks, n);
    }
    while (chunks > 1) chunks = add_last_two(sums, chunks, n);
    for (int64_t i = 0; i < n; i++) store(type, grads, i, sums[i] * (1.0f / z->comm.group.ranks));
    return 0;
}

static int reduce_unit(zero *z, int unit, char *theirs, float *sums) {
    const comm_use use = { .purpose = ZERO_FOR_STEP, .unit = unit, .units = 1 };
    const size_t size = dtype_bytes(rank_state(z, ZERO_GRADIENT)->dtype);
    const int64_t elems = z->layout.units[unit].padded;
    state_part grads;
    ZERO_TRY(state_open(&grads, rank_state(z, ZERO_GRADIENT), COMM, unit, STATE_WHOLE, STATE_CHANGE));
    int rc = 0;
    for (int64_t at = 0; at < elems && !rc; at += CHUNK)
        rc = all_reduce(z, use, grads.at + at * size, elems - at < CHUNK ? elems - at : CHUNK, theirs, sums);
    return state_close_after(rc, &grads, 1);
}

static int run_naive(void *ctx, task *k) {
    zero *z = ctx;
    char *theirs = malloc(CHUNK * dtype_bytes(plan_wire_type(&z->config)));
    int chunks = 1;  // that all_reduce keeps at a time
    for (int ranks = z->comm.group.ranks; ranks > 1; ranks /= 2) chunks++;
    float *sums = malloc(chunks * CHUNK * sizeof(float));
    int rc = theirs && sums ? 0 : zero_fail(ZERO_ERR_MEMORY, "out of memory for the naive all-reduce");
    for (int u = 0; u < z->layout.n_units && !rc; u++)
        if (z->layout.units[u].padded) rc = reduce_unit(z, u, theirs, sums);
    free(theirs);
    free(sums);
    return rc;
}

int naive_reduce(zero *z) { return tasks_run(&z->tasks, run_naive, z); }

typedef struct {
    uint32_t update;  // the first argument of noise_key
    float step_size, correction, grad_scale;
    double lr_decay;
    const zero_hyper *hyper;
} constants;

static void put_param(const zero *z, char *params, int64_t i, float x, uint32_t noise) {
    if (z->config.numbers.no_master)
        ((uint16_t *)params)[i] = bf16_round_with(x, noise);
    else
        store(z->config.numbers.dtype, params, i, x);
}

static void update_tensor(zero *z, const layout_place *p, const constants *c,
                          const state_part parts[STATES]) {
    const zero_hyper *h = c->hyper;
    const zero_dtype dtype = z->config.numbers.dtype, grads_dtype = rank_state(z, ZERO_GRADIENT)->dtype;
    const float step_size = c->step_size * p->lr_factor;
    const float keep = (float)(1 - c->lr_decay * ((double)p->lr_factor * p->decay));
    const uint32_t key = noise_key(c->update, p->tensor, p->layer);
    char *params = parts[ZERO_PARAM].at;
    const char *grads = parts[ZERO_GRADIENT].at;
    float *master = (float *)parts[ZERO_MASTER].at;
    float *moment1 = (float *)parts[ZERO_MOMENT1].at, *moment2 = (float *)parts[ZERO_MOMENT2].at;
    for (int64_t i = p->offset; i < p->offset + p->elems; i++) {
        float g = load(grads_dtype, grads, i) * c->grad_scale;
        float m = moment1[i] = fmaf(1 - h->beta1, g, h->beta1 * moment1[i]);
        float v = moment2[i] = fmaf((1 - h->beta2) * g, g, h->beta2 * moment2[i]);
        float old = master ? master[i] : load(dtype, params, i);
        float new = fmaf(-step_size, m / fmaf(sqrtf(v), c->correction, h->eps), keep * old);
        if (master) master[i] = new;
        put_param(z, params, i, new, noise_at(key, (uint32_t)(i - p->offset)));
    }
}

// Calls the trainer's update with a few elements at a time.
static void update_tensor_with(zero *z, const layout_place *p, const constants *c,
                               const state_part parts[STATES]) {
    enum { FEW = 100 };
    float weights[FEW], gradient[FEW];
    const zero_dtype grads_dtype = rank_state(z, ZERO_GRADIENT)->dtype;
    const uint32_t key = noise_key(c->update, p->tensor, p->layer);
    const zero_value from = parts[ZERO_MASTER].of ? ZERO_MASTER : ZERO_PARAM;
    const zero_dtype from_dtype = from == ZERO_MASTER ? ZERO_F32 : z->config.numbers.dtype;
    for (int64_t at = 0, n; at < p->elems; at += n) {
        const int64_t first = p->offset + at;
        n = p->elems - at < FEW ? p->elems - at : FEW;
        for (int i = 0; i < n; i++) {
            weights[i] = load(from_dtype, parts[from].at, first + i);
            gradient[i] = load(grads_dtype, parts[ZERO_GRADIENT].at, first + i) * c->grad_scale;
        }
        zero_piece piece = { p->tensor, p->layer, at, n, weights, gradient };
        for (int i = 0; i < 2; i++)
            if (parts[ZERO_MOMENT1 + i].of) piece.states[i] = (float *)parts[ZERO_MOMENT1 + i].at + first;
        piece.lr = c->hyper->lr * p->lr_factor;
        piece.weight_decay = c->hyper->weight_decay * p->decay;
        piece.hyper = c->hyper;
        z->config.update_with(z->config.update_ctx, &piece);
        for (int i = 0; i < n; i++) {
            if (from == ZERO_MASTER) store(ZERO_F32, parts[ZERO_MASTER].at, first + i, weights[i]);
            put_param(z, parts[ZERO_PARAM].at, first + i, weights[i], noise_at(key, (uint32_t)(at + i)));
        }
    }
}

static int update_unit(zero *z, int unit, const constants *c) {
    const layout_unit *u = &z->layout.units[unit];
    state_part parts[STATES] = { 0 };
    int rc = 0;
    for (int what = 0; what < STATES && !rc; what++) {
        state_intent intent = what == ZERO_GRADIENT ? STATE_READ : STATE_CHANGE;
        state *s = rank_state(z, what);
        if (s->kept) rc = state_open(&parts[what], s, COMPUTE, unit, STATE_WHOLE, intent);
    }
    for (int i = u->first_place; i < u->first_place + u->n_places && !rc; i++)
        (z->config.update_with ? update_tensor_with : update_tensor)(z, &z->layout.places[i], c, parts);
    return state_close_after(rc, parts, STATES);
}

int naive_update(zero *z, const zero_hyper *h, double grad_scale) {
    const constants c = {
        .update = noise_of_update(z->config.numbers.rounding_seed, h->t),
        .step_size = (float)(h->lr / (1 - pow(h->beta1, h->t))),
        .correction = (float)(1 / sqrt(1 - pow(h->beta2, h->t))),
        .grad_scale = (float)grad_scale,
        .lr_decay = (double)h->lr * h->weight_decay,
        .hyper = h,
    };
    for (int u = 0; u < z->layout.n_units; u++)
        if (z->layout.units[u].padded) ZERO_TRY(update_unit(z, u, &c));
    return 0;
}
