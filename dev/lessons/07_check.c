// Lesson 7: reduces gradients with the library at every stage, gives each rank its shards, and compares
// the bits of global_norm with those of the library's norm, and the bytes sent with its bytes for scalars.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "lesson.h"

enum { MOST_RANKS = 4, UNITS = 5, LEAST = MOST_RANKS * 128 };  // such sizes need no padding
static const int64_t elems[UNITS] = { 4 * LEAST, LEAST, 2 * LEAST, 3 * LEAST, LEAST };

// The mean over the ranks has so few bits that 128 squares add up without rounding. Units and shards have
// different scales, so a sum over them in fp64 would be rounded, and its bits would depend on the order of
// addition.
static float gradient(int rank, int micro, int unit, int64_t i) {
    const int part = (int)(i * MOST_RANKS / elems[unit]), scale = (unit * 7 + part * 4) % 13 - 12;
    const int number = (int)(2000 * lesson_number((uint64_t)(i + 10000 * unit)));
    return ldexpf((float)(number * (1 + rank + micro)), scale);
}

// Reduces the gradients of a step. Sets *norm to the library's norm and *bytes to what this rank has sent
// for it, and values[u] to the reduced gradient of unit u.
static void reduce(int stage, float **values, double *norm, int64_t *bytes) {
    zero_traffic before, after;
    zero_step_result result;
    zero_config config = zero_defaults();
    config.stage = stage;
    zero *z = lesson_engine(&config, elems, UNITS);
    lesson_micro_batch(z, 0, 1, &config, elems, UNITS, gradient);
    zero_traffic_info(z, &before);
    lesson_must(zero_finish_gradients(z, &result));
    zero_traffic_info(z, &after);
    for (int u = 0; u < UNITS; u++) lesson_must(zero_get(z, ZERO_GRADIENT, u, 0, 0, elems[u], values[u]));
    lesson_must(zero_discard(z));
    zero_destroy(z);
    *norm = result.grad_norm;
    *bytes = after.other[ZERO_FOR_SCALARS] - before.other[ZERO_FOR_SCALARS];
}

static void compare(int stage, int ranks) {
    float *values[UNITS];
    const float *shards[UNITS];
    int64_t shard_elems[UNITS], engine_bytes;
    double engine;
    for (int u = 0; u < UNITS; u++) values[u] = malloc(elems[u] * sizeof(float));
    reduce(stage, values, &engine, &engine_bytes);
    for (int u = 0; u < UNITS; u++) {
        shard_elems[u] = elems[u] / ranks;
        shards[u] = values[u] + wire_rank() * shard_elems[u];
    }
    const int64_t before = wire_sent();
    const double yours = global_norm(shards, shard_elems, UNITS);
    const int64_t bytes = wire_sent() - before;
    if (memcmp(&yours, &engine, sizeof yours))
        lesson_off("you get %.17g; the library %.17g: a relative difference of %.2g", yours, engine,
                   fabs(yours - engine) / engine);
    else if (bytes > engine_bytes)
        lesson_off("the bits are right, but rank %d sends %lld bytes; the library sends %lld", wire_rank(),
                   (long long)bytes, (long long)engine_bytes);
    for (int u = 0; u < UNITS; u++) free(values[u]);
}

int main(int argc, char **argv) {
    lesson_begin(argv, MOST_RANKS, 7, "did anything change?");
    for (int ranks = 2; ranks <= MOST_RANKS; ranks += 2)
        for (int stage = 0; stage <= 3; stage++) {
            if (lesson_join(ranks)) compare(stage, ranks);
            lesson_check("stage %d on %d ranks: the bits of the norm", stage, ranks);
        }
    return lesson_end();
}
