#include "activations.h"
#include "die.h"
#include "run.h"

typedef struct {
    int layers;    // 1, or L
    size_t bytes;  // of one layer
} ActivationSize;

size_t logits_bytes(const GPT2 *model, size_t rows) {
    return rows * model->config.padded_vocab_size * gpt2_dtype_size(model->dtype);
}

// The table of sizes, by which activations are counted and allocated.
static void activation_sizes(const GPT2 *model, ActivationSize sizes[NUM_ACTIVATIONS]) {
    const size_t B = model->B, T = model->T, C = model->config.channels, NH = model->config.num_heads;
    const size_t btc = B * T * C * gpt2_dtype_size(model->dtype), bt_float = B * T * sizeof(float);
    const int L = model->config.num_layers;
    // All layers share one buffer of what backward makes again.
    const int L_gelu = model->recompute >= 1 ? 1 : L, L_layernorm = model->recompute >= 2 ? 1 : L;

    sizes[ENCODED] = (ActivationSize){ 1, btc };
    sizes[LN1] = (ActivationSize){ L_layernorm, btc };
    sizes[QKV] = (ActivationSize){ L, 3 * btc };
    sizes[ATTY] = (ActivationSize){ L, btc };
    sizes[RESIDUAL2] = (ActivationSize){ L, btc };
    sizes[LN2] = (ActivationSize){ L_layernorm, btc };
    sizes[FCH] = (ActivationSize){ L, 4 * btc };
    sizes[FCH_GELU] = (ActivationSize){ L_gelu, 4 * btc };
    sizes[RESIDUAL3] = (ActivationSize){ L, btc };
    sizes[LN1_MEAN] = (ActivationSize){ L, bt_float };
    sizes[LN1_RSTD] = (ActivationSize){ L, bt_float };
    sizes[LN2_MEAN] = (ActivationSize){ L, bt_float };
    sizes[LN2_RSTD] = (ActivationSize){ L, bt_float };
    sizes[LSE] = (ActivationSize){ L, NH * bt_float };
    sizes[LNF] = (ActivationSize){ 1, btc };
    sizes[LNF_MEAN] = (ActivationSize){ 1, bt_float };
    sizes[LNF_RSTD] = (ActivationSize){ 1, bt_float };
    sizes[LOSSES] = (ActivationSize){ 1, bt_float };
    sizes[LOSS_SUM] = (ActivationSize){ 1, sizeof(double) };
    sizes[SCRATCH_BTC] = (ActivationSize){ 1, btc };
    sizes[DRESIDUAL] = (ActivationSize){ 1, btc };
    sizes[DRESIDUAL_SUMS] = (ActivationSize){ 1, C * sizeof(float) };
    sizes[DL_BTC] = (ActivationSize){ 1, btc };
    sizes[DL_BT4C] = (ActivationSize){ 1, 4 * btc };
    sizes[LOGITS] = (ActivationSize){ 1, logits_bytes(model, model->chunk) };
    sizes[LAYERS_SCRATCH] = (ActivationSize){ 1, model->scratch_bytes };
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Every layer begins on a boundary of 256 bytes, as the layers want it.
static size_t stride_of(ActivationSize size) { return size.layers > 1 ? round_up(size.bytes, 256) : 0; }

static size_t bytes_of(ActivationSize size) {
    return size.layers > 1 ? size.layers * stride_of(size) : size.bytes;
}

size_t activation_bytes(const GPT2 *model) {
    enum { PAGE = 4096 };  // zero_alloc counts whole pages
    ActivationSize sizes[NUM_ACTIVATIONS];
    size_t bytes = 0;
    activation_sizes(model, sizes);
    for (int i = 0; i < NUM_ACTIVATIONS; i++) bytes += round_up(bytes_of(sizes[i]), PAGE);
    return bytes;
}

int allocate_activations(GPT2 *model) {
    ActivationSize sizes[NUM_ACTIVATIONS];
    activation_sizes(model, sizes);
    for (int i = 0; i < NUM_ACTIVATIONS; i++) {
        const char *purpose = i == LAYERS_SCRATCH ? "scratch of the layers" : "activations";
        void *memory = zero_alloc(run.z, ZERO_ACTIVATIONS, purpose, bytes_of(sizes[i]));
        if (!memory) return -1;
        model->activations[i].memory = memory;
        model->activations[i].stride = stride_of(sizes[i]);
    }
    LAYER(use_scratch(act(model, LAYERS_SCRATCH, 0)));
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
