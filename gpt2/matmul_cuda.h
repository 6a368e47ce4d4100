// Matmuls on CUDA by cuBLASLt.
#ifndef GPT2_MATMUL_CUDA_H
#define GPT2_MATMUL_CUDA_H
#include "layers.h"
#ifdef __cplusplus
extern "C" {
#endif

// out (rows, cols) = left (rows, depth) @ right (depth, cols), row-major, for each matrix of a batch.
// Operands start at multiples of 16 bytes, or whole rows and matrices of a batch after one. The fields are
// integers without padding, because shapes are compared with memcmp.
typedef struct {
    gpt2_dtype in, out;                   // dtypes of left and right, and of out
    int rows, cols, depth, batch;         // batch 0: one
    int left_t, right_t;                  // stored as the transpose
    int left_ld, right_ld, out_ld;        // row strides, as stored, in elements
    int left_next, right_next, out_next;  // strides from one matrix of the batch to the next
    int epilogue;                         // cublasLtEpilogue_t; 0: none, as in attention
} Product;

// Finds the algorithms for a shape; the end of plan chooses one. matmul_cuda_product does both for an
// unprepared shape. Allocates only on the host.
int matmul_cuda_prepare(const Product *p);
// out = left @ right, or += with `add`. workspace: device memory of matmul_cuda_workspace bytes, 256-byte
// aligned, in use until the matmul is done.
int matmul_cuda_product(const Product *p, void *out, const void *left, const void *right, int add,
                        void *workspace);
int matmul_cuda_workspace(size_t *bytes);  // a multiple of 256

#ifdef __cplusplus
}
#endif
#endif
