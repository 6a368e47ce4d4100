// Lesson 2: compares average_f32 and average_bf16 with the gradients of the library's naive path.
#include <string.h>
#include "lesson.h"

enum { ELEMS = 3 * 4 * 128 };  // divides by 2, 3 and 4 ranks without padding

static float gradient(int rank, int micro, int unit, int64_t i) { return lesson_number(rank * ELEMS + i); }

// Sets mean (ELEMS) to the library's mean gradient, and returns the bytes that this rank sent for it.
static int64_t engine_mean(zero_dtype dtype, float *mean) {
    const int64_t elems = ELEMS;
    zero_config config = zero_defaults();
    zero_traffic traffic;
    config.debug.naive = 1;
    config.numbers.dtype = dtype;
    zero *z = lesson_engine(&config, &elems, 1);
    lesson_micro_batch(z, 0, 1, &config, &elems, 1, gradient);
    lesson_must(zero_finish_gradients(z, NULL));
    zero_traffic_info(z, &traffic);
    lesson_must(zero_get(z, ZERO_GRADIENT, 0, 0, 0, ELEMS, mean));
    zero_destroy(z);
    return traffic.all_gather[ZERO_FOR_STEP] + traffic.reduce_scatter[ZERO_FOR_STEP] +
           traffic.other[ZERO_FOR_STEP];
}

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
    float yours[ELEMS], theirs[ELEMS];
    const int joined = lesson_join(ranks);
    if (joined) reader_mean(dtype, yours);
    const int64_t sent = wire_sent(), engine_sent = joined ? engine_mean(dtype, theirs) : 0;
    for (int i = 0; joined && i < ELEMS; i++)
        if (memcmp(&yours[i], &theirs[i], sizeof yours[i]))
            lesson_off("rank %d, element %d: you have %.9g; the library %.9g", wire_rank(), i, yours[i],
                       theirs[i]);
    lesson_check("%d ranks, %s: the bits of %d elements", ranks, name, ELEMS);
    if (sent != engine_sent)
        lesson_off("rank %d: you send %lld bytes; the library %lld", wire_rank(), (long long)sent,
                   (long long)engine_sent);
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
