// Lesson 9: what does ZeRO not shrink? dev/lessons/09_working.c has the task.
#include "../lesson.h"

int64_t kept_values(int recompute, int64_t layers, int64_t btc) {
    const int64_t gelu = recompute >= 1 ? 1 : layers;
    const int64_t layernorms = recompute >= 2 ? 1 : layers;
    const int64_t others = recompute >= 3 ? 1 : layers;
    return (4 * gelu + 2 * layernorms + (3 + 1 + 1 + 4) * others + layers) * btc;
}

int64_t slot_bytes(int stage, int ranks, int prefetch, const int64_t *elems, int n_units, int dtype_bytes) {
    const int slots = 1 + prefetch < n_units ? 1 + prefetch : n_units;
    int64_t largest = 0;
    for (int u = 0; u < n_units; u++)
        if (elems[u] > largest) largest = elems[u];
    return stage == 3 ? slots * largest * dtype_bytes : 0;
}
