// A complete llmc_zero trainer for a network other than GPT-2. The network learns to separate two spirals in
// the plane. The program uses only zero.h, optimizers.h, libc and libm, and computes in fp32. docs/porting.md
// explains it.
// Settings: ZERO_STAGE, ZERO_CONFIG, ZERO_POISON, ZERO_CHECK.
//
//     ZERO_STAGE=3 mpirun -np 2 mlp_zero [save | resume] [sgd | lion] [layers]
//         save: saves the state to the folder mlp_zero.saved after half of the steps
//         resume: continues from that state
//         sgd, lion: instead of AdamW, SGD with momentum, or Lion (optimizers.h)
//         layers: all micro-batches of a step pass a layer while it is open (docs/porting.md)
//
// x (n, 2) -> input (2, H), tanh -> hidden (H, H), tanh, L times -> output (H, 1) -> logits (n)
// n: rows of a pass, which is a micro-batch, or with `layers` all of a step
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "llmc_zero/zero.h"
#include "optimizers.h"

enum { H = 64, L = 3, STEPS = 300 };
// BATCH: rows per step, over all ranks and micro-batches. NEW: rows of the evaluation at the end.
enum { BATCH = 96, NEW = 10 * BATCH };
enum { INW, INB, HIDW, HIDB, OUTW, OUTB, TENSORS };  // rows of the tensor table; each bias follows its weight
enum { INPUT, HIDDEN, OUTPUT = HIDDEN + L, UNITS };  // rows of the unit table; hidden layer l is HIDDEN + l

static const zero_tensor tensors[TENSORS] = {
    // name, shape, layers, unit of layer 0, decay, backward_overwrites
    { "inw", 2, { H, 2 }, 1, INPUT, 1, 0 },   { "inb", 1, { H }, 1, INPUT, 0, 0 },
    { "hidw", 2, { H, H }, L, HIDDEN, 1, 0 }, { "hidb", 1, { H }, L, HIDDEN, 0, 0 },
    { "outw", 1, { H }, 1, OUTPUT, 1, 0 },    { "outb", 1, { 1 }, 1, OUTPUT, 0, 0 },
};
static const zero_unit units[UNITS] = {
    // uses forward, backward, of these only for gradients: the input's backward reads no parameters
    { "input", 1, 1, 1 },    { "hidden 0", 1, 1, 0 }, { "hidden 1", 1, 1, 0 },
    { "hidden 2", 1, 1, 0 }, { "output", 1, 1, 0 },
};

static zero *z;             // the plugin; NULL before zero_create
static int n, side[BATCH];  // side: the row's spiral, -1 or 1
static int first, at_once;  // the pass has micro-batches first to first + at_once - 1 of the step
static float *x, *logits, *dlogits;
static float *act[L + 1], *dact[2];  // act[l], dact[l % 2] (n, H): the input of layer l, and its gradient

static void fail(const char *sentence) {
    char line[1100];
    snprintf(line, sizeof line, "mlp_zero: %s", sentence);
    zero_end_job(z, 1, line);  // one rank writes it to stderr, and all ranks end
}
static void check(int rc) {
    if (rc) fail(zero_last_error());
}
static float *valid(void *p) {
    if (!p) fail(zero_last_error());
    return p;
}
static const float *param(int tensor, int l) { return valid((void *)zero_param(z, tensor, l)); }
static float *grad(int tensor, int l) { return valid(zero_grad(z, tensor, l)); }
static float *activation(int width) {
    return valid(
        zero_alloc(z, ZERO_DEVICE, ZERO_ACTIVATIONS, "activations", (size_t)n * width * sizeof(float)));
}

// Returns the i-th number in [0, 1) of a fixed sequence, the same on every rank: multiplicative hashing with
// 2^32 / the golden ratio.
static float number(unsigned i) {
    unsigned h = i * 0x9e3779b1U;
    return (float)((h ^ h >> 15) * 0x9e3779b1U >> 8) / (1 << 24);
}

// Loads this rank's rows of a pass. Rows are numbered over all ranks, so a step uses the same rows on any
// number of ranks.
static void load_rows(int pass) {
    unsigned row = (unsigned)(pass * zero_ranks(z) + zero_rank(z)) * n;
    for (int i = 0; i < n; i++, row++) {
        float radius = 0.1f + 0.9f * number(2 * row);
        side[i] = number(2 * row + 1) < 0.5f ? -1 : 1;
        x[2 * i] = side[i] * radius * cosf(10 * radius), x[2 * i + 1] = side[i] * radius * sinf(10 * radius);
    }
}

// out (n, n_out) = in (n, n_in) w (n_in, n_out) + b (n_out), followed by tanh except at the output
static void layer_forward(int unit, int weight, int l, float *out, const float *in, int n_in, int n_out) {
    check(zero_pre_forward(z, unit));
    const float *w = param(weight, l), *b = param(weight + 1, l);
    for (int r = 0; r < n; r++, in += n_in, out += n_out) {
        memcpy(out, b, n_out * sizeof(float));
        for (int i = 0; i < n_in; i++)
            for (int o = 0; o < n_out; o++) out[o] += in[i] * w[i * n_out + o];
        for (int o = 0; unit != OUTPUT && o < n_out; o++) out[o] = tanhf(out[o]);
    }
    check(zero_post_forward(z, unit));
}

// Adds to the gradients of w and b. Unless din is NULL, sets it to the gradient before the tanh that computed
// `in`.
static void layer_backward(int unit, int weight, int l, float *din, const float *dout, const float *in,
                           int n_in, int n_out) {
    check(zero_pre_backward(z, unit));
    const float *w = din ? param(weight, l) : NULL;
    for (int m = 0; m < at_once; m++) {
        float *dw = grad(weight, l), *db = grad(weight + 1, l);
        for (int r = 0; r < n / at_once; r++, in += n_in, dout += n_out) {
            for (int o = 0; o < n_out; o++) db[o] += dout[o];
            for (int i = 0; i < n_in; i++)
                for (int o = 0; o < n_out; o++) dw[i * n_out + o] += in[i] * dout[o];
            for (int i = 0; din && i < n_in; i++, din++) {
                float sum = 0;
                for (int o = 0; o < n_out; o++) sum += dout[o] * w[i * n_out + o];
                *din = sum * (1 - in[i] * in[i]);
            }
        }
        check(zero_post_micro(z, unit, first + m));
    }
    check(zero_post_backward(z, unit));
}

// Runs pass `turn` of the `of` passes of a step, or an evaluation if `of` is 0. Adds the sum of its losses
// and the number of correctly classified rows to sums.
static void run_pass(int pass, int turn, int of, double sums[2]) {
    first = turn * at_once;
    load_rows(pass);
    if (of) check(zero_check_batch(z, x, 2 * n * sizeof *x));
    check(of ? zero_begin_train(z, first, of * at_once) : zero_begin_eval(z));
    layer_forward(INPUT, INW, 0, act[0], x, 2, H);
    for (int l = 0; l < L; l++) layer_forward(HIDDEN + l, HIDW, l, act[l + 1], act[l], H, H);
    layer_forward(OUTPUT, OUTW, 0, logits, act[L], H, 1);
    for (int i = 0; i < n; i++) {
        double margin = side[i] * logits[i];
        sums[0] += log1p(exp(-margin));
        sums[1] += margin > 0;
        // The gradient of the mean over this rank's rows of the step. With `layers` the plugin divides by the
        // number of micro-batches.
        dlogits[i] = (float)(-side[i] / (1 + exp(margin)) / (n / at_once * of));
    }
    if (!of) return;
    layer_backward(OUTPUT, OUTW, 0, dact[L % 2], dlogits, act[L], H, 1);
    for (int l = L - 1; l >= 0; l--)
        layer_backward(HIDDEN + l, HIDW, l, dact[l % 2], dact[(l + 1) % 2], act[l], H, H);
    layer_backward(INPUT, INW, 0, NULL, dact[0], x, 2, H);
}

static void set_initial_values(void) {
    float values[H * H];
    for (int t = 0, next = 0; t < TENSORS; t++)
        for (int l = 0; l < tensors[t].layers; l++) {
            float most = !tensors[t].decay ? 0 : t == INW ? 2 : 1.7f / sqrtf(H);  // biases start at 0
            for (int i = 0; i < zero_tensor_elems(&tensors[t]); i++)
                values[i] = most * (2 * number(next++) - 1);
            check(zero_set(z, ZERO_PARAM, t, l, 0, zero_tensor_elems(&tensors[t]), values));
        }
}

// Returns the step of the checkpoint.
static int load(void) {
    char *text;
    int step;
    check(zero_load(z, "mlp_zero.saved", &text));
    if (sscanf(text, " { \"step\" : %d", &step) != 1) fail("mlp_zero.saved is not from this trainer");
    free(text);
    return step;
}

int main(int argc, char **argv) {
    int save = argc > 1 && !strcmp(argv[1], "save"), resume = argc > 1 && !strcmp(argv[1], "resume"),
        step = 0, used = 1 + (save || resume);
    float lr = 0.005f;
    char text[32], hash[17];
    double seen[2] = { 0, 0 };
    zero_plan plan;
    zero_config config = zero_defaults();
    check(zero_config_from_env(&config));
    if (argc > used && (!strcmp(argv[used], "sgd") || !strcmp(argv[used], "lion"))) {
        const int is_lion = !strcmp(argv[used++], "lion");
        config.update_with = is_lion ? lion : sgd_momentum;
        config.update_states = 1;
        config.update_name = is_lion ? "Lion" : "SGD with momentum";
        lr = is_lion ? 0.001f : 0.2f;
    }
    if (argc > used && !strcmp(argv[used], "layers")) {
        config.accumulate_layers = 1;
        used++;
    }
    if (argc > used) fail("usage: mlp_zero [save | resume] [sgd | lion] [layers]");
    if (config.numbers.dtype != ZERO_F32)
        fail("this trainer computes in fp32: remove bf16 from the ZERO_CONFIG file");
    check(zero_create(&z, &config, tensors, TENSORS, units, UNITS));
    int prints = zero_rank(z) == 0, A = config.micro_batches;
    at_once = config.accumulate_layers ? A : 1;
    const int passes = A / at_once;
    n = BATCH / (zero_ranks(z) * A) * at_once;
    if (n * zero_ranks(z) * passes != BATCH)
        fail("BATCH, the rows of a step, must be a multiple of the ranks times the micro-batches");
    x = activation(2), logits = activation(1), dlogits = activation(1), dact[0] = activation(H),
    dact[1] = activation(H);
    for (int l = 0; l <= L; l++) act[l] = activation(H);
    set_initial_values();
    if (resume) step = load();
    for (; step < STEPS; step++) {
        if (save && step == STEPS / 2) {
            snprintf(text, sizeof text, "{\"step\": %d}", step);
            check(zero_save(z, "mlp_zero.saved", text));
        }
        double sums[2] = { 0, 0 };
        zero_step_result result;
        zero_hyper hyper = { lr * (STEPS - step) / STEPS, 0.9f, 0.95f, 1e-8f, 0.01f, 1, step + 1 };
        for (int p = 0; p < passes; p++) run_pass(step * passes + p, p, passes, sums);
        check(zero_step(z, &hyper, &result));
        if (prints && result.note) fprintf(stderr, "mlp_zero: note: %s\n", result.note);
        check(zero_sum(z, sums, 2));
        if (prints && step % 50 == 0)
            printf("step %3d | loss %.6f | norm %.4f\n", step + 1, sums[0] / BATCH, result.grad_norm);
    }
    for (int i = 0; i < NEW / BATCH * passes; i++)
        run_pass(STEPS * passes + i, 0, 0, seen);  // rows that were not used in training
    check(zero_sum(z, seen, 2));
    check(zero_hash(z, 0, hash));
    zero_plan_info(z, &plan);
    if (prints)
        printf(
            "%d new points: loss %.6f, %.1f %% on the right side\nmodel states %zu bytes per rank (formula "
            "%zu), working %zu\n"
            "params_hash %s\n",
            NEW, seen[0] / NEW, 100 * seen[1] / NEW, zero_memory_bytes(z, ZERO_STATES),
            plan.formulas[config.stage].bytes, zero_memory_bytes(z, ZERO_WORKING), hash);
    zero_destroy(z);
}
