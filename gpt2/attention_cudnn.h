// Causal attention using cuDNN's fused kernels, for attention_cuda.cu.
#ifndef GPT2_ATTENTION_CUDNN_H
#define GPT2_ATTENTION_CUDNN_H
#include "layers.h"
#ifdef __cplusplus
extern "C" {
#endif
#include "gpt2_error.h"

// Call it if backward of `rows` sequences needs `bytes` of scratch, which exceed the limit. Returns the
// number of sequences to try next: a divisor of B that fits if scratch grows linearly, and less than `rows`
// unless `rows` is 1.
static inline int attention_cudnn_fewer_rows(int B, int rows, size_t bytes, size_t limit) {
    size_t one = (bytes + rows - 1) / rows;
    int next = limit / one < (size_t)rows ? (int)(limit / one) : rows - 1;
    if (next < 1) next = 1;
    while (B % next != 0) next--;
    return next;
}

// Returns how many bytes to skip at the start of backward's scratch, so that cuDNN's part, which begins
// `front` bytes later, is aligned to 256 bytes. The scratch itself is.
static inline size_t attention_cudnn_skipped(size_t front) { return (256 - front % 256) % 256; }

#ifdef GPT2_CUDNN
// Returns 0, or -1 with the message if cuDNN does not support the shape or dtype. fast: backward may be
// nondeterministic. limit: bytes of scratch that backward may use (one sequence may exceed it); 0: 512 MiB.
int attention_cudnn_plan(gpt2_dtype dt, int B, int T, int C, int NH, int fast, size_t limit,
                         size_t *scratch_bytes);
layers_attention_backward attention_cudnn_groups(void);  // of the planned shape
void attention_cudnn_free(void);
const char *attention_cudnn_version(void);  // "cuDNN 9.19.0"
int attention_cudnn_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C,
                            int NH);
int attention_cudnn_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                             const float *lse, int B, int T, int C, int NH);
#else
#define attention_cudnn_plan(dt, B, T, C, NH, fast, limit, scratch_bytes)                                 \
    gpt2_fail("attention %s: this program was built without cuDNN; use cublaslt, or build where cudnn.h " \
              "is found",                                                                                 \
              (fast) ? "cudnn-fast" : "cudnn")
static inline void attention_cudnn_free(void) {}
// These never run, because plan fails.
#define attention_cudnn_groups() (layers_attention_backward{ 0, 0, 0 })
#define attention_cudnn_version() ""
#define attention_cudnn_forward(...) -1
#define attention_cudnn_backward(...) -1
#endif

#ifdef __cplusplus
}
#endif
#endif
