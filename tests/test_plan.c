// Tests the plan of a rank against values computed by hand, the cost of planning, and refusals. mpi_bits.c
// compares plans with the actual memory and traffic of plugins.
#include <limits.h>
#include <sys/resource.h>
#include <time.h>
#include "plan.h"
#include "unit.h"
#include "../llmc_zero/plan.h"

// An embedding that is used at both ends, and three blocks. Padding for 1, 2 or 4 ranks makes 1024 and 5120.
enum { BLOCKS = 3, UNITS = 1 + BLOCKS, PSI = 1000 + BLOCKS * 5000, PADDED = 1024 + BLOCKS * 5120 };
static const zero_tensor tensors[] = { { "wte", 1, { 1000 }, 1, 0, 1, 0 },
                                       { "w", 1, { 5000 }, BLOCKS, 1, 1, 0 } };
static const zero_unit units[UNITS] = {
    { "embedding", 2, 2, 1 }, { "0", 1, 1, 0 }, { "1", 1, 1, 0 }, { "2", 1, 1, 0 }
};

static zero_config config_of(int stage, zero_dtype dtype, int micro_batches) {
    zero_config c = zero_defaults();
    c.stage = stage;
    c.numbers.dtype = dtype;
    c.micro_batches = micro_batches;
    return c;
}

static zero_plan plan_of(const zero_config *c, int ranks, int ranks_on_node) {
    zero_plan p;
    WORKS(zero_make_plan(&p, c, tensors, 2, units, UNITS, ranks, ranks_on_node));
    return p;
}

// -------- memory

typedef struct {
    const char *purpose;
    int class_, tier;
    size_t bytes;
    int moved_by, assumed;
} line;

enum { G = ZERO_MOVED_BY_GATHERS, R = ZERO_MOVED_BY_REDUCTIONS };

// Lines of 0 bytes are not planned, except NCCL's.
static void check_lines(const zero_plan *p, const line *want, size_t n_want) {
    int n = 0;
    size_t sum[ZERO_MEMORY_CLASSES] = { 0 };
    for (const line *end = want + n_want; want < end; want++) {
        if (!want->bytes && strcmp(want->purpose, "NCCL (measured)")) continue;
        const zero_memory_line *l = &p->lines[n++];
        if (n > p->n_lines) fail_msg("%s is not planned", want->purpose);
        assert_string_equal(l->purpose, want->purpose);
        if (l->bytes != want->bytes) fail_msg("%s: %zu bytes, not %zu", l->purpose, l->bytes, want->bytes);
        if ((int)l->tier != want->tier || (int)l->class_ != want->class_ || l->moved_by != want->moved_by ||
            l->assumed != want->assumed)
            fail_msg("%s: tier %d, class %d, moved by %d, assumed %d", l->purpose, (int)l->tier,
                     (int)l->class_, l->moved_by, l->assumed);
        sum[l->class_] += l->bytes;
    }
    assert_int_equal(n, p->n_lines);
    for (int k = 0; k < ZERO_MEMORY_CLASSES; k++) assert_int_equal(sum[k], p->bytes[k]);
}
#define CHECK_LINES(p, want) check_lines(p, want, ROWS(want))

enum { PAGE = 4096, W = ZERO_WORKING, S = ZERO_STATES, D = ZERO_DEVICE, H = ZERO_HOST };
enum { WINDOW = 4 << 20, VALUES = (1 << 16) * (4 + 2) + PAGE };  // the page is for the norm's scalars

// The last lines of every plan for bf16 with masters.
#define OPTIMIZER(bytes)                                                                     \
    { "tables of the step", W, D, 3 * PAGE, 0, 0 }, { "master weights", S, D, bytes, 0, 0 }, \
        { "first moment", S, D, bytes, 0, 0 }, {                                             \
        "second moment", S, D, bytes, 0, 0                                                   \
    }

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static const zero_tensor some_frozen[] = { { "wte", 1, { 1000 }, 1, 0, 1, 0, .frozen = 1 },
                                           { "base", 1, { 3000 }, BLOCKS, 1, 1, 0, .frozen = 1 },
                                           { "w", 1, { 5000 }, BLOCKS, 1, 1, 0 } };
enum { LOW = 2, TRAINED = BLOCKS * 5120, FROZEN = 1024 + BLOCKS * 3072 };

// bf16 with masters on two ranks. With some_frozen, the embedding is frozen and so are 3000 elements per
// block, padded to 3072: only the blocks' other 5120 elements have gradients, optimizer states and traffic
// for them. A slot holds 3 pages, then 3072 elements.
static void check_stage(const zero_plan *p, int stage, int frozen) {
    const size_t trained = frozen ? TRAINED : PADDED, params = (frozen ? TRAINED + FROZEN : PADDED) * LOW;
    const int grads_moved = stage == 0 ? R | G : stage == 1 ? R : 0;
    const line want[] = {
        { "shared window", W, D, WINDOW, 0, 1 },
        { "values in and out", W, D, VALUES, 0, 0 },
        { "parameters", S, D, pages(params / (stage == 3 ? 2 : 1)), stage ? G : 0, 0 },
        { "slots (units used twice)", W, D, stage == 3 ? PAGE : 0, G, 0 },
        { "slots", W, D, stage == 3 ? 2 * pages((3 * 2048 + (frozen ? 3072 : 0)) * LOW) : 0, G, 0 },
        { "gradients", S, D, pages(trained * LOW / (stage >= 2 ? 2 : 1)), grads_moved, 0 },
        { "buckets", W, D, stage >= 2 ? 2 * 3 * PAGE : 0, R, 0 },
        { "buckets (units used twice)", W, D, stage >= 2 && !frozen ? PAGE : 0, R, 0 },
        OPTIMIZER(pages(trained * 4 / (stage ? 2 : 1))),
    };
    CHECK_LINES(p, want);
}

static void test_lines(void **state) {
    for (int stage = 0; stage <= 3; stage++) {
        const zero_config c = config_of(stage, ZERO_BF16, 1);
        const zero_plan p = plan_of(&c, 2, 2);
        check_stage(&p, stage, 0);
        assert_int_equal(p.parameters, PSI);
        assert_int_equal(p.slots, stage == 3 ? 2 : 0);
        assert_int_equal(p.bucket_elems, 5120);
        assert_int_equal(p.bucket_bytes, stage >= 2 ? 2 * 5120 * 2 + 1024 * 2 : 0);
    }
}

static void test_frozen(void **state) {
    for (int stage = 0; stage <= 3; stage++) {
        zero_plan p;
        const zero_config c = config_of(stage, ZERO_BF16, 1);
        const int64_t all = stage ? 2 : 1, params = TRAINED + (stage == 3 ? FROZEN : 0);
        WORKS(zero_make_plan(&p, &c, some_frozen, 3, units, UNITS, 2, 2));
        check_stage(&p, stage, 1);
        assert_int_equal(p.parameters, PSI + BLOCKS * 3000);
        const int64_t whole = stage < 3 ? p.parameters * LOW : 0, optimizer = BLOCKS * 5000 * 12;
        const int64_t sharded = stage == 3 ? p.parameters * LOW : 0, grads = BLOCKS * 5000 * LOW;
        assert_int_equal(p.formulas[stage].bytes,
                         whole + sharded / 2 + grads / (stage < 2 ? 1 : 2) + optimizer / all);
        // Stage 3 gathers each unit twice, but the embedding and the last block stay gathered in between.
        const int64_t stays = 1024 + 5120 + 3072, gathered = stage == 3 ? 2 * params - stays : params;
        assert_int_equal(p.traffic.all_gather[ZERO_FOR_STEP], gathered * LOW / 2);
        assert_int_equal(p.traffic.reduce_scatter[ZERO_FOR_STEP], TRAINED * LOW / 2);
        assert_int_equal(p.traffic.all_gather[ZERO_FOR_EVAL], stage == 3 ? (TRAINED + FROZEN) * LOW / 2 : 0);
    }
}

// A delayed update writes a second version of this rank's 2560 trained parameters of a block, in two pages.
static void test_frozen_in_files(void **state) {
    size_t bytes[2] = { 0 };
    for (int delayed = 0; delayed < 2; delayed++) {
        zero_plan p;
        zero_config c = config_of(3, ZERO_BF16, 1);
        c.offload.params = c.offload.optimizer = ZERO_NVME;
        c.offload.nvme = "/tmp";
        c.offload.delayed_update = delayed;
        WORKS(zero_make_plan(&p, &c, some_frozen, 3, units, UNITS, 2, 2));
        for (const zero_memory_line *l = p.lines; l < p.lines + p.n_lines; l++)
            if (l->tier == ZERO_NVME && !strcmp(l->purpose, "parameters")) bytes[delayed] = l->bytes;
    }
    assert_int_equal(bytes[0], PAGE + BLOCKS * (2 + 1) * PAGE);
    assert_int_equal(bytes[1] - bytes[0], BLOCKS * 2 * PAGE);
}

// Lines that exist only with certain settings: fp32 on the wire, sums over micro-batches, messages, a trace.
static void test_other_lines(void **state) {
    zero_config c = config_of(2, ZERO_BF16, 4);
    c.comm.reduce_fp32 = 1;
    c.comm.shared_window = 0;
    c.debug.trace_events = 100;
    const line want[] = {
        { "message staging", W, D, WINDOW, 0, 0 },
        { "trace", W, D, PAGE, 0, 0 },
        { "values in and out", W, D, VALUES, 0, 0 },
        { "parameters", S, D, 32768, G, 0 },
        { "gradients, summed in fp32", S, D, 32768, 0, 0 },
        { "buckets", W, D, 2 * 3 * PAGE, 0, 0 },
        { "buckets (units used twice)", W, D, PAGE, 0, 0 },
        { "gradients on the wire, fp32", W, D, 5120 * 4, R, 0 },
        OPTIMIZER(32768),
    };
    zero_plan p = plan_of(&c, 2, 2);
    CHECK_LINES(&p, want);
    c.comm.shared_window = 1;  // has no effect when each rank is on its own node
    p = plan_of(&c, 2, 1);
    CHECK_LINES(&p, want);
    // Two nodes of two ranks: both. Other numbers on a node, and GPUs: messages.
    static const struct {
        int ranks, on_node, cuda, windows;
    } rows[] = { { 4, 2, 0, 1 }, { 6, 2, 0, 1 }, { 8, 4, 0, 1 },
                 { 6, 3, 0, 0 }, { 5, 2, 0, 0 }, { 4, 2, 1, 0 } };
    for (size_t i = 0; i < ROWS(rows); i++) {
        c.device = rows[i].cuda ? ZERO_CUDA : ZERO_CPU;
        p = plan_of(&c, rows[i].ranks, rows[i].on_node);
        assert_int_equal(!strcmp(p.lines[0].purpose, "shared window"), rows[i].windows);
        assert_string_equal(p.lines[rows[i].windows].purpose, "message staging");
    }
}

static void no_update(void *ctx, const zero_piece *p) {}

// The trainer's own update. On a GPU it gets gradients in fp32, and its tables are in host memory.
static void test_update_states(void **state) {
    for (int n = 0; n <= 2; n++)
        for (int cuda = 0; cuda < 2; cuda++) {
            zero_config c = config_of(1, ZERO_BF16, 1);
            c.update_with = no_update;
            c.update_states = n;
            c.async_save = 1;
            if (cuda) c.device = ZERO_CUDA, c.comm.nccl = 0;
            const zero_plan p = plan_of(&c, 2, 2);
            const size_t staging = cuda ? (1 << 16) * 4 : 0;
            const int on_host = cuda ? H : D;
            const line want[] = {
                { "shared window", W, on_host, WINDOW, 0, 1 },
                { "bytes of other ranks", W, D, cuda ? 2 << 20 : 0, 0, 1 },
                { "values in and out", W, on_host, VALUES + staging, 0, 0 },
                { "parameters", S, D, 32768, G, 0 },
                { "copy for checkpoints", W, on_host, (1 + n) * 32768, 0, 0 },
                { "gradients", S, D, 32768, R, 0 },
                { "tables of the step", W, D, (cuda ? 2 : 3) * PAGE, 0, 0 },
                { "master weights", S, D, 32768, 0, 0 },
                { "first moment", S, D, n > 0 ? 32768 : 0, 0, 0 },
                { "second moment", S, D, n > 1 ? 32768 : 0, 0, 0 },
                { "tables of the step", W, H, cuda ? PAGE : 0, 0, 0 },
                { "gradients for update_with", W, D, cuda ? 5 * PAGE : 0, 0, 0 },
            };
            CHECK_LINES(&p, want);
            assert_int_equal(p.formulas[1].whole, 2 + 2);
            assert_int_equal(p.formulas[1].sharded, 4 + 4 * n);
        }
}

// A plugin for inference has only parameters and slots. Its plan has no traffic for a step.
static void test_inference(void **state) {
    for (int stage = 0; stage <= 3; stage++)
        for (int low = 0; low < 2; low++) {
            zero_config c = config_of(stage, low ? ZERO_BF16 : ZERO_F32, 1 + 3 * low);
            const size_t size = low ? 2 : 4, block = low ? 3 * PAGE : 5 * PAGE;
            c.inference = 1;
            c.comm.reduce_fp32 = 1;
            zero_plan p = plan_of(&c, 2, 2);
            const line want[] = {
                { "shared window", W, D, WINDOW, 0, 1 },
                { "values in and out", W, D, VALUES - PAGE, 0, 0 },
                { "parameters", S, D, PADDED * size / (stage == 3 ? 2 : 1), stage ? G : 0, 0 },
                { "slots (units used twice)", W, D, stage == 3 ? PAGE : 0, G, 0 },
                { "slots", W, D, stage == 3 ? 2 * block : 0, G, 0 },
            };
            CHECK_LINES(&p, want);
            for (int s = 0; s <= 3; s++) {
                assert_int_equal(p.formulas[s].whole, s < 3 ? size : 0);
                assert_int_equal(p.formulas[s].sharded, s < 3 ? 0 : size);
                assert_int_equal(p.formulas[s].bytes, PSI * size / (s < 3 ? 1 : 2));
            }
            const int64_t eval = stage == 3 ? BLOCKS * 2560 * size : 0;  // the embedding stays gathered
            assert_int_equal(p.traffic.all_gather[ZERO_FOR_EVAL], eval);
            p.traffic.all_gather[ZERO_FOR_EVAL] = 0;
            const zero_traffic nothing = { { 0 }, { 0 }, { 0 } };
            assert_memory_equal(&p.traffic, &nothing, sizeof nothing);
            assert_true(p.bucket_elems == 0 && p.bucket_bytes == 0);
        }
}

// Below stage 2 the sum is separate from a micro-batch's gradients, and already in fp32 for the wire.
static void test_lines_with_sums(void **state) {
    zero_config c = config_of(1, ZERO_BF16, 2);
    c.comm.reduce_fp32 = 1;
    const line want[] = {
        { "shared window", W, D, WINDOW, 0, 1 },
        { "values in and out", W, D, VALUES, 0, 0 },
        { "parameters", S, D, 32768, G, 0 },
        { "gradients, summed in fp32", S, D, 65536, R, 0 },
        { "buckets", W, D, 2 * 3 * PAGE, 0, 0 },
        { "buckets (units used twice)", W, D, PAGE, 0, 0 },
        OPTIMIZER(32768),
    };
    const zero_plan p = plan_of(&c, 2, 2);
    CHECK_LINES(&p, want);
}

// By layers the state is that of one micro-batch at every stage. A is the number of micro-batches; ceil(log2
// A) sums of the largest unit, 5120 elements, exist at once, of which one is in a bucket.
static void test_lines_by_layers(void **state) {
    static const struct {
        int A, sums;
    } rows[] = { { 1, 0 }, { 2, 1 }, { 3, 2 }, { 4, 2 }, { 5, 3 }, { 8, 3 }, { 9, 4 } };
    for (size_t i = 0; i < 4 * ROWS(rows); i++) {
        const int stage = (int)i % 4, A = rows[i / 4].A, sums = rows[i / 4].sums;
        zero_config c = config_of(stage, ZERO_BF16, A);
        c.accumulate_layers = 1;
        const zero_plan p = plan_of(&c, 2, 2);
        const size_t bucket = A > 1 ? 5 * PAGE : 3 * PAGE;
        const line want[] = {
            { "shared window", W, D, WINDOW, 0, 1 },
            { "values in and out", W, D, VALUES, 0, 0 },
            { "parameters", S, D, stage == 3 ? 16384 : 32768, stage ? G : 0, 0 },
            { "slots (units used twice)", W, D, stage == 3 ? PAGE : 0, G, 0 },
            { "slots", W, D, stage == 3 ? 2 * 3 * PAGE : 0, G, 0 },
            { "gradients", S, D, stage >= 2 ? 16384 : 32768, stage ? 0 : G, 0 },
            { "buckets", W, D, 2 * bucket, R, 0 },
            { "buckets (units used twice)", W, D, PAGE, R, 0 },
            { "gradients of a micro-batch", W, D, A > 1 ? 3 * PAGE : 0, 0, 0 },
            { "sums over micro-batches", W, D, sums > 1 ? (sums - 1) * 5 * PAGE : 0, 0, 0 },
            { "gradients of earlier uses", W, D, PAGE, 0, 0 },
            OPTIMIZER(stage ? 32768 : 65536),
        };
        CHECK_LINES(&p, want);
    }
}

// Planning for CUDA needs no device.
static void test_cuda_lines(void **state) {
    zero_config c = config_of(1, ZERO_BF16, 1);
    c.device = ZERO_CUDA;
    for (int nccl = -1; nccl <= 1; nccl++) {
        c.comm.nccl = nccl;
        // NCCL: one part of a bucket per rank; otherwise half a window.
        const size_t incoming = nccl ? 3 * PAGE : 2 << 20;
        const line want[] = {
            { "shared window", W, H, WINDOW, 0, 1 },
            { "bytes of other ranks", W, D, incoming, nccl ? R : 0, nccl != 1 },
            { "values in and out", W, H, VALUES + (1 << 18), 0, 0 },
            { "parameters", S, D, 32768, G, 0 },
            { "gradients", S, D, 32768, R, 0 },
            OPTIMIZER(32768),
            { nccl ? "NCCL (measured)" : "none", W, D, 0, 0, 1 },
        };
        const zero_plan p = plan_of(&c, 2, 2);
        CHECK_LINES(&p, want);
    }
}

// A state that is partly on the GPU and partly on the host has a line for each tier.
static void test_line_per_tier(void **state) {
    zero_config c = config_of(1, ZERO_BF16, 1);
    c.device = ZERO_CUDA;
    c.offload.optimizer = ZERO_HOST;
    c.offload.optimizer_ratio = 0.9;
    const zero_plan p = plan_of(&c, 2, 2);
    size_t bytes[2] = { 0 };
    for (const zero_memory_line *l = p.lines; l < p.lines + p.n_lines; l++)
        if (!strcmp(l->purpose, "master weights")) bytes[l->tier] = l->bytes;
    assert_true(bytes[ZERO_DEVICE] && bytes[ZERO_HOST] &&
                bytes[ZERO_DEVICE] + bytes[ZERO_HOST] < 32768 + 2 * PAGE);
}

// Each combination of class, tier and purpose has its own line.
static void test_find_line(void **state) {
    zero_memory_line lines[] = { { .purpose = "sums", .class_ = ZERO_STATES, .tier = ZERO_HOST },
                                 { .purpose = "sums", .class_ = ZERO_WORKING, .tier = ZERO_HOST },
                                 { .purpose = "sums", .class_ = ZERO_WORKING, .tier = ZERO_DEVICE },
                                 { .purpose = "slots", .class_ = ZERO_WORKING, .tier = ZERO_DEVICE } };
    for (int n = 0; n <= 4; n++)
        for (int i = 0; i < 4; i++) {
            const memory_request r = { lines[i].class_, lines[i].purpose, lines[i].tier, 1, 1, 0 };
            assert_ptr_equal(memory_find_line(lines, n, &r), i < n ? &lines[i] : NULL);
        }
}

// -------- formulas

static void test_formulas(void **state) {
    static const struct {
        zero_dtype dtype;
        int no_master, micro_batches, whole[4], sharded[4], by_layers;
    } rows[] = {
        { ZERO_BF16, 0, 1, { 16, 4, 2, 0 }, { 0, 12, 14, 16 } },
        { ZERO_BF16, 0, 2, { 18, 6, 2, 0 }, { 0, 12, 16, 18 } },
        { ZERO_BF16, 1, 1, { 12, 4, 2, 0 }, { 0, 8, 10, 12 } },
        { ZERO_BF16, 1, 2, { 14, 6, 2, 0 }, { 0, 8, 12, 14 } },
        { ZERO_BF16, 0, 4, { 16, 4, 2, 0 }, { 0, 12, 14, 16 }, 1 },
        { ZERO_BF16, 1, 4, { 12, 4, 2, 0 }, { 0, 8, 10, 12 }, 1 },
        { ZERO_F32, 0, 4, { 16, 8, 4, 0 }, { 0, 8, 12, 16 }, 1 },
        { ZERO_F32, 0, 1, { 16, 8, 4, 0 }, { 0, 8, 12, 16 } },
        { ZERO_F32, 0, 2, { 16, 8, 4, 0 }, { 0, 8, 12, 16 } },
    };
    for (size_t i = 0; i < ROWS(rows); i++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            zero_config c = config_of(0, rows[i].dtype, rows[i].micro_batches);
            c.numbers.no_master = rows[i].no_master;
            c.accumulate_layers = rows[i].by_layers;
            const zero_plan p = plan_of(&c, ranks, ranks);
            for (int stage = 0; stage <= 3; stage++) {
                const zero_formula *f = &p.formulas[stage];
                const int whole = rows[i].whole[stage], sharded = rows[i].sharded[stage];
                assert_true(f->whole == whole && f->sharded == sharded);
                assert_int_equal(f->bytes, whole * PSI + (sharded * PSI + ranks - 1) / ranks);
            }
        }
}

// -------- traffic

// On four ranks a shard of the embedding has 256 elements and a shard of a block has 1280. Each is sent to
// three other ranks, two of which are on another node. With windows a rank exchanges with one of those: it
// reduces the parts of both nodes with its neighbour and sends fp32 sums.
static void check_traffic(const zero_config *c, int low, int wire) {
    enum { SHARD = PADDED / 4, BLOCK = 1280, EMBEDDING = 256 };
    const zero_purpose step = ZERO_FOR_STEP;
    const zero_plan p = plan_of(c, 4, 2);
    const int A = c->accumulate_layers ? 1 : c->micro_batches, sum = A > 1 ? 4 : low,
              sum_wire = c->micro_batches > 1 ? 4 : wire;
    // Stage 3 gathers the embedding once. The first and the last block stay gathered between their uses.
    const int64_t whole = EMBEDDING + 2 * A * (SHARD - EMBEDDING) - (2 * A - 1) * BLOCK;
    const int64_t gathered[] = { SHARD * sum, SHARD * low, SHARD * low, whole * low };
    // By layers the embedding is reduced after both of its uses.
    const int64_t once = (SHARD + EMBEDDING) * sum_wire, in_step = SHARD * sum_wire, each = SHARD * wire * A;
    const int64_t reduced[2][4] = { { in_step, in_step, each, each }, { once, once, once, once } };
    const int64_t eval = c->stage == 3 ? SHARD * low : 0;
    const int windows = c->comm.shared_window, far = windows ? 1 : 2;
    const int64_t sent = reduced[c->accumulate_layers][c->stage];
    const int64_t sums = sent / (c->accumulate_layers || c->stage < 2 ? sum_wire : wire) * 4;
    const zero_traffic *all = &p.traffic, *between = &p.traffic_between_nodes;
    assert_int_equal(all->all_gather[step], 3 * gathered[c->stage]);
    assert_int_equal(between->all_gather[step], far * gathered[c->stage]);
    assert_int_equal(all->reduce_scatter[step], windows ? 2 * sent + sums : 3 * sent);
    assert_int_equal(between->reduce_scatter[step], windows ? sums : 2 * sent);
    assert_int_equal(all->all_gather[ZERO_FOR_EVAL], 3 * eval);
    assert_int_equal(all->other[ZERO_FOR_SCALARS], 3 * NORM_VALUES * sizeof(double));
    assert_int_equal(between->other[ZERO_FOR_SCALARS], far * NORM_VALUES * sizeof(double));
    assert_int_equal(all->other[step], 0);
}

static void test_traffic(void **state) {
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 8; i++)
            for (int wire = 0; wire < 2; wire++) {
                static const int micro_batches[] = { 1, 2, 3, 16 };
                zero_config c = config_of(stage, ZERO_BF16, micro_batches[i / 2]);
                c.accumulate_layers = i % 2;
                c.comm.reduce_fp32 = wire;
                check_traffic(&c, 2, wire ? 4 : 2);
                c.comm.shared_window = 0;
                check_traffic(&c, 2, wire ? 4 : 2);
                c.numbers.dtype = ZERO_F32;
                check_traffic(&c, 4, 4);
            }
    // On the naive path each rank sends all its gradients to all other ranks.
    static const struct {
        zero_dtype dtype;
        int micro_batches, wire, bytes;
    } naive[] = {
        { ZERO_BF16, 1, 0, 2 }, { ZERO_BF16, 1, 1, 4 }, { ZERO_BF16, 2, 0, 4 }, { ZERO_F32, 1, 0, 4 }
    };
    for (size_t i = 0; i < ROWS(naive); i++) {
        zero_config c = config_of(0, naive[i].dtype, naive[i].micro_batches);
        c.debug.naive = 1;
        c.comm.reduce_fp32 = naive[i].wire;
        const zero_traffic t = plan_of(&c, 4, 4).traffic;
        assert_int_equal(t.other[ZERO_FOR_STEP], 3 * PADDED * naive[i].bytes);
        assert_true(t.all_gather[ZERO_FOR_STEP] == 0 && t.reduce_scatter[ZERO_FOR_STEP] == 0);
        assert_int_equal(plan_of(&c, 1, 1).traffic.other[ZERO_FOR_STEP], 0);
    }
}

// -------- groups that shard parameters

// Four ranks, two on each of two nodes. A rank keeps 4 / S shards of every unit: it sends them within its
// group at each gather, and its own one to the ranks that keep it too, once per update.
static void test_groups(void **state) {
    enum { SHARD = PADDED / 4, GATHERED = 256 + 2 * 2 * (SHARD - 256) - 3 * 1280 };
    static const struct {
        int S, windows, inside, across;  // how many ranks of the other node it sends to
    } rows[] = { { 1, 0, 0, 2 }, { 1, 1, 0, 1 }, { 2, 0, 0, 1 },
                 { 2, 1, 0, 1 }, { 4, 0, 2, 0 }, { 4, 1, 1, 0 } };
    for (size_t i = 0; i < ROWS(rows); i++) {
        const int S = rows[i].S, kept = 4 / S;
        zero_config c = config_of(3, ZERO_BF16, 2);
        c.param_group = S;
        c.comm.shared_window = rows[i].windows;
        const zero_plan p = plan_of(&c, 4, 2);
        const zero_formula *f = &p.formulas[3];
        assert_true(f->whole == 0 && f->grouped == (S < 4 ? LOW : 0) && f->sharded == 18 - f->grouped);
        assert_int_equal(f->bytes, (PSI * (LOW * kept + 16) + 3) / 4);
        assert_true(p.formulas[2].grouped == 0 && p.formulas[2].whole == LOW);
        for (const zero_memory_line *l = p.lines; l < p.lines + p.n_lines; l++)
            if (!strcmp(l->purpose, "parameters")) assert_int_equal(l->bytes, pages(kept * SHARD * LOW));
        const int64_t inside = GATHERED * LOW * kept, across = SHARD * LOW;
        const zero_traffic *all = &p.traffic, *between = &p.traffic_between_nodes;
        assert_int_equal(all->all_gather[ZERO_FOR_STEP], inside * (S - 1) + across * (kept - 1));
        assert_int_equal(between->all_gather[ZERO_FOR_STEP],
                         inside * rows[i].inside + across * rows[i].across);
        assert_int_equal(all->all_gather[ZERO_FOR_EVAL], SHARD * LOW * kept * (S - 1));
        assert_int_equal(between->all_gather[ZERO_FOR_EVAL], SHARD * LOW * kept * rows[i].inside);
        assert_int_equal(all->other[ZERO_FOR_SCALARS], 3 * NORM_VALUES * sizeof(double));
    }
}

// Two of three units repeat their forward in backward: one more gather for each, but not in evaluations.
static void test_repeated_uses(void **state) {
    enum { SHARD = 256 };
    static const zero_tensor w = { "w", 1, { 2 * SHARD }, .layers = 3 };
    static const zero_unit units[] = { { "a", 2, 1, 0, 1 }, { "b", 2, 1, 0, 1 }, { "c", 1, 1, 0, 0 } };
    for (int A = 1; A <= 2; A++) {
        const zero_config c = config_of(3, ZERO_BF16, A);
        zero_plan p;
        WORKS(zero_make_plan(&p, &c, &w, 1, units, ROWS(units), 2, 2));
        // a stays for the next micro-batch, and c from forward to backward
        assert_int_equal(p.traffic.all_gather[ZERO_FOR_STEP], (7 * A - (A - 1)) * SHARD * 2);
        assert_int_equal(p.traffic.all_gather[ZERO_FOR_EVAL], 3 * SHARD * 2);
        assert_int_equal(p.slots, 2);
        assert_int_equal(p.bucket_bytes, 2 * 2 * SHARD * 2);
    }
}

// -------- size

static long peak_kib(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

// Planning must take little memory, and no work per rank or per pair of units.
static void test_large(void **state) {
    static const struct {
        int blocks, ranks;
        int64_t rows;
        size_t most_kib;
    } sizes[] = { { 100, 128, 50304, 4 << 10 }, { 20000, 4096, 1000, 32 << 10 } };
    static zero_unit many[20001] = { { "embedding", 2, 2, 1 } };
    enum { C = 10240 };
    for (int i = 1; i <= 20000; i++) many[i] = (zero_unit){ "block", 1, 1, 0 };
    for (int i = 0; i < 2; i++) {
        const int L = sizes[i].blocks;
        const zero_tensor model[] = { { "wte", 2, { sizes[i].rows, C }, 1, 0, 1, 1 },
                                      { "ln", 1, { 13 * C }, L, 1, 0, 0 },
                                      { "w", 2, { 12 * C, C }, L, 1, 1, 1 } };
        const int64_t psi = sizes[i].rows * C + L * (12LL * C * C + 13 * C);
        const long before = peak_kib();
        const clock_t start = clock();
        for (int stage = 0; stage <= 3; stage++) {
            zero_config c = config_of(stage, ZERO_BF16, 1);
            c.start.rank = sizes[i].ranks - 1;
            zero_plan p;
            WORKS(zero_make_plan(&p, &c, model, 3, many, 1 + L, sizes[i].ranks, 8));
            assert_int_equal(p.parameters, psi);
            const double held = (double)p.bytes[ZERO_STATES], formula = (double)p.formulas[stage].bytes;
            assert_true(held >= formula && held < 1.01 * formula + 5 * PAGE);
        }
        const double cpu_s = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (cpu_s > 2) fail_msg("four plans took %.1f s of CPU time", cpu_s);
        if (peak_kib() - before > (long)sizes[i].most_kib)
            fail_msg("%d units took %ld KiB", L, peak_kib() - before);
    }
}

// -------- pieces of tensors

// With 9 ranks, a block of 5000 elements has parts of 640, and the embedding has parts of 128.
static void test_pieces(void **state) {
    layout l;
    WORKS(layout_init(&l, 9, 0, tensors, 2, units, UNITS));
    for (int rank = 0; rank < 9; rank++) {
        int of_embedding = rank * 128 < 1000, of_block = rank * 640 < 5000;
        zero_config c = zero_defaults();
        c.stage = 1;
        assert_int_equal(plan_count_pieces(&c, &l, rank).segments, of_embedding + BLOCKS * of_block);
    }
    layout_free(&l);
}

// In files a piece ends with the rank's part or at a page of the unit. A part that fits into a piece is one,
// wherever in a page it begins.
static void test_pieces_in_files(void **state) {
    zero_config c = zero_defaults();
    c.stage = 3;
    c.offload.params = c.offload.optimizer = c.offload.gradients = ZERO_NVME;
    for (int ranks = 1; ranks <= 9; ranks++) {
        layout l;
        WORKS(layout_init(&l, ranks, 0, tensors, 2, units, UNITS));
        for (int rank = 0; rank < ranks; rank++) {
            c.offload.sub_group_size = zero_defaults().offload.sub_group_size;
            assert_int_equal(plan_count_pieces(&c, &l, rank).pieces, UNITS);
            c.offload.sub_group_size = 1;  // a page
            const int64_t before = layout_before(&l.units[1], rank);
            for (state_range r = plan_first_piece(&c, &l, rank, 1); r.elems;
                 r = plan_next_piece(&c, &l, rank, r)) {
                const int64_t end = r.from + r.elems;
                assert_true(r.elems <= PAGE_ELEMS);
                assert_true(end == l.units[1].shard || (before + end) % PAGE_ELEMS == 0);
            }
        }
        layout_free(&l);
    }
}

// -------- refusals

// The largest table and number of micro-batches: nothing overflows (make check runs this with UBSan).
static void test_largest(void **state) {
    const zero_tensor largest = { "w", 1, { 1000000000000000 }, 1, 0, 1, 0 };
    const zero_unit unit = { "u", 1, 1, 0 };
    zero_plan p;
    for (int i = 0; i < 16; i++) {
        zero_config c = config_of(i % 4, ZERO_BF16, i / 4 % 2 ? 100 : 1);
        if (i % 4 == 3 && i / 8) {
            c.offload.params = c.offload.optimizer = c.offload.gradients = ZERO_NVME;
            c.offload.nvme = ".";
        }
        WORKS(zero_make_plan(&p, &c, &largest, 1, &unit, 1, 1 << 14, 8));
        assert_true(p.bytes[ZERO_STATES] >= p.formulas[i % 4].bytes);
        c.micro_batches = INT_MAX;
        WORKS(zero_make_plan(&p, &c, tensors, 2, units, UNITS, 4, 4));
        assert_int_equal(p.traffic.reduce_scatter[ZERO_FOR_STEP],
                         3LL * (PADDED / 4) * (c.stage < 2 ? 4 : 2LL * INT_MAX));
        c.accumulate_layers = 1;
        WORKS(zero_make_plan(&p, &c, tensors, 2, units, UNITS, 4, 4));
        assert_int_equal(p.traffic.reduce_scatter[ZERO_FOR_STEP], 3LL * (PADDED / 4 + 256) * 4);
        REFUSED(zero_make_plan(&p, &c, &largest, 1, &unit, 1, 4, 4), ZERO_ERR_ARGUMENT,
                "micro_batches 2147483647");
    }
}

static void refused(const zero_config *c, int n_units, int ranks, int ranks_on_node, const char *names) {
    zero_plan p;
    REFUSED(zero_make_plan(&p, c, tensors, 2, units, n_units, ranks, ranks_on_node), ZERO_ERR_ARGUMENT,
            names);
}

static void test_refused(void **state) {
    zero_config c = config_of(3, ZERO_F32, 1);
    refused(&c, UNITS, 0, 1, "0 ranks");
    refused(&c, UNITS, 4, 0, "0 of them on a node");
    refused(&c, UNITS, 4, 5, "5 of them on a node");
    refused(&c, UNITS - 1, 4, 4, "3 units");
    c.start.rank = 4;
    refused(&c, UNITS, 4, 4, "rank 4 of 4");
    c.start.rank = -1;
    c.stage = 4;
    refused(&c, UNITS, 4, 4, "stage 4");
    c.stage = 3;
    static const struct {
        int ranks, group;
        const char *words;
    } groups[] = { { 4, 3, "param_group 3: must divide the number of ranks, 4; the nearest is 2" },
                   { 6, 5, "the nearest is 6" },
                   { 6, 4, "the nearest is 3" },
                   { 4, 9, "the nearest is 4" },
                   { 7, 3, "the nearest is 1" } };
    for (size_t i = 0; i < ROWS(groups); i++) {
        c.param_group = groups[i].group;
        refused(&c, UNITS, groups[i].ranks, groups[i].ranks, groups[i].words);
    }
    c.param_group = 2;
    c.offload.params = ZERO_NVME;
    c.offload.nvme = ".";
    refused(&c, UNITS, 4, 4, "param_group: parameters in files");
    c.offload.params = ZERO_DEVICE;
    c.stage = 2;
    refused(&c, UNITS, 4, 4, "parameters are whole on every rank below stage 3");
    c.stage = 3;
    c.param_group = 0;
    c.comm.window_bytes = 64 << 10;
    refused(&c, UNITS, 1000, 8, "window_bytes 65536");
}

// -------- virtual time

static void use(zero *z, int unit, int (*pre)(zero *, int), int (*post)(zero *, int)) {
    WORKS(pre(z, unit));
    WORKS(post(z, unit));
}

// One step of `of` micro-batches, by batches: the embedding is used at both ends.
static void step_of(zero *z, int of, int t) {
    const zero_hyper h = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = t };
    for (int micro = 0; micro < of; micro++) {
        WORKS(zero_begin_train(z, micro, of));
        for (int u = 0; u <= UNITS; u++) use(z, u % UNITS, zero_pre_forward, zero_post_forward);
        for (int u = UNITS; u >= 0; u--) use(z, u % UNITS, zero_pre_backward, zero_post_backward);
    }
    WORKS(zero_step(z, &h, NULL));
    zero_virtual_wait(z);
}

static zero_traffic sent_by(zero *z) {
    zero_traffic t;
    zero_traffic_info(z, &t);
    return t;
}

// In virtual time a rank holds and sends what is planned. A step takes longer on a slower network.
static void test_virtual(void **state) {
    for (int row = 0; row < 4 * 3 * 2; row++) {
        const int stage = row % 4, ranks = 1 << row / 4 % 3, of = 1 + row / 12;
        double seconds[2][2];
        for (int slow = 0; slow < 2; slow++) {
            zero_machine m = { .name = "m", .ranks_on_host = ranks };
            for (int i = 0; i < ZERO_TIMES; i++) m.of[i] = (zero_rate){ 1e-6, 1e9 };
            if (slow) m.of[ZERO_TIME_GATHER].bytes_per_s = m.of[ZERO_TIME_REDUCE].bytes_per_s = 1e6;
            zero_config c = config_of(stage, ZERO_BF16, of);
            const zero_plan p = plan_of(&c, ranks, ranks);
            c.machine = &m;
            c.start.ranks = ranks;
            zero *z;
            WORKS(zero_create(&z, &c, tensors, 2, units, UNITS));
            if (*plan_differs(&p, z)) fail_msg("stage %d, %d ranks: %s", stage, ranks, plan_differs(&p, z));
            step_of(z, of, 1);
            step_of(z, of, 2);
            for (int i = 0; i < 2; i++) {
                const zero_traffic before = sent_by(z);
                const double start = zero_virtual_now(z);
                step_of(z, of, 3 + i);
                seconds[slow][i] = zero_virtual_now(z) - start;
                const zero_traffic after = sent_by(z);
                assert_int_equal(after.all_gather[ZERO_FOR_STEP] - before.all_gather[ZERO_FOR_STEP],
                                 p.traffic.all_gather[ZERO_FOR_STEP]);
                assert_int_equal(after.reduce_scatter[ZERO_FOR_STEP] - before.reduce_scatter[ZERO_FOR_STEP],
                                 p.traffic.reduce_scatter[ZERO_FOR_STEP]);
            }
            assert_true(seconds[slow][0] > 0);
            assert_float_equal(seconds[slow][0], seconds[slow][1], 1e-9);
            zero_destroy(z);
        }
        assert_true(ranks == 1 ? seconds[0][0] == seconds[1][0] : seconds[0][0] < seconds[1][0]);
    }
}

int main(void) {
    const struct CMUnitTest plan_tests[] = {
        cmocka_unit_test(test_lines),           cmocka_unit_test(test_other_lines),
        cmocka_unit_test(test_lines_with_sums), cmocka_unit_test(test_cuda_lines),
        cmocka_unit_test(test_lines_by_layers), cmocka_unit_test(test_line_per_tier),
        cmocka_unit_test(test_formulas),        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_groups),          cmocka_unit_test(test_large),
        cmocka_unit_test(test_repeated_uses),   cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_pieces_in_files), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_largest),         cmocka_unit_test(test_inference),
        cmocka_unit_test(test_find_line),       cmocka_unit_test(test_update_states),
        cmocka_unit_test(test_frozen),          cmocka_unit_test(test_frozen_in_files),
        cmocka_unit_test(test_virtual),
    };
    return cmocka_run_group_tests(plan_tests, NULL, NULL) != 0;
}
