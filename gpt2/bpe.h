// GPT-2's byte-pair encoding: UTF-8 text to tokens, word by word.
//
// A regular expression splits the text into words (a space belongs to the word after it). Each word starts as
// its bytes. Adjacent pairs that together are a token are then joined, always the one with the smallest token
// number first (on a tie, the leftmost), until none is left: token numbers follow the order in which a
// tokenizer learned its pairs. On failure, functions return a negative number and set gpt2_last_error().
#ifndef GPT2_BPE_H
#define GPT2_BPE_H
#include <stddef.h>
#include <stdint.h>
#include "tokenizer.h"

enum {
    BPE_MAX_WORD = 1 << 20,  // bytes of the longest word
    BPE_MARGIN = 4           // bytes after a word that may still change where it ends
};

typedef struct Bpe Bpe;

// Returns 0 with *b; free it with bpe_free. Returns -1 if a byte has no token, if there are more tokens than
// uint16 can number, or in a build without PCRE2, which splits text into words. t may be freed afterwards.
int bpe_create(Bpe **b, const Tokenizer *t);
void bpe_free(Bpe *b);

// Encodes the first word of `text`, which must be valid UTF-8 of whole characters. Returns the number of
// tokens. Sets *tokens to them, valid until the next call, and *length to the number of bytes they cover.
// Returns 0 if the first word may be incomplete: the text is empty, or `last` is 0 and more text could make
// the word longer.
int bpe_next(Bpe *b, const uint8_t *text, size_t size, int last, int *length, const uint16_t **tokens);

// Returns how many bytes at the start of the text are complete characters in valid UTF-8.
size_t utf8_prefix(const uint8_t *text, size_t size);

#endif
