// Writes the tokenizer.bin for byte-level tokens: the 256 bytes, then end-of-text.
#ifndef BYTE_TOKENIZER_H
#define BYTE_TOKENIZER_H
#include <stdint.h>
#include <string.h>
#include "gpt2/disk.h"

#define END_OF_TEXT "<|endoftext|>"
enum { BYTE_EOT = 256, BYTE_VOCAB = 257 };

// Writes a file atomically. Returns 0, or -1 with gpt2_last_error().
static inline int write_whole(const char *path, const uint32_t header[256], const void *body, size_t size) {
    disk_file d;
    int failed = disk_create(&d, path);
    if (!failed) failed = disk_write(&d, header, 256 * sizeof *header);
    if (!failed) failed = disk_write(&d, body, size);
    return disk_finish(&d, failed);
}

// The file stores each token as its length and its bytes.
static inline int write_byte_tokenizer(const char *path) {
    static const uint32_t header[256] = { 20240328, 2, BYTE_VOCAB, BYTE_EOT };
    char tokens[2 * 256 + sizeof END_OF_TEXT];
    for (int i = 0; i < 256; i++) {
        tokens[2 * i] = 1;
        tokens[2 * i + 1] = (char)i;
    }
    tokens[2 * 256] = sizeof END_OF_TEXT - 1;
    memcpy(tokens + 2 * 256 + 1, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    return write_whole(path, header, tokens, sizeof tokens);
}
#endif
