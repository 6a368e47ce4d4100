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

typedef struct GPT2 {
    GPT2Config config;
    gpt2_dtype dtype;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    PluginTables tables;  // (describe_to_plugin)
    int B, T;
    int recompute;         // in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 all but a block's input
    int inputs_on_host;    // 1: level 3 keeps the blocks' inputs in host memory, and the device has two
    int chunk;             // rows of logits that exist at a time
    int inference;         // 1: B*T is the tokens of the largest pass over the cache (answers_describe)
    int cache_rows;        // rows of text that grow token by token; 0: none
    int cache_T;           // positions of their longest
    int cache_positions;   // of all of them together, as the cache rounds them up
    size_t scratch_bytes;  // that the layers work in
    struct {
        void *memory;   // of the plugin, on the device or on the host
        size_t stride;  // bytes from layer to layer
        int layers;     // how many exist; the model's layers take turns
    } activations[NUM_ACTIVATIONS];
} GPT2;
void free_tables(GPT2 *model);

// Bytes of `rows` rows of logits.
size_t logits_bytes(const GPT2 *model, size_t rows);

// What is allocated for the activations, by name.
void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]);
// Bytes of one of them, all its layers together, as the plugin counts them.
size_t activation_pages(const GPT2Activation *a);
// Lines of the memory table, beside that of the other activations.
#define SCRATCH_OF_LAYERS "scratch of the layers"
#define KEYS_AND_VALUES "keys and values"
#define INPUTS_OF_BLOCKS "inputs of blocks"

// Bytes of all activations on a tier together, as the plugin counts them. What is not settled yet (chunk,
// scratch_bytes) is 0 and counts nothing.
size_t activation_bytes(const GPT2 *model, zero_tier tier);

// Returns 0, or -1 and the plugin's sentence where the device has no memory for one of them. The memory is
// freed by zero_destroy.
int allocate_activations(GPT2 *model);

// Returns an activation of a layer; layer 0 of what there is once.
static inline void *act(const GPT2 *model, int which, int layer) {
    const size_t at = layer % model->activations[which].layers;
    return (char *)model->activations[which].memory + at * model->activations[which].stride;
}
// Row `row` of a matrix that has `width` columns in the model's dtype.
static inline void *row_of(const GPT2 *model, void *base, size_t row, size_t width) {
    return (char *)base + row * width * gpt2_dtype_size(model->dtype);
}

// What the layers of one block read and write. residual is the block's input, the stream (B, T, C).
typedef struct {
    void *residual;
    void *ln1, *ln1_mean, *ln1_rstd, *qkv, *lse, *atty;
    void *residual2, *ln2, *ln2_mean, *ln2_rstd, *fch, *fch_gelu;
} BlockActivations;
BlockActivations block_activations(const GPT2 *model, int l);

// With inputs_on_host the inputs of blocks 1 to L-2 go to the host behind forward and come back one block
// ahead of backward, on a stream of their own. The inputs of blocks 1 to L-1 and of the head (l = L) take
// turns on two buffers of the device; block 0's stays there. Without inputs_on_host these do nothing.
//
// Waits, on the device, until block l's input may be written, or if it was fetched, read.
void await_input(const GPT2 *model, int l);
// Starts a copy of block l's input to the host, once it is written.
void offload_input(const GPT2 *model, int l);
// Starts the copy back, once nothing that is queued needs the buffer.
void fetch_input(const GPT2 *model, int l);

#endif
