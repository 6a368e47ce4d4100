// Paths through the plugin, formats of its states, and updates, for tests that take one of each.
#ifndef TESTS_SETTINGS_H
#define TESTS_SETTINGS_H
#include <stdio.h>
#include "check.h"
#include "toy_kernels.h"
#include "../dev/examples/optimizers.h"

typedef struct {
    const char *name;
    int stage, naive;
} settings_path;
typedef struct {
    const char *name;
    zero_dtype dtype;
    int no_master;
    zero_update_with update;  // NULL: AdamW
    int update_states;
} settings_format;
static const settings_path settings_paths[] = {
    { "naive", 0, 1 }, { "stage 0", 0, 0 }, { "stage 1", 1, 0 }, { "stage 2", 2, 0 }, { "stage 3", 3, 0 },
};
static const settings_format settings_formats[] = {
    { "fp32", ZERO_F32, 0 },
    { "bf16", ZERO_BF16, 0 },
    { "fp16", ZERO_F16, 0 },
    { "bf16 without master", ZERO_BF16, 1 },
};
// The trainer's own updates.
static const settings_format settings_updates[] = {
    { "fp32, SGD with momentum", ZERO_F32, 0, sgd_momentum, 1 },
    { "bf16, Lion", ZERO_BF16, 0, lion, 1 },
    { "fp16, SGD without states", ZERO_F16, 0, toy_sgd, 0 },
    { "bf16 without master, Lion", ZERO_BF16, 1, lion, 1 },
};

#define SETTINGS_COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static inline zero_config settings_config(const settings_path *p, const settings_format *f, int micro_batches,
                                          int overlap) {
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
    c.overlap = overlap;
    c.comm.window_bytes = 1 << 20;
    c.comm.timeout_s = 60;
    return c;
}

#endif
