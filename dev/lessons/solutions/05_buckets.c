// Lesson 5: buckets of gradients. dev/lessons/05_buckets.c has the task.
#include "../lesson.h"

int fill_buckets(const int64_t *elems, int n_units, int64_t bucket_size, int *reduction) {
    int64_t held = 0;
    int left = 0;
    for (int u = n_units - 1; u >= 0; u--) {
        reduction[u] = left;
        held += elems[u];
        if (held < bucket_size && u > 0) continue;
        held = 0;
        left++;
    }
    return left;
}

int64_t bucket_memory(const int64_t *elems, int n_units, int64_t bucket_size) {
    int64_t held[16] = { 0 }, most = 0;
    int reduction[16];
    const int n = fill_buckets(elems, n_units, bucket_size, reduction);
    for (int u = 0; u < n_units; u++) {
        held[reduction[u]] += elems[u];
        if (held[reduction[u]] > most) most = held[reduction[u]];
    }
    return (n > 1 ? 2 : 1) * most * (int64_t)sizeof(float);
}
