// The tokenizer.bin of byte-level tokens: the 256 bytes, then end-of-text.
#ifndef BYTE_TOKENIZER_H
#define BYTE_TOKENIZER_H
#include <stdint.h>
#include <string.h>

#define END_OF_TEXT "<|endoftext|>"
enum { BYTE_EOT = 256, BYTE_VOCAB = 257 };
static const uint32_t byte_tokenizer_header[256] = { 20240328, 2, BYTE_VOCAB, BYTE_EOT };

// Each token is stored as its length and its bytes.
typedef struct {
    unsigned char tokens[2 * 256 + 1 + sizeof END_OF_TEXT - 1];
} ByteTokenizer;

static inline ByteTokenizer byte_tokenizer(void) {
    ByteTokenizer t;
    for (int i = 0; i < 256; i++) {
        t.tokens[2 * i] = 1;
        t.tokens[2 * i + 1] = (unsigned char)i;
    }
    t.tokens[2 * 256] = sizeof END_OF_TEXT - 1;
    memcpy(t.tokens + 2 * 256 + 1, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    return t;
}
#endif
