// Models: llm.c's files, which are also compared with a checkpoint, and Hugging Face folders, of which one
// file varies at a time.
#include <string.h>
#include <sys/stat.h>
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/hf.h"
#include "../../gpt2/safetensors.h"
#include "fuzz.h"

enum { MOST = 1 << 14 };
typedef struct {
    uint8_t bytes[MOST];
    size_t n;
} File;

// A value that is exact in bf16.
static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++) values[i] = (float)((offset + i + tensor) % 100) / 8;
    return 0;
}

typedef struct {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    int64_t elems;
    float largest;
} Seen;

static int take_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    Seen *seen = ctx;
    FUZZ_MUST(tensor >= 0 && tensor < NUM_PARAMETER_TENSORS && layer >= 0);
    FUZZ_MUST(offset >= 0 && n > 0 && offset + n <= seen->tensors[tensor].elems);
    for (int64_t i = 0; i < n; i++)
        if (values[i] > seen->largest) seen->largest = values[i];
    seen->elems += n;
    return 0;
}

static const char *read_stored(const char *path) {
    GPT2Stored stored;
    Seen seen = { .elems = 0 };
    if (gpt2_stored_open(path, &stored)) return gpt2_last_error();
    gpt2_tensors(&stored.config, seen.tensors);
    const int failed = gpt2_stored_read(&stored, take_values, &seen);
    FUZZ_MUST(failed || seen.elems == gpt2_num_parameters(&stored.config));
    gpt2_stored_close(&stored);
    return failed ? gpt2_last_error() : NULL;
}

// -------- llm.c's files

static const GPT2Config model = { 4, 5, 8, 1, 1, 2 };

static void give_model(const char *name, gpt2_dtype dtype) {
    static uint8_t bytes[MOST];
    const char *path = fuzz_path("seed");
    FUZZ_MUST(!gpt2_file_write(path, &model, dtype, give_values, NULL));
    fuzz_seed(name, bytes, fuzz_bytes(path, bytes, MOST));
}

static void give_models(void) {
    give_model("fp32", GPT2_F32);
    give_model("bf16", GPT2_BF16);
}

static const char *read_model(const uint8_t *bytes, size_t n) { return read_stored(fuzz_path("model")); }

static const fuzz_damage bad_models[] = {
    FUZZ_PUT(0, 20240520, 0, "first number is 20240520"),
    FUZZ_PUT(4, 4, 0, "version 4"),
    FUZZ_PUT(8, 0, 0, "positions"),
    FUZZ_PUT(12, -1u, 0, "vocabulary"),
    FUZZ_PUT(20, 3, 0, "3 heads"),
    FUZZ_PUT(24, 1u << 30, 0, "channels"),
    FUZZ_PUT(28, 4, 0, "padded"),
    FUZZ_PUT(16, 3, 0, "cut short"),
    FUZZ_PUT(4, 5, 0, "too long"),
    FUZZ_PUT(0, 20240326, -1, "cut short"),
    FUZZ_PUT(0, 20240326, 1, "too long"),
    FUZZ_PUT(0, 20240326, -1400, "bytes cannot be a model file"),
};

FUZZ_DEFINE(model_file, NULL, give_models, .file = "model", .read = read_model, FUZZ_ROWS(bad_models));

// An exported file must be, byte for byte, what the checkpoint gives.
static void give_export(void) { give_model("fp32", GPT2_F32); }

static const char *compare_export(const uint8_t *bytes, size_t n) {
    return gpt2_file_compare(fuzz_path("export"), &model, GPT2_F32, give_values, NULL) ? gpt2_last_error()
                                                                                       : NULL;
}

FUZZ_DEFINE(model_export, NULL, give_export, .file = "export", .read = compare_export, .block = 1,
            .changed = "offset %ld has ", .cut = "bytes, but the checkpoint has");

// -------- Hugging Face folders: one in a single file, and one in two files with an index

static File weights, config, index_text;

static void put_in_part(SafeHeader *h, json_t *map, const char *file, int tensor, int layer) {
    static const GPT2Config small = { 3, 5, 128, 2, 2, 4 };
    char name[HF_NAME];
    int64_t dims[2];
    int n_dims;
    hf_name(name, tensor, layer);
    hf_shape(&small, tensor, dims, &n_dims);
    FUZZ_MUST(!safe_header_add(h, name, GPT2_F32, dims, n_dims));
    FUZZ_MUST(!json_object_set_new(map, name, json_string(file)));
}

// Writes a file with every other tensor, filled with zeros.
static void write_part(json_t *map, const char *file, int first) {
    char path[100], *text;
    size_t n;
    SafeHeader h;
    FUZZ_MUST(!safe_header_begin(&h));
    for (int k = first; k < NUM_PARAMETER_TENSORS; k += 2)
        for (int l = 0; l < (k >= LN1W && k <= FCPROJB ? 2 : 1); l++) put_in_part(&h, map, file, k, l);
    const size_t values = (size_t)h.bytes;
    FUZZ_MUST(!safe_header_end(&h, &text, &n) && (text = realloc(text, n + values)));
    memset(text + n, 0, values);
    snprintf(path, sizeof path, "parts/%s", file);
    fuzz_file(path, text, n + values);
    free(text);
}

static void write_folders(void) {
    const HfModel to = { .config = { 3, 5, 128, 2, 2, 4 }, .dtype = GPT2_F32, .get = give_values };
    json_t *map = json_object(), *root = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    if (weights.n) return;
    FUZZ_MUST(root && !hf_write(fuzz_path("hf"), &to));
    weights.n = fuzz_bytes(fuzz_path("hf/" HF_WEIGHTS), weights.bytes, MOST);
    config.n = fuzz_bytes(fuzz_path("hf/" HF_CONFIG), config.bytes, MOST);
    FUZZ_MUST(!mkdir(fuzz_path("parts"), 0700));
    fuzz_file("parts/" HF_CONFIG, config.bytes, config.n);
    write_part(map, "part0.safetensors", 0);
    write_part(map, "part1.safetensors", 1);
    index_text.n = json_dumpb(root, (char *)index_text.bytes, MOST, JSON_COMPACT);
    FUZZ_MUST(index_text.n > 0 && index_text.n < MOST);
    json_decref(root);
}

static void begin_weights(void) {
    write_folders();
    fuzz_file("hf/" HF_CONFIG, config.bytes, config.n);
}

static void begin_config(void) {
    write_folders();
    fuzz_file("hf/" HF_WEIGHTS, weights.bytes, weights.n);
}

static void give_weights(void) { fuzz_seed("fp32", weights.bytes, weights.n); }
static void give_config(void) { fuzz_seed("config", config.bytes, config.n); }
static void give_index(void) { fuzz_seed("two", index_text.bytes, index_text.n); }
static const char *read_folder(const uint8_t *bytes, size_t n) { return read_stored(fuzz_path("hf")); }
static const char *read_parts(const uint8_t *bytes, size_t n) { return read_stored(fuzz_path("parts")); }

// Corrects the length of the header.
static void mend_length(uint8_t *bytes, long grown) {
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    length += (uint64_t)grown;
    memcpy(bytes, &length, sizeof length);
}

#define WTE_ROW "\"transformer.wte.weight\":{\"dtype\":\"F32\",\"shape\":[5,4],\"data_offsets\":[0,80]}"
#define WTE_WITH(shape, offsets) \
    "wte.weight\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const fuzz_damage bad_headers[] = {
    { "F32", "I32", "wte.weight\" is stored as I32" },
    { "F32", "F64", "F64 of shape [5, 4] does not fill its 80 bytes" },
    { "F32", "X", "wte.weight\" is stored as X" },
    { "\"F32\"", "7", "\"dtype\" must be a string" },
    { "[5,4]", "[4,5]", "has the shape [4, 5], but according to config.json it must be [5, 4]" },
    { "[5,4]", "[20]", "has the shape [20], but according to config.json it must be [5, 4]" },
    { "[5,4]", "[-5,-4]", "whole numbers from 0" },
    { "[5,4]", "[5.0,4]", "whole numbers from 0" },
    { "[5,4]", "[4611686018427387904,4]", "more elements than a file can hold" },
    { "[5,4]", "[4611686018427387904,1]", "does not fill its 80 bytes" },
    { "[5,4]", "[99999999999999999999,4]", "too big integer" },
    { "[5,4]", "{}", "at most 8 numbers" },
    { "[5,4]", "[5,4,1,1,1,1,1,1,1]", "at most 8 numbers" },
    { "[0,80]", "[80,0]", "must be increasing and inside" },
    { "[0,80]", "[-8,72]", "must be increasing and inside" },
    { "[0,80]", "[0,9223372036854775807]", "must be increasing and inside" },
    { "[0,80]", "[0]", "two whole numbers" },
    { "[0,80]", "[0,80,80]", "two whole numbers" },
    { "[0,80]", "[\"0\",80]", "two whole numbers" },
    { "[5,4],\"data_offsets\":[0,80]", "[5,3],\"data_offsets\":[0,60]", "there is a gap" },
    { "[5,4],\"data_offsets\":[0,80]", "[5,5],\"data_offsets\":[0,100]", "they overlap" },
    { WTE_ROW ",", "",
      "begins at byte 80 of the values, but the previous one ends at byte 0: there is a gap" },
    { WTE_ROW, WTE_ROW "," WTE_ROW, "duplicate object key" },
    { WTE_ROW, WTE_ROW ",\"transformer." WTE_WITH("[0,4]", "[0,0]"), "duplicate object key" },
    { WTE_ROW, WTE_ROW ",\"" WTE_WITH("[0,4]", "[0,0]"), "" },
    { WTE_ROW, "\"transformer.wte.weight\":5", "must be an object" },
    { "\"transformer.wte.weight\"", "\"wpe.weight\"", "must be [3, 4]" },
    { "\"transformer.wte.weight\"", "\"h.0.attn.bias\"", "the weights have no tensor \"wte.weight\"" },
    { "\"transformer.h.1.ln_1.bias\"", "\"h.2.ln_1.bias\"", "\"n_layer\" in config.json is 2" },
    { "\"transformer.h.1.ln_1.bias\"", "\"h.01.ln_1.bias\"", "does not belong to a GPT-2" },
    { "\"transformer.h.1.ln_1.bias\"", "\"h.1.ln_3.bias\"", "does not belong to a GPT-2" },
    { "\"transformer.h.1.ln_1.bias\"", "\"h.0.ln_1.bias\"",
      "occurs a second time, as \"transformer.h.0.ln_1.bias\"" },
    { "\"transformer.h.1.ln_1.bias\"", "\"model.layers.1.input_layernorm.weight\"",
      "does not belong to a GPT-2" },
    { "{\"__metadata__\"", "[\"__metadata__\"", "of its JSON" },
    { "{\"__metadata__\"", "{{\"__metadata__\"", "of its JSON" },
    FUZZ_PUT(4, 1u << 31, 0, "not a safetensors file"),
    FUZZ_PUT(4, -1u, 0, "not a safetensors file"),
    FUZZ_PUT(0, SAFE_HEADER + 1, 0, "not a safetensors file"),
    FUZZ_PUT(0, SAFE_HEADER, 0, "cut short: its header has"),
    FUZZ_PUT(0, 4, 0, "of its JSON"),
    FUZZ_PUT(4, 0, -1, "inside the"),
    FUZZ_PUT(4, 0, 1, "bytes of values, but its tensors"),
    FUZZ_PUT(4, 0, -100000, "cannot be a safetensors file"),
};
static const fuzz_damage bad_configs[] = {
    { "\"gpt2\"", "\"llama\"", "\"model_type\" is \"llama\"; only \"gpt2\"" },
    { "\"model_type\"", "\"type\"", "\"model_type\" is \"not there\"" },
    { "\"n_layer\": 2", "\"n_layer\": 0", "\"n_layer\" must be a whole number" },
    { "\"n_layer\": 2", "\"n_layer\": 2.0", "\"n_layer\" must be a whole number" },
    { "\"n_layer\": 2", "\"n_layer\": 99999999", "99999999 layers" },
    { "\"n_layer\": 2", "\"n_layer\": 3", "no tensor \"h.2.ln_1.weight\"" },
    { "\"n_layer\": 2,", "", "\"n_layer\" must be a whole number" },
    { "\"n_head\": 2", "\"n_head\": 3", "cannot be divided among 3 heads" },
    { "\"n_embd\": 4", "\"n_embd\": 6", "must be [5, 6]" },
    { "\"vocab_size\": 5", "\"vocab_size\": 4", "must be [4, 4]" },
    { "\"vocab_size\": 5", "\"vocab_size\": 2147483647", "tokens in the vocabulary" },
    { "\"n_positions\": 3", "\"n_positions\": 2", "must be [2, 4]" },
    { "\"n_inner\": null", "\"n_inner\": 32", "\"n_inner\" is 32; this model has 4 x \"n_embd\" = 16" },
    { "gelu_new", "relu", "\"activation_function\" is \"relu\"; this model has \"gelu_new\"" },
    { "1e-5", "1e-6", "\"layer_norm_epsilon\" is 1e-06" },
    { "\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "must be true" },
    { "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false", "must be true" },
    { "\"use_cache\": true", "\"add_cross_attention\": true", "must be false" },
    { "inverse_layer_idx\": false", "inverse_layer_idx\": 1", "must be false" },
    { "\"use_cache\": true", "\"n_embd\": 4", "duplicate object key" },
    { "{", "[", "of its JSON" },
};
static const fuzz_damage bad_indexes[] = {
    { "\"weight_map\"", "\"map\"", "\"weight_map\" must be an object" },
    { "\"part0.safetensors\"", "\"../part0.safetensors\"", "must be a name in the folder" },
    { "\"part0.safetensors\"", "\".part0\"", "must be a name in the folder" },
    { "\"part0.safetensors\"", "5", "must be a name in the folder" },
    { "\"part0.safetensors\"", "\"part7.safetensors\"", "part7.safetensors: cannot open: No such file" },
    { "\"part0.safetensors\"", "\"part1.safetensors\"", "has no tensor \"wte.weight\"" },
    { "\"wte.weight\":\"part0.safetensors\",", "", "\"wte.weight\", which the index expects in no file" },
};

FUZZ_DEFINE(safetensors, begin_weights, give_weights, .is_text = 1, .file = "hf/" HF_WEIGHTS,
            .read = read_folder, .mend = mend_length, FUZZ_ROWS(bad_headers));
FUZZ_DEFINE(hf_config, begin_config, give_config, .is_text = 1, .file = "hf/" HF_CONFIG, .read = read_folder,
            FUZZ_ROWS(bad_configs));
FUZZ_DEFINE(hf_index, write_folders, give_index, .is_text = 1, .file = "parts/" HF_INDEX, .read = read_parts,
            FUZZ_ROWS(bad_indexes));
