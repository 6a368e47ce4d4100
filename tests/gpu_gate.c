// Compares the gradients of the first training step on a GPU with those on a CPU, and measures the GPU's
// speed. Accepts the trainer's options for any model, batch and dtype. Runs on one rank.
//     gpu_gate write FILE OPTION...               stores loss, norm, and a sketch of each tensor's gradient
//     gpu_gate compare FILE LIMIT NORM OPTION...  fails if the relative error of any part of a tensor exceeds
//                                                 LIMIT, or that of the loss or the norm exceeds NORM
//     gpu_gate peak SECONDS OPTION...             measures the first block's QKV matmul, and copies
// Each layer's tensor is divided into up to 64 parts of 256 values or more; a smaller tensor is one part. A
// part's sketch is its norm and 32 sums of its values with random signs. From two sketches the program
// estimates the norm of the parts' difference to within a third, so an error in any value counts. On CUDA,
// scratch and activations are filled with NaN before the step, and with ZERO_POISON=1 gradients too.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>
#include "../llmc_zero/zero.h"

// Gradients are readable only until their unit's last post_backward, so each call sketches the unit.
static int sketch_unit(zero *z, int unit);
#define zero_post_backward sketch_unit
#define main trainer_main
#include "../train_gpt2_zero.cu"
#undef main
#undef zero_post_backward

enum { PARTS = 64, LEAST_VALUES = 256, SUMS = 32 };

typedef struct {
    float norm, sums[SUMS];
} Sketch;
typedef struct {
    double loss, norm;
    int64_t n;
    Sketch *parts;  // (NUM_PARAMETER_TENSORS, L, PARTS); unused ones are 0
} Gradients;

static Trainer t;
static Gradients got;

static Sketch *parts_of(const Gradients *g, int i, int l) {
    return g->parts + ((size_t)i * t.model.config.num_layers + l) * PARTS;
}

static uint64_t mix(uint64_t x) {  // splitmix64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void sketch_part(Sketch *s, const void *g, size_t from, size_t to) {
    double sums[SUMS] = { 0 }, squares = 0;
    for (size_t k = from; k < to; k++) {
        const double x = gpt2_value(t.model.dtype, g, k);
        const uint64_t random = mix((k + 1) * 0x9e3779b97f4a7c15u);
        sums[random % SUMS] += random >> 63 ? -x : x;
        squares += x * x;
    }
    s->norm = (float)sqrt(squares);
    for (int j = 0; j < SUMS; j++) s->sums[j] = (float)sums[j];
}

static void sketch_tensor(int i, int l) {
    const size_t n = t.model.tensors[i].elems, bytes = n * gpt2_dtype_size(t.model.dtype);
    const int most = (int)(n / LEAST_VALUES), parts = most < 1 ? 1 : most < PARTS ? most : PARTS;
    void *g = malloc_check(bytes);
    LAYER(download(g, grad(i, l), bytes));
#pragma omp parallel for schedule(dynamic)
    for (int p = 0; p < parts; p++)
        sketch_part(parts_of(&got, i, l) + p, g, n * p / parts, n * (p + 1) / parts);
    free(g);
}

// Sketches the embedding's unit twice, because the encoder's backward adds to the LM head's gradient. The
// second sketch replaces the first.
static int sketch_unit(zero *z, int unit) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++)
        if (!t.model.tensors[i].per_layer == (unit == EMBEDDING))
            sketch_tensor(i, unit == EMBEDDING ? 0 : unit - unit_of(&t.model, 0, 0));
    return zero_post_backward(z, unit);
}

static void poison(void) {
    GPT2Activation table[NUM_ACTIVATIONS];
    void *scratch;
    int bad = cudaMalloc(&scratch, t.model.scratch_bytes) || cudaMemset(scratch, 0xff, t.model.scratch_bytes);
    activation_table(&t.model, table);
    for (int i = 0; i < NUM_ACTIVATIONS; i++)
        if (!table[i].on_host && table[i].bytes)
            bad |= cudaMemset(act(&t.model, i, 0), 0xff, table[i].bytes) != cudaSuccess;
    if (bad) die("cannot allocate scratch memory, or cannot fill it and the activations with NaN");
    LAYER(use_scratch(scratch));
}

static void step(int argc, char **argv) {
    zero_step_result result;
    run.describe = describe_to_plugin;
    take_launched_ranks();
    parse_options(argc, argv);
    set_up_alone(&t);
    open_data(&t);
    set_up_together(&t);
    begin_or_resume(&t);
    if (on_cuda()) poison();
    got.n = (int64_t)NUM_PARAMETER_TENSORS * t.model.config.num_layers * PARTS;
    got.parts = calloc(got.n, sizeof *got.parts);
    got.loss = gpt2_gradients(&t.model, &t.data.train);
    zero_check(zero_finish_gradients(run.z, &result));
    got.norm = result.grad_norm;
    zero_check(zero_discard(run.z));
    printf("loss %.9f | norm %.9f |\n", got.loss, got.norm);
}

static int write_file(const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(&got, sizeof got, 1, f) != 1 ||
        fwrite(got.parts, sizeof(Sketch), got.n, f) != (size_t)got.n || fclose(f))
        die("cannot write %s", path);
    return 0;
}

static Gradients read_file(const char *path) {
    Gradients g;
    Sketch *parts = malloc_check(got.n * sizeof *parts);
    FILE *f = fopen(path, "rb");
    if (!f || fread(&g, sizeof g, 1, f) != 1 || g.n != got.n ||
        fread(parts, sizeof *parts, g.n, f) != (size_t)g.n)
        die("%s does not contain gradients of this model", path);
    fclose(f);
    g.parts = parts;
    return g;
}

// Returns the largest relative error of the tensor's parts. The divisor is the part's norm, but at least a
// hundredth of the parts' root mean square, because the gradient of the keys' bias is 0 except for rounding.
static double worst_of(const Sketch *g, const Sketch *want) {
    double usual = 0, worst = 0, n = 0;
    for (int p = 0; p < PARTS; p++) usual += (double)want[p].norm * want[p].norm, n += want[p].norm > 0;
    for (int p = 0; p < PARTS; p++) {
        double squares = 0;
        for (int j = 0; j < SUMS; j++) squares += pow((double)g[p].sums[j] - want[p].sums[j], 2);
        const double error = squares ? sqrt(squares) / fmax(want[p].norm, sqrt(usual / n) / 100) : 0;
        if (!isfinite(error)) return INFINITY;
        if (error > worst) worst = error;
    }
    return worst;
}

static int report(const char *what, double error, double limit) {
    const int right = error <= limit;
    printf("%s off by %.2e%s\n", what, error, right ? "" : " WRONG");
    return !right;
}

static int compare(const Gradients want, double limit, double limit_of_norm) {
    int bad = report("loss", fabs(got.loss / want.loss - 1), limit_of_norm) +
              report("norm", fabs(got.norm / want.norm - 1), limit_of_norm);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        double worst = 0;
        for (int l = 0; l < t.model.config.num_layers; l++)
            worst = fmax(worst, worst_of(parts_of(&got, i, l), parts_of(&want, i, l)));
        bad += report(t.model.tensors[i].name, worst, limit);
    }
    return bad != 0;
}

// The peak measurements use the values of a step, so that the GPU draws as much power as in training.
static void matmul(void) {
    const int C = t.model.config.channels;
    LAYER(matmul_forward(t.model.dtype, act(&t.model, QKV, 0), act(&t.model, LN1, 0), param(QKVW, 0),
                         param(QKVB, 0), t.model.B * t.model.T, C, 3 * C));
}

static size_t copied;
static void copy(void) {
    cudaMemcpyAsync(act(&t.model, FCH_GELU, 0), act(&t.model, FCH, 0), copied, cudaMemcpyDeviceToDevice, 0);
}

// Returns the calls per second. The first round is a warm-up.
static double rate(void (*what)(void), double seconds) {
    enum { ROUND = 100 };
    double sum, start = 0;
    for (long n = 0;; n += ROUND) {
        for (int i = 0; i < ROUND; i++) what();
        LAYER(download(&sum, act(&t.model, LOSS_SUMS, 0), sizeof sum));  // waits for the GPU
        if (n == 0) start = now();
        if (n > 0 && now() - start >= seconds) return n / (now() - start);
    }
}

static int peak(double seconds) {
    const double BT = (double)t.model.B * t.model.T, C = t.model.config.channels;
    copied = (size_t)(BT * 4 * C) * gpt2_dtype_size(t.model.dtype);
    zero_check(zero_begin_eval(run.z));
    zero_check(zero_pre_forward(run.z, unit_of(&t.model, 0, 0)));
    printf("matmul %.3f TFLOP/s\n", rate(matmul, seconds) * 6 * BT * C * C * 1e-12);
    printf("copies %.1f GB/s, read and written\n", rate(copy, seconds) * 2 * copied * 1e-9);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 2 ? argv[1] : "";
    const int compares = !strcmp(mode, "compare"), own = compares ? 4 : 2;
    if (argc <= own) die("usage: gpu_gate write FILE, compare FILE LIMIT NORM or peak SECONDS, OPTION...");
    step(argc - own, argv + own);
    if (compares) return compare(read_file(argv[2]), atof(argv[3]), atof(argv[4]));
    return strcmp(mode, "peak") ? write_file(argv[2]) : peak(atof(argv[2]));
}
