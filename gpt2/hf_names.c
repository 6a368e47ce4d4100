// The names and shapes of GPT-2's tensors in transformers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hf.h"

// clang-format off
static const struct { const char *name; int transposed; } table[NUM_PARAMETER_TENSORS] = {
    [WTE]      = { "wte.weight", 0 },
    [WPE]      = { "wpe.weight", 0 },
    [LN1W]     = { "ln_1.weight", 0 },        // from here on prefixed with h.0., h.1., ..
    [LN1B]     = { "ln_1.bias", 0 },
    [QKVW]     = { "attn.c_attn.weight", 1 },
    [QKVB]     = { "attn.c_attn.bias", 0 },
    [ATTPROJW] = { "attn.c_proj.weight", 1 },
    [ATTPROJB] = { "attn.c_proj.bias", 0 },
    [LN2W]     = { "ln_2.weight", 0 },
    [LN2B]     = { "ln_2.bias", 0 },
    [FCW]      = { "mlp.c_fc.weight", 1 },
    [FCB]      = { "mlp.c_fc.bias", 0 },
    [FCPROJW]  = { "mlp.c_proj.weight", 1 },
    [FCPROJB]  = { "mlp.c_proj.bias", 0 },
    [LNFW]     = { "ln_f.weight", 0 },        // no prefix
    [LNFB]     = { "ln_f.bias", 0 },
};
// clang-format on

static int is_in_layers(int tensor) { return tensor >= LN1W && tensor <= FCPROJB; }

void hf_name(char name[HF_NAME], int tensor, int layer) {
    if (is_in_layers(tensor))
        snprintf(name, HF_NAME, "h.%d.%s", layer, table[tensor].name);
    else
        snprintf(name, HF_NAME, "%s", table[tensor].name);
}

// Splits "h.12.ln_1.weight" into 12 and "ln_1.weight"; NULL: not of this form.
static const char *after_layer(const char *name, int *layer) {
    char again[HF_NAME], *end;
    if (strncmp(name, "h.", 2)) return NULL;
    const long n = strtol(name + 2, &end, 10);
    if (n < 0 || n > INT32_MAX || *end != '.') return NULL;
    const int digits = snprintf(again, sizeof again, "h.%ld.", n);
    if (strncmp(name, again, (size_t)digits)) return NULL;
    *layer = (int)n;
    return name + digits;
}

HfKind hf_find(const char *name, int *tensor, int *layer) {
    if (!strcmp(name, "lm_head.weight")) return HF_HEAD;
    if (!strncmp(name, "transformer.", 12)) name += 12;
    *layer = 0;
    const char *rest = after_layer(name, layer);
    // the causal mask, which older versions of transformers stored
    if (rest && (!strcmp(rest, "attn.bias") || !strcmp(rest, "attn.masked_bias"))) return HF_BUFFER;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const char *own = is_in_layers(i) ? rest : name;
        *tensor = i;
        if (own && !strcmp(own, table[i].name)) return HF_TENSOR;
    }
    return HF_UNKNOWN;
}

int hf_is_transposed(int tensor) { return table[tensor].transposed; }

void hf_shape(const GPT2Config *config, int tensor, int64_t dims[2], int *n_dims) {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    gpt2_tensors(config, tensors);
    const GPT2Tensor *t = &tensors[tensor];
    const int swapped = table[tensor].transposed;
    *n_dims = t->n_dims;
    dims[0] = t->dims[swapped];
    dims[1] = t->dims[!swapped];
    if (tensor == WTE) dims[0] = config->vocab_size;
}
