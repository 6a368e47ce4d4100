#include "activations.h"
#include <stdio.h>
#include <stdlib.h>
#include "run.h"

void free_tables(GPT2 *model) {
    free(model->tables.units);
    free(model->tables.names);
}

const char *sizes_of(const GPT2Config *c) {
    static char text[100];
    snprintf(text, sizeof text, "L %d, NH %d, C %d, V %d, longest sequence %d", c->num_layers, c->num_heads,
             c->channels, c->vocab_size, c->max_seq_len);
    return text;
}

// As in PaLM (arXiv 2204.02311, appendix B): 6 per parameter except position embeddings, plus attention's
// matmuls over whole rows. Recomputation does not count.
double flops_per_token(const GPT2 *model) {
    double parameters = gpt2_num_parameters(&model->config) - model->tensors[WPE].elems;
    return 6 * parameters + 12.0 * model->config.num_layers * model->config.channels * model->T;
}

size_t logits_bytes(const GPT2 *model, size_t rows) {
    return rows * model->config.padded_vocab_size * gpt2_dtype_size(model->dtype);
}

void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]) {
    const GPT2Run shape = { .dtype = model->dtype,
                            .B = model->B,
                            .T = model->T,
                            .chunk = model->chunk,
                            .micro_batches = model->micro_batches,
                            .by_layers = model->by_layers,
                            .divided = model->units_a_block > 1,
                            .recompute = model->recompute,
                            .inputs_on_host = model->inputs_on_host,
                            .inference = model->inference,
                            .cache_positions = model->cache_positions };
    gpt2_activations(&model->config, &shape, table);
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Each layer's activation starts at a multiple of 256 bytes, as the layers require.
static size_t stride_of(const GPT2Activation *a) {
    return a->layers > 1 || a->each ? round_up(a->bytes, 256) : a->bytes;
}

// zero_alloc counts whole pages, and at least one.
static size_t whole_pages(size_t bytes) { return round_up(bytes ? bytes : 1, 4096); }

// Of all layers and micro-batches.
static size_t bytes_of(const GPT2 *model, const GPT2Activation *a) {
    return (a->each ? model->micro_batches : 1) * a->layers * stride_of(a);
}

size_t activation_pages(const GPT2 *model, const GPT2Activation *a) {
    return whole_pages(bytes_of(model, a));
}

size_t activation_bytes(const GPT2 *model, zero_tier tier) {
    GPT2Activation table[NUM_ACTIVATIONS];
    size_t bytes = tier == ZERO_DEVICE && model->scratch_bytes ? whole_pages(model->scratch_bytes) : 0;
    activation_table(model, table);
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (table[i].bytes && table[i].on_host == (tier == ZERO_HOST))
            bytes += activation_pages(model, &table[i]);
    return bytes;
}

int allocate_activations(GPT2 *model) {
    GPT2Activation table[NUM_ACTIVATIONS];
    activation_table(model, table);
    for (int i = 0; i < NUM_ACTIVATIONS; i++) {
        const GPT2Activation *a = &table[i];
        const char *purpose = a->on_host ? INPUTS_OF_BLOCKS : i == CACHE ? KEYS_AND_VALUES : "activations";
        model->activations[i].layers = a->layers;
        model->activations[i].each = a->each;
        if (!a->bytes) continue;
        void *memory = zero_alloc(run.z, a->on_host ? ZERO_HOST : ZERO_DEVICE, ZERO_ACTIVATIONS, purpose,
                                  bytes_of(model, a));
        if (!memory && a->on_host)
            die_of_plugin(zero_last_failure(), "; leave out --cpu-checkpointing, or use a smaller -b");
        if (!memory) return -1;
        model->activations[i].memory = memory;
        model->activations[i].stride = stride_of(a);
    }
    void *scratch = zero_alloc(run.z, ZERO_DEVICE, ZERO_ACTIVATIONS, SCRATCH_OF_LAYERS, model->scratch_bytes);
    if (!scratch) return -1;
    LAYER(use_scratch(scratch));
    return 0;
}

// The blocks' inputs alternate between two buffers on the device, in forward and in backward: the next one is
// of the next micro-batch or, after the last, of the first in the next block.
enum { TURNS = 2 };
static int turn_of(const GPT2 *model, int l) { return ((l - 1) * model->at_once + model->micro) % TURNS; }

void *block_input(const GPT2 *model, int l) {
    if (l == 0) return act(model, ENCODED, 0);
    return act(model, RESIDUAL3, model->inputs_on_host ? turn_of(model, l) : l - 1);
}

// -------- inputs of blocks on the host

static int goes_to_host(const GPT2 *model, int l) {
    return model->inputs_on_host && l > 0 && l < model->config.num_layers - (model->at_once == 1);
}

static void copy_input(const GPT2 *model, int l, int to_host) {
    void *device = block_input(model, l), *host = act(model, HOST_RESIDUAL3, l - 1);
    size_t bytes = (size_t)model->B * model->T * model->config.channels * gpt2_dtype_size(model->dtype);
    LAYER(copy_beside(to_host ? host : device, to_host ? device : host, bytes, turn_of(model, l)));
}

void await_input(const GPT2 *model, int l) {
    if (model->inputs_on_host && l > 0) LAYER(await_copy(turn_of(model, l)));
}

void offload_input(const GPT2 *model, int l) {
    if (goes_to_host(model, l)) copy_input(model, l, 1);
}

static void fetch_input(const GPT2 *model, int l, int micro) {
    GPT2 of_micro = *model;
    of_micro.micro = micro;
    if (goes_to_host(model, l)) copy_input(&of_micro, l, 0);
}

void fetch_first_input(const GPT2 *model) { fetch_input(model, model->config.num_layers - 1, 0); }

void fetch_next_input(const GPT2 *model, int l) {
    const int goes_on = model->micro + 1 < model->at_once;
    fetch_input(model, goes_on ? l : l - 1, goes_on ? model->micro + 1 : 0);
}
