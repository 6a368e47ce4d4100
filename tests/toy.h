// A toy network that calls the plugin's hooks: one unit used at both ends, like GPT-2's embeddings, and
// blocks of tensors with odd sizes. The activation depends on every parameter read and on their order.
// Gradients are nonlinear in the parameters, the activation, the rank, the micro-batch and the position, so
// any mix-up of values changes the result.
#ifndef TESTS_TOY_H
#define TESTS_TOY_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "events.h"
#include "toy_kernels.h"
#include "../llmc_zero/base/clock.h"

enum { TOY_BLOCKS = 4, TOY_UNITS = TOY_BLOCKS + 1, TOY_TENSORS = 6, TOY_LARGEST = 33333 };
enum { TOY_ELEMS = TOY_LARGEST + 50 + TOY_BLOCKS * (129 + 5003 + 33 + 1280) };

// As in GPT-2, backward overwrites the gradients of matrices and adds to the others.
static zero_tensor toy_tensors[TOY_TENSORS] = {
    { "wte", 1, { TOY_LARGEST }, 1, 0, 1, 1, 0.9f },
    { "lnw", 1, { 129 }, TOY_BLOCKS, 1, 0, 0 },
    { "w", 1, { 5003 }, TOY_BLOCKS, 1, 1, 1 },
    { "b", 1, { 33 }, TOY_BLOCKS, 1, 0, 0 },
    { "proj", 1, { 1280 }, TOY_BLOCKS, 1, 0.7f, 1, 1.3f },
    { "lnfw", 1, { 50 }, 1, 0, 0, 0 },
};
static const zero_unit toy_units[TOY_UNITS] = {
    { "emb", 2, 2, 1 },     { "block 0", 1, 1, 0 }, { "block 1", 1, 1, 0 },
    { "block 2", 1, 1, 0 }, { "block 3", 1, 1, 0 },
};

// Sets of frozen tensors, as bits. In the last set only one block is frozen: its only tensor is lnw, which
// the other blocks lack.
enum { TOY_FROZEN_SETS = 5, TOY_ONE_BLOCK = TOY_FROZEN_SETS - 1 };
static const struct {
    const char *name;
    unsigned tensors;
} toy_frozen_sets[TOY_FROZEN_SETS] = {
    { "none frozen", 0 },
    { "wte and w frozen", 1 << 0 | 1 << 2 },
    { "embedding frozen", 1 << 0 | 1 << 5 },
    { "blocks and lnfw frozen", 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 },
    { "a block frozen", 1 << 1 },
};
static inline const char *toy_freeze(int set) {
    for (int k = 0; k < TOY_TENSORS; k++) {
        zero_tensor *t = &toy_tensors[k];
        t->frozen = toy_frozen_sets[set].tensors >> k & 1;
        if (t->unit == 0) continue;
        t->unit = 1 + (set == TOY_ONE_BLOCK && !t->frozen);
        t->layers = set != TOY_ONE_BLOCK ? TOY_BLOCKS : t->frozen ? 1 : TOY_BLOCKS - 1;
    }
    return toy_frozen_sets[set].name;
}

static inline int64_t toy_elems(int tensor) { return zero_tensor_elems(&toy_tensors[tensor]); }

typedef struct {
    zero *z;
    zero_dtype dtype;
    zero_unit units[TOY_UNITS];
    int rank, ranks, micro;
    int by_layers;     // config.accumulate_layers, with one micro-batch
    double compute_s;  // how long each use of a block sleeps, to imitate computation
    float activation;
    const toy_device *on;  // computes on `stream`, with the activation in *device_activation; NULL: CPU
    void *stream;
    float *device_activation;
} toy;

#define TOY_TRY(call)                \
    do {                             \
        int toy_rc_ = (call);        \
        if (toy_rc_) return toy_rc_; \
    } while (0)

static inline float toy_initial(int tensor, int layer, int64_t i) {
    return (float)((tensor * 31 + layer * 7 + i * 13) % 97) / 97 - 0.4f;
}

// Rounds x to a dtype and back.
static inline float toy_rounded(zero_dtype dtype, float x) {
    return dtype == ZERO_F32 ? x : dtype == ZERO_BF16 ? bf16_widen(bf16_round(x)) : fp16_widen(fp16_round(x));
}

static inline int toy_has(int tensor, int unit) {
    return unit >= toy_tensors[tensor].unit && unit < toy_tensors[tensor].unit + toy_tensors[tensor].layers;
}

static inline void toy_compute(const toy *t, int unit) {
    if (t->compute_s > 0 && unit) clock_nap(t->compute_s);
}

static inline int toy_start(toy *t, float activation) {
    t->activation = activation;
    return t->on ? t->on->start(t->stream, t->device_activation, activation) : 0;
}

static inline int toy_read(toy *t, const void *p, int64_t n) {
    if (t->on) return t->on->read(t->stream, t->device_activation, t->dtype, p, n);
    float a = t->activation;
    for (int64_t i = 0; i < n; i++) a = toy_add_parameter(a, toy_load(t->dtype, p, i), i);
    t->activation = a;
    return 0;
}

static inline int toy_forward(toy *t, int unit) {
    TOY_TRY(zero_pre_forward(t->z, unit));
    toy_compute(t, unit);
    for (int k = 0; k < TOY_TENSORS; k++) {
        if (!toy_has(k, unit)) continue;
        const void *p = zero_param(t->z, k, unit - toy_tensors[k].unit);
        if (!p) return ZERO_ERR_MISUSE;
        TOY_TRY(toy_read(t, p, toy_elems(k)));
    }
    return zero_post_forward(t->z, unit);
}

static inline int toy_gradient(const toy *t, int tensor, int use, const void *p, void *g) {
    toy_use u = { t->dtype, t->ranks, t->rank, t->micro, use };
    int64_t n = toy_elems(tensor);
    u.loss_scale = (float)zero_loss_scale(t->z);
    u.writes = toy_tensors[tensor].backward_overwrites && use == 0;
    if (t->on) return t->on->add_gradient(t->stream, &u, t->device_activation, p, g, n);
    for (int64_t i = 0; i < n; i++) toy_add_gradient(&u, t->activation, p, g, i);
    return 0;
}

static inline int toy_backward(toy *t, int unit, int use) {
    int reads = use < t->units[unit].backward_uses - t->units[unit].gradient_only_uses;
    TOY_TRY(zero_pre_backward(t->z, unit));
    toy_compute(t, unit);
    for (int k = 0; k < TOY_TENSORS; k++) {
        if (!toy_has(k, unit) || toy_tensors[k].frozen) continue;
        int layer = unit - toy_tensors[k].unit;
        const void *p = reads ? zero_param(t->z, k, layer) : NULL;
        void *g = zero_grad(t->z, k, layer);
        if ((reads && !p) || !g) return ZERO_ERR_MISUSE;
        TOY_TRY(toy_gradient(t, k, use, p, g));
    }
    if (t->by_layers) TOY_TRY(zero_post_micro(t->z, unit, 0));
    return zero_post_backward(t->z, unit);
}

static inline int toy_forward_pass(toy *t, int micro, int of) {
    TOY_TRY(of ? zero_begin_train(t->z, micro, of) : zero_begin_eval(t->z));
    t->micro = micro;
    TOY_TRY(toy_start(t, 0.1f * t->rank + 0.05f * micro));
    TOY_TRY(toy_forward(t, 0));
    for (int u = 1; u < TOY_UNITS; u++)
        for (int use = 0; use < t->units[u].forward_uses; use++) TOY_TRY(toy_forward(t, u));
    return toy_forward(t, 0);
}

static inline int toy_backward_pass(toy *t) {
    TOY_TRY(toy_backward(t, 0, 0));
    for (int u = TOY_UNITS - 1; u > 0; u--) TOY_TRY(toy_backward(t, u, 0));
    return toy_backward(t, 0, 1);
}

// Runs forward and backward of micro-batch `micro` of `of`, or an evaluation if `of` is 0.
static inline int toy_pass(toy *t, int micro, int of) {
    TOY_TRY(toy_forward_pass(t, micro, of));
    return of ? toy_backward_pass(t) : 0;
}
static inline int toy_eval(toy *t) { return toy_pass(t, 0, 0); }

static inline int toy_passes(toy *t, int micro_batches) {
    for (int m = 0; m < micro_batches; m++) TOY_TRY(toy_pass(t, m, micro_batches));
    return 0;
}

static inline zero_hyper toy_hyper(int step) {
    return (zero_hyper){ .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = step };
}

static inline int toy_step(toy *t, int micro_batches, int step, zero_step_result *result) {
    zero_hyper h = toy_hyper(step);
    h.weight_decay = 0.1f;
    h.grad_clip = 1.0f;
    TOY_TRY(toy_passes(t, micro_batches));
    return zero_step(t->z, &h, result);
}

static inline int toy_set_initial(toy *t) {
    static float values[TOY_LARGEST];
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++) {
            for (int64_t i = 0; i < toy_elems(k); i++) values[i] = toy_initial(k, l, i);
            TOY_TRY(zero_set(t->z, ZERO_PARAM, k, l, 0, toy_elems(k), values));
        }
    return 0;
}

// All states remain 0. units: NULL for toy_units.
static inline int toy_create_empty(toy *t, const zero_config *config, const zero_unit *units) {
    *t = (toy){ .dtype = config->numbers.dtype, .by_layers = config->accumulate_layers };
    memcpy(t->units, units ? units : toy_units, sizeof t->units);
    TOY_TRY(zero_create(&t->z, config, toy_tensors, TOY_TENSORS, t->units, TOY_UNITS));
    t->rank = zero_rank(t->z);
    t->ranks = zero_ranks(t->z);
    return 0;
}

static inline int toy_create(toy *t, const zero_config *config, const zero_unit *units) {
    TOY_TRY(toy_create_empty(t, config, units));
    return toy_set_initial(t);
}

#ifdef ZERO_HAVE_CUDA
// On CUDA, its kernels compute there too.
static inline int toy_create_on_device(toy *t, const zero_config *config) {
    TOY_TRY(toy_create(t, config, NULL));
    if (config->device == ZERO_CPU) return 0;
    t->on = &toy_cuda;
    t->device_activation = zero_alloc(t->z, ZERO_DEVICE, ZERO_ACTIVATIONS, "activation", sizeof(float));
    return t->device_activation ? 0 : ZERO_ERR_MEMORY;
}
#endif

// Lists the units' events from *next on: G gather, R reduction, U update, F forward, B backward. Without
// overlap they are in the order in which they started. Valid until the next call.
static inline const char *toy_events(const trace *happened, int *next) {
    static const char letters[] = { [EVENT_GATHER] = 'G',
                                    [EVENT_REDUCE] = 'R',
                                    [EVENT_UPDATE] = 'U',
                                    [EVENT_FORWARD] = 'F',
                                    [EVENT_BACKWARD] = 'B' };
    static char text[512];
    trace_event e;
    *text = 0;
    for (int n = 0; trace_at(happened, *next, &e); ++*next)
        if (e.unit >= 0 && (size_t)e.kind < sizeof letters && letters[e.kind])
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%c%d", n ? " " : "", letters[e.kind], e.unit);
    return text;
}

#endif
