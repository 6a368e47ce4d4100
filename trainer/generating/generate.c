#include "generate.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpt2/rand.h"
#include "../checkpoints/folder.h"
#include "../running/inputs.h"
#include "../options/options.h"
#include "../running/report.h"
#include "../running/run.h"

// -------- rows

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
    if (total - n > g->passes) g->passes = total - n;
}

void generation_end(Generation *g) {
    for (int r = 0; r < g->n_rows; r++) free(g->rows[r].tokens);
    free(g->rows);
    free(g->logits);
    free(g->pass.tokens);
    free(g->pass.spans);
}

// -------- passes

// Computes a cached position again: a rank whose rows are complete takes part in the passes for those of
// other ranks.
static void repeat_a_token(Generation *g) {
    CachedPass *p = &g->pass;
    const GenerationRow *row = &g->rows[0];
    p->tokens[0] = row->tokens[row->first + row->cached - 1];
    p->spans[0] = (layers_span){ 0, row->cached - 1, 1, 0, row->begin, row->room };
    p->n = p->n_spans = 1;
}

int generation_next(Generation *g) {
    CachedPass *p = &g->pass;
    p->n = p->n_spans = 0;
    if (g->passed++ == g->passes) return 0;
    for (int r = 0; r < g->n_rows; r++) {
        GenerationRow *row = &g->rows[r];
        if (row->length == row->total) continue;
        // A row longer than T drops its first tokens. That shifts all positions, so the cache is rebuilt.
        if (row->length - row->first > g->T) {
            row->first = row->length - g->T;
            row->cached = 0;
        }
        int n = row->length - row->first - row->cached;
        memcpy(p->tokens + p->n, row->tokens + row->first + row->cached, n * sizeof *p->tokens);
        p->spans[p->n_spans++] = (layers_span){ r, row->cached, n, p->n, row->begin, row->room };
        p->n += n;
        row->cached += n;
    }
    if (!p->n) repeat_a_token(g);
    return 1;
}

// -------- sampling

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
        if (row->length == row->total) continue;  // a repeated token
        row->tokens[row->length++] = choose(g->logits + (size_t)i * g->V, g->V, &row->random);
    }
}

void print_token(const Tokenizer *tokenizer, int token) {
    if (run.rank != 0 || !tokenizer->vocab_size) {
        print0("%d ", token);
        return;
    }
    tokenizer_print(tokenizer, stdout, token);
    fflush(stdout);  // print0 notices a failure
}

// -------- the prompts: prompt i is row i / ranks of rank i % ranks

static int length_of(const Prompts *p, int prompt) { return p->first[prompt + 1] - p->first[prompt]; }
static const int *tokens_of(const Prompts *p, int prompt) { return p->tokens + p->first[prompt]; }

// Returns the tokens of the answer to a prompt of n tokens.
static int answer_length(const Answers *a, int n) {
    const int room = a->positions - n + 1;
    return opt.sample_tokens < room ? opt.sample_tokens : room;
}

static int prompt_of_row(const Prompts *p, int row) {
    int prompt = row * run.ranks + run.rank;
    return prompt < p->n ? prompt : 0;
}

// Sizes the passes and the cache. Every rank must take part in every pass. A rank without a prompt answers
// the first one and discards the answer.
static void describe_rows(const Answers *a, GPT2 *model) {
    const Prompts *p = &a->prompts;
    const int rows = (p->n + run.ranks - 1 - run.rank) / run.ranks;
    long long tokens = 0, positions = 0;
    model->cache_rows = rows ? rows : 1;
    for (int row = 0; row < model->cache_rows; row++) {
        const int n = length_of(p, prompt_of_row(p, row));
        tokens += n;
        positions += layers_cache_positions(n + answer_length(a, n) - 1);
    }
    if (tokens > INT_MAX / 8)
        die("option --prompts %s: %lld tokens are too many for one pass", opt.prompts, tokens);
    if (positions > INT_MAX)
        die("option --prompts %s: a cache of %lld positions is too large", opt.prompts, positions);
    model->B = (int)tokens;
    model->cache_positions = (int)positions;
}

// Such an answer may end within a word. One note for all of them is enough.
static void note_short_answer(Answers *a, int prompt) {
    if (a->noted || answer_length(a, length_of(&a->prompts, prompt)) == opt.sample_tokens) return;
    note0("note: an answer ends where its sequence has %d tokens, the limit of the model or -t\n",
          a->positions);
    a->noted = 1;
}

void answers_describe(Answers *a, GPT2 *model) {
    const int V = model->config.vocab_size;
    a->positions = model->T;
    open_tokenizer(&a->tokenizer, V, NULL, AS_NUMBERS);
    prompts_open(&a->prompts, &a->tokenizer, V, a->positions);
    describe_rows(a, model);
    model->inference = 1;
    model->recompute = 0;
    model->T = 1;
    const int wanted = a->prompts.longest + opt.sample_tokens - 1;
    model->cache_T = wanted < a->positions ? wanted : a->positions;
}

static void add_row(const Answers *a, Generation *g, int prompt) {
    const Prompts *p = &a->prompts;
    const int n = length_of(p, prompt);
    generation_add(g, tokens_of(p, prompt), n, n + answer_length(a, n),
                   (uint64_t)opt.seed + p->lines[prompt] - 1);
}

Generation *answers_begin(Answers *a, const GPT2 *model) {
    const Prompts *p = &a->prompts;
    generation_begin(&a->generation, model);
    for (int row = 0; row < model->cache_rows; row++) add_row(a, &a->generation, prompt_of_row(p, row));
    for (int i = 0; i < p->n; i++) {
        const int passes = answer_length(a, length_of(p, i));
        if (passes > a->generation.passes) a->generation.passes = passes;
        note_short_answer(a, i);
    }
    zero_traffic_info(run.z, &a->traffic_at_start);
    zero_files_info(run.z, &a->files_at_start);
    zero_check(zero_barrier(run.z));
    a->start_s = now();
    return &a->generation;
}

void answers_passed(Answers *a) {
    if (a->generation.passed > 1) return;
    zero_check(zero_barrier(run.z));
    a->prefilled_s = now();
}

// -------- the answers

static void print_answer(const Answers *a, int i, const int *answer) {
    const Prompts *p = &a->prompts;
    print0("answer %d\n---\n", p->lines[i]);
    for (int t = 0; t < length_of(p, i); t++) print_token(&a->tokenizer, tokens_of(p, i)[t]);
    for (int t = 0; t < answer_length(a, length_of(p, i)); t++) print_token(&a->tokenizer, answer[t]);
    print0("\n---\n");
}

static void write_tokens(FILE *f, const char *name, const int *tokens, int n) {
    fprintf(f, ", \"%s\": [", name);
    for (int i = 0; i < n; i++) fprintf(f, "%s%d", i ? ", " : "", tokens[i]);
    fprintf(f, "]");
}

static void write_answer(FILE *f, const Answers *a, int i, const int *answer) {
    const Prompts *p = &a->prompts;
    fprintf(f, "{\"prompt\": %d", p->lines[i]);
    write_tokens(f, "prompt_tokens", tokens_of(p, i), length_of(p, i));
    write_tokens(f, "tokens", answer, answer_length(a, length_of(p, i)));
    fprintf(f, "}\n");
}

// Broadcasts every answer from its rank; rank 0 prints it.
static void show_answers(const Answers *a) {
    const Prompts *p = &a->prompts;
    const int writes = run.rank == 0 && opt.output;
    Text t;
    if (writes) text_begin(&t);
    int *answer = malloc_check(opt.sample_tokens * sizeof *answer);
    for (int i = 0; i < p->n; i++) {
        const size_t bytes = answer_length(a, length_of(p, i)) * sizeof *answer;
        const int owner = i % run.ranks, row = i / run.ranks;
        if (owner == run.rank) memcpy(answer, a->generation.rows[row].tokens + length_of(p, i), bytes);
        zero_check(zero_broadcast(run.z, owner, answer, bytes));
        print_answer(a, i, answer);
        if (writes) write_answer(t.f, a, i, answer);
    }
    free(answer);
    if (writes) write_to_output("answers.jsonl", &t);
}

// -------- speed

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
    const int passes = a->generation.passes;
    long long tokens = 0;  // of all answers
    for (int i = 0; i < a->prompts.n; i++) tokens += answer_length(a, length_of(&a->prompts, i));
    zero_traffic_info(run.z, &now);
    zero_files_info(run.z, &files);
    return (Speed){
        .prefill = { 1, a->prompts.first[a->prompts.n], a->prefilled_s - a->start_s },
        .generation = { passes - 1, tokens - a->prompts.n, end_s - a->prefilled_s },
        .parameters = (double)gpt2_num_parameters(&model->config) * gpt2_dtype_size(model->dtype),
        .sent = (double)(now.all_gather[ZERO_FOR_EVAL] - before->all_gather[ZERO_FOR_EVAL]) / passes,
        .from_nvme = (double)(files.read[ZERO_FOR_EVAL] - a->files_at_start.read[ZERO_FOR_EVAL]) / passes,
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
    Text t;
    text_begin(&t);
    FILE *f = t.f;
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
    write_to_output("inference.json", &t);
}

void answers_end(Answers *a, const GPT2 *model) {
    zero_check(zero_barrier(run.z));
    const Speed speed = speed_of(a, model, now());
    show_answers(a);
    if (opt.verbose) print_phase("prefill", &speed.prefill, &speed);
    if (opt.verbose) print_phase("generation", &speed.generation, &speed);
    if (run.rank == 0 && opt.output) save_speed(a, model, &speed);
    generation_end(&a->generation);
}

// -------- one prompt at a time: every rank computes the row, and rank 0 prints it while it grows

int answers_next(Answers *a, const GPT2 *model, Generation *g) {
    Prompts *p = &a->prompts;
    if (!prompts_next(p)) return 0;
    note_short_answer(a, 0);
    generation_begin(g, model);
    add_row(a, g, 0);
    for (int t = 0; t < length_of(p, 0); t++) print_token(&a->tokenizer, p->tokens[t]);
    return 1;
}

int answers_free(Answers *a) {
    prompts_free(&a->prompts);
    tokenizer_free(&a->tokenizer);
    return a->prompts.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
