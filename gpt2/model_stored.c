// Shared by the formats of stored models.
#include <stdlib.h>
#include <string.h>
#include "disk.h"
#include "gpt2_error.h"
#include "model.h"

int gpt2_each_piece(const GPT2Config *config, gpt2_visitor visit, void *ctx) {
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
    gpt2_tensors(config, tensors);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        int layers = tensors[i].per_layer ? config->num_layers : 1;
        for (int l = 0; l < layers; l++) {
            for (int64_t at = 0; at < tensors[i].elems; at += GPT2_PIECE) {
                int64_t rest = tensors[i].elems - at;
                if (visit(ctx, i, l, at, rest < GPT2_PIECE ? rest : GPT2_PIECE)) return -1;
            }
        }
    }
    return 0;
}

void gpt2_stored_close(GPT2Stored *stored) {
    if (stored->close) stored->close(stored->ctx);
    stored->close = NULL;
}

typedef struct {
    const GPT2Stored *from;
    gpt2_sink sink;
    void *ctx;
    float *values;  // (GPT2_PIECE)
} Reading;

static int read_piece(void *ctx, int tensor, int layer, int64_t offset, int64_t n) {
    Reading *r = ctx;
    if (r->from->get(r->from->ctx, tensor, layer, offset, n, r->values)) return -1;
    return r->sink(r->ctx, tensor, layer, offset, n, r->values);
}

int gpt2_stored_read(const GPT2Stored *stored, gpt2_sink sink, void *ctx) {
    Reading r = { stored, sink, ctx, malloc(GPT2_PIECE * sizeof(float)) };
    if (!r.values) return gpt2_fail("no memory for the pieces of a model");
    int failed = gpt2_each_piece(&stored->config, read_piece, &r);
    free(r.values);
    return failed;
}

int gpt2_read_values(int fd, const char *path, int64_t at, gpt2_dtype dtype, int64_t n, float *values) {
    enum { HALVES = 1 << 14 };
    uint16_t halves[HALVES];
    if (dtype == GPT2_F32) return disk_read(fd, path, at, (size_t)n * sizeof *values, values);
    for (int64_t done = 0; done < n; done += HALVES) {
        const int64_t some = n - done < HALVES ? n - done : HALVES;
        if (disk_read(fd, path, at + 2 * done, 2 * (size_t)some, halves)) return -1;
        for (int64_t i = 0; i < some; i++) values[done + i] = gpt2_value(dtype, halves, (size_t)i);
    }
    return 0;
}

size_t gpt2_to_dtype(gpt2_dtype dtype, float *values, int64_t n) {
    char *to = (char *)values;
    if (dtype == GPT2_F32) return (size_t)n * sizeof *values;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t half = f32_to_bf16(values[i]);
        memcpy(to + i * (int64_t)sizeof half, &half, sizeof half);
    }
    return (size_t)n * sizeof(uint16_t);
}
