/* Causal attention by cuDNN's fused kernels, for attention_cuda.cu. */
#ifndef GPT2_ATTENTION_CUDNN_H
#define GPT2_ATTENTION_CUDNN_H
#include "layers.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "error.h"

#ifdef GPT2_CUDNN
// -1, with the sentence, where cuDNN does not take the shape or the dtype. Scratch holds what all planned shapes need.
int attention_cudnn_plan(gpt2_dtype dt, int B, int T, int C, int NH, size_t *scratch_bytes);
void attention_cudnn_free(void);
const char *attention_cudnn_version(void);      // "cuDNN 9.19.0"
int attention_cudnn_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C, int NH);
int attention_cudnn_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out, const float *lse, int B, int T,
                             int C, int NH);
#else
static inline int attention_cudnn_plan(gpt2_dtype dt, int B, int T, int C, int NH, size_t *scratch_bytes) {
    (void)dt, (void)B, (void)T, (void)C, (void)NH, (void)scratch_bytes;
    return gpt2_fail("attention cudnn: this program was built without cuDNN; take cublaslt, or build where cudnn.h is found");
}
static inline void attention_cudnn_free(void) {}
static inline const char *attention_cudnn_version(void) { return ""; }
static inline int attention_cudnn_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C, int NH) {
    (void)out, (void)lse, (void)qkv;
    return attention_cudnn_plan(dt, B, T, C, NH, NULL);
}
static inline int attention_cudnn_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out, const float *lse,
                                           int B, int T, int C, int NH) {
    (void)dqkv, (void)dout, (void)qkv, (void)out, (void)lse;
    return attention_cudnn_plan(dt, B, T, C, NH, NULL);
}
#endif

#ifdef __cplusplus
}
#endif
#endif
