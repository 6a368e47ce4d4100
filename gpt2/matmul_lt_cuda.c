// Matmuls using cuBLASLt: shapes, algorithms, calls. Without a tuning file a matmul uses the heuristic's
// first algorithm that runs, which is the same in every run on the same GPU with the same library.
#include <stdlib.h>
#include <string.h>
#include "cuda.h"
#include "matmul_lt_cuda.h"

enum { ALIGNMENT = 16 };  // of pointers, in bytes

static struct {
    int hopper;  // Hopper or newer
    cublasLtHandle_t handle;
    size_t workspace_bytes;
    Kept **table;
    int used;
} lt;

static cudaDataType type_of(gpt2_dtype dt) {
    return dt == GPT2_F32 ? CUDA_R_32F : dt == GPT2_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// Returns 0, or -1 with a message that contains cuBLASLt's status, the call, the shape as cuBLASLt sees it,
// and CUDA's error, which may be that of an earlier kernel.
static int lt_check(const Matmul *p, cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    cudaError_t error = cudaGetLastError();
    return gpt2_fail("cuBLASLt: %s: %s, for a matmul of m %d, n %d, k %d, batch %d in %s, epilogue %d%s%s",
                     cublasLtGetStatusName(status), call, p->cols, p->rows, p->depth, p->batch,
                     matmul_dtype(p->in), p->epilogue, error ? "; CUDA: " : "",
                     error ? cudaGetErrorString(error) : "");
}
#define LT(p, call)                                  \
    do {                                             \
        if (lt_check((p), (call), #call)) return -1; \
    } while (0)

int matmul_unsupported(const Matmul *p) { return lt_check(p, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm"); }

static int open_library(void) {
    int device, major;
    if (lt.handle) return 0;
    if (cublaslt_load() != 0) return -1;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    lt.workspace_bytes = (size_t)(major >= 9 ? 32 : 4) << 20;  // NVIDIA's recommendation
    lt.hopper = major >= 9;
    cublasStatus_t status = cublasLtCreate(&lt.handle);
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return gpt2_fail("cuBLASLt does not start on device %d: %s", device, cublasLtGetStatusName(status));
}

int matmul_cuda_workspace(size_t *bytes) {
    int rc = open_library();
    *bytes = lt.workspace_bytes;
    return rc;
}

int cublaslt_hopper(void) { return open_library() != 0 ? -1 : lt.hopper; }

// -------- the descriptions and algorithms of a shape

Matmul matmul_of(gpt2_dtype dt, int rows, int cols, int depth, int left_t, int right_t, int epilogue) {
    return (Matmul){ .in = dt,
                     .out = dt,
                     .rows = rows,
                     .cols = cols,
                     .depth = depth,
                     .left_t = left_t,
                     .right_t = right_t,
                     .left_ld = left_t ? rows : depth,
                     .right_ld = right_t ? depth : cols,
                     .out_ld = cols,
                     .epilogue = epilogue };
}

static int make_layout(const Matmul *p, cublasLtMatrixLayout_t *layout, gpt2_dtype dt, int rows, int cols,
                       int transposed, int ld, int next) {
    int64_t stride = next;
    int high = transposed ? rows : cols, wide = transposed ? cols : rows;  // as cuBLASLt sees it
    LT(p, cublasLtMatrixLayoutCreate(layout, type_of(dt), high, wide, ld));
    if (p->batch > 1) {
        LT(p, cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p->batch,
                                               sizeof p->batch));
        LT(p, cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                               sizeof stride));
    }
    return 0;
}

static int set(const Matmul *p, cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name,
               const void *value, size_t bytes) {
    return lt_check(p, cublasLtMatmulDescSetAttribute(operation, name, value, bytes),
                    "cublasLtMatmulDescSetAttribute");
}
// Sets an attribute of an operation to a variable's value.
#define SET(p, operation, name, variable) \
    set(p, operation, CUBLASLT_MATMUL_DESC_##name, &(variable), sizeof(variable))

static int has_vector(int epilogue) {
    return epilogue != 0 && epilogue != CUBLASLT_EPILOGUE_DGELU && epilogue != CUBLASLT_EPILOGUE_GELU_AUX;
}

static int has_aux(int epilogue) {
    return epilogue != 0 && epilogue != CUBLASLT_EPILOGUE_BIAS && epilogue != CUBLASLT_EPILOGUE_BGRADB;
}

static int make_operation(const Matmul *p, cublasLtMatmulDesc_t *operation) {
    int round = matmul_rounds(p->in);
    cublasComputeType_t compute = round ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t a = p->right_t ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->left_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    int64_t aux_ld = p->out_ld;
    // a placeholder for pointers that are not known yet; only its alignment matters
    const void *aligned = (const void *)(uintptr_t)ALIGNMENT;
    LT(p, cublasLtMatmulDescCreate(operation, compute, CUDA_R_32F));
    if (SET(p, *operation, TRANSA, a) || SET(p, *operation, TRANSB, b)) return -1;
    if (p->epilogue == 0) return 0;
    if (SET(p, *operation, EPILOGUE, p->epilogue)) return -1;
    if (has_vector(p->epilogue) && SET(p, *operation, BIAS_POINTER, aligned)) return -1;
    if (!has_aux(p->epilogue)) return 0;
    return SET(p, *operation, EPILOGUE_AUX_LD, aux_ld) || SET(p, *operation, EPILOGUE_AUX_POINTER, aligned)
               ? -1
               : 0;
}

// Returns the alignment of rows and of matrices of the batch: the largest power of two that divides their
// strides.
static uint32_t alignment(gpt2_dtype dt, int ld, int next) {
    size_t bytes = ((size_t)ld | (size_t)next) * gpt2_dtype_size(dt) | ALIGNMENT;
    return (uint32_t)(bytes & -bytes);
}

static int set_preference(const Matmul *p, cublasLtMatmulPreference_t preference) {
    const uint32_t a = alignment(p->in, p->right_ld, p->right_next);
    const uint32_t b = alignment(p->in, p->left_ld, p->left_next);
    const uint32_t d = alignment(p->out, p->out_ld, p->out_next);
    // Partial sums are added in fp32. The other schemes round them to the output's dtype first.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const uint32_t *value;
    } wishes[] = {
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d },
    };
    LT(p, cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &lt.workspace_bytes, sizeof lt.workspace_bytes));
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        LT(p, cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].name, wishes[i].value,
                                                   sizeof *wishes[i].value));
    return 0;
}

// Stores the heuristic's results. An epilogue that it refuses is not a failure.
static int ask_heuristic(Kept *kept, cublasLtMatmulPreference_t preference) {
    const Matmul *p = &kept->matmul;
    cublasLtMatmulHeuristicResult_t results[CANDIDATES];
    int returned = 0;
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt.handle, kept->operation, kept->right,
                                                           kept->left, kept->out, kept->out, preference,
                                                           CANDIDATES, results, &returned);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return 0;
    if (status == CUBLAS_STATUS_INVALID_VALUE && p->epilogue) return 0;
    if (lt_check(p, status, "cublasLtMatmulAlgoGetHeuristic") != 0) return -1;
    for (int i = 0; i < returned; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) kept->candidates[kept->found++] = results[i].algo;
    return 0;
}

static int find_candidates(Kept *kept) {
    const Matmul *p = &kept->matmul;
    cublasLtMatmulPreference_t preference;
    LT(p, cublasLtMatmulPreferenceCreate(&preference));
    int rc = set_preference(p, preference);
    if (rc == 0) rc = ask_heuristic(kept, preference);
    cublasStatus_t status = cublasLtMatmulPreferenceDestroy(preference);
    return rc != 0 ? rc : lt_check(p, status, "cublasLtMatmulPreferenceDestroy");
}

// Returns 1 if the tuning file has this matmul, else 0.
static int take_tuned(Kept *kept) {
    cublasLtMatmulHeuristicResult_t result;
    int apart, line, rc = tune_find(&kept->matmul, &kept->candidates[0], &apart, &line);
    if (rc <= 0) return rc;
    kept->settled = 1;
    kept->line = line;
    if (apart) return 1;
    kept->found = 1;
    cublasStatus_t status = cublasLtMatmulAlgoCheck(lt.handle, kept->operation, kept->right, kept->left,
                                                    kept->out, kept->out, &kept->candidates[0], &result);
    if (status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= lt.workspace_bytes) return 1;
    return tune_refused(line, cublasLtGetStatusName(status));
}

static void kept_free(Kept *kept) {
    cublasLtMatrixLayout_t layouts[] = { kept->left, kept->right, kept->out };
    for (int i = 0; i < 3; i++)
        if (layouts[i]) cublasLtMatrixLayoutDestroy(layouts[i]);
    if (kept->operation) cublasLtMatmulDescDestroy(kept->operation);
    free(kept);
}

static int make(Kept *kept) {
    const Matmul *p = &kept->matmul;
    if (make_layout(p, &kept->left, p->in, p->rows, p->depth, p->left_t, p->left_ld, p->left_next) != 0 ||
        make_layout(p, &kept->right, p->in, p->depth, p->cols, p->right_t, p->right_ld, p->right_next) != 0 ||
        make_layout(p, &kept->out, p->out, p->rows, p->cols, 0, p->out_ld, p->out_next) != 0 ||
        make_operation(p, &kept->operation) != 0)
        return -1;
    int tuned = take_tuned(kept);
    if (tuned < 0) return -1;
    return tuned ? 0 : find_candidates(kept);
}

Kept *matmul_keep(const Matmul *p) {
    for (int i = 0; i < lt.used; i++)
        if (memcmp(&lt.table[i]->matmul, p, sizeof *p) == 0) return lt.table[i];
    if (open_library() != 0) return NULL;
    Kept *kept = calloc(1, sizeof *kept);
    Kept **table = kept ? realloc(lt.table, (lt.used + 1) * sizeof *table) : NULL;
    if (!table) {
        free(kept);
        gpt2_fail("matmul: no host memory for another shape after %d", lt.used);
        return NULL;
    }
    lt.table = table;
    kept->matmul = *p;
    if (make(kept) != 0) {
        kept_free(kept);
        return NULL;
    }
    lt.table[lt.used++] = kept;
    return kept;
}

Kept *matmul_at(int i) { return i < lt.used ? lt.table[i] : NULL; }

void matmul_cuda_free(void) {
    for (int i = 0; i < lt.used; i++) kept_free(lt.table[i]);
    free(lt.table);
    if (lt.handle) cublasLtDestroy(lt.handle);
    lt.handle = NULL;
    lt.table = NULL;
    lt.used = 0;
}

// -------- matmuls

static int set_pointers(Kept *kept, const Operands *x) {
    const Matmul *p = &kept->matmul;
    if (has_vector(p->epilogue) && SET(p, kept->operation, BIAS_POINTER, x->bias)) return -1;
    return has_aux(p->epilogue) ? SET(p, kept->operation, EPILOGUE_AUX_POINTER, x->aux) : 0;
}

static cublasStatus_t call(Kept *kept, int candidate, const Operands *x) {
    const float one = 1, beta = x->add ? 1 : 0;
    return cublasLtMatmul(lt.handle, kept->operation, &one, x->right, kept->right, x->left, kept->left, &beta,
                          x->out, kept->out, x->out, kept->out, &kept->candidates[candidate], x->workspace,
                          lt.workspace_bytes, 0);
}

int matmul_rejected(void) {
    if (cuda_check(cudaStreamSynchronize(0), "a kernel queued before a matmul has failed")) return -1;
    cudaGetLastError();  // clears the rejected launch's error, so that the next call does not report it
    return 0;
}

int matmul_run_candidate(Kept *kept, int candidate, const Operands *x) {
    if (set_pointers(kept, x) != 0) return -1;
    return lt_check(&kept->matmul, call(kept, candidate, x), "cublasLtMatmul");
}

int matmul_run(Kept *kept, const Operands *x) {
    if (!x->workspace || set_pointers(kept, x) != 0) return -1;
    while (kept->chosen < kept->found) {
        cublasStatus_t status = call(kept, kept->chosen, x);
        if (status == CUBLAS_STATUS_SUCCESS) {
            kept->settled = 1;
            return 0;
        }
        if (kept->settled) return lt_check(&kept->matmul, status, "cublasLtMatmul");
        if (matmul_rejected() != 0) return -1;
        kept->chosen++;
    }
    kept->found = 0;
    return 1;
}
