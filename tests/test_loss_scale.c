// Tests the loss scale of fp16: its rule, against DeepSpeed's description, and its use in a step.
#include <math.h>
#include "unit.h"
#include "../llmc_zero/internal.h"
#include "../llmc_zero/device/numbers.h"

// -------- the rule

// Overflows use up the hysteresis, then each halves the scale. The scale doubles when the number of steps
// since the last overflow is a multiple of the window.
typedef struct {
    double scale;
    long it, last;
    int hysteresis;
} reference;

static int reference_step(reference *r, const zero_config *c, int overflow) {
    if (overflow) {
        if (c->numbers.hysteresis == 1 || r->hysteresis == 1) {
            if (r->scale == c->numbers.min_loss_scale) return -1;
            r->scale = fmax(r->scale / 2, c->numbers.min_loss_scale);
        } else
            r->hysteresis--;
        r->last = r->it;
    } else {
        long s = r->it - r->last - 1;
        if (c->numbers.consecutive_hysteresis) r->hysteresis = c->numbers.hysteresis;
        if (s > 0 && s % c->numbers.loss_scale_window == 0) {
            r->scale *= 2;
            if (!c->numbers.consecutive_hysteresis) r->hysteresis = c->numbers.hysteresis;
        }
    }
    r->it++;
    return 0;
}

static zero_config fp16_config(void) {
    zero_config c = zero_defaults();
    c.numbers.dtype = ZERO_F16;
    c.overlap = 0;
    c.debug.poison = 0;
    return c;
}

static void compare(const zero_config *c, unsigned seed, int one_in) {
    reference r = { ldexp(1, c->numbers.initial_scale_power), 0, -1, c->numbers.hysteresis };
    loss_scale s;
    loss_scale_init(&s, c);
    for (int i = 0; i < 3000; i++) {
        seed = seed * 1664525u + 1013904223u;
        int overflow = (seed >> 16) % one_in == 0, want = reference_step(&r, c, overflow),
            got = loss_scale_step(&s, c, overflow);
        if (s.value != r.scale || (got != 0) != (want != 0))
            fail_msg("window %d, hysteresis %d, consecutive %d, step %d: scale %g, not %g; returned %d",
                     c->numbers.loss_scale_window, c->numbers.hysteresis, c->numbers.consecutive_hysteresis,
                     i, s.value, r.scale, got);
        if (want) return;
    }
}

static void test_rule(void **state) {
    static const double least[] = { 1, 3, 0x1p-126 };
    zero_config c = fp16_config();
    for (int i = 0; i < 6 * 4 * 2 * 3; i++)
        for (int one_in = 2; one_in <= 50; one_in *= 5) {
            c.numbers.loss_scale_window = 1 + 4 * (i % 6);
            c.numbers.hysteresis = 1 + i / 6 % 4;
            c.numbers.consecutive_hysteresis = i / 24 % 2;
            c.numbers.min_loss_scale = least[i / 48];
            c.numbers.initial_scale_power = 4 + 30 * (i / 48 == 2);
            compare(&c, 7 * one_in + c.numbers.hysteresis, one_in);
        }
}

// -------- in a step

enum { N = 1000 };
static const zero_tensor tensors[] = { { "w", 1, { N }, 1, 0, 1, 0 } };
static const zero_unit units[] = { { "layer", 1, 1, 0 } };
static const zero_hyper plain = {
    .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .t = 1
};
static zero *z;

static void make(const zero_config *c) {
    float initial[N];
    for (int i = 0; i < N; i++) initial[i] = (float)(i % 31) / 31 - 0.5f;
    zero_destroy(z);
    z = NULL;
    WORKS(zero_create(&z, c, tensors, 1, units, 1));
    WORKS(zero_set(z, ZERO_PARAM, 0, 0, 0, N, initial));
}
static int end(void **state) {
    zero_destroy(z);
    z = NULL;
    return 0;
}

// Exact in fp16 at every scale used here.
static float true_gradient(int step, int i) { return (float)((i * 7 + step * 3) % 17 - 8) / 64; }

// Runs a micro-batch. Like a trainer, it multiplies the gradients by the scale. ALL_NAN: in any dtype.
typedef enum { FINITE, ONE_INFINITE, ONE_NAN, ALL_NAN } contents;
static void passes(int step, contents what) {
    WORKS(zero_begin_train(z, 0, 1));
    WORKS(zero_pre_forward(z, 0));
    WORKS(zero_post_forward(z, 0));
    WORKS(zero_pre_backward(z, 0));
    uint16_t *g = zero_grad(z, 0, 0);
    assert_non_null(g);
    for (int i = 0; i < N && what != ALL_NAN; i++)
        g[i] = fp16_round(true_gradient(step, i) * (float)zero_loss_scale(z));
    if (what == ONE_INFINITE) g[N / 2] = 0x7c00;
    if (what == ONE_NAN) g[N / 2] = 0x7e00;
    if (what == ALL_NAN) memset(g, 0xff, N * dtype_bytes(z->config.numbers.dtype));
    WORKS(zero_post_backward(z, 0));
}

static double true_norm(int step) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += (double)true_gradient(step, i) * true_gradient(step, i);
    return sqrt(sum);
}

// The three ways to end a step. With UPDATE, unlike STEP, the trainer sees the overflow before the update.
typedef enum { STEP, UPDATE, DISCARD, WAYS } way;
static int end_step(way w, int t, zero_step_result *result) {
    zero_hyper h = plain;
    h.t = t;
    if (w == STEP) return zero_step(z, &h, result);
    WORKS(zero_finish_gradients(z, result));
    return w == UPDATE ? zero_update(z, &h) : zero_discard(z);
}

static void test_overflow_changes_only_the_scale(void **state) {
    zero_config c = fp16_config();
    c.numbers.hysteresis = 2;
    c.numbers.initial_scale_power = 10;
    for (c.stage = 0; c.stage < 4; c.stage++)
        for (way w = STEP; w < WAYS; w++)
            for (contents kind = ONE_INFINITE; kind <= ONE_NAN; kind++) {
                char before[17], after[17];
                zero_step_result result;
                make(&c);
                assert_true(zero_loss_scale(z) == 1024);
                passes(1, FINITE);
                WORKS(end_step(STEP, 1, &result));
                assert_true(result.finite && result.loss_scale == 1024 &&
                            fabs(result.grad_norm - true_norm(1)) < 1e-12 * result.grad_norm);
                WORKS(zero_hash(z, 1, before));
                for (int i = 0; i < 2; i++) {
                    passes(2, kind);
                    WORKS(end_step(w, 2, &result));
                    assert_true(!result.finite && !isfinite(result.grad_norm) && result.loss_scale == 1024);
                    assert_true(zero_loss_scale(z) == (i ? 512 : 1024));
                }
                WORKS(zero_hash(z, 1, after));
                assert_string_equal(before, after);
                passes(2, FINITE);  // the same step again, at the new scale
                WORKS(end_step(STEP, 2, &result));
                assert_true(result.finite && result.loss_scale == 512 &&
                            fabs(result.grad_norm - true_norm(2)) < 1e-12 * result.grad_norm);
                WORKS(zero_hash(z, 1, after));
                assert_string_not_equal(before, after);
            }
}

static void test_smallest_scale_is_an_error(void **state) {
    zero_config c = fp16_config();
    c.numbers.hysteresis = 1;
    c.numbers.initial_scale_power = 3;
    c.numbers.min_loss_scale = 8;
    for (way w = STEP; w < WAYS; w++) {
        zero_step_result result;
        make(&c);
        passes(1, ONE_INFINITE);
        assert_int_equal(end_step(w, 1, &result), ZERO_ERR_ARGUMENT);
        assert_non_null(strstr(zero_last_error(), "min_loss_scale 8"));
        passes(1, FINITE);  // the failed step is over, and training may continue
        WORKS(end_step(STEP, 1, &result));
    }
}

// A discarded step counts toward the window if it did not overflow.
static void test_window_through_steps(void **state) {
    zero_config c = fp16_config();
    c.numbers.initial_scale_power = 4;
    c.numbers.loss_scale_window = 2;
    make(&c);
    for (int step = 1; step <= 7; step++) {
        assert_true(zero_loss_scale(z) == (step <= 3 ? 16 : step <= 5 ? 32 : 64));
        passes(step, FINITE);
        WORKS(end_step(step & 1 ? DISCARD : UPDATE, step, NULL));
    }
}

static void train(const zero_config *c, float clip, int steps, char hex[17]) {
    make(c);
    for (int step = 1; step <= steps; step++) {
        zero_hyper h = plain;
        zero_step_result result;
        h.t = step;
        h.grad_clip = clip;
        passes(step, FINITE);
        WORKS(zero_step(z, &h, &result));
        assert_true(fabs(result.grad_norm - true_norm(step)) < 1e-12 * result.grad_norm);
    }
    WORKS(zero_hash(z, 1, hex));
}

// The scale is a power of two and the gradients are exact in fp16, so no bit depends on the scale or its
// changes. No norm exceeds 100, so clipping to that changes no bit either; all norms exceed 0.25.
static void test_scale_leaves_no_trace(void **state) {
    static const double scales[] = { 1, 2, 256, 8192 };
    static const float clips[] = { 0, 100, 0.25f };
    char want[17] = "", got[17];
    for (int row = 0; row < 2 * 3; row++) {
        zero_config c = fp16_config();
        const float clip = clips[row % 3];
        c.micro_batches = 1 + row / 3;
        for (int i = 0; i < 4; i++) {
            c.numbers.loss_scale = scales[i];
            train(&c, clip, 6, got);
            assert_true(zero_loss_scale(z) == scales[i]);
            if (!i && clip != 100) strcpy(want, got);
            assert_string_equal(got, want);
        }
        c.numbers.loss_scale = 0;
        c.numbers.initial_scale_power = 5;
        c.numbers.loss_scale_window = 1;
        train(&c, clip, 6, got);
        assert_true(zero_loss_scale(z) == 1024);
        assert_string_equal(got, want);
    }
}

static void test_fixed_scale(void **state) {
    zero_config c = fp16_config();
    char before[17], after[17];
    c.numbers.loss_scale = 100;  // need not be a power of two
    c.numbers.hysteresis = c.numbers.loss_scale_window = 1;
    make(&c);
    WORKS(zero_hash(z, 1, before));
    REFUSED(zero_promise_update(z, &plain), ZERO_ERR_ARGUMENT, "zero_promise_update: with fp16");
    for (int i = 0; i < 3; i++) {
        passes(1, ONE_INFINITE);
        WORKS(end_step(STEP, 1, NULL));
        assert_true(zero_loss_scale(z) == 100);
    }
    WORKS(zero_hash(z, 1, after));
    assert_string_equal(before, after);  // all steps were skipped
}

static void test_only_fp16_has_a_scale(void **state) {
    for (zero_dtype t = ZERO_F32; t <= ZERO_BF16; t++) {
        zero_config c = fp16_config();
        zero_step_result result;
        c.numbers.dtype = t;
        c.numbers.loss_scale = 64;
        make(&c);
        assert_true(zero_loss_scale(z) == 1);
        passes(1, ALL_NAN);
        WORKS(zero_step(z, &plain, &result));
        assert_true(!result.finite && result.loss_scale == 1 && zero_loss_scale(z) == 1);
        float m;
        WORKS(zero_get(z, ZERO_MOMENT1, 0, 0, 0, 1, &m));
        assert_true(isnan(m));  // without a scale, zero_step updates even if gradients are NaN
    }
}

// Runs more steps, some of which overflow, and returns the scale after each.
enum { LATER = 10 };
static void later_scales(double scales[LATER]) {
    static const contents overflows[LATER] = { [0] = ONE_INFINITE, [5] = ONE_INFINITE, [6] = ONE_INFINITE };
    for (int i = 0; i < LATER; i++) {
        passes(5 + i, overflows[i]);
        WORKS(end_step(STEP, 5 + i, NULL));
        scales[i] = zero_loss_scale(z);
    }
}

// A checkpoint contains the complete state of the scale: after a load, the same steps give the same scales.
static void test_saved_and_restored(void **state) {
    char path[] = "/tmp/llmc_zero_scale.XXXXXX";
    double want[LATER], got[LATER];
    zero_config c = fp16_config();
    assert_non_null(mkdtemp(path));
    c.numbers.initial_scale_power = 10;
    c.numbers.loss_scale_window = 2;
    make(&c);
    for (int step = 1; step <= 4; step++) {
        passes(step, step == 2 ? ONE_INFINITE : FINITE);
        WORKS(end_step(STEP, step, NULL));
    }
    WORKS(zero_save(z, path, NULL));
    later_scales(want);
    make(&c);
    WORKS(zero_load(z, path, NULL));
    later_scales(got);
    assert_memory_equal(got, want, sizeof want);
    c.numbers.loss_scale = 32;  // a fixed scale keeps its configured value
    make(&c);
    WORKS(zero_load(z, path, NULL));
    assert_true(zero_loss_scale(z) == 32);
    WORKS(zero_checkpoint_remove(path));
}

#define TEST(f) cmocka_unit_test_teardown(f, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_rule),
        TEST(test_overflow_changes_only_the_scale),
        TEST(test_smallest_scale_is_an_error),
        TEST(test_window_through_steps),
        TEST(test_scale_leaves_no_trace),
        TEST(test_fixed_scale),
        TEST(test_only_fp16_has_a_scale),
        TEST(test_saved_and_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
