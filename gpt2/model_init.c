// llm.c's initialisation, bit for bit, with at most one piece of a tensor in memory.
#include <math.h>
#include <stdlib.h>
#include "gpt2_error.h"
#include "model.h"
#include "rand.h"

typedef struct {
    gpt2_sink sink;
    void *ctx;
    mt19937 rng;
    float *piece;  // (GPT2_PIECE)
} Init;

// Passes elements [from, to) of one layer's tensor to the sink: normal values if std is not 0, else
// `constant`.
static int init_range(Init *in, int tensor, int layer, int64_t from, int64_t to, float std, float constant) {
    int64_t at = from;
    while (at < to) {
        int64_t n = to - at;
        // Pieces are multiples of 16 and leave at least 16, so that mt_normal gives the same values as over
        // the whole range.
        if (n > GPT2_PIECE) n = n < GPT2_PIECE + 16 ? GPT2_PIECE - 16 : GPT2_PIECE;
        if (std != 0) {
            mt_normal(&in->rng, in->piece, n, 0, std);
        } else {
            for (int64_t i = 0; i < n; i++) in->piece[i] = constant;
        }
        if (in->sink(in->ctx, tensor, layer, at, n, in->piece)) return -1;
        at += n;
    }
    return 0;
}

static int init_tensor(Init *in, const GPT2Config *config, const GPT2Tensor *t, int tensor, int layer) {
    int layernorm_weight = tensor == LN1W || tensor == LN2W || tensor == LNFW;
    float std = t->n_dims == 2 ? 0.02f : 0;
    if (tensor == ATTPROJW || tensor == FCPROJW) std = 0.02f * (1.0f / sqrtf(2.0f * config->num_layers));
    // The rows of wte that pad the vocabulary stay 0.
    int64_t drawn = tensor == WTE ? (int64_t)config->vocab_size * config->channels : t->elems;
    if (init_range(in, tensor, layer, 0, drawn, std, layernorm_weight)) return -1;
    return init_range(in, tensor, layer, drawn, t->elems, 0, 0);
}

// Draws values layer by layer, as llm.c does; tensors outside the layers are drawn with the first layer.
static int init_tensors(Init *in, const GPT2Config *config, const GPT2Tensor *tensors) {
    for (int l = 0; l < config->num_layers; l++) {
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
            if (l > 0 && !tensors[i].per_layer) continue;
            if (init_tensor(in, config, &tensors[i], i, l)) return -1;
        }
    }
    return 0;
}

int gpt2_init(const GPT2Config *config, gpt2_sink sink, void *ctx) {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    gpt2_tensors(config, tensors);
    Init in = { .sink = sink, .ctx = ctx, .piece = malloc(GPT2_PIECE * sizeof(float)) };
    if (!in.piece)
        return gpt2_fail("no memory for initial values (%d bytes)", (int)(GPT2_PIECE * sizeof(float)));
    mt_seed(&in.rng, 42);
    int failed = init_tensors(&in, config, tensors);
    free(in.piece);
    return failed;
}
