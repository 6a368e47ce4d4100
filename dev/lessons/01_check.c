// Lesson 1: compares state_bytes with the plan of the library, for models of several sizes.
#include "lesson.h"

// Returns the model states that the library plans for a model of n_units units of `elems` elements.
static int64_t planned_bytes(int stage, int ranks, int accumulates, int bf16, int64_t elems, int n_units) {
    int64_t units[LESSON_UNITS];
    zero_config config = zero_defaults();
    for (int u = 0; u < n_units; u++) units[u] = elems;
    config.stage = stage;
    config.micro_batches = accumulates ? 4 : 1;
    config.numbers.dtype = bf16 ? ZERO_BF16 : ZERO_F32;
    return (int64_t)lesson_plan(&config, units, n_units, ranks).bytes[ZERO_STATES];
}

// Compares for both dtypes and 1 to 8 ranks. The number of elements is a multiple of 2048 * ranks, so that
// the library adds no padding and allocates whole pages.
static void check_stage(int stage, int accumulates) {
    for (int bf16 = 0; bf16 <= 1; bf16++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int n_units = 1; n_units <= 12; n_units += 11) {
                const int64_t elems = 2048 * ranks * 5, parameters = elems * n_units;
                const int64_t yours = state_bytes(stage, ranks, accumulates, bf16, parameters);
                const int64_t planned = planned_bytes(stage, ranks, accumulates, bf16, elems, n_units);
                if (yours != planned)
                    lesson_off("%s, N = %d, %lld parameters: you get %lld bytes; the library plans %lld",
                               bf16 ? "bf16" : "fp32", ranks, (long long)parameters, (long long)yours,
                               (long long)planned);
            }
    lesson_check("stage %d%s", stage, accumulates ? " with several micro-batches" : "");
}

int main(int argc, char **argv) {
    lesson_begin(argv, 1, 1, "where do the 16 bytes per parameter go?");
    for (int accumulates = 0; accumulates <= 1; accumulates++)
        for (int stage = 0; stage <= 3; stage++) check_stage(stage, accumulates);
    return lesson_end();
}
