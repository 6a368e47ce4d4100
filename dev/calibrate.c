// Measures this machine for the plan's virtual time (trainer/planning/machines.h). scripts/calibrate.sh runs
// one process for each core, so that all cores are busy, and writes the machine's file.
//     build/calibrate layers [SHAPE]...  times of the layers, a sample a line, with OpenMP's threads
//     build/calibrate memory [SHAPE]     rates of the plugin's kernels
//     build/calibrate disk FOLDER        rates of reads and writes
// SHAPE: B,T,C,NH,V,L of a model, and perhaps ",fp32" or ",bf16". Without it: several shapes, a large model.
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

static const double ENOUGH = 0.002;  // seconds for the calls of one sample

#define TIME(seconds, call)                  \
    do {                                     \
        int calls = 0;                       \
        double start;                        \
        call;                                \
        seconds = 0;                         \
        do {                                 \
            start = clock_now();             \
            call;                            \
            seconds += clock_now() - start;  \
        } while (++calls, seconds < ENOUGH); \
        seconds /= calls;                    \
    } while (0)

// A layer finds its input in the caches, but a step uses much other memory before it comes back to the same
// weights, gradients or activations. So each call takes these from two rings, together as large as what a
// step uses, or as large as no cache would hold. One is only read, because results of results would be
// subnormal.
typedef struct {
    char *base;
    size_t next;
} memory_ring;
static memory_ring inputs, results;
static size_t ring_bytes;
static const size_t RING_MOST = (size_t)256 << 20;

// Returns so many bytes of the ring, those that were used longest ago.
static void *next_of(memory_ring *r, size_t bytes) {
    if (r->next + bytes > ring_bytes) r->next = 0;
    char *p = r->base + r->next;
    r->next += (bytes + 4095) / 4096 * 4096;
    return p;
}
static void *in(size_t bytes) { return next_of(&inputs, bytes); }
static void *out(size_t bytes) { return next_of(&results, bytes); }

// -------- layers

typedef struct {
    int B, T, C, NH, V, L;
    char dtype[8];  // fp32, bf16, or "" for both
} shape;
static const shape shapes[] = {
    { 1, 64, 64, 2, 257, 12 },     { 4, 64, 128, 4, 257, 12 },     { 8, 64, 128, 4, 257, 12 },
    { 2, 128, 256, 4, 1024, 12 },  { 4, 256, 256, 4, 257, 12 },    { 1, 128, 384, 6, 8192, 12 },
    { 2, 256, 384, 6, 257, 12 },   { 1, 128, 768, 12, 50257, 12 }, { 2, 128, 512, 8, 257, 12 },
    { 1, 64, 768, 12, 257, 12 },   { 1, 512, 512, 8, 4096, 12 },   { 1, 512, 768, 12, 257, 12 },
    { 1, 128, 1600, 25, 257, 12 }, { 4, 128, 64, 1, 50257, 12 },   { 1, 32, 256, 4, 50257, 12 },
};

static const char *const dtype_names[] = { "fp32", "bf16" };

static void print(TimedLayer layer, gpt2_dtype dt, double a, double b, double c, double seconds) {
    printf("[\"%s\",\"%s\",%g,%g,%g,%.3e]\n", timed_names[layer], dtype_names[dt], a, b, c, seconds);
}

#define SAMPLE(layer, a, b, c, call)                         \
    do {                                                     \
        double seconds;                                      \
        TIME(seconds, if (l->call) fail(gpt2_last_error())); \
        print(layer, dt, a, b, c, seconds);                  \
    } while (0)

// Returns how large a ring is: half of the parameters, gradients, AdamW's states and activations of a step.
static size_t ring_of(const shape *s, size_t size) {
    const size_t C = s->C, wide = (size_t)s->B * s->T * 4 * C * size, vocab = gpt2_padded_vocab(s->V);
    const size_t step = (12 * s->L * C + vocab) * C * (2 * size + 12) + s->L * 4 * wide;
    const size_t call = (vocab > 4 * C ? vocab : 4 * C) * C * size + 2 * wide + 8192;
    const size_t half = step / 2 < RING_MOST ? step / 2 : RING_MOST;
    return half > call ? half : call;
}

static void time_shape(const shape *s, gpt2_dtype dt) {
    const Layers *l = &layers_cpu;
    const int BT = s->B * s->T, C = s->C, Vp = gpt2_padded_vocab(s->V), rows = BT;
    const size_t size = gpt2_dtype_size(dt), acts = (size_t)BT * C * size, square = (size_t)C * C * size;
    const size_t head = (size_t)Vp * C * size;
    size_t scratch_bytes;
    if (l->plan(dt, s->B, s->T, C, s->NH, Vp, rows, &scratch_bytes)) fail(gpt2_last_error());
    void *scratch = memory_of(scratch_bytes + 4096);
    if (l->use_scratch(scratch)) fail(gpt2_last_error());
    ring_bytes = ring_of(s, size);
    inputs.next = results.next = 0;
    void *x = memory_of(4 * acts), *y = memory_of(4 * acts), *u = memory_of(4 * acts);
    void *bias = memory_of(4 * C * 4), *dbias = memory_of(4 * C * 4);
    void *logits = memory_of((size_t)rows * Vp * size);
    float *mean = memory_of(BT * 4), *rstd = memory_of(BT * 4), *lse = memory_of((size_t)BT * s->NH * 4);
    float *sums = memory_of(4 * C * 4), *losses = memory_of(BT * 4);
    int *tokens = memory_of(BT * sizeof(int));
    for (int i = 0; i < BT; i++) tokens[i] = i * 31 % s->V;
    for (int i = 0; i < 3; i++) {
        const int from = i < 2 ? 1 : 4, to = i ? 1 : 3;  // in units of C
        SAMPLE(TIMED_MATMUL, BT, from * C, to * C,
               matmul_forward(dt, out(to * acts), x, in(from * to * square), bias, BT, from * C, to * C));
    }
    SAMPLE(TIMED_MATMUL_GELU, BT, C, 4 * C,
           matmul_gelu_forward(dt, out(4 * acts), out(4 * acts), x, in(4 * square), bias, BT, C, 4 * C));
    for (int i = 0; i < 3; i++) {
        const int to = i == 0 ? 3 : i == 1 ? 1 : 4;
        SAMPLE(TIMED_MATMUL_BACKWARD, BT, C, to * C,
               matmul_backward(dt, u, NULL, out(to * square), i == 1 ? NULL : dbias, y, in(acts),
                               in(to * square), NULL, BT, C, to * C, 0));
    }
    SAMPLE(TIMED_GELU_BACKWARD, BT, 4 * C, C,
           matmul_backward(dt, u, NULL, out(4 * square), NULL, y, in(4 * acts), in(4 * square), in(4 * acts),
                           BT, 4 * C, C, 0));
    SAMPLE(TIMED_HEAD, rows, C, Vp, matmul_forward(dt, logits, x, in(head), NULL, rows, C, Vp));
    SAMPLE(TIMED_SOFTMAX, rows, s->V, 0, softmax_crossentropy(dt, losses, logits, 0, tokens, rows, s->V, Vp));
    SAMPLE(TIMED_SOFTMAX_BACKWARD, rows, s->V, 0,
           softmax_crossentropy(dt, losses, logits, 1e-3f, tokens, rows, s->V, Vp));
    SAMPLE(TIMED_HEAD_BACKWARD, rows, C, Vp,
           matmul_backward(dt, u, NULL, out(head), NULL, logits, x, in(head), NULL, rows, C, Vp, 0));
    SAMPLE(TIMED_ATTENTION, BT, s->T, C, attention_forward(dt, out(acts), lse, x, s->B, s->T, C, s->NH));
    SAMPLE(TIMED_ATTENTION_BACKWARD, BT, s->T, C,
           attention_backward(dt, u, x, in(3 * acts), in(acts), lse, s->B, s->T, C, s->NH));
    SAMPLE(TIMED_LAYERNORM, BT, C, 0,
           residual_layernorm_forward(dt, out(acts), out(acts), mean, rstd, x, u, bias, bias, BT, C));
    SAMPLE(TIMED_LAYERNORM_BACKWARD, BT, C, 0,
           layernorm_backward(dt, y, dbias, dbias, sums, x, in(acts), bias, mean, rstd, BT, C));
    SAMPLE(TIMED_GELU, (double)BT * 4 * C, 0, 0, gelu_forward(dt, y, in(4 * acts), (size_t)BT * 4 * C));
    SAMPLE(TIMED_ENCODER, BT, C, 0, encoder_forward(dt, y, tokens, in(head), in(acts), s->B, s->T, C));
    SAMPLE(TIMED_ENCODER_BACKWARD, BT, C, 0,
           encoder_backward(dt, out(head), out(acts), y, tokens, s->B, s->T, C));
    l->free();
    void *all[] = { scratch, x, y, u, bias, dbias, logits, mean, rstd, lse, sums, losses, tokens };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static shape parse_shape(const char *text) {
    shape s = { .L = 0 };
    sscanf(text, "%d,%d,%d,%d,%d,%d,%7s", &s.B, &s.T, &s.C, &s.NH, &s.V, &s.L, s.dtype);
    const int is_type = !*s.dtype || !strcmp(s.dtype, dtype_names[0]) || !strcmp(s.dtype, dtype_names[1]);
    if (s.B < 1 || s.T < 1 || s.NH < 1 || s.C < s.NH || s.C % s.NH || s.V < 1 || s.L < 1 || !is_type)
        fail("a shape is B,T,C,NH,V,L, six numbers above 0, C a multiple of NH, and perhaps fp32 or bf16");
    return s;
}

static void time_layers(int n_own, char **own) {
    const int n = n_own ? n_own : (int)(sizeof shapes / sizeof *shapes);
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        const shape s = n_own ? parse_shape(own[i]) : shapes[i];
        const size_t bytes = ring_of(&s, 4);
        if (bytes > most) most = bytes;
    }
    inputs.base = memory_of(most);
    results.base = memory_of(most);
    for (gpt2_dtype dt = GPT2_F32; dt <= GPT2_BF16; dt++)
        for (int i = 0; i < n; i++) {
            const shape s = n_own ? parse_shape(own[i]) : shapes[i];
            if (!s.dtype[0] || !strcmp(s.dtype, dtype_names[dt])) time_shape(&s, dt);
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
        n = most;                                                    \
        TIME(large, call);                                           \
        print_rate(name, small, large / ((double)n * (bytes_each))); \
    } while (0)

static void update(int64_t n) {
    const zero_hyper h = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    const adamw_constants c = adamw_prepare(&h, 1, 0);
    const own_update own = { .update = NULL };
    const adamw_segment s = { .elems = n, .lr_factor = 1, .decay = 1 };
    const adamw_table t = { &s, 1, adamw_chunks(n) };
    const adamw_arrays a = {
        out(n * 4), out(n * 4), out(n * 4), in(n * 2), out(n * 2), ZERO_BF16, ZERO_BF16
    };
    kernel_update(&own, &c, &a, &t);
}
// Adds a micro-batch's gradients to their sums.
static void add(int64_t n) {
    float *sums = out(n * 4);
    kernel_sum_ranks(ZERO_F32, sums, ZERO_BF16, (const void *const[]){ in(n * 2) }, 1, 1, n, sums);
}

static void time_memory(const char *own) {
    device *d = &device_host;
    uint64_t words[EXACT_WORDS] = { 0 };
    ring_bytes = RING_MOST / 2;
    if (own) {
        const shape s = parse_shape(own);
        const size_t bytes = ring_of(&s, 2);
        if (bytes < ring_bytes) ring_bytes = bytes;
    }
    const int64_t most = ring_bytes / 32;
    inputs.base = memory_of(ring_bytes);
    results.base = memory_of(ring_bytes);
    RATE("copy", 8, d->f->copy(d, COMPUTE, out(n * 4), in(n * 4), n * 4));
    RATE("clear", 4, d->f->clear(d, COMPUTE, out(n * 4), n * 4));
    RATE("sum", 10, add(n));
    RATE("squares", 4, kernel_add_squares(words, ZERO_BF16, in(n * 2), n));
    RATE("update", 28, update(n));
    free(inputs.base);
    free(results.base);
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
    else if ((argc == 2 || argc == 3) && !strcmp(argv[1], "memory"))
        time_memory(argv[2]);
    else if (argc == 3 && !strcmp(argv[1], "disk"))
        time_disk(argv[2]);
    else
        fail("usage: calibrate layers [SHAPE]... | memory [SHAPE] | disk FOLDER");
    return 0;
}
