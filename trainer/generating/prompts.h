// The prompts that a run answers: all lines of the file of --prompts, or one prompt at a time: the text of
// --prompt, or the lines of standard input as they arrive.
#ifndef TRAINER_PROMPTS_H
#define TRAINER_PROMPTS_H
#include "../../gpt2/bpe.h"  // Bpe
#include "../../gpt2/tokenizer.h"

// An empty prompt becomes the end-of-text token, so its answer starts a new text.
typedef struct {
    int n;        // number of prompts; 1 if they arrive one at a time
    int *tokens;  // of all prompts
    int *first;   // (n + 1) index of each prompt's first token, then the total number of tokens
    int *lines;   // (n) the line of each, from 1
    int longest;  // in tokens; of standard input, the longest allowed
    int failed;   // 1: a line cannot be answered; of standard input, known on rank 0
    int taken;    // 1: prompts_next has returned --prompt's text
    Bpe *bpe;     // while prompts are read; NULL: they are token numbers
    int eot_token, V;
    int T;  // maximum tokens per prompt
} Prompts;

// Reads the prompts in a text, one per line, for a vocabulary of V tokens; without bpe they are token numbers
// separated by blanks. Skips an invalid line, or one of more than T tokens, with a message on stderr. If no
// line is left, the run ends. The caller sets the last four members.
void prompts_read(Prompts *p, const char *text);
// Reads the file of --prompts, or --prompt's text; for standard input, allocates room for T tokens. With a
// tokenizer, prompts are text.
void prompts_open(Prompts *p, const Tokenizer *tokenizer, int V, int T);
// (collective) For prompts that arrive one at a time. Returns 1 with the next one on all ranks, 0 after the
// last. Rank 0 waits for standard input without a time limit, and skips lines as prompts_read does.
int prompts_next(Prompts *p);
void prompts_free(Prompts *p);

#endif
