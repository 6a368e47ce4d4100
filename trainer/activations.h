// The model that is trained: its shape, and the table of its activations. The parameters are the plugin's.
#ifndef TRAINER_ACTIVATIONS_H
#define TRAINER_ACTIVATIONS_H
#include <stddef.h>
#include "../gpt2/layers.h"
#include "../gpt2/model.h"
// defines: zero_tensor, zero_unit
#include "../llmc_zero/zero.h"

// The model as the plugin knows it.
typedef struct {
    zero_tensor tensors[NUM_PARAMETER_TENSORS];
    int n_units;
    zero_unit *units;   // (n_units)
    char (*names)[24];  // (n_units)
} PluginTables;

typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    PluginTables tables;  // (describe_to_plugin)
    int B, T;
    int recompute;         // in backward: 0 nothing, 1 GELU, 2 layernorms too
    int chunk;             // rows of logits that exist at a time
    int inference;         // 1: B*T is the tokens of the largest pass over the cache (settle_generation)
    int cache_rows;        // rows of text that grow token by token; 0: none
    int cache_T;           // their longest
    size_t scratch_bytes;  // that the layers work in
    struct {
        void *memory;   // device memory of the plugin
        size_t stride;  // bytes from layer to layer; 0: all layers use the same memory
    } activations[NUM_ACTIVATIONS];
} GPT2;

// Bytes of `rows` rows of logits.
size_t logits_bytes(const GPT2 *model, size_t rows);

// What is allocated for the activations, by name.
void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]);
// Bytes of one of them, all its layers together, as the plugin counts them.
size_t activation_pages(const GPT2Activation *a);
// Lines of the memory table, beside that of the other activations.
#define SCRATCH_OF_LAYERS "scratch of the layers"
#define KEYS_AND_VALUES "keys and values"

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
