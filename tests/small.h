// A plugin with so few parameters that a test can damage every byte of its checkpoint.
#ifndef TESTS_SMALL_H
#define TESTS_SMALL_H
#include "../llmc_zero/zero.h"

enum { SMALL_LARGEST = 90, SMALL_VECTOR = 20 };
static const zero_tensor small_tensors[] = {
    { "wte", 1, { SMALL_LARGEST }, 1, 0, 1, 1 },
    { "lnw", 1, { SMALL_VECTOR }, 2, 1, 0, 0 },
};
static const zero_unit small_units[] = {
    { "emb", 2, 2, 1 },
    { "block 0", 1, 1, 0 },
    { "block 1", 1, 1, 0 },
};

// Sets masters and moments to values that depend on `base`. Returns 0 or an error.
static inline int small_fill(zero *z, float base) {
    static const zero_value filled[] = { ZERO_PARAM, ZERO_MOMENT1, ZERO_MOMENT2 };
    float values[SMALL_LARGEST];
    int rc = 0;
    for (int i = 0; i < SMALL_LARGEST; i++) values[i] = base + (float)i / 256;
    for (int v = 0; v < 3; v++) {
        if (!rc) rc = zero_set(z, filled[v], 0, 0, 0, SMALL_LARGEST, values);
        if (!rc) rc = zero_set(z, filled[v], 1, 0, 0, SMALL_VECTOR, values);
        if (!rc) rc = zero_set(z, filled[v], 1, 1, 0, SMALL_VECTOR, values);
    }
    return rc;
}

// Uses fp16, which adds a loss scale to the checkpoint.
static inline int small_create(zero **z) {
    zero_config c = zero_defaults();
    c.stage = 3;
    c.numbers.dtype = ZERO_F16;
    int rc = zero_create(z, &c, small_tensors, 2, small_units, 3);
    return rc ? rc : small_fill(*z, 0.5f);
}

#endif
