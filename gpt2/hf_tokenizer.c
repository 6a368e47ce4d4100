// The tokenizer's files in transformers' format: vocab.json, merges.txt, tokenizer_config.json.
//
// These files write each byte as a character: a byte that is printable in Latin-1 as itself, any other as
// U+0100 or above. llm.c's tokenizer file has no merges. To find the merge that made a token, this file joins
// the token's bytes using only merges of smaller numbers: if the vocabulary is in the order of its merges,
// two parts remain.
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2_error.h"
#include "hf.h"
#include "text_file.h"
#include "vocabulary.h"

enum { LONGEST = 255, TEXT = 2 * LONGEST + 1 };  // bytes of a token, and of its text

static int is_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

// Returns the character of a byte, from U+0021 to U+0143.
static int character_of(int byte) {
    int others = 0;
    if (is_itself(byte)) return byte;
    for (int b = 0; b < byte; b++) others += !is_itself(b);
    return 256 + others;
}

static const char *text_of(char text[TEXT], const char *bytes, int n) {
    char *p = text;
    for (int i = 0; i < n; i++) {
        const int c = character_of((unsigned char)bytes[i]);
        if (c >= 0x80) *p++ = (char)(0xc0 | c >> 6);
        *p++ = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    *p = 0;
    return text;
}

static const char *text_of_token(char text[TEXT], const Tokenizer *t, uint32_t token) {
    int n;
    const char *bytes = tokenizer_decode(t, token, &n);
    return text_of(text, bytes, n);
}

// -------- merges

// A token's bytes in parts: part i is [ends[i-1], ends[i]).
typedef struct {
    const char *bytes;
    int ends[LONGEST + 1];  // ends[0] is 0
    int n;
} Parts;

// Joins parts i and i + 1, counted from 1.
static void join(Parts *p, int i) {
    memmove(&p->ends[i], &p->ends[i + 1], (size_t)(p->n - i) * sizeof *p->ends);
    p->n--;
}

// Finds the pair that makes the token with the smallest number below `limit` (on a tie, the leftmost); 0:
// none.
static int best_pair(const Parts *p, const Vocabulary *v, uint32_t limit) {
    int best = 0;
    for (int i = 1; i < p->n; i++) {
        const int begin = p->ends[i - 1];
        const uint32_t token = vocabulary_find(v, p->bytes + begin, p->ends[i + 1] - begin);
        if (token >= limit) continue;
        limit = token;
        best = i;
    }
    return best;
}

static int parts_of(Parts *p, const Vocabulary *v, uint32_t token) {
    p->bytes = tokenizer_decode(v->t, token, &p->n);
    for (int i = 0; i <= p->n; i++) p->ends[i] = i;
    for (int i = best_pair(p, v, token); i; i = best_pair(p, v, token)) join(p, i);
    return p->n;
}

static int print_merge(FILE *f, const Vocabulary *v, uint32_t token) {
    char left[TEXT], right[TEXT];
    Parts p;
    int n;
    const char *bytes = tokenizer_decode(v->t, token, &n);
    if ((int)token == v->t->eot_token) return 0;
    if (vocabulary_find(v, bytes, n) != token)
        return gpt2_fail("token %u has the same bytes as another one, so vocab.json cannot hold both", token);
    if (n == 1) return 0;
    if (parts_of(&p, v, token) != 2)
        return gpt2_fail("token %u does not consist of two lower-numbered tokens, so it has no merge", token);
    text_of(left, bytes, p.ends[1]);
    text_of(right, bytes + p.ends[1], n - p.ends[1]);
    fprintf(f, "%s %s\n", left, right);
    return 0;
}

static int print_merges(FILE *f, const Vocabulary *v) {
    for (int b = 0; b < 256; b++)
        if (vocabulary_find(v, &(char){ (char)b }, 1) == NO_TOKEN)
            return gpt2_fail("byte %d is not a token, but a vocabulary of merges begins with all 256", b);
    fprintf(f, "#version: 0.2\n");
    for (uint32_t token = 0; token < v->t->vocab_size; token++)
        if (print_merge(f, v, token)) return -1;
    return 0;
}

static int write_merges(const char *path, const Tokenizer *t) {
    char *text = NULL;
    size_t bytes;
    Vocabulary v;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) return gpt2_fail("%s: no memory for it", path);
    int failed = vocabulary_init(&v, t);
    if (!failed) failed = print_merges(f, &v);
    vocabulary_free(&v);
    if (ferror(f) && !failed) failed = gpt2_fail("no memory for the merges");
    if (fclose(f) && !failed) failed = gpt2_fail("%s: no memory for it", path);
    if (!failed) failed = text_file_write(path, text);
    free(text);
    return failed;
}

// -------- the other files

// Returns NULL if out of memory.
static json_t *describe_vocabulary(const Tokenizer *t) {
    char text[TEXT];
    json_t *root = json_object();
    int failed = !root;
    for (uint32_t token = 0; token < t->vocab_size; token++)
        failed |= json_object_set_new(root, text_of_token(text, t, token), json_integer(token));
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

int hf_tokenizer_write(const char *folder, const Tokenizer *t, const GPT2Config *config) {
    char path[PATH_MAX], eot[TEXT];
    text_of_token(eot, t, (uint32_t)t->eot_token);
    if (hf_path(path, sizeof path, folder, "merges.txt") || write_merges(path, t)) return -1;
    if (hf_json_write(folder, "vocab.json", describe_vocabulary(t))) return -1;
    return hf_json_write(folder, "tokenizer_config.json",
                         json_pack("{s:s, s:i, s:b, s:s, s:s, s:s}", "tokenizer_class", "GPT2Tokenizer",
                                   "model_max_length", config->max_seq_len, "add_prefix_space", 0,
                                   "bos_token", eot, "eos_token", eot, "unk_token", eot));
}
