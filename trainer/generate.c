#include "generate.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpt2/rand.h"
#include "die.h"
#include "options.h"
#include "run.h"

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

// Past T tokens all positions of the row shift, so the cache becomes useless.
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
// the choice of a token

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
