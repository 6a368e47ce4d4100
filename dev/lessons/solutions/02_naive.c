// Lesson 2: the mean of the ranks' gradients, the naive way. dev/lessons/02_naive.c has the task.
#include <stdlib.h>
#include <string.h>
#include "../lesson.h"

// Adds the gradients of all ranks, n numbers each, in tree order: one level of the tree after the other. The
// sum is then in the first n numbers.
static void add_tree(float *all, int n) {
    for (int apart = 1; apart < wire_ranks(); apart *= 2)
        for (int r = 0; r + apart < wire_ranks(); r += 2 * apart)
            for (int i = 0; i < n; i++) all[r * n + i] += all[(r + apart) * n + i];
}

void average_f32(float *gradient, int n) {
    float *all = malloc(wire_ranks() * n * sizeof(float));
    for (int r = 0; r < wire_ranks(); r++)
        if (r != wire_rank()) wire_send(r, gradient, n * sizeof(float));
    for (int r = 0; r < wire_ranks(); r++) {
        if (r == wire_rank())
            memcpy(all + r * n, gradient, n * sizeof(float));
        else
            wire_receive(r, all + r * n, n * sizeof(float));
    }
    add_tree(all, n);
    for (int i = 0; i < n; i++) gradient[i] = all[i] * (1.0f / wire_ranks());
    free(all);
}

void average_bf16(uint16_t *gradient, int n) {
    uint16_t *theirs = malloc(n * sizeof(uint16_t));
    float *all = malloc(wire_ranks() * n * sizeof(float));
    for (int r = 0; r < wire_ranks(); r++)
        if (r != wire_rank()) wire_send(r, gradient, n * sizeof(uint16_t));
    for (int r = 0; r < wire_ranks(); r++) {
        if (r != wire_rank()) wire_receive(r, theirs, n * sizeof(uint16_t));
        const uint16_t *values = r == wire_rank() ? gradient : theirs;
        for (int i = 0; i < n; i++) all[r * n + i] = from_bf16(values[i]);
    }
    add_tree(all, n);
    for (int i = 0; i < n; i++) gradient[i] = to_bf16(all[i] * (1.0f / wire_ranks()));
    free(theirs);
    free(all);
}
