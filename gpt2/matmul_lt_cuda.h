// The cuBLASLt side of matmuls. Each shape's description is created once and kept, together with the
// algorithms that can compute it. cuBLASLt's matrices are column-major, so it sees the transpose of a
// row-major matrix: out = left @ right becomes out^T = right^T @ left^T, its A is our right, and its B is our
// left.
#ifndef GPT2_MATMUL_LT_CUDA_H
#define GPT2_MATMUL_LT_CUDA_H
#include "cublaslt_cuda.h"
#ifdef __cplusplus
extern "C" {
#endif

// out (rows, cols) = left (rows, depth) @ right (depth, cols), row-major, for each matrix of a batch. Each
// operand starts at a multiple of 16 bytes, or a whole number of rows or batch matrices after one. The
// fields are integers without padding, because shapes are compared with memcmp.
typedef struct {
    gpt2_dtype in, out;                   // dtypes of left and right, and of out
    int rows, cols, depth, batch;         // batch 0: one
    int left_t, right_t;                  // stored as the transpose
    int left_ld, right_ld, out_ld;        // row strides, as stored, in elements
    int left_next, right_next, out_next;  // strides from one matrix of the batch to the next
    int epilogue;                         // cublasLtEpilogue_t; 0: none, as in attention
} Matmul;
// Returns a matmul without a batch. Its matrices have no gaps between their rows.
Matmul matmul_of(gpt2_dtype dt, int rows, int cols, int depth, int left_t, int right_t, int epilogue);

enum { CANDIDATES = 8 };  // maximum number of algorithms to request per matmul

typedef struct {
    Matmul matmul;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
    cublasLtMatmulAlgo_t candidates[CANDIDATES];  // the heuristic's, best first, or the tuning file's
    int found;    // number of candidates; 0: cuBLASLt has none, or the tuning file has "apart"
    int chosen;   // index of the candidate in use
    int settled;  // 1: the choice is final, because it has run or the tuning file names it
    int line;     // its line in the tuning file; 0: none
} Kept;

// bias: read or written by the epilogue, (cols) or, for BGRADB, (rows). aux has out's shape and holds GELU's
// input.
typedef struct {
    const void *left, *right;
    void *bias, *aux, *out, *workspace;
    int add;
} Operands;

int cublaslt_hopper(void);           // 1: the GPU is a Hopper or newer; -1: failure
Kept *matmul_keep(const Matmul *p);  // finds or creates it; NULL with gpt2_fail's message
Kept *matmul_at(int i);              // in the order of creation; NULL at the end
// Computes out = left @ right with the epilogue. Returns 1 if none of cuBLASLt's algorithms supports it.
// Until one has run, replaces a rejected algorithm with the next.
int matmul_run(Kept *kept, const Operands *x);
// Runs only this candidate; does not settle the choice.
int matmul_run_candidate(Kept *kept, int candidate, const Operands *x);
int matmul_unsupported(const Matmul *p);  // -1, with the message
// Call it if the library did not run an algorithm. Returns -1 if the reason is that an earlier kernel has
// failed.
int matmul_rejected(void);

// tune_cuda.c: looks up a matmul in the tuning file. Returns 1 with *algorithm, or with *apart 1 if a smaller
// matmul and our own kernels are faster; 0 if not found; -1 on failure. line: for messages.
int tune_find(const Matmul *p, cublasLtMatmulAlgo_t *algorithm, int *apart, int *line);
int tune_refused(int line, const char *status);  // -1, with the message
// Adds a matmul to the file; algorithm NULL: as "apart".
int tune_add(const Matmul *p, const cublasLtMatmulAlgo_t *algorithm, double ms);

// Returns 1 if a matmul with a smaller epilogue, plus our own kernels, can replace this one. Only the matmul
// itself can add a bias.
static inline int matmul_splits(const Matmul *p) {
    return p->epilogue && p->epilogue != CUBLASLT_EPILOGUE_BIAS;
}
// matmul_cuda.c: returns that smaller matmul; computes the whole matmul using it.
Matmul matmul_cuda_less(const Matmul *p);
int matmul_cuda_apart(const Matmul *p, const Operands *x);

// -------- for the other layers

// Finds the algorithms for a shape; one of them is chosen at the end of plan. For an unprepared shape
// matmul_cuda_multiply does both. Allocates only on the host.
int matmul_cuda_prepare(const Matmul *p);
// Computes out = left @ right, or += with `add`. workspace: device memory of matmul_cuda_workspace bytes,
// 256-byte aligned, in use until the matmul is done.
int matmul_cuda_multiply(const Matmul *p, void *out, const void *left, const void *right, int add,
                         void *workspace);
int matmul_cuda_workspace(size_t *bytes);  // a multiple of 256

#ifdef __cplusplus
}
#endif
#endif
