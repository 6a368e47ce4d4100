/* The layers of GPT-2, forward and backward, on the CPU. Thread-parallel by OpenMP; same threads, same bits.
 * B batch, T sequence length, BT = B*T, C channels, NH heads, OC output channels, V vocabulary, Vp padded vocabulary.
 * Tensors of type `dtype` are fp32 or bf16 in memory; arithmetic inside a layer is fp32. Weights' gradients are added to (+=)
 * and are rounded once per call; activations' gradients are written (=) unless a comment says +=. */
#ifndef GPT2_LAYERS_H
#define GPT2_LAYERS_H
#include <stddef.h>
#include <stdint.h>

typedef enum { GPT2_F32 = 0, GPT2_BF16 = 1 } gpt2_dtype;
static inline size_t gpt2_dtype_size(gpt2_dtype dt) { return dt == GPT2_BF16 ? 2 : 4; }
static inline float bf16_to_f32(uint16_t x) { union { uint32_t u; float f; } v = { (uint32_t)x << 16 }; return v.f; }
uint16_t f32_to_bf16(float x);                                              // round to nearest even, NaN stays NaN

// Working memory of the layers, in bytes, for this shape: the caller allocates it and hands it over before the first layer runs.
// Creates every matrix product that the shape needs, so that nothing is allocated inside a step. 0 or -1.
int layers_plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk, size_t *scratch_bytes);
void layers_use_scratch(void *scratch);                                     // 64-byte aligned, lives as long as the layers are used
void layers_free(void);
int layers_have_bf16(void);                                                 // 1: the processor multiplies bf16 in hardware
// Operations a second of matrix products, measured in about 60 ms on all threads of this process; after layers_plan. 0 or -1.
int layers_peak_flops(gpt2_dtype dt, double *flops);

void encoder_forward(gpt2_dtype dt, void *out, const int *inp, const void *wte, const void *wpe, int B, int T, int C);
void encoder_backward(gpt2_dtype dt, void *dwte, void *dwpe, const void *dout, const int *inp, int B, int T, int C);

void layernorm_forward(gpt2_dtype dt, void *out, float *mean, float *rstd, const void *inp, const void *weight, const void *bias, int BT, int C);
// residual = inp1 + inp2 and out = layernorm(residual) in one pass; residual may be inp1
void residual_layernorm_forward(gpt2_dtype dt, void *residual, void *out, float *mean, float *rstd, const void *inp1, const void *inp2,
                                const void *weight, const void *bias, int BT, int C);
void layernorm_backward(gpt2_dtype dt, void *dinp /* += */, void *dweight, void *dbias, const void *dout, const void *inp,
                        const void *weight, const float *mean, const float *rstd, int BT, int C);
void residual_forward(gpt2_dtype dt, void *out, const void *inp1, const void *inp2, size_t n);

// out (BT, OC) = inp (BT, C) @ weight (OC, C)^T + bias (OC); bias may be NULL. 0 or -1
int matmul_forward(gpt2_dtype dt, void *out, const void *inp, const void *weight, const void *bias, int BT, int C, int OC);
// dinp (BT, C) = dout (BT, OC) @ weight (OC, C);  dweight (OC, C) = dout^T @ inp, or += with `add`, which costs 8 to 12 % of the product;
// dbias (OC) += column sums; dbias may be NULL
int matmul_backward(gpt2_dtype dt, void *dinp, void *dweight, void *dbias, const void *dout, const void *inp, const void *weight,
                    int BT, int C, int OC, int add);

// qkv (B, T, 3C): queries, keys, values; out (B, T, C); lse (B, NH, T) logarithm of each row's softmax sum, for backward.
// Works through blocks of rows of one head at a time: no (T, T) matrix of all heads ever exists (FlashAttention, arXiv 2205.14135).
int attention_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T, int C, int NH);
int attention_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv, const void *out, const float *lse, int B, int T, int C, int NH);

void gelu_forward(gpt2_dtype dt, void *out, const void *inp, size_t n);     // tanh form
void gelu_backward(gpt2_dtype dt, void *dinp, const void *inp, const void *dout, size_t n);  // dinp may be dout

// logits (rows, Vp) become, in place, the gradient of dloss * sum of losses, when dloss != 0; losses (rows) are written.
// Columns V..Vp-1 take no part and get gradient 0.
void softmax_crossentropy(gpt2_dtype dt, float *losses, void *logits, float dloss, const int *targets, int rows, int V, int Vp);

#endif
