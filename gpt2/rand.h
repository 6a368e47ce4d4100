// Random numbers: mt19937 for weights, as in PyTorch and llm.c; xorshift* for tokens, as in llm.c's sampler.
#ifndef GPT2_RAND_H
#define GPT2_RAND_H
#include <stdint.h>

typedef struct {
    uint32_t state[624];
    int next;
} mt19937;

void mt_seed(mt19937 *rng, uint32_t seed);
uint32_t mt_u32(mt19937 *rng);
float mt_f32(mt19937 *rng);  // [0, 1), 24 bits
// Box-Muller in blocks of 16, as torch.normal_ does. Drawing in parts gives the same values as drawing at
// once if all parts but the last are multiples of 16 and the last has 16 or more.
void mt_normal(mt19937 *rng, float *data, int64_t n, float mean, float std);
void mt_permutation(mt19937 *rng, uint32_t *data, uint32_t n);  // 0..n-1 in random order (Fisher-Yates)

uint32_t random_u32(uint64_t *state);
float random_f32(uint64_t *state);  // [0, 1)
// Returns an index drawn from softmax(logits); coin in [0, 1).
int sample_softmax(const float *logits, int n, float coin);

#endif
