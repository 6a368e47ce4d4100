#include "layers_virtual.h"
#include <math.h>
#include <string.h>
#include "gpt2_error.h"

const char *const timed_names[TIMED_LAYERS] = {
    "matmul",
    "matmul_gelu",
    "matmul_backward",
    "gelu_matmul_backward",
    "head",
    "head_backward",
    "attention",
    "attention_backward",
    "layernorm",
    "layernorm_backward",
    "gelu",
    "encoder",
    "encoder_backward",
    "softmax",
    "softmax_backward",
};

static LayersMachine machine;

// -------- how long a layer takes

// Returns its arithmetic operations. Attention is causal: a token attends to half of the row on average.
static double flops_of(TimedLayer layer, double a, double b, double c) {
    switch (layer) {
    case TIMED_MATMUL:
    case TIMED_MATMUL_GELU:
    case TIMED_HEAD:
        return 2 * a * b * c;
    case TIMED_MATMUL_BACKWARD:
    case TIMED_GELU_BACKWARD:
    case TIMED_HEAD_BACKWARD:
        return 4 * a * b * c;
    case TIMED_ATTENTION:
        return 2 * a * b * c;
    case TIMED_ATTENTION_BACKWARD:
        return 5 * a * b * c;
    default:
        return 0;
    }
}

// Returns the bytes of device memory that it reads and writes, all of `size` but statistics.
static double bytes_of(TimedLayer layer, double a, double b, double c, double size) {
    switch (layer) {
    case TIMED_MATMUL:
    case TIMED_HEAD:
        return size * (a * b + b * c + a * c);
    case TIMED_MATMUL_GELU:
        return size * (a * b + b * c + 2 * a * c);
    case TIMED_MATMUL_BACKWARD:
    case TIMED_HEAD_BACKWARD:
        return size * (2 * a * b + 2 * b * c + 2 * a * c);
    case TIMED_GELU_BACKWARD:
        return size * (3 * a * b + 2 * b * c + 2 * a * c);
    case TIMED_ATTENTION:
        return size * 4 * a * c;
    case TIMED_ATTENTION_BACKWARD:
        return size * 8 * a * c;
    case TIMED_LAYERNORM:
        return size * 4 * a * b;
    case TIMED_LAYERNORM_BACKWARD:
        return size * 4 * a * b;
    case TIMED_GELU:
        return size * 2 * a;
    case TIMED_ENCODER:
        return size * 3 * a * b;
    case TIMED_ENCODER_BACKWARD:
        return size * 5 * a * b;
    case TIMED_SOFTMAX:
        return size * a * b;
    case TIMED_SOFTMAX_BACKWARD:
        return size * 3 * a * b;
    default:
        return 0;
    }
}

static double work_of(TimedLayer layer, double a, double b, double c) {
    const double flops = flops_of(layer, a, b, c);
    return flops > 0 ? flops : bytes_of(layer, a, b, c, 1);
}

static double distance(const LayerSample *s, const double dims[3]) {
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        const double d = dims[i] > 0 && s->dims[i] > 0 ? log2(dims[i] / s->dims[i]) : 0;
        sum += d * d;
    }
    return sum;
}

// Returns the operations per second at this shape: measured rates, weighted by how near their shapes are.
static double measured_rate(const LayersMachine *m, TimedLayer layer, gpt2_dtype dt, const double dims[3]) {
    double sum = 0, weights = 0;
    for (const LayerSample *s = m->samples; s < m->samples + m->n_samples; s++) {
        if (s->layer != layer || s->dtype != dt) continue;
        const double d = distance(s, dims) + 1e-3, weight = 1 / (d * d);
        sum += weight * log(work_of(layer, s->dims[0], s->dims[1], s->dims[2]) / s->seconds);
        weights += weight;
    }
    return weights > 0 ? exp(sum / weights) : 0;
}

double layers_virtual_seconds(const LayersMachine *m, TimedLayer layer, gpt2_dtype dt, double a, double b,
                              double c) {
    if (m->n_samples) {
        const double rate = measured_rate(m, layer, dt, (const double[]){ a, b, c });
        return rate > 0 ? work_of(layer, a, b, c) / rate : 0;
    }
    const double flops = flops_of(layer, a, b, c);
    const double bytes = bytes_of(layer, a, b, c, gpt2_dtype_size(dt));
    const double moving = bytes / (m->bytes_per_s * (flops > 0 ? 0.85 : m->reaches[layer]));
    const double computing = flops > 0 ? flops / (m->flops[dt] * m->reaches[layer]) : 0;
    return m->kernel_s + fmax(moving, computing);
}

static int take(TimedLayer layer, gpt2_dtype dt, double a, double b, double c) {
    machine.run(layers_virtual_seconds(&machine, layer, dt, a, b, c));
    return 0;
}

// -------- planning

static int is_gpu(void) { return machine.device_bytes > 0; }

// An estimate for a GPU: attention's backward keeps the scores (NH, T, T) of as many rows as its limit
// allows.
static size_t gpu_scratch(int B, int T, int NH) {
    const size_t row = (size_t)NH * T * T * 2, fit = machine.attention_bytes / row;
    const size_t attention = row * (fit < 1 ? 1 : fit < (size_t)B ? fit : (size_t)B);
    return attention > machine.workspace_bytes ? attention : machine.workspace_bytes;
}
static int virtual_plan(gpt2_dtype dt, int B, int T, int C, int NH, int Vp, int chunk,
                        size_t *scratch_bytes) {
    *scratch_bytes = is_gpu() ? gpu_scratch(B, T, NH) : 0;
    return is_gpu() ? 0 : layers_cpu.plan(dt, B, T, C, NH, Vp, chunk, scratch_bytes);
}
static int virtual_plan_cached(gpt2_dtype dt, int tokens, int rows, int T, int C, int NH, int Vp,
                               size_t *scratch_bytes) {
    *scratch_bytes = 0;
    return is_gpu() ? 0 : layers_cpu.plan_cached(dt, tokens, rows, T, C, NH, Vp, scratch_bytes);
}
static int virtual_use_scratch(void *scratch) { return 0; }
static void virtual_free(void) {}
static int virtual_device_bytes(size_t *total) {
    *total = machine.device_bytes;
    return 0;
}
static int virtual_has_dtype(gpt2_dtype dt) { return is_gpu() || layers_cpu.has_dtype(dt); }
static int virtual_peak_flops(gpt2_dtype dt, double *flops) {
    *flops = machine.flops[dt];
    return 0;
}

// -------- copies

static double copied[LAYERS_COPIES], copies_end;

static int virtual_download(void *host, const void *x, size_t bytes) {
    memset(host, 0, bytes);
    machine.wait();
    return 0;
}
static int virtual_clear(void *x, size_t bytes) {
    machine.run(machine.kernel_s + (machine.bytes_per_s > 0 ? bytes / machine.bytes_per_s : 0));
    return 0;
}
static int virtual_copy_beside(void *to, const void *from, size_t bytes, int which) {
    copied[which] = copies_end = fmax(copies_end, machine.now()) + bytes / machine.bus_bytes_per_s;
    return 0;
}
static int virtual_await_copy(int which) {
    machine.run(fmax(0, copied[which] - machine.now()));
    return 0;
}

// -------- the layers

static int virtual_sum(double *total, const float *x, int n, int add) {
    machine.run(machine.kernel_s);
    return 0;
}
static int virtual_encoder_forward(gpt2_dtype dt, void *out, const int *inp, const void *wte, const void *wpe,
                                   int B, int T, int C) {
    return take(TIMED_ENCODER, dt, B * T, C, 0);
}
static int virtual_encoder_backward(gpt2_dtype dt, void *dwte, void *dwpe, const void *dout, const int *inp,
                                    int B, int T, int C) {
    return take(TIMED_ENCODER_BACKWARD, dt, B * T, C, 0);
}
static int virtual_layernorm_forward(gpt2_dtype dt, void *out, float *mean, float *rstd, const void *inp,
                                     const void *weight, const void *bias, int BT, int C) {
    return take(TIMED_LAYERNORM, dt, BT, C, 0);
}
static int virtual_residual_layernorm_forward(gpt2_dtype dt, void *residual, void *out, float *mean,
                                              float *rstd, const void *inp1, const void *inp2,
                                              const void *weight, const void *bias, int BT, int C) {
    return take(TIMED_LAYERNORM, dt, BT, C, 0);
}
static int virtual_layernorm_backward(gpt2_dtype dt, void *dinp, void *dweight, void *dbias, float *dinp_sums,
                                      const void *dout, const void *inp, const void *weight,
                                      const float *mean, const float *rstd, int BT, int C) {
    return take(TIMED_LAYERNORM_BACKWARD, dt, BT, C, 0);
}
static int virtual_bias_from_sums(gpt2_dtype dt, void *dbias, const float *sums, int C) {
    machine.run(machine.kernel_s);
    return 0;
}
// The LM head's matmul has no bias.
static int virtual_matmul_forward(gpt2_dtype dt, void *out, const void *inp, const void *weight,
                                  const void *bias, int BT, int C, int OC) {
    return take(bias ? TIMED_MATMUL : TIMED_HEAD, dt, BT, C, OC);
}
static int virtual_matmul_gelu_forward(gpt2_dtype dt, void *out, void *pre, const void *inp,
                                       const void *weight, const void *bias, int BT, int C, int OC) {
    return take(TIMED_MATMUL_GELU, dt, BT, C, OC);
}
// The LM head's matmul has more outputs than any other.
static int virtual_matmul_backward(gpt2_dtype dt, void *dinp, void *dinp_bias, void *dweight, void *dbias,
                                   const void *dout, const void *inp, const void *weight, const void *pre,
                                   int BT, int C, int OC, int add) {
    const TimedLayer layer = pre          ? TIMED_GELU_BACKWARD
                             : OC > 4 * C ? TIMED_HEAD_BACKWARD
                                          : TIMED_MATMUL_BACKWARD;
    return take(layer, dt, BT, C, OC);
}
static int virtual_dinp_bias_fused(gpt2_dtype dt, int BT, int C, int OC) {
    return is_gpu() ? 0 : layers_cpu.dinp_bias_fused(dt, BT, C, OC);
}
static int virtual_attention_forward(gpt2_dtype dt, void *out, float *lse, const void *qkv, int B, int T,
                                     int C, int NH) {
    return take(TIMED_ATTENTION, dt, B * T, T, C);
}
static int virtual_attention_backward(gpt2_dtype dt, void *dqkv, const void *dout, const void *qkv,
                                      const void *out, const float *lse, int B, int T, int C, int NH) {
    return take(TIMED_ATTENTION_BACKWARD, dt, B * T, T, C);
}
static int virtual_attention_cached(gpt2_dtype dt, void *out, void *cache, const void *qkv,
                                    const layers_span *spans, int n_spans, int C, int NH) {
    return gpt2_fail("attention over a cache has no virtual time");
}
static int virtual_gelu_forward(gpt2_dtype dt, void *out, const void *inp, size_t n) {
    return take(TIMED_GELU, dt, n, 0, 0);
}
static int virtual_gelu_backward(gpt2_dtype dt, void *dinp, const void *inp, const void *dout, size_t n) {
    return take(TIMED_GELU, dt, n, 0, 0);
}
static int virtual_softmax_crossentropy(gpt2_dtype dt, float *losses, void *logits, float dloss,
                                        const int *targets, int rows, int V, int Vp) {
    return take(dloss ? TIMED_SOFTMAX_BACKWARD : TIMED_SOFTMAX, dt, rows, V, 0);
}

static Layers layers = {
    .plan = virtual_plan,
    .plan_cached = virtual_plan_cached,
    .use_scratch = virtual_use_scratch,
    .free = virtual_free,
    .has_dtype = virtual_has_dtype,
    .peak_flops = virtual_peak_flops,
    .download = virtual_download,
    .clear = virtual_clear,
    .sum = virtual_sum,
    .encoder_forward = virtual_encoder_forward,
    .encoder_backward = virtual_encoder_backward,
    .layernorm_forward = virtual_layernorm_forward,
    .residual_layernorm_forward = virtual_residual_layernorm_forward,
    .layernorm_backward = virtual_layernorm_backward,
    .bias_from_sums = virtual_bias_from_sums,
    .matmul_forward = virtual_matmul_forward,
    .matmul_gelu_forward = virtual_matmul_gelu_forward,
    .matmul_backward = virtual_matmul_backward,
    .dinp_bias_fused = virtual_dinp_bias_fused,
    .attention_forward = virtual_attention_forward,
    .attention_backward = virtual_attention_backward,
    .attention_cached = virtual_attention_cached,
    .gelu_forward = virtual_gelu_forward,
    .gelu_backward = virtual_gelu_backward,
    .softmax_crossentropy = virtual_softmax_crossentropy,
};

const Layers *layers_virtual(const LayersMachine *m) {
    machine = *m;
    layers.device = is_gpu() ? "cuda" : "cpu";
    layers.device_bytes = is_gpu() ? virtual_device_bytes : NULL;
    layers.copy_beside = is_gpu() ? virtual_copy_beside : NULL;
    layers.await_copy = is_gpu() ? virtual_await_copy : NULL;
    return &layers;
}
