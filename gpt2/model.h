// The definition of a GPT-2: its sizes, its 16 parameter tensors in llm.c's order, its descriptors and its
// model files.
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H
#include <stdint.h>
#include <stdio.h>
#include "layers.h"

typedef struct {
    int max_seq_len;        // longest sequence, e.g. 1024
    int vocab_size;         // V, e.g. 50257
    int padded_vocab_size;  // Vp, V rounded up to a multiple of 128, e.g. 50304
    int num_layers;         // L
    int num_heads;          // NH
    int channels;           // C
} GPT2Config;

// llm.c's order, also used by model files, digests and initialisation
// clang-format off
enum {
    WTE, WPE, LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB, LNFW, LNFB,
    NUM_PARAMETER_TENSORS
};
// clang-format on

typedef struct {
    const char *name;  // "wte", "qkvw", ...
    int64_t elems;     // elements of one layer's tensor
    int per_layer;     // 1: one for each of the L layers; 0: only one
    int n_dims;        // 1 or 2: a vector, or a matrix (weight decay applies to matrices only)
    int64_t dims[2];   // its shape
} GPT2Tensor;
void gpt2_tensors(const GPT2Config *config, GPT2Tensor tensors[NUM_PARAMETER_TENSORS]);
int64_t gpt2_num_parameters(const GPT2Config *config);
// Returns V rounded up to a multiple of 128.
int gpt2_padded_vocab(int vocab_size);

// Activations that forward keeps for backward, and buffers that both use. They have the model's dtype, except
// those marked float or double. With by_layers, what is still needed when the next micro-batch passes the
// same block, or part of it, exists A times. B batch, T sequence length, C channels, NH heads, Vp padded
// vocabulary. If backward recomputes an activation, all L layers share the memory of one.
enum {
    ENCODED,         // (B, T, C)
    LN1,             // (L, B, T, C)
    QKV,             // (L, B, T, 3C)
    ATTY,            // (L, B, T, C)
    RESIDUAL2,       // (L, B, T, C)
    LN2,             // (L, B, T, C)
    FCH,             // (L, B, T, 4C)
    FCH_GELU,        // (L, B, T, 4C)
    RESIDUAL3,       // (L, B, T, C); with inputs_on_host (2, B, T, C), which layers alternate between
    LN1_MEAN,        // (L, B, T) float
    LN1_RSTD,        // (L, B, T) float
    LN2_MEAN,        // (L, B, T) float
    LN2_RSTD,        // (L, B, T) float
    LSE,             // (L, B, NH, T) float
    LNF,             // (B, T, C)
    LNF_MEAN,        // (B, T) float
    LNF_RSTD,        // (B, T) float
    LOSSES,          // (B, T) float
    LOSS_SUMS,       // (micro_batches of a step) double: the sum of each one's losses
    SCRATCH_BTC,     // (B, T, C)
    DRESIDUAL,       // (B, T, C)
    DRESIDUAL_SUMS,  // (C) float: sums of dresidual's columns
    DL_BTC,          // (B, T, C)
    DL_BT4C,         // (B, T, 4C)
    DFCB,            // (4C) fcb's gradient, if divided: fcproj's matmul may sum it before fc's unit is open
    LOGITS,          // (chunk, Vp)
    HOST_RESIDUAL3,  // (L - 2, B, T, C) with inputs_on_host: the layers that RESIDUAL3 cannot hold; (L - 1)
                     // if several micro-batches pass a block
    CACHE,           // (L, cache_positions, 2, C) keys and values of generated text
    NUM_ACTIVATIONS
};
typedef struct {
    const char *name;  // "encoded", "ln1", ...
    int layers;        // how many exist: 1, 2 or L
    size_t bytes;      // of one layer; 0: the run has none
    int each;          // 1: exists for each micro-batch that passes a block while it is open
    int on_host;       // 1: in host memory on any device
} GPT2Activation;
// The properties of a run besides the model's sizes.
typedef struct {
    gpt2_dtype dtype;
    int B, T;
    int micro_batches;    // of a step, A
    int by_layers;        // 1: all A pass a block while it is open; 0: one after the other passes the model
    int divided;          // 1: all micro-batches pass one part of a block before the next
    int recompute;        // in backward: 0 nothing, 1 GELU, 2 layernorms too, 3 all but a block's input
    int inputs_on_host;   // 1, with recompute 3: keeps the blocks' inputs in host memory
    int chunk;            // rows of logits that exist at a time
    int inference;        // 1: forward over a cache only; B*T tokens in a pass, chunk of which get logits
    int cache_positions;  // of text that grows token by token, total over all rows
} GPT2Run;
// Fills in the table from which activations are counted and allocated. Allocates nothing itself.
void gpt2_activations(const GPT2Config *config, const GPT2Run *run, GPT2Activation table[NUM_ACTIVATIONS]);

// Parses "d12", "gpt2:d12", "gpt3:c768" as in llm.c (V 50257), or the free form "l4h4c128v512t64" = layers,
// heads, channels, vocabulary, longest sequence. Returns 0 or -1. Errors name the descriptor and the wrong
// part (heads that do not divide the channels, zero, unknown depth).
int gpt2_config_from_descriptor(GPT2Config *config, const char *descriptor);
// Checks that a GPT-2 can have these sizes and that their products fit their types. Returns 0 or -1. The
// error begins with `name`, a file or a descriptor.
int gpt2_config_check(const GPT2Config *config, const char *name);

enum { GPT2_PIECE = 1 << 18 };  // elements of the largest piece: 1 MiB of fp32

// Receives values of a tensor, layer by layer, in pieces: elements [offset, offset + n) of `tensor` at
// `layer`, in fp32. Returns 0, or -1 to stop (with gpt2_fail's message set).
typedef int (*gpt2_sink)(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values);
// Fills in values, with the same coordinates.
typedef int (*gpt2_source)(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values);

// Initialises a model as llm.c does, bit for bit: mt19937 with seed 42, llm.c's order of tensors and layers,
// normal(0, 0.02), residual projections scaled by 1/sqrt(2L), layernorm weights 1, everything else 0,
// including wte's rows V..Vp-1. The sink receives every element exactly once, in pieces of at most
// GPT2_PIECE.
int gpt2_init(const GPT2Config *config, gpt2_sink sink, void *ctx);

// Calls visit for each piece of a model, in llm.c's order: tensor by tensor, all layers of each.
typedef int (*gpt2_visitor)(void *ctx, int tensor, int layer, int64_t offset, int64_t n);
int gpt2_each_piece(const GPT2Config *config, gpt2_visitor visit, void *ctx);

// A model on disk. Its values can be read in any order.
typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;          // of the stored values
    gpt2_source get;           // call it with ctx
    void (*close)(void *ctx);  // NULL: nothing is open
    void *ctx;
    char *const *files;  // of a folder: the model's files, then NULL
} GPT2Stored;
// Opens llm.c's model file, or a Hugging Face folder with safetensors (hf.h). Checks everything but the
// values. Returns 0, or -1 with nothing open.
int gpt2_stored_open(const char *path, GPT2Stored *stored);
void gpt2_stored_close(GPT2Stored *stored);
// Returns 1 for the name of a model file or of a Hugging Face folder, 0 for anything else, such as a
// descriptor.
int gpt2_is_stored(const char *name);
// Takes the sizes from a descriptor or from a stored model. Returns 0 or -1.
int gpt2_config_named(const char *name, GPT2Config *config);
// Passes all values to the sink, in llm.c's order.
int gpt2_stored_read(const GPT2Stored *stored, gpt2_sink sink, void *ctx);
// Reads n values of a dtype from offset `at` of a file, as fp32.
int gpt2_read_values(int fd, const char *path, int64_t at, gpt2_dtype dtype, int64_t n, float *values);

// Converts values in place to the dtype in which a file stores them, F32 or BF16. Returns their size in
// bytes.
size_t gpt2_to_dtype(gpt2_dtype dtype, float *values, int64_t n);

// llm.c's model files: a header of 256 int32 (magic 20240326; version 3 = fp32, 5 = bf16), then the tensors
// in order, with all layers of each. Opening one checks magic, version, sizes and the exact length.
int gpt2_file_open(const char *path, GPT2Stored *stored);
int64_t gpt2_file_bytes(const GPT2Config *config, gpt2_dtype dtype);  // the exact length
// Writes path atomically: temporary name, fsync, rename; removes the temporary file on failure.
int gpt2_file_write(const char *path, const GPT2Config *config, gpt2_dtype dtype, gpt2_source source,
                    void *ctx);
// Returns 0 if the file has the bytes that gpt2_file_write would write, else -1 with a message that gives the
// first different offset.
int gpt2_file_compare(const char *path, const GPT2Config *config, gpt2_dtype dtype, gpt2_source source,
                      void *ctx);

#endif
