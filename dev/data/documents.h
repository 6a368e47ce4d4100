// Texts to tokens, and JSON lines, for the programs that convert data. On failure, functions return -1 and
// set gpt2_last_error().
#ifndef DOCUMENTS_H
#define DOCUMENTS_H
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "gpt2/bpe.h"
#include "gpt2/gpt2_error.h"
#include "gpt2/tokenizer.h"

// Opens GPT-2's encoding with the tokens of a tokenizer.bin.
static inline int open_encoding(Bpe **bpe, const char *path, uint16_t *eot) {
    Tokenizer t;
    if (tokenizer_init(&t, path)) return -1;
    *eot = (uint16_t)t.eot_token;
    const int failed = bpe_create(bpe, &t) ? gpt2_fail("%s: %s", path, gpt2_last_error()) : 0;
    tokenizer_free(&t);
    return failed;
}

// As bpe_next; without an encoding, one token per byte.
static inline int first_tokens(Bpe *bpe, const uint8_t *text, size_t size, int last, int *length,
                               const uint16_t **tokens) {
    static uint16_t byte;
    if (bpe) return bpe_next(bpe, text, size, last, length, tokens);
    byte = *text;
    *length = 1;
    *tokens = &byte;
    return 1;
}

// A file with one JSON object per line. Set path and f; at the end, free `line`.
typedef struct {
    const char *path;
    FILE *f;
    char *line;  // the latest
    size_t room;
    long long at, bytes;  // where it begins in the file, and its length
} JsonLines;

// Returns 1 with the next line's object, which the caller releases, 0 at the end, or -1.
static inline int next_object(JsonLines *l, json_t **object) {
    json_error_t error;
    *object = NULL;
    l->at += l->bytes;
    const ssize_t bytes = getline(&l->line, &l->room, l->f);
    l->bytes = bytes < 0 ? 0 : bytes;
    if (bytes < 0 && feof(l->f)) return 0;
    if (bytes < 0) return gpt2_fail("%s: cannot read: %s", l->path, strerror(errno));
    *object = json_loadb(l->line, (size_t)bytes, JSON_ALLOW_NUL, &error);
    if (*object) return 1;
    return gpt2_fail("%s: byte %lld: %s; expected one JSON object per line", l->path, l->at + error.position,
                     error.text);
}

#endif
