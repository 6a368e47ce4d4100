// The prompts that a run answers: all lines of the file of --prompts, or one prompt at a time: the text of
// --prompt, or the lines of standard input as they arrive.
#ifndef TRAINER_PROMPTS_H
#define TRAINER_PROMPTS_H
// defines: Bpe
#include "../../gpt2/bpe.h"
#include "../../gpt2/tokenizer.h"

// An empty prompt becomes the end-of-text token, so its answer starts a new text.
typedef struct {
    int n;        // number of prompts
    int *tokens;  // of all prompts
    int *first;   // (n + 1) index of each prompt's first token, then the total number of tokens
    int *lines;   // (n) the line of each, from 1
    int longest;
    int failed;  // 1: a line cannot be answered
} Prompts;

// Reads the prompts in a text, one per line, for a vocabulary of V tokens; bpe NULL: they are token numbers
// separated by blanks. Skips an invalid line, or one of more than T tokens, with a message on stderr. If no
// line is left, the run ends.
void prompts_read(Prompts *p, const char *text, Bpe *bpe, int eot_token, int V, int T);
// Reads the file of --prompts. With a tokenizer, prompts are text.
void prompts_open(Prompts *p, const Tokenizer *tokenizer, int V, int T);
void prompts_free(Prompts *p);

// Prompts one after the other.
typedef struct {
    Bpe *bpe;  // NULL: prompts are token numbers
    int eot_token, V;
    int longest;  // length of the longest prompt allowed, in tokens
    int *tokens;  // (longest) of the current prompt
    int n;        // its length
    int line;     // lines of standard input read so far; 1 after --prompt's text
    int failed;   // 1: a line could not be answered; known on rank 0
} PromptStream;

// Reads --prompt's text, of at most T tokens; for standard input, allocates room for T tokens.
void stream_open(PromptStream *s, const Tokenizer *tokenizer, int V, int T);
// (collective) Returns 1 with the next prompt on all ranks, 0 after the last. Rank 0 waits for standard
// input without a time limit, and skips invalid lines and those of more than T tokens with a message on
// stderr.
int stream_next(PromptStream *s);
void stream_close(PromptStream *s);

#endif
