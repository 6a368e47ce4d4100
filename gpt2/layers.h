// The layers of GPT-2, forward and backward, as a table of functions: one table computes on the CPU, one on a
// CUDA device. B batch, T sequence length, BT = B*T, C channels, NH heads, OC output channels, V vocabulary,
// Vp padded vocabulary. Tensors of type `dtype` are fp32, bf16 or (CUDA only) fp16 in memory; arithmetic
// inside a layer is fp32. A layer adds to weights' gradients (+=) and rounds them once per call; it
// overwrites activations' gradients (=) unless marked +=. Every function returns 0, or -1 with gpt2_fail's
// message. The same device and the same number of threads give the same bits.
//
// Pointers are device memory, aligned to at least 16 bytes, unless marked as host memory. On CUDA the
// functions only queue work on the default stream, and only `download` waits. Host memory passed to them may
// be reused as soon as they return.
#ifndef GPT2_LAYERS_H
#define GPT2_LAYERS_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { GPT2_F32 = 0, GPT2_BF16 = 1, GPT2_F16 = 2 } gpt2_dtype;
static inline size_t gpt2_dtype_size(gpt2_dtype dt) { return dt == GPT2_F32 ? 4 : 2; }
static inline float bf16_to_f32(uint16_t x) {
    union {
        uint32_t u;
        float f;
    } v = { (uint32_t)x << 16 };
    return v.f;
}
uint16_t f32_to_bf16(float x);                // round to nearest even, NaN stays NaN
static inline float f16_to_f32(uint16_t x) {  // exact
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ff;
    union {
        uint32_t u;
        float f;
    } v = { (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13 };
    if (exponent == 0) v.f = (float)fraction / (1 << 24);  // 0 or subnormal
    v.u |= sign;
    return v.f;
}
// value i of x, in host memory
static inline float gpt2_value(gpt2_dtype dt, const void *x, size_t i) {
    if (dt == GPT2_F32) return ((const float *)x)[i];
    uint16_t bits = ((const uint16_t *)x)[i];
    return dt == GPT2_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// The tokens that a pass over a cache adds to one row: positions first..first+n-1, which are the pass's
// tokens at..at+n-1. The row has `room` positions in the cache, from `begin` on.
typedef struct {
    int row, first, n, at;
    int begin, room;
} layers_span;
enum { LAYERS_CACHE_STEP = 32 };  // each row's room is a multiple of this
static inline int layers_cache_positions(int T) {
    return (T + LAYERS_CACHE_STEP - 1) / LAYERS_CACHE_STEP * LAYERS_CACHE_STEP;
}
// Bytes of one layer's cache: (NH, 2, room, C/NH) keys and values of each row. The layout within a row is up
// to the device. positions: the sum over all rows.
static inline size_t layers_cache_bytes(gpt2_dtype dt, int positions, int C) {
    return (size_t)positions * 2 * C * gpt2_dtype_size(dt);
}

enum { LAYERS_COPIES = 2 };  // copies at a time, concurrent with the layers

enum { LAYERS_CUDA_ROWS = 8 };  // on CUDA C and Vp are multiples of this: every row is 16-byte aligned

typedef struct {
    const char *device;  // "cpu", "cuda"

    // Returns the number of bytes of scratch that the layers need for this shape. The caller allocates them
    // (device memory, 256-byte aligned) and passes them to use_scratch before the first layer runs. On CUDA
    // plan runs each matmul once, in memory that it frees again, so call it before allocating the
    // activations. chunk: the maximum number of rows of logits at a time.
    int (*plan)(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk, size_t *scratch_bytes);
    // Like plan, for forward-only passes over a cache of `rows` rows of at most T positions: at most `tokens`
    // tokens per pass, with logits for `rows` of them.
    int (*plan_cached)(gpt2_dtype dt, int tokens, int rows, int T, int C, int NH, int Vp,
                       size_t *scratch_bytes);
    // The memory stays in use until free. On a CPU this compiles every matmul that the shape needs, so that
    // nothing is allocated inside a step.
    int (*use_scratch)(void *scratch);
    void (*free)(void);
    int (*device_bytes)(size_t *total);  // all memory of the current device; NULL on the CPU
    int (*has_dtype)(gpt2_dtype dt);     // 1: the hardware multiplies it; 0: slow or impossible
    // Measures the matmul operations per second, in about 60 ms. Needs plan.
    int (*peak_flops)(gpt2_dtype dt, double *flops);

    int (*download)(void *host, const void *x, size_t bytes);  // waits for all queued work
    int (*clear)(void *x, size_t bytes);                       // sets to 0
    int (*copy)(void *to, const void *from, size_t bytes);     // within the device; NULL on the CPU
    // Copies between device and pinned host memory (at most LAYERS_COPIES at a time), on a stream concurrent
    // with the layers. The copy starts when all work queued before it is done. await_copy makes work queued
    // after it wait until copy number `which` is done. Both are NULL on the CPU.
    int (*copy_beside)(void *to, const void *from, size_t bytes, int which);
    int (*await_copy)(int which);
    // *total (one double, device memory) = sum of x[0..n) in a fixed order; += with `add`
    int (*sum)(double *total, const float *x, int n, int add);

    // out (B, T, C) = wte[token] + wpe[position]; inp (B, T) on the host
    int (*encoder_forward)(gpt2_dtype dt, void *out, const int *inp, const void *wte, const void *wpe, int B,
                           int T, int C);
    int (*encoder_backward)(gpt2_dtype dt, void *dwte, void *dwpe, const void *dout, const int *inp, int B,
                            int T, int C);

    // out (BT, C), mean and rstd (BT)
    int (*layernorm_forward)(gpt2_dtype dt, void *out, float *mean, float *rstd, const void *inp,
                             const void *weight, const void *bias, int BT, int C);
    // residual = inp1 + inp2, out = layernorm(residual), in one pass. residual may be inp1.
    int (*residual_layernorm_forward)(gpt2_dtype dt, void *residual, void *out, float *mean, float *rstd,
                                      const void *inp1, const void *inp2, const void *weight,
                                      const void *bias, int BT, int C);
    // dinp_sums (C) = column sums of dinp after rounding; may be NULL
    int (*layernorm_backward)(gpt2_dtype dt, void *dinp /* += */, void *dweight, void *dbias,
                              float *dinp_sums, const void *dout, const void *inp, const void *weight,
                              const float *mean, const float *rstd, int BT, int C);
    // dbias (C) += sums. Replaces matmul_backward's dbias if another layer has summed dout's columns.
    int (*bias_from_sums)(gpt2_dtype dt, void *dbias, const float *sums, int C);

    // out (BT, OC) = inp (BT, C) @ weight (OC, C)^T + bias (OC); bias may be NULL
    int (*matmul_forward)(gpt2_dtype dt, void *out, const void *inp, const void *weight, const void *bias,
                          int BT, int C, int OC);
    // pre (BT, OC) is that matmul, out (BT, OC) = gelu(pre)
    int (*matmul_gelu_forward)(gpt2_dtype dt, void *out, void *pre, const void *inp, const void *weight,
                               const void *bias, int BT, int C, int OC);
    // dinp (BT, C) = dout (BT, OC) @ weight (OC, C), times gelu'(pre) if pre (BT, C) is not NULL; then inp is
    // gelu(pre). dinp_bias (C) = column sums of dinp: the bias gradient of the layer below. dweight (OC, C) =
    // dout^T @ inp. dbias (OC) = column sums of dout. With `add` these three are +=, which costs 8 to 12 % of
    // the matmul on a CPU. Both biases may be NULL.
    int (*matmul_backward)(gpt2_dtype dt, void *dinp, void *dinp_bias, void *dweight, void *dbias,
                           const void *dout, const void *inp, const void *weight, const void *pre, int BT,
                           int C, int OC, int add);
    // 1: with pre and without add, the matmul computes dinp_bias as well. 0: dinp_bias needs a separate pass,
    // so the layer below may compute it more cheaply.
    int (*dinp_bias_fused)(gpt2_dtype dt, int BT, int C, int OC);

    // qkv (B, T, 3C): queries, keys, values; out (B, T, C); lse (B, NH, T): logarithm of each row's softmax
    // sum, for backward. The (T, T) matrices of the batch never all exist at once (FlashAttention, arXiv
    // 2205.14135).
    int (*attention_forward)(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C,
                             int NH);
    int (*attention_backward)(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out,
                              const float *lse, int B, int T, int C, int NH);

    // qkv (tokens, 3C), out (tokens, C) of the spans (on the host), each of a different row. Adds the keys
    // and values of the tokens to the cache of one layer, and attends from each token to the positions of its
    // row up to its own. On a CPU a token's bits equal attention_forward's, regardless of the other rows.
    int (*attention_cached)(gpt2_dtype dt, void *out, void *cache, const void *qkv, const layers_span *spans,
                            int n_spans, int C, int NH);

    int (*gelu_forward)(gpt2_dtype dt, void *out, const void *inp, size_t n);  // tanh form
    int (*gelu_backward)(gpt2_dtype dt, void *dinp, const void *inp, const void *dout,
                         size_t n);  // dinp may be dout

    // Writes losses (rows). If dloss is not 0, replaces logits (rows, Vp) with the gradient of dloss * sum of
    // losses. Columns V..Vp-1 are ignored and get gradient 0. targets (rows) are on the host.
    int (*softmax_crossentropy)(gpt2_dtype dt, float *losses, void *logits, float dloss, const int *targets,
                                int rows, int V, int Vp);
} Layers;

// Declares a device's implementation of a function in the table: DECLARE_LAYER(cpu, gelu_forward) is
// cpu_gelu_forward.
#define DECLARE_LAYER(device, name) extern __typeof__(*((const Layers *)0)->name) device##_##name

extern const Layers layers_cpu;
// Returns NULL if built without CUDA. The caller must have chosen a device before plan.
const Layers *layers_cuda(void);

// Options of the CUDA layers. Call it before plan.
//   tf32       1: fp32 matmuls round their inputs to TF32
//   gelu       0: GELU has separate kernels; 1: the forward matmul computes it; 2: both matmuls do;
//              -1: 2 on Hopper and newer devices, else 0. In fp32 its kernels are always separate.
//   attention  NULL: cuDNN if built in and if it supports the shape and dtype, else cuBLASLt's matmuls;
//              "cudnn" or "cublaslt": that one, or an error with the reason; "cudnn-fast": cuDNN's backward
//              adds in the order in which blocks finish, so that bits may differ from run to run
int layers_cuda_options(int tf32, int gelu, const char *attention);
// Limits the scratch of attention's backward. It processes the batch in groups of as many sequences as fit; a
// single sequence may exceed the limit. Call it before plan. 0: the default, 512 MiB for cuDNN and 64 MiB for
// cuBLASLt.
void layers_cuda_attention_limit(size_t bytes);
// Returns plan's choice: "cuDNN 9.10.0", followed by a warning for cudnn-fast, or "cuBLASLt".
const char *layers_cuda_attention(void);
// The groups of attention's backward: sequences per group, scratch per group, and the limit on that scratch.
typedef struct {
    int rows;
    size_t bytes, limit;
} layers_attention_backward;
layers_attention_backward layers_cuda_attention_backward(void);

// Returns 1 if the forward matmul may compute GELU itself, from unrounded values. GELU recomputed from the
// rounded values then has different bits.
int layers_cuda_gelu_fused(gpt2_dtype dt);

// Tuning: matmuls use the algorithms that a tuning file's text names for this GPU and library. Call it before
// plan. If the text lacks planned matmuls, plan times and adds them, or fails if may_time is 0. name: the
// file's, for messages. An empty text is a new file. text NULL: no tuning, so plan takes the heuristic's
// first algorithm that runs.
int layers_cuda_tune(const char *name, const char *text, int may_time);
char *layers_cuda_tuned(void);  // after plan: the text with the additions; the caller frees it
// Returns the device and the library as named in the file's lines, or NULL with gpt2_fail's message.
const char *layers_cuda_card(void);

#ifdef __cplusplus
}
#endif
#endif
