// Lesson 6: gathering ahead. dev/lessons/06_gather.c has the task.
#include "../lesson.h"

int frees_slot(const int *uses, int n_uses, int at) { return at + 1 == n_uses || uses[at + 1] != uses[at]; }

int gather_ahead(const int *uses, int n_uses, int at, int n_slots, const int *held) {
    for (int next = at + 1; next < at + n_slots && next < n_uses; next++)
        if (!held[uses[next]]) return uses[next];
    return -1;
}
