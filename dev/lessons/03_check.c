// Lesson 3: compares reduce_scatter and all_gather with the library's gradients and traffic at stage 0.
#include <string.h>
#include "lesson.h"

enum { ELEMS = 3 * 4 * 128 };  // divides by 2, 3 and 4 ranks without padding

static float gradient(int rank, int micro, int unit, int64_t i) { return lesson_number(rank * ELEMS + i); }

// Sets mean (ELEMS) to the library's mean gradient, and *traffic to what this rank sent for it.
static void engine_mean(float *mean, zero_traffic *traffic) {
    const int64_t elems = ELEMS;
    zero_config config = zero_defaults();
    zero *z = lesson_engine(&config, &elems, 1);
    lesson_micro_batch(z, 0, 1, &config, &elems, 1, gradient);
    lesson_must(zero_finish_gradients(z, NULL));
    zero_traffic_info(z, traffic);
    lesson_must(zero_get(z, ZERO_GRADIENT, 0, 0, 0, ELEMS, mean));
    zero_destroy(z);
}

// Reports the elements [first, first + n) in which yours differs from theirs.
static void compare(const float *yours, const float *theirs, int first, int n) {
    for (int i = 0; i < n; i++)
        if (memcmp(&yours[i], &theirs[i], sizeof *yours))
            lesson_off("rank %d, element %d: you have %.9g; the library %.9g", wire_rank(), first + i,
                       yours[i], theirs[i]);
}
static void compare_bytes(int64_t yours, int64_t theirs) {
    if (yours != theirs)
        lesson_off("rank %d: you send %lld bytes; the library %lld", wire_rank(), (long long)yours,
                   (long long)theirs);
}

static void check_ranks(int ranks) {
    const int part = ELEMS / ranks, joined = lesson_join(ranks);
    float mine[ELEMS], own[ELEMS] = { 0 }, all[ELEMS] = { 0 }, theirs[ELEMS];
    zero_traffic traffic = { 0 };
    int64_t reduced = 0;
    if (joined) {
        engine_mean(theirs, &traffic);
        for (int i = 0; i < ELEMS; i++) mine[i] = gradient(wire_rank(), 0, 0, i);
        reduce_scatter(mine, ELEMS, own);
        reduced = wire_sent();
        compare(own, theirs + wire_rank() * part, wire_rank() * part, part);
    }
    lesson_check("%d ranks, reduce_scatter: the bits of each rank's %d elements", ranks, part);
    compare_bytes(reduced, traffic.reduce_scatter[ZERO_FOR_STEP]);
    lesson_check("%d ranks, reduce_scatter: bytes sent", ranks);
    if (joined) {
        all_gather(theirs + wire_rank() * part, ELEMS, all);
        compare(all, theirs, 0, ELEMS);
    }
    lesson_check("%d ranks, all_gather: the bits of all %d elements", ranks, ELEMS);
    compare_bytes(wire_sent() - reduced, traffic.all_gather[ZERO_FOR_STEP]);
    lesson_check("%d ranks, all_gather: bytes sent", ranks);
}

int main(int argc, char **argv) {
    lesson_begin(argv, 4, 3, "is an all-reduce two things?");
    for (int ranks = 2; ranks <= 4; ranks++) check_ranks(ranks);
    return lesson_end();
}
