// The layers' matmuls on CUDA: which cuBLASLt epilogue each one uses, and what replaces a missing epilogue.
#include "cuda.h"
#include "matmul_lt_cuda.h"

static int gelu_option;  // layers_cuda_options' gelu

void matmul_cuda_options(int tf32, int gelu) {
    matmul_set_tf32(tf32);
    gelu_option = gelu;
}

// -------- a matmul with its epilogue, or with the epilogue's work done separately

// The tanh of cuBLASLt's epilogues is the GPU's approximation, with a relative error of up to 2^-11. That is
// too large for fp32.
static int fuses_gelu(gpt2_dtype dt, int backward) {
    if (dt == GPT2_F32) return 0;
    return gelu_option >= 0 ? gelu_option >= 1 + backward : cublaslt_hopper() == 1;
}

int layers_cuda_gelu_fused(gpt2_dtype dt) { return fuses_gelu(dt, 0); }

// Returns whether cuBLASLt may compute this epilogue. On a Hopper it sums columns (BGRAD) in a separate
// kernel, which may be slower than ours, so only tuning chooses it.
static int allowed(const Matmul *p) {
    switch (p->epilogue) {
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return fuses_gelu(p->out, 0);
    case CUBLASLT_EPILOGUE_DGELU:
        return fuses_gelu(p->out, 1);
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return fuses_gelu(p->out, 1) && tune_wanted() >= 0;
    case CUBLASLT_EPILOGUE_BGRADB:
        return tune_wanted() >= 0;
    }
    return 1;
}

static int multiply(const Matmul *p, const Operands *x) {
    if (!allowed(p)) return matmul_cuda_apart(p, x);
    Kept *kept = matmul_keep(p);
    int rc = kept ? matmul_run(kept, x) : -1;
    return rc > 0 ? matmul_cuda_apart(p, x) : rc;
}

// Returns the same matmul without one task of its epilogue.
Matmul matmul_cuda_less(const Matmul *p) {
    Matmul less = *p;
    less.epilogue = p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ? CUBLASLT_EPILOGUE_BIAS
                    : p->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD ? CUBLASLT_EPILOGUE_DGELU
                                                                   : 0;
    return less;
}

int matmul_cuda_apart(const Matmul *p, const Operands *x) {
    Matmul less = matmul_cuda_less(p);
    Operands y = *x;
    size_t n = (size_t)p->rows * p->cols;
    switch (p->epilogue) {
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        y.out = x->aux;
        return multiply(&less, &y) != 0 ? -1 : cuda_gelu_forward(p->out, x->out, x->aux, n);
    case CUBLASLT_EPILOGUE_DGELU:
        return multiply(&less, x) != 0 ? -1 : cuda_gelu_backward(p->out, x->out, x->aux, x->out, n);
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        return multiply(&less, x) != 0 ? -1
                                       : cuda_bias_backward(p->out, x->bias, x->out, p->rows, p->cols, 0);
    case CUBLASLT_EPILOGUE_BGRADB:
        return multiply(&less, x) != 0 ? -1
                                       : cuda_bias_backward(p->in, x->bias, x->left, p->depth, p->rows, 0);
    }
    return matmul_unsupported(p);
}

int matmul_cuda_prepare(const Matmul *p) {
    if (!allowed(p)) {
        Matmul less = matmul_cuda_less(p);
        return matmul_cuda_prepare(&less);
    }
    Kept *kept = matmul_keep(p);
    if (!kept) return -1;
    return kept->found || matmul_splits(p) ? 0 : matmul_unsupported(p);
}

int matmul_cuda_multiply(const Matmul *p, void *out, const void *left, const void *right, int add,
                         void *workspace) {
    Operands x = { .left = left, .right = right, .out = out, .workspace = workspace, .add = add };
    return multiply(p, &x);
}

// -------- the layers

static Matmul forward(gpt2_dtype dt, int BT, int C, int OC, int epilogue) {
    return matmul_of(dt, BT, OC, C, 0, 1, epilogue);
}

static Matmul backward_inp(gpt2_dtype dt, int BT, int C, int OC, int epilogue) {
    return matmul_of(dt, BT, C, OC, 0, 0, epilogue);
}

static Matmul backward_weight(gpt2_dtype dt, int BT, int C, int OC, int epilogue) {
    return matmul_of(dt, OC, C, BT, 1, 0, epilogue);
}

int cuda_matmul_forward(gpt2_dtype dt, void *out, const void *inp, const void *weight, const void *bias,
                        int BT, int C, int OC) {
    Matmul p = forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_BIAS : 0);
    Operands x = { .left = inp, .right = weight, .bias = (void *)bias, .out = out };
    x.workspace = cuda_scratch();
    return multiply(&p, &x);
}

int cuda_matmul_gelu_forward(gpt2_dtype dt, void *out, void *pre, const void *inp, const void *weight,
                             const void *bias, int BT, int C, int OC) {
    Matmul p = forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
    Operands x = { .left = inp, .right = weight, .bias = (void *)bias, .out = out, .aux = pre };
    x.workspace = cuda_scratch();
    return multiply(&p, &x);
}

// The epilogues overwrite bias gradients, so with `add` they are summed separately.
int cuda_matmul_backward(gpt2_dtype dt, void *dinp, void *dinp_bias, void *dweight, void *dbias,
                         const void *dout, const void *inp, const void *weight, const void *pre, int BT,
                         int C, int OC, int add) {
    int sums_inp = pre && dinp_bias && !add, sums_out = dbias && !add;
    int epilogue = sums_inp ? CUBLASLT_EPILOGUE_DGELU_BGRAD : pre ? CUBLASLT_EPILOGUE_DGELU : 0;
    Matmul p = backward_inp(dt, BT, C, OC, epilogue);
    Matmul w = backward_weight(dt, BT, C, OC, sums_out ? CUBLASLT_EPILOGUE_BGRADB : 0);
    Operands x = { .left = dout, .right = weight, .bias = dinp_bias, .aux = (void *)pre, .out = dinp };
    Operands y = { .left = dout, .right = inp, .bias = dbias, .out = dweight, .add = add };
    x.workspace = y.workspace = cuda_scratch();
    if (multiply(&p, &x) != 0 || multiply(&w, &y) != 0) return -1;
    if (dinp_bias && !sums_inp && cuda_bias_backward(dt, dinp_bias, dinp, BT, C, add) != 0) return -1;
    return dbias && !sums_out ? cuda_bias_backward(dt, dbias, dout, BT, OC, add) : 0;
}

int cuda_dinp_bias_fused(gpt2_dtype dt, int BT, int C, int OC) {
    Matmul p = backward_inp(dt, BT, C, OC, CUBLASLT_EPILOGUE_DGELU_BGRAD);
    Kept *kept = allowed(&p) ? matmul_keep(&p) : NULL;
    return kept && kept->found > 0;
}

// -------- before the first step

// Plans forward and both matmuls of backward, without GELU. With a bias it plans dweight with and without the
// bias gradient, because another layer may compute it.
static int plan_layer(gpt2_dtype dt, int BT, int C, int OC, int bias) {
    Matmul matmuls[] = { forward(dt, BT, C, OC, bias ? CUBLASLT_EPILOGUE_BIAS : 0),
                         backward_inp(dt, BT, C, OC, 0), backward_weight(dt, BT, C, OC, 0),
                         backward_weight(dt, BT, C, OC, CUBLASLT_EPILOGUE_BGRADB) };
    for (int i = 0; i < (bias ? 4 : 3); i++)
        if (matmul_cuda_prepare(&matmuls[i]) != 0) return -1;
    return 0;
}

int matmul_cuda_plan(gpt2_dtype dt, int BT, int C, int Vp, int chunk, size_t *scratch_bytes) {
    int rows = chunk < BT ? chunk : BT, last = BT % rows;
    Matmul gelu = forward(dt, BT, C, 4 * C, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    Matmul dgelu = backward_inp(dt, BT, 4 * C, C, CUBLASLT_EPILOGUE_DGELU_BGRAD);
    if (matmul_cuda_workspace(scratch_bytes) != 0 || plan_layer(dt, BT, C, 3 * C, 1) != 0 ||
        plan_layer(dt, BT, C, C, 1) != 0 || plan_layer(dt, BT, C, 4 * C, 1) != 0 ||
        plan_layer(dt, BT, 4 * C, C, 1) != 0 || plan_layer(dt, rows, C, Vp, 0) != 0 ||
        (last && plan_layer(dt, last, C, Vp, 0) != 0))
        return -1;
    return matmul_cuda_prepare(&gelu) != 0 ? -1 : matmul_cuda_prepare(&dgelu);
}
