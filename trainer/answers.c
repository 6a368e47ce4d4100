#include "answers.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "die.h"
#include "folder.h"
#include "inputs.h"
#include "machine.h"
#include "options.h"
#include "run.h"

// --------
// rows: prompt i is row i / ranks of rank i % ranks

static int owner(int prompt) { return prompt % run.ranks; }
static int row_at_owner(int prompt) { return prompt / run.ranks; }

// Every rank goes through the layers in step with the others. One without a prompt answers the first one, and
// its answer is dropped.
static int rows_of_rank(const Prompts *p) {
    int rows = 0;
    for (int i = 0; i < p->n; i++) rows += owner(i) == run.rank;
    return rows ? rows : 1;
}

static int prompt_of_row(const Prompts *p, int row) {
    int prompt = row * run.ranks + run.rank;
    return prompt < p->n ? prompt : 0;
}

void answers_describe(Answers *a, GPT2 *model) {
    const Prompts *p = &a->prompts;
    open_tokenizer(&a->tokenizer, model->config.vocab_size);
    prompts_read(&a->prompts, &a->tokenizer, model->config.vocab_size, model->T);
    long long tokens = 0, positions = 0;
    model->inference = 1;
    model->recompute = 0;
    model->cache_rows = rows_of_rank(p);
    model->cache_T = p->longest + opt.sample_tokens - 1;
    for (int row = 0; row < model->cache_rows; row++) {
        const int n = p->lengths[prompt_of_row(p, row)];
        tokens += n;
        positions += layers_cache_positions(n + opt.sample_tokens - 1);
    }
    if (tokens > INT_MAX / 8) die("option --prompts %s: %lld tokens in one pass", opt.prompts, tokens);
    if (positions > INT_MAX)
        die("option --prompts %s: keys and values of %lld positions", opt.prompts, positions);
    model->B = (int)tokens;
    model->cache_positions = (int)positions;
    model->T = 1;
}

Generation *answers_begin(Answers *a, const GPT2 *model) {
    const Prompts *p = &a->prompts;
    generation_begin(&a->generation, model);
    for (int row = 0; row < model->cache_rows; row++) {
        int i = prompt_of_row(p, row), n = p->lengths[i];
        generation_add(&a->generation, p->tokens[i], n, n + opt.sample_tokens, (uint64_t)opt.seed + i);
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

static void print_tokens(const Answers *a, const int *tokens, int n) {
    for (int i = 0; i < n; i++) print_token(&a->tokenizer, tokens[i]);
}

static void print_answer(const Answers *a, int i, const int *answer) {
    print0("answer %d\n---\n", i + 1);
    print_tokens(a, a->prompts.tokens[i], a->prompts.lengths[i]);
    print_tokens(a, answer, opt.sample_tokens);
    print0("\n---\n");
}

static void write_numbers(FILE *f, const char *name, const int *numbers, int n) {
    fprintf(f, "\"%s\": [", name);
    for (int i = 0; i < n; i++) fprintf(f, "%s%d", i ? ", " : "", numbers[i]);
    fprintf(f, "]");
}

static void write_answer(FILE *f, const Answers *a, int i, const int *answer) {
    fprintf(f, "{\"prompt\": %d, ", i + 1);
    write_numbers(f, "prompt_tokens", a->prompts.tokens[i], a->prompts.lengths[i]);
    fprintf(f, ", ");
    write_numbers(f, "tokens", answer, opt.sample_tokens);
    fprintf(f, "}\n");
}

static FILE *create_output(char path[OUTPUT_PATH], const char *name) {
    output_path(path, "%s", name);
    return create_file(path);
}

static void close_file(FILE *f, const char *path) {
    int bad = ferror(f);
    if (fclose(f) || bad) die("%s: not written: %s", path, strerror(errno));
}

// Sends every rank's answers to all ranks, rank by rank.
static void show_answers(const Answers *a) {
    char path[OUTPUT_PATH];
    FILE *f = run.rank == 0 && opt.output ? create_output(path, "answers.jsonl") : NULL;
    const size_t bytes = opt.sample_tokens * sizeof(int);
    int *answer = malloc_check(bytes);
    for (int i = 0; i < a->prompts.n; i++) {
        if (owner(i) == run.rank)
            memcpy(answer, a->generation.rows[row_at_owner(i)].tokens + a->prompts.lengths[i], bytes);
        zero_check(zero_broadcast(run.z, owner(i), answer, bytes));
        print_answer(a, i, answer);
        if (f) write_answer(f, a, i, answer);
    }
    free(answer);
    if (f) close_file(f, path);
}

// --------
// speed

// Passes of one kind, over all ranks.
typedef struct {
    int passes;
    long long tokens;
    double seconds;
} Phase;

static double rate(const Phase *p) { return p->seconds > 0 ? p->tokens / p->seconds : 0; }
static double pass_ms(const Phase *p) { return p->passes ? 1e3 * p->seconds / p->passes : 0; }

typedef struct {
    Phase prefill, generation;
    double parameters;  // bytes that a pass reads on each rank
    double sent;        // bytes of them that a pass sends to the other ranks
    double from_nvme;   // bytes that a pass reads on each rank; 0: none are on NVMe
} Speed;

static Speed speed_of(const Answers *a, const GPT2 *model, double end_s) {
    const zero_traffic *before = &a->traffic_at_start;
    zero_traffic now = { .all_gather = { 0 } };
    zero_files files;
    zero_traffic_info(run.z, &now);
    zero_files_info(run.z, &files);
    return (Speed){
        .prefill = { 1, a->prompts.total, a->prefilled_s - a->start_s },
        .generation = { a->passes - 1, (long long)a->prompts.n * (a->passes - 1), end_s - a->prefilled_s },
        .parameters = (double)gpt2_num_parameters(&model->config) * gpt2_dtype_size(model->dtype),
        .sent = (double)(now.all_gather[ZERO_FOR_EVAL] - before->all_gather[ZERO_FOR_EVAL]) / a->passes,
        .from_nvme = (double)(files.read - a->files_at_start.read) / a->passes,
    };
}

static void print_phase(const char *name, const Phase *p, const Speed *s) {
    if (!p->passes) return;
    double tokens_a_pass = (double)p->tokens / p->passes;
    print0("%-10s %lld tokens in %d pass%s of %.2f ms: %.1f tokens/s; a token reads %.2f MiB of parameters",
           name, p->tokens, p->passes, p->passes == 1 ? "" : "es", pass_ms(p), rate(p),
           mib(s->parameters * run.ranks / tokens_a_pass));
    if (s->sent > 0)
        print0(" and sends %.2f MiB, %.2f GB/s a rank", mib(s->sent * run.ranks / tokens_a_pass),
               s->sent / pass_ms(p) * 1e-6);
    if (s->from_nvme > 0)
        print0("; a pass reads %.2f MiB a rank from NVMe, %.2f GB/s together", mib(s->from_nvme),
               s->from_nvme * run.ranks / pass_ms(p) * 1e-6);
    print0("\n");
}

static void print_speed(const Speed *s) {
    print_phase("prefill", &s->prefill, s);
    print_phase("generation", &s->generation, s);
}

static void save_speed(const Answers *a, const GPT2 *model, const Speed *s) {
    char path[OUTPUT_PATH];
    FILE *f = create_output(path, "inference.json");
    fprintf(f, "{\"prompts\": %d, \"ranks\": %d, \"stage\": %d, \"dtype\": \"%s\", \"device\": \"%s\",\n",
            a->prompts.n, run.ranks, opt.zero.stage, dtype_name(model->dtype), run.layers->device);
    fprintf(f, " \"prefill_tokens\": %lld, \"prefill_tokens_per_s\": %.2f, \"prefill_ms\": %.3f,\n",
            s->prefill.tokens, rate(&s->prefill), pass_ms(&s->prefill));
    fprintf(f, " \"tokens\": %lld, \"tokens_per_s\": %.2f, \"pass_ms\": %.3f,\n", s->generation.tokens,
            rate(&s->generation), pass_ms(&s->generation));
    fprintf(f, " \"parameter_bytes_a_pass\": %.0f, \"sent_bytes_a_pass\": %.0f, ", s->parameters, s->sent);
    fprintf(f, "\"nvme_bytes_a_pass\": %.0f,\n", s->from_nvme);
    fprintf(f, " \"model_state_bytes\": %zu, \"working_bytes\": %zu, \"activation_bytes\": %zu}\n",
            zero_memory_bytes(run.z, ZERO_STATES), zero_memory_bytes(run.z, ZERO_WORKING),
            zero_memory_bytes(run.z, ZERO_ACTIVATIONS));
    close_file(f, path);
}

void answers_end(Answers *a, const GPT2 *model) {
    zero_check(zero_barrier(run.z));
    const Speed speed = speed_of(a, model, now());
    show_answers(a);
    print_speed(&speed);
    if (run.rank == 0 && opt.output) save_speed(a, model, &speed);
}

void answers_free(Answers *a) {
    generation_end(&a->generation);
    prompts_free(&a->prompts);
    tokenizer_free(&a->tokenizer);
}
