// Looks up the tokens of a tokenizer by their bytes.
#ifndef GPT2_VOCABULARY_H
#define GPT2_VOCABULARY_H
#include "tokenizer.h"

#define NO_TOKEN UINT32_MAX

typedef struct {
    const Tokenizer *t;
    uint32_t *slots, mask;  // hash table, open addressing
} Vocabulary;

// Returns 0, or -1 with gpt2_fail's message. Call vocabulary_free in either case.
int vocabulary_init(Vocabulary *v, const Tokenizer *t);
// Returns the first token with these bytes, or NO_TOKEN. Never returns the end-of-text token.
uint32_t vocabulary_find(const Vocabulary *v, const char *bytes, int n);
void vocabulary_free(Vocabulary *v);

#endif
