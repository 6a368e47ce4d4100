// Lesson 1: bytes of model states. dev/lessons/01_bytes.c has the task.
#include "../lesson.h"

int64_t state_bytes(int stage, int ranks, int accumulates, int bf16, int64_t parameters) {
    const int64_t own = parameters / ranks;
    const int64_t params = bf16 ? 2 : 4, grads = bf16 && !accumulates ? 2 : 4, optimizer = bf16 ? 12 : 8;
    return params * (stage >= 3 ? own : parameters) + grads * (stage >= 2 ? own : parameters) +
           optimizer * (stage >= 1 ? own : parameters);
}
