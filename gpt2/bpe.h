// GPT-2's byte-pair encoding: UTF-8 text to tokens, word by word.
//
// A regular expression cuts the text into words (a space belongs to the word after it). Each word begins as
// its bytes; of all pairs of neighbours whose bytes together are a token, the one with the smallest number is
// joined first, the leftmost of equals, until there is none: a tokenizer's numbers are the order in which its
// pairs were found. Functions return a negative number, and gpt2_last_error() says why.
#ifndef GPT2_BPE_H
#define GPT2_BPE_H
#include <stddef.h>
#include <stdint.h>
// defines: Tokenizer
#include "tokenizer.h"

enum {
    BPE_MAX_WORD = 1 << 20,  // bytes of the longest word
    BPE_MARGIN = 4           // bytes after a word that can still change where it ends
};

typedef struct Bpe Bpe;

// Returns 0 and *b, which is the caller's to free, or -1: a byte without a token, more tokens than uint16 can
// number, or a build without PCRE2, which cuts text into words. t may go then.
int bpe_create(Bpe **b, const Tokenizer *t);
void bpe_free(Bpe *b);

// The tokens of the first word in `text`, which is valid UTF-8 of whole characters. Returns how many there
// are; they lie in *tokens until the next call, and *length is how many bytes they stand for. Returns 0 where
// there is no whole word: the text is empty, or its end is not that of the document (`last` is 0) and more
// text could make the word longer.
int bpe_next(Bpe *b, const uint8_t *text, size_t size, int last, int *length, const uint16_t **tokens);

// Returns how many bytes at the beginning of the text are whole characters in valid UTF-8.
size_t utf8_prefix(const uint8_t *text, size_t size);

#endif
