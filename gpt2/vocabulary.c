#include "vocabulary.h"
#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "gpt2_error.h"

static uint32_t *slot_of(const Vocabulary *v, const char *bytes, int n) {
    uint32_t at = (uint32_t)XXH3_64bits(bytes, (size_t)n) & v->mask;
    for (; v->slots[at] != NO_TOKEN; at = (at + 1) & v->mask) {
        int length;
        const char *other = tokenizer_decode(v->t, v->slots[at], &length);
        if (length == n && !memcmp(other, bytes, (size_t)n)) break;
    }
    return v->slots + at;
}

int vocabulary_init(Vocabulary *v, const Tokenizer *t) {
    *v = (Vocabulary){ .t = t, .mask = 1 };
    while (v->mask < UINT32_MAX / 2 && v->mask < 2ull * t->vocab_size) v->mask = 2 * v->mask + 1;
    v->slots = malloc(((size_t)v->mask + 1) * sizeof *v->slots);
    if (!v->slots) return gpt2_fail("no memory to index the tokens");
    memset(v->slots, 0xff, ((size_t)v->mask + 1) * sizeof *v->slots);  // NO_TOKEN
    for (uint32_t token = 0; token < t->vocab_size; token++) {
        int n;
        const char *bytes = tokenizer_decode(t, token, &n);
        uint32_t *slot = slot_of(v, bytes, n);
        if (*slot == NO_TOKEN && (int)token != t->eot_token) *slot = token;
    }
    return 0;
}

uint32_t vocabulary_find(const Vocabulary *v, const char *bytes, int n) { return *slot_of(v, bytes, n); }

void vocabulary_free(Vocabulary *v) {
    free(v->slots);
    v->slots = NULL;
}
