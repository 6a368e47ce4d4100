// The model being trained: its shape, and the table of its activations. The plugin has the parameters.
#ifndef TRAINER_ACTIVATIONS_H
#define TRAINER_ACTIVATIONS_H
#include <stddef.h>
#include "../gpt2/layers.h"
#include "../gpt2/model.h"
// defines: zero_tensor, zero_unit
#include "../llmc_zero/zero.h"

// The model's tables for the plugin.
typedef struct {
    zero_tensor tensors[NUM_PARAMETER_TENSORS];
    int n_units;
    zero_unit *units;   // (n_units)
    char (*names)[24];  // (n_units)
} PluginTables;

typedef struct GPT2 {
    GPT2Config config;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    PluginTables tables;  // (describe_to_plugin)
    int B, T;
    int recompute;         // in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 all except a block's input
    int inputs_on_host;    // 1: level 3 keeps the blocks' inputs in host memory, with two on the device
    int chunk;             // rows of logits that exist at a time
    int inference;         // 1: B*T is the tokens of the largest pass over the cache (answers_describe)
    int cache_rows;        // rows of text that grow token by token; 0: none
    int cache_T;           // the most positions of a row
    int cache_positions;   // of all rows together, rounded up by the cache
    size_t scratch_bytes;  // of the layers
    struct {
        void *memory;   // from the plugin, on the device or on the host
        size_t stride;  // bytes from layer to layer
        int layers;     // how many exist; the model's layers use them in turn
    } activations[NUM_ACTIVATIONS];
} GPT2;
void free_tables(GPT2 *model);

// Bytes of `rows` rows of logits.
size_t logits_bytes(const GPT2 *model, size_t rows);

// The activations to allocate, by name.
void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]);
// Bytes of one activation, all its layers together, in whole pages as the plugin counts.
size_t activation_pages(const GPT2Activation *a);
// Lines of the memory table, in addition to that of the other activations.
#define SCRATCH_OF_LAYERS "scratch of the layers"
#define KEYS_AND_VALUES "keys and values"
#define INPUTS_OF_BLOCKS "inputs of blocks"

// Bytes of all activations on a tier, in whole pages as the plugin counts. Values not settled yet (chunk,
// scratch_bytes) are 0 and add nothing.
size_t activation_bytes(const GPT2 *model, zero_tier tier);

// Returns 0, or -1 with the plugin's sentence if the device is out of memory. zero_destroy frees the memory.
int allocate_activations(GPT2 *model);

// Returns an activation of a layer; layer 0 if there is only one.
static inline void *act(const GPT2 *model, int which, int layer) {
    const size_t at = layer % model->activations[which].layers;
    return (char *)model->activations[which].memory + at * model->activations[which].stride;
}
// Row `row` of a matrix with `width` columns in the model's dtype.
static inline void *row_of(const GPT2 *model, void *base, size_t row, size_t width) {
    return (char *)base + row * width * gpt2_dtype_size(model->dtype);
}

// The activations of one block. residual is the block's input, the stream (B, T, C).
typedef struct {
    void *residual;
    void *ln1, *ln1_mean, *ln1_rstd, *qkv, *lse, *atty;
    void *residual2, *ln2, *ln2_mean, *ln2_rstd, *fch, *fch_gelu;
} BlockActivations;
BlockActivations block_activations(const GPT2 *model, int l);

// With inputs_on_host the inputs of blocks 1 to L-2 are copied to the host after forward has written them and
// back one block ahead of backward, on a separate stream. The inputs of blocks 1 to L-1 and of the head (l =
// L) use two buffers of the device in turn; block 0's stays there. Without inputs_on_host these functions do
// nothing.
//
// Waits, on the device, until block l's input may be written or, if it was fetched, read.
void await_input(const GPT2 *model, int l);
// Starts a copy of block l's input to the host, once it is written.
void offload_input(const GPT2 *model, int l);
// Starts the copy back, once no queued work needs the buffer.
void fetch_input(const GPT2 *model, int l);

#endif
