// Stands in for the CUDA layers in a build without CUDA.
#ifndef GPT2_CUDA
#include "gpt2_error.h"
#include "layers.h"

const Layers *layers_cuda(void) { return NULL; }

int layers_cuda_options(int tf32, int gelu, const char *attention) {
    (void)tf32, (void)gelu, (void)attention;
    return gpt2_fail("built without CUDA");
}

void layers_cuda_attention_limit(size_t bytes) { (void)bytes; }

const char *layers_cuda_attention(void) { return ""; }

layers_attention_backward layers_cuda_attention_backward(void) {
    return (layers_attention_backward){ 0, 0, 0 };
}

int layers_cuda_gelu_fused(int OC) {
    (void)OC;
    return 0;
}

int layers_cuda_tune(const char *name, const char *text, int may_time) {
    (void)name, (void)text, (void)may_time;
    return gpt2_fail("built without CUDA");
}

char *layers_cuda_tuned(void) {
    gpt2_fail("built without CUDA");
    return NULL;
}

const char *layers_cuda_card(void) {
    gpt2_fail("built without CUDA");
    return NULL;
}
#endif
