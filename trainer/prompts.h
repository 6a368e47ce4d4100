// The file of --prompts: one prompt a line. With a tokenizer a line is text, else token numbers separated by
// blanks. An empty line is the end-of-text token, which starts a new text.
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

// Reads opt.prompts for a vocabulary of V tokens. If a prompt and its answer do not fit into T positions, the
// run ends with an error that names the line.
void prompts_read(Prompts *p, const Tokenizer *tokenizer, int V, int T);
void prompts_free(Prompts *p);

#endif
