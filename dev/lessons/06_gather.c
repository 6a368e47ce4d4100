// Lesson 6: gathering ahead. Fill in the two functions; then: make lesson N=6
#include "lesson.h"

// A rank holds its 1/N of every unit, and n_slots slots. A slot has room for one whole unit. Before a use
// begins, its unit must be in a slot. uses[0..n_uses) is the order in which the previous step used the units:
// for 4 units 0 1 2 3 in forward, then 3 2 1 0 in backward.

// Called when use `at` has ended. Returns 1 to free the unit's slot now, or 0 if the very next use needs the
// same unit. (Units with memory of their own, such as GPT-2's embedding, are not among the uses.)
int frees_slot(const int *uses, int n_uses, int at) {
    return 0;  // your code
}

// Called when use `at` begins to compute, repeatedly until it returns -1. Returns a unit whose gather should
// start now, so that it is complete when a later use needs it, or -1 for none. Use `at` occupies one slot, so
// search the n_slots-1 uses after it, the nearest first, for a unit that is not held yet.
//   held[u]  1 if unit u is in a slot, or on its way to one
int gather_ahead(const int *uses, int n_uses, int at, int n_slots, const int *held) {
    return -1;  // your code
}
