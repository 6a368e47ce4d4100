// Hugging Face folders. One target varies the weights, the other config.json; the other files are valid.
#include "../../gpt2/hf.h"
#include <string.h>
#include "fuzz.h"

enum { MOST = 1 << 14 };
typedef struct {
    char bytes[MOST];
    size_t n;
} File;
static File weights, config;

static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    for (int64_t i = 0; i < n; i++) values[i] = (float)(offset + i + tensor) / 8;
    return 0;
}

static void read_back(File *file, const char *path) {
    FILE *f = fopen(path, "rb");
    FUZZ_MUST(f);
    file->n = fread(file->bytes, 1, MOST, f);
    FUZZ_MUST(file->n > 0 && file->n < MOST && !fclose(f));
}

static void write_folder(void) {
    const HfModel model = { .config = { 4, 5, 8, 1, 1, 2 }, .dtype = GPT2_F32, .get = give_values };
    if (weights.n) return;
    FUZZ_MUST(!hf_write(fuzz_path("hf"), &model));
    read_back(&weights, fuzz_path("hf/" HF_WEIGHTS));
    read_back(&config, fuzz_path("hf/" HF_CONFIG));
}

static void give_weights(void) { fuzz_seed("fp32", weights.bytes, weights.n); }
static void give_config(void) { fuzz_seed("config", config.bytes, config.n); }

static int read_weights(const uint8_t *bytes, size_t n) {
    fuzz_file("hf/" HF_CONFIG, config.bytes, config.n);
    fuzz_file("hf/" HF_WEIGHTS, bytes, n);
    return fuzz_read_model(fuzz_path("hf"));
}

static int read_config(const uint8_t *bytes, size_t n) {
    fuzz_file("hf/" HF_WEIGHTS, weights.bytes, weights.n);
    fuzz_file("hf/" HF_CONFIG, bytes, n);
    return fuzz_read_model(fuzz_path("hf"));
}

const fuzz_target fuzz_safetensors = {
    .name = "safetensors", .is_text = 1, .begin = write_folder, .seeds = give_weights, .read = read_weights
};
const fuzz_target fuzz_hf_config = {
    .name = "hf_config", .is_text = 1, .begin = write_folder, .seeds = give_config, .read = read_config
};
