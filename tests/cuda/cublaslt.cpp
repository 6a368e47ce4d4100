// The stand-in's cuBLASLt: it checks calls, offers algorithms, and computes matmuls in fp32, rounding only
// the result. It refuses calls that NVIDIA documents as invalid or that GPUs are known to refuse, and is
// sometimes stricter: with an epilogue, the row size of 16-bit types must be a multiple of 16 bytes; BGRADB
// needs a transposed B; BGRADB and DGELU do not support k = 1.
#include <stdio.h>
#include <stdlib.h>
#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>
#include "cublasLt.h"
#include "cuda_runtime.h"

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define VECTOR
#endif

struct cublasLtContext {};

struct cublasLtMatmulDescOpaque {
    cublasComputeType_t compute;
    int trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    unsigned epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
};

struct cublasLtMatrixLayoutOpaque {
    cudaDataType type;
    int64_t rows, cols, ld;
    int batches = 1;
    int64_t stride = 0;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace = 0;
    uint32_t align[4] = { 256, 256, 256, 256 };  // A, B, C, D
};

namespace {

using Layout = cublasLtMatrixLayoutOpaque;
using Desc = cublasLtMatmulDescOpaque;

enum { WORKSPACE = 4096 };   // bytes that an algorithm needs; fewer if the preference allows fewer
enum { ALGORITHMS = 8 };     // per matmul
enum { EPILOGUE_ROW = 16 };  // with an epilogue, rows of 16-bit types must be a multiple of this many bytes

struct Problem {
    Desc desc;
    Layout a, b, c, d;
};

// An algorithm, and the matmul for which it was found. Algorithms with an odd id sum from the last k to the
// first, which gives different bits.
struct Algorithm {
    uint32_t id, bias_align;
    uint64_t key, workspace;
    uint32_t align[4], aux_align, unused;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "cuBLASLt's type must hold an algorithm");

std::atomic<long> heuristics{ 0 };

size_t size_of(int type) { return type == CUDA_R_32F ? 4 : 2; }

// --------
// attributes

template <class T> cublasStatus_t destroy(T *p) {
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

template <class T> cublasStatus_t set(T *to, const void *value, size_t size) {
    if (!value || size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

// --------
// checks

cublasStatus_t refuse(cublasStatus_t status, const char *why) {
    fprintf(stderr, "CUDA stand-in: cuBLASLt: %s\n", why);
    return status;
}
#define REFUSE_IF(condition, status)                                      \
    do {                                                                  \
        if (condition) return refuse(CUBLAS_STATUS_##status, #condition); \
    } while (0)

bool has(const Desc &desc, unsigned epilogue) { return (desc.epilogue & epilogue) == epilogue; }
bool has_bias(const Desc &desc) { return has(desc, CUBLASLT_EPILOGUE_BIAS); }
bool has_gelu(const Desc &desc) { return has(desc, CUBLASLT_EPILOGUE_GELU_AUX); }
bool has_dgelu(const Desc &desc) { return has(desc, CUBLASLT_EPILOGUE_DGELU); }
bool has_bgradb(const Desc &desc) { return desc.epilogue == CUBLASLT_EPILOGUE_BGRADB; }
bool has_bgrad(const Desc &desc) { return desc.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; }
bool has_vector(const Desc &desc) { return has_bias(desc) || has_bgradb(desc) || has_bgrad(desc); }
bool has_aux(const Desc &desc) { return has_gelu(desc) || has_dgelu(desc); }

bool same_layout(const Layout &x, const Layout &y) {
    return x.type == y.type && x.rows == y.rows && x.cols == y.cols && x.ld == y.ld &&
           x.batches == y.batches && x.stride == y.stride;
}

cublasStatus_t check_epilogue(const Desc &desc, const Layout &d) {
    unsigned e = desc.epilogue;
    bool known = e == CUBLASLT_EPILOGUE_DEFAULT || e == CUBLASLT_EPILOGUE_BIAS ||
                 e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
                 e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD ||
                 e == CUBLASLT_EPILOGUE_BGRADB;
    REFUSE_IF(!known || (d.batches > 1 && e != CUBLASLT_EPILOGUE_DEFAULT), NOT_SUPPORTED);
    if (has_aux(desc)) {
        REFUSE_IF(desc.aux_ld % 8 != 0, INVALID_VALUE);
        REFUSE_IF(desc.aux_ld < d.rows, INVALID_VALUE);
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Returns NOT_SUPPORTED without a message, because programs use this call to probe for support.
cublasStatus_t check_support(const Problem &p) {
    const Desc &desc = p.desc;
    if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    int64_t k = desc.trans_a ? p.a.rows : p.a.cols;
    bool aligned = true;
    for (const Layout *x : { &p.a, &p.b, &p.d })
        aligned = aligned && (size_of(x->type) != 2 || x->ld * 2 % EPILOGUE_ROW == 0);
    bool untransposed = has_bgradb(desc) && desc.trans_b == CUBLAS_OP_N;
    bool single_k = k == 1 && (has_bgradb(desc) || has_dgelu(desc));
    return aligned && !untransposed && !single_k ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t check_problem(const Problem &p) {
    const Desc &desc = p.desc;
    const Layout &a = p.a, &b = p.b, &c = p.c, &d = p.d;
    int64_t a_rows = desc.trans_a ? a.cols : a.rows, a_cols = desc.trans_a ? a.rows : a.cols;
    int64_t b_rows = desc.trans_b ? b.cols : b.rows, b_cols = desc.trans_b ? b.rows : b.cols;
    REFUSE_IF(a_rows != d.rows || b_cols != d.cols || a_cols != b_rows, INVALID_VALUE);
    REFUSE_IF(c.rows != d.rows || c.cols != d.cols, INVALID_VALUE);
    REFUSE_IF(a.ld < a.rows || b.ld < b.rows || c.ld < c.rows || d.ld < d.rows, INVALID_VALUE);
    REFUSE_IF(a.batches != d.batches || b.batches != d.batches || c.batches != d.batches, INVALID_VALUE);
    REFUSE_IF(d.batches > 1 && d.stride < (d.cols - 1) * d.ld + d.rows && d.stride + d.rows > d.ld,
              INVALID_VALUE);  // the batches' results overlap
    REFUSE_IF(a.type != b.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F),
              NOT_SUPPORTED);
    REFUSE_IF(desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type != CUDA_R_32F, NOT_SUPPORTED);
    cublasStatus_t rc = check_epilogue(desc, d);
    return rc ? rc : check_support(p);
}

// Returns true if the device can reach every element of the matrix.
bool reaches(const void *p, int type, int64_t rows, int64_t cols, int64_t ld, int batches, int64_t stride) {
    return cuda_stand_in_reaches(p, ((batches - 1) * stride + (cols - 1) * ld + rows) * size_of(type));
}
bool reaches(const void *p, const Layout &x) {
    return reaches(p, x.type, x.rows, x.cols, x.ld, x.batches, x.stride);
}

bool is_aligned(const void *p, size_t alignment) { return (uintptr_t)p % alignment == 0; }

cublasStatus_t check_pointers(const Problem &p, const void *A, const void *B, const void *C, const void *D,
                              const Algorithm &algo) {
    const Desc &desc = p.desc;
    REFUSE_IF(!is_aligned(A, algo.align[0]) || !is_aligned(B, algo.align[1]),
              INVALID_VALUE);  // less aligned than the preference promised
    REFUSE_IF(!is_aligned(C, algo.align[2]) || !is_aligned(D, algo.align[3]), INVALID_VALUE);
    REFUSE_IF(!reaches(A, p.a) || !reaches(B, p.b) || !reaches(C, p.c) || !reaches(D, p.d), EXECUTION_FAILED);
    REFUSE_IF(C == D && !same_layout(p.c, p.d), INVALID_VALUE);
    REFUSE_IF(has_vector(desc) && (!desc.bias || !is_aligned(desc.bias, algo.bias_align)), INVALID_VALUE);
    REFUSE_IF(has_aux(desc) && (!desc.aux || !is_aligned(desc.aux, algo.aux_align)), INVALID_VALUE);
    int64_t length = has_bgradb(desc) ? p.d.cols : p.d.rows;
    REFUSE_IF(has_vector(desc) && !reaches(desc.bias, p.d.type, length, 1, 0, 1, 0), EXECUTION_FAILED);
    REFUSE_IF(has_aux(desc) && !reaches(desc.aux, p.d.type, p.d.rows, p.d.cols, desc.aux_ld, 1, 0),
              EXECUTION_FAILED);
    return CUBLAS_STATUS_SUCCESS;
}

// Returns true if all matrices of the batch start at multiples of 16 bytes.
bool is_aligned(const void *p, const Layout &x) {
    return is_aligned(p, 16) && (x.batches == 1 || x.stride * size_of(x.type) % 16 == 0);
}

// Returns a hash (FNV) of everything but the pointers.
uint64_t key_of(const Problem &p) {
    const Desc &desc = p.desc;
    std::vector<int64_t> fields = { desc.compute, desc.trans_a, desc.trans_b, desc.epilogue, desc.aux_ld };
    for (const Layout *x : { &p.a, &p.b, &p.c, &p.d }) {
        fields.insert(fields.end(),
                      { (int64_t)x->type, x->rows, x->cols, x->ld, (int64_t)x->batches, x->stride });
    }
    uint64_t key = 14695981039346656037ull;
    for (int64_t field : fields) key = (key ^ (uint64_t)field) * 1099511628211ull;
    return key;
}

// --------
// elements

float read(int type, const void *p, int64_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    return (type == CUDA_R_16BF ? bf16_widen : fp16_widen)(((const uint16_t *)p)[i]);
}

void write(int type, void *p, int64_t i, float x) {
    if (type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = (type == CUDA_R_16BF ? bf16_round : fp16_round)(x);
}

// Rounds to 10 bits of mantissa, to nearest, halves away from 0.
float to_tf32(float x) { return isfinite(x) ? __uint_as_float((__float_as_uint(x) + 0x1000) & ~0x1fffu) : x; }

const float GELU_SCALE = 0.7978845608028654f, GELU_CUBE = 0.044715f;

// The tanh of cuBLASLt's epilogues, in all dtypes: rounded to 11 bits, because the relative error of
// tanh.approx, the GPU's instruction, is up to 2^-11.
float gelu_tanh(float x) { return to_tf32(tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x))); }

float gelu(float x) { return 0.5f * x * (1.0f + gelu_tanh(x)); }

float gelu_slope(float x) {
    float t = gelu_tanh(x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
}

// --------
// the matmul

struct Call {
    Problem p;
    const void *A, *B, *C;
    void *D;
    float alpha, beta;
    bool backward = false;  // sums from the last k to the first
    int64_t parts = 1;      // of the sum over k
};

enum { TILE = 32, COLUMNS = 4 };

// Unpacks op(x) into rows of `inner` elements, padded to a multiple of TILE: out[o * padded + i] = x[i, o],
// or x[o, i] with `flip`.
void unpack(std::vector<float> &out, const Layout &x, const void *p, int64_t offset, bool flip, bool tf32) {
    int64_t inner = flip ? x.cols : x.rows, outer = flip ? x.rows : x.cols,
            padded = (inner + TILE - 1) / TILE * TILE;
    out.assign(outer * padded, 0.0f);
    for (int64_t c = 0; c < x.cols; c++) {
        for (int64_t r = 0; r < x.rows; r++) {
            float v = read(x.type, p, offset + c * x.ld + r);
            out[flip ? r * padded + c : c * padded + r] = tf32 ? to_tf32(v) : v;
        }
    }
}

// Computes `sums` (COLUMNS, TILE), adjacent columns of the result. a (K, M padded) begins at the tile's first
// row, b (K, N padded) at the first column.
VECTOR void multiply(float (*sums)[TILE], const float *a, int64_t a_step, const float *b, int64_t b_step,
                     int64_t K, bool backward) {
    float acc[COLUMNS][TILE] = {};
    for (int64_t j = 0; j < K; j++) {
        int64_t k = backward ? K - 1 - j : j;
        for (int n = 0; n < COLUMNS; n++) {
            float x = b[k * b_step + n];
            for (int i = 0; i < TILE; i++) acc[n][i] += a[k * a_step + i] * x;
        }
    }
    memcpy(sums, acc, sizeof acc);
}

// The same in parts, each summed separately, as split-K does.
void multiply_in_parts(float (*sums)[TILE], const float *a, int64_t a_step, const float *b, int64_t b_step,
                       int64_t K, const Call &call) {
    float part[COLUMNS][TILE];
    memset(sums, 0, sizeof part);
    for (int64_t p = 0; p < call.parts; p++) {
        int64_t first = K * p / call.parts, end = K * (p + 1) / call.parts;
        multiply(part, a + first * a_step, a_step, b + first * b_step, b_step, end - first, call.backward);
        for (int n = 0; n < COLUMNS; n++)
            for (int i = 0; i < TILE; i++) sums[n][i] += part[n][i];
    }
}

// Writes an element of D, and returns it unrounded.
float finish(const Call &call, int batch, int64_t row, int64_t col, float product) {
    const Desc &desc = call.p.desc;
    const Layout &c = call.p.c, &d = call.p.d;
    float x = call.alpha * product;
    if (call.beta != 0.0f) x += call.beta * read(c.type, call.C, batch * c.stride + col * c.ld + row);
    if (has_bias(desc)) x += read(d.type, desc.bias, row);
    int64_t aux = col * desc.aux_ld + row;
    if (has_gelu(desc)) {
        write(d.type, desc.aux, aux, x);
        x = gelu(x);
    }
    if (has_dgelu(desc)) x *= gelu_slope(read(d.type, desc.aux, aux));
    write(d.type, call.D, batch * d.stride + col * d.ld + row, x);
    return x;
}

// Sums op(B) over k.
void sum_columns(const Call &call, const std::vector<float> &b, int64_t N, int64_t padded, int64_t K) {
    for (int64_t n = 0; n < N; n++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < K; k++) sum += b[k * padded + n];
        write(call.p.d.type, call.p.desc.bias, n, sum);
    }
}

void compute(const Call &call) {
    const Problem &p = call.p;
    bool tf32 = p.desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    int64_t M = p.d.rows, N = p.d.cols, K = p.desc.trans_a ? p.a.rows : p.a.cols;
    int64_t a_step = (M + TILE - 1) / TILE * TILE, b_step = (N + TILE - 1) / TILE * TILE;
    std::vector<float> a, b;  // (K, M), (K, N)
    for (int batch = 0; batch < p.d.batches; batch++) {
        unpack(a, p.a, call.A, batch * p.a.stride, p.desc.trans_a, tf32);
        unpack(b, p.b, call.B, batch * p.b.stride, !p.desc.trans_b, tf32);
        for (int64_t m = 0; m < M; m += TILE) {
            float rows[TILE] = { 0 };  // sums of D's rows over n
            int64_t here = std::min<int64_t>(TILE, M - m);
            float sums[COLUMNS][TILE];
            for (int64_t n = 0; n < N; n++) {
                if (n % COLUMNS == 0) multiply_in_parts(sums, &a[m], a_step, &b[n], b_step, K, call);
                for (int64_t i = 0; i < here; i++)
                    rows[i] += finish(call, batch, m + i, n, sums[n % COLUMNS][i]);
            }
            if (has_bgrad(p.desc))
                for (int64_t i = 0; i < here; i++) write(p.d.type, p.desc.bias, m + i, rows[i]);
        }
        if (has_bgradb(p.desc)) sum_columns(call, b, N, b_step, K);
    }
}

// Returns a pointer's alignment, at most 256, or 1 for NULL.
uint32_t alignment_of(const void *p) {
    uintptr_t bits = (uintptr_t)p | 256;
    return p ? (uint32_t)(bits & -bits) : 1;
}

cublasStatus_t find_algorithm(const Problem &p, const cublasLtMatmulPreferenceOpaque &pref, Algorithm *algo) {
    heuristics++;
    cublasStatus_t rc = check_problem(p);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    algo->key = key_of(p);
    algo->workspace = std::min<uint64_t>(pref.workspace, WORKSPACE);
    memcpy(algo->align, pref.align, sizeof algo->align);
    algo->bias_align = alignment_of(p.desc.bias);
    algo->aux_align = alignment_of(p.desc.aux);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(const Problem &p, const Algorithm &algo) {
    cublasStatus_t rc = check_problem(p);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    REFUSE_IF(algo.id >= ALGORITHMS, INVALID_VALUE);
    REFUSE_IF(algo.key != key_of(p), INVALID_VALUE);  // an algorithm for another matmul
    return CUBLAS_STATUS_SUCCESS;
}

// Returns the time that events show for a matmul if CUDA_STAND_IN_FASTEST is set; otherwise 0.
double pretended_ms(const Problem &p, const Algorithm &algo) {
    const char *text = getenv("CUDA_STAND_IN_FASTEST"), *colon = text ? strchr(text, ':') : nullptr;
    if (!text || !*text) return 0;
    double epilogue = colon && p.desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT ? atof(colon + 1) : 0;
    return (algo.id == (uint32_t)atol(text) ? 10 : 20 + algo.id) + epilogue;
}
}  // namespace

// --------
// the interface

long cuda_stand_in_heuristics(void) { return heuristics; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    int devices;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasLtContext{};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

size_t cublasLtGetVersion(void) { return (size_t)cuda_stand_in_number("CUDA_STAND_IN_CUBLASLT", 130100); }

const char *cublasLtGetStatusName(cublasStatus_t status) {
#define NAME(s) status == CUBLAS_STATUS_##s ? "CUBLAS_STATUS_" #s:
    return NAME(SUCCESS) NAME(NOT_INITIALIZED) NAME(INVALID_VALUE) NAME(EXECUTION_FAILED)
        NAME(NOT_SUPPORTED) "unknown status";
#undef NAME
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    REFUSE_IF(scale != CUDA_R_32F, NOT_SUPPORTED);
    *desc = new Desc;
    (*desc)->compute = compute;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr,
                                              const void *value, size_t size) {
    if (attr == CUBLASLT_MATMUL_DESC_TRANSA) return set(&desc->trans_a, value, size);
    if (attr == CUBLASLT_MATMUL_DESC_TRANSB) return set(&desc->trans_b, value, size);
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE) return set(&desc->epilogue, value, size);
    if (attr == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return set(&desc->bias, value, size);
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) return set(&desc->aux, value, size);
    if (attr == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) return set(&desc->aux_ld, value, size);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
    REFUSE_IF(!rows || !cols || rows > INT32_MAX || cols > INT32_MAX, INVALID_VALUE);
    *layout = new Layout{ type, (int64_t)rows, (int64_t)cols, ld };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attr, const void *value,
                                                size_t size) {
    if (attr == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return set(&layout->batches, value, size);
    if (attr == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) return set(&layout->stride, value, size);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref) {
    *pref = new cublasLtMatmulPreferenceOpaque;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) { return destroy(pref); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *value, size_t size) {
    const int matrix = attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    uint32_t unused;
    if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(&pref->workspace, value, size);
    if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return set(&unused, value, size);
    if (matrix >= 0 && matrix < 4) return set(&pref->align[matrix], value, size);
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                              cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                              cublasLtMatmulPreference_t pref, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
    REFUSE_IF(!handle || !desc || !A || !B || !C || !D || !pref || requested < 1 || !results || !returned,
              INVALID_VALUE);
    *returned = 0;
    Algorithm algo = {};
    cublasStatus_t rc = find_algorithm({ *desc, *A, *B, *C, *D }, *pref, &algo);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    for (*returned = 0; *returned < std::min<int>(requested, ALGORITHMS); ++*returned) {
        cublasLtMatmulHeuristicResult_t &result = results[*returned];
        result = {};
        algo.id = (uint32_t)*returned;
        memcpy(&result.algo, &algo, sizeof algo);
        result.workspaceSize = algo.workspace;
        result.state = CUBLAS_STATUS_SUCCESS;
        result.wavesCount = 1.0f;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t A, cublasLtMatrixLayout_t B,
                                       cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                       const cublasLtMatmulAlgo_t *chosen,
                                       cublasLtMatmulHeuristicResult_t *result) {
    REFUSE_IF(!handle || !desc || !A || !B || !C || !D || !chosen || !result, INVALID_VALUE);
    Algorithm algo;
    memcpy(&algo, chosen, sizeof algo);
    cublasStatus_t rc = check_algorithm({ *desc, *A, *B, *C, *D }, algo);
    result->state = rc;
    result->workspaceSize = algo.workspace;
    result->wavesCount = 1.0f;
    return rc;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t A_layout, const void *B,
                              cublasLtMatrixLayout_t B_layout, const void *beta, const void *C,
                              cublasLtMatrixLayout_t C_layout, void *D, cublasLtMatrixLayout_t D_layout,
                              const cublasLtMatmulAlgo_t *chosen, void *workspace, size_t workspace_size,
                              cudaStream_t stream) {
    REFUSE_IF(!handle || !desc || !alpha || !beta || !A_layout || !B_layout || !C_layout || !D_layout,
              INVALID_VALUE);
    if (cuda_stand_in_fails("cublasLtMatmul")) return CUBLAS_STATUS_EXECUTION_FAILED;
    const Problem p = { *desc, *A_layout, *B_layout, *C_layout, *D_layout };
    Call call = { p, A, B, C, D, *(const float *)alpha, *(const float *)beta };
    Algorithm algo = {};
    cublasLtMatmulPreferenceOpaque any;
    std::fill(any.align, any.align + 4, (uint32_t)size_of(call.p.d.type));
    if (chosen) memcpy(&algo, chosen, sizeof algo);
    cublasStatus_t rc = chosen ? check_algorithm(call.p, algo) : find_algorithm(call.p, any, &algo);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    if (algo.id < cuda_stand_in_number("CUDA_STAND_IN_REFUSED", 0)) return CUBLAS_STATUS_NOT_SUPPORTED;
    bool aligned = is_aligned(A, call.p.a) && is_aligned(B, call.p.b) && is_aligned(C, call.p.c) &&
                   is_aligned(D, call.p.d);
    if (algo.id < cuda_stand_in_number("CUDA_STAND_IN_ALIGNED", 0) && !aligned)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    REFUSE_IF(workspace_size < algo.workspace, INVALID_VALUE);
    REFUSE_IF(workspace_size &&
                  (!is_aligned(workspace, 256) || !cuda_stand_in_reaches(workspace, workspace_size)),
              INVALID_VALUE);
    rc = check_pointers(call.p, A, B, C, D, algo);
    if (rc != CUBLAS_STATUS_SUCCESS) return rc;
    call.backward = algo.id % 2;
    if (cuda_stand_in_number("CUDA_STAND_IN_SPLIT", 0)) call.parts = 2 + algo.key % 3;
    size_t used = algo.workspace;
    double pretended = pretended_ms(call.p, algo);
    cudaError_t queued = cuda_stand_in_queue(stream, [=] {
        if (used) memset(workspace, 0xff, used);  // exposes a workspace that also holds other data
        compute(call);
        cuda_stand_in_takes(pretended);
    });
    return queued == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
