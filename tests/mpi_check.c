// Tests debug.check_steps: mpirun -np N mpi_check. Each mistake of a trainer must fail at the right call,
// with a message that names the rank and the tensor, at every stage; without checks no call fails. settings.h
// tests that the checks change no bit.
#include <limits.h>
#include <unistd.h>
#include "saves.h"

enum { WTE, LNW, W, B, PROJ, LNFW };  // indices in toy_tensors
enum { LAYER = 1, UNIT = 1 + LAYER };

static toy t;
static int by_layers;  // 1: config.accumulate_layers, with one micro-batch
static char host[64];

static zero_config config_of(int stage, int micro_batches, int overlap, int steps) {
    zero_config c = zero_defaults();
    c.stage = stage;
    c.micro_batches = micro_batches;
    c.overlap = overlap;
    c.accumulate_layers = by_layers;
    c.debug.check_steps = steps;
    return c;
}

// Checks that the error names `rank` and continues with `words`.
static void fails(int rc, int code, int rank, const char *words) {
    char start[300];
    snprintf(start, sizeof start, "rank %d (host %s)%s", rank, host, words);
    CHECK(rc == code);
    CHECK(!strncmp(zero_last_error(), start, strlen(start)));
    if (strncmp(zero_last_error(), start, strlen(start)))
        fprintf(stderr, "  got:      %s\n  expected: %s\n", zero_last_error(), start);
}

// -------- mistakes in a pass, on all ranks

// Where in a training pass or an evaluation each rank changes a value.
typedef struct {
    const char *name;
    int of, backward;  // of 0: an evaluation; backward: 1 if the unit is open for backward
    enum { PARAMETER, KEPT_PARAMETER, GRADIENT } what;
    int in_memory;  // 1: only at stages 0 to 2, where parameters stay in place
    const char *message;
} mistake;

#define READ_ONLY                                                                                            \
    " wrote to the parameters of w, layer 1, unit 2 (block 1), but parameters are read-only during a pass: " \
    "change them with zero_set, between steps"
#define TOO_LATE                                                                                          \
    "after its last zero_post_backward: write it before that hook; to clip gradients, pass grad_clip to " \
    "zero_update"
static const mistake mistakes[] = {
    { "clamps in forward", 1, 0, PARAMETER, 0, READ_ONLY },
    { "clamps in backward", 1, 1, PARAMETER, 0, READ_ONLY },
    { "clamps in an evaluation", 0, 0, PARAMETER, 0, READ_ONLY },
    { "writes to a kept pointer between uses", 1, 0, KEPT_PARAMETER, 1, READ_ONLY },
    { "clips after the post hook", 1, 1, GRADIENT, 0,
      " wrote to the gradient of w, layer 1, unit 2 (block 1), " TOO_LATE },
};

// Finishes forward after the unit, and runs backward as far as the unit.
static void turn_to_unit(void) {
    for (int u = UNIT + 1; u < TOY_UNITS; u++) MUST(toy_forward(&t, u));
    MUST(toy_forward(&t, 0));
    MUST(toy_backward(&t, 0, 0));
    for (int u = TOY_UNITS - 1; u > UNIT; u--) MUST(toy_backward(&t, u, 0));
}

// Uses the unit, makes the mistake, and returns the result of the hook that should notice it.
static int use_wrongly(const mistake *m) {
    int (*const pre)(zero *, int) = m->backward ? zero_pre_backward : zero_pre_forward;
    int (*const post)(zero *, int) = m->backward ? zero_post_backward : zero_post_forward;
    MUST(pre(t.z, UNIT));
    float *at = m->what == GRADIENT ? zero_grad(t.z, W, LAYER) : (float *)zero_param(t.z, W, LAYER);
    if (m->what == PARAMETER) at[5002] += 1;
    if (m->backward && by_layers) MUST(zero_post_micro(t.z, UNIT, 0));
    const int rc = post(t.z, UNIT);
    if (m->what == PARAMETER) return rc;
    CHECK(!rc);
    at[5002] += 1;
    if (m->what == GRADIENT) return zero_pre_backward(t.z, UNIT - 1);
    turn_to_unit();
    return zero_pre_backward(t.z, UNIT);
}

static int make(const mistake *m, const zero_config *c) {
    MUST(toy_create(&t, c, NULL));
    if (c->micro_batches > 1 && m->of) MUST(toy_pass(&t, 0, 2));
    MUST(m->of ? zero_begin_train(t.z, c->micro_batches - 1, c->micro_batches) : zero_begin_eval(t.z));
    for (int u = 0; u < UNIT + !!m->backward; u++) MUST(toy_forward(&t, u));
    if (m->backward) turn_to_unit();
    return use_wrongly(m);
}

static void check_passes(int stage, int micro_batches, int overlap) {
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        if (m->in_memory && stage == 3) continue;
        for (int on = 0; on < 2; on++) {
            const zero_config c = config_of(stage, micro_batches, overlap, on);
            CHECK_SETTING("%s, stage %d, %d micro-batches, by layers %d, overlap %d, checks %d", m->name,
                          stage, micro_batches, by_layers, overlap, on);
            const int rc = make(m, &c);
            if (on)
                fails(rc, ZERO_ERR_MISUSE, checks.rank, m->message);
            else
                CHECK(!rc);
            zero_destroy(t.z);
        }
    }
}

// zero_finish_gradients checks the last gradient of a step.
static void check_last_gradient(int stage) {
    const zero_config c = config_of(stage, 1, 0, 1);
    CHECK_SETTING("clips after the whole of backward, stage %d", stage);
    MUST(toy_create(&t, &c, NULL));
    MUST(toy_forward_pass(&t, 0, 1));
    MUST(toy_backward(&t, 0, 0));
    for (int u = TOY_UNITS - 1; u > 0; u--) MUST(toy_backward(&t, u, 0));
    MUST(zero_pre_backward(t.z, 0));
    float *g = zero_grad(t.z, LNFW, 0);
    if (by_layers) MUST(zero_post_micro(t.z, 0, 0));
    MUST(zero_post_backward(t.z, 0));
    g[49] += 1;
    fails(zero_finish_gradients(t.z, NULL), ZERO_ERR_MISUSE, checks.rank,
          " wrote to the gradient of lnfw, layer 0, unit 0 (emb), " TOO_LATE);
    zero_destroy(t.z);
}

// -------- initial values

static void set(int tensor, int layer, int64_t from, int64_t n, float value) {
    static float values[TOY_LARGEST];
    for (int64_t i = 0; i < n; i++) values[i] = value;
    MUST(zero_set(t.z, ZERO_PARAM, tensor, layer, from, n, values));
}

static void check_values(int stage) {
    const zero_config c = config_of(stage, 1, 1, 1), off = config_of(stage, 1, 1, 0);
    const int last = checks.ranks - 1;
    CHECK_SETTING("values that are never set, stage %d", stage);
    MUST(toy_create_empty(&t, &c, NULL));
    fails(zero_begin_train(t.z, 0, 1), ZERO_ERR_MISUSE, 0,
          " has set 0 of the 33333 elements of wte, layer 0: pass every element to zero_set before the first "
          "step, including zeros");
    MUST(toy_set_initial(&t));
    MUST(toy_passes(&t, 1));
    zero_destroy(t.z);

    CHECK_SETTING("a part that the last rank never sets, stage %d", stage);
    MUST(toy_create_empty(&t, &c, NULL));
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++)
            set(k, l, 0, toy_elems(k) - (k == PROJ && l == 2 && checks.rank == last), 1);
    fails(zero_begin_train(t.z, 0, 1), ZERO_ERR_MISUSE, last,
          " has set 1279 of the 1280 elements of proj, layer 2: ");
    zero_destroy(t.z);

    if (last == 0) return;
    CHECK_SETTING("other values on the last rank, stage %d", stage);
    MUST(toy_create(&t, &c, NULL));
    set(B, 3, 7, 2, checks.rank == last ? 1.0f : 1.0001f);
    char words[200];
    snprintf(words, sizeof words,
             " set b, layer 3, to different values than rank 0 (host %s): all ranks must make", host);
    fails(zero_begin_train(t.z, 0, 1), ZERO_ERR_ARGUMENT, last, words);
    zero_destroy(t.z);

    CHECK_SETTING("without checks, stage %d", stage);
    MUST(toy_create_empty(&t, &off, NULL));
    set(B, 3, 7, 2, (float)checks.rank);
    MUST(toy_step(&t, 1, 1, NULL));
    zero_destroy(t.z);
}

// A checkpoint sets all values, whatever the ranks set before.
static void check_loaded(int stage) {
    const zero_config c = config_of(stage, 1, 0, INT_MAX);
    CHECK_SETTING("loaded values, stage %d", stage);
    create_and_train(&t, &c, 1);
    MUST(zero_save(t.z, in_folder("saved"), NULL));
    zero_destroy(t.z);
    MUST(toy_create_empty(&t, &c, NULL));
    set(B, 3, 7, 2, (float)checks.rank);
    MUST(zero_load(t.z, in_folder("saved"), NULL));
    steps(&t, 2, 2);
    zero_destroy(t.z);
    remove_checkpoint(in_folder("saved"));
}

// -------- batches, and the number of steps

static void check_batches(int stage) {
    int batch[64] = { 0 };
    const int last = checks.ranks - 1;
    char words[200];
    const zero_config c = config_of(stage, 1, 1, 2);
    snprintf(words, sizeof words, " has the same batch as rank %d (host %s): use zero_rank to give each",
             last - 1, host);
    for (int step = 1; step <= 4; step++) {
        CHECK_SETTING("batches of step %d, stage %d", step, stage);
        if (step == 1) MUST(toy_create(&t, &c, NULL));
        batch[63] = checks.rank;
        MUST(zero_check_batch(t.z, batch, sizeof batch));
        batch[63] = checks.rank == last ? last - 1 : checks.rank;
        const int rc = zero_check_batch(t.z, batch, sizeof batch);
        if (last && step <= 2) fails(rc, ZERO_ERR_ARGUMENT, last, words);
        if (!last || step > 3) CHECK(!rc);
        MUST(toy_step(&t, 1, step, NULL));
    }
    zero_destroy(t.z);
}

// Without a setting, the first batch and the first step's gradients are looked at, for a note that begins
// with `words`; NULL: there is none. Backward leaves a tensor out, on the first `left_out` ranks.
static void check_note(int stage, int steps, int same_batch, int tensor, int left_out, const char *words) {
    const zero_config c = config_of(stage, 2, 1, steps);
    int batch = same_batch ? 7 : checks.rank, later = 7;
    zero_step_result result;
    CHECK_SETTING("note: %s, stage %d", words ? words : "none", stage);
    MUST(toy_create(&t, &c, NULL));
    MUST(zero_check_batch(t.z, &batch, sizeof batch));
    MUST(zero_check_batch(t.z, &later, sizeof later));
    toy_tensors[tensor].frozen = checks.rank < left_out;
    MUST(toy_step(&t, 2, 1, &result));
    CHECK(words ? result.note && !strncmp(result.note, words, strlen(words)) : !result.note);
    MUST(toy_step(&t, 2, 2, &result));
    CHECK(!result.note);
    toy_tensors[tensor].frozen = 0;
    zero_destroy(t.z);
}
static void check_notes(int stage) {
    const char *one = "in the first step the gradient of lnfw, layer 0 is 0 on all ranks";
    const char *more = "in the first step the gradient of lnw, layer 0, and of 3 more, is 0 on all ranks";
    const char *batch = checks.ranks > 1 ? "ranks 0 and 1 have the same first batch" : NULL;
    check_note(stage, -1, 0, LNFW, 0, NULL);
    check_note(stage, -1, 0, LNFW, 1, checks.ranks > 1 ? NULL : one);
    check_note(stage, -1, 0, LNFW, checks.ranks, one);
    check_note(stage, -1, 0, LNW, checks.ranks, more);
    check_note(stage, -1, 1, LNW, 0, batch);
    check_note(stage, 0, 1, LNW, checks.ranks, NULL);
}

static void check_all(const char *asked) {
    gethostname(host, sizeof host);
    check_make_folder(folder, sizeof folder, "/tmp");
    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < 4; i++) check_passes(stage, 1 + i / 2, i % 2);
        check_last_gradient(stage);
        by_layers = 1;
        check_passes(stage, 1, stage % 2);
        check_last_gradient(stage);
        by_layers = 0;
        check_values(stage);
        check_loaded(stage);
        check_batches(stage);
        check_notes(stage);
    }
    check_remove_folder(folder);
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_check", check_all); }
