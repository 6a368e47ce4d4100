#include "prompts.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/text_file.h"
#include "../options/options.h"
#include "../running/run.h"

// -------- tokens of a prompt

// Returns "option --prompts FILE: line 3", valid until the next call.
static const char *where(int line) {
    static char text[PATH_MAX + 64];
    if (opt.prompt) return "option --prompt";
    snprintf(text, sizeof text, "option --prompts %s: line %d", opt.prompts, line);
    return text;
}

static int read_text(Bpe *bpe, const char *line, size_t bytes, int number, int *tokens) {
    const uint8_t *text = (const uint8_t *)line;
    if (utf8_prefix(text, bytes) != bytes) return gpt2_fail("%s is not UTF-8", where(number));
    int n = 0, length;
    const uint16_t *word;
    for (size_t at = 0; at < bytes; at += length) {
        int count = bpe_next(bpe, text + at, bytes - at, 1, &length, &word);
        if (count < 0) return gpt2_fail("%s: %s", where(number), gpt2_last_error());
        for (int i = 0; i < count; i++) tokens[n++] = word[i];
    }
    return n;
}

static int read_numbers(const char *line, size_t bytes, int V, int number, int *tokens) {
    const char *end = line + bytes;
    int n = 0;
    for (line += strspn(line, " \t\r"); line < end; line += strspn(line, " \t\r")) {
        char *after;
        long token = strtol(line, &after, 10);
        // strtol skips other white space too, even the end of the line.
        if (after == line || isspace((unsigned char)*line) || !strchr(" \t\r\n", *after))
            return gpt2_fail("%s: \"%.*s\" is not a token number; text needs --tokenizer", where(number),
                             (int)strcspn(line, " \t\r\n"), line);
        if (token < 0 || token >= V)
            return gpt2_fail("%s: token %ld is outside the vocabulary, 0 to %d", where(number), token, V - 1);
        tokens[n++] = (int)token;
        line = after;
    }
    return n;
}

// Fills in at most one token per byte, or the end of text for an empty prompt. Returns their number, at most
// p->T, or -1 with gpt2_last_error().
static int read_prompt(const Prompts *p, const char *text, size_t bytes, int number, int *tokens) {
    if (bytes && text[bytes - 1] == '\r') bytes--;  // of a line that ends in CRLF
    const int n = p->bpe ? read_text(p->bpe, text, bytes, number, tokens)
                         : read_numbers(text, bytes, p->V, number, tokens);
    if (n > p->T)
        return gpt2_fail("%s: its %d tokens do not fit into %d positions (-t, limited by the model); shorten "
                         "the prompt",
                         where(number), n, p->T);
    if (!n) tokens[0] = p->eot_token;
    return n ? n : 1;
}

// -------- all prompts at once

static int count_lines(const char *text) {
    int n = 0;
    for (const char *p = text; *p; p++) n += *p == '\n' || !p[1];
    return n;
}

// Prints why a line cannot be answered. The other lines still are.
static void note_failed(void) { note0("train_gpt2_zero: %s\n", gpt2_last_error()); }

static void allocate(Prompts *p, size_t tokens, int prompts) {
    p->tokens = malloc_check(tokens * sizeof *p->tokens);
    p->first = malloc_check((prompts + 1) * sizeof *p->first);
    p->lines = malloc_check(prompts * sizeof *p->lines);
    p->n = p->longest = p->failed = p->first[0] = 0;
}

static void add_prompt(Prompts *p, int line, int tokens) {
    if (tokens > p->longest) p->longest = tokens;
    p->lines[p->n] = line;
    p->first[p->n + 1] = p->first[p->n] + tokens;
    p->n++;
}

void prompts_read(Prompts *p, const char *text) {
    const int lines = count_lines(text);
    if (!lines) die("option --prompts %s: the file has no prompts", opt.prompts);
    allocate(p, strlen(text), lines);
    for (int line = 1; line <= lines; line++) {
        const size_t bytes = strcspn(text, "\n");
        const int n = read_prompt(p, text, bytes, line, p->tokens + p->first[p->n]);
        if (n > 0) add_prompt(p, line, n);
        if (n < 0 && p->n + lines - line == 0) die("%s", gpt2_last_error());  // there is no other line
        if (n < 0) note_failed();
        p->failed |= n < 0;
        text += bytes + (text[bytes] == '\n');
    }
}

static void read_file(Prompts *p) {
    if (access(opt.prompts, R_OK)) die("option --prompts: %s: %s", opt.prompts, strerror(errno));
    char *text = text_file_read(opt.prompts);
    if (!text) die("option --prompts: %s; --prompts - reads standard input", gpt2_last_error());
    prompts_read(p, text);
    free(text);
}

static void read_argument(Prompts *p) {
    allocate(p, strlen(opt.prompt) + 1, 1);
    const int n = read_prompt(p, opt.prompt, strlen(opt.prompt), 1, p->tokens);
    gpt2_check(n < 0);
    add_prompt(p, 1, n);
}

void prompts_open(Prompts *p, const Tokenizer *tokenizer, int V, int T) {
    const int waits = prompts_arrive() && !opt.prompt;  // for lines of standard input
    *p = (Prompts){ .eot_token = tokenizer->eot_token, .V = V, .T = T };
    if ((run.rank == 0 || !waits) && tokenizer->vocab_size && bpe_create(&p->bpe, tokenizer))
        die("options --prompt and --prompts: text cannot be encoded: %s", gpt2_last_error());
    if (waits) {
        allocate(p, T, 1);
        add_prompt(p, 0, T);
        return;
    }
    opt.prompt ? read_argument(p) : read_file(p);
    bpe_free(p->bpe);  // GPT-2's takes 50 MiB
    p->bpe = NULL;
}

void prompts_free(Prompts *p) {
    bpe_free(p->bpe);
    free(p->tokens);
    free(p->first);
    free(p->lines);
}

// -------- lines of standard input, without stdio, which cannot report whether its buffer has a whole line

static struct {
    char *text;
    size_t n, room;  // bytes read, and allocated
    size_t used;     // bytes of the last line returned
    int ended;
} input;

// Waits for at most `seconds` for more input.
static void read_more(double seconds) {
    struct pollfd ready = { STDIN_FILENO, POLLIN, 0 };
    if (poll(&ready, 1, (int)(seconds * 1e3)) <= 0) return;
    if (input.n + 1 >= input.room) {
        input.room = 2 * input.room + 4096;
        input.text = realloc(input.text, input.room);
        if (!input.text) die("out of memory for a line of standard input");
    }
    const ssize_t n = read(STDIN_FILENO, input.text + input.n, input.room - input.n - 1);
    if (n < 0 && errno != EINTR && errno != EAGAIN) die("standard input: %s", strerror(errno));
    if (n > 0) input.n += (size_t)n;
    input.ended = n == 0;
}

static char *end_of_line(void) { return input.n ? memchr(input.text, '\n', input.n) : NULL; }

// Returns the next line, valid until the next call, and its length without the newline; NULL: no complete
// line yet, or the input has ended.
static const char *next_line(double seconds, size_t *bytes) {
    input.n -= input.used;
    if (input.n && input.used) memmove(input.text, input.text + input.used, input.n);
    input.used = 0;
    if (!end_of_line() && !input.ended) read_more(seconds);
    char *end = end_of_line();
    if (!end && !(input.ended && input.n)) return NULL;
    *bytes = end ? (size_t)(end - input.text) : input.n;
    input.used = *bytes + (end != NULL);
    input.text[*bytes] = 0;
    return input.text;
}

// -------- one after the other

// Returns the number of tokens in the next line; 0: no line yet, or one that cannot be answered; -1: the
// input has ended.
static int take_line(Prompts *p, double seconds) {
    size_t bytes;
    const char *line = next_line(seconds, &bytes);
    if (!line) return input.ended ? -1 : 0;
    int *tokens = malloc_check((bytes + 1) * sizeof *tokens);
    const int n = read_prompt(p, line, bytes, ++p->lines[0], tokens);
    if (n > 0) memcpy(p->tokens, tokens, n * sizeof *tokens);
    if (n < 0) note_failed();
    p->failed |= n < 0;
    free(tokens);
    return n > 0 ? n : 0;
}

int prompts_next(Prompts *p) {
    // Rank 0 contacts the other ranks at intervals well below their timeout.
    const double pause_s = opt.zero.comm.timeout_s < 4 ? opt.zero.comm.timeout_s / 4 : 1;
    int n = 0;
    if (opt.prompt) return !p->taken++;
    if (isatty(STDIN_FILENO)) print0("> ");
    while (!n) {
        if (run.rank == 0) n = take_line(p, pause_s);
        zero_check(zero_broadcast(run.z, 0, &n, sizeof n));
    }
    if (n < 0 && isatty(STDIN_FILENO)) print0("\n");
    if (n < 0) return 0;
    p->first[1] = n;
    zero_check(zero_broadcast(run.z, 0, p->lines, sizeof *p->lines));
    zero_check(zero_broadcast(run.z, 0, p->tokens, n * sizeof *p->tokens));
    return 1;
}
