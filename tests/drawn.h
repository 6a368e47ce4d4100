// A case of mpi_bits.c, drawn from a seed: a table of tensors and units, what is trained, two sets of
// settings that must not change any bit, and the trainer's calls. A case that fails is made smaller while it
// still fails.
#ifndef TESTS_DRAWN_H
#define TESTS_DRAWN_H
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "../llmc_zero/zero.h"

enum { MOST_UNITS = 6, MOST_TENSORS = 9, MOST_CALLS = 12, MOST_MICRO = 9, HOWS = 2, LARGEST = 20011 };

// clang-format off
// What is trained: these change the bits.
#define TRAINED(X) \
    X(DTYPE, dtype) X(NO_MASTER, no_master) X(UPDATE, update) X(MICRO, micro_batches) X(EXACT, exact_sums) \
    X(DELAYED, delayed_from) X(SCALE, scale_power) X(AHEAD, opens_ahead) X(JOINED, forward_joins_backward) \
    X(SHUFFLED, any_order) X(APART, order_by_rank) X(INFERENCE, inference_too) X(LAYERS, by_layers)
// How it is trained: these must not. Ratios are in percent. Four are not settings: the store of copies
// (copies.h), how the stand-in orders streams, the trainer's stream, and pretended hosts (0: one).
#define SETTINGS(X) \
    X(STAGE, stage) X(CUDA, cuda) X(NCCL, nccl) X(OVERLAP, overlap) X(PREFETCH, prefetch) \
    X(MAX_OPEN, max_open) X(BUCKET, bucket) X(POISON, poison) X(SHARED, shared_window) X(WINDOW, window) \
    X(WIRE, fp32_on_the_wire) X(TRACE, trace) X(PARAMS, params_tier) X(OPTIMIZER, optimizer_tier) \
    X(GRADIENTS, gradients_tier) X(RATIO, optimizer_ratio) X(IN_HOST, params_in_host) X(PIECE, piece) \
    X(VERIFY, verify) X(COPIES, copies) X(MANNER, manner) X(STREAM, own_stream) \
    X(HOSTS, ranks_per_host) X(GROUP, param_group)
// clang-format on
#define AS_INDEX(index, name) index,
#define AS_NAME(index, name) #name,
enum { TRAINED(AS_INDEX) N_TRAINED };
enum { SETTINGS(AS_INDEX) N_SETTINGS };
static const char *const trained_names[] = { TRAINED(AS_NAME) }, *const setting_names[] = { SETTINGS(
                                                                     AS_NAME) };
static const int64_t plain_settings[N_SETTINGS] = {
    [PREFETCH] = 1, [MAX_OPEN] = 1, [SHARED] = 1, [WINDOW] = 4 << 20, [RATIO] = 100, [PIECE] = 4 << 20
};
static const int64_t plain_trained[N_TRAINED] = { [MICRO] = 1, [SCALE] = 8 };

// STEP: micro-batches and the update. RESUME: a save, and a load by a new plugin with the other settings.
typedef enum { STEP, EVAL, SET, GET, RESUME } call_kind;
static const char *const call_names[] = { "step", "evaluate", "set", "get", "resume" };
typedef struct {
    call_kind kind;
    int of;         // micro-batches
    int abandoned;  // STEP, EVAL, SET: a pass is given up first, after this many uses
    int clips, promises, discards;
    uint32_t draw;  // for the values, ranges and orders of the call
} call;

typedef struct {
    uint64_t seed;
    int ranks;
    zero_tensor tensors[MOST_TENSORS];
    zero_unit units[MOST_UNITS];
    int n_tensors, n_units, n_calls;
    call calls[MOST_CALLS];
    int64_t trained[N_TRAINED], how[HOWS][N_SETTINGS];
} drawn;

// What this machine can run; set by main.
static struct { int cuda, nccl, manners; } possible;

// -------- drawing (splitmix64)

static inline uint64_t next_draw(uint64_t *seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static inline int below(uint64_t *seed, int n) { return (int)(next_draw(seed) % (uint64_t)n); }
static inline int one_in(uint64_t *seed, int n) { return !below(seed, n); }
#define ONE_OF(seed, ...) \
    ((const int64_t[]){ __VA_ARGS__ })[below(seed, sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))]

static inline void draw_shape(zero_tensor *t, uint64_t *s) {
    static const int most[] = { 1, 40, 300, 1500, 6000, LARGEST };
    int64_t left = 1 + below(s, most[below(s, 6)]);
    t->n_dims = 1 + below(s, 3);
    for (int i = 0; i < t->n_dims; i++) {
        t->dims[i] = i == t->n_dims - 1 ? left : 1 + below(s, left < 7 ? (int)left : 7);
        left /= t->dims[i];
    }
}

static inline void draw_tensor(drawn *d, int unit, int layers, uint64_t *s) {
    static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h", "i" };
    zero_tensor *t = &d->tensors[d->n_tensors];
    *t = (zero_tensor){ .name = names[d->n_tensors++], .unit = unit, .layers = layers };
    draw_shape(t, s);
    t->decay = (float)ONE_OF(s, 0, 1, 7) / 7;
    t->backward_overwrites = below(s, 2);
    t->lr_factor = (float)ONE_OF(s, 0, 9, 13) / 10;
    t->frozen = one_in(s, 5);
}

static inline int holds(const drawn *d, int tensor, int unit) {
    const zero_tensor *t = &d->tensors[tensor];
    return unit >= t->unit && unit < t->unit + t->layers;
}
static inline int is_empty(const drawn *d, int unit) {
    for (int k = 0; k < d->n_tensors; k++)
        if (holds(d, k, unit)) return 0;
    return 1;
}

static inline void draw_tables(drawn *d, uint64_t *s) {
    static const char *const names[] = { "u0", "u1", "u2", "u3", "u4", "u5" };
    d->n_units = 1 + below(s, MOST_UNITS);
    for (int u = 0; u < d->n_units; u++) {
        const int uses = one_in(s, 3);
        d->units[u] = (zero_unit){ names[u], uses ? 1 + below(s, 3) : 1, uses ? 1 + below(s, 3) : 1, 0 };
        if (uses || one_in(s, 6)) d->units[u].gradient_only_uses = below(s, 1 + d->units[u].backward_uses);
    }
    for (int k = below(s, MOST_TENSORS - MOST_UNITS + 1); k > 0; k--) {
        const int unit = below(s, d->n_units);
        draw_tensor(d, unit, 1 + below(s, d->n_units - unit), s);
    }
    for (int u = 0; u < d->n_units; u++)
        if (is_empty(d, u)) draw_tensor(d, u, 1, s);
}

static inline void draw_trained(int64_t *t, uint64_t *s) {
    t[DTYPE] = ONE_OF(s, ZERO_F32, ZERO_BF16, ZERO_BF16, ZERO_F16);
    t[NO_MASTER] = one_in(s, 3);
    t[UPDATE] = one_in(s, 3) ? 1 + below(s, 4) : 0;
    t[MICRO] = ONE_OF(s, 1, 1, 2, 3);
    t[EXACT] = below(s, 2);
    t[DELAYED] = one_in(s, 5) ? 1 + below(s, 3) : 0;
    t[SCALE] = ONE_OF(s, 4, 8, 8, 15);
    t[AHEAD] = one_in(s, 4);
    t[JOINED] = one_in(s, 4);
    t[SHUFFLED] = one_in(s, 5);
    t[APART] = one_in(s, 4);
    t[INFERENCE] = one_in(s, 4);
}

static inline void draw_settings(int64_t *h, uint64_t *s) {
    const int away = below(s, 2), tiers = 2 * away;
    h[STAGE] = away ? 1 + below(s, 3) : below(s, 4);
    if (away && below(s, 2)) h[STAGE] = 3;
    h[CUDA] = !one_in(s, 8);
    h[NCCL] = below(s, 2);
    h[OVERLAP] = below(s, 3) > 0;
    h[PREFETCH] = ONE_OF(s, 0, 1, 1, 2, 3);
    h[MAX_OPEN] = ONE_OF(s, 1, 1, 2, 3);
    h[BUCKET] = ONE_OF(s, 0, 0, 1, 5000, 1LL << 40);
    h[POISON] = below(s, 2);
    h[SHARED] = below(s, 3) > 0;
    h[WINDOW] = ONE_OF(s, 64 << 10, 4 << 20, 0);
    h[WIRE] = one_in(s, 4);
    h[TRACE] = below(s, 2);
    h[PARAMS] = below(s, 1 + tiers);
    h[OPTIMIZER] = away ? ONE_OF(s, ZERO_DEVICE, ZERO_HOST, ZERO_NVME, ZERO_NVME) : ZERO_DEVICE;
    h[GRADIENTS] = below(s, 1 + tiers);
    h[RATIO] = ONE_OF(s, 100, 100, 60, 40, 0);
    h[IN_HOST] = ONE_OF(s, 0, 0, 3000, 1 << 30);
    h[PIECE] = ONE_OF(s, 2048, 2048, 4096, 4 << 20);
    h[VERIFY] = below(s, 2);
    h[COPIES] = below(s, 2);
    h[MANNER] = below(s, 4);
    h[STREAM] = below(s, 2);
}

static inline void draw_calls(drawn *d, uint64_t *s) {
    static const call_kind kinds[] = { STEP, STEP, STEP, EVAL, SET, GET, RESUME };
    const int A = (int)d->trained[MICRO], n = 2 + below(s, MOST_CALLS - 6);
    for (int i = 0; i < n + 3; i++) {
        call *c = &d->calls[d->n_calls++];
        *c = (call){ .kind = i ? kinds[below(s, 7)] : STEP, .of = A, .draw = (uint32_t)next_draw(s) };
        if (i < n && one_in(s, 3)) c->of = 1 + below(s, A);
        c->abandoned = one_in(s, 4) ? 1 + below(s, 2 * MOST_UNITS) : 0;
        c->clips = below(s, 2);
        c->promises = below(s, 2);
        c->discards = one_in(s, 5);
        // The case ends with plain steps: then the order of uses is known, and every byte is planned.
        if (i >= n) *c = (call){ .kind = STEP, .of = A, .clips = i % 2, .draw = c->draw };
    }
}

// -------- legal cases

static inline int has_frozen(const drawn *d) {
    for (int k = 0; k < d->n_tensors; k++)
        if (d->tensors[k].frozen) return 1;
    return 0;
}

static inline void make_settings_legal(const drawn *d, int64_t *h) {
    const int64_t *t = d->trained;
    const int has_masters = t[DELAYED] || (t[DTYPE] != ZERO_F32 && !t[NO_MASTER]);
    const int has_nothing = t[UPDATE] == 4 && !has_masters;  // SGD without states
    h[CUDA] = h[CUDA] && possible.cuda;
    h[NCCL] = h[NCCL] && h[CUDA] && possible.nccl && d->ranks > 1;
    if (h[STAGE] == 0 && t[DELAYED]) h[STAGE] = 1;
    if (h[STAGE] == 3 && t[APART]) h[STAGE] = 2;
    if (h[STAGE] < 3) h[PARAMS] = ZERO_DEVICE;
    while (h[GROUP] && d->ranks % h[GROUP]) h[GROUP]--;
    if (h[STAGE] < 3 || (h[PARAMS] == ZERO_NVME && h[GROUP] < d->ranks)) h[GROUP] = 0;
    if (h[STAGE] < 1 || has_nothing) h[OPTIMIZER] = ZERO_DEVICE;
    if (t[DELAYED] && h[OPTIMIZER] == ZERO_DEVICE) h[OPTIMIZER] = ZERO_HOST;
    if (h[STAGE] < 2) h[GRADIENTS] = ZERO_DEVICE;
    if (h[GRADIENTS] > h[OPTIMIZER]) h[GRADIENTS] = h[OPTIMIZER];
    if (h[OPTIMIZER] == ZERO_DEVICE) h[RATIO] = 100;
    if (h[PARAMS] != ZERO_NVME) h[IN_HOST] = 0;
    if (h[CUDA] && t[NO_MASTER] && t[UPDATE] && (h[OPTIMIZER] == ZERO_DEVICE || h[RATIO] < 100)) h[CUDA] = 0;
    if (t[AHEAD] && h[MAX_OPEN] < 2) h[MAX_OPEN] = 2;
    if (h[PARAMS] || h[OPTIMIZER] || h[GRADIENTS]) h[COPIES] = 0;
    h[MANNER] = h[CUDA] ? h[MANNER] % possible.manners : 0;
    h[STREAM] = h[STREAM] && h[CUDA];
    if (!h[CUDA]) h[NCCL] = 0;
}

static inline void make_legal(drawn *d) {
    int64_t *t = d->trained;
    t[NO_MASTER] = t[NO_MASTER] && t[DTYPE] == ZERO_BF16;
    t[DELAYED] = t[NO_MASTER] ? 0 : t[DELAYED];
    d->tensors[0].frozen = 0;
    for (int u = 0; u < d->n_units; u++)
        if (d->units[u].gradient_only_uses > d->units[u].backward_uses)
            d->units[u].gradient_only_uses = d->units[u].backward_uses;
    if (t[LAYERS]) t[AHEAD] = 0;  // one unit at a time is open for backward
    // The sum over passes is rounded at other places at stages 0 and 1 than at stages 2 and 3.
    if (t[MICRO] > 1 && !t[EXACT] && !t[LAYERS] && d->how[0][STAGE] / 2 != d->how[1][STAGE] / 2)
        d->how[1][STAGE] = d->how[0][STAGE];
    if (t[APART])
        for (int i = 0; i < HOWS; i++) t[APART] &= d->how[i][STAGE] < 3;
    for (int i = 0; i < HOWS; i++) make_settings_legal(d, d->how[i]);
    for (call *c = d->calls; c < d->calls + d->n_calls; c++) {
        if (c->of > t[MICRO]) c->of = (int)t[MICRO];
        if (c->kind != STEP) c->clips = c->promises = c->discards = 0;
        if (c->kind > SET) c->abandoned = 0;
        if (c->clips || c->discards || c->abandoned || t[DTYPE] == ZERO_F16) c->promises = 0;
    }
}

static inline drawn draw_case(uint64_t seed, int ranks) {
    drawn d = { .seed = seed, .ranks = ranks };
    uint64_t s = seed * 8 + (uint64_t)ranks, apart = ~s;
    draw_trained(d.trained, &s);
    d.trained[LAYERS] = seed % 4 == 0;
    if (d.trained[LAYERS]) d.trained[MICRO] = 1 + seed / 4 % MOST_MICRO;
    for (int i = 0; i < HOWS; i++) draw_settings(d.how[i], &s);
    for (int i = 0; i < HOWS; i++) d.how[i][HOSTS] = ONE_OF(&apart, 0, 0, 1, 2);
    for (int i = 0; i < HOWS; i++) d.how[i][GROUP] = below(&apart, 1 + ranks);
    draw_tables(&d, &s);
    draw_calls(&d, &s);
    make_legal(&d);
    return d;
}

// -------- the order of uses

typedef struct {
    int unit, use;
} one_use;
enum { MOST_USES = MOST_UNITS * 3 };

static inline int is_single(const zero_unit *u) { return u->forward_uses == 1 && u->backward_uses == 1; }

// Sorts the uses by keys. Units used once go through backward in reverse order. In forward, the first and the
// last of them are used first and last, as the plan assumes; other uses are anywhere.
static inline int order_of(const drawn *d, int backward, uint64_t s, one_use *uses) {
    const int is_shuffled = d->trained[SHUFFLED] || d->trained[APART];
    int first = 0, last = d->n_units - 1, n = 0;
    double keys[MOST_USES];
    while (first < last && !is_single(&d->units[first])) first++;
    while (last > first && !is_single(&d->units[last])) last--;
    for (int u = 0; u < d->n_units; u++) {
        const zero_unit *unit = &d->units[u];
        const int times = backward ? unit->backward_uses : unit->forward_uses;
        const int single = is_single(unit);
        for (int i = 0; i < times; i++) {
            double key = below(&s, 1000 * d->n_units) / 1e3;
            if (backward ? single : i == 0 && !is_shuffled) key = backward ? d->n_units - u : u;
            if (!backward && is_shuffled && single)
                key = u == first ? -1 : u == last ? d->n_units / 2.0 : key / 2;
            int at = n++;
            for (; at > 0 && keys[at - 1] > key; at--) {
                keys[at] = keys[at - 1];
                uses[at] = uses[at - 1];
            }
            keys[at] = key;
            uses[at].unit = u;
        }
    }
    int seen[MOST_UNITS] = { 0 };
    for (int i = 0; i < n; i++) uses[i].use = seen[uses[i].unit]++;
    return n;
}

// -------- printing

static inline void print_values(FILE *f, const char *const *names, const int64_t *x, const int64_t *plain,
                                int n) {
    for (int i = 0; i < n; i++)
        if (x[i] != plain[i] || i == 0) fprintf(f, " %s %lld", names[i], (long long)x[i]);
}

// Names only the settings that differ from plain ones, or are first in their list.
static inline void print_case(const drawn *d, char *to, size_t room) {
    FILE *f = fmemopen(to, room, "w");
    if (!f) return;
    fprintf(f, "seed %llu on %d ranks; trained:", (unsigned long long)d->seed, d->ranks);
    print_values(f, trained_names, d->trained, plain_trained, N_TRAINED);
    for (int i = 0; i < HOWS; i++) {
        fprintf(f, "\n  settings %d:", i);
        print_values(f, setting_names, d->how[i], plain_settings, N_SETTINGS);
    }
    for (const zero_unit *u = d->units; u < d->units + d->n_units; u++)
        fprintf(f, "\n  unit %s: uses %d, %d, %d", u->name, u->forward_uses, u->backward_uses,
                u->gradient_only_uses);
    for (const zero_tensor *t = d->tensors; t < d->tensors + d->n_tensors; t++)
        fprintf(f, "\n  tensor %s: %lld elements in %d dimensions, units %d to %d%s%s", t->name,
                (long long)zero_tensor_elems(t), t->n_dims, t->unit, t->unit + t->layers - 1,
                t->frozen ? ", frozen" : "", t->backward_overwrites ? ", overwritten" : "");
    fprintf(f, "\n  calls:");
    for (const call *c = d->calls; c < d->calls + d->n_calls; c++)
        fprintf(f, " %s %d%s%s%s%s%s", call_names[c->kind], c->of, c->clips ? " clipped" : "",
                c->promises ? " promised" : "", c->discards ? " discarded" : "",
                c->abandoned ? " abandoned first" : "", c < d->calls + d->n_calls - 1 ? "," : "\n");
    fclose(f);
}

// -------- smaller cases

static inline void remove_tensor(drawn *d, int k) {
    memmove(&d->tensors[k], &d->tensors[k + 1], sizeof *d->tensors * (size_t)(--d->n_tensors - k));
}

static inline void remove_last_unit(drawn *d) {
    const int last = d->n_units - 1;
    if (!last) return;
    d->n_units = last;
    for (int k = d->n_tensors - 1; k >= 0; k--) {
        zero_tensor *t = &d->tensors[k];
        if (t->unit + t->layers > last) t->layers = last - t->unit;
        if (t->layers < 1) remove_tensor(d, k);
    }
}

// Makes change number i. Returns 0 if there are fewer changes. A change may have no effect, or may leave a
// case that is not possible, with a unit without tensors.
static inline int make_smaller(drawn *d, int i) {
    const int calls = d->n_calls, tensors = d->n_tensors, units = d->n_units;
    zero_tensor *t = d->tensors;
    if (i < calls)
        memmove(&d->calls[i], &d->calls[i + 1], sizeof *d->calls * (size_t)(--d->n_calls - i));
    else if ((i -= calls) == 0)
        remove_last_unit(d);
    else if ((i -= 1) < tensors)
        remove_tensor(d, i);
    else if ((i -= tensors) < tensors)
        t[i] = (zero_tensor){ t[i].name, 1, { (zero_tensor_elems(&t[i]) + 1) / 2 }, t[i].layers, t[i].unit };
    else if ((i -= tensors) < units)
        d->units[i] = (zero_unit){ d->units[i].name, 1, 1, 0 };
    else if ((i -= units) < N_TRAINED)
        d->trained[i] = plain_trained[i];
    else if ((i -= N_TRAINED) < HOWS * N_SETTINGS)
        d->how[i / N_SETTINGS][i % N_SETTINGS] = plain_settings[i % N_SETTINGS];
    else
        return 0;
    return 1;
}

static inline int is_possible(const drawn *d) {
    for (int u = 0; u < d->n_units; u++)
        if (is_empty(d, u)) return 0;
    return d->n_calls > 0 && d->n_tensors > 0;
}

#endif
