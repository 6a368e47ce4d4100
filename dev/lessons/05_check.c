// Lesson 5: runs a micro-batch of a small model at stage 2 on two ranks, and compares fill_buckets with
// the bytes that the library has sent for reductions after each hook, and bucket_memory with what it
// allocated.
#include <string.h>
#include "lesson.h"

// RANKS * 128 elements and their multiples need no padding.
enum { RANKS = 2, MOST_UNITS = 16, LEAST = RANKS * 128 };

typedef struct {
    const char *name;
    int n_units;
    int64_t bucket_size;  // in units of LEAST, as elems
    int64_t elems[MOST_UNITS];
} model;
static const model models[] = {
    { "8 equal units, a bucket of 1 element: each unit leaves alone", 8, 0, { 4, 4, 4, 4, 4, 4, 4, 4 } },
    { "8 equal units, a bucket of exactly 2 units", 8, 8, { 4, 4, 4, 4, 4, 4, 4, 4 } },
    { "8 equal units, a bucket of 2.25 units", 8, 9, { 4, 4, 4, 4, 4, 4, 4, 4 } },
    { "unequal units", 9, 10, { 7, 1, 2, 9, 30, 3, 3, 3, 1 } },
    { "a bucket larger than the model", 5, 1000, { 4, 3, 2, 1, 5 } },
};

static float gradient(int rank, int micro, int unit, int64_t i) {
    return lesson_number((uint64_t)i) * (float)(1 + rank + micro + unit);
}

static int64_t reduced_bytes(zero *z) {
    zero_traffic t;
    zero_traffic_info(z, &t);
    return t.reduce_scatter[ZERO_FOR_STEP];
}

// Sets reduction[u] to the reduction with which the library sends unit u, and returns their number.
// Without overlap a bucket is sent within the hook that fills it, so the counter of bytes grows there.
static int engine_buckets(zero *z, const int64_t *elems, int n_units, int *reduction) {
    int n = 0;
    lesson_must(zero_begin_train(z, 0, 1));
    for (int u = 0; u < n_units; u++) {
        lesson_must(zero_pre_forward(z, u));
        lesson_must(zero_post_forward(z, u));
    }
    for (int u = n_units - 1; u >= 0; u--) {
        lesson_must(zero_pre_backward(z, u));
        float *g = zero_grad(z, u, 0);
        for (int64_t i = 0; i < elems[u]; i++) g[i] = gradient(zero_rank(z), 0, u, i);
        const int64_t before = reduced_bytes(z);
        lesson_must(zero_post_backward(z, u));
        reduction[u] = n;
        n += reduced_bytes(z) > before;
    }
    lesson_must(zero_finish_gradients(z, NULL));
    lesson_must(zero_discard(z));
    return n;
}

static void compare(const model *m) {
    int64_t elems[MOST_UNITS], size = m->bucket_size ? m->bucket_size * LEAST : 1;
    int yours[MOST_UNITS], engines[MOST_UNITS];
    zero_config config = zero_defaults();
    zero_plan plan;
    memset(yours, -1, sizeof yours);
    for (int u = 0; u < m->n_units; u++) elems[u] = m->elems[u] * LEAST;
    config.stage = 2;
    config.reduce_bucket_size = size;
    zero *z = lesson_engine(&config, elems, m->n_units);
    const int n = engine_buckets(z, elems, m->n_units, engines);
    const int said = fill_buckets(elems, m->n_units, size, yours);
    if (said != n) lesson_off("you get %d reductions; the library sends %d", said, n);
    for (int u = m->n_units - 1; u >= 0; u--)
        if (yours[u] != engines[u])
            lesson_off("unit %d: you get reduction %d; the library sends it with reduction %d", u, yours[u],
                       engines[u]);
    lesson_check("%s", m->name);

    const long long bytes = bucket_memory(elems, m->n_units, size);
    zero_plan_info(z, &plan);
    if (bytes != plan.bucket_bytes)
        lesson_off("you get %lld bytes; the library holds %lld", bytes, (long long)plan.bucket_bytes);
    lesson_check("    memory for its buckets");
    zero_destroy(z);
}

int main(int argc, char **argv) {
    lesson_begin(argv, RANKS, 5, "when may a gradient leave?");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) compare(&models[i]);
    return lesson_end();
}
