// The table of the layers on a CUDA device, and their plan. All work is queued on the default stream.
#include <limits.h>
#include <stdio.h>
#include "cuda.h"

int layers_cuda_options(int tf32, int gelu, const char *attention) {
    if (tf32 < 0 || tf32 > 1 || gelu < -1 || gelu > 2)
        return gpt2_fail("layers: tf32 %d, gelu %d: must be 0 or 1, and -1, 0, 1 or 2", tf32, gelu);
    matmul_cuda_options(tf32, gelu);
    return attention_cuda_options(attention);
}

static void release_matmuls(void) {
    matmul_cuda_free();
    ends_cuda_free();
    cuda_use_scratch(NULL);
}

static void release(void) {
    copy_cuda_free();
    attention_cuda_free();
    release_matmuls();
}

static int device_bytes(size_t *total) {
    size_t available;
    CUDA_TRY(cudaMemGetInfo(&available, total));
    return 0;
}

// Skips the trials if memory is short. The activations need more than the operands of one matmul, so they
// will not fit either, and the message of that failure suggests options that would.
static int try_matmuls(size_t scratch_bytes) {
    void *memory;
    size_t own = (scratch_bytes + 255) / 256 * 256, bytes = own + trial_cuda_bytes();
    cudaError_t rc = cudaMalloc(&memory, bytes);
    if (rc == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        if (tune_wanted() < 1) return 0;
        return gpt2_fail("no memory for %zu bytes to time matmuls in; activations need more, so use a "
                         "smaller batch",
                         bytes);
    }
    if (cuda_check(rc, "memory to try matmuls in")) return -1;
    cuda_use_scratch(memory);
    int tried = trial_cuda((char *)memory + own);
    cuda_use_scratch(NULL);
    rc = cudaFree(memory);  // also fails if a kernel failed, but then that is the error to report
    return tried ? -1 : cuda_check(rc, "cudaFree");
}

static int check_plan(int B, int T, int C, int NH, int Vp, int chunk) {
    if (B < 1 || T < 1 || C < 1 || NH < 1 || C % NH != 0 || Vp < 1 || chunk < 1 || B > INT_MAX / T)
        return gpt2_fail("layers: B %d, T %d, C %d, NH %d, Vp %d, rows of logits at a time %d: all must be "
                         "positive, NH must divide C, and B*T must fit an int",
                         B, T, C, NH, Vp, chunk);
    if (C % LAYERS_CUDA_ROWS != 0 || Vp % LAYERS_CUDA_ROWS != 0)
        return gpt2_fail("layers: C %d, Vp %d: on CUDA both must be multiples of %d", C, Vp,
                         LAYERS_CUDA_ROWS);
    return 0;
}

enum { ROWS, ENDS, MATMULS, ATTENTION, PARTS };  // groups of layers; each requests scratch

// Uses the largest request, because layers run one after another. Then runs each matmul once. failed: 1 if
// the plan of a part has failed.
static int finish_plan(int failed, const size_t wishes[PARTS], size_t *scratch_bytes) {
    *scratch_bytes = 0;
    for (int i = 0; i < PARTS; i++) *scratch_bytes = wishes[i] > *scratch_bytes ? wishes[i] : *scratch_bytes;
    if (!failed && try_matmuls(*scratch_bytes) == 0) return 0;
    char why[1024];  // because after a kernel's failure, the release fails too
    snprintf(why, sizeof why, "%s", gpt2_last_error());
    release();
    return gpt2_fail("%s", why);
}

// Plans the matmuls of a pass of `tokens` tokens, including backward's. Those of later passes, with one token
// per row, are prepared when first used.
static int plan_cached(gpt2_dtype dt, int tokens, int rows, int T, int C, int NH, int Vp,
                       size_t *scratch_bytes) {
    if (check_plan(tokens, T, C, NH, Vp, rows)) return -1;
    release_matmuls();
    size_t wishes[PARTS] = { 0 };
    int failed = rows_cuda_plan(dt, C, &wishes[ROWS]) || ends_cuda_plan(tokens, Vp, &wishes[ENDS]) ||
                 matmul_cuda_plan(dt, tokens, C, Vp, rows, &wishes[MATMULS]);
    return finish_plan(failed, wishes, scratch_bytes);
}

static int plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk, size_t *scratch_bytes) {
    if (check_plan(B, T, C, NH, Vp, chunk)) return -1;
    release_matmuls();  // attention's graphs stay, because they belong to a shape and take long to build
    int BT = B * T;
    size_t wishes[PARTS] = { 0 };
    int failed = rows_cuda_plan(dt, C, &wishes[ROWS]) ||
                 ends_cuda_plan(BT > chunk ? BT : chunk, Vp, &wishes[ENDS]) ||
                 matmul_cuda_plan(dt, BT, C, Vp, chunk, &wishes[MATMULS]) ||
                 attention_cuda_plan(dt, B, T, C, NH, &wishes[ATTENTION]);
    return finish_plan(failed, wishes, scratch_bytes);
}

static int has_dtype(gpt2_dtype dt) {
    int device, major, minor;
    if (cuda_check(cudaGetDevice(&device), "cudaGetDevice") ||
        cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                   "compute capability") ||
        cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                   "compute capability"))
        return 0;
    return 10 * major + minor >= (dt == GPT2_BF16 ? 80 : dt == GPT2_F16 ? 53 : 0);
}

static int download(void *host, const void *x, size_t bytes) {
    if (cuda_check(cudaStreamSynchronize(0), "a kernel queued before this download has failed")) return -1;
    CUDA_TRY(cudaMemcpy(host, x, bytes, cudaMemcpyDeviceToHost));
    return 0;
}

static int clear(void *x, size_t bytes) {
    CUDA_TRY(cudaMemsetAsync(x, 0, bytes, 0));
    return 0;
}

static int copy(void *to, const void *from, size_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, 0));
    return 0;
}

static const Layers layers = {
    .device = "cuda",
    .plan = plan,
    .plan_cached = plan_cached,
    .use_scratch = cuda_use_scratch,
    .free = release,
    .device_bytes = device_bytes,
    .has_dtype = has_dtype,
    .peak_flops = cuda_peak_flops,
    .download = download,
    .clear = clear,
    .copy = copy,
    .copy_beside = cuda_copy_beside,
    .await_copy = cuda_await_copy,
    .sum = cuda_sum,
    .encoder_forward = cuda_encoder_forward,
    .encoder_backward = cuda_encoder_backward,
    .layernorm_forward = cuda_layernorm_forward,
    .residual_layernorm_forward = cuda_residual_layernorm_forward,
    .layernorm_backward = cuda_layernorm_backward,
    .bias_from_sums = cuda_bias_from_sums,
    .matmul_forward = cuda_matmul_forward,
    .matmul_gelu_forward = cuda_matmul_gelu_forward,
    .matmul_backward = cuda_matmul_backward,
    .dinp_bias_fused = cuda_dinp_bias_fused,
    .attention_forward = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .attention_cached = cuda_attention_cached,
    .gelu_forward = cuda_gelu_forward,
    .gelu_backward = cuda_gelu_backward,
    .softmax_crossentropy = cuda_softmax_crossentropy,
};

const Layers *layers_cuda(void) { return &layers; }
