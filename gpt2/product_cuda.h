// cuBLASLt's side of matrix products: what it must know of a shape is made once and kept, with the algorithms
// that can compute it. Its matrices are column-major: a row-major matrix is, to it, the transpose, so that
// out = left @ right is asked for as out^T = right^T @ left^T: its A is our right, its B our left.
#ifndef GPT2_PRODUCT_CUDA_H
#define GPT2_PRODUCT_CUDA_H
#include "cublaslt_cuda.h"
#include "matmul_cuda.h"

enum { CANDIDATES = 8 };  // algorithms of a product that are asked for

typedef struct {
    Product shape;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
    cublasLtMatmulAlgo_t candidates[CANDIDATES];  // the heuristic's, best first, or that of the tuning file
    int found;    // how many; 0: cuBLASLt has none, or the tuning file says apart
    int chosen;   // which one computes the product
    int settled;  // and will do so from now on: it has run, or the tuning file names it
    int line;     // of the tuning file, which names it; 0: none does
} Kept;

// bias: what the epilogue reads or writes, (cols) or, for BGRADB, (rows); aux as out: what goes into the GELU
typedef struct {
    const void *left, *right;
    void *bias, *aux, *out, *workspace;
    int add;
} Operands;

void product_options(int tf32);        // before plan: what is kept keeps its precision
int product_hopper(int *hopper);       // 1: or newer
Kept *product_keep(const Product *p);  // as it was made before, or new; NULL: gpt2_fail's sentence
Kept *product_at(int i);               // in the order of making; NULL: there are no more
// out = left @ right with the epilogue. 1: no algorithm of cuBLASLt computes it. Until one has run, one that
// is refused makes room for the next.
int product_run(Kept *kept, const Operands *x);
// the same with this one only, and nothing is settled
int product_run_candidate(Kept *kept, int candidate, const Operands *x);
int product_unsupported(const Product *p);  // -1, with the sentence
// "fp32", "tf32" (where such products round to it), "bf16", "fp16"
const char *product_type(gpt2_dtype dt);
void product_free(void);

// The tuning file's word on a product, tune_cuda.c: 1 and *algorithm, 1 and *apart, 0: nothing, -1: a
// failure. line: for messages.
int tune_find(const Product *p, cublasLtMatmulAlgo_t *algorithm, int *apart, int *line);
int tune_refused(int line, const char *status);  // -1, with the sentence
// Adds a product; algorithm NULL: apart.
int tune_add(const Product *p, const cublasLtMatmulAlgo_t *algorithm, double ms);

// The product by one with less of an epilogue and kernels of our own, matmul_cuda.c.
Product matmul_cuda_less(const Product *p);
int matmul_cuda_apart(const Product *p, const Operands *x);

#endif
