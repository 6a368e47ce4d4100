/* Matrix products on CUDA. cuBLASLt's matrices are column-major: a row-major matrix is, to it, the transpose, so that
 * out = left @ right is asked for as out^T = right^T @ left^T: its A is our right, its B our left. What it needs to know of a shape,
 * algorithm included, is made once and kept: the first algorithm of its heuristic, which is the same in every run on the same card with
 * the same library. */
#include <stdlib.h>
#include <string.h>
#include "cublaslt_cuda.h"
#include "cuda.h"
#include "matmul_cuda.h"

enum { ALIGNMENT = 16, GELU_MULTIPLE = 8 };     // bytes of a pointer; elements of a row of what GELU's epilogues keep

typedef struct {
    Product shape;
    int found;                                  // cuBLASLt has an algorithm
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
    cublasLtMatmulAlgo_t algorithm;
} Kept;

static struct {
    int tf32, gelu, hopper;         // hopper: or newer
    cublasLtHandle_t handle;
    size_t workspace_bytes;
    Kept **table;
    int used, size;
} lt;

void matmul_cuda_options(int tf32, int gelu) {      // before plan: what is kept keeps its precision
    lt.tf32 = tf32;
    lt.gelu = gelu;
}

static const char *name_of(gpt2_dtype dt) {
    return dt == GPT2_F32 ? "fp32" : dt == GPT2_BF16 ? "bf16" : "fp16";
}

static cudaDataType type_of(gpt2_dtype dt) {
    return dt == GPT2_F32 ? CUDA_R_32F : dt == GPT2_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// 0, or -1 with the sentence: the call, the shape as cuBLASLt sees it, its own name of the error
static int lt_check(const Product *p, cublasStatus_t status, const char *call) {
    return status == CUBLAS_STATUS_SUCCESS ? 0 : gpt2_fail("cuBLASLt: %s: %s, for a product of m %d, n %d, k %d, batch %d in %s",
        cublasLtGetStatusName(status), call, p->cols, p->rows, p->depth, p->batch, name_of(p->in));
}
#define LT(p, call) do { if (lt_check((p), (call), #call)) return -1; } while (0)

static int open_library(void) {
    int device, major;
    if (lt.handle) return 0;
    if (cublaslt_load() != 0) return -1;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    lt.workspace_bytes = (size_t)(major >= 9 ? 32 : 4) << 20;       // what NVIDIA recommends
    lt.hopper = major >= 9;
    cublasStatus_t status = cublasLtCreate(&lt.handle);
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return gpt2_fail("cuBLASLt does not start on device %d: %s", device, cublasLtGetStatusName(status));
}

int matmul_cuda_workspace(size_t *bytes) {
    if (open_library() != 0) return -1;
    *bytes = lt.workspace_bytes;
    return 0;
}

// ----------------------------------------------------------------------------
// what is kept of a shape

static int make_layout(const Product *p, cublasLtMatrixLayout_t *layout, gpt2_dtype dt, int rows, int cols, int transposed, int ld,
                       int next) {
    int64_t stride = next;
    LT(p, cublasLtMatrixLayoutCreate(layout, type_of(dt), transposed ? rows : cols, transposed ? cols : rows, ld));
    if (p->batch > 1) {
        LT(p, cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p->batch, sizeof p->batch));
        LT(p, cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
    }
    return 0;
}

static int set(const Product *p, cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes) {
    LT(p, cublasLtMatmulDescSetAttribute(operation, name, value, bytes));
    return 0;
}

static int make_operation(const Product *p, cublasLtMatmulDesc_t *operation) {
    cublasComputeType_t compute = p->in == GPT2_F32 && lt.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasOperation_t a = p->right_t ? CUBLAS_OP_T : CUBLAS_OP_N, b = p->left_t ? CUBLAS_OP_T : CUBLAS_OP_N;
    int64_t aux_ld = p->out_ld;
    const void *aligned = (const void *)(uintptr_t)ALIGNMENT;   // stands for pointers that are not known yet: only its alignment counts
    LT(p, cublasLtMatmulDescCreate(operation, compute, CUDA_R_32F));
    if (set(p, *operation, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a) != 0
        || set(p, *operation, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b) != 0) return -1;
    if (p->epilogue == 0) return 0;
    if (set(p, *operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue) != 0) return -1;
    if (p->epilogue != CUBLASLT_EPILOGUE_DGELU && p->epilogue != CUBLASLT_EPILOGUE_GELU_AUX
        && set(p, *operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned) != 0) return -1;
    if (p->epilogue == CUBLASLT_EPILOGUE_BIAS) return 0;
    return set(p, *operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, sizeof aux_ld) != 0 ? -1
        : set(p, *operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned, sizeof aligned);
}

// of pointers to a row or to a matrix of the batch: the largest power of two in their distances
static uint32_t alignment(gpt2_dtype dt, int ld, int next) {
    size_t bytes = ((size_t)ld | (size_t)next) * gpt2_dtype_size(dt) | ALIGNMENT;
    return (uint32_t)(bytes & -bytes);
}

static int set_preference(const Product *p, cublasLtMatmulPreference_t preference) {
    uint32_t a = alignment(p->in, p->right_ld, p->right_next), b = alignment(p->in, p->left_ld, p->left_next);
    uint32_t d = alignment(p->out, p->out_ld, p->out_next);
    // Parts of a sum are added in fp32: the other schemes round them to the output's type on the way.
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    struct { cublasLtMatmulPreferenceAttributes_t name; const void *value; size_t bytes; } wishes[] = {
        { CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &lt.workspace_bytes, sizeof lt.workspace_bytes },
        { CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a }, { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof d }, { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d, sizeof d },
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        LT(p, cublasLtMatmulPreferenceSetAttribute(preference, wishes[i].name, wishes[i].value, wishes[i].bytes));
    return 0;
}

static int choose_algorithm(Kept *kept) {
    const Product *p = &kept->shape;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    LT(p, cublasLtMatmulPreferenceCreate(&preference));
    int rc = set_preference(p, preference);
    if (rc == 0) {
        cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt.handle, kept->operation, kept->right, kept->left, kept->out, kept->out,
                                                               preference, 1, &result, &kept->found);
        kept->found = status == CUBLAS_STATUS_SUCCESS && kept->found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
        if (kept->found) kept->algorithm = result.algo;
        if (status != CUBLAS_STATUS_NOT_SUPPORTED) rc = lt_check(p, status, "cublasLtMatmulAlgoGetHeuristic");
    }
    cublasStatus_t status = cublasLtMatmulPreferenceDestroy(preference);
    return rc != 0 ? rc : lt_check(p, status, "cublasLtMatmulPreferenceDestroy");
}

static void kept_free(Kept *kept) {
    cublasLtMatrixLayout_t layouts[] = { kept->left, kept->right, kept->out };
    for (int i = 0; i < 3; i++)
        if (layouts[i]) cublasLtMatrixLayoutDestroy(layouts[i]);
    if (kept->operation) cublasLtMatmulDescDestroy(kept->operation);
    free(kept);
}

static int keep(Kept *kept) {
    const Product *p = &kept->shape;
    if (make_layout(p, &kept->left, p->in, p->rows, p->depth, p->left_t, p->left_ld, p->left_next) != 0
        || make_layout(p, &kept->right, p->in, p->depth, p->cols, p->right_t, p->right_ld, p->right_next) != 0
        || make_layout(p, &kept->out, p->out, p->rows, p->cols, 0, p->out_ld, p->out_next) != 0
        || make_operation(p, &kept->operation) != 0) return -1;
    return choose_algorithm(kept);
}

static Kept *find_or_make(const Product *p) {
    for (int i = 0; i < lt.used; i++)
        if (memcmp(&lt.table[i]->shape, p, sizeof *p) == 0) return lt.table[i];
    if (open_library() != 0) return NULL;
    if (lt.used == lt.size) {
        Kept **table = realloc(lt.table, (lt.size + 64) * sizeof *table);
        if (table) lt.table = table, lt.size += 64;
    }
    Kept *kept = lt.used < lt.size ? calloc(1, sizeof *kept) : NULL;
    if (!kept) {
        gpt2_fail("matmul: no memory on the host for one more shape after %d", lt.used);
        return NULL;
    }
    kept->shape = *p;
    if (keep(kept) != 0) {
        kept_free(kept);
        return NULL;
    }
    return lt.table[lt.used++] = kept;
}

void matmul_cuda_free(void) {
    for (int i = 0; i < lt.used; i++) kept_free(lt.table[i]);
    free(lt.table);
    if (lt.handle) cublasLtDestroy(lt.handle);
    lt.handle = NULL, lt.table = NULL, lt.used = lt.size = 0;
}

// ----------------------------------------------------------------------------
// products

typedef struct { const void *left, *right, *bias; void *out, *aux, *workspace; int add; } Operands;

static int run(const Product *p, const Operands *x) {
    const float one = 1, beta = x->add ? 1 : 0;
    Kept *kept = find_or_make(p);
    if (!kept || !x->workspace) return -1;
    if (!kept->found) return lt_check(p, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
    if (x->bias && set(p, kept->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &x->bias, sizeof x->bias) != 0) return -1;
    if (x->aux && set(p, kept->operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &x->aux, sizeof x->aux) != 0) return -1;
    LT(p, cublasLtMatmul(lt.handle, kept->operation, &one, x->right, kept->right, x->left, kept->left, &beta, x->out, kept->out, x->out,
                         kept->out, &kept->algorithm, x->workspace, lt.workspace_bytes, 0));
    return 0;
}

int matmul_cuda_prepare(const Product *p) {
    Kept *kept = find_or_make(p);
    return !kept ? -1 : kept->found ? 0 : lt_check(p, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
}

int matmul_cuda_product(const Product *p, void *out, const void *left, const void *right, int add, void *workspace) {
    return run(p, &(Operands){ .left = left, .right = right, .out = out, .workspace = workspace, .add = add });
}

static Product forward(gpt2_dtype dt, int BT, int C, int OC, int epilogue) {
    return (Product){ .in = dt, .out = dt, .rows = BT, .cols = OC, .depth = C, .right_t = 1, .left_ld = C, .right_ld = C, .out_ld = OC,
                      .epilogue = epilogue };
}

static Product backward_inp(gpt2_dtype dt, int BT, int C, int OC, int epilogue) {
    return (Product){ .in = dt, .out = dt, .rows = BT, .cols = C, .depth = OC, .left_ld = OC, .right_ld = C, .out_ld = C,
                      .epilogue = epilogue };
}

static Product backward_weight(gpt2_dtype dt, int BT, int C, int OC) {
    return (Product){ .in = dt, .out = dt, .rows = OC, .cols = C, .depth = BT, .left_t = 1, .left_ld = OC, .right_ld = C, .out_ld = C };
}

// whether GELU or its derivative is to be, and can be, part of this product; level: the option that asks for it
static int fuses(const Product *p, int level) {
    int wanted = lt.gelu >= 0 ? lt.gelu : lt.hopper ? 2 : 0;
    if (wanted < level || p->cols % GELU_MULTIPLE != 0) return 0;
    Kept *kept = find_or_make(p);
    return kept && kept->found;
}

int cuda_matmul_forward(gpt2_dtype dt, void *out, const void *inp, const void *weight, const void *bias, int BT, int C, int OC) {
    Product p = forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_BIAS : 0);
    return run(&p, &(Operands){ .left = inp, .right = weight, .bias = bias, .out = out, .workspace = cuda_scratch() });
}

int cuda_matmul_gelu_forward(gpt2_dtype dt, void *out, void *pre, const void *inp, const void *weight, const void *bias, int BT, int C,
                             int OC) {
    Product p = forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
    if (fuses(&p, 1))
        return run(&p, &(Operands){ .left = inp, .right = weight, .bias = bias, .out = out, .aux = pre, .workspace = cuda_scratch() });
    return cuda_matmul_forward(dt, pre, inp, weight, bias, BT, C, OC) != 0 ? -1 : cuda_gelu_forward(dt, out, pre, (size_t)BT * OC);
}

int cuda_matmul_backward(gpt2_dtype dt, void *dinp, void *dweight, void *dbias, const void *dout, const void *inp, const void *weight,
                         const void *pre, int BT, int C, int OC, int add) {
    Product p = backward_inp(dt, BT, C, OC, pre ? CUBLASLT_EPILOGUE_DGELU : 0), w = backward_weight(dt, BT, C, OC);
    int fused = pre && fuses(&p, 2);
    if (!fused) p.epilogue = 0;
    Operands x = { .left = dout, .right = weight, .out = dinp, .aux = fused ? (void *)pre : NULL, .workspace = cuda_scratch() };
    if (run(&p, &x) != 0 || (pre && !fused && cuda_gelu_backward(dt, dinp, pre, dinp, (size_t)BT * C) != 0)
        || matmul_cuda_product(&w, dweight, dout, inp, add, cuda_scratch()) != 0) return -1;
    return dbias ? cuda_bias_backward(dt, dbias, dout, BT, OC) : 0;
}

// ----------------------------------------------------------------------------
// before the first step

// forward and both products of backward, without GELU
static int plan_layer(gpt2_dtype dt, int BT, int C, int OC, int bias) {
    Product products[] = { forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_BIAS : 0), backward_inp(dt, BT, C, OC, 0),
                           backward_weight(dt, BT, C, OC) };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (matmul_cuda_prepare(&products[i]) != 0) return -1;
    return 0;
}

int matmul_cuda_plan(gpt2_dtype dt, int BT, int C, int Vp, int chunk, size_t *scratch_bytes) {
    int rows = chunk < BT ? chunk : BT, last = BT % rows;
    if (matmul_cuda_workspace(scratch_bytes) != 0 || plan_layer(dt, BT, C, 3 * C, 1) != 0 || plan_layer(dt, BT, C, C, 1) != 0
        || plan_layer(dt, BT, C, 4 * C, 1) != 0 || plan_layer(dt, BT, 4 * C, C, 1) != 0 || plan_layer(dt, rows, C, Vp, 0) != 0
        || (last && plan_layer(dt, last, C, Vp, 0) != 0)) return -1;
    Product gelu = forward(dt, BT, C, 4 * C, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    Product dgelu = backward_inp(dt, BT, 4 * C, C, CUBLASLT_EPILOGUE_DGELU);
    fuses(&gelu, 1);    // or not: the products without it are there
    fuses(&dgelu, 2);
    return 0;
}
