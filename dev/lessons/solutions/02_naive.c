// Lesson 2: the mean of the ranks' gradients, the naive way. dev/lessons/02_naive.c has the task.
#include <stdlib.h>
#include <string.h>
#include "../lesson.h"

void average_f32(float *gradient, int n) {
    float *theirs = malloc(n * sizeof(float)), *sum = calloc(n, sizeof(float));
    for (int r = 0; r < wire_ranks(); r++)
        if (r != wire_rank()) wire_send(r, gradient, n * sizeof(float));
    for (int r = 0; r < wire_ranks(); r++) {
        if (r != wire_rank()) wire_receive(r, theirs, n * sizeof(float));
        const float *values = r == wire_rank() ? gradient : theirs;
        for (int i = 0; i < n; i++) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
    }
    for (int i = 0; i < n; i++) gradient[i] = sum[i] * (1.0f / wire_ranks());
    free(theirs);
    free(sum);
}

void average_bf16(uint16_t *gradient, int n) {
    uint16_t *theirs = malloc(n * sizeof(uint16_t));
    float *sum = calloc(n, sizeof(float));
    for (int r = 0; r < wire_ranks(); r++)
        if (r != wire_rank()) wire_send(r, gradient, n * sizeof(uint16_t));
    for (int r = 0; r < wire_ranks(); r++) {
        if (r != wire_rank()) wire_receive(r, theirs, n * sizeof(uint16_t));
        const uint16_t *values = r == wire_rank() ? gradient : theirs;
        for (int i = 0; i < n; i++) sum[i] = r == 0 ? from_bf16(values[i]) : sum[i] + from_bf16(values[i]);
    }
    for (int i = 0; i < n; i++) gradient[i] = to_bf16(sum[i] * (1.0f / wire_ranks()));
    free(theirs);
    free(sum);
}
