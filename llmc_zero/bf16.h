/* bf16: the upper half of a float. By integer arithmetic, so that every processor and compiler gives the same bits. */
#ifndef LLMC_ZERO_BF16_H
#define LLMC_ZERO_BF16_H
#include <stdint.h>
#include <string.h>

static inline float bf16_widen(uint16_t x) {
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint16_t bf16_round(float f) {        /* to nearest even; a NaN stays one */
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

#endif
