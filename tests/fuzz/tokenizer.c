// Tokenizer files: decodes and prints every token. If every byte is a token, also encodes a text. With a
// valid one, text and prompts are encoded.
#include <string.h>
#include "../../gpt2/bpe.h"
#include "../../gpt2/gpt2_error.h"
#include "../../trainer/generating/prompts.h"
#include "../../trainer/options/options.h"
#include "fuzz.h"

enum { PAIRS = 256 + 6 };  // tokens of byte_pairs

static FILE *nowhere;

static void open_nowhere(void) { FUZZ_MUST(nowhere = fopen("/dev/null", "w")); }

// Fills `file` with a tokenizer of the 256 bytes, some merged tokens, and end-of-text. Returns its length.
static size_t byte_pairs(uint8_t *file) {
    static const char *const pairs[] = { "th", "the", " t", " the", "he", "<|endoftext|>" };
    const uint32_t header[256] = { 20240328, 2, PAIRS, PAIRS - 1 };
    size_t n = sizeof header;
    memcpy(file, header, n);
    for (int i = 0; i < 256; i++) {
        file[n++] = 1;
        file[n++] = (uint8_t)i;
    }
    for (int i = 0; i < 6; i++) {
        file[n++] = (uint8_t)strlen(pairs[i]);
        memcpy(file + n, pairs[i], strlen(pairs[i]));
        n += strlen(pairs[i]);
    }
    return n;
}

static void give_seeds(void) {
    static const char few[] = "\1a\1b\2ab";
    const uint32_t header[256] = { 20240328, 2, 3, 2 };
    uint8_t file[4096];
    memcpy(file, header, sizeof header);
    memcpy(file + sizeof header, few, sizeof few - 1);
    fuzz_seed("few", file, sizeof header + sizeof few - 1);
    fuzz_seed("pairs", file, byte_pairs(file));
}

static const char text[] = "the cat's   hello 12345 \xc3\xa9\xe2\x82\xac zzzz\n\n x the  ";

static void encode(Bpe *b) {
    const uint16_t *tokens;
    int length = 0;
    for (size_t at = 0; at < sizeof text - 1; at += (size_t)length) {
        int n = bpe_next(b, (const uint8_t *)text + at, sizeof text - 1 - at, 1, &length, &tokens);
        FUZZ_MUST(n > 0 && n <= length);
    }
}

static const char *read_tokenizer(const uint8_t *bytes, size_t n) {
    Tokenizer t;
    Bpe *b;
    int length = 0;
    if (tokenizer_init(&t, fuzz_path("tokenizer"))) return gpt2_last_error();
    for (uint32_t i = 0; i < t.vocab_size; i++) {
        FUZZ_MUST(tokenizer_decode(&t, i, &length) && length > 0);
        tokenizer_print(&t, nowhere, i);
    }
    FUZZ_MUST(!tokenizer_decode(&t, t.vocab_size, &length));
    FUZZ_MUST(t.eot_token >= 0 && (uint32_t)t.eot_token < t.vocab_size);
    if (!bpe_create(&b, &t)) encode(b);
    bpe_free(b);
    tokenizer_free(&t);
    return NULL;
}

static const fuzz_damage bad_tokenizers[] = {
    FUZZ_PUT(0, 20240520, 0, "first number is 20240520"),
    FUZZ_PUT(4, 3, 0, "version 3"),
    FUZZ_PUT(4, 1, 0, "vocabulary of 3"),
    FUZZ_PUT(8, 0, 0, "token 2"),
    FUZZ_PUT(8, 4, 0, "cut short"),
    FUZZ_PUT(8, -1u, 0, "cut short"),
    FUZZ_PUT(8, 2, 0, "token 2"),
    FUZZ_PUT(12, 3, 0, "token 3"),
    FUZZ_PUT(8, 3, -1, "ends inside token 2 of 3"),
    FUZZ_PUT(8, 3, 1, "1 bytes follow"),
    FUZZ_PUT(1024, 0x62026101, 0, "ends inside token"),
    FUZZ_PUT(1024, 0x62006101, 0, "length 0"),
};

FUZZ_DEFINE(tokenizer, open_nowhere, give_seeds, .file = "tokenizer", .read = read_tokenizer,
            FUZZ_ROWS(bad_tokenizers));

// -------- text, encoded with the tokenizer above

static Tokenizer with_pairs;
static Bpe *bpe;

static void open_pairs(void) {
    uint8_t file[4096];
    if (bpe) return;
    const char *path = fuzz_file("pairs", file, byte_pairs(file));
    FUZZ_MUST(!tokenizer_init(&with_pairs, path));
    FUZZ_MUST(!bpe_create(&bpe, &with_pairs));
}

static void give_texts(void) {
    fuzz_seed("words", text, sizeof text - 1);
    fuzz_seed("spaces", "  \t\n   a", 8);
}

// The tokens of a word must decode to its bytes.
static void compare_word(const uint8_t *word, int length, const uint16_t *tokens, int n) {
    int at = 0, bytes = 0;
    for (int i = 0; i < n; i++) {
        const char *token = tokenizer_decode(&with_pairs, tokens[i], &bytes);
        FUZZ_MUST(token && at + bytes <= length && !memcmp(word + at, token, (size_t)bytes));
        at += bytes;
    }
    FUZZ_MUST(at == length);
}

static const char *read_text(const uint8_t *bytes, size_t n) {
    const size_t valid = utf8_prefix(bytes, n);
    const uint16_t *tokens;
    int length = 0;
    FUZZ_MUST(valid <= n);
    for (size_t at = 0; at < valid; at += (size_t)length) {
        int found = bpe_next(bpe, bytes + at, valid - at, 1, &length, &tokens);
        FUZZ_MUST(found > 0 && length > 0 && (size_t)length <= valid - at);
        compare_word(bytes + at, length, tokens, found);
    }
    return valid == n ? NULL : "not UTF-8";
}

FUZZ_DEFINE(word_pieces, open_pairs, give_texts, .read = read_text);

// -------- files of prompts: token numbers, or text if the first byte is T

static void give_prompts(void) {
    fuzz_seed("numbers", "1 2 3\n\n 255\n", 12);
    fuzz_seed("text", "TOnce upon\na time\n", 18);
}

typedef struct {
    const char *text;
    Prompts prompts;
} Reading;

static void read_prompts(void *ctx) {
    Reading *r = ctx;
    prompts_read(&r->prompts, r->text);
}

static const char *read_prompt_file(const uint8_t *bytes, size_t n) {
    const int is_text = n && *bytes == 'T';
    char *text = fuzz_text(bytes + is_text, n - (size_t)is_text);
    Reading r = { text, { .bpe = is_text ? bpe : NULL, .eot_token = PAIRS - 1, .V = PAIRS, .T = 256 } };
    opt.prompts = "a file";
    const char *error = fuzz_survives(read_prompts, &r);
    opt.prompts = NULL;
    for (int i = 0; !error && i < r.prompts.first[r.prompts.n]; i++)
        FUZZ_MUST(r.prompts.tokens[i] >= 0 && r.prompts.tokens[i] < PAIRS);
    r.prompts.bpe = NULL;  // all inputs share it
    prompts_free(&r.prompts);
    free(text);
    return error;
}

FUZZ_DEFINE(prompts, open_pairs, give_prompts, .is_text = 1, .read = read_prompt_file, .named = "a file");
