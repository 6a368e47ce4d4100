/*
 * The table of settings that every ZeRO path is held to: paths x dtypes x micro-batches x variations. The first two variations are
 * overlap off and on; each of the others moves one more thing away from the defaults.
 */
#ifndef TESTS_SETTINGS_H
#define TESTS_SETTINGS_H
#include <stdio.h>
#include "../llmc_zero/zero.h"

typedef struct { const char *name; int stage, naive; } settings_path;
typedef struct {
    const char *name;
    int64_t bucket;
    int prefetch, max_open, overlap, poison, shared_window;
    int64_t window_bytes;
} settings_variation;

static const settings_path settings_paths[] = {     /* the naive path first: the others are compared with it */
    { "naive", 0, 1 }, { "stage 0", 0, 0 }, { "stage 1", 1, 0 }, { "stage 2", 2, 0 }, { "stage 3", 3, 0 },
};
static const zero_dtype settings_dtypes[] = { ZERO_F32, ZERO_BF16 };
static const int settings_micro_batches[] = { 1, 3 };
static const settings_variation settings_variations[] = {
    /* name                  bucket    prefetch  max_open  overlap  poison  shared  window */
    { "defaults",            0,        1,        1,        0,       0,      1,      4 << 20 },
    { "overlap",             0,        1,        1,        1,       0,      1,      4 << 20 },
    { "bucket 1",            1,        1,        1,        1,       0,      1,      4 << 20 },
    { "bucket 5000",         5000,     1,        1,        1,       0,      1,      4 << 20 },
    { "bucket huge",         1LL << 40,1,        1,        1,       0,      1,      4 << 20 },
    { "prefetch 0",          0,        0,        1,        1,       0,      1,      4 << 20 },
    { "prefetch 3",          0,        3,        1,        1,       0,      1,      4 << 20 },
    { "max_open 2",          0,        0,        2,        0,       0,      1,      4 << 20 },
    { "small window",        0,        1,        1,        0,       0,      1,      64 << 10 },
    { "messages",            0,        1,        1,        0,       0,      0,      4 << 20 },
    { "messages, overlap",   0,        1,        1,        1,       0,      0,      64 << 10 },
    { "poison",              0,        3,        1,        1,       1,      1,      4 << 20 },
    { "poison, bucket huge", 1LL << 40,1,        1,        0,       1,      1,      4 << 20 },
};

#define SETTINGS_COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

static inline zero_config settings_config(const settings_path *p, zero_dtype dtype, int micro_batches, const settings_variation *v) {
    zero_config c = ZERO_CONFIG_INIT;
    c.stage = p->stage;
    c.naive = p->naive;
    c.dtype = dtype;
    c.micro_batches = micro_batches;
    c.reduce_bucket_size = v->bucket;
    c.prefetch = v->prefetch;
    c.max_open = v->max_open;
    c.overlap = v->overlap;
    c.poison = v->poison;
    c.shared_window = v->shared_window;
    c.window_bytes = v->window_bytes;
    c.comm_timeout_s = 60;
    return c;
}

static inline void settings_name(char *name, size_t bytes, const settings_path *p, zero_dtype dtype, int micro_batches,
                                 const settings_variation *v) {
    snprintf(name, bytes, "%s, %s, %d micro-batches, %s", p->name, dtype == ZERO_BF16 ? "bf16" : "fp32", micro_batches, v->name);
}

#endif
