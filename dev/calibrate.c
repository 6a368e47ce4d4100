// Measures this machine for the plan's virtual time (trainer/planning/machines.h). scripts/calibrate.sh runs
// one process for each core, so that all cores are busy, and writes the machine's file.
//     build/calibrate layers [SHAPE]...  times of the layers, a sample a line, with OpenMP's threads
//     build/calibrate memory             rates of the plugin's kernels
//     build/calibrate rounds SHAPE       both for a shape; stops (SIGSTOP), and when continued does so again
//     build/calibrate disk FOLDER [SHAPE RANKS]         rates of reads and writes
//     build/calibrate disk-rounds FOLDER SHAPE RANKS    the same; stops, and when continued does so again
// SHAPE: B,T,C,NH,V,L of a model, and perhaps ",fp32" or ",bf16". Without it: several shapes, a large model.
#include "../gpt2/gpt2_error.h"
#include "../gpt2/layers_virtual.h"
#include "../gpt2/model.h"
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/device/device.h"
#include "../llmc_zero/tiers/file.h"
#include <signal.h>
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

// -------- layers: in the order of a step, because what ran before a layer decides what the caches hold, and
// for AMX how fast it runs

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

static struct sample {
    TimedLayer layer;
    double a, b, c, seconds;
    int calls;
} samples[32];
static int n_samples;

static void add_sample(TimedLayer layer, double a, double b, double c, double seconds) {
    int i = 0;
    while (i < n_samples &&
           (samples[i].layer != layer || samples[i].a != a || samples[i].b != b || samples[i].c != c))
        i++;
    if (i == n_samples) samples[n_samples++] = (struct sample){ layer, a, b, c, 0, 0 };
    samples[i].seconds += seconds;
    samples[i].calls++;
}

#define SAMPLE(layer, a, b, c, call)                     \
    do {                                                 \
        const double start = clock_now();                \
        if (layers_cpu.call) fail(gpt2_last_error());    \
        add_sample(layer, a, b, c, clock_now() - start); \
    } while (0)

// Returns how large a ring is: half of the parameters, gradients, AdamW's states and activations of a step.
static size_t ring_of(const shape *s, size_t size) {
    const size_t C = s->C, wide = (size_t)s->B * s->T * 4 * C * size, vocab = gpt2_padded_vocab(s->V);
    const size_t step = (12 * s->L * C + vocab) * C * (2 * size + 12) + s->L * 4 * wide;
    const size_t call = (vocab > 4 * C ? vocab : 4 * C) * C * size + 2 * wide + 8192;
    const size_t half = step / 2 < RING_MOST ? step / 2 : RING_MOST;
    return half > call ? half : call;
}

// What the layers of a shape use besides the rings.
typedef struct {
    gpt2_dtype dt;
    int B, T, C, NH, V, Vp, BT;
    size_t acts, square, head;  // bytes of (B, T, C), (C, C), (Vp, C)
    void *scratch, *x, *y, *u, *gelu, *dqkv, *bias, *dbias, *logits;
    float *mean, *rstd, *lse, *sums, *losses;
    int *tokens;
} buffers;

// Returns the output (B, T, C).
static void *time_layernorm(const buffers *m) {
    void *y = out(m->acts);
    SAMPLE(TIMED_LAYERNORM, m->BT, m->C, 0,
           residual_layernorm_forward(m->dt, out(m->acts), y, m->mean, m->rstd, m->x, m->y, m->bias, m->bias,
                                      m->BT, m->C));
    return y;
}
static void time_layernorm_backward(const buffers *m) {
    SAMPLE(TIMED_LAYERNORM_BACKWARD, m->BT, m->C, 0,
           layernorm_backward(m->dt, m->y, m->dbias, m->dbias, m->sums, m->u, in(m->acts), m->bias, m->mean,
                              m->rstd, m->BT, m->C));
}
// from and to: in units of C
static void time_matmul(const buffers *m, void *y, const void *x, int from, int to) {
    SAMPLE(TIMED_MATMUL, m->BT, from * m->C, to * m->C,
           matmul_forward(m->dt, y, x, in(from * to * m->square), m->bias, m->BT, from * m->C, to * m->C));
}
static void time_matmul_backward(const buffers *m, void *dx, const void *dy, int to, void *dbias) {
    SAMPLE(TIMED_MATMUL_BACKWARD, m->BT, m->C, to * m->C,
           matmul_backward(m->dt, dx, NULL, out(to * m->square), dbias, dy, in(m->acts), in(to * m->square),
                           NULL, m->BT, m->C, to * m->C, 0));
}

static void time_block_forward(const buffers *m) {
    void *qkv = out(3 * m->acts), *atty = out(m->acts), *gelu = out(4 * m->acts);
    time_matmul(m, qkv, time_layernorm(m), 1, 3);
    SAMPLE(TIMED_ATTENTION, m->BT, m->T, m->C,
           attention_forward(m->dt, atty, m->lse, qkv, m->B, m->T, m->C, m->NH));
    time_matmul(m, m->y, atty, 1, 1);
    void *ln = time_layernorm(m);
    SAMPLE(TIMED_MATMUL_GELU, m->BT, m->C, 4 * m->C,
           matmul_gelu_forward(m->dt, gelu, out(4 * m->acts), ln, in(4 * m->square), m->bias, m->BT, m->C,
                               4 * m->C));
    time_matmul(m, m->y, gelu, 4, 1);
}

// With -r 1, the default.
static void time_block_backward(const buffers *m) {
    void *fch = in(4 * m->acts);
    SAMPLE(TIMED_GELU, (double)m->BT * 4 * m->C, 0, 0,
           gelu_forward(m->dt, m->gelu, fch, (size_t)m->BT * 4 * m->C));
    SAMPLE(TIMED_GELU_BACKWARD, m->BT, 4 * m->C, m->C,
           matmul_backward(m->dt, m->u, NULL, out(4 * m->square), NULL, m->x, m->gelu, in(4 * m->square), fch,
                           m->BT, 4 * m->C, m->C, 0));
    time_matmul_backward(m, m->y, m->u, 4, m->dbias);
    time_layernorm_backward(m);
    time_matmul_backward(m, m->u, m->x, 1, NULL);
    SAMPLE(TIMED_ATTENTION_BACKWARD, m->BT, m->T, m->C,
           attention_backward(m->dt, m->dqkv, m->u, in(3 * m->acts), in(m->acts), m->lse, m->B, m->T, m->C,
                              m->NH));
    time_matmul_backward(m, m->u, m->dqkv, 3, m->dbias);
    time_layernorm_backward(m);
}

static void time_step(const buffers *m, int blocks) {
    SAMPLE(TIMED_ENCODER, m->BT, m->C, 0,
           encoder_forward(m->dt, m->y, m->tokens, in(m->head), in(m->acts), m->B, m->T, m->C));
    for (int i = 0; i < blocks; i++) time_block_forward(m);
    SAMPLE(TIMED_HEAD, m->BT, m->C, m->Vp,
           matmul_forward(m->dt, m->logits, m->x, in(m->head), NULL, m->BT, m->C, m->Vp));
    SAMPLE(TIMED_SOFTMAX, m->BT, m->V, 0,
           softmax_crossentropy(m->dt, m->losses, m->logits, 0, m->tokens, m->BT, m->V, m->Vp));
    SAMPLE(TIMED_SOFTMAX_BACKWARD, m->BT, m->V, 0,
           softmax_crossentropy(m->dt, m->losses, m->logits, 1e-3f, m->tokens, m->BT, m->V, m->Vp));
    SAMPLE(TIMED_HEAD_BACKWARD, m->BT, m->C, m->Vp,
           matmul_backward(m->dt, m->u, NULL, out(m->head), NULL, m->logits, m->x, in(m->head), NULL, m->BT,
                           m->C, m->Vp, 0));
    for (int i = 0; i < blocks; i++) time_block_backward(m);
    SAMPLE(TIMED_ENCODER_BACKWARD, m->BT, m->C, 0,
           encoder_backward(m->dt, out(m->head), out(m->acts), m->y, m->tokens, m->B, m->T, m->C));
}

// -------- the plugin's kernels: a large array gives the rate, a small one the fixed time

static void print_rate(const char *name, double fixed_s, double s_per_byte) {
    printf("[\"%s\",0,%.4e]\n[\"%s\",1,%.4e]\n", name, fixed_s, name, s_per_byte);
}

// A step uses all its memory before it comes back to an array. Calls should use as much before a ring begins
// again: they take so many bytes per element from each, and walk faster through the one they take more from.
static size_t step_bytes;
static void set_rings(int inputs_each, int results_each) {
    const int most = inputs_each > results_each ? inputs_each : results_each;
    ring_bytes = step_bytes / (inputs_each + results_each) * most;
    inputs.next = results.next = 0;
}

#define RATE(name, bytes_each, inputs_each, results_each, call)      \
    do {                                                             \
        double small, large;                                         \
        int64_t n = 1 << 10;                                         \
        set_rings(inputs_each, results_each);                        \
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

static size_t kernels_use(size_t step) { return step < RING_MOST ? step : RING_MOST; }
// step: the bytes that a step uses
static void time_kernels(size_t step) {
    device *d = &device_host;
    uint64_t words[EXACT_WORDS] = { 0 };
    step_bytes = kernels_use(step);
    const int64_t most = step_bytes / 64;
    RATE("copy", 8, 4, 4, d->f->copy(d, COMPUTE, out(n * 4), in(n * 4), n * 4));
    RATE("clear", 4, 0, 4, d->f->clear(d, COMPUTE, out(n * 4), n * 4));
    RATE("sum", 10, 2, 4, add(n));
    RATE("squares", 4, 2, 0, kernel_add_squares(words, ZERO_BF16, in(n * 2), n));
    RATE("update", 28, 2, 14, update(n));
}

static void time_memory(void) {
    inputs.base = memory_of(RING_MOST);
    results.base = memory_of(RING_MOST);
    time_kernels(RING_MOST);
}

// -------- rounds: one shape's layers and kernels, again and again

static int in_rounds;
// Returns 1 after the process has been continued: dev/bench/plan.sh lets a run and these rounds take turns.
static int another_round(void) {
    if (!in_rounds) return 0;
    puts("");
    if (fflush(stdout)) fail("stdout: cannot write");
    raise(SIGSTOP);
    return 1;
}
static void time_kernels_again(void) {
    const size_t ring = ring_bytes;
    time_kernels(2 * ring);
    ring_bytes = ring;
    inputs.next = results.next = 0;
}

static void time_shape(const shape *s, gpt2_dtype dt) {
    enum { MOST_BLOCKS = 2 };
    const double enough = 0.04;  // seconds
    const Layers *l = &layers_cpu;
    const size_t size = gpt2_dtype_size(dt), acts = (size_t)s->B * s->T * s->C * size;
    const int BT = s->B * s->T, C = s->C, Vp = gpt2_padded_vocab(s->V);
    size_t scratch_bytes;
    if (l->plan(dt, s->B, s->T, C, s->NH, Vp, BT, &scratch_bytes)) fail(gpt2_last_error());
    buffers m = { .dt = dt, .B = s->B, .T = s->T, .C = C, .NH = s->NH, .V = s->V, .Vp = Vp, .BT = BT };
    m.acts = acts;
    m.square = (size_t)C * C * size;
    m.head = (size_t)Vp * C * size;
    m.scratch = memory_of(scratch_bytes + 4096);
    if (l->use_scratch(m.scratch)) fail(gpt2_last_error());
    ring_bytes = ring_of(s, size);
    inputs.next = results.next = 0;
    m.x = memory_of(acts), m.y = memory_of(acts), m.u = memory_of(4 * acts);
    m.gelu = memory_of(4 * acts), m.dqkv = memory_of(3 * acts);
    m.bias = memory_of(4 * C * 4), m.dbias = memory_of(4 * C * 4);
    m.logits = memory_of((size_t)BT * Vp * size);
    m.mean = memory_of(BT * 4), m.rstd = memory_of(BT * 4), m.lse = memory_of((size_t)BT * s->NH * 4);
    m.sums = memory_of(4 * C * 4), m.losses = memory_of(BT * 4);
    m.tokens = memory_of(BT * sizeof(int));
    for (int i = 0; i < BT; i++) m.tokens[i] = i * 31 % s->V;
    const int blocks = s->L < MOST_BLOCKS ? s->L : MOST_BLOCKS;
    n_samples = 0;
    do {
        for (int timed = 0; timed < 2; timed++) {  // the first time to warm up
            for (int i = 0; i < n_samples; i++) samples[i].seconds = samples[i].calls = 0;
            const double start = clock_now();
            do time_step(&m, blocks);
            while (clock_now() - start < enough);
        }
        for (const struct sample *p = samples; p < samples + n_samples; p++)
            printf("[\"%s\",\"%s\",%g,%g,%g,%.3e]\n", timed_names[p->layer], dtype_names[dt], p->a, p->b,
                   p->c, p->seconds / p->calls);
        if (in_rounds) time_kernels_again();
    } while (another_round());
    l->free();
    void *all[] = { m.gelu,   m.dqkv, m.scratch, m.x,   m.y,    m.u,      m.bias,  m.dbias,
                    m.logits, m.mean, m.rstd,    m.lse, m.sums, m.losses, m.tokens };
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
        const size_t ring = ring_of(&s, 4), step = in_rounds ? kernels_use(2 * ring) : 0;
        if (ring > most) most = ring;
        if (step > most) most = step;
    }
    inputs.base = memory_of(most);
    results.base = memory_of(most);
    for (gpt2_dtype dt = GPT2_F32; dt <= GPT2_BF16; dt++)
        for (int i = 0; i < n; i++) {
            const shape s = n_own ? parse_shape(own[i]) : shapes[i];
            if (!s.dtype[0] || !strcmp(s.dtype, dtype_names[dt])) time_shape(&s, dt);
        }
}

// -------- the disk

enum { AT_ONCE = 8 };  // about as many as a run starts at once
// Moves so many pieces of a file of file_pieces. Starts at_once of them, waits for all, and so on. Returns
// the seconds from a start to the end of all.
static double move(file_engine *e, char *memory, int pieces, int file_pieces, size_t piece, int at_once,
                   int write) {
    file_transfer t[AT_ONCE] = { 0 };
    const double start = clock_now();
    for (int k = 0; k < pieces; k += at_once) {
        for (int i = 0; i < at_once; i++) {
            t[i] = (file_transfer){ .offset = (k + i) % file_pieces * piece,
                                    .data = memory + i * piece,
                                    .bytes = piece,
                                    .write = write };
            if (file_start(e, &t[i])) fail(zero_last_error());
        }
        for (int i = 0; i < at_once; i++)
            if (file_wait(e, &t[i])) fail(zero_last_error());
    }
    return (clock_now() - start) * at_once / pieces;
}

// Starts a small transfer and then large ones. Returns when the small one ends, as a part of the time of all.
// Some virtual disks report it only with the others.
static double first_ended(file_engine *e, char *memory) {
    enum { LARGE = 1 << 20, SMALL = 128 << 10 };
    file_transfer t[AT_ONCE] = { 0 };
    const double start = clock_now();
    for (int i = 0; i < AT_ONCE; i++) {
        t[i] = (file_transfer){ .offset = i * LARGE, .data = memory + i * LARGE, .bytes = i ? LARGE : SMALL };
        if (file_start(e, &t[i])) fail(zero_last_error());
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (file_wait(e, &t[i])) fail(zero_last_error());
    return (t[0].ended_s - start) / (clock_now() - start);
}

// Small files may stay in caches of the host or the disk, and some sizes of transfers are faster than others:
// with a shape, pieces are as large as those of a rank's part of a block, or of the embedding if it is most
// of the model, and the file as large as all states.
static void time_disk(const char *folder, const char *own, int ranks) {
    enum { SMALL_PIECES = 256 };
    const size_t small = 4 << 10, most_piece = 8 << 20, most_file = 256 << 20;
    size_t piece = most_piece, file = most_file;
    if (own) {
        const shape s = parse_shape(own);
        const size_t block = ((size_t)12 * s.C + 13) * s.C * sizeof(float);
        const size_t embedding = (size_t)gpt2_padded_vocab(s.V) * s.C * sizeof(float);
        const size_t part = (embedding > s.L * block ? embedding : block) / ranks;
        const size_t states = 3 * (s.L * block + embedding);
        if (part < piece) piece = (part + small - 1) / small * small;
        if (states < file) file = states > piece ? states : piece;
    }
    const int file_pieces = (int)(file / piece), pieces = (int)((64 << 20) / (AT_ONCE * piece)) * AT_ONCE;
    const zero_config c = zero_defaults();
    const file_settings s = { .folders = folder,
                              .block_bytes = c.offload.nvme_block_bytes,
                              .depth = c.offload.nvme_depth,
                              .threads = c.offload.nvme_threads,
                              .timeout_s = 60 };
    file_engine *e;
    if (file_open(&e, &s, most_file)) fail(zero_last_error());
    const char *why = "";
    const size_t bytes = AT_ONCE * most_piece;  // enough for large pages, which a run has
    char *memory = device_host.f->alloc(&device_host, bytes, &why);
    if (!memory) fail(why);
    file_buffers(e, memory, bytes);
    // A new file is slower.
    move(e, memory, AT_ONCE, AT_ONCE, most_piece, AT_ONCE, 1);
    move(e, memory, file_pieces + AT_ONCE, file_pieces, piece, AT_ONCE, 1);
    do {
        for (int write = 1; write >= 0; write--) {
            const double large = move(e, memory, pieces, file_pieces, piece, AT_ONCE, write);
            const double alone = move(e, memory, SMALL_PIECES, SMALL_PIECES, small, 1, write);
            // If others have delayed the small transfers, they may seem to take longer than the large ones.
            const double moving = large > 2 * alone ? large - alone : large / 2;
            print_rate(write ? "write" : "read", alone, moving / (AT_ONCE * piece));
        }
        double first = 0;
        for (int i = 0; i < 10; i++) first += first_ended(e, memory) / 10;
        print_rate("disk_bursts", first, 1);
    } while (another_round());
    file_close(e);
    device_host.f->release(&device_host, memory, bytes);
}

int main(int argc, char **argv) {
    if (argc >= 2 && !strcmp(argv[1], "layers"))
        time_layers(argc - 2, argv + 2);
    else if (argc == 2 && !strcmp(argv[1], "memory"))
        time_memory();
    else if (argc == 3 && (in_rounds = !strcmp(argv[1], "rounds")))
        time_layers(1, argv + 2);
    else if (argc == 3 && !strcmp(argv[1], "disk"))
        time_disk(argv[2], NULL, 1);
    else if (argc == 5 && atoi(argv[4]) > 0 &&
             (!strcmp(argv[1], "disk") || (in_rounds = !strcmp(argv[1], "disk-rounds"))))
        time_disk(argv[2], argv[3], atoi(argv[4]));
    else
        fail("usage: calibrate layers [SHAPE]... | memory | rounds SHAPE | disk FOLDER [SHAPE RANKS] |\n"
             "       disk-rounds FOLDER SHAPE RANKS");
    return 0;
}
