// Tests the plugin's device: the CUDA kernels, compared bit for bit with the CPU's; the waits, launches and
// allocations of a step; memory; missing devices and failing calls. Without CUDA, only tests the error.
#include <math.h>
#include "toy.h"
#include "unit.h"

static toy t;

static int end(void **state) {
    zero_destroy(t.z);
    t.z = NULL;
    return 0;
}

static zero_config config_on(zero_device device, int stage) {
    zero_config c = zero_defaults();
    c.device = device;
    c.stage = stage;
    c.debug.poison = 0;
    return c;
}

static void refused(const zero_config *c, int code, const char *names) {
    REFUSED(zero_create(&t.z, c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS), code, names);
    assert_null(t.z);
}

static void test_cpu(void **state) {
    zero_config c = config_on(ZERO_CPU, 0);
    zero_job e;
    assert_int_equal(toy_create(&t, &c, NULL), 0);
    zero_job_info(t.z, &e);
    assert_string_equal(e.device, "cpu");
    assert_int_equal(e.cuda_device, -1);
    assert_int_equal(e.ranks_on_device, 1);
    zero_memory_line line;
    for (int i = 0; zero_memory(t.z, i, &line); i++) assert_int_equal(line.tier, ZERO_DEVICE);
}

#define TEST(f) cmocka_unit_test_teardown(f, end)

#ifndef ZERO_HAVE_CUDA
static void test_built_without(void **state) {
    zero_config c = config_on(ZERO_CUDA, 0);
    refused(&c, ZERO_ERR_DEVICE, "built without CUDA");
    REFUSED(zero_cuda_devices(), ZERO_ERR_DEVICE, "built without CUDA");
}

int main(void) {
    const struct CMUnitTest tests[] = { TEST(test_cpu), TEST(test_built_without) };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
#else
#include "../llmc_zero/device/kernels_cuda.h"

#define CUDA_WORKS(call)                                                            \
    do {                                                                            \
        cudaError_t rc_ = (call);                                                   \
        if (rc_ != cudaSuccess) fail_msg("%s: %s", #call, cudaGetErrorString(rc_)); \
    } while (0)

#ifdef CUDA_STAND_IN
#include "cuda/stand_in.h"

static int begin_lazy(void **state) {
    cuda_stand_in_set("CUDA_STAND_IN", "lazy");
    return 0;
}
static int end_lazy(void **state) {
    cuda_stand_in_set("CUDA_STAND_IN", NULL);
    return end(state);
}
#define TEST_LAZY(f) cmocka_unit_test_setup_teardown(f, begin_lazy, end_lazy)
#else
#define TEST_LAZY TEST
#endif

// -------- kernels

enum { LARGEST = 3 * 65536 + 17, MOST_RANKS = 9, MARGIN = 8, OFFSETS = 4, DTYPES = 3 };
static const int64_t sizes[] = { 1, 3, 127, 1000, 1023, LARGEST };
enum { SIZES = sizeof sizes / sizeof *sizes };
static const zero_dtype dtypes[DTYPES] = { ZERO_F32, ZERO_BF16, ZERO_F16 };

// The same elements on the host and the device. No kernel may write to the margin around them.
typedef struct {
    char *host, *device;
    zero_dtype type;
    int64_t n;
} array;

static float new_random_float(void) {
    static const float special[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, 1e-42f, -65519 };
    uint32_t r = random_bits();
    if (r >> 24 == 0) return special[r >> 8 & 7];
    return ldexpf((float)(r >> 8) / (1 << 23) - 1.0f, (int)(random_bits() >> 28) - 8);
}
// Repeats a prime number of random floats, because computing new ones takes longer than the kernels.
static float random_float(void) {
    enum { FLOATS = 4099 };
    static float floats[FLOATS];
    static int used;
    if (used < FLOATS) floats[used] = new_random_float();
    return floats[used++ % FLOATS];
}

static void *on_cuda(const void *host, size_t bytes) {
    void *p;
    CUDA_WORKS(cudaMalloc(&p, bytes));
    CUDA_WORKS(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

static size_t bytes_of(const array *a) { return (a->n + 2 * MARGIN) * dtype_bytes(a->type); }

// value NULL: uses random floats, including a few special ones.
static array make_of(zero_dtype type, int64_t n, float (*value)(int64_t i)) {
    array a = { NULL, NULL, type, n };
    a.host = malloc(bytes_of(&a));
    assert_non_null(a.host);
    for (int64_t i = 0; i < n + 2 * MARGIN; i++)
        toy_store(type, a.host, i, value ? value(i) : random_float());
    a.device = on_cuda(a.host, bytes_of(&a));
    return a;
}
static array make(zero_dtype type, int64_t n) { return make_of(type, n, NULL); }
static float finite_float(int64_t i) {
    float x = random_float();
    return isfinite(x) && fabsf(x) < 65504 ? x : 1;
}
static void *on_host(const array *a, int64_t offset) { return a->host + offset * dtype_bytes(a->type); }
static void *on_device(const array *a, int64_t offset) { return a->device + offset * dtype_bytes(a->type); }

// All bits must be equal, except that any NaN equals any other, because GPUs produce a different one.
static void same_elements(const array *a, const char *got, const char *what) {
    for (int64_t i = 0; i < a->n + 2 * MARGIN; i++) {
        float x = toy_load(a->type, got, i), y = toy_load(a->type, a->host, i);
        if (bits_of(x) != bits_of(y) && !(isnan(x) && isnan(y)))
            fail_msg("%s, %s, %lld elements: element %lld is %a, not %a", what, dtype_name(a->type),
                     (long long)a->n, (long long)i - MARGIN, x, y);
    }
}

// Compares the copies on the device and the host, then frees both.
static void finish(array *a, const char *what) {
    char *got = malloc(bytes_of(a));
    assert_non_null(got);
    CUDA_WORKS(cudaMemcpy(got, a->device, bytes_of(a), cudaMemcpyDeviceToHost));
    if (memcmp(got, a->host, bytes_of(a))) same_elements(a, got, what);
    free(got);
    free(a->host);
    CUDA_WORKS(cudaFree(a->device));
}

// Calls `check` with all sizes and several offsets, most of them unaligned.
static void at_all_places(void (*check)(int64_t n, int64_t offset)) {
    for (int k = 0; k < SIZES; k++)
        for (int offset = 0; offset < OFFSETS; offset++) check(sizes[k], offset);
}

// This rank is the middle one, and its part is in a separate array. Each part is aligned differently.
static void sum_ranks_case(zero_dtype type, zero_dtype to_type, int ranks, int64_t n, int64_t offset,
                           int add) {
    const int64_t apart = n + 1;
    array others = make(type, ranks * apart), own = make(type, n), to = make(to_type, n);
    array other = make(ZERO_F32, n), *plus = to_type == ZERO_F32 ? &to : &other;
    const int rank = ranks / 2;
    const void *host[ranks];
    for (int r = 0; r < ranks; r++) host[r] = on_host(&others, offset + r * apart);
    host[rank] = on_host(&own, 0);
    const rank_parts parts = { ranks, rank, on_device(&own, 0), on_device(&others, offset),
                               apart * dtype_bytes(type) };
    kernel_sum_ranks(to_type, on_host(&to, offset), type, host, ranks, 1.0f / ranks, n,
                     add ? on_host(plus, offset) : NULL);
    CUDA_WORKS(cuda_sum_ranks(NULL, to_type, on_device(&to, offset), type, &parts, 1.0f / ranks, n,
                              add ? on_device(plus, offset) : NULL));
    finish(&to, "sum_ranks");
    finish(&others, "sum_ranks's source");
    finish(&own, "sum_ranks's own source");
    finish(&other, "what sum_ranks adds");
}
// The largest sums take most of the time, so they run at one place per number of ranks.
static void check_sum_ranks(int64_t n, int64_t offset) {
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int k = 0; k < DTYPES && (n < LARGEST || offset == ranks % OFFSETS); k++) {
            sum_ranks_case(dtypes[k], dtypes[k], ranks, n, offset, 0);
            sum_ranks_case(dtypes[k], ZERO_F32, ranks, n, offset, 0);
            sum_ranks_case(dtypes[k], ZERO_F32, ranks, n, offset, 1);
            sum_ranks_case(ZERO_F32, dtypes[k], ranks, n, offset, 1);
            sum_ranks_case(ZERO_F32, dtypes[k], ranks, n, offset, 0);
        }
}

// Adds the squares of all parts twice to the same sum, which must get the words of the CPU's.
static void check_norm(zero_dtype type, const char *host, const void *device, stretch *parts, int n) {
    uint64_t want[EXACT_WORDS] = { 0 }, got[EXACT_WORDS], *words = on_cuda(want, sizeof want);
    stretches list = { NULL, n, 0 };
    for (int i = 0; i < n; list.pieces += sum_blocks(parts[i++].elems)) parts[i].first = list.pieces;
    list.list = on_cuda(parts, n * sizeof *parts);
    for (int again = 0; again < 2; again++) {
        CUDA_WORKS(cuda_add_squares(NULL, words, &list, type, device));
        CUDA_WORKS(cudaMemcpy(got, words, sizeof got, cudaMemcpyDeviceToHost));
        for (int i = 0; i < n; i++)
            kernel_add_squares(want, type, host + parts[i].offset * dtype_bytes(type), parts[i].elems);
        for (int i = 0; i < EXACT_WORDS; i++)
            if (got[i] != want[i])
                fail_msg("squares, %s, %d parts, the first of %lld elements: word %d is %llx, not %llx",
                         dtype_name(type), n, (long long)parts->elems, i, (long long)got[i],
                         (long long)want[i]);
    }
    CUDA_WORKS(cudaFree((void *)list.list));
    CUDA_WORKS(cudaFree(words));
}

static void check_add_squares(int64_t n, int64_t offset) {
    for (int k = 0; k < DTYPES; k++)
        for (int clean = 0; clean < 2; clean++) {
            array x = make_of(dtypes[k], n, clean ? finite_float : NULL);
            stretch one = { offset, n, 0 };
            check_norm(dtypes[k], on_host(&x, 0), on_device(&x, 0), &one, 1);
            finish(&x, "add_squares's source");
        }
}

// Adds many parts in one launch, some of one block and some of several, in mixed order.
static void test_add_squares_of_parts(void **state) {
    enum { PARTS = 77 };
    for (int k = 0; k < DTYPES; k++) {
        array x = make_of(dtypes[k], 4 * LARGEST, finite_float);
        stretch parts[PARTS];
        for (int i = 0; i < PARTS; i++) {
            int64_t elems = i % 26 == 3 ? LARGEST - i : 128 * (1 + i % 7) - i % 3;
            parts[i] = (stretch){ (i * 104729 % (3 * LARGEST)) / 8 * 8, elems, 0 };
        }
        check_norm(dtypes[k], x.host, x.device, parts, PARTS);
        finish(&x, "add_squares's source");
    }
}

typedef struct {
    array p, m, v, g, low;
} update_arrays;
static update_arrays make_arrays(zero_dtype g_type, int low, int64_t n) {
    array p = make(ZERO_F32, n), m = make(ZERO_F32, n), v = make(ZERO_F32, n), g = make(g_type, n);
    return (update_arrays){ p, m, v, g, make(low == 2 ? ZERO_F16 : ZERO_BF16, n) };
}

// A nonzero offset misaligns the arrays, each by a different amount.
static adamw_arrays arrays_at(const update_arrays *x, int64_t offset,
                              void *(*at)(const array *a, int64_t offset)) {
    return (adamw_arrays){
        at(&x->p, offset),
        at(&x->m, offset),
        at(&x->v, offset),
        at(&x->g, offset ? 2 : 0),
        at(&x->low, offset ? 3 - offset : 0),
        x->g.type,
        x->low.type,
    };
}

// low: the 16-bit parameters; 0: none, 1: bf16, 2: fp16, 3: bf16 without a master
static void check_update(update_arrays *x, int low, int64_t offset, double scale, adamw_segment *segments,
                         int n) {
    const zero_hyper h = {
        .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = 3
    };
    adamw_constants c = adamw_prepare(&h, scale, 4711);
    adamw_table for_cpu = { segments, n, 0 }, for_cuda = { NULL, n, 0 };
    for (int i = 0; i < n; i++) {
        segments[i].first = for_cuda.chunks;
        for_cuda.chunks += adamw_chunks(segments[i].elems);
    }
    for_cuda.segments = on_cuda(segments, n * sizeof *segments);
    adamw_arrays a = arrays_at(x, offset, on_host), b = arrays_at(x, offset, on_device);
    if (low == 0) a.low = b.low = NULL;
    if (low == 3) a.p = b.p = NULL;
    kernel_update(&(own_update){ .update = NULL }, &c, &a, &for_cpu);
    CUDA_WORKS(cuda_adamw(NULL, &c, &b, &for_cuda));
    finish(&x->p, "adamw's p");
    finish(&x->m, "adamw's m");
    finish(&x->v, "adamw's v");
    finish(&x->g, "adamw's g");
    finish(&x->low, "adamw's low");
    CUDA_WORKS(cudaFree((void *)for_cuda.segments));
}

static void check_adamw(int64_t n, int64_t offset) {
    for (int i = 0; i < 4 * DTYPES; i++) {
        const int low = i % 4;
        update_arrays x = make_arrays(dtypes[i / 4], low, n);
        adamw_segment one = {
            .inside = 0xfffffff0, .elems = n, .tensor = 5, .layer = 7, .lr_factor = 0.7f, .decay = low & 1
        };
        check_update(&x, low, offset, low & 2 ? 1 : 0.37, &one, 1);
    }
}

// Updates tensors of many sizes, some of which begin in an earlier rank's part, and nothing between them.
static void check_segments(zero_dtype g_type, int low, int n) {
    adamw_segment segments[n];
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        int64_t elems = i % 50 == 2 ? 3000 + i : 1 + i * 37 % 700;
        segments[i] = (adamw_segment){ .offset = at + 128,
                                       .inside = i % 3 * 128,
                                       .elems = elems,
                                       .tensor = i % 16,
                                       .layer = i / 16,
                                       .lr_factor = i % 3 ? 1 : 0.3f,
                                       .decay = i % 16 * 0.3f };
        at += (elems + 127) / 128 * 128;
    }
    update_arrays x = make_arrays(g_type, low, at + 128);
    check_update(&x, low, 0, 0.37, segments, n);
}
static void test_adamw_segments(void **state) {
    static const int numbers[] = { 2, 31, 32, 33, 580, 1025 };  // a warp checks 32 at a time
    for (int i = 0; i < (int)(sizeof numbers / sizeof *numbers); i++)
        for (int low = 0; low < 4; low++) check_segments(dtypes[(i + low) % DTYPES], low, numbers[i]);
}

// Clears stretches of many sizes, some unaligned. The elements between them must not change.
static void check_clear_stretches(zero_dtype type, int n) {
    stretch list[n];
    stretches t = { NULL, n, 0 };
    int64_t end = 0;
    for (int i = 0; i < n; i++) {
        list[i] = (stretch){ end, 1 + i * 331 % 1000, t.pieces };
        t.pieces += clear_chunks(list[i].elems);
        end += list[i].elems + i % 5;
    }
    array x = make(type, end);
    for (int i = 0; i < n; i++) memset(on_host(&x, list[i].offset + 1), 0, list[i].elems * dtype_bytes(type));
    t.list = on_cuda(list, sizeof list);
    CUDA_WORKS(cuda_clear_stretches(NULL, type, on_device(&x, 1), &t));
    finish(&x, "clear_stretches");
    CUDA_WORKS(cudaFree((void *)t.list));
}
static void test_clear_stretches(void **state) {
    for (int k = 0; k < DTYPES; k++)
        for (int n = 1; n <= 100; n += 33) check_clear_stretches(dtypes[k], n);
}

#define AT_ALL_PLACES(name) \
    static void test_##name(void **state) { at_all_places(check_##name); }
AT_ALL_PLACES(sum_ranks)
AT_ALL_PLACES(add_squares)
AT_ALL_PLACES(adamw)

static void test_many_ranks(void **state) {
    static const int ranks[] = { 17, 31, 32, 33, 300 };  // at most 32 have a kernel with fewer registers
    for (int k = 0; k < DTYPES * 5; k++)
        sum_ranks_case(dtypes[k % DTYPES], ZERO_F32, ranks[k / DTYPES], 1000, 1, k & 1);
}

// -------- the device

static void test_device_number(void **state) {
    zero_config c = config_on(ZERO_CUDA, 0);
    zero_job e;
    WORKS(toy_create_on_device(&t, &c));
    zero_job_info(t.z, &e);
    assert_true(e.device[0] && strcmp(e.device, "cpu"));
    end(NULL);
    c.cuda_device = zero_cuda_devices();
    refused(&c, ZERO_ERR_ARGUMENT, ": must be 0 to");
    c.cuda_device = -1;
    c.debug.naive = 1;
    refused(&c, ZERO_ERR_ARGUMENT, "naive path computes on the CPU");
}

static void test_memory(void **state) {
    zero_config c = config_on(ZERO_CUDA, 2);
    cudaStream_t stream;
    zero_memory_line line;
    int found = 0;
    CUDA_WORKS(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    c.cuda_stream = stream;
    WORKS(toy_create_on_device(&t, &c));
    float *x = zero_alloc(t.z, ZERO_DEVICE, ZERO_ACTIVATIONS, "mine", 10000), back[2500];
    assert_non_null(x);
    assert_int_equal((uintptr_t)x % 256, 0);
    float *on_host = zero_alloc(t.z, ZERO_HOST, ZERO_ACTIVATIONS, "mine, on the host", 10000);
    assert_non_null(on_host);
    for (int i = 0; i < 2500; i++) assert_true(on_host[i] == 0);
    assert_int_not_equal(cudaHostRegister(on_host, 4096, cudaHostRegisterDefault),
                         cudaSuccess);  // because the memory is already pinned
    cudaGetLastError();
    CUDA_WORKS(cudaMemcpy(back, x, sizeof back, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2500; i++) assert_true(back[i] == 0);  // the default stream sees zeros too
    for (int i = 0; zero_memory(t.z, i, &line); i++) {
        if (strncmp(line.purpose, "mine", 4)) continue;
        found++;
        assert_int_equal(line.tier, strcmp(line.purpose, "mine") ? ZERO_HOST : ZERO_DEVICE);
        assert_true(line.bytes == 12288 && line.class_ == ZERO_ACTIVATIONS);
    }
    assert_int_equal(found, 2);
    end(NULL);
    CUDA_WORKS(cudaStreamDestroy(stream));
}

static size_t device_memory_left(void) {
    size_t left, all;
    CUDA_WORKS(cudaMemGetInfo(&left, &all));
    return left;
}

// The trainer's stream writes to parameters, or to a gradient after its post hook; more is in mpi_check.c.
static void test_checks(void **state) {
    enum { W = 2, LAST = TOY_UNITS - 1, MISUSE = ZERO_ERR_MISUSE };
    for (int stage = 0; stage <= 3; stage += 3) {
        zero_config c = config_on(ZERO_CUDA, stage);
        c.debug.check_steps = 1;
        c.overlap = 1;  // a separate stream copies the values to the host
        end(NULL);
        WORKS(toy_create(&t, &c, NULL));
        WORKS(zero_begin_train(t.z, 0, 1));
        for (int u = 0; u <= LAST; u++) {
            WORKS(zero_pre_forward(t.z, u));
            WORKS(zero_post_forward(t.z, u));
        }
        WORKS(zero_pre_backward(t.z, LAST));
        void *gradient = zero_grad(t.z, W, LAST - 1);
        WORKS(zero_post_backward(t.z, LAST));
        CUDA_WORKS(cudaMemsetAsync(gradient, 1, sizeof(float), NULL));
        REFUSED(zero_pre_backward(t.z, LAST - 1), MISUSE, " wrote to the gradient of w, layer 3, ");
        WORKS(zero_pre_forward(t.z, 0));
        void *param = (void *)zero_param(t.z, 0, 0);
        CUDA_WORKS(cudaMemsetAsync(param, 1, sizeof(float), NULL));
        REFUSED(zero_post_forward(t.z, 0), MISUSE, " wrote to the parameters of wte, layer 0, ");
    }
}

static void test_out_of_memory(void **state) {
    zero_config c = config_on(ZERO_CUDA, 0);
    const zero_tensor huge = { "huge", 1, { 1LL << 38 }, 1, 0, 1, 0 };
    const zero_unit unit = { "all", 1, 1, 0 };
    WORKS(toy_create_on_device(&t, &c));
    WORKS(toy_step(&t, 1, 1, NULL));  // CUDA loads each kernel at its first launch, which allocates memory
    size_t left = device_memory_left();
    assert_null(zero_alloc(t.z, ZERO_DEVICE, ZERO_ACTIVATIONS, "far too much", 1ULL << 40));
    assert_non_null(strstr(zero_last_error(), "no memory for far too much: 1048576.0 MiB more than"));
    assert_non_null(strstr(zero_last_error(), "MiB of "));
    assert_non_null(strstr(zero_last_error(), "are free"));
    assert_true(device_memory_left() == left);
    WORKS(toy_step(&t, 1, 2, NULL));  // training continues
    end(NULL);
    REFUSED(zero_create(&t.z, &c, &huge, 1, &unit, 1), ZERO_ERR_MEMORY, "are free");
    assert_null(t.z);
    assert_true(device_memory_left() >= left);
}

#ifdef CUDA_STAND_IN
typedef struct {
    long launches, waits, allocations;
} Counts;
static Counts counts(void) {
    Counts n;
    cuda_stand_in_counts(&n.launches, &n.waits, &n.allocations);
    return n;
}

// Checks one rank's third step. The host waits for the device once, for the norm. The norm takes one launch,
// and the update takes one launch per unit, because each unit is gathered right after its update.
static void check_step(const zero_config *c) {
    zero_hyper h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 3 };
    end(NULL);
    WORKS(toy_create_on_device(&t, c));
    for (int step = 1; step <= 2; step++) WORKS(toy_step(&t, c->micro_batches, step, NULL));
    const Counts start = counts();
    WORKS(toy_passes(&t, c->micro_batches));
    const Counts passed = counts();
    WORKS(zero_finish_gradients(t.z, NULL));
    const Counts finished = counts();
    WORKS(zero_update(t.z, &h));
    const Counts updated = counts();
    WORKS(toy_passes(&t, 1));
    const Counts last = counts();
    assert_int_equal(passed.waits, start.waits);
    // Copying the sums to pageable memory may add a second wait.
    assert_in_range(finished.waits - passed.waits, 1, 2);
    assert_int_equal(last.waits, finished.waits);
    assert_int_equal(last.allocations, start.allocations);
    if (c->overlap) return;
    assert_int_equal(finished.launches - passed.launches, 1);
    assert_int_equal(updated.launches - finished.launches, TOY_UNITS);
}

static void test_counts_of_a_step(void **state) {
    for (int i = 0; i < 16; i++) {
        zero_config c = config_on(ZERO_CUDA, i % 4);
        c.overlap = i / 4 % 2;
        c.micro_batches = i / 8 ? 3 : 1;
        c.prefetch = c.overlap ? 2 : c.prefetch;
        check_step(&c);
    }
}

// Backward adds to gradients at several places in a unit. One launch must clear them all.
static void test_launches_of_clearing(void **state) {
    for (int stage = 0; stage < 3; stage++) {
        zero_config c = config_on(ZERO_CUDA, stage);
        end(NULL);
        WORKS(toy_create_on_device(&t, &c));
        WORKS(zero_begin_train(t.z, 0, 1));
        for (int u = TOY_UNITS - 1; u >= 0; u--) {
            long before = counts().launches;
            WORKS(zero_pre_backward(t.z, u));
            assert_int_equal(counts().launches - before, u > 0);  // the embedding needs only a memset
            WORKS(zero_post_backward(t.z, u));
        }
    }
}

static void test_no_usable_device(void **state) {
    zero_config c = config_on(ZERO_CUDA, 0);
    cuda_stand_in_set("CUDA_STAND_IN_DEVICES", "0");
    refused(&c, ZERO_ERR_DEVICE, "there is no CUDA device");
    assert_int_equal(zero_cuda_devices(), 0);
    cuda_stand_in_set("CUDA_STAND_IN_DEVICES", "2");
    cuda_stand_in_set("CUDA_STAND_IN_FIRST", "75");
    refused(&c, ZERO_ERR_DEVICE, "device 0 (CUDA stand-in) has compute capability 7.5, but 8.0 or newer");
    assert_int_equal(zero_cuda_devices(), ZERO_ERR_DEVICE);
    cuda_stand_in_set("CUDA_STAND_IN_FIRST", NULL);
    cuda_stand_in_set("CUDA_STAND_IN_DEVICES", NULL);
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", "cudaGetDeviceCount:1");
    refused(&c, ZERO_ERR_DEVICE, "NVIDIA driver");
    cuda_stand_in_set("CUDA_STAND_IN_FAIL", NULL);
    WORKS(toy_create_on_device(&t, &c));
}

static int whole_run(const zero_config *c, const char *path) {
    char hex[17];
    float x;
    TOY_TRY(toy_create_on_device(&t, c));
    for (int step = 1; step <= 2; step++) TOY_TRY(toy_step(&t, c->micro_batches, step, NULL));
    TOY_TRY(toy_eval(&t));
    TOY_TRY(zero_hash(t.z, 1, hex));
    TOY_TRY(zero_get(t.z, ZERO_MOMENT1, 0, 0, 0, 1, &x));
    TOY_TRY(zero_save(t.z, path, NULL));
    return zero_load(t.z, path, NULL);
}

// Makes the k-th call of this kind fail, until a run succeeds. It must return an error and free everything.
static void fail_each_call(const char *call, const zero_config *c, const char *path) {
    size_t left = device_memory_left();
    for (int k = 1, rc = 1; rc; k += 1 + k / 6) {
        char fail[64];
        snprintf(fail, sizeof fail, "%s:%d", call, k);
        cuda_stand_in_set("CUDA_STAND_IN_FAIL", fail);
        rc = whole_run(c, path);
        cuda_stand_in_set("CUDA_STAND_IN_FAIL", NULL);
        if (rc < 0) {  // the toy's own errors are positive
            const char *why = zero_last_error();
            if (rc != ZERO_ERR_DEVICE && rc != ZERO_ERR_MEMORY) fail_msg("%s: %d (%s)", fail, rc, why);
            if (!strstr(why, "CUDA: ") && !strstr(why, " memory for ") && !strstr(why, "driver"))
                fail_msg("%s: \"%s\"", fail, why);
            if (cudaGetLastError() != cudaSuccess) fail_msg("%s: the error is still pending", fail);
        }
        end(NULL);
        if (device_memory_left() != left) fail_msg("%s: leaks device memory", fail);
    }
}

static void test_failing_calls(void **state) {
    static const char *const calls[] = {
        "cudaGetDeviceCount",
        "cudaGetDeviceProperties",
        "cudaSetDevice",
        "cudaDeviceGetStreamPriorityRange",
        "cudaStreamCreateWithPriority",
        "cudaMalloc",
        "cudaMemsetAsync",
        "cudaStreamSynchronize",
        "cudaHostRegister",
        "cudaMemcpyAsync",
        "cudaEventCreateWithFlags",
        "cudaEventRecord",
        "cudaEventSynchronize",
        "cudaStreamWaitEvent",
        "launch",
    };
    enum { STAGE_1, STAGE_3, IN_FILES, WAYS };
    char path[] = "build/llmc_zero_device.XXXXXX";  // /tmp may be in memory
    assert_non_null(mkdtemp(path));
    for (int i = 0; i < WAYS * (int)ROWS(calls); i++) {
        const int way = i % WAYS;
        zero_config c = config_on(ZERO_CUDA, way == STAGE_1 ? 1 : 3);
        c.micro_batches = c.stage;
        c.numbers.dtype = ZERO_BF16;
        c.debug.check_steps = way != IN_FILES;
        if (way == IN_FILES) {
            c.prefetch = 3;
            c.offload.params = c.offload.optimizer = c.offload.gradients = ZERO_NVME;
            c.offload.optimizer_ratio = 0.6;
            c.offload.sub_group_size = 2048;
            c.offload.nvme = path;
        }
        fail_each_call(calls[i / WAYS], &c, path);
    }
    WORKS(zero_checkpoint_remove(path));
}
#endif

// An argument is the name of the only test to run.
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#ifdef CUDA_STAND_IN
    setenv("CUDA_STAND_IN_MEMORY", "67108864", 1);  // small enough to fill
#endif
    if (zero_cuda_devices() <= 0) {
        printf("skip test_device: %s\n", zero_last_error());
        const struct CMUnitTest without[] = { TEST(test_cpu) };
        return cmocka_run_group_tests(without, NULL, NULL) != 0;
    }
    const struct CMUnitTest kernels[] = {
        TEST(test_sum_ranks),  TEST(test_add_squares),    TEST(test_add_squares_of_parts),
        TEST(test_adamw),      TEST(test_adamw_segments), TEST(test_clear_stretches),
        TEST(test_many_ranks),
    };
    const struct CMUnitTest device[] = {
        TEST(test_cpu),
        TEST(test_device_number),
        TEST_LAZY(test_memory),
        TEST(test_out_of_memory),
        TEST_LAZY(test_checks),
#ifdef CUDA_STAND_IN
        TEST(test_counts_of_a_step),
        TEST(test_launches_of_clearing),
        TEST(test_no_usable_device),
        TEST(test_failing_calls),
#endif
    };
    return cmocka_run_group_tests(kernels, NULL, NULL) + cmocka_run_group_tests(device, NULL, NULL) != 0;
}
#endif
