// Measures this machine for the plan's virtual time (trainer/planning/machines.h). scripts/calibrate.sh runs
// one process for each core, so that all cores are busy, and writes the machine's file.
//     build/calibrate layers [B,T,C,NH,V]...  times of the layers, a sample a line, with OpenMP's threads, at
//                                       these shapes, or at several
//     build/calibrate memory            rates of the plugin's kernels
//     build/calibrate disk FOLDER       rates of reads and writes
#include "../gpt2/gpt2_error.h"
#include "../gpt2/layers_virtual.h"
#include "../gpt2/model.h"
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/device/device.h"
#include "../llmc_zero/tiers/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void fail(const char *message) {
    fprintf(stderr, "calibrate: %s\n", message);
    exit(1);
}

// Returns memory in large pages, as in a run.
static void *memory_of(size_t bytes) {
    const size_t page = 2 << 20, all = (bytes + page - 1) / page * page;
    uint16_t *p = aligned_alloc(page, all);
    if (!p) fail("out of memory");
    madvise(p, all, MADV_HUGEPAGE);
    // About +-0.01 as bf16 and as fp32: subnormal numbers would cost a hundred times as much on Intel.
    for (size_t i = 0; i < bytes / 2; i++) p[i] = (uint16_t)(0x3c00 | (i * 40503 & 0x807f));
    return p;
}

// -------- timing: the mean of a few calls, after one that is not timed

enum { LAYERS = 4 };
static int turn;                     // the layer whose weights are used
static const double ENOUGH = 0.002;  // seconds for the calls of one sample

#define TIME(seconds, call)                  \
    do {                                     \
        int calls = 0;                       \
        double start;                        \
        call;                                \
        seconds = 0;                         \
        do {                                 \
            turn = (turn + 1) % LAYERS;      \
            start = clock_now();             \
            call;                            \
            seconds += clock_now() - start;  \
        } while (++calls, seconds < ENOUGH); \
        seconds /= calls;                    \
    } while (0)

// -------- layers

typedef struct {
    int B, T, C, NH, V;
} shape;
static const shape shapes[] = {
    { 1, 64, 64, 2, 257 },     { 4, 64, 128, 4, 257 },   { 8, 64, 128, 4, 257 },   { 2, 128, 256, 4, 1024 },
    { 4, 256, 256, 4, 257 },   { 1, 128, 384, 6, 8192 }, { 2, 256, 384, 6, 257 },  { 1, 128, 768, 12, 50257 },
    { 2, 128, 512, 8, 257 },   { 1, 64, 768, 12, 257 },  { 1, 512, 512, 8, 4096 }, { 1, 512, 768, 12, 257 },
    { 1, 128, 1600, 25, 257 }, { 4, 128, 64, 1, 50257 }, { 1, 32, 256, 4, 50257 },
};

static void print(TimedLayer layer, gpt2_dtype dt, double a, double b, double c, double seconds) {
    printf("[\"%s\",\"%s\",%g,%g,%g,%.3e]\n", timed_names[layer], dt == GPT2_F32 ? "fp32" : "bf16", a, b, c,
           seconds);
}

#define SAMPLE(layer, a, b, c, call)                         \
    do {                                                     \
        double seconds;                                      \
        TIME(seconds, if (l->call) fail(gpt2_last_error())); \
        print(layer, dt, a, b, c, seconds);                  \
    } while (0)

// The layer whose turn it is
#define KEPT (kept + turn * wide)
#define BESIDE (beside + turn * wide)
#define WEIGHTS (weights + turn * apart)
#define DWEIGHTS (dweights + turn * apart)

static void time_shape(const shape *s, gpt2_dtype dt) {
    const Layers *l = &layers_cpu;
    const int BT = s->B * s->T, C = s->C, Vp = gpt2_padded_vocab(s->V), rows = BT;
    const size_t size = gpt2_dtype_size(dt), wide = (size_t)BT * 4 * C * size;
    size_t scratch_bytes;
    if (l->plan(dt, s->B, s->T, C, s->NH, Vp, rows, &scratch_bytes)) fail(gpt2_last_error());
    void *scratch = memory_of(scratch_bytes + 4096);
    if (l->use_scratch(scratch)) fail(gpt2_last_error());
    // A layer finds its input in the caches, but not always the activations that forward kept for backward.
    void *x = memory_of(wide), *y = memory_of(wide), *u = memory_of(wide);
    char *kept = memory_of(LAYERS * wide), *beside = memory_of(LAYERS * wide);
    const size_t most = (size_t)C * (Vp > 4 * C ? Vp : 4 * C) * size;
    // Weights alternate between the layers of a model, too.
    const size_t apart = (size_t)12 * C * C * size / 4096 * 4096 + 4096;
    char *weights = memory_of(most + LAYERS * apart), *dweights = memory_of(most + LAYERS * apart);
    void *bias = memory_of(4 * C * 4), *dbias = memory_of(4 * C * 4);
    void *logits = memory_of((size_t)rows * Vp * size);
    float *mean = memory_of(BT * 4), *rstd = memory_of(BT * 4), *lse = memory_of((size_t)BT * s->NH * 4);
    float *sums = memory_of(4 * C * 4), *losses = memory_of(BT * 4);
    int *tokens = memory_of(BT * sizeof(int));
    for (int i = 0; i < BT; i++) tokens[i] = i * 31 % s->V;
    for (int i = 0; i < 3; i++) {
        const int out[] = { 3 * C, C, C }, in[] = { C, C, 4 * C };
        SAMPLE(TIMED_MATMUL, BT, in[i], out[i],
               matmul_forward(dt, KEPT, x, WEIGHTS, bias, BT, in[i], out[i]));
    }
    SAMPLE(TIMED_MATMUL_GELU, BT, C, 4 * C,
           matmul_gelu_forward(dt, KEPT, BESIDE, x, WEIGHTS, bias, BT, C, 4 * C));
    for (int i = 0; i < 3; i++) {
        const int out[] = { 3 * C, C, 4 * C };
        SAMPLE(TIMED_MATMUL_BACKWARD, BT, C, out[i],
               matmul_backward(dt, u, NULL, DWEIGHTS, i == 1 ? NULL : dbias, y, KEPT, WEIGHTS, NULL, BT, C,
                               out[i], 0));
    }
    SAMPLE(TIMED_GELU_BACKWARD, BT, 4 * C, C,
           matmul_backward(dt, u, NULL, DWEIGHTS, NULL, y, KEPT, WEIGHTS, BESIDE, BT, 4 * C, C, 0));
    SAMPLE(TIMED_HEAD, rows, C, Vp, matmul_forward(dt, logits, x, WEIGHTS, NULL, rows, C, Vp));
    SAMPLE(TIMED_SOFTMAX, rows, s->V, 0, softmax_crossentropy(dt, losses, logits, 0, tokens, rows, s->V, Vp));
    SAMPLE(TIMED_SOFTMAX_BACKWARD, rows, s->V, 0,
           softmax_crossentropy(dt, losses, logits, 1e-3f, tokens, rows, s->V, Vp));
    SAMPLE(TIMED_HEAD_BACKWARD, rows, C, Vp,
           matmul_backward(dt, u, NULL, DWEIGHTS, NULL, logits, x, WEIGHTS, NULL, rows, C, Vp, 0));
    SAMPLE(TIMED_ATTENTION, BT, s->T, C, attention_forward(dt, KEPT, lse, x, s->B, s->T, C, s->NH));
    SAMPLE(TIMED_ATTENTION_BACKWARD, BT, s->T, C,
           attention_backward(dt, u, x, KEPT, BESIDE, lse, s->B, s->T, C, s->NH));
    SAMPLE(TIMED_LAYERNORM, BT, C, 0,
           residual_layernorm_forward(dt, KEPT, BESIDE, mean, rstd, x, u, WEIGHTS, bias, BT, C));
    SAMPLE(TIMED_LAYERNORM_BACKWARD, BT, C, 0,
           layernorm_backward(dt, y, DWEIGHTS, dbias, sums, x, KEPT, WEIGHTS, mean, rstd, BT, C));
    SAMPLE(TIMED_GELU, (double)BT * 4 * C, 0, 0, gelu_forward(dt, y, KEPT, (size_t)BT * 4 * C));
    SAMPLE(TIMED_ENCODER, BT, C, 0, encoder_forward(dt, y, tokens, WEIGHTS, WEIGHTS, s->B, s->T, C));
    SAMPLE(TIMED_ENCODER_BACKWARD, BT, C, 0,
           encoder_backward(dt, DWEIGHTS, WEIGHTS, y, tokens, s->B, s->T, C));
    l->free();
    void *all[] = { scratch, x,      y,    kept, beside, u,    weights, dweights, bias,
                    dbias,   logits, mean, rstd, lse,    sums, losses,  tokens };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static shape parse_shape(const char *text) {
    shape s;
    if (sscanf(text, "%d,%d,%d,%d,%d", &s.B, &s.T, &s.C, &s.NH, &s.V) != 5 || s.B < 1 || s.T < 1 ||
        s.NH < 1 || s.C < s.NH || s.C % s.NH || s.V < 1)
        fail("a shape is B,T,C,NH,V, five numbers above 0, and C is a multiple of NH");
    return s;
}

static void time_layers(int n_own, char **own) {
    const int n = n_own ? n_own : (int)(sizeof shapes / sizeof *shapes);
    for (gpt2_dtype dt = GPT2_F32; dt <= GPT2_BF16; dt++)
        for (int i = 0; i < n; i++) {
            const shape s = n_own ? parse_shape(own[i]) : shapes[i];
            time_shape(&s, dt);
        }
}

// -------- the plugin's kernels: a large array gives the rate, a small one the fixed time

static void print_rate(const char *name, double fixed_s, double s_per_byte) {
    printf("[\"%s\",0,%.4e]\n[\"%s\",1,%.4e]\n", name, fixed_s, name, s_per_byte);
}

#define RATE(name, bytes_each, call)                                 \
    do {                                                             \
        double small, large;                                         \
        int64_t n = 1 << 10;                                         \
        TIME(small, call);                                           \
        n = 8 << 20;                                                 \
        TIME(large, call);                                           \
        print_rate(name, small, large / ((double)n * (bytes_each))); \
    } while (0)

static void update(const adamw_arrays *a, int64_t n) {
    const zero_hyper h = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    const adamw_constants c = adamw_prepare(&h, 1, 0);
    const own_update own = { .update = NULL };
    const adamw_segment s = { .elems = n, .lr_factor = 1, .decay = 1 };
    const adamw_table t = { &s, 1, adamw_chunks(n) };
    kernel_update(&own, &c, a, &t);
}

static void time_memory(void) {
    device *d = &device_host;
    const int64_t most = 8 << 20;
    float *p = memory_of(most * 4), *m = memory_of(most * 4), *v = memory_of(most * 4);
    uint16_t *g = memory_of(most * 2), *low = memory_of(most * 2);
    uint64_t words[EXACT_WORDS] = { 0 };
    const adamw_arrays a = { p, m, v, g, low, ZERO_BF16, ZERO_BF16 };
    RATE("copy", 8, d->f->copy(d, COMPUTE, p, m, n * 4));
    RATE("clear", 4, d->f->clear(d, COMPUTE, p, n * 4));
    RATE("sum", 8,
         kernel_sum_ranks(ZERO_BF16, low, ZERO_BF16, ((const void *const[]){ g, (char *)p, (char *)m }), 3, 1,
                          n, NULL));
    RATE("squares", 2, kernel_add_squares(words, ZERO_BF16, g, n));
    RATE("update", 28, update(&a, n));
    free(p), free(m), free(v), free(g), free(low);
}

// -------- the disk

enum { AT_ONCE = 4 };
// Returns the seconds to move so many pieces, at_once at a time.
static double move(file_engine *e, char *memory, int pieces, size_t piece, int at_once, int write) {
    file_transfer t[AT_ONCE] = { 0 };
    const double start = clock_now();
    for (int k = 0; k < pieces; k++) {
        const int i = k % at_once;
        if (file_wait(e, &t[i])) fail(zero_last_error());
        t[i] = (file_transfer){
            .offset = k * piece, .data = memory + i * piece, .bytes = piece, .write = write
        };
        if (file_start(e, &t[i])) fail(zero_last_error());
    }
    for (int i = 0; i < at_once; i++)
        if (file_wait(e, &t[i])) fail(zero_last_error());
    return clock_now() - start;
}

static void time_disk(const char *folder) {
    enum { PIECES = 32, SMALL_PIECES = 256 };
    const size_t piece = 8 << 20, small = 4 << 10;
    const zero_config c = zero_defaults();
    const file_settings s = { .folders = folder,
                              .block_bytes = c.offload.nvme_block_bytes,
                              .depth = c.offload.nvme_depth,
                              .threads = c.offload.nvme_threads,
                              .timeout_s = 60 };
    file_engine *e;
    if (file_open(&e, &s, PIECES * piece)) fail(zero_last_error());
    const char *why = "";
    char *memory = device_host.f->alloc(&device_host, AT_ONCE * piece, &why);  // in large pages, as in a run
    if (!memory) fail(why);
    file_buffers(e, memory, AT_ONCE * piece);
    for (int write = 1; write >= 0; write--) {
        const double all = move(e, memory, PIECES, piece, AT_ONCE, write);
        const double alone = move(e, memory, SMALL_PIECES, small, 1, write);
        print_rate(write ? "write" : "read", alone / SMALL_PIECES, all / PIECES / piece);
    }
    file_close(e);
    device_host.f->release(&device_host, memory, AT_ONCE * piece);
}

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "layers"))
        time_layers(argc - 2, argv + 2);
    else if (argc == 2 && !strcmp(argv[1], "memory"))
        time_memory();
    else if (argc == 3 && !strcmp(argv[1], "disk"))
        time_disk(argv[2]);
    else
        fail("usage: calibrate layers [B,T,C,NH,V]... | memory | disk FOLDER");
    return 0;
}
