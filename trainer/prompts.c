#include "prompts.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/bpe.h"
#include "../gpt2/gpt2_error.h"
#include "../gpt2/text_file.h"
#include "die.h"
#include "options.h"

// The source of a line's tokens.
typedef struct {
    const Tokenizer *tokenizer;
    Bpe *bpe;  // NULL: lines are numbers
    int V, line;
} Reader;

static int read_text(const Reader *r, const char *line, size_t bytes, int *tokens) {
    const uint8_t *text = (const uint8_t *)line;
    if (utf8_prefix(text, bytes) != bytes)
        die("option --prompts %s: line %d is not UTF-8", opt.prompts, r->line);
    int n = 0, length;
    const uint16_t *word;
    for (size_t at = 0; at < bytes; at += length) {
        int count = bpe_next(r->bpe, text + at, bytes - at, 1, &length, &word);
        if (count < 0) die("option --prompts %s: line %d: %s", opt.prompts, r->line, gpt2_last_error());
        for (int i = 0; i < count; i++) tokens[n++] = word[i];
    }
    return n;
}

static int read_numbers(const Reader *r, const char *line, const char *end, int *tokens) {
    int n = 0;
    for (line += strspn(line, " \t\r"); line < end; line += strspn(line, " \t\r")) {
        char *after;
        long token = strtol(line, &after, 10);
        if (after == line || !strchr(" \t\r\n", *after))
            die("option --prompts %s: line %d: \"%.*s\" is not a number; without a tokenizer (--tokenizer) "
                "prompts are token numbers",
                opt.prompts, r->line, (int)strcspn(line, " \t\r\n"), line);
        if (token < 0 || token >= r->V)
            die("option --prompts %s: line %d: token %ld is outside the vocabulary, 0 to %d", opt.prompts,
                r->line, token, r->V - 1);
        tokens[n++] = (int)token;
        line = after;
    }
    return n;
}

static void add_prompt(Prompts *p, const Reader *r, const char *line, size_t bytes) {
    int *tokens = malloc_check((bytes + 1) * sizeof *tokens);  // a token has at least one byte
    int n = r->bpe ? read_text(r, line, bytes, tokens) : read_numbers(r, line, line + bytes, tokens);
    if (!n) tokens[n++] = r->tokenizer->eot_token;
    p->tokens[p->n] = tokens;
    p->lengths[p->n++] = n;
    p->total += n;
    if (n > p->longest) p->longest = n;
}

static int count_lines(const char *text) {
    int n = 0;
    for (const char *p = text; *p; p++) n += *p == '\n' || !p[1];
    return n;
}

// The last token of an answer is not read back.
static void check_lengths(const Prompts *p, int T) {
    for (int i = 0; i < p->n; i++)
        if (p->lengths[i] + opt.sample_tokens - 1 > T)
            die("option --prompts %s: line %d: its %d tokens and an answer of %d (-g) do not fit into %d "
                "positions (-t, at most the model's); shorten it or lower -g",
                opt.prompts, i + 1, p->lengths[i], opt.sample_tokens, T);
}

void prompts_read(Prompts *p, const Tokenizer *tokenizer, int V, int T) {
    Reader r = { .tokenizer = tokenizer, .V = V };
    if (access(opt.prompts, R_OK)) die("option --prompts %s: the file cannot be read", opt.prompts);
    char *text = text_file_read(opt.prompts);
    if (!text) die("option --prompts: %s", gpt2_last_error());
    if (tokenizer->vocab_size && bpe_create(&r.bpe, tokenizer))
        die("option --prompts: prompts are text, because there is a tokenizer: %s", gpt2_last_error());
    const int lines = count_lines(text);
    if (!lines) die("option --prompts %s: there is no prompt in it", opt.prompts);
    *p = (Prompts){ .lengths = malloc_check(lines * sizeof *p->lengths),
                    .tokens = malloc_check(lines * sizeof *p->tokens) };
    const char *line = text;
    for (r.line = 1; r.line <= lines; r.line++) {
        size_t bytes = strcspn(line, "\n");
        add_prompt(p, &r, line, bytes);
        line += bytes + (line[bytes] == '\n');
    }
    bpe_free(r.bpe);
    free(text);
    check_lengths(p, T);
}

void prompts_free(Prompts *p) {
    for (int i = 0; i < p->n; i++) free(p->tokens[i]);
    free(p->tokens);
    free(p->lengths);
}
