// Lesson 6: gathering ahead. Fill in the two functions; then: make lesson N=6
#include "lesson.h"

// A rank holds its 1/N of every unit, and n_slots slots. A slot has room for one whole unit. Before a use
// begins, its unit must be in a slot. uses[0..n_uses) is the order in which the previous step used the units:
// for 4 units 0 1 2 3 in forward, then 3 2 1 0 in backward.

// Called when use `at` has ended. Returns 1 if the unit's slot is to be freed now, and 0 if the very next use
// needs the same unit.
int frees_slot(const int *uses, int n_uses, int at) {
    return 0;
}

// Called while use `at` computes, again and again until it returns -1, and once more for each slot that is
// freed. Returns the unit whose gather should start now, so that it is there when it is needed, or -1 for
// none. The unit must be among the uses at+1 .. at+n_slots-1, the nearest first, and must not be held.
//   held[u]     1 if unit u is in a slot, or on its way to one
//   free_slots  the number of free slots
int gather_ahead(const int *uses, int n_uses, int at, int n_slots, const int *held, int free_slots) {
    return -1;
}
