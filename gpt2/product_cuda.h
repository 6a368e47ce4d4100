// cuBLASLt's side of matrix products. Its description of a shape is made once and kept, with the algorithms
// that can compute it. Its matrices are column-major, so it sees the transpose of a row-major matrix: out =
// left @ right becomes out^T = right^T @ left^T, its A is our right, and its B is our left.
#ifndef GPT2_PRODUCT_CUDA_H
#define GPT2_PRODUCT_CUDA_H
#include "cublaslt_cuda.h"
#include "matmul_cuda.h"

enum { CANDIDATES = 8 };  // the most algorithms of a product to ask for

typedef struct {
    Product shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
    cublasLtMatmulAlgo_t candidates[CANDIDATES];  // the heuristic's, best first, or that of the tuning file
    int found;    // how many; 0: cuBLASLt has none, or the tuning file says apart
    int chosen;   // which one computes the product
    int settled;  // 1: the choice is final, because it has run or the tuning file names it
    int line;     // the line of the tuning file that names it; 0: none does
} Kept;

// bias: what the epilogue reads or writes, (cols) or, for BGRADB, (rows). aux has out's shape and is what
// goes into the GELU.
typedef struct {
    const void *left, *right;
    void *bias, *aux, *out, *workspace;
    int add;
} Operands;

int product_hopper(int *hopper);       // 1: the card is a Hopper or newer
Kept *product_keep(const Product *p);  // finds or makes it; NULL with gpt2_fail's sentence
Kept *product_at(int i);               // in the order in which they were made; NULL at the end
// out = left @ right with the epilogue. Returns 1 if no algorithm of cuBLASLt computes it. Until one has run,
// the next one is tried after one that is refused.
int product_run(Kept *kept, const Operands *x);
// The same with this candidate only; settles nothing.
int product_run_candidate(Kept *kept, int candidate, const Operands *x);
int product_unsupported(const Product *p);  // -1, with the sentence
void product_free(void);

// tune_cuda.c: what the tuning file says of a product. Returns 1 with *algorithm or *apart, 0 for nothing, -1
// on failure. line is for messages.
int tune_find(const Product *p, cublasLtMatmulAlgo_t *algorithm, int *apart, int *line);
int tune_refused(int line, const char *status);  // -1, with the sentence
// Adds a product; algorithm NULL: apart.
int tune_add(const Product *p, const cublasLtMatmulAlgo_t *algorithm, double ms);

// 1: a product with a smaller epilogue and kernels of our own can do the same. A bias comes only with the
// product.
static inline int product_splits(const Product *p) {
    return p->epilogue && p->epilogue != CUBLASLT_EPILOGUE_BIAS;
}
// matmul_cuda.c: that smaller product, and the whole by it.
Product matmul_cuda_less(const Product *p);
int matmul_cuda_apart(const Product *p, const Operands *x);

#endif
