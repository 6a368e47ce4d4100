// Text generated token by token with a cache of keys and values: the sample of a training run, or answers to
// prompts. A pass processes the tokens of each row that are not in the cache yet: first the whole prompt,
// then one token at a time.
//
//     while (generation_next(&g)) {
//         ... forward over g.pass, which leaves the logits of each row's last token in g.logits ...
//         generation_choose(&g);
//     }
#ifndef TRAINER_GENERATE_H
#define TRAINER_GENERATE_H
#include <stdint.h>
#include "../../gpt2/layers.h"  // layers_span
#include "../../gpt2/tokenizer.h"
#include "../running/activations.h"
#include "prompts.h"  // Prompts

typedef struct {
    int *tokens;      // (total)
    int length;       // so far
    int total;        // at the end
    int first;        // index of the token at position 0 of the cache
    int cached;       // number of tokens in the cache
    int begin, room;  // the row's positions in the cache, as in layers_span
    uint64_t random;
} GenerationRow;

// The input of a forward pass over the cache. Each span belongs to a different row.
typedef struct {
    int *tokens;
    int n;               // tokens
    layers_span *spans;  // (n_spans)
    int n_spans;
} CachedPass;

typedef struct {
    int V, T;  // the model sees at most the last T tokens
    GenerationRow *rows;
    int n_rows;
    int passes, passed;  // the number to make, and the number made
    CachedPass pass;
    float *logits;  // (n_spans, V)
} Generation;

// Allocates model->cache_rows rows for generation_add.
void generation_begin(Generation *g, const GPT2 *model);
// Adds a row that begins with n tokens and grows to `total`. The same seed gives the same random numbers.
void generation_add(Generation *g, const int *tokens, int n, int total, uint64_t seed);
void generation_end(Generation *g);

// Returns 1 and sets g->pass to the next pass, or returns 0 after g->passes, by default as many as the rows
// need. Every pass adds one token to each incomplete row.
int generation_next(Generation *g);
// Appends a token to each row of the pass, sampled from its logits at --temperature.
void generation_choose(Generation *g);

// Prints a token as text or, without a tokenizer, as a number.
void print_token(const Tokenizer *tokenizer, int token);

// -------- a run that answers prompts and trains nothing
// An answer has -g tokens, but ends at the model's last position. The prompts of a file are divided among the
// ranks. All rows of a rank form one batch, so each layer is gathered once per pass for all of them. All
// ranks together answer prompts that arrive one at a time.

typedef struct {
    Tokenizer tokenizer;
    int positions;  // of a prompt and its answer, except the answer's last token
    Prompts prompts;
    int noted;                    // 1: a note said that answers end at the last position
    Generation generation;        // of this rank's rows
    double start_s, prefilled_s;  // when the first pass began and ended
    zero_traffic traffic_at_start;
    zero_files files_at_start;
} Answers;

// Opens the prompts, and sizes the model's passes and cache for them.
void answers_describe(Answers *a, GPT2 *model);

// For a file: starts the clock, and returns this rank's rows.
Generation *answers_begin(Answers *a, const GPT2 *model);
void answers_passed(Answers *a);  // call it after each pass
// (collective) Prints the answers in the order of the prompts and, with --verbose, the speed. With -o, also
// writes the answers as token numbers to answers.jsonl, and the speed to inference.json.
void answers_end(Answers *a, const GPT2 *model);

// For any other source: (collective) prints the next prompt and begins a generation with it. Returns 1, or 0
// after the last prompt.
int answers_next(Answers *a, const GPT2 *model, Generation *g);

// Returns the program's exit status: a failure if a line could not be answered.
int answers_free(Answers *a);

#endif
