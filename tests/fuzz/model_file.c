// llm.c's model files.
#include <string.h>
#include "../../gpt2/model.h"
#include "fuzz.h"

enum { HEADER = 256 * sizeof(int32_t) };

static void give_seed(const char *name, int version, size_t size) {
    const int32_t header[] = { 20240326, version, 4, 5, 1, 1, 2, 8 };
    const GPT2Config c = { 4, 5, 8, 1, 1, 2 };
    size_t n = HEADER + (size_t)gpt2_num_parameters(&c) * size;
    char *bytes = calloc(1, n);
    FUZZ_MUST(bytes);
    memcpy(bytes, header, sizeof header);
    fuzz_seed(name, bytes, n);
    free(bytes);
}

static void give_seeds(void) {
    give_seed("fp32", 3, 4);
    give_seed("bf16", 5, 2);
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

int fuzz_read_model(const char *path) {
    GPT2Stored stored;
    Seen seen = { .elems = 0 };
    if (gpt2_stored_open(path, &stored)) return 0;
    gpt2_tensors(&stored.config, seen.tensors);
    FUZZ_MUST(!gpt2_stored_read(&stored, take_values, &seen));
    FUZZ_MUST(seen.elems == gpt2_num_parameters(&stored.config));
    gpt2_stored_close(&stored);
    return 1;
}

static int read_model(const uint8_t *bytes, size_t n) {
    return fuzz_read_model(fuzz_file("model", bytes, n));
}

const fuzz_target fuzz_model_file = { .name = "model_file", .seeds = give_seeds, .read = read_model };
