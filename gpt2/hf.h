// GPT-2 in the format of Hugging Face's transformers: a folder with config.json, the weights in one or more
// safetensors files, and the tokenizer. Its linear layers are (in, out) where llm.c's are (out, in), and its
// wte has no padding. Each function returns 0, or -1 with gpt2_fail's message.
#ifndef GPT2_HF_H
#define GPT2_HF_H
#include <jansson.h>
#include "model.h"
#include "tokenizer.h"

#define HF_CONFIG "config.json"
#define HF_WEIGHTS "model.safetensors"
#define HF_INDEX "model.safetensors.index.json"

// Returns 1 if the folder has weights of this kind.
int hf_is_folder(const char *path);
// Opens such a folder for gpt2_stored_open. Checks every name, shape and dtype.
int hf_open(const char *folder, GPT2Stored *stored);

typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;  // for writing: GPT2_F32 or GPT2_BF16
    gpt2_source get;
    void *ctx;
    const Tokenizer *tokenizer;  // NULL: none is written
} HfModel;
// Writes to a folder that does not exist yet or is empty. It appears atomically.
int hf_write(const char *folder, const HfModel *m);

// -------- for the other hf_*.c files

enum { HF_NAME = 64 };
typedef enum { HF_TENSOR, HF_HEAD, HF_BUFFER, HF_UNKNOWN } HfKind;
// Writes the name of a tensor, without "transformer.".
void hf_name(char name[HF_NAME], int tensor, int layer);
// Returns the kind of a name, with or without "transformer."; for HF_TENSOR also its tensor and layer. layer
// is not checked against the model.
HfKind hf_find(const char *name, int *tensor, int *layer);
int hf_is_transposed(int tensor);
// Writes the tensor's shape in the folder.
void hf_shape(const GPT2Config *config, int tensor, int64_t dims[2], int *n_dims);

int hf_config_read(const char *folder, GPT2Config *config);
// Writes config.json and generation_config.json. eot: the end-of-text token.
int hf_config_write(const char *folder, const HfModel *m, int eot);
int hf_tokenizer_write(const char *folder, const Tokenizer *t, const GPT2Config *config);
// Writes the path of a file in a folder.
int hf_path(char *path, size_t size, const char *folder, const char *name);
// Writes indented JSON.
int hf_json_write(const char *folder, const char *name, json_t *root);

#endif
