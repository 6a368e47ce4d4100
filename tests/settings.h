// Settings under which every ZeRO path must give the same bits: paths x formats x micro-batches x variations.
// The first two variations are overlap off and on; each of the others changes more settings. Programs run a
// sample that contains every pair of values, or with SETTINGS=all every combination.
#ifndef TESTS_SETTINGS_H
#define TESTS_SETTINGS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "check.h"
#include "toy_kernels.h"
#include "../dev/examples/optimizers.h"
#include "../llmc_zero/comm/host.h"

typedef struct {
    const char *name;
    int stage, naive;
} settings_path;
typedef struct {
    const char *name;
    zero_dtype dtype;
    int no_master;
    int every;                // 3: runs with only every third variation
    zero_update_with update;  // NULL: AdamW
    int update_states;
} settings_format;
typedef struct {
    const char *name;
    int64_t bucket;
    int prefetch, max_open, overlap, poison, shared_window;
    int64_t window_bytes;
    int direct;  // 1: collectives of any size bypass staging
    int wire;    // 1: 16-bit gradients are sent as fp32
} settings_variation;

static const settings_path settings_paths[] = {
    // The naive path must come first, because the others are compared with it.
    { "naive", 0, 1 }, { "stage 0", 0, 0 }, { "stage 1", 1, 0 }, { "stage 2", 2, 0 }, { "stage 3", 3, 0 },
};
static const settings_format settings_formats[] = {
    { "fp32", ZERO_F32, 0, 1 },
    { "bf16", ZERO_BF16, 0, 1 },
    { "fp16", ZERO_F16, 0, 3 },
    { "bf16 without master", ZERO_BF16, 1, 3 },
};
// The trainer's own updates, for programs that also test them. On a device update_ctx is its toy_device.
static void settings_sgd(void *ctx, const zero_piece *p) {
    p->on_device ? ((const toy_device *)ctx)->sgd(p) : toy_sgd(ctx, p);
}
static void settings_momentum(void *ctx, const zero_piece *p) {
    p->on_device ? ((const toy_device *)ctx)->sgd_momentum(p) : sgd_momentum(ctx, p);
}
static void settings_lion(void *ctx, const zero_piece *p) {
    p->on_device ? ((const toy_device *)ctx)->lion(p) : lion(ctx, p);
}
static const settings_format settings_updates[] = {
    { "fp32, SGD with momentum", ZERO_F32, 0, 3, settings_momentum, 1 },
    { "bf16, Lion", ZERO_BF16, 0, 3, settings_lion, 1 },
    { "fp16, SGD without states", ZERO_F16, 0, 3, settings_sgd, 0 },
    { "bf16 without master, Lion", ZERO_BF16, 1, 3, settings_lion, 1 },
};
static const int settings_micro_batches[] = { 1, 3 };
// clang-format off
static const settings_variation settings_variations[] = {
    // name                  bucket     prefetch  max_open  overlap  poison  shared  window    direct  wire
    { "defaults",            0,         1,        1,        0,       0,      1,      4 << 20,  0,      0 },
    { "overlap",             0,         1,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "bucket 1",            1,         1,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "bucket 5000",         5000,      1,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "bucket huge",         1LL << 40, 1,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "prefetch 0",          0,         0,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "prefetch 3",          0,         3,        1,        1,       0,      1,      4 << 20,  0,      0 },
    { "max_open 2",          0,         0,        2,        0,       0,      1,      4 << 20,  0,      0 },
    { "small window",        0,         1,        1,        0,       0,      1,      64 << 10, 0,      0 },
    { "messages",            0,         1,        1,        0,       0,      0,      4 << 20,  0,      0 },
    { "messages, overlap",   0,         1,        1,        1,       0,      0,      64 << 10, 0,      0 },
    { "poison",              0,         3,        1,        1,       1,      1,      4 << 20,  0,      0 },
    { "poison, bucket huge", 1LL << 40, 1,        1,        0,       1,      1,      4 << 20,  0,      0 },
    { "direct reads",        0,         1,        1,        1,       1,      1,      64 << 10, 1,      0 },
    { "unstaged messages",   0,         1,        1,        1,       1,      0,      64 << 10, 1,      0 },
    { "wire",                5000,      1,        1,        1,       0,      1,      4 << 20,  0,      1 },
    { "wire, messages",      1LL << 40, 1,        1,        0,       1,      0,      4 << 20,  0,      1 },
};
// clang-format on

#define SETTINGS_COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

// Returns 1 if a combination belongs to the sample of one in `of` combinations. If the sum has an index from
// each of at least three tables, the sample contains every pair of values: for each pair, some index of a
// third table makes the sum a multiple of `of`.
static inline int settings_chosen(int sum_of_indices, int of) {
    const char *asked = getenv("SETTINGS");
    return (asked && !strcmp(asked, "all")) || sum_of_indices % of == 0;
}

static inline zero_config settings_config(const settings_path *p, const settings_format *f, int micro_batches,
                                          const settings_variation *v) {
    zero_config c = zero_defaults();
    c.stage = p->stage;
    c.debug.naive = p->naive;
    c.numbers.dtype = f->dtype;
    c.numbers.no_master = f->no_master;
    c.numbers.rounding_seed = 1234;
    c.numbers.initial_scale_power = 8;  // keeps the toy's fp16 gradients from overflowing or vanishing
    c.update_with = f->update;
    if (f->update) c.update_states = f->update_states;
    c.micro_batches = micro_batches;
    c.reduce_bucket_size = v->bucket;
    c.prefetch = v->prefetch;
    c.max_open = v->max_open;
    c.overlap = v->overlap;
    c.debug.poison = v->poison;
    c.debug.check_steps = v->poison;  // checks the first step, which must not change the bits either
    c.comm.shared_window = v->shared_window;
    c.comm.window_bytes = v->window_bytes;
    c.comm.reduce_fp32 = v->wire;
    c.comm.timeout_s = 60;
    return c;
}

// Makes collectives of any size read directly, without staging (all 1), or none of them (all 0).
static inline void settings_direct(int all) {
    host_unstaged_least = all ? 0 : SIZE_MAX;
    for (int kind = 0; kind < COMM_OTHER; kind++) host_direct_least[kind] = all ? 0 : SIZE_MAX;
}

// Begins the checks of one setting.
static inline zero_config settings_begin(const char *what, const settings_path *p, const settings_format *f,
                                         int micro_batches, const settings_variation *v) {
    CHECK_SETTING("%s, %s, %s, %d micro-batches, %s", what, p->name, f->name, micro_batches, v->name);
    settings_direct(v->direct);
    return settings_config(p, f, micro_batches, v);
}

#endif
