// Lesson 3: compares reduce_scatter and all_gather with the library's gradients and traffic at stage 0.
#include "lesson.h"

enum { ELEMS = 3 * 4 * 128 };  // divides by 2, 3 and 4 ranks without padding

static float gradient(int rank, int micro, int unit, int64_t i) { return lesson_number(rank * ELEMS + i); }

static void check_ranks(int ranks) {
    const int part = ELEMS / ranks, joined = lesson_join(ranks);
    float mine[ELEMS], own[ELEMS] = { 0 }, all[ELEMS] = { 0 }, theirs[ELEMS];
    zero_config config = zero_defaults();
    zero_traffic traffic = { 0 };
    int64_t reduced = 0;
    if (joined) {
        traffic = lesson_mean(&config, ELEMS, gradient, theirs);
        for (int i = 0; i < ELEMS; i++) mine[i] = gradient(wire_rank(), 0, 0, i);
        reduce_scatter(mine, ELEMS, own);
        reduced = wire_sent();
        lesson_compare(own, theirs + wire_rank() * part, wire_rank() * part, part);
    }
    lesson_check("%d ranks, reduce_scatter: the bits of each rank's %d elements", ranks, part);
    lesson_compare_bytes(reduced, traffic.reduce_scatter[ZERO_FOR_STEP]);
    lesson_check("%d ranks, reduce_scatter: bytes sent", ranks);
    if (joined) {
        all_gather(theirs + wire_rank() * part, ELEMS, all);
        lesson_compare(all, theirs, 0, ELEMS);
    }
    lesson_check("%d ranks, all_gather: the bits of all %d elements", ranks, ELEMS);
    lesson_compare_bytes(wire_sent() - reduced, traffic.all_gather[ZERO_FOR_STEP]);
    lesson_check("%d ranks, all_gather: bytes sent", ranks);
}

int main(int argc, char **argv) {
    lesson_begin(argv, 4, 3, "is an all-reduce two things?");
    for (int ranks = 2; ranks <= 4; ranks++) check_ranks(ranks);
    return lesson_end();
}
