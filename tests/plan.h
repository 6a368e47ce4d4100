// Compares a plan with the memory table of a plugin.
#ifndef TESTS_PLAN_H
#define TESTS_PLAN_H
#include <stdio.h>
#include <string.h>
#include "../llmc_zero/zero.h"

// NCCL's memory is known only after it has been measured.
static inline int plan_line_differs(const zero_memory_line *planned, const zero_memory_line *held) {
    int measured = planned->assumed && planned->bytes == 0;
    return strcmp(planned->purpose, held->purpose) || planned->class_ != held->class_ ||
           planned->tier != held->tier || planned->moved_by != held->moved_by ||
           (planned->bytes != held->bytes && !measured);
}

// Returns "" if plan and table have the same lines, else how they differ. The table has them in the order of
// allocation, the plan in that of tiers. Activations are the trainer's.
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
        snprintf(text, sizeof text, "held and not planned: %s, %zu bytes in tier %d, moved by %d",
                 held.purpose, held.bytes, held.tier, held.moved_by);
        return text;
    }
    if (n == p->n_lines) return "";
    snprintf(text, sizeof text, "%d lines are held, %d are planned", n, p->n_lines);
    return text;
}

#endif
