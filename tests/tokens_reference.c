// The reference for tests/test_tokens.sh: computes make_tokens' output in the simplest way, however slow.
//
//     tokens_reference tokenizer FILE [bytes] [tokens]    writes a made-up tokenizer of `tokens` tokens; its
//                                                         first 256 use `bytes` different bytes (256)
//     tokens_reference text FILE                          writes a text of awkward pieces
//     tokens_reference encode TOKENIZER TEXT...           prints the tokens of these files, one per line,
//                                                         with end-of-text before each file
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
typedef enum { LETTER, NUMBER, SPACE, OTHER } Kind;

// The text's characters. U+180E and the control characters are not white space, the accent is not a letter.
static const char *const of_kind[] = {
    [LETTER] = "aehlnrstvdmSéßжςא漢かʰ\xf0\x90\x90\x80",
    [NUMBER] = "012²½Ⅷ٣",
    [SPACE] = " \n\t\r\v\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x83\xe2\x80\xa8\xe3\x80\x80",
    [OTHER] = "'!._|\x01\x1c\xcc\x81\xe1\xa0\x8e\xe2\x80\x8b\xf0\x9f\x98\x80",
};
static struct {
    char text[5];
    Kind kind;
} characters[64];
static int num_characters;

static void split_characters(void) {
    for (Kind kind = LETTER; kind <= OTHER; kind++)
        for (const char *p = of_kind[kind]; *p; num_characters++) {
            int n = 0;
            do characters[num_characters].text[n++] = *p++;
            while ((*p & 0xc0) == 0x80);
            characters[num_characters].kind = kind;
        }
}

static const char *const pieces[] = { " ",    " ",     "  ",     "\n",     "\n\n",          "'s",
                                      "'ll",  "'ve ",  " 're",   "'r",     "'l ",           "''t",
                                      " the", " then", " there", "hehehe", "aaaaaaa",       "\r\n",
                                      "   a", " \n a", "1212",   " 12",    "<|endoftext|>", "!._",
                                      "日本" };

// The merged tokens, in order of rank. Some overlap, some are unreachable, and one occurs twice.
static const char *const merged[] = { "he",       " t",       "th",           " the", "the",  "aa",
                                      "aaaa",     "hehe",     "re",           "ere",  "'l",   "'ll",
                                      "\xc3\xa9", "\xe6\xbc", "\xe6\xbc\xa2", "12",   "1212", "  ",
                                      "\n\n",     " a",       "n!",           "the",  "aaa",  "\xf0\x9f",
                                      "!.",       "s s" };

static void *check(void *p) {
    if (p) return p;
    perror("tokens_reference");
    exit(EXIT_FAILURE);
}

// -------- writing the inputs

static void write_tokenizer(const char *path, int bytes, int tokens) {
    FILE *f = check(fopen(path, "wb"));
    // The end-of-text token has the bytes "!._", but that text must not be encoded as end-of-text.
    const uint32_t header[256] = { 20240328, 2, (uint32_t)tokens, 256 };
    fwrite(header, sizeof header, 1, f);
    for (int i = 0; i < tokens; i++) {
        char byte = (char)(bytes == 256 ? i * 7 + 3 : i % bytes), number[16];  // token i is not byte i
        const char *text = i == 256                  ? "!._"
                           : i < 256                 ? &byte
                           : i - 257 < COUNT(merged) ? merged[i - 257]
                                                     : number;
        snprintf(number, sizeof number, "#%d", i);
        int n = i < 256 ? 1 : (int)strlen(text);
        fputc(n, f);
        fwrite(text, 1, (size_t)n, f);
    }
    if (fclose(f)) check(NULL);
}

static int choose(int n) {
    static uint32_t state = 12345;
    state = state * 1664525 + 1013904223;
    return (int)((state >> 8) % (uint32_t)n);
}

static void write_text(const char *path) {
    FILE *f = check(fopen(path, "wb"));
    for (int i = 0; i < 20000; i++) {
        if (choose(2))
            fputs(pieces[choose(COUNT(pieces))], f);
        else if (choose(2))
            for (int n = 4 + choose(3); n > 0; n--)
                fputs(characters[choose(12)].text, f);  // few characters, so that many words share a hash
        else
            for (int n = choose(4) ? 1 + choose(3) : choose(50), c = 0; n > 0; n--) {
                if (!c || !choose(3)) c = choose(num_characters);
                fputs(characters[c].text, f);
            }
    }
    fputs("the end \n ", f);
    if (fclose(f)) check(NULL);
}

// -------- encoding

static unsigned char *tokens[65536];  // length byte, then bytes
static int num_tokens, eot;

static unsigned char *read_file(const char *path, int *size) {
    FILE *f = check(fopen(path, "rb"));
    unsigned char *bytes = check(calloc(1, 1 << 24));
    *size = (int)fread(bytes, 1, 1 << 24, f);
    fclose(f);
    return bytes;
}

static void read_tokenizer(const char *path) {
    int size;
    unsigned char *bytes = read_file(path, &size);
    num_tokens = (int)((uint32_t *)bytes)[2];
    eot = (int)((uint32_t *)bytes)[3];
    bytes += 1024;
    for (int i = 0; i < num_tokens; bytes += 1 + *bytes, i++) tokens[i] = bytes;
}

static int token_of(const unsigned char *bytes, int n) {
    for (int i = 0; i < num_tokens; i++)
        if (i != eot && *tokens[i] == n && !memcmp(tokens[i] + 1, bytes, (size_t)n)) return i;
    return -1;
}

// Joins the neighbours that form the lowest-numbered token until none form a token, and prints the result.
static void encode_word(const unsigned char *word, int n) {
    int *start = check(malloc((size_t)(n + 1) * sizeof *start)), parts = n;  // part i begins at start[i]
    for (int i = 0; i <= n; i++) start[i] = i;
    for (;;) {
        int best = -1, at = 0;
        for (int i = 0; i + 1 < parts; i++) {
            int token = token_of(word + start[i], start[i + 2] - start[i]);
            if (token < 0 || (best >= 0 && token >= best)) continue;
            best = token;
            at = i;
        }
        if (best < 0) break;
        memmove(start + at + 1, start + at + 2, (size_t)(parts - at - 1) * sizeof *start);
        parts--;
    }
    for (int i = 0; i < parts; i++) printf("%d\n", token_of(word + start[i], start[i + 1] - start[i]));
    free(start);
}

// Returns the index in `characters` of the character at p.
static int character(const unsigned char *p) {
    for (int i = 0; i < num_characters; i++)
        if (!strncmp((const char *)p, characters[i].text, strlen(characters[i].text))) return i;
    // The pieces contain a few characters that the table lacks. A character of the same kind replaces them.
    return *p >= 0x80 ? character((const unsigned char *)"漢")
                      : character((const unsigned char *)(strchr("<>", *p) ? "!" : "a"));
}
static Kind kind(const unsigned char *p) { return characters[character(p)].kind; }
static int width(const unsigned char *p) { return (int)strlen(characters[character(p)].text); }

// Returns the length in bytes of the first word, by GPT-2's rules. A word is 's or a similar suffix; a run of
// letters, of numbers or of other characters, with the space before it; or a run of white space, without its
// last character if something else follows.
static int word_length(const unsigned char *p, const unsigned char *end) {
    static const char *const suffixes[] = { "'s", "'d", "'m", "'t", "'ll", "'ve", "'re" };
    for (int i = 0; i < COUNT(suffixes); i++)
        if (!strncmp((const char *)p, suffixes[i], strlen(suffixes[i]))) return (int)strlen(suffixes[i]);
    const unsigned char *run = p + (*p == ' ' && p + 1 < end && kind(p + 1) != SPACE), *q = run, *last = run;
    while (q < end && kind(q) == kind(run)) {
        last = q;
        q += width(q);
    }
    return (int)((kind(run) == SPACE && q < end && last > p ? last : q) - p);
}

int main(int argc, char **argv) {
    split_characters();
    if (argc >= 3 && !strcmp(argv[1], "tokenizer")) {
        write_tokenizer(argv[2], argc > 3 ? atoi(argv[3]) : 256,
                        argc > 4 ? atoi(argv[4]) : 257 + COUNT(merged));
    } else if (argc == 3 && !strcmp(argv[1], "text")) {
        write_text(argv[2]);
    } else if (argc >= 4 && !strcmp(argv[1], "encode")) {
        read_tokenizer(argv[2]);
        for (int i = 3; i < argc; i++) {
            int size;
            const unsigned char *p = read_file(argv[i], &size), *end = p + size;
            printf("%d\n", eot);
            for (int n; p < end; p += n) encode_word(p, n = word_length(p, end));
        }
    } else {
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
