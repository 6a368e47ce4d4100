// Stubs for a build without CUDA.
#include "gpt2_error.h"
#include "layers.h"

const Layers *layers_cuda(void) { return NULL; }

int layers_cuda_options(int tf32, int gelu, const char *attention) { return gpt2_fail("built without CUDA"); }

void layers_cuda_attention_limit(size_t bytes) {}

const char *layers_cuda_attention(void) { return ""; }

layers_attention_backward layers_cuda_attention_backward(void) { return (layers_attention_backward){ 0 }; }

int layers_cuda_gelu_fused(gpt2_dtype dt) { return 0; }

int layers_cuda_tune(const char *name, const char *text, int may_time) {
    return gpt2_fail("built without CUDA");
}

static void *none(void) {
    gpt2_fail("built without CUDA");
    return NULL;
}

char *layers_cuda_tuned(void) { return none(); }

const char *layers_cuda_card(void) { return none(); }
