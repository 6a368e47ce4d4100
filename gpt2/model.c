// The definition of a GPT-2: descriptors, and the table of its 16 parameter tensors.
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "gpt2_error.h"
#include "model.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { GPT2_VOCAB = 50257, VOCAB_PADDING = 128 };

// -------- sizes

int gpt2_config_check(const GPT2Config *config, const char *name) {
    // The upper bounds keep every product of sizes, up to the number of parameters, within its integer type.
    const struct {
        const char *what;
        int value, max;
    } sizes[] = {
        { "layers", config->num_layers, 1 << 16 },
        { "heads", config->num_heads, 1 << 20 },
        { "channels", config->channels, 1 << 20 },
        { "tokens in the vocabulary", config->vocab_size, 1 << 24 },
        { "positions", config->max_seq_len, 1 << 24 },
        { "tokens in the padded vocabulary", config->padded_vocab_size, 1 << 24 },
    };
    for (int i = 0; i < COUNT(sizes); i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].max)
            return gpt2_fail("%s: %d %s: must be 1 to %d", name, sizes[i].value, sizes[i].what, sizes[i].max);
    if (config->channels % config->num_heads)
        return gpt2_fail("%s: %d channels cannot be divided among %d heads", name, config->channels,
                         config->num_heads);
    if (config->padded_vocab_size < config->vocab_size)
        return gpt2_fail("%s: padded vocabulary of %d is smaller than the vocabulary of %d", name,
                         config->padded_vocab_size, config->vocab_size);
    return 0;
}

void gpt2_tensors(const GPT2Config *config, GPT2Tensor tensors[NUM_PARAMETER_TENSORS]) {
    int64_t C = config->channels, Vp = config->padded_vocab_size, maxT = config->max_seq_len;
    // clang-format off
    const GPT2Tensor table[NUM_PARAMETER_TENSORS] = {
        // name, elements (0: computed below), per layer, dimensions, shape
        [WTE]      = { "wte",      0, 0, 2, { Vp, C } },
        [WPE]      = { "wpe",      0, 0, 2, { maxT, C } },
        [LN1W]     = { "ln1w",     0, 1, 1, { C } },
        [LN1B]     = { "ln1b",     0, 1, 1, { C } },
        [QKVW]     = { "qkvw",     0, 1, 2, { 3 * C, C } },
        [QKVB]     = { "qkvb",     0, 1, 1, { 3 * C } },
        [ATTPROJW] = { "attprojw", 0, 1, 2, { C, C } },
        [ATTPROJB] = { "attprojb", 0, 1, 1, { C } },
        [LN2W]     = { "ln2w",     0, 1, 1, { C } },
        [LN2B]     = { "ln2b",     0, 1, 1, { C } },
        [FCW]      = { "fcw",      0, 1, 2, { 4 * C, C } },
        [FCB]      = { "fcb",      0, 1, 1, { 4 * C } },
        [FCPROJW]  = { "fcprojw",  0, 1, 2, { C, 4 * C } },
        [FCPROJB]  = { "fcprojb",  0, 1, 1, { C } },
        [LNFW]     = { "lnfw",     0, 0, 1, { C } },
        [LNFB]     = { "lnfb",     0, 0, 1, { C } },
    };
    // clang-format on
    memcpy(tensors, table, sizeof table);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        tensors[i].elems = tensors[i].n_dims == 2 ? tensors[i].dims[0] * tensors[i].dims[1]
                                                  : tensors[i].dims[0];
}

int gpt2_padded_vocab(int vocab_size) {
    return (int)(((int64_t)vocab_size + VOCAB_PADDING - 1) / VOCAB_PADDING * VOCAB_PADDING);
}

int64_t gpt2_num_parameters(const GPT2Config *config) {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    gpt2_tensors(config, tensors);
    int64_t n = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        n += tensors[i].elems * (tensors[i].per_layer ? config->num_layers : 1);
    return n;
}

// In inference, drops activations that only backward or passes over whole rows use, and keeps less of the
// others: all layers share one buffer, and the final layernorm is computed only where there are logits.
static void keep_for_inference(const GPT2Run *run, GPT2Activation table[NUM_ACTIVATIONS]) {
    static const int unused[] = { LSE, LOSSES, LOSS_SUMS, DRESIDUAL, DRESIDUAL_SUMS, DL_BTC, DL_BT4C, DFCB };
    const size_t tokens = (size_t)run->B * run->T;
    for (int i = 0; i < COUNT(unused); i++) table[unused[i]].bytes = 0;
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (i != CACHE) table[i].layers = 1;
    for (int i = LNF; i <= LNF_RSTD; i++) table[i].bytes = table[i].bytes / tokens * run->chunk;
}

void gpt2_activations(const GPT2Config *config, const GPT2Run *run, GPT2Activation table[NUM_ACTIVATIONS]) {
    const size_t B = run->B, T = run->T, C = config->channels, NH = config->num_heads;
    const size_t size = gpt2_dtype_size(run->dtype), btc = B * T * C * size, bt_float = B * T * sizeof(float);
    const size_t logits = (size_t)run->chunk * config->padded_vocab_size * size;
    const int L = config->num_layers;
    const int L_gelu = run->recompute >= 1 ? 1 : L, L_layernorm = run->recompute >= 2 ? 1 : L;
    const int L_block = run->recompute >= 3 ? 1 : L;
    const int several = run->by_layers && run->micro_batches > 1, kept = L_block == L || run->divided;
    const int layernorms_kept = L_layernorm == L || (run->divided && L_block < L);
    const int on_host = run->recompute >= 3 && run->inputs_on_host && L > 2 ? L - 2 + several : 0;
    const GPT2Activation all[NUM_ACTIVATIONS] = {
        [ENCODED] = { "encoded", 1, btc, 1 },
        [LN1] = { "ln1", L_layernorm, btc, layernorms_kept },
        [QKV] = { "qkv", L_block, 3 * btc, kept },
        [ATTY] = { "atty", L_block, btc, kept },
        [RESIDUAL2] = { "residual2", L_block, btc, 1 },
        [LN2] = { "ln2", L_layernorm, btc, layernorms_kept },
        [FCH] = { "fch", L_block, 4 * btc, kept },
        [FCH_GELU] = { "fch_gelu", L_gelu, 4 * btc, L_gelu == L || run->divided },
        [RESIDUAL3] = { "residual3", on_host ? 2 : L, btc, !on_host },
        [LN1_MEAN] = { "ln1_mean", L_block, bt_float, kept },
        [LN1_RSTD] = { "ln1_rstd", L_block, bt_float, kept },
        [LN2_MEAN] = { "ln2_mean", L_block, bt_float, kept },
        [LN2_RSTD] = { "ln2_rstd", L_block, bt_float, kept },
        [LSE] = { "lse", L_block, NH * bt_float, kept },
        [LNF] = { "lnf", 1, btc },
        [LNF_MEAN] = { "lnf_mean", 1, bt_float },
        [LNF_RSTD] = { "lnf_rstd", 1, bt_float },
        [LOSSES] = { "losses", 1, bt_float },
        [LOSS_SUMS] = { "loss_sums", 1, run->micro_batches * sizeof(double) },
        [SCRATCH_BTC] = { "scratch_btc", 1, btc, 1 },
        [DRESIDUAL] = { "dresidual", 1, btc, 1 },
        [DRESIDUAL_SUMS] = { "dresidual_sums", 1, C * sizeof(float), 1 },
        [DL_BTC] = { "dl_btc", 1, btc },
        [DL_BT4C] = { "dl_bt4c", 1, 4 * btc, run->divided },
        [DFCB] = { "dfcb", 1, run->divided ? 4 * C * size : 0, 1 },
        [LOGITS] = { "logits", 1, logits },
        [HOST_RESIDUAL3] = { "residual3, host", on_host, on_host ? btc : 0, 1, .on_host = 1 },
        [CACHE] = { "keys and values", L, layers_cache_bytes(run->dtype, run->cache_positions, C) },
    };
    memcpy(table, all, sizeof all);
    for (int i = 0; i < NUM_ACTIVATIONS && !several; i++) table[i].each = 0;
    if (run->inference) keep_for_inference(run, table);
}

// -------- descriptors

// Reads a positive decimal number without leading zeros that fits an int, and advances the text past it.
static int parse_number(const char **text, int *value) {
    const char *p = *text;
    int64_t n = 0;
    if (*p < '1' || *p > '9') return 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        n = n * 10 + (*p - '0');
        if (n > INT_MAX) return 0;
    }
    *text = p;
    *value = (int)n;
    return 1;
}

// A family's model is named by one number: d12 is 12 layers, c768 is 768 channels.
typedef struct {
    int layers, channels, heads;
} Size;

static const Size gpt2_sizes[] = {
    { 6, 384, 6 },    { 12, 768, 12 },  { 24, 1024, 16 }, { 36, 1280, 20 },
    { 48, 1600, 25 }, { 60, 1920, 30 }, { 72, 2880, 30 }, { 84, 3456, 36 },
};
static const Size gpt3_sizes[] = {
    // llm.c names one more: c5140 with heads of 128, which do not divide it.
    { 6, 384, 6 },    { 12, 768, 12 },  { 24, 1024, 16 }, { 24, 1536, 16 },
    { 24, 2048, 16 }, { 32, 2560, 32 }, { 32, 4096, 32 }, { 96, 12288, 96 },
};

static int family(GPT2Config *config, const char *descriptor, const char *digits, int gpt3) {
    const Size *sizes = gpt3 ? gpt3_sizes : gpt2_sizes;
    const char *what = gpt3 ? "channels" : "depth";
    const char *known = gpt3 ? "384 768 1024 1536 2048 2560 4096 12288" : "6 12 24 36 48 60 72 84";
    int wanted;
    const char *end = digits;
    if (!parse_number(&end, &wanted) || *end)
        return gpt2_fail("model \"%s\": %s \"%s\" is not a positive number; known: %s", descriptor, what,
                         digits, known);
    if (gpt3 && wanted == 5140)
        return gpt2_fail("model \"%s\": 5140 channels cannot be divided into heads of 128; known: %s",
                         descriptor, known);
    for (int i = 0; i < (gpt3 ? COUNT(gpt3_sizes) : COUNT(gpt2_sizes)); i++) {
        if (wanted != (gpt3 ? sizes[i].channels : sizes[i].layers)) continue;
        *config = (GPT2Config){ .num_layers = sizes[i].layers,
                                .channels = sizes[i].channels,
                                .num_heads = sizes[i].heads,
                                .vocab_size = GPT2_VOCAB,
                                .max_seq_len = gpt3 ? 2048 : 1024 };
        return 0;
    }
    return gpt2_fail("model \"%s\": %s %d is unknown; known: %s", descriptor, what, wanted, known);
}

static int free_form(GPT2Config *config, const char *descriptor) {
    const struct {
        char letter;
        const char *what;
        int *value;
    } parts[] = {
        { 'l', "layers", &config->num_layers },     { 'h', "heads", &config->num_heads },
        { 'c', "channels", &config->channels },     { 'v', "tokens in the vocabulary", &config->vocab_size },
        { 't', "positions", &config->max_seq_len },
    };
    const char *p = descriptor;
    for (int i = 0; i < COUNT(parts); i++) {
        const char *part = p;
        p++;
        if (*part != parts[i].letter || !parse_number(&p, parts[i].value))
            return gpt2_fail("model \"%s\": expected '%c' and a positive number (%s), found \"%s\"; write it "
                             "like l4h4c128v512t64",
                             descriptor, parts[i].letter, parts[i].what, part);
    }
    return *p ? gpt2_fail("model \"%s\": unexpected \"%s\" after the last part", descriptor, p) : 0;
}

int gpt2_config_from_descriptor(GPT2Config *config, const char *descriptor) {
    GPT2Config c = { 0 };
    int failed;
    if (descriptor[0] == 'd')
        failed = family(&c, descriptor, descriptor + 1, 0);
    else if (!strncmp(descriptor, "gpt2:d", 6))
        failed = family(&c, descriptor, descriptor + 6, 0);
    else if (!strncmp(descriptor, "gpt3:c", 6))
        failed = family(&c, descriptor, descriptor + 6, 1);
    else if (descriptor[0] == 'l')
        failed = free_form(&c, descriptor);
    else
        failed = gpt2_fail(
            "model \"%s\" is unknown: expected d12, gpt2:d12, gpt3:c768 or a form like l4h4c128v512t64",
            descriptor);
    if (failed) return -1;
    c.padded_vocab_size = gpt2_padded_vocab(c.vocab_size);
    char name[128];
    snprintf(name, sizeof name, "model \"%s\"", descriptor);
    if (gpt2_config_check(&c, name)) return -1;
    *config = c;
    return 0;
}
