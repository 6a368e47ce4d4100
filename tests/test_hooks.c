// Tests the rules for the hooks, in one process: each misuse fails with a message that names the function,
// tensor or unit, and leaves the plugin usable. Also tests settings, poison, and the recorded order of units.
#include <limits.h>
#include "unit.h"
#include "../llmc_zero/internal.h"
#include "../llmc_zero/settings/settings.h"
#include "toy.h"

enum { WTE, LNW, W, B, PROJ, LNFW };  // indices in toy_tensors

static toy t;

static int end(void **state) {
    zero_destroy(t.z);
    t.z = NULL;
    return 0;
}

static zero_config config_of(int stage) {
    zero_config c = zero_defaults();
    c.stage = stage;
    c.micro_batches = 2;
    c.debug.poison = 0;
    return c;
}

static void make(const zero_config *c) {
    end(NULL);
    if (toy_create(&t, c, NULL)) fail_msg("%s", zero_last_error());
}

#define MISUSE(call, part) REFUSED(call, ZERO_ERR_MISUSE, part)
#define NO_POINTER(call, part) MISUSE((call) ? 0 : zero_last_failure()->code, part)

static void open_and_close(int unit) {
    WORKS(zero_pre_forward(t.z, unit));
    WORKS(zero_post_forward(t.z, unit));
}
// Begins a micro-batch and uses the units as forward does.
static void forward_all(int micro, int of) {
    WORKS(zero_begin_train(t.z, micro, of));
    for (int u = 0; u < TOY_UNITS; u++) open_and_close(u);
    open_and_close(0);
}

static void backward(int unit) {
    WORKS(zero_pre_backward(t.z, unit));
    WORKS(zero_post_backward(t.z, unit));
}

// -------- the hooks

static int (*const hooks[])(zero *z, int unit) = { zero_pre_forward, zero_post_forward, zero_pre_backward,
                                                   zero_post_backward };

static void before_begin(void) {
    NO_POINTER(zero_param(t.z, W, 1), "zero_param(w, layer 1): unit 2 (block 1)");
    NO_POINTER(zero_grad(t.z, WTE, 0), "zero_grad(wte, layer 0): unit 0 (emb)");
    for (int h = 0; h < 4; h++) MISUSE(hooks[h](t.z, 1), "unit 1 (block 0): zero_begin");
    MISUSE(zero_finish_gradients(t.z, NULL), "zero_finish_gradients");
}

static void param_outside(void) {
    WORKS(zero_begin_train(t.z, 0, 2));
    NO_POINTER(zero_param(t.z, W, 0), "zero_param(w, layer 0): unit 1 (block 0)");
    WORKS(zero_pre_forward(t.z, 1));
    assert_non_null(zero_param(t.z, W, 0));
    assert_int_equal((uintptr_t)zero_param(t.z, B, 0) % 256, 0);
    NO_POINTER(zero_param(t.z, W, 1), "zero_param(w, layer 1): unit 2 (block 1)");
    NO_POINTER(zero_grad(t.z, W, 0), "zero_grad(w, layer 0): unit 1 (block 0) is not open for backward");
    WORKS(zero_post_forward(t.z, 1));
    NO_POINTER(zero_param(t.z, W, 0), "zero_param(w, layer 0): unit 1 (block 0)");
    NO_POINTER(zero_param(t.z, -1, 0), "tensor -1");
    NO_POINTER(zero_param(t.z, TOY_TENSORS, 0), "tensor 6");
    NO_POINTER(zero_param(t.z, PROJ, TOY_BLOCKS), "proj has no layer 4");
    NO_POINTER(zero_grad(t.z, LNFW, 1), "lnfw has no layer 1");
    NO_POINTER(zero_grad(t.z, LNFW, -1), "lnfw has no layer -1");
}

static void grad_outside(void) {
    forward_all(0, 2);
    NO_POINTER(zero_grad(t.z, LNFW, 0), "zero_grad(lnfw, layer 0): unit 0 (emb)");
    WORKS(zero_pre_backward(t.z, 0));
    assert_int_equal((uintptr_t)zero_grad(t.z, LNFW, 0) % 256, 0);
    assert_non_null(zero_param(t.z, LNFW, 0));
    WORKS(zero_post_backward(t.z, 0));
    NO_POINTER(zero_grad(t.z, WTE, 0), "zero_grad(wte, layer 0): unit 0 (emb)");
    for (int u = TOY_UNITS - 1; u >= 1; u--) backward(u);
    WORKS(zero_pre_backward(t.z, 0));
    assert_non_null(zero_grad(t.z, WTE, 0));
    NO_POINTER(zero_param(t.z, WTE, 0), "zero_param(wte, layer 0): unit 0 (emb) is not open for reading");
    WORKS(zero_post_backward(t.z, 0));
}

static void evaluation(void) {
    WORKS(zero_begin_eval(t.z));
    for (int i = 0; i < 3; i++) open_and_close(1);  // an evaluation may use a unit any number of times
    MISUSE(zero_pre_backward(t.z, 1), "unit 1 (block 0): this pass is not a training pass");
    WORKS(zero_pre_forward(t.z, 1));
    assert_non_null(zero_param(t.z, W, 0));
    NO_POINTER(zero_grad(t.z, W, 0), "zero_grad(w, layer 0): unit 1 (block 0)");
    MISUSE(zero_post_backward(t.z, 1), "unit 1 (block 0) is not open for backward");
    WORKS(zero_post_forward(t.z, 1));
    MISUSE(zero_finish_gradients(t.z, NULL), "zero_finish_gradients");
    WORKS(zero_begin_train(t.z, 0, 2));
    MISUSE(zero_begin_eval(t.z), "zero_begin_eval: inside a training step");
}

// A plugin created for inference can evaluate. It refuses all calls for training.
static void test_inference(void **state) {
    const zero_hyper hyper = { .lr = 1e-3f, .t = 1 };
    for (int stage = 0; stage <= 3; stage++) {
        zero_config c = config_of(stage);
        c.inference = 1;
        make(&c);
        WORKS(toy_eval(&t));
        float value = 0, activation = t.activation;
        char hex[17];
        MISUSE(zero_begin_train(t.z, 0, 1), "zero_begin_train: with inference 1");
        MISUSE(zero_finish_gradients(t.z, NULL), "zero_finish_gradients: with inference 1");
        MISUSE(zero_update(t.z, &hyper), "zero_update: with inference 1");
        MISUSE(zero_discard(t.z), "zero_discard: with inference 1");
        MISUSE(zero_promise_update(t.z, &hyper), "zero_promise_update: with inference 1");
        MISUSE(zero_finish_update(t.z), "zero_finish_update: with inference 1");
        MISUSE(zero_save(t.z, "/nowhere", NULL), "zero_save: with inference 1");
        MISUSE(zero_load(t.z, "/nowhere", NULL), "zero_load: with inference 1");
        MISUSE(zero_hash(t.z, 1, hex), "with inference 1");
        MISUSE(zero_set(t.z, ZERO_MOMENT1, W, 0, 0, 1, &value), "zero_set(w): with inference 1");
        MISUSE(zero_get(t.z, ZERO_MOMENT2, W, 0, 0, 1, &value), "zero_get(w): with inference 1");
        MISUSE(zero_get(t.z, ZERO_GRADIENT, W, 0, 0, 1, &value), "zero_get(w)");
        WORKS(zero_begin_eval(t.z));
        MISUSE(zero_pre_backward(t.z, 0), "this pass is not a training pass");
        WORKS(zero_hash(t.z, 0, hex));
        REFUSED(zero_trace_write(t.z, "/dev/null"), ZERO_ERR_IO, "/dev/null: exists");
        WORKS(zero_get(t.z, ZERO_MASTER, W, 1, 5, 1, &value));
        assert_true(value == toy_initial(W, 1, 5));
        WORKS(toy_eval(&t));
        assert_true(t.activation == activation);
        value = 7;  // the next pass must use it, although inference keeps gathered units
        WORKS(zero_set(t.z, ZERO_PARAM, LNFW, 0, toy_elems(LNFW) - 1, 1, &value));
        WORKS(toy_eval(&t));
        assert_true(t.activation != activation);
    }
}

static void order_of_hooks(void) {
    WORKS(zero_begin_train(t.z, 0, 2));
    for (int h = 0; h < 4; h++) {
        MISUSE(hooks[h](t.z, -1), "unit -1:");
        MISUSE(hooks[h](t.z, TOY_UNITS), "unit 5:");
    }
    MISUSE(zero_post_forward(t.z, 2), "post_forward: unit 2 (block 1)");
    WORKS(zero_pre_forward(t.z, 2));
    MISUSE(zero_pre_forward(t.z, 2), "pre_forward: unit 2 (block 1) is open already");
    MISUSE(zero_post_backward(t.z, 2), "post_backward: unit 2 (block 1)");
    WORKS(zero_post_forward(t.z, 2));
    MISUSE(zero_pre_forward(t.z, 2), "unit 2 (block 1) has had all its 1 forward uses");
    MISUSE(zero_post_forward(t.z, 2), "post_forward: unit 2 (block 1)");
    open_and_close(0);
    open_and_close(0);
    MISUSE(zero_pre_forward(t.z, 0), "unit 0 (emb) has had all its 2 forward uses");
    WORKS(zero_pre_backward(t.z, 4));
    MISUSE(zero_pre_backward(t.z, 4), "pre_backward: unit 4 (block 3) is open already");
    WORKS(zero_post_backward(t.z, 4));
    MISUSE(zero_pre_backward(t.z, 4), "unit 4 (block 3) has had all its 1 backward uses");
    MISUSE(zero_post_backward(t.z, 4), "post_backward: unit 4 (block 3)");
}

static void begin_rules(void) {
    MISUSE(zero_begin_train(t.z, 1, 2), "micro-batch 1 of 2");
    MISUSE(zero_begin_train(t.z, 0, 3), "micro-batch 0 of 3");
    MISUSE(zero_begin_train(t.z, 2, 2), "micro-batch 2 of 2");
    MISUSE(zero_begin_train(t.z, -1, 2), "micro-batch -1 of 2");
    MISUSE(zero_begin_train(t.z, 0, 0), "micro-batch 0 of 0");
    WORKS(zero_begin_train(t.z, 0, 2));
    WORKS(zero_pre_forward(t.z, 3));
    MISUSE(zero_begin_train(t.z, 1, 2), "unit 3 (block 2) is still open");
    WORKS(zero_post_forward(t.z, 3));
    MISUSE(zero_begin_train(t.z, 1, 2), "unit 0 (emb) has finished 0 of its 2 forward uses");
    WORKS(toy_pass(&t, 0, 2));  // restarts the step
    MISUSE(zero_begin_train(t.z, 1, 1), "micro-batch 1 of 1");
    MISUSE(zero_finish_gradients(t.z, NULL), "after micro-batch 1 of 2");
    WORKS(zero_begin_train(t.z, 1, 2));
    MISUSE(zero_begin_train(t.z, 1, 2), "micro-batch 1 of 2 does not follow");
}

static void step_rules(void) {
    static const struct {
        float beta1, beta2;
        const char *error;
    } bad_betas[] = {
        { -0.5f, 0, "beta1 -0.5" }, { 1, 0, "beta1 1" }, { 0, -0.5f, "beta2 -0.5" }, { 0, 1, "beta2 1" }
    };
    zero_hyper good = toy_hyper(1), bad_t = good, bad_beta = good;
    bad_t.t = 0;
    MISUSE(zero_update(t.z, &good), "zero_finish_gradients comes first");
    MISUSE(zero_discard(t.z), "zero_finish_gradients comes first");
    forward_all(0, 1);
    backward(0);
    for (int u = TOY_UNITS - 1; u >= 2; u--) backward(u);
    MISUSE(zero_finish_gradients(t.z, NULL), "unit 0 (emb) has finished 1 of its 2 backward uses");
    backward(1);
    WORKS(zero_pre_backward(t.z, 0));
    MISUSE(zero_finish_gradients(t.z, NULL), "unit 0 (emb) is still open");
    WORKS(zero_post_backward(t.z, 0));
    MISUSE(zero_update(t.z, &good), "zero_finish_gradients comes first");
    WORKS(zero_finish_gradients(t.z, NULL));
    REFUSED(zero_update(t.z, &bad_t), ZERO_ERR_ARGUMENT, "t is 0");
    for (size_t i = 0; i < sizeof bad_betas / sizeof bad_betas[0]; i++) {
        bad_beta.beta1 = bad_betas[i].beta1;
        bad_beta.beta2 = bad_betas[i].beta2;
        REFUSED(zero_update(t.z, &bad_beta), ZERO_ERR_ARGUMENT, bad_betas[i].error);
    }
    WORKS(zero_update(t.z, &good));
    MISUSE(zero_update(t.z, &good), "zero_finish_gradients comes first");
    MISUSE(zero_finish_gradients(t.z, NULL), "no training pass");
}

// Micro-batch 0 must not discard the gradients of a step that is complete. It may restart any other step.
static void finished_step(void) {
    const char *lost = "zero_begin_train: micro-batch 0 would discard the gradients of a complete step";
    WORKS(toy_passes(&t, 1));
    MISUSE(zero_begin_train(t.z, 0, 1), lost);
    MISUSE(zero_begin_train(t.z, 0, 2), lost);
    WORKS(zero_finish_gradients(t.z, NULL));
    MISUSE(zero_begin_train(t.z, 0, 1), lost);
    WORKS(zero_discard(t.z));
    WORKS(toy_pass(&t, 0, 2));
    WORKS(toy_forward_pass(&t, 0, 1));
    WORKS(toy_backward(&t, 0, 0));
}

// -------- values, outside of steps

static void values_range(void) {
    float x[200] = { 0 };
    REFUSED(zero_set(t.z, ZERO_PARAM, LNW, 0, 120, 10, x), ZERO_ERR_ARGUMENT, "zero_set(lnw)");
    REFUSED(zero_set(t.z, ZERO_PARAM, LNW, 0, -1, 10, x), ZERO_ERR_ARGUMENT, "zero_set(lnw)");
    REFUSED(zero_set(t.z, ZERO_PARAM, LNW, 0, 0, -1, x), ZERO_ERR_ARGUMENT, "zero_set(lnw)");
    REFUSED(zero_get(t.z, (zero_value)5, B, 3, 0, 1, x), ZERO_ERR_ARGUMENT, "zero_get: what is 5");
    REFUSED(zero_set(t.z, (zero_value)-1, B, 3, 0, 1, x), ZERO_ERR_ARGUMENT, "zero_set: what is -1");
    REFUSED(zero_get(t.z, ZERO_MASTER, B, 3, 0, 34, x), ZERO_ERR_ARGUMENT, "zero_get(b)");
    REFUSED(zero_get(t.z, ZERO_MASTER, B, 3, INT64_MAX, 1, x), ZERO_ERR_ARGUMENT, "zero_get(b)");
    REFUSED(zero_get(t.z, ZERO_MASTER, B, 3, 1, INT64_MAX, x), ZERO_ERR_ARGUMENT, "zero_get(b)");
    MISUSE(zero_set(t.z, ZERO_PARAM, TOY_TENSORS, 0, 0, 1, x), "tensor 6");
    MISUSE(zero_get(t.z, ZERO_PARAM, B, TOY_BLOCKS, 0, 1, x), "tensor b has no layer 4");
    WORKS(zero_get(t.z, ZERO_PARAM, B, 3, 32, 1, x));
    WORKS(zero_get(t.z, ZERO_PARAM, B, 3, 33, 0, x));
}

// Functions that read or set values require that all units are closed, also during an evaluation.
static void inside_step(void) {
    float x;
    char hex[17];
    WORKS(zero_begin_eval(t.z));
    WORKS(zero_pre_forward(t.z, 2));
    MISUSE(zero_hash(t.z, 0, hex), "zero_hash: unit 2 (block 1)");
    MISUSE(zero_save(t.z, "never_written", NULL), "zero_save: unit 2 (block 1)");
    MISUSE(zero_set(t.z, ZERO_PARAM, W, 1, 0, 1, &x), "unit 2 (block 1)");
    MISUSE(zero_load(t.z, "/nonexistent", NULL), "unit 2 (block 1)");
    WORKS(zero_post_forward(t.z, 2));
    WORKS(zero_hash(t.z, 0, hex));
    WORKS(zero_begin_train(t.z, 0, 1));
    for (int i = 0; i < 2; i++) {
        MISUSE(zero_set(t.z, ZERO_PARAM, WTE, 0, 0, 1, &x), "zero_set(wte)");
        MISUSE(zero_get(t.z, ZERO_PARAM, WTE, 0, 0, 1, &x), "zero_get(wte)");
        MISUSE(zero_hash(t.z, 0, hex), "zero_hash");
        MISUSE(zero_save(t.z, "/nonexistent", NULL), "zero_save");
        MISUSE(zero_load(t.z, "/nonexistent", NULL), "zero_load");
        MISUSE(zero_begin_eval(t.z), "zero_begin");
        MISUSE(zero_finish_update(t.z), "zero_finish_update: inside a training step");
        if (i == 0) WORKS(toy_passes(&t, 1));
        if (i == 0) WORKS(zero_finish_gradients(t.z, NULL));
    }
    WORKS(zero_discard(t.z));
    REFUSED(zero_save(t.z, "/nonexistent/folder/file", NULL), ZERO_ERR_IO, "/nonexistent/folder/file");
    REFUSED(zero_load(t.z, "/nonexistent", NULL), ZERO_ERR_IO, "/nonexistent");
}

// A promised update must happen at the end of its step. The promise does not apply to the next step.
static void promised_update(void) {
    zero_hyper h = toy_hyper(1);
    h.grad_clip = 1;
    REFUSED(zero_promise_update(t.z, &h), ZERO_ERR_ARGUMENT, "grad_clip 1 needs the norm");
    h.grad_clip = 0;
    h.t = 0;
    REFUSED(zero_promise_update(t.z, &h), ZERO_ERR_ARGUMENT, "zero_promise_update: t is 0");
    h.t = 1;
    WORKS(zero_promise_update(t.z, &h));
    WORKS(toy_eval(&t));
    WORKS(toy_passes(&t, 2));
    MISUSE(zero_begin_train(t.z, 0, 2), "zero_promise_update has promised");
    WORKS(zero_finish_gradients(t.z, NULL));
    MISUSE(zero_promise_update(t.z, &h), "zero_promise_update: inside a training step");
    MISUSE(zero_discard(t.z), "zero_discard: zero_promise_update has promised");
    h.lr = 2e-3f;
    REFUSED(zero_update(t.z, &h), ZERO_ERR_ARGUMENT, "zero_promise_update was given different values");
    h = toy_hyper(1);
    WORKS(zero_update(t.z, &h));
    WORKS(toy_passes(&t, 2));
    WORKS(zero_finish_gradients(t.z, NULL));
    WORKS(zero_discard(t.z));
}

static void discard_changes_nothing(void) {
    char before[2][17], after[2][17];
    for (int full = 0; full < 2; full++) WORKS(zero_hash(t.z, full, before[full]));
    WORKS(toy_passes(&t, 2));
    WORKS(zero_finish_gradients(t.z, NULL));
    WORKS(zero_discard(t.z));
    for (int full = 0; full < 2; full++) {
        WORKS(zero_hash(t.z, full, after[full]));
        assert_string_equal(before[full], after[full]);
    }
    WORKS(toy_step(&t, 2, 1, NULL));  // a step does change the parameters
    WORKS(zero_hash(t.z, 0, after[0]));
    assert_string_not_equal(before[0], after[0]);
}

// Without accumulate_layers the number must be that of the pass.
static void numbers_of_passes(void) {
    forward_all(0, 2);
    WORKS(zero_pre_backward(t.z, 4));
    MISUSE(zero_post_micro(t.z, 4, 1), "micro-batch 1, but zero_begin_train began 0: pass that number");
    WORKS(zero_post_micro(t.z, 4, 0));
    WORKS(zero_post_backward(t.z, 4));
    MISUSE(zero_post_micro(t.z, 4, 0), "zero_post_micro: unit 4 (block 3) is not open for backward");
}

// Tests each rule at every stage, with and without overlap. The plugin must be able to train afterwards.
static void (*const rules[])(void) = {
    before_begin,    param_outside,           grad_outside,      evaluation,   order_of_hooks,
    begin_rules,     finished_step,           step_rules,        values_range, inside_step,
    promised_update, discard_changes_nothing, numbers_of_passes,
};
static void test_rules(void **state) {
    for (size_t i = 0; i < ROWS(rules); i++)
        for (int stage = 0; stage <= 3; stage++)
            for (int overlap = 0; overlap < 2; overlap++) {
                const zero_hyper hyper = toy_hyper(1);
                zero_config c = config_of(stage);
                c.overlap = overlap;
                make(&c);
                rules[i]();
                WORKS(toy_passes(&t, 2));
                WORKS(zero_step(t.z, &hyper, NULL));
            }
}

// -------- accumulation by layers: all micro-batches of a step pass a unit while it is open

static void end_micros(int unit, int from, int to) {
    for (int m = from; m < to; m++) WORKS(zero_post_micro(t.z, unit, m));
}
static void backward_of_micros(int unit, int n) {
    WORKS(zero_pre_backward(t.z, unit));
    end_micros(unit, 0, n);
    WORKS(zero_post_backward(t.z, unit));
}

static void micros_of_a_step(void) {
    MISUSE(zero_post_micro(t.z, 1, 0), "unit 1 (block 0): zero_begin_train or");
    MISUSE(zero_begin_train(t.z, 0, 4), "micro-batch 0 of 4; the configuration allows 3");
    forward_all(0, 3);
    backward_of_micros(0, 3);
    for (int u = TOY_UNITS - 1; u >= 1; u--) backward_of_micros(u, 3);
    MISUSE(zero_begin_train(t.z, 1, 3), "accumulate_layers one call, for micro-batch 0, begins them all");
    MISUSE(zero_finish_gradients(t.z, NULL), "unit 0 (emb) has finished 1 of its 2 backward uses");
    backward_of_micros(0, 3);
    MISUSE(zero_begin_train(t.z, 1, 3), "accumulate_layers one call, for micro-batch 0, begins them all");
    MISUSE(zero_begin_train(t.z, 0, 3), "would discard the gradients of a complete step");
}

static void micros_of_a_use(void) {
    forward_all(0, 3);
    MISUSE(zero_post_micro(t.z, 4, 0), "zero_post_micro: unit 4 (block 3) is not open for backward: call it");
    WORKS(zero_pre_backward(t.z, 4));
    MISUSE(zero_post_micro(t.z, 4, 1),
           "unit 4 (block 3): micro-batch 1, but 0 is next: each use passes 0 to");
    MISUSE(zero_post_micro(t.z, 4, -1), "micro-batch -1, but 0 is next");
    MISUSE(zero_post_backward(t.z, 4), "unit 4 (block 3): zero_post_micro has ended 0 of 3 micro-batches");
    end_micros(4, 0, 1);
    MISUSE(zero_post_micro(t.z, 4, 0), "micro-batch 0, but 1 is next");
    end_micros(4, 1, 2);
    assert_non_null(zero_grad(t.z, W, 3));
    MISUSE(zero_post_backward(t.z, 4), "zero_post_micro has ended 2 of 3 micro-batches; call it after each");
    end_micros(4, 2, 3);
    MISUSE(zero_post_micro(t.z, 4, 3), "all 3 micro-batches of this use are complete; zero_post_backward");
    NO_POINTER(zero_grad(t.z, W, 3), "zero_grad(w, layer 3): zero_post_micro has ended all micro-batches");
    assert_non_null(zero_param(t.z, W, 3));
    WORKS(zero_post_backward(t.z, 4));
    MISUSE(zero_post_micro(t.z, 4, 0), "unit 4 (block 3) is not open for backward");
    MISUSE(zero_post_micro(t.z, TOY_UNITS, 0), "unit 5:");
}

// The gradients of both units would be in the same memory.
static void one_unit_in_backward(void) {
    const char *open = "unit 3 (block 2): unit 4 (block 3) is open for backward: with accumulate_layers";
    forward_all(0, 3);
    WORKS(zero_pre_backward(t.z, 4));
    MISUSE(zero_pre_backward(t.z, 3), open);
    end_micros(4, 0, 2);
    MISUSE(zero_pre_backward(t.z, 3), open);
    MISUSE(zero_begin_train(t.z, 0, 3), "unit 4 (block 3) is still open");
    end_micros(4, 2, 3);
    WORKS(zero_post_backward(t.z, 4));
    backward_of_micros(3, 3);
}

static void (*const layer_rules[])(void) = { micros_of_a_step, micros_of_a_use, one_unit_in_backward };
static void test_layer_rules(void **state) {
    for (size_t i = 0; i < 2 * ROWS(layer_rules); i++)
        for (int stage = 0; stage <= 3; stage++) {
            const zero_hyper hyper = toy_hyper(1);
            zero_config c = config_of(stage);
            c.accumulate_layers = 1;
            c.micro_batches = 3;
            c.overlap = i % 2;
            make(&c);
            layer_rules[i / 2]();
            if (i < 2) WORKS(zero_finish_gradients(t.z, NULL));
            if (i < 2) WORKS(zero_update(t.z, &hyper));
            forward_all(0, 2);
            backward_of_micros(0, 2);
            for (int u = TOY_UNITS - 1; u >= 1; u--) backward_of_micros(u, 2);
            backward_of_micros(0, 2);
            WORKS(zero_step(t.z, &hyper, NULL));
        }
}

static int all_nan(const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isnan(p[i])) return 0;
    return 1;
}

static void holds(int tensor, int layer, float wanted) {
    const float *g = zero_grad(t.z, tensor, layer);
    for (int i = 0; i < toy_elems(tensor); i++) assert_true(isnan(wanted) ? isnan(g[i]) : g[i] == wanted);
}
static void put(int tensor, int layer, float value) {
    float *g = zero_grad(t.z, tensor, layer);
    for (int i = 0; i < toy_elems(tensor); i++) g[i] = value;
}

// At a unit's first pre_backward, gradients that backward adds to are 0, and with poison those that it
// overwrites are NaN. At stages 2 and 3 poison fills the bucket after the last post_backward.
static void gradients_of_a_step(int stage, int overlap) {
    zero_config c = config_of(stage);
    const float *kept = NULL;
    c.debug.poison = 1;
    c.overlap = overlap;
    make(&c);
    for (int micro = 0; micro < 2; micro++) {
        forward_all(micro, 2);
        for (int use = 0; use < 2; use++) {
            WORKS(zero_pre_backward(t.z, 0));
            holds(WTE, 0, use ? 5 : NAN);
            holds(LNFW, 0, use ? 6 : 0);
            put(WTE, 0, 5);
            put(LNFW, 0, 6);
            WORKS(zero_post_backward(t.z, 0));
            for (int u = TOY_UNITS - 1; u > 0 && !use; u--) {
                WORKS(zero_pre_backward(t.z, u));
                holds(W, u - 1, NAN);
                holds(B, u - 1, 0);
                put(W, u - 1, 1);
                put(B, u - 1, 1);
                kept = zero_grad(t.z, B, u - 1);
                WORKS(zero_post_backward(t.z, u));
            }
        }
    }
    WORKS(zero_finish_gradients(t.z, NULL));
    if (stage >= 2) assert_true(all_nan(kept, toy_elems(B)));
}
static void test_gradients(void **state) {
    for (int stage = 0; stage <= 3; stage++)
        for (int overlap = 0; overlap < 2; overlap++) gradients_of_a_step(stage, overlap);
}

// Writes 1 to all that backward overwrites, except tensor `forgotten`. Returns the norm of the gradients.
static double norm_of_ones(const zero_tensor *tensors, int n_tensors, int n_units, int forgotten,
                           int *finite) {
    zero_step_result result;
    WORKS(zero_begin_train(t.z, 0, 1));
    for (int u = 0; u < n_units; u++) open_and_close(u);
    for (int u = n_units - 1; u >= 0; u--) {
        WORKS(zero_pre_backward(t.z, u));
        for (int k = 0; k < n_tensors; k++) {
            int here = u >= tensors[k].unit && u < tensors[k].unit + tensors[k].layers;
            float *g = here ? zero_grad(t.z, k, u - tensors[k].unit) : NULL;
            if (!here || !tensors[k].backward_overwrites || k == forgotten) continue;
            for (int i = 0; i < zero_tensor_elems(&tensors[k]); i++) g[i] = 1;
        }
        WORKS(zero_post_backward(t.z, u));
    }
    WORKS(zero_finish_gradients(t.z, &result));
    WORKS(zero_discard(t.z));
    *finite = result.finite;
    return result.grad_norm;
}

// Units of different shapes alternate between two buffers, so a tensor that backward overwrites shares memory
// with padding or with one that it adds to. With poison, the norm is NaN if backward leaves out the former.
static void test_written_gradients(void **state) {
    enum { TENSORS = 7, UNITS = 5 };
    static const zero_tensor tensors[TENSORS] = {
        { "a", 1, { 5000 }, 1, 0, 1, 1 }, { "b", 1, { 70 }, 2, 1, 0, 0 },  { "c", 1, { 200 }, 3, 1, 1, 1 },
        { "d", 1, { 1 }, 1, 2, 0, 1 },    { "e", 1, { 333 }, 1, 3, 1, 0 }, { "f", 1, { 3001 }, 1, 4, 1, 1 },
        { "g", 1, { 129 }, 1, 4, 1, 0 },
    };
    static const zero_unit units[UNITS] = {
        { "0", 1, 1, 0 }, { "1", 1, 1, 0 }, { "2", 1, 1, 0 }, { "3", 1, 1, 0 }, { "4", 1, 1, 0 },
    };
    const double ones = 5000 + 3 * 200 + 1 + 3001;
    for (int stage = 0; stage <= 3; stage++)
        for (int of = 1; of <= 2; of++)
            for (int poison = 0; poison < 2; poison++) {
                zero_config c = config_of(stage);
                int finite;
                c.debug.poison = poison;
                c.micro_batches = of;
                c.reduce_bucket_size = 1;
                zero_destroy(t.z);
                WORKS(zero_create(&t.z, &c, tensors, TENSORS, units, UNITS));
                for (int step = 0; step < 3; step++) {
                    assert_true(norm_of_ones(tensors, TENSORS, UNITS, -1, &finite) == sqrt(ones));
                    assert_int_equal(finite, 1);
                }
                if (!poison) continue;
                for (int k = 0; k < TENSORS; k++) {
                    norm_of_ones(tensors, TENSORS, UNITS, k, &finite);
                    assert_int_equal(finite, !tensors[k].backward_overwrites);
                }
            }
}

// -------- refused settings

static int create(const zero_config *c) {
    return zero_create(&t.z, c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS);
}

// Checks that a good configuration is refused after `change` has modified its copy c, or o (c's offload).
#define BAD(good, change, names)                       \
    do {                                               \
        zero_config c = good;                          \
        zero_offload_config *o = &c.offload;           \
        (void)o;                                       \
        change;                                        \
        REFUSED(create(&c), ZERO_ERR_ARGUMENT, names); \
        assert_null(t.z);                              \
    } while (0)

static void no_update(void *ctx, const zero_piece *p) {}

static void test_missing_moments(void **state) {
    for (int n = 0; n < 2; n++) {
        const zero_value missing = n ? ZERO_MOMENT2 : ZERO_MOMENT1;
        zero_config c = config_of(3);
        float x = 0;
        c.update_with = no_update;
        c.update_states = n;
        make(&c);
        if (n) WORKS(zero_get(t.z, ZERO_MOMENT1, W, 0, 0, 1, &x));
        REFUSED(zero_get(t.z, missing, W, 0, 0, 1, &x), ZERO_ERR_ARGUMENT,
                "zero_get(w): this moment does not exist");
        REFUSED(zero_set(t.z, missing, W, 0, 0, 1, &x), ZERO_ERR_ARGUMENT,
                "zero_set(w): this moment does not exist");
    }
}

// A frozen tensor has only parameters. If all tensors are frozen, there is nothing to train.
static void test_frozen(void **state) {
    const char *only = "the tensor is frozen, so it has parameters only";
    for (int stage = 0; stage <= 3; stage++) {
        zero_config c = config_of(stage);
        float value;
        toy_freeze(1);
        make(&c);
        forward_all(0, 1);
        WORKS(zero_pre_backward(t.z, 0));
        NO_POINTER(zero_grad(t.z, WTE, 0), "zero_grad(wte, layer 0): the tensor is frozen");
        assert_non_null(zero_param(t.z, WTE, 0));
        assert_int_equal((uintptr_t)zero_param(t.z, WTE, 0) % 256, 0);
        assert_non_null(zero_grad(t.z, LNFW, 0));
        WORKS(zero_post_backward(t.z, 0));
        make(&c);
        for (int what = ZERO_MOMENT1; what <= ZERO_GRADIENT; what++)
            MISUSE(zero_get(t.z, what, W, 1, 0, 1, &value), only);
        MISUSE(zero_set(t.z, ZERO_MOMENT1, W, 1, 0, 1, &value), only);
        WORKS(zero_get(t.z, ZERO_MASTER, W, 1, 0, 1, &value));
        for (int k = 0; k < TOY_TENSORS; k++) toy_tensors[k].frozen = 1;
        REFUSED(create(&c), ZERO_ERR_ARGUMENT, "all tensors are frozen");
        c.inference = 1;
        make(&c);
        WORKS(toy_eval(&t));
    }
    toy_freeze(0);
}

static void test_config_refused(void **state) {
    const zero_config good = config_of(3);
    const zero_tensor no_name = { NULL, 1, { 1 }, 1, 0, 0, 0 };
    REFUSED(create(NULL), ZERO_ERR_ARGUMENT, "zero_config.size");
    BAD(good, c.size = 0, "zero_config.size");
    BAD(good, c.size = sizeof c - 8, "zero_config.size");
    BAD(good, c.debug.naive = 1, "naive");
    BAD(good, (c.stage = 0, c.debug.naive = c.inference = 1), "inference");
    BAD(good, (c.stage = 0, c.debug.naive = c.accumulate_layers = 1), "use accumulate_layers 0");
    BAD(good, c.numbers.no_master = 1, "numbers.no_master: only bf16");
    BAD(good, c.comm.nccl = 1, "comm.nccl: NCCL is for CUDA devices");
    BAD(good, c.update_states = 1, "update_states: AdamW has 2 states");
    BAD(good, (c.update_with = no_update, c.update_states = 0, o->optimizer = ZERO_HOST),
        "offload.optimizer: the optimizer has no states");
    BAD(good,
        (c.update_with = no_update, c.device = ZERO_CUDA, c.numbers.dtype = ZERO_BF16,
         c.numbers.no_master = 1),
        "device: on a CUDA device update_with needs master weights");
    BAD(good, (c.update_with = no_update, c.update_name = "Li\xffon"), "update_name: only printable ASCII");
    BAD(good, (c.update_with = no_update, c.update_name = "SGD\n"), "update_name: only printable ASCII");
    REFUSED(zero_create(&t.z, &good, &no_name, 1, toy_units, TOY_UNITS), ZERO_ERR_ARGUMENT, "tensor 0");
    assert_null(t.z);
    zero_destroy(NULL);

    zero_config tiers = good;
    tiers.offload.params = tiers.offload.optimizer = tiers.offload.gradients = ZERO_NVME;
    tiers.offload.delayed_update = 1;
    tiers.offload.nvme = "/a,/b";
    WORKS(settings_check(&tiers));
    BAD(tiers, c.stage = 2,
        "whole on every device below stage 3; use stage 3 (offload.params nvme, stage 2)");
    BAD(tiers, (c.stage = 1, o->params = ZERO_DEVICE), "offload.gradients: gradients are whole");
    BAD(tiers, (c.stage = 0, o->params = ZERO_DEVICE), "offload.optimizer: stage 0");
    BAD(tiers, o->optimizer = ZERO_HOST, "offload.gradients: gradients cannot be farther");
    BAD(tiers, o->optimizer = o->gradients = ZERO_DEVICE, "offload.delayed_update: an update on the device");
    BAD(tiers, (c.numbers.dtype = ZERO_BF16, c.numbers.no_master = 1), "offload.delayed_update: a delayed");
    BAD(tiers, o->nvme = NULL, "offload.nvme: no folder");
    BAD(tiers, o->nvme = "", "offload.nvme: no folder");
    BAD(tiers, o->nvme = "/a,,/b", "offload.nvme '/a,,/b'");
    BAD(tiers, o->nvme = "/a,", "offload.nvme '/a,'");
    BAD(tiers, o->nvme_block_bytes = (1 << 20) + 512, "offload.nvme_block_bytes 1049088");
}

static void must_be_refused(const zero_setting *s, double x) {
    zero_config c = zero_defaults();
    char value[64], words[100];
    setting_put(s, &c, x);
    zero_setting_text(s, &c, value, sizeof value);
    snprintf(words, sizeof words, "%s %s: ", s->name, value);
    REFUSED(settings_check(&c), ZERO_ERR_ARGUMENT, words);
    assert_string_equal(zero_last_failure()->setting, s->name);
}

// A number must be the whole text, whole unless the setting is real, and no number stands for a word.
static void must_be_refused_as_text(const zero_setting *s) {
    static const char *const added[] = { "", "x", " ", ".5" };
    zero_config c = zero_defaults();
    char text[64];
    for (size_t i = *s->words ? 0 : 1; i < sizeof added / sizeof *added - (s->kind == ZERO_KIND_REAL); i++) {
        snprintf(text, sizeof text, "%.0f%s", ceil(s->min), added[i]);
        REFUSED(zero_setting_set(s, &c, text), ZERO_ERR_ARGUMENT, s->name);
    }
    REFUSED(zero_setting_set(s, &c, "x"), ZERO_ERR_ARGUMENT, s->name);
    REFUSED(zero_setting_set(s, &c, ""), ZERO_ERR_ARGUMENT, s->name);
}

// Each setting accepts its default and both ends of its range, and refuses the values just outside the range.
static void test_ranges(void **state) {
    zero_config c = zero_defaults();
    int n;
    const zero_setting *s = zero_settings(&n);
    WORKS(settings_check(&c));
    for (; n-- > 0; s++) {
        const int real = s->kind == ZERO_KIND_REAL;
        const double below = real ? nextafter(s->min, -1) : s->min - 1;
        const double above = real ? nextafter(s->max, INFINITY) : s->max + 1;
        char text[64];
        if (s->kind == ZERO_KIND_TEXT) continue;
        if (below != s->preset && s->kind != ZERO_KIND_UNSIGNED) must_be_refused(s, below);
        if (above <= INT_MAX || s->kind == ZERO_KIND_INT64 || real) must_be_refused(s, above);
        if (real) must_be_refused(s, NAN);
        for (int end = 0; end < 2; end++) {
            snprintf(text, sizeof text, "%.17g", end ? s->max : s->min);
            WORKS(zero_setting_set(s, &c, *s->words ? s->words[end] : text));
        }
        must_be_refused_as_text(s);
        assert_string_not_equal(s->help, "");
    }
}

static void test_scalars_refused(void **state) {
    zero_config c = config_of(3);
    double x[65] = { 0 };
    zero_memory_line line;
    trace_event event;
    make(&c);
    REFUSED(zero_sum(t.z, x, 0), ZERO_ERR_ARGUMENT, "0 values");
    REFUSED(zero_sum(t.z, x, 65), ZERO_ERR_ARGUMENT, "65 values");
    REFUSED(zero_broadcast(t.z, 1, x, 8), ZERO_ERR_ARGUMENT, "root 1");
    REFUSED(zero_broadcast(t.z, -1, x, 8), ZERO_ERR_ARGUMENT, "root -1");
    REFUSED(zero_trace_write(t.z, "/nonexistent/trace.json"), ZERO_ERR_IO, "/nonexistent/trace.json");
    assert_int_equal(zero_memory(t.z, 1000, &line), 0);  // an index past the end is not an error
    assert_int_equal(trace_at(&t.z->trace, 0, &event), 0);
    assert_non_null(strstr(zero_last_error(), "/nonexistent/trace.json"));
}

// -------- slots

// Buckets alternate between two buffers, so the third-last unit cannot begin while the last one still uses
// the first buffer. A refused unit takes no slot, so another unit can still open at stage 3.
static void test_backward_order(void **state) {
    zero_config c = config_of(2);
    c.reduce_bucket_size = 1;
    c.max_open = 2;
    c.prefetch = 0;
    for (c.stage = 2; c.stage <= 3; c.stage++) {
        int last = TOY_UNITS - 1;
        make(&c);
        forward_all(0, 1);
        backward(0);
        WORKS(zero_pre_backward(t.z, last));
        MISUSE(zero_pre_backward(t.z, last - 2),
               "backward must use the units in the reverse of the table's order");
        WORKS(zero_pre_backward(t.z, last - 1));
        WORKS(zero_post_backward(t.z, last));
        WORKS(zero_post_backward(t.z, last - 1));
        for (int u = last - 2; u > 0; u--) backward(u);
        backward(0);
        WORKS(zero_finish_gradients(t.z, NULL));
        WORKS(zero_discard(t.z));
    }
}

// A refused save has no effect: it does not complete a delayed update.
static void test_refused_save(void **state) {
    zero_config c = config_of(3);
    char before[17], after[17];
    c.offload.optimizer = ZERO_HOST;
    c.offload.delayed_update = 1;
    make(&c);
    WORKS(toy_step(&t, 1, 1, NULL));
    WORKS(zero_hash(t.z, 0, before));
    REFUSED(zero_save(t.z, "never_written", "{"), ZERO_ERR_ARGUMENT, "zero_save");
    WORKS(zero_hash(t.z, 0, after));
    assert_string_equal(before, after);
}

// Sets one element of the unit's gradient to the number of the unit.
static void close_with_gradient(int unit) {
    float *g = zero_grad(t.z, B, unit - 1);
    assert_non_null(g);
    *g = (float)unit;
    WORKS(zero_post_backward(t.z, unit));
}

// Backward may have max_open units open at once, at every stage and with buckets of one unit or several.
static void test_open_in_backward(void **state) {
    zero_config c = config_of(2);  // 2 micro-batches at most, so stages 0 and 1 have buckets too
    zero_step_result result;
    for (int i = 0; i < 8; i++) {
        c.stage = i % 4;
        c.reduce_bucket_size = i / 4 ? 12000 : 1;
        for (c.max_open = 1; c.max_open <= TOY_BLOCKS; c.max_open++) {
            make(&c);
            forward_all(0, 1);
            backward(0);
            for (int u = TOY_BLOCKS; u > 0; u--) {
                if (u + c.max_open <= TOY_BLOCKS) close_with_gradient(u + c.max_open);
                WORKS(zero_pre_backward(t.z, u));
            }
            for (int u = c.max_open; u > 0; u--) close_with_gradient(u);
            backward(0);
            WORKS(zero_finish_gradients(t.z, &result));
            assert_true(result.grad_norm == sqrt(1 + 4 + 9 + 16));
            WORKS(zero_discard(t.z));
        }
    }
}

static void test_slots(void **state) {
    zero_config c = config_of(3);
    c.prefetch = 0;
    for (c.max_open = 1; c.max_open <= 3; c.max_open++) {
        zero_plan plan;
        make(&c);
        zero_plan_info(t.z, &plan);
        assert_int_equal(plan.slots, c.max_open);
        WORKS(zero_begin_eval(t.z));
        WORKS(zero_pre_forward(t.z, 0));  // takes no slot, because a unit used twice has separate memory
        for (int u = 1; u <= c.max_open; u++) WORKS(zero_pre_forward(t.z, u));
        char names[64];
        snprintf(names, sizeof names, "unit %d (block %d)", c.max_open + 1, c.max_open);
        MISUSE(zero_pre_forward(t.z, c.max_open + 1), names);
        for (int u = 1; u <= c.max_open; u++)  // each open unit has its own values
            for (int i = 0; i < 33; i++)
                assert_true(((float *)zero_param(t.z, B, u - 1))[i] == toy_initial(B, u - 1, i));
        WORKS(zero_post_forward(t.z, 1));
        WORKS(zero_pre_forward(t.z, c.max_open + 1));
    }
}

// -------- poison

// Keeps pointers after the post hook. With poison (-1: as the environment sets it) they must point to NaN.
static void test_poisoned_parameters(void **state) {
    static const struct {
        int set;
        const char *environment;
        int poison;
    } cases[] = {
        { 0, "1", 0 }, { 1, "0", 1 }, { -1, "1", 1 }, { -1, "0", 0 }, { -1, "", 0 }, { -1, NULL, 0 }
    };
    zero_config c = config_of(3);
    c.prefetch = 0;
    for (size_t i = 0; i < ROWS(cases); i++) {
        const char *environment = cases[i].environment;
        assert_int_equal(environment ? setenv("ZERO_POISON", environment, 1) : unsetenv("ZERO_POISON"), 0);
        c.debug.poison = cases[i].set;
        make(&c);
        WORKS(zero_begin_eval(t.z));
        for (int layer = 0; layer < 2; layer++) {
            WORKS(zero_pre_forward(t.z, 1 + layer));
            const float *kept = zero_param(t.z, W, layer);
            assert_true(kept[3] == toy_initial(W, layer, 3));
            WORKS(zero_post_forward(t.z, 1 + layer));
            assert_int_equal(all_nan(kept, toy_elems(W)), cases[i].poison);
        }
        open_and_close(1);  // a later gather restores the values
        WORKS(zero_pre_forward(t.z, 1));
        assert_true(((float *)zero_param(t.z, W, 0))[3] == toy_initial(W, 0, 3));
    }
}

// -------- the recorded order

static int next_event;
static void happened_at(int line, const char *expected) {
    const char *seen = toy_events(&t.z->trace, &next_event);
    if (strcmp(seen, expected)) fail_msg("line %d: %s, not %s", line, seen, expected);
}
#define HAPPENED(expected) happened_at(__LINE__, expected)

// Runs a pass that uses the units in this order, and checks the values at each use.
static void forward_in_order(const char *units) {
    for (; *units; units++) {
        const int unit = *units - '0', layer = unit ? unit - 1 : 0, tensor = unit ? W : WTE;
        WORKS(zero_pre_forward(t.z, unit));
        const float *p = zero_param(t.z, tensor, layer);
        for (int64_t i = 0; i < toy_elems(tensor); i++) assert_true(p[i] == toy_initial(tensor, layer, i));
        WORKS(zero_post_forward(t.z, unit));
    }
}

static void make_traced(int prefetch) {
    zero_config c = config_of(3);
    c.debug.trace_events = 1000;
    c.overlap = 0;
    c.prefetch = prefetch;
    c.reduce_bucket_size = 1;
    make(&c);
    next_event = 0;
    HAPPENED("");
}

// A pass in a new order gathers each unit when it is used. A pass that repeats the order gathers `prefetch`
// units ahead, as soon as a slot is free. Unit 0 is used twice, so it has separate memory and needs no slot.
static void test_order_of_evaluations(void **state) {
    static const char new_order[] = "G0 F0 G1 F1 G2 F2 G3 F3 G4 F4";
    static const struct {
        int prefetch;
        const char *units, *happens;
    } rows[] = {
        { 0, "01234", new_order },
        { 0, "01234", new_order },
        { 1, "01234", new_order },
        { 1, "01234", "G0 G1 G2 F0 F1 G3 F2 G4 F3 F4" },
        { 1, "24103", "G2 F2 G4 F4 G1 F1 G0 F0 G3 F3" },  // a different order is detected and recorded
        { 1, "24103", "G2 G4 F2 G1 G0 F4 G3 F1 F0 F3" },
        { 1, "01234", new_order },
        { 1, "012340", "G0 G1 G2 F0 F1 G3 F2 G4 F3 F4 F0" },
        { 1, "012340", "G0 G1 G2 F0 F1 G3 F2 G4 F3 F4 F0" },
        { 1, "01", "G0 G1 G2 F0 F1 G3" },  // a shorter pass also prefetches by the recorded order
        { 1, "01", "G0 G1 F0 F1" },
        { 2, "012340", "G0 F0 G1 F1 G2 F2 G3 F3 G4 F4 F0" },
        { 2, "012340", "G0 G1 G2 G3 F0 F1 G4 F2 F3 F4 F0" },
    };
    for (size_t i = 0; i < ROWS(rows); i++) {
        if (!i || rows[i].prefetch != rows[i - 1].prefetch) make_traced(rows[i].prefetch);
        WORKS(zero_begin_eval(t.z));
        forward_in_order(rows[i].units);
        HAPPENED(rows[i].happens);
    }
}

// Opens each block before it closes the previous one. Closing one must at once gather the next into its slot.
static void test_release_gathers_the_next(void **state) {
    make_traced(1);
    for (int pass = 0; pass < 2; pass++) {
        WORKS(zero_begin_eval(t.z));
        open_and_close(0);
        WORKS(zero_pre_forward(t.z, 1));
        for (int u = 2; u < TOY_UNITS; u++) {
            WORKS(zero_pre_forward(t.z, u));
            WORKS(zero_post_forward(t.z, u - 1));
        }
        WORKS(zero_post_forward(t.z, TOY_UNITS - 1));
        open_and_close(0);
        HAPPENED(pass ? "G0 G1 G2 F0 F1 G3 F2 G4 F3 F4 F0" : "G0 F0 G1 G2 F1 G3 F2 G4 F3 F4 F0");
    }
}

// Runs a micro-batch in a new order, one in a known order, one after an evaluation (whose order is recorded
// separately), and the update. Backward must gather the next unit before it reduces one. The update must be
// in forward's order, and gather each of the next step's first units before it updates the one after it.
static void test_order_of_a_step(void **state) {
    static const char plain[] = "G0 F0 G1 F1 G2 F2 G3 F3 G4 F4 F0 B0 B4 R4 G3 B3 R3 G2 B2 R2 G1 B1 R1 B0 R0";
    static const struct {
        int prefetch;
        const char *units, *happens[3], *update;
    } rows[] = {
        { 0,
          "012340",
          { plain, "F0 F1 G2 F2 G3 F3 G4 F4 F0 B0 B4 R4 G3 B3 R3 G2 B2 R2 G1 B1 R1 B0 R0", plain },
          "U0 U1 U2 U3 U4" },
        { 1,
          "012340",
          { plain, "G2 F0 F1 G3 F2 G4 F3 F4 G3 F0 B0 B4 G2 R4 B3 G1 R3 B2 R2 B1 R1 B0 R0",
            "G0 G1 G2 F0 F1 G3 F2 G4 F3 F4 G3 F0 B0 B4 G2 R4 B3 G1 R3 B2 R2 B1 R1 B0 R0" },
          "U0 G0 U1 G1 U2 G2 U3 U4" },
        { 1,
          "302410",
          { "G3 F3 G0 F0 G2 F2 G4 F4 G1 F1 F0 B0 G4 B4 R4 G3 B3 R3 G2 B2 R2 G3 B1 R1 B0 R0",
            "F3 G2 F0 F2 G4 F4 G4 F1 F0 B0 B4 G3 R4 B3 G2 R3 B2 R2 B1 R1 B0 R0",
            "G3 G0 G2 F3 G4 F0 F2 G1 F4 G4 F1 F0 B0 B4 G3 R4 B3 G2 R3 B2 R2 B1 R1 B0 R0" },
          "U3 G3 U0 G0 U2 G2 U4 U1" },
        { 2,
          "012340",
          { plain, "G2 G3 F0 F1 G4 F2 F3 G3 F4 G2 F0 B0 B4 G1 R4 B3 R3 B2 R2 B1 R1 B0 R0",
            "G0 G1 G2 G3 F0 F1 G4 F2 F3 G3 F4 G2 F0 B0 B4 G1 R4 B3 R3 B2 R2 B1 R1 B0 R0" },
          "U0 G0 U1 G1 U2 G2 U3 G3 U4" },
    };
    for (size_t i = 0; i < ROWS(rows); i++) {
        const zero_hyper h = toy_hyper(1);
        make_traced(rows[i].prefetch);
        for (int pass = 0; pass < 3; pass++) {
            WORKS(zero_begin_train(t.z, pass % 2, 2 - pass / 2));
            forward_in_order(rows[i].units);
            WORKS(toy_backward_pass(&t));
            HAPPENED(rows[i].happens[pass]);
            if (pass != 1) continue;
            WORKS(zero_finish_gradients(t.z, NULL));
            WORKS(zero_discard(t.z));
            WORKS(zero_begin_eval(t.z));
            forward_in_order("43");
            toy_events(&t.z->trace, &next_event);
        }
        WORKS(zero_step(t.z, &h, NULL));
        HAPPENED(rows[i].update);
    }
}

// Units 0 and 1 of three repeat their forward in backward. Each is gathered for that, and again for backward.
// Unit 2, the last in forward, stays for backward, and unit 0 for the next micro-batch.
static void test_repeated_uses(void **state) {
    static const zero_tensor w = { "w", 1, { 300 }, .layers = 3 };
    static const zero_unit units[] = { { "a", 2, 1, 0, 1 }, { "b", 2, 1, 0, 1 }, { "c", 1, 1, 0, 0 } };
    static const char *const happens[] = {
        "G0 F0 G1 F1 G2 F2 B2 R2 G1 F1 G1 B1 R1 G0 F0 G0 B0 R0",
        "F0 G1 F1 G2 F2 B2 R2 G1 F1 G1 B1 R1 G0 F0 G0 B0 R0",
    };
    make_traced(0);
    zero_config c = t.z->config;
    end(NULL);
    WORKS(zero_create(&t.z, &c, &w, 1, units, ROWS(units)));
    next_event = 0;
    for (int micro = 0; micro < 2; micro++) {
        WORKS(zero_begin_train(t.z, micro, 2));
        for (int u = 0; u < 3; u++) open_and_close(u);
        backward(2);
        for (int u = 1; u >= 0; u--) {
            open_and_close(u);
            backward(u);
            MISUSE(zero_pre_forward(t.z, u), "the last 1 of its 2 forward uses (repeated_uses) come before");
        }
        HAPPENED(happens[micro]);
    }
    WORKS(zero_finish_gradients(t.z, NULL));
    WORKS(zero_discard(t.z));
    WORKS(zero_begin_train(t.z, 0, 2));
    for (int u = 0; u < 3; u++) open_and_close(u);
    for (int u = 2; u >= 0; u--) backward(u);
    MISUSE(zero_begin_train(t.z, 1, 2), "unit 0 (a) has finished 1 of its 2 forward uses");
}

static void test_trace_file(void **state) {
    char path[] = "/tmp/llmc_zero_trace.XXXXXX", text[8192] = "";
    zero_config c = config_of(3);
    c.overlap = 0;
    c.debug.trace_events = 8;  // too few, so later events are dropped
    close(mkstemp(path));
    make(&c);
    WORKS(toy_step(&t, 1, 1, NULL));
    WORKS(zero_trace_write(t.z, path));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    unlink(path);
    int events = 0, lanes = 0;
    for (const char *p = text; (p = strstr(p, "\"ph\":\"X\"")); p++) events++;
    for (const char *p = text; (p = strstr(p, "\"thread_name\"")); p++) lanes++;
    assert_int_equal(events, 8);
    assert_int_equal(lanes, TRACE_LANES);
    assert_non_null(
        strstr(text, "{\"name\":\"gather emb\",\"cat\":\"gather\",\"ph\":\"X\",\"pid\":1,\"tid\":100,"));
    assert_true(text[0] == '[' && strstr(text, "\n]\n") == text + n - 3);
}

#define TEST(f) cmocka_unit_test_teardown(f, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_rules),      TEST(test_layer_rules),     TEST(test_missing_moments),
        TEST(test_frozen),     TEST(test_config_refused),  TEST(test_open_in_backward),
        TEST(test_ranges),     TEST(test_scalars_refused), TEST(test_written_gradients),
        TEST(test_inference),  TEST(test_refused_save),    TEST(test_poisoned_parameters),
        TEST(test_slots),      TEST(test_backward_order),  TEST(test_order_of_evaluations),
        TEST(test_gradients),  TEST(test_order_of_a_step), TEST(test_release_gathers_the_next),
        TEST(test_trace_file), TEST(test_repeated_uses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
