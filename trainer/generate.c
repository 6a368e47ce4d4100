#include "generate.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "../gpt2/rand.h"
#include "../gpt2/text_file.h"
#include "folder.h"
#include "inputs.h"
#include "options.h"
#include "report.h"
#include "run.h"

// --------
// rows

void generation_begin(Generation *g, const GPT2 *model) {
    const int tokens = model->B * model->T;
    *g = (Generation){ .V = model->config.vocab_size, .T = model->cache_T };
    g->rows = malloc_check(model->cache_rows * sizeof *g->rows);
    g->logits = malloc_check((size_t)model->cache_rows * g->V * sizeof *g->logits);
    g->pass.tokens = malloc_check(tokens * sizeof *g->pass.tokens);
    g->pass.spans = malloc_check(model->cache_rows * sizeof *g->pass.spans);
}

void generation_add(Generation *g, const int *tokens, int n, int total, uint64_t seed) {
    GenerationRow row = { .length = n, .total = total, .random = 1337 + seed };
    row.room = layers_cache_positions(total - 1 < g->T ? total - 1 : g->T);
    if (g->n_rows) row.begin = g->rows[g->n_rows - 1].begin + g->rows[g->n_rows - 1].room;
    row.tokens = malloc_check(total * sizeof *row.tokens);
    memcpy(row.tokens, tokens, n * sizeof *tokens);
    g->rows[g->n_rows++] = row;
}

void generation_end(Generation *g) {
    for (int r = 0; r < g->n_rows; r++) free(g->rows[r].tokens);
    free(g->rows);
    free(g->logits);
    free(g->pass.tokens);
    free(g->pass.spans);
}

// --------
// passes

// A row longer than T drops its first tokens. That shifts all positions, so the cache must be rebuilt.
static void slide(GenerationRow *row, int T) {
    if (row->length - row->first <= T) return;
    row->first = row->length - T;
    row->cached = 0;
}

int generation_next(Generation *g) {
    CachedPass *p = &g->pass;
    p->n = p->n_spans = 0;
    for (int r = 0; r < g->n_rows; r++) {
        GenerationRow *row = &g->rows[r];
        if (row->length == row->total) continue;
        slide(row, g->T);
        int n = row->length - row->first - row->cached;
        memcpy(p->tokens + p->n, row->tokens + row->first + row->cached, n * sizeof *p->tokens);
        p->spans[p->n_spans++] = (layers_span){ r, row->cached, n, p->n, row->begin, row->room };
        p->n += n;
        row->cached += n;
    }
    return p->n > 0;
}

// --------
// sampling

static int likeliest(const float *logits, int V) {
    int best = 0;
    for (int i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static int choose(float *logits, int V, uint64_t *random) {
    if (opt.temperature == 0) return likeliest(logits, V);
    for (int i = 0; i < V; i++) logits[i] /= (float)opt.temperature;
    return sample_softmax(logits, V, random_f32(random));
}

void generation_choose(Generation *g) {
    for (int i = 0; i < g->pass.n_spans; i++) {
        GenerationRow *row = &g->rows[g->pass.spans[i].row];
        row->tokens[row->length++] = choose(g->logits + (size_t)i * g->V, g->V, &row->random);
    }
}

void print_token(const Tokenizer *tokenizer, int token) {
    if (run.rank == 0 && tokenizer->vocab_size)
        tokenizer_print(tokenizer, stdout, token);
    else
        print0("%d ", token);
}

// --------
// the file of prompts

static int read_text(Bpe *bpe, const char *line, size_t bytes, int number, int *tokens) {
    const uint8_t *text = (const uint8_t *)line;
    if (utf8_prefix(text, bytes) != bytes)
        die("option --prompts %s: line %d is not UTF-8", opt.prompts, number);
    int n = 0, length;
    const uint16_t *word;
    for (size_t at = 0; at < bytes; at += length) {
        int count = bpe_next(bpe, text + at, bytes - at, 1, &length, &word);
        if (count < 0) die("option --prompts %s: line %d: %s", opt.prompts, number, gpt2_last_error());
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
        if (after == line || !strchr(" \t\r\n", *after))
            die("option --prompts %s: line %d: \"%.*s\" is not a number; prompts as text need --tokenizer",
                opt.prompts, number, (int)strcspn(line, " \t\r\n"), line);
        if (token < 0 || token >= V)
            die("option --prompts %s: line %d: token %ld is outside the vocabulary, 0 to %d", opt.prompts,
                number, token, V - 1);
        tokens[n++] = (int)token;
        line = after;
    }
    return n;
}

static int count_lines(const char *text) {
    int n = 0;
    for (const char *p = text; *p; p++) n += *p == '\n' || !p[1];
    return n;
}

void prompts_read(Prompts *p, const char *text, Bpe *bpe, int eot_token, int V) {
    const int lines = count_lines(text);
    if (!lines) die("option --prompts %s: the file has no prompts", opt.prompts);
    *p = (Prompts){ .tokens = malloc_check(strlen(text) * sizeof *p->tokens),  // at most one token per byte
                    .first = malloc_check((lines + 1) * sizeof *p->first) };
    p->first[0] = 0;
    while (p->n < lines) {
        const size_t bytes = strcspn(text, "\n");
        int *tokens = p->tokens + p->first[p->n], number = p->n + 1;
        int n = bpe ? read_text(bpe, text, bytes, number, tokens)
                    : read_numbers(text, bytes, V, number, tokens);
        if (!n) tokens[n++] = eot_token;
        if (n > p->longest) p->longest = n;
        p->first[p->n + 1] = p->first[p->n] + n;
        p->n++;
        text += bytes + (text[bytes] == '\n');
    }
}

void prompts_free(Prompts *p) {
    free(p->tokens);
    free(p->first);
}

static int length_of(const Prompts *p, int prompt) { return p->first[prompt + 1] - p->first[prompt]; }
static const int *tokens_of(const Prompts *p, int prompt) { return p->tokens + p->first[prompt]; }

// The last token of an answer needs no position.
static void check_lengths(const Prompts *p, int T) {
    for (int i = 0; i < p->n; i++)
        if (length_of(p, i) + opt.sample_tokens - 1 > T)
            die("option --prompts %s: line %d: its %d tokens and an answer of %d (-g) do not fit into %d "
                "positions (-t, at most the model's); shorten the prompt or lower -g",
                opt.prompts, i + 1, length_of(p, i), opt.sample_tokens, T);
}

// With a tokenizer, prompts are text.
static void open_prompts(Prompts *p, const Tokenizer *tokenizer, int V, int T) {
    Bpe *bpe = NULL;
    if (access(opt.prompts, R_OK)) die("option --prompts %s: the file cannot be read", opt.prompts);
    char *text = text_file_read(opt.prompts);
    if (!text) die("option --prompts: %s", gpt2_last_error());
    if (tokenizer->vocab_size && bpe_create(&bpe, tokenizer))
        die("option --prompts: with a tokenizer, prompts are text: %s", gpt2_last_error());
    prompts_read(p, text, bpe, tokenizer->eot_token, V);
    bpe_free(bpe);
    free(text);
    check_lengths(p, T);
}

// --------
// rows: prompt i is row i / ranks on rank i % ranks

// Every rank must take part in every pass. A rank without a prompt answers the first one and discards the
// answer.
static int rows_of_rank(const Prompts *p) {
    const int rows = (p->n + run.ranks - 1 - run.rank) / run.ranks;
    return rows ? rows : 1;
}

static int prompt_of_row(const Prompts *p, int row) {
    int prompt = row * run.ranks + run.rank;
    return prompt < p->n ? prompt : 0;
}

void answers_describe(Answers *a, GPT2 *model) {
    const Prompts *p = &a->prompts;
    open_tokenizer(&a->tokenizer, model->config.vocab_size, AS_NUMBERS);
    open_prompts(&a->prompts, &a->tokenizer, model->config.vocab_size, model->T);
    long long tokens = 0, positions = 0;
    model->inference = 1;
    model->recompute = 0;
    model->cache_rows = rows_of_rank(p);
    model->cache_T = p->longest + opt.sample_tokens - 1;
    for (int row = 0; row < model->cache_rows; row++) {
        const int n = length_of(p, prompt_of_row(p, row));
        tokens += n;
        positions += layers_cache_positions(n + opt.sample_tokens - 1);
    }
    if (tokens > INT_MAX / 8)
        die("option --prompts %s: %lld tokens are too many for one pass", opt.prompts, tokens);
    if (positions > INT_MAX)
        die("option --prompts %s: a cache of %lld positions is too large", opt.prompts, positions);
    model->B = (int)tokens;
    model->cache_positions = (int)positions;
    model->T = 1;
}

Generation *answers_begin(Answers *a, const GPT2 *model) {
    const Prompts *p = &a->prompts;
    generation_begin(&a->generation, model);
    for (int row = 0; row < model->cache_rows; row++) {
        int i = prompt_of_row(p, row), n = length_of(p, i);
        generation_add(&a->generation, tokens_of(p, i), n, n + opt.sample_tokens, (uint64_t)opt.seed + i);
    }
    zero_traffic_info(run.z, &a->traffic_at_start);
    zero_files_info(run.z, &a->files_at_start);
    zero_check(zero_barrier(run.z));
    a->start_s = now();
    return &a->generation;
}

void answers_passed(Answers *a) {
    if (++a->passes > 1) return;
    zero_check(zero_barrier(run.z));
    a->prefilled_s = now();
}

// --------
// the answers

static void print_answer(const Answers *a, int i, const int *answer) {
    const Prompts *p = &a->prompts;
    print0("answer %d\n---\n", i + 1);
    for (int t = 0; t < length_of(p, i); t++) print_token(&a->tokenizer, tokens_of(p, i)[t]);
    for (int t = 0; t < opt.sample_tokens; t++) print_token(&a->tokenizer, answer[t]);
    print0("\n---\n");
}

static void write_tokens(FILE *f, const char *name, const int *tokens, int n) {
    fprintf(f, ", \"%s\": [", name);
    for (int i = 0; i < n; i++) fprintf(f, "%s%d", i ? ", " : "", tokens[i]);
    fprintf(f, "]");
}

static void write_answer(FILE *f, const Prompts *p, int i, const int *answer) {
    fprintf(f, "{\"prompt\": %d", i + 1);
    write_tokens(f, "prompt_tokens", tokens_of(p, i), length_of(p, i));
    write_tokens(f, "tokens", answer, opt.sample_tokens);
    fprintf(f, "}\n");
}

// Broadcasts every answer from its rank; rank 0 prints it.
static void show_answers(const Answers *a) {
    const Prompts *p = &a->prompts;
    const char *path = run.rank == 0 && opt.output ? in_output("answers.jsonl") : NULL;
    FILE *f = path ? create_file(path) : NULL;
    const size_t bytes = opt.sample_tokens * sizeof(int);
    int *answer = malloc_check(bytes);
    for (int i = 0; i < p->n; i++) {
        const int owner = i % run.ranks, row = i / run.ranks;
        if (owner == run.rank) memcpy(answer, a->generation.rows[row].tokens + length_of(p, i), bytes);
        zero_check(zero_broadcast(run.z, owner, answer, bytes));
        print_answer(a, i, answer);
        if (f) write_answer(f, p, i, answer);
    }
    free(answer);
    if (f) close_file(f, path);
}

// --------
// speed

// Passes of one kind, on all ranks.
typedef struct {
    int passes;
    long long tokens;
    double seconds;
} Phase;

static double rate(const Phase *p) { return p->seconds > 0 ? p->tokens / p->seconds : 0; }
static double pass_ms(const Phase *p) { return p->passes ? 1e3 * p->seconds / p->passes : 0; }

typedef struct {
    Phase prefill, generation;
    // bytes per pass and rank
    double parameters, sent;  // parameters used, and sent to the other ranks
    double from_nvme;         // read from NVMe; 0: no parameters are on NVMe
} Speed;

static Speed speed_of(const Answers *a, const GPT2 *model, double end_s) {
    const zero_traffic *before = &a->traffic_at_start;
    zero_traffic now = { .all_gather = { 0 } };
    zero_files files;
    zero_traffic_info(run.z, &now);
    zero_files_info(run.z, &files);
    return (Speed){
        .prefill = { 1, a->prompts.first[a->prompts.n], a->prefilled_s - a->start_s },
        .generation = { a->passes - 1, (long long)a->prompts.n * (a->passes - 1), end_s - a->prefilled_s },
        .parameters = (double)gpt2_num_parameters(&model->config) * gpt2_dtype_size(model->dtype),
        .sent = (double)(now.all_gather[ZERO_FOR_EVAL] - before->all_gather[ZERO_FOR_EVAL]) / a->passes,
        .from_nvme = (double)(files.read - a->files_at_start.read) / a->passes,
    };
}

static void print_phase(const char *name, const Phase *p, const Speed *s) {
    if (!p->passes) return;
    double tokens_a_pass = (double)p->tokens / p->passes;
    print0(
        "%-10s %lld tokens in %d pass%s of %.2f ms: %.1f tokens/s; each token reads %.2f MiB of parameters",
        name, p->tokens, p->passes, p->passes == 1 ? "" : "es", pass_ms(p), rate(p),
        mib(s->parameters * run.ranks / tokens_a_pass));
    if (s->sent > 0)
        print0(" and sends %.2f MiB, %.2f GB/s per rank", mib(s->sent * run.ranks / tokens_a_pass),
               s->sent / pass_ms(p) * 1e-6);
    if (s->from_nvme > 0)
        print0("; per pass, each rank reads %.2f MiB from NVMe, %.2f GB/s in total", mib(s->from_nvme),
               s->from_nvme * run.ranks / pass_ms(p) * 1e-6);
    print0("\n");
}

static void save_speed(const Answers *a, const GPT2 *model, const Speed *s) {
    const char *path = in_output("inference.json");
    FILE *f = create_file(path);
    fprintf(f, "{\"prompts\": %d, ", a->prompts.n);
    write_run(f, model);
    fprintf(f, " \"prefill_tokens\": %lld, \"prefill_tokens_per_s\": %.2f, \"prefill_ms\": %.3f,\n",
            s->prefill.tokens, rate(&s->prefill), pass_ms(&s->prefill));
    fprintf(f, " \"tokens\": %lld, \"tokens_per_s\": %.2f, \"pass_ms\": %.3f,\n", s->generation.tokens,
            rate(&s->generation), pass_ms(&s->generation));
    fprintf(f, " \"parameter_bytes_a_pass\": %.0f, \"sent_bytes_a_pass\": %.0f, ", s->parameters, s->sent);
    fprintf(f, "\"nvme_bytes_a_pass\": %.0f,\n", s->from_nvme);
    write_memory(f);
    fprintf(f, "}\n");
    close_file(f, path);
}

void answers_end(Answers *a, const GPT2 *model) {
    zero_check(zero_barrier(run.z));
    const Speed speed = speed_of(a, model, now());
    show_answers(a);
    print_phase("prefill", &speed.prefill, &speed);
    print_phase("generation", &speed.generation, &speed);
    if (run.rank == 0 && opt.output) save_speed(a, model, &speed);
    generation_end(&a->generation);
    prompts_free(&a->prompts);
    tokenizer_free(&a->tokenizer);
}
