#include "activations.h"
#include <stdlib.h>
#include "run.h"

void free_tables(GPT2 *model) {
    free(model->tables.units);
    free(model->tables.names);
}

size_t logits_bytes(const GPT2 *model, size_t rows) {
    return rows * model->config.padded_vocab_size * gpt2_dtype_size(model->dtype);
}

void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]) {
    GPT2Run shape = {
        .dtype = model->dtype,
        .B = model->B,
        .T = model->T,
        .recompute = model->recompute,
        .inputs_on_host = model->inputs_on_host,
        .chunk = model->chunk,
        .inference = model->inference,
        .cache_positions = model->cache_positions,
    };
    gpt2_activations(&model->config, &shape, table);
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Layers start at multiples of 256 bytes, as they require.
static size_t stride_of(const GPT2Activation *a) { return a->layers > 1 ? round_up(a->bytes, 256) : 0; }

static size_t bytes_of(const GPT2Activation *a) {
    return a->layers > 1 ? a->layers * stride_of(a) : a->bytes;
}

enum { PAGE = 4096 };  // zero_alloc counts whole pages

// At least one page.
static size_t whole_pages(size_t bytes) { return bytes ? round_up(bytes, PAGE) : PAGE; }

size_t activation_pages(const GPT2Activation *a) { return whole_pages(bytes_of(a)); }

size_t activation_bytes(const GPT2 *model, zero_tier tier) {
    GPT2Activation table[NUM_ACTIVATIONS];
    size_t bytes = tier == ZERO_DEVICE && model->scratch_bytes ? whole_pages(model->scratch_bytes) : 0;
    activation_table(model, table);
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (table[i].bytes && table[i].on_host == (tier == ZERO_HOST)) bytes += activation_pages(&table[i]);
    return bytes;
}

static void *allocate_on_host(const GPT2Activation *a) {
    void *memory = zero_alloc(run.z, ZERO_HOST, ZERO_ACTIVATIONS, INPUTS_OF_BLOCKS, bytes_of(a));
    if (!memory) die_of_plugin(zero_last_failure(), "; leave out --cpu-checkpointing, or use a smaller -b");
    return memory;
}

static void *allocate(int which, const GPT2Activation *a) {
    if (a->on_host) return allocate_on_host(a);
    const char *purpose = which == CACHE ? KEYS_AND_VALUES : "activations";
    return zero_alloc(run.z, ZERO_DEVICE, ZERO_ACTIVATIONS, purpose, bytes_of(a));
}

int allocate_activations(GPT2 *model) {
    GPT2Activation table[NUM_ACTIVATIONS];
    activation_table(model, table);
    for (int i = 0; i < NUM_ACTIVATIONS; i++) {
        model->activations[i].layers = table[i].layers;
        if (!table[i].bytes) continue;
        void *memory = allocate(i, &table[i]);
        if (!memory) return -1;
        model->activations[i].memory = memory;
        model->activations[i].stride = stride_of(&table[i]);
    }
    void *scratch = zero_alloc(run.z, ZERO_DEVICE, ZERO_ACTIVATIONS, SCRATCH_OF_LAYERS, model->scratch_bytes);
    if (!scratch) return -1;
    LAYER(use_scratch(scratch));
    return 0;
}

BlockActivations block_activations(const GPT2 *model, int l) {
    return (BlockActivations){
        .residual = l == 0 ? act(model, ENCODED, 0) : act(model, RESIDUAL3, l - 1),
        .ln1 = act(model, LN1, l),
        .ln1_mean = act(model, LN1_MEAN, l),
        .ln1_rstd = act(model, LN1_RSTD, l),
        .qkv = act(model, QKV, l),
        .lse = act(model, LSE, l),
        .atty = act(model, ATTY, l),
        .residual2 = act(model, RESIDUAL2, l),
        .ln2 = act(model, LN2, l),
        .ln2_mean = act(model, LN2_MEAN, l),
        .ln2_rstd = act(model, LN2_RSTD, l),
        .fch = act(model, FCH, l),
        .fch_gelu = act(model, FCH_GELU, l),
    };
}

// --------
// inputs of blocks on the host. The input of block l > 0 is RESIDUAL3 of layer l-1.

enum { TURNS = 2 };  // buffers on the device, each with its own copies
static int turn_of(int l) { return (l - 1) % TURNS; }

static int goes_to_host(const GPT2 *model, int l) {
    return model->inputs_on_host && l > 0 && l < model->config.num_layers - 1;
}

static void copy_input(const GPT2 *model, int l, int to_host) {
    void *device = act(model, RESIDUAL3, l - 1), *host = act(model, HOST_RESIDUAL3, l - 1);
    size_t bytes = (size_t)model->B * model->T * model->config.channels * gpt2_dtype_size(model->dtype);
    LAYER(copy_beside(to_host ? host : device, to_host ? device : host, bytes, turn_of(l)));
}

void await_input(const GPT2 *model, int l) {
    if (model->inputs_on_host && l > 0) LAYER(await_copy(turn_of(l)));
}

void offload_input(const GPT2 *model, int l) {
    if (goes_to_host(model, l)) copy_input(model, l, 1);
}

void fetch_input(const GPT2 *model, int l) {
    if (goes_to_host(model, l)) copy_input(model, l, 0);
}
