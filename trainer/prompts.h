// The file of --prompts: one prompt a line. With a tokenizer a line is text, else the numbers of its tokens,
// with blanks between them. An empty line is the end-of-text token, after which a text begins.
#ifndef TRAINER_PROMPTS_H
#define TRAINER_PROMPTS_H
#include "../gpt2/tokenizer.h"

typedef struct {
    int n;         // prompts
    int *lengths;  // (n) tokens of each
    int **tokens;  // (n), (lengths)
    int longest;
    long long total;  // tokens of all prompts
} Prompts;

// Reads opt.prompts for a vocabulary of V tokens. A prompt that does not fit into T positions together with
// the answer ends the run, which names its line.
void prompts_read(Prompts *p, const Tokenizer *tokenizer, int V, int T);
void prompts_free(Prompts *p);

#endif
