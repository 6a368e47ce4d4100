// A folder of Hugging Face's: its weights, with a header of JSON, and its configuration.
#include <string.h>
#include "../../gpt2/hf.h"
#include "fuzz.h"

static const GPT2Config small = { 4, 5, 128, 1, 1, 2 };

static int give_ones(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    (void)ctx, (void)tensor, (void)layer, (void)offset;
    for (int64_t i = 0; i < n; i++) values[i] = 1;
    return 0;
}

// The folder that is read, of which one file is replaced.
static void make_folder(void) {
    const HfModel m = { small, GPT2_F32, give_ones, NULL, NULL };
    if (!hf_is_folder(fuzz_path("hf"))) FUZZ_MUST(!hf_write(fuzz_path("hf"), &m));
}

static void give_file(const char *folder, const char *name, const char *file) {
    char path[4096], bytes[8192];
    FUZZ_MUST(!hf_path(path, sizeof path, folder, file));
    FILE *f = fopen(path, "rb");
    FUZZ_MUST(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    FUZZ_MUST(n && n < sizeof bytes && !fclose(f));
    fuzz_seed(name, bytes, n);
}

static void give_weights(void) {
    const HfModel bf16 = { small, GPT2_BF16, give_ones, NULL, NULL };
    make_folder();
    give_file(fuzz_path("hf"), "fp32", HF_WEIGHTS);
    if (!hf_is_folder(fuzz_path("hf16"))) FUZZ_MUST(!hf_write(fuzz_path("hf16"), &bf16));
    give_file(fuzz_path("hf16"), "bf16", HF_WEIGHTS);
}

static void give_config(void) {
    make_folder();
    give_file(fuzz_path("hf"), "config", HF_CONFIG);
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

static int read_folder(void) {
    GPT2Stored stored;
    Seen seen = { .elems = 0 };
    if (gpt2_stored_open(fuzz_path("hf"), &stored)) return 0;
    gpt2_tensors(&stored.config, seen.tensors);
    FUZZ_MUST(!gpt2_stored_read(&stored, take_values, &seen));
    FUZZ_MUST(seen.elems == gpt2_num_parameters(&stored.config));
    gpt2_stored_close(&stored);
    return 1;
}

static int read_weights(const uint8_t *bytes, size_t n) {
    fuzz_file("hf/" HF_WEIGHTS, bytes, n);
    return read_folder();
}

static int read_config(const uint8_t *bytes, size_t n) {
    fuzz_file("hf/" HF_CONFIG, bytes, n);
    return read_folder();
}

const fuzz_target fuzz_safetensors = { "safetensors", 1, make_folder, give_weights, read_weights };
const fuzz_target fuzz_hf_config = { "hf_config", 1, make_folder, give_config, read_config };
