// Tests the trainer's passes, hooks and AdamW, without mpirun, against finite differences of its loss and
// against tests/reference_gpt2.bin, which comes from an independent implementation (dev/reference_gpt2.py),
// as do the multiple-choice examples in tests/reference_hellaswag.bin.
#include <float.h>
#include <errno.h>
#include "unit.h"

// A gradient can be read only until its unit's last post_backward, and a completion's loss only until the
// next batch, so this file intercepts the trainer's calls.
#include "../gpt2/hellaswag.h"
static int capture_post_backward(zero *z, int unit);
static int capture_score(HellaSwag *h);
#define zero_post_backward capture_post_backward
#define hellaswag_score capture_score
#define TESTING
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // for example, the tests never print samples
#include "../train_gpt2_zero.cu"
#pragma GCC diagnostic pop
#undef zero_post_backward
#undef hellaswag_score

enum { MAX_LAYERS = 2 };

// -------- the reference file

typedef struct {
    GPT2Config config, small;
    int B, T, steps;
    zero_hyper hyper;
    int32_t *tokens;  // (B * T + 1)
    // (P), (B, T, V), (steps + 1), (steps), (P), (P)
    float *params, *logits, *losses, *norms, *grads, *updated;
    float *initial;    // (P of small)
    int32_t *answers;  // number of multiple-choice examples, and of right answers
    float *choices;    // (4 * examples) losses of their completions
} Reference;

static Reference ref;

static void *take(FILE *f, size_t n) {
    void *p = malloc(n * 4);
    assert_non_null(p);
    assert_int_equal(fread(p, 4, n, f), n);
    return p;
}

static GPT2Config config_of(const int32_t n[6]) { return (GPT2Config){ n[0], n[1], n[2], n[3], n[4], n[5] }; }

static int read_reference(void **state) {
    FILE *f = fopen("tests/reference_gpt2.bin", "rb");
    if (!f) fail_msg("tests/reference_gpt2.bin: %s; run from the repository's root", strerror(errno));
    int32_t *head = take(f, 16);
    float *hyper = take(f, 8);
    assert_int_equal(head[0], 20251121);
    assert_int_equal(head[1], 1);
    ref.config = config_of(head + 2);
    ref.B = head[8];
    ref.T = head[9];
    ref.steps = head[10];
    ref.hyper = (zero_hyper){ hyper[0], hyper[1], hyper[2], hyper[3], hyper[4], hyper[5], 0 };
    size_t BT = (size_t)ref.B * ref.T, P = gpt2_num_parameters(&ref.config);
    ref.tokens = take(f, BT + 1);
    ref.params = take(f, P);
    ref.logits = take(f, BT * ref.config.vocab_size);
    ref.losses = take(f, ref.steps + 1);
    ref.norms = take(f, ref.steps);
    ref.grads = take(f, P);
    ref.updated = take(f, P);
    int32_t *small = take(f, 6);
    ref.small = config_of(small);
    ref.initial = take(f, gpt2_num_parameters(&ref.small));
    ref.answers = take(f, 2);
    ref.choices = take(f, 4 * ref.answers[0]);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
    free(head);
    free(hyper);
    free(small);
    return 0;
}

// Returns where layer l of tensor i begins in an array in llm.c's order.
static size_t place(const GPT2Tensor *tensors, int L, int i, int l) {
    size_t at = 0;
    for (int j = 0; j < i; j++) at += tensors[j].elems * (tensors[j].per_layer ? L : 1);
    return at + l * tensors[i].elems;
}

// -------- the trainer, with the reference's weights and tokens

typedef struct {
    gpt2_dtype dtype;
    int stage, recompute, micro_batches, chunk;
    int has_parts;  // 1: a block is several units
} Setting;

static GPT2 model;
static DataLoader loader;
static int micro_batches;
static float *captured[NUM_PARAMETER_TENSORS][MAX_LAYERS];  // gradients, summed over a step's micro-batches
static int embedding_uses;  // backward uses of the embedding so far in this step

static int layers_of(int i) { return model.tensors[i].per_layer ? model.config.num_layers : 1; }

#define FOR_EACH_TENSOR(i, l)                       \
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) \
        for (int l = 0; l < layers_of(i); l++)

static int capture_post_backward(zero *zp, int unit) {
    // The LM head uses it first. The encoder then adds to the same gradient, which completes it.
    int complete = unit != EMBEDDING || embedding_uses++ % 2;
    if (complete) FOR_EACH_TENSOR(i, l) {
            if ((model.tensors[i].per_layer ? unit_of(&model, l, part_of(i)) : EMBEDDING) != unit) continue;
            const void *g = zero_grad(zp, i, l);
            assert_non_null(g);
            for (int64_t k = 0; k < model.tensors[i].elems; k++)
                captured[i][l][k] += gpt2_value(model.dtype, g, k);
        }
    return zero_post_backward(zp, unit);
}

static void write_shard(char *path) {
    int32_t header[256] = { 20240520, 1, ref.B * ref.T + 1 };
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(header, sizeof header, 1, f), 1);
    for (int t = 0; t <= ref.B * ref.T; t++) {
        uint16_t token = (uint16_t)ref.tokens[t];
        assert_int_equal(fwrite(&token, sizeof token, 1, f), 1);
    }
    assert_int_equal(fclose(f), 0);
}

static void set_params(const float *values) {
    FOR_EACH_TENSOR(i, l)
    zero_check(zero_set(run.z, ZERO_PARAM, i, l, 0, model.tensors[i].elems,
                        values + place(model.tensors, model.config.num_layers, i, l)));
}

static void start(Setting s) {
    char shard[] = "/tmp/llmc_zero_test_XXXXXX";
    opt.zero.stage = s.stage;
    micro_batches = s.micro_batches;
    model = (GPT2){ .config = ref.config,
                    .dtype = s.dtype,
                    .B = ref.B / s.micro_batches,
                    .T = ref.T,
                    .micro_batches = s.micro_batches,
                    .units_a_block = s.has_parts ? BLOCK_PARTS : 1,
                    .recompute = s.recompute,
                    .cache_rows = 2,
                    .cache_T = ref.T,
                    .cache_positions = 2 * layers_cache_positions(ref.T) };
    gpt2_tensors(&model.config, model.tensors);
    assert_true(model.config.num_layers <= MAX_LAYERS);
    FOR_EACH_TENSOR(i, l) captured[i][l] = malloc_check(model.tensors[i].elems * sizeof(float));
    write_shard(shard);
    gpt2_check(dataloader_init(&loader, shard, model.B, model.T, model.config.vocab_size, 0, 1, 0, 0));
    gpt2_check(dataloader_next(&loader));  // opens the shard, so its name is no longer needed
    assert_int_equal(unlink(shard), 0);
    gpt2_check(dataloader_reset(&loader));
    zero_config config = create_plugin(&model, s.micro_batches, NULL);
    settle_memory(&model, &config);
    size_t planned = activation_bytes(&model, ZERO_DEVICE) + activation_bytes(&model, ZERO_HOST);
    assert_int_equal(allocate_activations(&model), 0);
    assert_int_equal(zero_memory_bytes(run.z, ZERO_ACTIVATIONS), planned);
    if (s.chunk) model.chunk = s.chunk;
    set_params(ref.params);
}

static void stop(void) {
    FOR_EACH_TENSOR(i, l) free(captured[i][l]);
    dataloader_free(&loader);
    run.layers->free();
    zero_destroy(run.z);
    free_tables(&model);
    run.z = NULL;
}

// Computes the loss and captures the gradients of one step. The caller ends the step.
static double gradients(zero_step_result *result) {
    FOR_EACH_TENSOR(i, l) memset(captured[i][l], 0, model.tensors[i].elems * sizeof(float));
    embedding_uses = 0;
    gpt2_check(dataloader_reset(&loader));
    double loss = gpt2_gradients(&model, &loader);
    zero_check(zero_finish_gradients(run.z, result));
    return loss;
}

// -------- finite differences

// Returns the loss's derivative along a direction, from central differences at x and 2x, combined to cancel
// the third derivative.
static double difference(int i, int l, const double *direction, double x) {
    size_t n = model.tensors[i].elems;
    const float *at = ref.params + place(model.tensors, model.config.num_layers, i, l);
    float *moved = malloc_check(n * sizeof(float));
    static const double steps[] = { 1, -1, 2, -2 };
    double loss[4];
    for (int k = 0; k < 4; k++) {
        for (size_t j = 0; j < n; j++) moved[j] = (float)(at[j] + steps[k] * x * direction[j]);
        zero_check(zero_set(run.z, ZERO_PARAM, i, l, 0, n, moved));
        loss[k] = gpt2_validate(&model, &loader, 1);
    }
    zero_check(zero_set(run.z, ZERO_PARAM, i, l, 0, n, at));
    free(moved);
    return (8 * (loss[0] - loss[1]) - (loss[2] - loss[3])) / (12 * x);
}

// Chooses a direction of norm 1: the gradient, which shows a wrong magnitude; one of two random directions,
// which show a wrong element; the largest element alone, or a random one. Leaves out vocabulary padding.
enum { DIRECTIONS = 5 };
static void direction(double *d, const float *g, size_t n, size_t live, int which) {
    double norm = 0;
    size_t largest = 0, other = (size_t)((uniform() + 1) / 2 * live);
    for (size_t j = 0; j < live; j++)
        if (fabsf(g[j]) > fabsf(g[largest])) largest = j;
    for (size_t j = 0; j < n; j++) {
        double u = uniform();
        d[j] = j >= live ? 0 : which == 0 ? g[j] : which < 3 ? u : j == (which == 3 ? largest : other);
        norm += d[j] * d[j];
    }
    for (size_t j = 0; j < n; j++) d[j] /= sqrt(norm);
}

// worst: the largest error so far, relative to the derivative or, if that is almost 0, to a typical one.
static void check_tensor(int i, int l, double *worst) {
    size_t n = model.tensors[i].elems,
           live = i == WTE ? (size_t)model.config.vocab_size * model.config.channels : n;
    const float *g = captured[i][l];
    double *d = malloc_check(n * sizeof(double)), norm = 0;
    for (size_t j = 0; j < n; j++) norm += (double)g[j] * g[j];
    for (size_t j = live; j < n; j++) assert_true(g[j] == 0);
    double usual = sqrt(norm / live);
    assert_true(usual > 1e-4);
    for (int k = 0; k < DIRECTIONS; k++) {
        double expected = 0;
        direction(d, g, n, live, k);
        for (size_t j = 0; j < n; j++) expected += d[j] * g[j];
        double measured = difference(i, l, d, 0.04),
               error = fabs(measured - expected) / fmax(fabs(expected), usual);
        if (error > *worst) *worst = error;
        if (error > 1e-3)
            fail_msg("%s, layer %d, direction %d: backward gives %.7f, finite differences %.7f",
                     model.tensors[i].name, l, k, expected, measured);
    }
    free(d);
}

static void test_finite_differences(void **state) {
    static const Setting settings[] = { { GPT2_F32, 0, 1, 1, 0 }, { GPT2_F32, 3, 3, 1, 0 } };
    for (int i = 0; i < 2; i++) {
        double worst = 0;
        zero_step_result result;
        start(settings[i]);
        gradients(&result);
        zero_check(zero_discard(run.z));
        FOR_EACH_TENSOR(k, l) check_tensor(k, l, &worst);
        print_message("largest relative error %.1e\n", worst);
        stop();
    }
}

// -------- different settings, compared with each other

static void test_same_bits(void **state) {
    static const Setting settings[] = { { GPT2_F32, 0, 0, 1, 0 },    { GPT2_F32, 0, 1, 1, 0 },
                                        { GPT2_F32, 0, 2, 1, 0 },    { GPT2_F32, 1, 1, 1, 0 },
                                        { GPT2_F32, 2, 1, 1, 0 },    { GPT2_F32, 3, 0, 1, 0 },
                                        { GPT2_F32, 3, 2, 1, 0 },    { GPT2_F32, 0, 3, 1, 0 },
                                        { GPT2_F32, 3, 3, 1, 0 },    { GPT2_F32, 3, 0, 1, 0, 1 },
                                        { GPT2_F32, 1, 3, 1, 0, 1 }, { GPT2_F32, 3, 3, 1, 0, 1 } };
    float *first = malloc_check(gpt2_num_parameters(&ref.config) * sizeof(float));
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        zero_step_result result;
        start(settings[s]);
        gradients(&result);
        FOR_EACH_TENSOR(i, l) {
            float *at = first + place(model.tensors, model.config.num_layers, i, l);
            size_t bytes = model.tensors[i].elems * sizeof(float);
            if (s == 0)
                memcpy(at, captured[i][l], bytes);
            else if (memcmp(at, captured[i][l], bytes))
                fail_msg("%s, layer %d: gradients at stage %d with recompute %d differ from stage 0 with 0",
                         model.tensors[i].name, l, settings[s].stage, settings[s].recompute);
        }
        stop();
    }
    free(first);
}

// -------- comparison with the reference

// In fp32, 1e-5 for the loss and 1e-3 for a tensor's gradient. bf16 has 8 significant bits and rounds each
// layer's output and gradients: 1e-2 and 5e-2.
typedef struct {
    double loss, logit, norm_wise, element, param;
} Tolerance;
static const Tolerance fp32_tolerance = { 1e-5, 1e-4, 1e-3, 1e-4, 1e-4 },
                       bf16_tolerance = { 1e-2, 1e-1, 5e-2, 5e-2, 2e-2 };
static const Tolerance *tolerance_of(const Setting *s) {
    return s->dtype == GPT2_BF16 ? &bf16_tolerance : &fp32_tolerance;
}

static void check_close(const char *what, int step, double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance * fabs(expected)))
        fail_msg("%s of step %d: %.8f, expected %.8f", what, step, found, expected);
}

// Limits the norm of the difference, relative to the tensor's norm, and the difference of each element.
static void check_values(const char *what, int i, int l, const float *found, const float *expected,
                         double norm_wise, double element) {
    double norm = 0, off = 0, largest = 0;
    for (int64_t k = 0; k < model.tensors[i].elems; k++) {
        double d = (double)found[k] - expected[k];
        norm += (double)expected[k] * expected[k];
        off += d * d;
        if (!(fabs(d) <= largest)) largest = fabs(d);
    }
    if (!(sqrt(off) <= norm_wise * sqrt(norm)) || !(largest <= element))
        fail_msg("%s of %s, layer %d: off by %.2e in norm, %.2e in one element", what, model.tensors[i].name,
                 l, sqrt(off / norm), largest);
}

// Computes logits from the reference's tokens from..to-1, as part of one row of the cache.
static void pass_over_cache(int row, int from, int to, float *logits) {
    const int room = layers_cache_positions(model.cache_T);
    layers_span span = { row, from, to - from, 0, row * room, room };
    const CachedPass pass = {
        .tokens = ref.tokens + from,
        .n = span.n,
        .spans = &span,
        .n_spans = 1,
    };
    next_logits(&model, &pass, logits);
}

// Computes the logits after t tokens by a pass over the whole row, with the LM head at the last position.
static void logits_without_cache(const int *tokens, int t, float *logits) {
    const int L = model.config.num_layers, C = model.config.channels, V = model.config.vocab_size;
    const gpt2_dtype dt = model.dtype;
    zero_check(zero_begin_eval(run.z));
    gpt2_forward(&model, &(Pass){ .inputs = tokens, .n = 1, .B = 1, .T = t });
    zero_check(zero_pre_forward(run.z, EMBEDDING));
    LAYER(residual_layernorm_forward(dt, act(&model, RESIDUAL3, L - 1), act(&model, LNF, 0),
                                     act(&model, LNF_MEAN, 0), act(&model, LNF_RSTD, 0),
                                     act(&model, RESIDUAL2, L - 1), act(&model, SCRATCH_BTC, 0),
                                     param(LNFW, 0), param(LNFB, 0), t, C));
    LAYER(matmul_forward(dt, act(&model, LOGITS, 0), row_of(&model, act(&model, LNF, 0), t - 1, C),
                         param(WTE, 0), NULL, 1, C, model.config.padded_vocab_size));
    zero_check(zero_post_forward(run.z, EMBEDDING));
    for (int v = 0; v < V; v++) logits[v] = gpt2_value(dt, act(&model, LOGITS, 0), v);
}

static void same_logits(const char *what, int t, const float *logits, const float *want) {
    for (int v = 0; v < model.config.vocab_size; v++)
        if (logits[v] != want[v])
            fail_msg("%s: logit %d after %d tokens: %.9g, without a cache %.9g", what, v, t, logits[v],
                     want[v]);
}

// As in the trainer's sampling, one row of the cache grows by one token at a time. Another row is recomputed
// from scratch each time. Both must give the same bits as passes without a cache.
static void check_next_logits(const Tolerance *tolerance) {
    const int V = model.config.vocab_size;
    float *logits = malloc_check(V * sizeof(float)), *want = malloc_check(V * sizeof(float));
    for (int t = 1; t <= model.T; t++) {
        logits_without_cache(ref.tokens, t, want);
        for (int v = 0; v < V; v++) {
            double expected = ref.logits[(t - 1) * V + v];
            if (!(fabs(want[v] - expected) <= tolerance->logit))
                fail_msg("logit %d after %d tokens: %f, expected %f", v, t, want[v], expected);
        }
        pass_over_cache(1, t - 1, t, logits);
        same_logits("one more token", t, logits, want);
        pass_over_cache(0, 0, t, logits);
        same_logits("all at once", t, logits, want);
    }
    free(logits);
    free(want);
}

// Generates a batch of two rows, one of which outgrows the model's context. Each token's logits must equal
// those of a pass without a cache over only the last T tokens of its row.
static void check_generation(void) {
    enum { PROMPT = 3, MORE = 4 };
    const int T = model.T, totals[] = { T + MORE, T + MORE - PROMPT };
    const double temperature = opt.temperature;
    float *want = malloc_check(model.config.vocab_size * sizeof(float));
    int passes = 0;
    Generation g;
    opt.temperature = 0;
    generation_begin(&g, &model);
    generation_add(&g, ref.tokens, PROMPT, totals[0], 1);
    generation_add(&g, ref.tokens + PROMPT, 1, totals[1], 2);
    for (; generation_next(&g); passes++) {
        next_logits(&model, &g.pass, g.logits);
        for (int i = 0; i < g.pass.n_spans; i++) {
            const GenerationRow *row = &g.rows[g.pass.spans[i].row];
            int from = row->length > T ? row->length - T : 0;
            logits_without_cache(row->tokens + from, row->length - from, want);
            same_logits("generation", row->length, g.logits + (size_t)i * model.config.vocab_size, want);
        }
        generation_choose(&g);
    }
    assert_int_equal(passes, T + MORE - PROMPT);
    for (int r = 0; r < 2; r++) assert_int_equal(g.rows[r].length, totals[r]);
    generation_end(&g);
    free(want);
    opt.temperature = temperature;
}

// -------- multiple-choice examples

enum { MOST_CHOICES = 4 * 16 };
static double choices[MOST_CHOICES];  // losses of the completions
static int scored;                    // number scored so far

static int capture_score(HellaSwag *h) {
    const int rc = hellaswag_score(h);
    for (const HellaSwagRow *row = h->rows; row < h->rows + h->B && row->n; row++, scored++)
        choices[4 * row->example + row->completion] = row->loss;
    return rc;
}

// Scores one rank's completions, alone or in full batches. Returns the number of right answers.
static int score_choices(int rank, int ranks, int alone) {
    HellaSwag h;
    gpt2_check(hellaswag_open(&h, "tests/reference_hellaswag.bin", model.B, model.T, model.config.vocab_size,
                              rank, ranks));
    assert_int_equal(h.num_examples, ref.answers[0]);
    assert_true(4 * h.num_examples <= MOST_CHOICES);
    if (alone) {
        memset(h.inputs, 0, model.B * model.T * sizeof *h.inputs);
        memset(h.targets, 0, model.B * model.T * sizeof *h.targets);
        h.B = 1;
        h.batches = 4 * h.num_examples;
    }
    const int correct = gpt2_hellaswag(&model, &h);
    hellaswag_close(&h);
    return correct;
}

// Checks the losses of all completions and, in fp32, the number of right answers.
static void check_choices(const Setting *s) {
    double together[MOST_CHOICES];
    scored = 0;
    const int correct = score_choices(0, 1, 0);
    assert_int_equal(scored, 4 * ref.answers[0]);
    for (int i = 0; i < scored; i++)
        check_close("loss of a completion", 0, choices[i], ref.choices[i], tolerance_of(s)->loss);
    if (s->dtype == GPT2_F32) assert_int_equal(correct, ref.answers[1]);
    memcpy(together, choices, sizeof together);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        int sum = 0;
        memset(choices, 0, sizeof choices);
        for (int rank = scored = 0; rank < ranks; rank++) sum += score_choices(rank, ranks, ranks == 1);
        assert_int_equal(scored, 4 * ref.answers[0]);
        assert_int_equal(sum, correct);
        assert_memory_equal(choices, together, scored * sizeof *choices);
    }
}

static void check_against_reference(Setting s) {
    const Tolerance *tolerance = tolerance_of(&s);
    zero_step_result result;
    int L = ref.config.num_layers;
    start(s);
    check_next_logits(tolerance);
    if (s.micro_batches == 1) check_generation();  // needs activations for two rows
    check_choices(&s);
    check_close("validation loss", 0, gpt2_validate(&model, &loader, s.micro_batches), ref.losses[0],
                tolerance->loss);
    for (int step_ = 0; step_ < ref.steps; step_++) {
        zero_hyper hyper = ref.hyper;
        hyper.t = step_ + 1;
        check_close("loss", step_, gradients(&result), ref.losses[step_], tolerance->loss);
        check_close("gradient norm", step_, result.grad_norm, ref.norms[step_], tolerance->norm_wise);
        if (step_ == 0) FOR_EACH_TENSOR(i, l)
        check_values("gradient", i, l, captured[i][l], ref.grads + place(model.tensors, L, i, l),
                     tolerance->norm_wise, tolerance->element);
        zero_check(zero_update(run.z, &hyper));
    }
    FOR_EACH_TENSOR(i, l) {
        float *p = malloc_check(model.tensors[i].elems * sizeof(float));
        zero_check(zero_get(run.z, s.dtype == GPT2_BF16 ? ZERO_MASTER : ZERO_PARAM, i, l, 0,
                            model.tensors[i].elems, p));
        check_values("updated value", i, l, p, ref.updated + place(model.tensors, L, i, l),
                     tolerance->norm_wise, tolerance->param);
        free(p);
    }
    check_close("loss", ref.steps, gradients(&result), ref.losses[ref.steps], tolerance->loss);
    stop();
}

static void test_reference(void **state) {
    static const Setting settings[] = {
        { GPT2_F32, 0, 1, 1, 0 },  { GPT2_F32, 3, 2, 1, 0 },  { GPT2_F32, 3, 1, 2, 0 },  // accumulates
        { GPT2_F32, 1, 0, 1, 5 },                                                        // splits the logits
        { GPT2_BF16, 0, 1, 1, 0 }, { GPT2_BF16, 2, 2, 2, 0 },
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) check_against_reference(settings[i]);
}

// -------- llm.c's initialisation, which is PyTorch's

typedef struct {
    float *values;
    int *seen;
    GPT2Tensor tensors[NUM_PARAMETER_TENSORS];
} Received;

static int receive(void *ctx, int tensor, int layer, int64_t offset, int64_t n, const float *values) {
    Received *r = ctx;
    size_t at = place(r->tensors, ref.small.num_layers, tensor, layer) + offset;
    memcpy(r->values + at, values, n * sizeof(float));
    for (int64_t k = 0; k < n; k++) r->seen[at + k]++;
    return 0;
}

static void test_initialisation(void **state) {
    size_t P = gpt2_num_parameters(&ref.small);
    Received r = { malloc_check(P * sizeof(float)), malloc_check(P * sizeof(int)), { { 0 } } };
    memset(r.seen, 0, P * sizeof(int));
    gpt2_tensors(&ref.small, r.tensors);
    gpt2_check(gpt2_init(&ref.small, receive, &r));
    for (size_t k = 0; k < P; k++) {
        assert_int_equal(r.seen[k], 1);
        // PyTorch's vectorised logarithm and cosine differ from libm's in the last bits.
        if (!(fabsf(r.values[k] - ref.initial[k]) <= 2e-7f))
            fail_msg("initial value %zu: %.9g, torch %.9g", k, r.values[k], ref.initial[k]);
    }
    free(r.values);
    free(r.seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_initialisation),
    };
    parse_options(0, NULL);
    return cmocka_run_group_tests(tests, read_reference, NULL);
}
