// The model that is trained: its shape, and the table of its activations. The parameters are the plugin's.
#ifndef TRAINER_ACTIVATIONS_H
#define TRAINER_ACTIVATIONS_H
#include <stddef.h>
#include "../gpt2/layers.h"
#include "../gpt2/model.h"

// What a forward pass keeps for backward, and the buffers that both work in. They have the model's dtype, but
// for the float ones. B batch, T sequence length, C channels, NH heads, Vp padded vocabulary.
enum {
    ENCODED,         // (B, T, C)
    LN1,             // (L, B, T, C); (B, T, C) where backward recomputes it
    QKV,             // (L, B, T, 3C)
    ATTY,            // (L, B, T, C)
    RESIDUAL2,       // (L, B, T, C)
    LN2,             // (L, B, T, C); (B, T, C) where backward recomputes it
    FCH,             // (L, B, T, 4C)
    FCH_GELU,        // (L, B, T, 4C); (B, T, 4C) where backward recomputes it
    RESIDUAL3,       // (L, B, T, C)
    LN1_MEAN,        // (L, B, T) float
    LN1_RSTD,        // (L, B, T) float
    LN2_MEAN,        // (L, B, T) float
    LN2_RSTD,        // (L, B, T) float
    LSE,             // (L, B, NH, T) float
    LNF,             // (B, T, C)
    LNF_MEAN,        // (B, T) float
    LNF_RSTD,        // (B, T) float
    LOSSES,          // (B, T) float
    LOSS_SUM,        // (1) double: the sum of the losses over all passes of a step or of a validation
    SCRATCH_BTC,     // (B, T, C)
    DRESIDUAL,       // (B, T, C)
    DRESIDUAL_SUMS,  // (C) float: sums of dresidual's columns
    DL_BTC,          // (B, T, C)
    DL_BT4C,         // (B, T, 4C)
    LOGITS,          // (chunk, Vp)
    LAYERS_SCRATCH,  // (scratch_bytes) what the layers work in
    NUM_ACTIVATIONS
};

typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int B, T;
    int recompute;         // in backward: 0 nothing, 1 GELU, 2 layernorms too
    int chunk;             // rows of logits that exist at a time
    size_t scratch_bytes;  // that the layers work in
    struct {
        void *memory;   // device memory of the plugin
        size_t stride;  // bytes from layer to layer; 0: all layers use the same memory
    } activations[NUM_ACTIVATIONS];
} GPT2;

// Bytes of `rows` rows of logits.
size_t logits_bytes(const GPT2 *model, size_t rows);

// Bytes of all activations together, as the plugin counts them. What is not settled yet (chunk,
// scratch_bytes) is 0 and counts nothing.
size_t activation_bytes(const GPT2 *model);

// Returns 0, or -1 and the plugin's sentence where the device has no memory for one of them. The memory is
// freed by zero_destroy.
int allocate_activations(GPT2 *model);

// Returns an activation of a layer; layer 0 of what there is once.
static inline void *act(const GPT2 *model, int which, int layer) {
    return (char *)model->activations[which].memory + layer * model->activations[which].stride;
}

// What the layers of one block read and write. residual is the block's input, the stream (B, T, C).
typedef struct {
    void *residual;
    void *ln1, *ln1_mean, *ln1_rstd, *qkv, *lse, *atty;
    void *residual2, *ln2, *ln2_mean, *ln2_rstd, *fch, *fch_gelu;
} BlockActivations;
BlockActivations block_activations(const GPT2 *model, int l);

#endif
