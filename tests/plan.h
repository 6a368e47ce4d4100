// Compares a plan with the memory that a plugin has allocated.
#ifndef TESTS_PLAN_H
#define TESTS_PLAN_H
#include <stdio.h>
#include <string.h>
#include "../llmc_zero/zero.h"

// A plan lists NCCL's memory with 0 bytes, because its size can only be measured.
static inline int plan_line_differs(const zero_memory_line *planned, const zero_memory_line *held) {
    int measured = planned->assumed && planned->bytes == 0;
    return strcmp(planned->purpose, held->purpose) || planned->class_ != held->class_ ||
           planned->tier != held->tier || planned->moved_by != held->moved_by ||
           (planned->bytes != held->bytes && !measured);
}

// Returns "" if the plan and the memory table have the same lines, else the difference. The table is in order
// of allocation, the plan in order of tiers. Skips activations, which belong to the trainer.
static inline const char *plan_differs(const zero_plan *p, const zero *z) {
    static char text[256];
    zero_memory_line held;
    int n = 0;
    for (int i = 0; zero_memory(z, i, &held); i++) {
        int at = 0;
        if (held.class_ == ZERO_ACTIVATIONS) continue;
        while (at < p->n_lines && plan_line_differs(&p->lines[at], &held)) at++;
        n++;
        if (at < p->n_lines) continue;
        snprintf(text, sizeof text, "allocated but not planned: %s, %zu bytes in tier %d, moved by %d",
                 held.purpose, held.bytes, held.tier, held.moved_by);
        return text;
    }
    if (n == p->n_lines) return "";
    snprintf(text, sizeof text, "%d lines are allocated, %d are planned", n, p->n_lines);
    return text;
}

#endif
