// The model being trained: its shape and its activations. The plugin holds the parameters.
#ifndef TRAINER_ACTIVATIONS_H
#define TRAINER_ACTIVATIONS_H
#include <stddef.h>
#include "../../gpt2/layers.h"
#include "../../gpt2/model.h"
#include "../../llmc_zero/zero.h"  // zero_tensor, zero_unit

// The tables that describe the model to the plugin.
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
    int micro_batches;   // of a step, A
    int by_layers;       // 1: all A pass a unit while it is open (--accumulate layers)
    int units_a_block;   // 1, or 4 with --units matrix
    int micro, at_once;  // what the layers work on: number `micro` of those that pass a block now
    int recompute;       // in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 all except a block's input
    int inputs_on_host;  // 1: level 3 keeps the blocks' inputs in host memory, with two buffers on the device
    int chunk;           // rows of logits computed at a time
    int inference;       // 1: B*T is the number of tokens in the largest pass (answers_describe)
    int cache_rows;      // rows of text that grow token by token; 0: none
    int cache_T;         // maximum positions per row
    int cache_positions;   // total over all rows, after the cache's rounding
    size_t scratch_bytes;  // scratch that the layers need
    struct {
        void *memory;   // from the plugin, on the device or on the host
        size_t stride;  // bytes from one layer to the next
        int layers;     // number stored; layer l uses number l % layers
        int each;       // 1: each micro-batch that passes a block has its own
    } activations[NUM_ACTIVATIONS];
} GPT2;
void free_tables(GPT2 *model);

// Returns "L 12, NH 12, C 768, V 50257, longest sequence 1024", valid until the next call.
const char *sizes_of(const GPT2Config *config);

// Returns the arithmetic operations that training needs for a token.
double flops_per_token(const GPT2 *model);

// Bytes of `rows` rows of logits.
size_t logits_bytes(const GPT2 *model, size_t rows);

// Fills in the activations to allocate.
void activation_table(const GPT2 *model, GPT2Activation table[NUM_ACTIVATIONS]);
// Bytes of one activation over all its layers, in whole pages as the plugin counts them.
size_t activation_pages(const GPT2 *model, const GPT2Activation *a);
// Lines of the memory table that hold activations, besides the one named "activations".
#define SCRATCH_OF_LAYERS "scratch of the layers"
#define KEYS_AND_VALUES "keys and values"
#define INPUTS_OF_BLOCKS "inputs of blocks"

// Bytes of all activations on a tier, in whole pages as the plugin counts them. chunk and scratch_bytes add
// nothing until settle_memory sets them.
size_t activation_bytes(const GPT2 *model, zero_tier tier);

// Returns 0, or -1 with the plugin's error if memory runs out. zero_destroy frees the memory.
int allocate_activations(GPT2 *model);

// Returns an activation of a layer, of the micro-batch that the layers work on; layer 0 if there is only one.
static inline void *act(const GPT2 *model, int which, int layer) {
    const int layers = model->activations[which].layers;
    const size_t at = (size_t)(model->activations[which].each ? model->micro : 0) * layers + layer % layers;
    return (char *)model->activations[which].memory + at * model->activations[which].stride;
}
// Returns row `row` of a matrix with `width` columns in the model's dtype.
static inline void *row_of(const GPT2 *model, const void *base, size_t row, size_t width) {
    return (char *)base + row * width * gpt2_dtype_size(model->dtype);
}

// Returns the input of block l, or of the LM head (l = L): the residual stream (B, T, C).
void *block_input(const GPT2 *model, int l);

// With inputs_on_host, a separate stream copies the inputs of blocks 1 to L-2 to the host after forward has
// written them, and back one ahead of backward; if several micro-batches pass a block, block L-1's too. The
// inputs of blocks 1 to L-1 and of the LM head (l = L), micro-batch by micro-batch, alternate between two
// buffers on the device; block 0's input stays on the device. Without inputs_on_host these functions do
// nothing.
//
// Makes the device wait until it may write the buffer of block l's input or, if the input was fetched, read
// it.
void await_input(const GPT2 *model, int l);
// Queues a copy of block l's input to the host, after the work that writes it.
void offload_input(const GPT2 *model, int l);
// Queues the copy of the input that backward needs first, or needs next after block l's, back to the device,
// after the work that still needs the buffer.
void fetch_first_input(const GPT2 *model);
void fetch_next_input(const GPT2 *model, int l);

#endif
