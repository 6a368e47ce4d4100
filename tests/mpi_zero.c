// Tests the plugin on several ranks: mpirun -np N mpi_zero, for any N. Every path and setting gives the same
// bits, memory and traffic equal the plan (tests/test_plan.c checks its formulas), and collectives overlap
// with computation.
//   mpi_zero NAME         runs one check, such as "same bits" or "no memory"
//   mpi_zero timeout      ranks that miss a collective, or call different ones, fail with an error
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include "check.h"
#include "plan.h"
#include "settings.h"
#include "toy.h"
#include "../llmc_zero/internal.h"
#include "../llmc_zero/net/failure.h"

enum { STEPS = 4, EVAL_AFTER = 2 };

// Returns 1 if the data equals rank 0's.
static int same_on_all_ranks(const void *data, int bytes) {
    char first[1024];
    memcpy(first, data, bytes);
    MPI_Bcast(first, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    return !memcmp(first, data, bytes);
}

// -------- the plan

// Returns the bytes that each rank sends when a unit is gathered.
static int64_t gather_bytes(const zero *z, int unit) {
    return z->layout.units[unit].shard * (checks.ranks - 1) * (int64_t)dtype_bytes(z->config.numbers.dtype);
}

// Makes the plan for this rank, without a plugin or other ranks.
static zero_plan plan_for(const zero_config *c, const zero_unit *units, int ranks_on_node) {
    zero_plan plan;
    zero_config own = *c;
    own.start.rank = checks.rank;
    MUST(
        zero_make_plan(&plan, &own, toy_tensors, TOY_TENSORS, units, TOY_UNITS, checks.ranks, ranks_on_node));
    return plan;
}

// Returns a config with fp32, one micro-batch, and defaults for the rest.
static zero_config simple(int stage, int overlap) {
    return settings_config(&settings_paths[stage + 1], &settings_formats[0], 1,
                           &settings_variations[overlap]);
}

static int64_t scalars_at_start;  // bytes that zero_create sent

// Checks that the traffic counted over all steps so far equals the plan's.
static void check_traffic(zero *z, const zero_traffic *planned, int steps) {
    const int p = ZERO_FOR_STEP, s = ZERO_FOR_SCALARS;
    zero_traffic counted;
    zero_traffic_info(z, &counted);
    CHECK(counted.all_gather[p] == planned->all_gather[p] * steps);
    CHECK(counted.reduce_scatter[p] == planned->reduce_scatter[p] * steps);
    CHECK(counted.other[p] == planned->other[p] * steps);
    CHECK(counted.other[s] == planned->other[s] * steps + scalars_at_start);
}

static void check_eval_traffic(zero *z, const zero_traffic *planned) {
    zero_traffic t;
    zero_traffic_info(z, &t);
    CHECK(t.all_gather[ZERO_FOR_EVAL] == planned->all_gather[ZERO_FOR_EVAL]);
    CHECK(t.reduce_scatter[ZERO_FOR_EVAL] == 0 && t.other[ZERO_FOR_EVAL] == 0);
}

// Called before the first step and after the last. If the memory in use equals the plan both times, no step
// allocates. Model states are as large as the formula predicts, plus padding.
static void check_memory(const zero *z, const zero_plan *planned) {
    zero_plan own;
    const char *difference = plan_differs(planned, z);
    const zero_formula *f = &planned->formulas[z->config.stage];
    const size_t held = zero_memory_bytes(z, ZERO_STATES);
    const layout *l = &z->layout;
    const int64_t frozen = l->elems - l->trained_elems, flat_frozen = l->stored_flat_elems - l->flat_elems;
    const double padding = fmax((double)l->flat_elems / l->trained_elems,
                                frozen ? (double)flat_frozen / frozen : 1);
    check_that(!*difference, difference, __FILE__, __LINE__);
    zero_plan_info(z, &own);
    CHECK(!*plan_differs(&own, z));
    CHECK(!memcmp(&own.traffic, &planned->traffic, sizeof own.traffic));
    for (int k = 0; k < ZERO_MEMORY_CLASSES; k++)
        CHECK(planned->bytes[k] == zero_memory_bytes(z, (zero_memory_class)k));
    CHECK(held >= f->bytes && held <= (f->bytes + 1) * padding + 4 * 4095);  // states take whole pages
    CHECK(padding < (frozen ? 4 : 1.2));  // a frozen unit has only 129 elements, a shard at least 128
}

// -------- same bits

typedef struct {
    char params[17], full[17];
    double norms[STEPS];
    float eval;
} outcome;

static void check_transport(const zero *z, const zero_config *c) {
    zero_job e;
    zero_job_info(z, &e);
    const char *way = checks.ranks == 1 ? "one rank" : c->comm.shared_window ? "shared window" : "messages";
    CHECK(!strncmp(e.comm, "mpi, ", 5) && !strncmp(e.comm + 5, way, strlen(way)));
}

// Returns how many parameters of frozen tensors are not the initial ones.
static int64_t changed_frozen(const toy *t) {
    static float got[TOY_LARGEST];
    int64_t changed = 0;
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; toy_tensors[k].frozen && l < toy_tensors[k].layers; l++) {
            MUST(zero_get(t->z, ZERO_MASTER, k, l, 0, toy_elems(k), got));
            for (int64_t i = 0; i < toy_elems(k); i++)
                changed += got[i] != toy_rounded(t->dtype, toy_initial(k, l, i));
        }
    return changed;
}

static outcome train(const zero_config *c) {
    outcome o;
    toy t;
    zero_job job;
    zero_traffic at_start;
    memset(&o, 0, sizeof o);
    MUST(toy_create(&t, c, NULL));
    check_transport(t.z, c);
    zero_job_info(t.z, &job);
    zero_traffic_info(t.z, &at_start);
    scalars_at_start = at_start.other[ZERO_FOR_SCALARS];
    const zero_plan planned = plan_for(c, toy_units, job.ranks_on_host);
    check_memory(t.z, &planned);
    for (int step = 1; step <= STEPS; step++) {
        zero_step_result result;
        MUST(toy_step(&t, c->micro_batches, step, &result));
        CHECK(result.finite && result.grad_norm > 0);
        o.norms[step - 1] = result.grad_norm;
        check_traffic(t.z, &planned.traffic, step);
        if (step != EVAL_AFTER) continue;
        MUST(toy_eval(&t));
        o.eval = t.activation;
        check_traffic(t.z, &planned.traffic, step);
    }
    MUST(zero_hash(t.z, 0, o.params));
    MUST(zero_hash(t.z, 1, o.full));
    check_traffic(t.z, &planned.traffic, STEPS);
    check_eval_traffic(t.z, &planned.traffic);
    check_memory(t.z, &planned);
    CHECK(changed_frozen(&t) == 0);
    zero_destroy(t.z);
    CHECK(same_on_all_ranks(&o, offsetof(outcome, eval)));  // `eval` differs between ranks
    return o;
}

// Without gradient accumulation, all paths agree bit for bit. With it, naive agrees with stages 0 and 1,
// stage 2 agrees with stage 3, and the two groups differ only by rounding. Runs one of every `of` settings.
static void check_format(const char *what, const settings_format *format, int micro_batches, int at, int of) {
    outcome naive = { 0 }, reference = { 0 };
    for (int p = 0; p < SETTINGS_COUNT(settings_paths); p++)
        for (int v = 0; v < SETTINGS_COUNT(settings_variations); v += format->every) {
            const settings_path *path = &settings_paths[p];
            const int is_reference = v == 0 && (p == 0 || (path->stage == 2 && micro_batches > 1));
            if (!is_reference && !settings_chosen(p + v / format->every + at + checks.ranks, of)) continue;
            zero_config c = settings_begin(what, path, format, micro_batches, &settings_variations[v]);
            outcome o = train(&c);
            if (p == 0 && v == 0) naive = reference = o;
            if (path->stage == 2 && v == 0 && micro_batches > 1) {
                const double tolerance = format->dtype == ZERO_F32 ? 1e-5 : 1e-2;
                for (int i = 0; i < STEPS; i++)
                    CHECK(fabs(o.norms[i] - naive.norms[i]) <= tolerance * naive.norms[i]);
                reference = o;
            }
            CHECK(!strcmp(o.params, reference.params));
            CHECK(!strcmp(o.full, reference.full));
            CHECK(!memcmp(o.norms, reference.norms, sizeof o.norms));
            CHECK(!memcmp(&o.eval, &reference.eval, sizeof o.eval));
        }
}

static void check_same_bits(void) {
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            check_format("bits", &settings_formats[f], settings_micro_batches[m], f + m, 3);
    for (int f = 0; f < SETTINGS_COUNT(settings_updates); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            check_format("bits", &settings_updates[f], settings_micro_batches[m], f + m, 3);
    settings_direct(0);
}

static void check_frozen(void) {
    for (int s = 1; s < TOY_FROZEN_SETS; s++)
        for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
            for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
                check_format(toy_freeze(s), &settings_formats[f], settings_micro_batches[m], s + f + m, 5);
    toy_freeze(0);
    settings_direct(0);
}

// -------- the trainer's own update

typedef struct {
    int pieces, wrong;
} pieces_seen;

// AdamW as a function. ctx: a pieces_seen.
static void adamw_with(void *ctx, const zero_piece *p) {
    pieces_seen *seen = ctx;
    const zero_hyper *h = p->hyper;
    const zero_tensor *t = &toy_tensors[p->tensor];
    const float factor = t->lr_factor ? t->lr_factor : 1;
    const float step = (float)(h->lr / (1 - pow(h->beta1, h->t))) * factor;
    const float correction = (float)(1 / sqrt(1 - pow(h->beta2, h->t)));
    const float keep = (float)(1 - (double)h->lr * h->weight_decay * ((double)factor * t->decay));
    const int wrong = p->lr != h->lr * factor || p->weight_decay != h->weight_decay * t->decay ||
                      p->layer >= t->layers || p->offset + p->n > toy_elems(p->tensor);
    float *m = p->states[0], *v = p->states[1];
    for (int64_t i = 0; i < p->n; i++) {
        const float g = p->gradient[i];
        m[i] = fmaf(1 - h->beta1, g, h->beta1 * m[i]);
        v[i] = fmaf((1 - h->beta2) * g, g, h->beta2 * v[i]);
        p->weights[i] = fmaf(-step, m[i] / fmaf(sqrtf(v[i]), correction, h->eps), keep * p->weights[i]);
    }
    __atomic_fetch_add(&seen->pieces, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&seen->wrong, wrong, __ATOMIC_RELAXED);
}

// The same arithmetic gives the same bits, with clipping and a loss scale.
static void check_own_adamw(void) {
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int p = 0; p < SETTINGS_COUNT(settings_paths); p++) {
            pieces_seen seen = { 0, 0 };
            zero_config c = settings_config(&settings_paths[p], &settings_formats[f], 1,
                                            &settings_variations[1]);
            CHECK_SETTING("AdamW as a function, %s, %s", settings_paths[p].name, settings_formats[f].name);
            const outcome want = train(&c);
            c.update_with = adamw_with;
            c.update_ctx = &seen;
            const outcome o = train(&c);
            CHECK(!memcmp(&o, &want, sizeof o));
            CHECK(seen.pieces > 0 && !seen.wrong);
        }
}

// -------- exact gradients

static int expected_integer(int tensor, int layer, int64_t i, int micro_batches) {
    int sum = 0;
    for (int m = 0; m < micro_batches; m++)
        for (int r = 0; r < checks.ranks; r++) {
            toy_use u = { .ranks = checks.ranks, .rank = r, .micro = m, .tensor = tensor, .layer = layer };
            sum += toy_integer(&u, i);
            u.use = 1;
            if (toy_tensors[tensor].unit == 0) sum += toy_integer(&u, i);
        }
    return sum / checks.ranks;
}

static int own_master(const zero_config *c) { return c->numbers.dtype == ZERO_F32 || c->numbers.no_master; }

// Returns how many values of all tensors differ from the mean gradient or, for parameters, from the initial
// values. Adds their squares to *squares.
static int64_t wrong_values(const toy *t, const zero_config *c, zero_value what, double *squares) {
    static float got[TOY_LARGEST];
    double scale = what == ZERO_GRADIENT ? zero_loss_scale(t->z) : 1;
    int64_t wrong = 0;
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++) {
            MUST(zero_get(t->z, what, k, l, 0, toy_elems(k), got));
            for (int64_t i = 0; i < toy_elems(k); i++) {
                float initial = own_master(c) ? toy_rounded(c->numbers.dtype, toy_initial(k, l, i))
                                              : toy_initial(k, l, i);
                wrong += got[i] != (what == ZERO_MASTER
                                        ? initial
                                        : scale * expected_integer(k, l, i, c->micro_batches));
                *squares += (double)got[i] * got[i];
            }
        }
    return wrong;
}

// With beta1 = beta2 = 0 the first moment equals the gradient; with lr = 0 parameters do not change. Only the
// gradient includes the loss scale.
static void check_integers(const zero_config *c) {
    zero_hyper h = { .eps = 1e-8f, .t = 1 };
    zero_step_result result;
    toy t;
    double squares, unused = 0;
    MUST(toy_create(&t, c, NULL));
    t.integers = 1;
    for (int step = 0; step < 2; step++) {  // the second step must not depend on the first
        MUST(toy_passes(&t, c->micro_batches));
        MUST(zero_finish_gradients(t.z, &result));
        squares = 0;
        CHECK(wrong_values(&t, c, ZERO_GRADIENT, &squares) == 0);
        CHECK(result.grad_norm == sqrt(squares) / result.loss_scale &&
              result.loss_scale == (c->numbers.dtype == ZERO_F16 ? 256 : 1));
        MUST(zero_update(t.z, &h));
    }
    CHECK(wrong_values(&t, c, ZERO_MOMENT1, &unused) == 0);
    CHECK(wrong_values(&t, c, ZERO_MASTER, &unused) == 0);
    zero_destroy(t.z);
}

static void check_exact_gradients(void) {
    for (int p = 0; p < SETTINGS_COUNT(settings_paths); p++)
        for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
            for (int m = 0; m < 2; m++)
                for (int v = 0; v < 2; v++) {
                    zero_config c = settings_config(&settings_paths[p], &settings_formats[f],
                                                    settings_micro_batches[m], &settings_variations[v]);
                    CHECK_SETTING("integers, %s, %s, %d micro-batches, overlap %d", settings_paths[p].name,
                                  settings_formats[f].name, c.micro_batches, v);
                    check_integers(&c);
                }
}

// -------- traffic

// Gathers are counted exactly. A second use of a block in forward adds a gather, and so does a backward use
// that is not declared as gradient-only. The plan includes both.
static void check_extra_gathers(void) {
    zero_config c = simple(3, 1);
    int64_t plain = 0;
    for (int extra = 0; extra < 3; extra++) {
        static const int unit_of[] = { 0, 2, 0 };
        zero_unit units[TOY_UNITS];
        zero_traffic traffic;
        toy t;
        CHECK_SETTING("extra gathers: %d", extra);
        memcpy(units, toy_units, sizeof units);
        if (extra == 1) units[2].forward_uses = 2;
        if (extra == 2) units[0].gradient_only_uses = 0;  // the encoder's backward gathers too
        MUST(toy_create(&t, &c, units));
        MUST(toy_step(&t, 1, 1, NULL));
        zero_traffic_info(t.z, &traffic);
        const int64_t gathered = traffic.all_gather[ZERO_FOR_STEP];
        if (extra == 0) plain = gathered;
        CHECK(gathered == plain + (extra ? gather_bytes(t.z, unit_of[extra]) : 0));
        CHECK(gathered == plan_for(&c, units, 1).traffic.all_gather[ZERO_FOR_STEP]);
        zero_destroy(t.z);
    }
}

// Runs steps with fewer micro-batches than the maximum: stage 2 reduces for each, stage 3 also gathers.
static void check_fewer_micro_batches(void) {
    for (int p = 1; p < SETTINGS_COUNT(settings_paths); p++) {
        zero_config c = settings_config(&settings_paths[p], &settings_formats[1], 3, &settings_variations[1]);
        const zero_traffic planned = plan_for(&c, toy_units, 1).traffic;
        zero_traffic before, after;
        char hex[17];
        toy t;
        CHECK_SETTING("fewer micro-batches, %s", settings_paths[p].name);
        MUST(toy_create(&t, &c, NULL));
        for (int of = 1; of <= 3; of++) {
            zero_traffic_info(t.z, &before);
            MUST(toy_step(&t, of, of, NULL));
            MUST(zero_hash(t.z, 0, hex));
            zero_traffic_info(t.z, &after);
            CHECK(after.all_gather[ZERO_FOR_STEP] - before.all_gather[ZERO_FOR_STEP] ==
                  planned.all_gather[ZERO_FOR_STEP] * (c.stage == 3 ? of : 3) / 3);
            CHECK(after.reduce_scatter[ZERO_FOR_STEP] - before.reduce_scatter[ZERO_FOR_STEP] ==
                  planned.reduce_scatter[ZERO_FOR_STEP] * (c.stage >= 2 ? of : 3) / 3);
        }
        zero_destroy(t.z);
    }
}

// An update starts a gather for the next pass. Each pass, whether training or evaluation, counts the gathers
// that it uses. A unit that zero_set makes stale is gathered again. The bits must equal those with prefetch
// 0, which never gathers early.
typedef struct {
    char full[17];
    float evals[2];
} passes_outcome;

static void check_gathered(zero *z, const zero_traffic *planned, int steps, int evals, int64_t unused) {
    zero_traffic traffic;
    zero_traffic_info(z, &traffic);
    CHECK(traffic.all_gather[ZERO_FOR_STEP] == steps * planned->all_gather[ZERO_FOR_STEP]);
    CHECK(traffic.all_gather[ZERO_FOR_EVAL] == evals * planned->all_gather[ZERO_FOR_EVAL]);
    CHECK(traffic.all_gather[ZERO_FOR_UNUSED] == unused);
}

static passes_outcome train_with_other_passes(const zero_config *c) {
    static float ones[TOY_LARGEST];
    const zero_hyper h = toy_hyper(3);
    const zero_traffic planned = plan_for(c, toy_units, 1).traffic;
    const int A = c->micro_batches;
    int64_t ahead = 0;  // bytes of the gather that an update starts
    passes_outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    for (int i = 0; i < TOY_LARGEST; i++) ones[i] = 1;
    MUST(toy_create(&t, c, NULL));
    if (c->stage == 3 && c->prefetch) ahead = gather_bytes(t.z, 0);
    MUST(toy_step(&t, A, 1, NULL));
    check_gathered(t.z, &planned, 1, 0, ahead);
    for (int i = 0; i < 2; i++) {
        MUST(toy_eval(&t));
        check_gathered(t.z, &planned, 1, i + 1, 0);
        o.evals[i] = t.activation;
    }
    MUST(toy_step(&t, A, 2, NULL));
    MUST(zero_hash(t.z, 0, o.full));
    check_gathered(t.z, &planned, 2, 2, ahead);
    MUST(zero_set(t.z, ZERO_PARAM, 0, 0, 0, TOY_LARGEST, ones));
    check_gathered(t.z, &planned, 2, 2, ahead);
    MUST(toy_passes(&t, A));
    MUST(zero_finish_gradients(t.z, NULL));
    MUST(zero_discard(t.z));
    if (c->stage == 3) check_gathered(t.z, &planned, 3, 2, ahead);
    MUST(toy_passes(&t, A));
    MUST(zero_finish_gradients(t.z, NULL));
    MUST(zero_update(t.z, &h));
    if (c->stage == 3) check_gathered(t.z, &planned, 4, 2, 2 * ahead);
    MUST(zero_hash(t.z, 1, o.full));
    zero_destroy(t.z);  // while a gather is in progress
    return o;
}

static void check_other_passes(void) {
    for (int p = 2; p < SETTINGS_COUNT(settings_paths); p++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++) {
            passes_outcome without = { 0 };
            for (int i = 0; i < 6; i++) {
                int most = settings_micro_batches[m];
                zero_config c = settings_config(&settings_paths[p], &settings_formats[1], most,
                                                &settings_variations[i % 2]);
                c.prefetch = i / 2;
                c.debug.poison = i % 2;
                CHECK_SETTING("passes after an update, %s, %d micro-batches, prefetch %d, overlap %d",
                              settings_paths[p].name, c.micro_batches, c.prefetch, c.overlap);
                passes_outcome o = train_with_other_passes(&c);
                if (i == 0) without = o;
                CHECK(!memcmp(&o, &without, sizeof o));
            }
        }
}

// Forward uses the blocks in a different order in every step. Below stage 3, forward has no collectives, so
// the order also differs between ranks. The update must still gather in the same order on all ranks.
static void train_in_any_order(const zero_config *c, char full[17]) {
    toy t;
    MUST(toy_create(&t, c, NULL));
    for (int step = 1; step <= 4; step++) {
        MUST(zero_begin_train(t.z, 0, 1));
        MUST(toy_start(&t, 0.1f * t.rank));
        MUST(toy_forward(&t, 0));
        for (int k = 0; k < TOY_BLOCKS; k++)
            MUST(toy_forward(&t, 1 + (k * 3 + step + (c->stage < 3 ? checks.rank : 0)) % TOY_BLOCKS));
        MUST(toy_forward(&t, 0));
        MUST(toy_backward_pass(&t));
        MUST(zero_step(t.z, &(zero_hyper){ .lr = 1e-2f, .eps = 1e-8f, .t = step }, NULL));
    }
    MUST(zero_hash(t.z, 1, full));
    zero_destroy(t.z);
}

static void check_any_order(void) {
    for (int overlap = 0; overlap < 2; overlap++) {
        char without[17], full[17];
        for (int stage = 0; stage < 3; stage++) {
            zero_config c = simple(stage, overlap);
            CHECK_SETTING("forward in a different order on each rank, stage %d, overlap %d", stage, overlap);
            train_in_any_order(&c, stage ? full : without);
            if (stage) CHECK(!strcmp(full, without));
        }
        for (int prefetch = 0; prefetch <= 2; prefetch++) {
            zero_config c = simple(3, overlap);
            c.prefetch = prefetch;
            c.debug.poison = prefetch > 0;
            CHECK_SETTING("forward in a different order in each step, prefetch %d, overlap %d", prefetch,
                          overlap);
            train_in_any_order(&c, prefetch ? full : without);
            if (prefetch) CHECK(!strcmp(full, without));
        }
    }
}

// -------- values and scalars

static float value_of(int what, int tensor, int layer, int64_t i) {
    return (float)((i * 37 + tensor * 11 + layer * 5 + what * 3) % 1009) / 1009;
}

// Sets all values of one kind, or counts those that differ. ZERO_PARAM also sets the master, so it must be
// set first.
static int64_t each_value(toy *t, const zero_config *c, int w, int set) {
    static const zero_value order[] = { ZERO_PARAM, ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2 };
    static float x[TOY_LARGEST], got[TOY_LARGEST];
    const int shared = own_master(c) && order[w] == ZERO_MASTER;  // the master is the parameter
    int64_t wrong = 0;
    if (set && shared) return 0;
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++) {
            const int64_t n = toy_elems(k), third = n / 3;
            for (int64_t i = 0; i < n; i++) x[i] = value_of(shared ? 0 : w, k, l, i);
            if (set) {
                MUST(zero_set(t->z, order[w], k, l, third, n - third, x + third));
                MUST(zero_set(t->z, order[w], k, l, 0, third, x));
                continue;
            }
            MUST(zero_get(t->z, order[w], k, l, third, n - third, got + third));
            MUST(zero_get(t->z, order[w], k, l, 0, third, got));
            const int rounded = shared || order[w] == ZERO_PARAM;
            for (int64_t i = 0; i < n; i++)
                wrong += got[i] != (rounded ? toy_rounded(c->numbers.dtype, x[i]) : x[i]);
        }
    return wrong;
}

static void check_values(const zero_config *c) {
    toy t;
    MUST(toy_create(&t, c, NULL));
    MUST(toy_eval(&t));
    MUST(toy_step(&t, 1, 1, NULL));
    MUST(zero_begin_eval(t.z));
    MUST(toy_forward(&t, 0));  // starts gathers of the next units, which must not undo zero_set
    for (int w = 0; w < 4; w++) each_value(&t, c, w, 1);
    for (int w = 0; w < 4; w++) CHECK(each_value(&t, c, w, 0) == 0);
    MUST(toy_eval(&t));
    zero_destroy(t.z);
}

static void check_scalars(const zero_config *c) {
    enum { BIG = 300001 };
    static char data[BIG];
    double x[64], want[64], mine[64];
    zero *z;
    MUST(zero_create(&z, c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS));
    CHECK(zero_rank(z) == checks.rank && zero_ranks(z) == checks.ranks);
    for (int i = 0; i < 64; i++) {
        mine[i] = x[i] = (checks.rank % 2 ? -1 : 1) * (0.1 + i) * (i % 3 ? 1e16 : 1) / (checks.rank + 1);
        for (int r = 0; r < checks.ranks; r++) {
            double theirs = (r % 2 ? -1 : 1) * (0.1 + i) * (i % 3 ? 1e16 : 1) / (r + 1);
            want[i] = r ? want[i] + theirs : theirs;
        }
    }
    MUST(zero_sum(z, x, 64));
    CHECK(!memcmp(x, want, sizeof x));
    CHECK(same_on_all_ranks(x, sizeof x));
    MUST(zero_sum(z, mine, 1));
    CHECK(mine[0] == want[0]);
    for (int root = 0; root < checks.ranks; root++) {
        for (int i = 0; i < BIG; i++) data[i] = checks.rank == root ? (char)(i * 7 + root) : 0;
        MUST(zero_broadcast(z, root, data, BIG));
        int wrong = 0;
        for (int i = 0; i < BIG; i++) wrong += data[i] != (char)(i * 7 + root);
        CHECK(wrong == 0);
        MUST(zero_barrier(z));
    }
    zero_destroy(z);
}

static void check_values_and_scalars(void) {
    for (int v = 1; v < SETTINGS_COUNT(settings_variations); v += 3)
        for (int p = 1; p < SETTINGS_COUNT(settings_paths); p++) {
            const settings_format *format = &settings_formats[(v + p) % SETTINGS_COUNT(settings_formats)];
            zero_config c = settings_begin("values", &settings_paths[p], format, 1, &settings_variations[v]);
            check_values(&c);
            check_scalars(&c);
        }
}

// -------- overlap

// Counts the pairs of overlapping events: one of kind `a` and one of kind `b`, on different units.
static int meetings(const zero *z, trace_kind a, trace_kind b) {
    int n = 0;
    trace_event x, y;
    for (int i = 0; trace_at(&z->trace, i, &x); i++) {
        if (x.kind != a) continue;
        for (int j = 0; trace_at(&z->trace, j, &y); j++)
            n += y.kind == b && y.unit != x.unit && x.start_s < y.end_s && y.start_s < x.end_s;
    }
    return n;
}

// Without overlap a collective runs when it is started, so the trace shows the order of starts: a unit's
// gather starts before the next unit is updated. tests/test_hooks.c checks the whole step at stage 3.
static void check_order_in_update(void) {
    static const char *const orders[] = { "U0 U1 U2 U3 U4", "U0 G0 U1 G1 U2 G2 U3 G3 U4 G4",
                                          "U0 G0 U1 U2 U3 U4" };
    for (int stage = 1; stage <= 3; stage++) {
        zero_config c = simple(stage, 0);
        const char *expected = orders[stage == 3 ? 2 : checks.ranks > 1];
        int next = 0;
        toy t;
        c.debug.trace_events = 2000;
        CHECK_SETTING("order in the update, stage %d", stage);
        MUST(toy_create(&t, &c, NULL));
        MUST(toy_passes(&t, 1));
        toy_events(&t.z->trace, &next);
        MUST(zero_step(t.z, &(zero_hyper){ .lr = 1e-3f, .eps = 1e-8f, .t = 1 }, NULL));
        CHECK(!strcmp(toy_events(&t.z->trace, &next), expected));
        zero_destroy(t.z);
    }
}

static int has_event(const zero *z, trace_kind kind) {
    trace_event e;
    for (int i = 0; trace_at(&z->trace, i, &e); i++)
        if (e.kind == kind) return 1;
    return 0;
}

// Blocks compute for a few milliseconds, longer on higher ranks, so that collectives last long enough to
// overlap. On a busy machine a collective may still start too late, so rounds of steps repeat, each with
// twice the computation of the previous one, until all expected overlaps have occurred.
static void check_overlap(void) {
    enum { ROUND = 6 };
    for (int overlap = 0; overlap < 2; overlap++)
        for (int stage = 2; stage <= 3; stage++) {
            zero_config c = simple(stage, overlap);
            const int rounds = overlap && checks.ranks > 1 ? 8 : 1;
            int reduces = 0, gathers = 0, waited = 0;
            toy t;
            c.debug.trace_events = 8000;
            c.reduce_bucket_size = 1;
            CHECK_SETTING("overlap of collectives and layers, stage %d, overlap %d", stage, overlap);
            MUST(toy_create(&t, &c, NULL));
            for (int round = 0; round < rounds && !(reduces && gathers && waited); round++) {
                t.compute_s = (0.002 + 0.001 * checks.rank) * (1 << round);
                for (int step = 1; step <= ROUND; step++) MUST(toy_step(&t, 1, round * ROUND + step, NULL));
                MUST(zero_barrier(t.z));
                reduces = check_any(meetings(t.z, EVENT_REDUCE, EVENT_BACKWARD) > 0);
                gathers = check_any(meetings(t.z, EVENT_GATHER, EVENT_FORWARD) > 0);
                waited = check_any(has_event(t.z, EVENT_WAIT));
            }
            if (checks.ranks > 1 || !overlap) {  // a single rank's collective is a copy, which is too short
                CHECK(reduces == overlap && gathers == overlap);
                CHECK(waited == overlap);
            }
            zero_destroy(t.z);
        }
}

// -------- timeout

// The last rank misses a barrier. The others report it in time, and refuse further calls without waiting.
static void check_timeout(void) {
    for (int shared = 0; shared < 2; shared++)
        for (int overlap = 0; overlap < 2; overlap++) {
            zero_config c = simple(3, overlap);
            toy t;
            double sum = 1;
            c.comm.shared_window = shared;
            c.comm.timeout_s = 3;
            CHECK_SETTING("timeout, %s, overlap %d", shared ? "window" : "messages", overlap);
            MUST(toy_create(&t, &c, NULL));
            MUST(toy_step(&t, 1, 1, NULL));
            if (checks.rank < checks.ranks - 1) {
                double start = MPI_Wtime();
                CHECK(zero_barrier(t.z) == ZERO_ERR_COMM);
                double first = MPI_Wtime() - start;
                CHECK(first > 2.9);
                CHECK(strstr(zero_last_error(), "waited 3 s"));
                CHECK(zero_sum(t.z, &sum, 1) == ZERO_ERR_COMM);
                CHECK(toy_step(&t, 1, 2, NULL) == ZERO_ERR_COMM);
                CHECK(MPI_Wtime() - start < first + 3);  // neither has waited
            }
            MPI_Barrier(MPI_COMM_WORLD);
            int reports = failure_reports(&t.z->net, 1), all = 0;
            MPI_Allreduce(&reports, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            CHECK(all == 1);
            zero_destroy(t.z);
        }
}

// The last rank misses the first step. At stage 2, the first collective of a step reduces the last units.
static void check_units_named(void) {
    static const struct {
        int64_t bucket;
        const char *units;
    } cases[] = {
        { 1, "reduce-scatter of unit 4 " },
        { 1LL << 40, "reduce-scatter of units 1 to 4 " },
    };
    for (int i = 0; i < SETTINGS_COUNT(cases); i++) {
        zero_config c = simple(2, 0);
        toy t;
        c.reduce_bucket_size = cases[i].bucket;
        c.comm.timeout_s = 3;
        CHECK_SETTING("units in the message, bucket %lld", (long long)c.reduce_bucket_size);
        MUST(toy_create(&t, &c, NULL));
        if (checks.rank < checks.ranks - 1) {
            CHECK(toy_step(&t, 1, 1, NULL) == ZERO_ERR_COMM);
            CHECK(strstr(zero_last_error(), cases[i].units));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        zero_destroy(t.z);
    }
}

// A process that MPI_Comm_split left out of a communicator has MPI_COMM_NULL.
static void check_no_communicator(void) {
    MPI_Comm none = MPI_COMM_NULL;
    zero_config c = simple(3, 0);
    toy t;
    c.start.mpi_comm = &none;
    CHECK_SETTING("MPI_COMM_NULL");
    CHECK(toy_create(&t, &c, NULL) == ZERO_ERR_ARGUMENT);
    CHECK(strstr(zero_last_error(), "MPI_COMM_NULL"));
}

// Ranks that open different units fail instead of mixing up the units' bytes.
static void check_disorder(void) {
    for (int shared = 0; shared < 2; shared++)
        for (int overlap = 0; overlap < 2; overlap++) {
            zero_config c = simple(3, overlap);
            toy t;
            c.comm.shared_window = shared;
            CHECK_SETTING("ranks open different units, %s, overlap %d", shared ? "window" : "messages",
                          overlap);
            MUST(toy_create(&t, &c, NULL));
            MUST(zero_begin_eval(t.z));
            int rc = zero_pre_forward(t.z, checks.rank == 0 ? 1 : 2);
            CHECK(rc == (checks.ranks > 1 ? ZERO_ERR_COMM : 0));  // rank 0 differs from all others
            if (rc) CHECK(strstr(zero_last_error(), "different collectives"));
            zero_destroy(t.z);
        }
}

// -------- inference

// With c.inference, parameters and activations equal those of a training plugin. The plugin uses only the
// planned memory. At stage 3 it gathers the embedding only once.
static void check_inference_at(zero_config c) {
    toy t;
    char want[17], got[17];
    zero_job job;
    zero_traffic sent;
    MUST(toy_create(&t, &c, NULL));
    MUST(toy_eval(&t));
    MUST(zero_hash(t.z, 0, want));
    const float activation = t.activation;
    zero_destroy(t.z);
    c.inference = 1;
    MUST(toy_create(&t, &c, NULL));
    zero_job_info(t.z, &job);
    const zero_plan planned = plan_for(&c, toy_units, job.ranks_on_host);
    for (int pass = 0; pass < 2; pass++) {
        MUST(toy_eval(&t));
        CHECK(!memcmp(&t.activation, &activation, sizeof activation));
    }
    zero_traffic_info(t.z, &sent);
    CHECK(sent.all_gather[ZERO_FOR_EVAL] ==
          2 * planned.traffic.all_gather[ZERO_FOR_EVAL] + (c.stage == 3 ? gather_bytes(t.z, 0) : 0));
    CHECK(sent.all_gather[ZERO_FOR_STEP] == 0 && sent.reduce_scatter[ZERO_FOR_STEP] == 0);
    MUST(zero_hash(t.z, 0, got));
    CHECK(!strcmp(got, want));
    check_memory(t.z, &planned);
    zero_destroy(t.z);
}

static void check_inference(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
            for (int v = 0; v < SETTINGS_COUNT(settings_variations); v++) {
                if (!settings_chosen(stage + f + v + checks.ranks, 4)) continue;
                const settings_path *path = &settings_paths[stage + 1];
                const settings_format *format = &settings_formats[f];
                check_inference_at(settings_begin("inference", path, format, 1, &settings_variations[v]));
            }
    settings_direct(0);
}

// -------- no memory

// The last rank passes a different value to one update. Then no save works, and the next step fails.
static void check_unequal_updates(void) {
    static const struct {
        const char *name;
        zero_hyper add;
    } values[] = { { "lr", { .lr = 1e-6f } }, { "beta2", { .beta2 = 0.01f } }, { "t", { .t = 1 } } };
    const int last = checks.ranks - 1, code = last ? ZERO_ERR_COMM : 0;
    char message[80];
    for (int i = 0; i < SETTINGS_COUNT(values); i++)
        for (int p = 0; p < SETTINGS_COUNT(settings_paths); p++) {
            zero_config c = settings_config(&settings_paths[p], &settings_formats[1], 1,
                                            &settings_variations[1]);
            zero_hyper h = toy_hyper(2);
            toy t;
            CHECK_SETTING("another %s on one rank, %s", values[i].name, settings_paths[p].name);
            snprintf(message, sizeof message, " passed %s = ", values[i].name);
            MUST(toy_create(&t, &c, NULL));
            MUST(toy_step(&t, 1, 1, NULL));
            if (checks.rank == last) {
                h.lr += values[i].add.lr;
                h.beta2 += values[i].add.beta2;
                h.t += values[i].add.t;
            }
            MUST(toy_passes(&t, 1));
            MUST(zero_step(t.z, &h, NULL));
            CHECK(zero_save(t.z, "/proc/no/folder", NULL) == (code ? code : ZERO_ERR_IO));
            MUST(toy_passes(&t, 1));
            CHECK(zero_finish_gradients(t.z, NULL) == code);
            CHECK(!code || (zero_last_failure()->rank == last && strstr(zero_last_error(), message)));
            zero_destroy(t.z);
        }
}

static size_t address_space(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%zu", &pages) == 1);
    if (f) fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

// Lets the last rank allocate at most `more` additional bytes. All ranks must fail with its message.
static void refuse_memory(const zero_config *c, const zero_tensor *tensor, size_t more, const char *names) {
    static const zero_unit unit = { "all", 1, 1, 0 };
    struct rlimit free_, limit;
    zero *z;
    CHECK(!getrlimit(RLIMIT_AS, &free_));
    limit = free_;
    if (checks.rank == checks.ranks - 1) limit.rlim_cur = address_space() + more;
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    int rc = zero_create(&z, c, tensor, 1, &unit, 1);
    CHECK(!setrlimit(RLIMIT_AS, &free_));
    CHECK(rc == ZERO_ERR_MEMORY);
    CHECK(rc && strstr(zero_last_error(), names));
    if (!rc) zero_destroy(z);
}

static void check_no_memory(void) {
    static const zero_tensor large = { "large", 1, { 32 << 20 }, 1, 0, 1, 0 },
                             small = { "small", 1, { 1000 }, 1, 0, 1, 0 };
    for (int overlap = 0; overlap < 2; overlap++)
        for (int stage = 0; stage < 4; stage++) {
            zero_config c = simple(stage, overlap);
            CHECK_SETTING("no memory for states, stage %d, overlap %d", stage, overlap);
            refuse_memory(&c, &large, 100 << 20, "RLIMIT_AS");
            if (stage != 3 || checks.ranks == 1) continue;
            CHECK_SETTING("no memory to stage messages, overlap %d", overlap);
            c.comm.shared_window = 0;
            c.comm.window_bytes = 16 << 20;
            refuse_memory(&c, &small, 12 << 20, "RLIMIT_AS");
        }
}

// --------

static const struct {
    const char *group, *name;
    void (*check)(void);
} all_checks[] = {
    { "timeout", "a rank misses a collective", check_timeout },
    { "timeout", "units in the message", check_units_named },
    { "timeout", "different units", check_disorder },
    { "timeout", "no communicator", check_no_communicator },
    { "", "same bits", check_same_bits },
    { "", "AdamW as a function", check_own_adamw },
    { "", "frozen", check_frozen },
    { "", "exact gradients", check_exact_gradients },
    { "", "extra gathers", check_extra_gathers },
    { "", "fewer micro-batches", check_fewer_micro_batches },
    { "", "passes after an update", check_other_passes },
    { "", "blocks in any order", check_any_order },
    { "", "order in the update", check_order_in_update },
    { "", "values and scalars", check_values_and_scalars },
    { "", "overlap", check_overlap },
    { "", "unequal updates", check_unequal_updates },
    { "", "inference", check_inference },
    { "", "no memory", check_no_memory },
};

static void run(const char *asked) {
    for (int i = 0; i < SETTINGS_COUNT(all_checks); i++)
        if (!strcmp(asked, all_checks[i].group) || !strcmp(asked, all_checks[i].name)) all_checks[i].check();
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_zero", run); }
