// Lesson 2: compares average_f32 and average_bf16 with the gradients of the library's naive path.
#include "lesson.h"

enum { ELEMS = 3 * 4 * 128 };  // divides by 2, 3 and 4 ranks without padding

static float gradient(int rank, int micro, int unit, int64_t i) { return lesson_number(rank * ELEMS + i); }

// Calls the reader's function on this rank's gradient, and sets mean (ELEMS) to the result.
static void reader_mean(zero_dtype dtype, float *mean) {
    uint16_t small[ELEMS];
    for (int i = 0; i < ELEMS; i++) small[i] = to_bf16(mean[i] = gradient(wire_rank(), 0, 0, i));
    if (dtype == ZERO_F32)
        average_f32(mean, ELEMS);
    else
        average_bf16(small, ELEMS);
    for (int i = 0; dtype != ZERO_F32 && i < ELEMS; i++) mean[i] = from_bf16(small[i]);
}

static void check_mean(int ranks, zero_dtype dtype) {
    const char *name = dtype == ZERO_F32 ? "average_f32" : "average_bf16";
    float yours[ELEMS] = { 0 }, theirs[ELEMS] = { 0 };
    zero_config config = zero_defaults();
    zero_traffic traffic = { 0 };
    int64_t sent = 0;
    config.debug.naive = 1;
    config.numbers.dtype = dtype;
    if (lesson_join(ranks)) {
        reader_mean(dtype, yours);
        sent = wire_sent();
        traffic = lesson_mean(&config, ELEMS, gradient, theirs);
    }
    lesson_compare(yours, theirs, 0, ELEMS);
    lesson_check("%d ranks, %s: the bits of %d elements", ranks, name, ELEMS);
    lesson_compare_bytes(sent, traffic.all_gather[ZERO_FOR_STEP] + traffic.reduce_scatter[ZERO_FOR_STEP] +
                                   traffic.other[ZERO_FOR_STEP]);
    lesson_check("%d ranks, %s: bytes sent", ranks, name);
}

int main(int argc, char **argv) {
    lesson_begin(argv, 4, 2, "two ranks, the naive way");
    for (int ranks = 2; ranks <= 4; ranks++) {
        check_mean(ranks, ZERO_F32);
        check_mean(ranks, ZERO_BF16);
    }
    return lesson_end();
}
