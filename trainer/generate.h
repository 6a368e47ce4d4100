// Text generated token by token with a cache of keys and values: the sample of a training run, or the answers
// to a file of prompts. A pass processes the tokens of each row that are not in the cache yet: first the
// whole prompt, then one token at a time.
//
//     while (generation_next(&g)) {
//         ... forward over g.pass, which leaves the logits of each row's last token in g.logits ...
//         generation_choose(&g);
//     }
#ifndef TRAINER_GENERATE_H
#define TRAINER_GENERATE_H
#include <stdint.h>
// defines: Bpe
#include "../gpt2/bpe.h"
// defines: layers_span
#include "../gpt2/layers.h"
#include "../gpt2/tokenizer.h"
#include "activations.h"

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
    CachedPass pass;
    float *logits;  // (n_spans, V)
} Generation;

// Allocates model->cache_rows rows for generation_add.
void generation_begin(Generation *g, const GPT2 *model);
// Adds a row that begins with n tokens and grows to `total`. The same seed gives the same random numbers.
void generation_add(Generation *g, const int *tokens, int n, int total, uint64_t seed);
void generation_end(Generation *g);

// Returns 1 and sets g->pass to the next pass, or returns 0 when all rows are complete. Every pass adds one
// token to each incomplete row.
int generation_next(Generation *g);
// Appends a token to each row of the pass, sampled from its logits at --temperature.
void generation_choose(Generation *g);

// Prints a token as text or, without a tokenizer, as a number.
void print_token(const Tokenizer *tokenizer, int token);

// --------
// A --prompts run: the model answers prompts and is not trained. The ranks divide the prompts. All rows of a
// rank form one batch, so each layer is gathered once per pass for all of them.

// The prompts, one per line of the file. An empty line stands for the end-of-text token, so its answer starts
// a new text.
typedef struct {
    int n;        // number of prompts
    int *tokens;  // of all prompts
    int *first;   // (n + 1) index of each prompt's first token; then the total number of tokens
    int longest;
} Prompts;

// Reads the prompts in a text for a vocabulary of V tokens; bpe NULL: they are token numbers separated by
// blanks. An invalid prompt ends the run with an error that names its line.
void prompts_read(Prompts *p, const char *text, Bpe *bpe, int eot_token, int V);
void prompts_free(Prompts *p);

typedef struct {
    Tokenizer tokenizer;
    Prompts prompts;
    Generation generation;  // of this rank's rows
    int passes;
    double start_s, prefilled_s;  // when the first pass began and ended
    zero_traffic traffic_at_start;
    zero_files files_at_start;
} Answers;

// Reads the prompts, and sizes the model's passes and cache for them.
void answers_describe(Answers *a, GPT2 *model);
// Starts the clock, and returns this rank's rows.
Generation *answers_begin(Answers *a, const GPT2 *model);
void answers_passed(Answers *a);  // call it after each pass
// (collective) Prints the answers in the order of the prompts, and the speed. With -o, also writes the
// answers as token numbers to answers.jsonl, and the speed to inference.json. Frees a.
void answers_end(Answers *a, const GPT2 *model);

#endif
