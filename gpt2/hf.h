// GPT-2 as Hugging Face's transformers stores it: a folder with config.json, the weights in one or several
// safetensors files, and the tokenizer. Its linear layers are (in, out) where llm.c's are (out, in), and wte
// has no padding. Each function returns 0, or -1 with gpt2_fail's sentence.
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
// Opens one for gpt2_stored_open. Every name, shape and dtype is checked.
int hf_open(const char *folder, GPT2Stored *stored);

typedef struct {
    GPT2Config config;
    gpt2_dtype dtype;  // to write: GPT2_F32 or GPT2_BF16
    gpt2_source get;
    void *ctx;
    const Tokenizer *tokenizer;  // NULL: none is written
} HfModel;
// Writes a folder that is not there, or is empty. It appears whole.
int hf_write(const char *folder, const HfModel *m);

// -------- between the files of this part

enum { HF_NAME = 64 };
typedef enum { HF_TENSOR, HF_HEAD, HF_BUFFER, HF_UNKNOWN } HfKind;
// The name of a tensor, without "transformer.".
void hf_name(char name[HF_NAME], int tensor, int layer);
// What a name is, with or without "transformer."; of a HF_TENSOR also which one. layer may be any number.
HfKind hf_find(const char *name, int *tensor, int *layer);
int hf_is_transposed(int tensor);
// Its shape in the folder.
void hf_shape(const GPT2Config *config, int tensor, int64_t dims[2], int *n_dims);

int hf_config_read(const char *folder, GPT2Config *config);
// Writes config.json and generation_config.json. eot: the end-of-text token.
int hf_config_write(const char *folder, const HfModel *m, int eot);
int hf_tokenizer_write(const char *folder, const Tokenizer *t, const GPT2Config *config);
// The path of a file in a folder.
int hf_path(char *path, size_t size, const char *folder, const char *name);
// Writes JSON in lines.
int hf_json_write(const char *folder, const char *name, json_t *root);

#endif
