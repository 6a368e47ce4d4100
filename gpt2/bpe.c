// See bpe.h. Three structures make it fast: a table from pairs of tokens to the token that they join into, a
// cache from recent words to their tokens, and a heap of the pairs that can be joined, so that a long word of
// n bytes takes n log n steps.
#include <stdlib.h>
#include <string.h>
#include "gpt2_error.h"
#include "bpe.h"
#include "vocabulary.h"
#ifdef GPT2_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_VOCAB = 65536, CACHED_BYTES = 30, CACHED_TOKENS = 16, CACHE = 1 << 17 };
#define NONE NO_TOKEN

typedef struct {
    uint32_t pair, joined;
} Pair;  // pair: left << 16 | right
typedef struct {
    uint8_t length, count, text[CACHED_BYTES];
    uint16_t tokens[CACHED_TOKENS];
} Word;  // one cache line
typedef struct {
    int prev, next;
    uint32_t token, joined;
} Part;  // of the current word; joined: the token that it makes with the next part, or NONE

struct Bpe {
    pcre2_code *pattern;
    pcre2_match_data *match;
    uint16_t byte_token[256];
    Pair *pairs;  // hash table, open addressing
    uint32_t pair_mask;
    Word *cache;     // (CACHE) a word stays at its hash until another one replaces it
    Part *parts;     // (BPE_MAX_WORD)
    uint64_t *heap;  // (3 * BPE_MAX_WORD) joined << 32 | index of the left part, as a min-heap
    int heap_size;
    uint16_t *tokens;  // (BPE_MAX_WORD)
};

// -------- words

// Unicode's white space instead of \s, because PCRE2's \s includes one more character.
#define SPACE                                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
static const char pattern[] = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE
                              "\\p{L}\\p{N}]++|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";

static int compile_pattern(Bpe *b) {
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[256];
    b->pattern = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_ANCHORED, &error,
                               &at, NULL);
    if (!b->pattern) {
        pcre2_get_error_message(error, why, sizeof why);
        return gpt2_fail("the splitting pattern does not compile at %zu: %s", at, (const char *)why);
    }
    pcre2_jit_compile(b->pattern,
                      PCRE2_JIT_COMPLETE);  // without it, pcre2_match interprets the pattern
    b->match = pcre2_match_data_create_from_pattern(b->pattern, NULL);
    return b->match ? 0 : gpt2_fail("no memory to split text");
}

// Returns the length of the first word in bytes, or -1.
static int64_t word_length(Bpe *b, const uint8_t *text, size_t size) {
    int found = pcre2_match(b->pattern, text, size, 0, PCRE2_NO_UTF_CHECK, b->match, NULL);
    if (found > 0) return (int64_t)pcre2_get_ovector_pointer(b->match)[1];
    return gpt2_fail("the splitting pattern finds no word: PCRE2 returns %d", found);
}

// -------- pairs that make a token

static Pair *pair_at(const Bpe *b, uint32_t pair) {
    uint32_t at = (uint32_t)(pair * 0x9e3779b97f4a7c15ull >> 32) & b->pair_mask;
    while (b->pairs[at].joined != NONE && b->pairs[at].pair != pair) at = (at + 1) & b->pair_mask;
    return b->pairs + at;
}

// Counts the pairs of all tokens; with b->pairs, also stores them there.
static uint32_t collect_pairs(Bpe *b, const Vocabulary *v) {
    uint32_t count = 0;
    for (uint32_t token = 0; token < v->t->vocab_size; token++) {
        int n;
        const char *bytes = tokenizer_decode(v->t, token, &n);
        if (vocabulary_find(v, bytes, n) != token) continue;  // end of text, or duplicate bytes
        for (int i = 1; i < n; i++) {
            uint32_t left = vocabulary_find(v, bytes, i), right = vocabulary_find(v, bytes + i, n - i);
            if (left == NONE || right == NONE) continue;
            count++;
            if (b->pairs) *pair_at(b, left << 16 | right) = (Pair){ left << 16 | right, token };
        }
    }
    return count;
}

static int index_pairs(Bpe *b, const Vocabulary *v) {
    for (int i = 0; i < 256; i++) {
        uint32_t token = vocabulary_find(v, &(char){ (char)i }, 1);
        if (token == NONE)
            return gpt2_fail("it has no token for byte %d; encoding text needs all 256 bytes as tokens", i);
        b->byte_token[i] = (uint16_t)token;
    }
    uint32_t count = collect_pairs(b, v);
    while (b->pair_mask < 2 * count) b->pair_mask = 2 * b->pair_mask + 1;
    Pair *pairs = malloc((b->pair_mask + 1) * sizeof *pairs);
    if (!pairs) return gpt2_fail("no memory for %u pairs of tokens", count);
    memset(pairs, 0xff, (b->pair_mask + 1) * sizeof *pairs);
    b->pairs = pairs;
    collect_pairs(b, v);
    return 0;
}

// -------- joining

static void push(Bpe *b, uint64_t value) {
    int at = b->heap_size++;
    for (; at > 0 && b->heap[(at - 1) / 2] > value; at = (at - 1) / 2) b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = value;
}

static uint64_t pop(Bpe *b) {
    uint64_t top = b->heap[0], value = b->heap[--b->heap_size];
    int at = 0;
    for (int child; (child = 2 * at + 1) < b->heap_size; at = child) {
        if (child + 1 < b->heap_size && b->heap[child + 1] < b->heap[child]) child++;
        if (b->heap[child] >= value) break;
        b->heap[at] = b->heap[child];
    }
    b->heap[at] = value;
    return top;
}

// Looks up the token that part i and the next part make. Called after either has changed.
static void look_up(Bpe *b, int i) {
    Part *p = b->parts + i;
    p->joined = p->next < 0 ? NONE : pair_at(b, p->token << 16 | b->parts[p->next].token)->joined;
    if (p->joined != NONE) push(b, (uint64_t)p->joined << 32 | (uint32_t)i);
}

// Replaces the part with its joined token, and removes the next part.
static void join(Bpe *b, int i) {
    Part *p = b->parts + i, *gone = b->parts + p->next;
    p->token = p->joined;
    p->next = gone->next;
    if (gone->next >= 0) b->parts[gone->next].prev = i;
    gone->joined = NONE;  // its entries in the heap are stale
    look_up(b, i);
    if (p->prev >= 0) look_up(b, p->prev);
}

// Encodes one word into b->tokens.
static int encode_word(Bpe *b, const uint8_t *word, int n) {
    b->heap_size = 0;
    for (int i = 0; i < n; i++)
        b->parts[i] = (Part){ i - 1, i + 1 < n ? i + 1 : -1, b->byte_token[word[i]], NONE };
    for (int i = 0; i < n; i++) look_up(b, i);
    while (b->heap_size) {
        uint64_t best = pop(b);
        int i = (int)(uint32_t)best;
        if (b->parts[i].joined == best >> 32) join(b, i);  // else one of the two was joined meanwhile
    }
    int count = 0;
    for (int i = 0; i >= 0; i = b->parts[i].next) b->tokens[count++] = (uint16_t)b->parts[i].token;
    return count;
}

int bpe_next(Bpe *b, const uint8_t *text, size_t size, int last, int *length, const uint16_t **tokens) {
    if (!size) return 0;
    int64_t n = word_length(b, text, size);
    if (n < 0) return -1;
    if (n > BPE_MAX_WORD)
        return gpt2_fail("a word of more than %d bytes; byte-level tokens accept this text", BPE_MAX_WORD);
    if (!last && (size_t)n + BPE_MARGIN > size) return 0;
    *length = (int)n;
    *tokens = b->tokens;
    if (n > CACHED_BYTES) return encode_word(b, text, (int)n);

    Word *w = b->cache + XXH3_64bits(text, (size_t)n) % CACHE;
    if (w->length != n || memcmp(w->text, text, (size_t)n)) {
        int count = encode_word(b, text, (int)n);
        if (count > CACHED_TOKENS) return count;
        w->length = (uint8_t)n;
        w->count = (uint8_t)count;
        memcpy(w->text, text, (size_t)n);
        memcpy(w->tokens, b->tokens, (size_t)count * sizeof *w->tokens);
    }
    *tokens = w->tokens;
    return w->count;
}

// -------- creation and destruction

static int fill(Bpe *b, const Tokenizer *t) {
    if (t->vocab_size > MAX_VOCAB)
        return gpt2_fail("it has %u tokens; shards of 16-bit tokens can hold %d different ones",
                         t->vocab_size, MAX_VOCAB);
    b->pair_mask = 1;
    b->cache = calloc(CACHE, sizeof *b->cache);
    b->parts = malloc(BPE_MAX_WORD * sizeof *b->parts);
    b->heap = malloc(3ull * BPE_MAX_WORD * sizeof *b->heap);
    b->tokens = malloc(BPE_MAX_WORD * sizeof *b->tokens);
    if (!b->cache || !b->parts || !b->heap || !b->tokens) return gpt2_fail("no memory to encode text");
    if (compile_pattern(b)) return -1;
    Vocabulary v;
    int failed = vocabulary_init(&v, t);
    if (!failed) failed = index_pairs(b, &v);
    vocabulary_free(&v);
    return failed;
}

int bpe_create(Bpe **b, const Tokenizer *t) {
    if (!(*b = calloc(1, sizeof **b))) return gpt2_fail("no memory to encode text");
    if (!fill(*b, t)) return 0;
    bpe_free(*b);
    *b = NULL;
    return -1;
}

void bpe_free(Bpe *b) {
    if (!b) return;
    pcre2_match_data_free(b->match);
    pcre2_code_free(b->pattern);
    free(b->pairs);
    free(b->cache);
    free(b->parts);
    free(b->heap);
    free(b->tokens);
    free(b);
}

#else
int bpe_create(Bpe **b, const Tokenizer *t) {
    *b = NULL;
    return gpt2_fail("this program was built without PCRE2, which splits text into words; "
                     "scripts/install_deps.sh installs it");
}

void bpe_free(Bpe *b) {}

int bpe_next(Bpe *b, const uint8_t *text, size_t size, int last, int *length, const uint16_t **tokens) {
    return gpt2_fail("this program was built without PCRE2");
}
#endif

// -------- UTF-8

// Returns the length of the first character, or 0 if it is invalid or incomplete. A valid one has the
// shortest form, is not a surrogate, and is at most U+10FFFF.
static size_t character(const uint8_t *p, size_t size) {
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (n > size) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0)) return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] >= 0x90)) return 0;
    return n;
}

size_t utf8_prefix(const uint8_t *text, size_t size) {
    size_t at = 0, n = 1;
    while (at < size && n) {
        uint64_t eight;  // most text is ASCII
        while (size - at >= sizeof eight &&
               (memcpy(&eight, text + at, sizeof eight), !(eight & 0x8080808080808080ull)))
            at += sizeof eight;
        if (at < size) at += n = character(text + at, size - at);
    }
    return at;
}
