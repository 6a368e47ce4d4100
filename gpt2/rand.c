// mt19937 and the normal distribution as in PyTorch, and the sampler's xorshift*. Operations follow llm.c's
// order and precision, to reproduce its floats bit for bit.
#include <math.h>
#include "rand.h"

enum { STATE = 624, SHIFT = 397 };

void mt_seed(mt19937 *rng, uint32_t seed) {
    rng->state[0] = seed;
    for (uint32_t i = 1; i < STATE; i++)
        rng->state[i] = 1812433253u * (rng->state[i - 1] ^ (rng->state[i - 1] >> 30)) + i;
    rng->next = STATE;
}

static void refill(mt19937 *rng) {
    uint32_t *s = rng->state;
    for (int i = 0; i < STATE; i++) {
        uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % STATE] & 0x7fffffffu);
        s[i] = s[(i + SHIFT) % STATE] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    rng->next = 0;
}

uint32_t mt_u32(mt19937 *rng) {
    if (rng->next == STATE) refill(rng);
    uint32_t y = rng->state[rng->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

float mt_f32(mt19937 *rng) { return (mt_u32(rng) & 0xffffff) * (1.0f / (1 << 24)); }

static double mt_f64(mt19937 *rng) {  // [0, 1), 53 bits
    uint64_t high = mt_u32(rng);
    uint64_t bits = high << 32 | mt_u32(rng);
    return (bits & ((1ull << 53) - 1)) * (1.0 / (1ull << 53));
}

// Turns 16 uniforms into 8 radii and 8 angles, and those into 16 normals.
static void normal_block(mt19937 *rng, float data[16], float mean, float std) {
    for (int i = 0; i < 16; i++) data[i] = mt_f32(rng);
    for (int i = 0; i < 8; i++) {
        float radius = sqrtf(-2 * logf(1 - data[i] + 1e-12f));
        float theta = (float)(2.0 * M_PI * data[i + 8]);
        data[i] = radius * cosf(theta) * std + mean;
        data[i + 8] = radius * sinf(theta) * std + mean;
    }
}

// Draws fewer values than a block, in pairs, from doubles.
static void normal_few(mt19937 *rng, float *data, int64_t n, float mean, float std) {
    for (int64_t i = 0; i < n; i += 2) {
        float angle = (float)mt_f64(rng), u = (float)mt_f64(rng);
        float radius = sqrtf(-2 * logf(1 - u + 1e-12f));
        float theta = (float)(2.0 * M_PI * angle);
        data[i] = radius * cosf(theta) * std + mean;
        if (i + 1 < n) data[i + 1] = (float)((double)(radius * sinf(theta)) * std + mean);
    }
}

void mt_normal(mt19937 *rng, float *data, int64_t n, float mean, float std) {
    if (n < 16) {
        normal_few(rng, data, n, mean, std);
        return;
    }
    for (int64_t i = 0; i + 16 <= n; i += 16) normal_block(rng, data + i, mean, std);
    if (n % 16 == 0) return;
    for (int64_t i = 0; i < n % 16; i++)
        mt_u32(rng);  // torch draws the rest too, and then the last 16 once more
    normal_block(rng, data + n - 16, mean, std);
}

void mt_permutation(mt19937 *rng, uint32_t *data, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) data[i] = i;
    for (uint32_t left = n; left > 1; left--) {
        uint32_t j = mt_u32(rng) % left, swap = data[left - 1];
        data[left - 1] = data[j];
        data[j] = swap;
    }
}

uint32_t random_u32(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (uint32_t)(*state * 0x2545f4914f6cdd1dull >> 32);
}

float random_f32(uint64_t *state) { return (random_u32(state) >> 8) / 16777216.0f; }

int sample_softmax(const float *logits, int n, float coin) {
    float largest = logits[0];  // subtracted so that no exponential overflows
    for (int i = 1; i < n; i++) largest = fmaxf(largest, logits[i]);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += expf(logits[i] - largest);
    float target = (float)(coin * sum), cdf = 0;
    for (int i = 0; i < n; i++) {
        cdf += expf(logits[i] - largest);
        if (target < cdf) return i;
    }
    return n - 1;  // rounding left the sum below the target
}
