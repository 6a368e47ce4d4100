// Decodes tokens with llm.c's tokenizer.bin: 256 uint32 (magic 20240328, version 1 or 2, vocabulary size,
// end-of-text id), then for each token one byte with its length, and its bytes.
#ifndef GPT2_TOKENIZER_H
#define GPT2_TOKENIZER_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    uint32_t vocab_size;
    int eot_token;      // end of text
    uint8_t *lengths;   // (vocab_size)
    uint32_t *offsets;  // (vocab_size) into bytes
    uint8_t *bytes;
} Tokenizer;

int tokenizer_init(Tokenizer *t, const char *path);  // 0 or -1
// Returns the token's bytes, not zero-terminated, or NULL if there is no such token.
const char *tokenizer_decode(const Tokenizer *t, uint32_t token, int *length);
// Prints a token without its control bytes, except white space.
void tokenizer_print(const Tokenizer *t, FILE *out, uint32_t token);
void tokenizer_free(Tokenizer *t);

#endif
