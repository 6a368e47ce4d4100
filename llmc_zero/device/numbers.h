// bf16 (the upper half of a float) and fp16 (IEEE binary16). Conversions use integer arithmetic, so every CPU
// and compiler gives the same bits.
#ifndef LLMC_ZERO_DEVICE_NUMBERS_H
#define LLMC_ZERO_DEVICE_NUMBERS_H
#include <stdint.h>
#include <string.h>
#ifdef __CUDACC__
#define ZERO_INLINE __host__ __device__ static inline
#else
#define ZERO_INLINE static inline
#endif

ZERO_INLINE float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
ZERO_INLINE uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

ZERO_INLINE float bf16_widen(uint16_t x) { return float_of((uint32_t)x << 16); }
ZERO_INLINE uint16_t bf16_round(float f) {  // to nearest even; NaN stays NaN
    uint32_t u = bits_of(f), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// For a normal value, adds 112 to the exponent. A subnormal is exactly its bits times 2^-24.
ZERO_INLINE float fp16_widen(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
    float normal = float_of((rest << 13) + (112u << 23));
    float subnormal = (float)(int32_t)rest * 0x1p-24f;
    float special = float_of(rest << 13 | 0x7f800000);
    return float_of(bits_of(rest >= 0x7c00 ? special : rest >= 0x400 ? normal : subnormal) | sign);
}
// Rounds to nearest even; values from 65520 on become infinity. Below 2^-14 the last place is 2^-24, and
// adding 0.5 makes the float addition round there.
ZERO_INLINE uint16_t fp16_round(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, rest = u & 0x7fffffff;
    uint32_t normal = (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    uint32_t subnormal = bits_of(float_of(rest < 0x38800000 ? rest : 0) + 0.5f) - 0x3f000000;
    uint32_t finite = rest < 0x38800000 ? subnormal : normal < 0x7c00 ? normal : 0x7c00;
    return (uint16_t)(sign | (rest > 0x7f800000 ? 0x7e00 : rest >= 0x477ff000 ? 0x7c00 : finite));
}

// Stochastic rounding: adds 16 random bits below the last bit kept, so that the mean of many roundings is the
// value itself (Gupta et al., arXiv 1502.02551). Infinity and NaN stay as they are.
ZERO_INLINE uint16_t bf16_round_with(float f, uint32_t noise) {
    uint32_t u = bits_of(f);
    return (u & 0x7f800000) == 0x7f800000 ? bf16_round(f) : (uint16_t)((u + (noise & 0xffff)) >> 16);
}
// The last step of MurmurHash3. noise_at applies it twice to get a well-mixed number for each (key, i).
ZERO_INLINE uint32_t noise_mix(uint32_t h) {
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}
// The key of a layer's tensor in one update. In noise_at, i is the element's index in the tensor.
ZERO_INLINE uint32_t noise_of_update(uint32_t seed, int t) {
    return noise_mix(seed + 0x9e3779b9u * (uint32_t)t);
}
ZERO_INLINE uint32_t noise_key(uint32_t update, int tensor, int layer) {
    return noise_mix(noise_mix(update ^ (uint32_t)tensor) ^ (uint32_t)layer);
}
ZERO_INLINE uint32_t noise_at(uint32_t key, uint32_t i) { return noise_mix(noise_mix(i + key) ^ key); }

#endif
