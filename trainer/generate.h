// Rows of tokens that grow with a cache of keys and values: the sample of a training run, or the answers to a
// file of prompts. A pass takes the tokens of each row that are not in the cache: first its whole prompt,
// then the last chosen token.
//
//     while (generation_next(&g)) {
//         ... forward over g.pass; the logits of each row's last token go to g.logits ...
//         generation_choose(&g);
//     }
#ifndef TRAINER_GENERATE_H
#define TRAINER_GENERATE_H
#include <stdint.h>
// defines: layers_span
#include "../gpt2/layers.h"
#include "../gpt2/tokenizer.h"
#include "activations.h"

typedef struct {
    int *tokens;      // (total)
    int length;       // so far
    int total;        // at the end
    int first;        // the token at position 0 of the cache
    int cached;       // tokens from there on in the cache
    int begin, room;  // its positions in the cache, as in a layers_span
    uint64_t random;
} GenerationRow;

// The input of a forward pass over the cache. Each span is of a different row.
typedef struct {
    int *tokens;
    int n;               // tokens
    layers_span *spans;  // (n_spans)
    int n_spans;
} CachedPass;

typedef struct {
    int V, T;  // past T tokens the model sees only the last T
    GenerationRow *rows;
    int n_rows;
    CachedPass pass;
    float *logits;  // (n_spans, V)
} Generation;

// Allocates rows for generation_add, as many as the model's cache has.
void generation_begin(Generation *g, const GPT2 *model);
// Adds a row that begins with n tokens and ends with `total`. Rows with the same seed choose alike.
void generation_add(Generation *g, const int *tokens, int n, int total, uint64_t seed);
void generation_end(Generation *g);

// Returns 1 with the next pass in g->pass, or 0 when all rows are complete. Rows with equally many tokens to
// come need equally many passes.
int generation_next(Generation *g);
// Appends a token to each row of the pass, sampled from its logits at --temperature.
void generation_choose(Generation *g);

// Prints a token as text, or its number without a tokenizer.
void print_token(const Tokenizer *tokenizer, int token);

#endif
