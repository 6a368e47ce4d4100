// Shared by mpi_tiers.c and mpi_tiers_device.c. Every mixture of tiers must give the same bits as a run in
// memory, with updates at the end of a step, during backward (zero_promise_update) and during the next step
// (offload.delayed_update). A step must move the planned bytes, and every disk fault must be reported as an
// error.
#ifndef TESTS_TIERS_H
#define TESTS_TIERS_H
#include <errno.h>
#include "check.h"
#include "faults.h"
#include "outcome.h"
#include "plan.h"
#include "settings.h"
#include "../llmc_zero/internal.h"

typedef struct {
    const char *name;
    zero_tier params, optimizer, gradients;
    double ratio;
    int64_t in_host, piece;  // elements
    int verify;
} mixture;
enum { ALL = 1 << 30 };  // in_host: keeps all parameters in memory

// Set by main.
static struct {
    const mixture *mixtures;
    int n_mixtures, n_manners;
    // Sets one of n_manners ways to run on a device, and returns its name. NULL: runs on the CPU.
    const char *(*place)(zero_config *c, int turn);
} tiers;

static inline const mixture *mixture_called(const char *name) {
    const mixture *m = tiers.mixtures;
    while (strcmp(m->name, name)) m++;
    return m;
}

static inline int all_away(const mixture *m) { return m->optimizer != ZERO_DEVICE && m->ratio >= 1; }

static inline int fits_stage(const mixture *m, int stage) {
    return (m->params == ZERO_DEVICE || stage == 3) && (m->gradients == ZERO_DEVICE || stage >= 2);
}

static inline zero_config tiers_config(const mixture *m, int stage, const settings_format *format,
                                       int micro_batches, const settings_variation *v) {
    zero_config c = settings_config(&settings_paths[stage + 1], format, micro_batches, v);
    c.offload.params = m->params;
    c.offload.optimizer = m->optimizer;
    c.offload.gradients = m->gradients;
    c.offload.optimizer_ratio = m->ratio;
    c.offload.params_in_host = m->in_host;
    if (m->piece) c.offload.sub_group_size = m->piece;
    c.offload.nvme = outcome_folder;
    c.offload.nvme_verify = m->verify;
    return c;
}

// -------- runs

static zero_plan planned;
static inline void compare_with_plan(zero *z) {
    const char *difference = plan_differs(&planned, z);
    if (*difference) fprintf(stderr, "%s\n", difference);
    CHECK(!*difference);
}

static inline outcome plain_in_memory(zero_config c) { return outcome_of(&c, 0, NULL); }

static inline outcome plain_in_tiers(zero_config *c, int turn) {
    zero_config own = *c;
    own.start.rank = checks.rank;
    MUST(zero_make_plan(&planned, &own, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS, checks.ranks,
                        checks.ranks));
    return outcome_of(c, turn % 3 == 0, compare_with_plan);
}

// Runs steps without clipping, so that updates need not wait for the norm. early 1: promises each update.
static inline outcome promised(const zero_config *c, int early, double compute_s) {
    outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, c));
    t.compute_s = compute_s;
    for (int step = 1; step <= 4; step++) {
        const zero_hyper h = toy_hyper(step);
        zero_step_result result;
        if (early) MUST(zero_promise_update(t.z, &h));
        MUST(toy_passes(&t, c->micro_batches));
        MUST(zero_finish_gradients(t.z, &result));
        o.norms[step - 1] = result.grad_norm;
        if (step == 2 && !toy_tensors[2].frozen)
            MUST(zero_get(t.z, ZERO_GRADIENT, 2, 2, 2490, 33, o.gradient));
        MUST(zero_update(t.z, &h));
        if (step == 3) MUST(toy_eval(&t));
        if (step == 3) o.eval = outcome_activation(&t);
    }
    MUST(zero_hash(t.z, 0, o.trained));
    MUST(zero_hash(t.z, 1, o.full));
    zero_destroy(t.z);
    return o;
}
static inline outcome not_promised(zero_config c) { return promised(&c, 0, 0); }
static inline outcome promised_in_tiers(zero_config *c, int turn) {
    return promised(c, 1, 1e-4 * (turn % 3));
}

enum { DELAYED_STEPS = 6, FIRST_DELAYED = 3, SKIPPED = 5 };

static inline void run_delayed_step(toy *t, int micro_batches, int step, outcome *o) {
    zero_hyper h = toy_hyper(step < SKIPPED ? step : step - 1);
    zero_step_result result;
    h.weight_decay = 0.1f;
    h.grad_clip = 1.0f;
    MUST(toy_passes(t, micro_batches));
    MUST(zero_finish_gradients(t->z, &result));
    o->norms[step - 1] = result.grad_norm;
    if (step == 2 && !toy_tensors[2].frozen) MUST(zero_get(t->z, ZERO_GRADIENT, 2, 2, 2490, 33, o->gradient));
    MUST(step == SKIPPED ? zero_discard(t->z) : zero_update(t->z, &h));
}

static inline void end_delayed(toy *t, outcome *o) {
    MUST(zero_finish_update(t->z));
    MUST(zero_hash(t->z, 1, o->full));
    MUST(zero_hash(t->z, 0, o->trained));
    zero_destroy(t->z);
}

static inline outcome delayed_in_tiers(zero_config *c, int turn) {
    outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    c->offload.delayed_update = FIRST_DELAYED;
    MUST(outcome_create(&t, c));
    t.compute_s = 1e-4 * (turn % 3);
    for (int step = 1; step <= DELAYED_STEPS; step++) run_delayed_step(&t, c->micro_batches, step, &o);
    MUST(zero_hash(t.z, 0, o.set));
    MUST(toy_eval(&t));  // uses the old parameters, which a device may still be reading
    MUST(zero_finish_update(t.z));
    o.eval = outcome_activation(&t);
    end_delayed(&t, &o);
    return o;
}

// Copies the masters of all tensors to `values` or, if `set`, copies `values` to the masters or parameters.
static inline void copy_masters(toy *t, zero_value what, int set, float *values) {
    for (int k = 0; k < TOY_TENSORS; k++)
        for (int l = 0; l < toy_tensors[k].layers; l++, values += toy_elems(k))
            MUST(set ? zero_set(t->z, what, k, l, 0, toy_elems(k), values)
                     : zero_get(t->z, what, k, l, 0, toy_elems(k), values));
}

// Imitates the delay without the plugin's help: before each step sets the previous step's parameters, then
// the current masters for the update. This needs masters separate from the parameters. fp32 has none, so its
// reference is a delayed run in memory.
static inline outcome delayed_by_hand(zero_config c) {
    static float kept[2][TOY_ELEMS];
    outcome o;
    toy t;
    int newest = 0, is_behind = 0;
    if (c.numbers.dtype == ZERO_F32) {
        c.offload.optimizer = ZERO_HOST;
        return delayed_in_tiers(&c, 0);
    }
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, &c));
    for (int step = 1; step <= DELAYED_STEPS + 1; step++) {
        copy_masters(&t, ZERO_MASTER, 0, kept[newest]);
        copy_masters(&t, ZERO_PARAM, 1, kept[is_behind ? !newest : newest]);
        copy_masters(&t, ZERO_MASTER, 1, kept[newest]);
        if (step > DELAYED_STEPS) break;
        run_delayed_step(&t, c.micro_batches, step, &o);
        is_behind = step >= FIRST_DELAYED && step != SKIPPED;  // a skipped step has no update
        newest = !newest;
    }
    MUST(zero_hash(t.z, 0, o.set));
    MUST(toy_eval(&t));
    o.eval = outcome_activation(&t);
    copy_masters(&t, ZERO_PARAM, 1, kept[newest]);
    end_delayed(&t, &o);
    return o;
}

// -------- the same bits

typedef struct {
    const char *name;
    outcome (*in_memory)(zero_config c);
    outcome (*in_tiers)(zero_config *c, int turn);
    int one_in;  // runs one in this many combinations
    int no_fp16, needs_master, needs_offload;
} kind_of_run;
static const kind_of_run plain_runs = { "bits", plain_in_memory, plain_in_tiers, 3, 0, 0, 0 };
static const kind_of_run early_runs = { "early", not_promised, promised_in_tiers, 4, 1, 0, 0 };
static const kind_of_run delayed_runs = { "delayed", delayed_by_hand, delayed_in_tiers, 3, 0, 1, 1 };

// Cycles through the ways to place a run and the variations so that all pairs occur.
static inline void check_in_tiers(const kind_of_run *k, const mixture *m, int stage,
                                  const settings_format *format, int micro_batches, int turn,
                                  const outcome *want) {
    const settings_variation *v =
        &settings_variations[(7 * turn + turn / tiers.n_manners) % SETTINGS_COUNT(settings_variations)];
    zero_config c = tiers_config(m, stage, format, micro_batches, v);
    const char *manner = tiers.place ? tiers.place(&c, turn) : "";
    CHECK_SETTING("%s, %s: stage %d, %s, %d micro-batches, %s%s, %s", k->name, m->name, stage, format->name,
                  micro_batches, v->name, manner, toy_is_frozen());
    const outcome o = k->in_tiers(&c, turn);
    CHECK(!memcmp(&o, want, sizeof o));
}

// f: index of the format in its table. set: index of the set of frozen tensors.
static inline void check_bits(const kind_of_run *k, int stage, const settings_format *format, int f,
                              int set) {
    static int turn;
    const int one_in = set ? 4 * k->one_in : k->one_in;
    toy_freeze(set);
    if ((k->no_fp16 && format->dtype == ZERO_F16) || (k->needs_master && format->no_master)) return;
    for (int b = 0; b < SETTINGS_COUNT(settings_micro_batches); b++) {
        const int micro_batches = settings_micro_batches[b];
        const outcome want = k->in_memory(
            settings_config(&settings_paths[stage + 1], format, micro_batches, &settings_variations[0]));
        for (int i = 0; i < tiers.n_mixtures; i++) {
            const mixture *m = &tiers.mixtures[i];
            if (!fits_stage(m, stage) || (k->needs_offload && m->optimizer == ZERO_DEVICE)) continue;
            if (format->update && format->no_master && tiers.place && !all_away(m)) continue;
            if (settings_chosen(f + b + stage + i + set + checks.ranks, one_in))
                check_in_tiers(k, m, stage, format, micro_batches, turn++, &want);
        }
    }
}

static inline void check_all_bits(void) {
    static const kind_of_run *const kinds[] = { &plain_runs, &early_runs, &delayed_runs };
    for (int set = 0; set < TOY_FROZEN_SETS; set++)
        for (int k = 0; k < SETTINGS_COUNT(kinds); k++)
            for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
                for (int stage = 1; stage <= 3; stage++)
                    check_bits(kinds[k], stage, &settings_formats[f], f, set);
    toy_freeze(0);
}

// The trainer's own updates. A sixth of the combinations is enough, because only the arithmetic and the
// number of states differ from AdamW.
static inline void check_own_updates(void) {
    kind_of_run kinds[] = { plain_runs, early_runs, delayed_runs };
    for (int k = 0; k < SETTINGS_COUNT(kinds); k++) {
        kinds[k].one_in = 6 + k;
        for (int f = 0; f < SETTINGS_COUNT(settings_updates); f++)
            for (int stage = 1; stage <= 3; stage++) check_bits(&kinds[k], stage, &settings_updates[f], f, 0);
    }
}

// -------- traffic

// Totals of the trace so far, and the number of events with a wrong lane or time.
typedef struct {
    int64_t bytes[EVENT_KINDS];
    int events[EVENT_KINDS], misplaced;
} trace_totals;

static inline trace_totals totals_of(zero *z) {
    static const int lanes[EVENT_KINDS] = { [EVENT_READ] = 3,      [EVENT_WRITE] = 5,  [EVENT_TO_HOST] = 6,
                                            [EVENT_TO_DEVICE] = 7, [EVENT_GATHER] = 1, [EVENT_REDUCE] = 1 };
    trace_totals totals = { .misplaced = 0 };
    MUST(update_settle(z));  // nothing adds to the trace while it is read
    trace_event e;
    for (int i = 0; trace_at(&z->trace, i, &e); i++) {
        totals.bytes[e.kind] += e.bytes;
        totals.events[e.kind]++;
        totals.misplaced += e.start_s < 0 || e.end_s < e.start_s ||
                            (lanes[e.kind] && e.thread != lanes[e.kind]);
    }
    return totals;
}

// Checks that a step's trace has the planned bytes for each kind of event.
static inline void check_trace(const trace_totals *before, const trace_totals *after, const zero_plan *plan,
                               int64_t not_read) {
    const int64_t planned_bytes[EVENT_KINDS] = {
        [EVENT_READ] = plan->file_read - not_read,
        [EVENT_WRITE] = plan->file_written,
        [EVENT_TO_HOST] = plan->copied_down,
        [EVENT_TO_DEVICE] = plan->copied_up,
        [EVENT_GATHER] = plan->traffic.all_gather[ZERO_FOR_STEP],
        [EVENT_REDUCE] = plan->traffic.reduce_scatter[ZERO_FOR_STEP],
    };
    for (int kind = 0; kind < EVENT_STEP; kind++) {
        const int link = kind >= EVENT_READ && kind <= EVENT_TO_DEVICE;
        const int64_t moved = after->bytes[kind] - before->bytes[kind];
        if (moved != planned_bytes[kind])
            fprintf(stderr, "events %d: the trace has %lld bytes, the plan %lld\n", kind, (long long)moved,
                    (long long)planned_bytes[kind]);
        CHECK(moved == planned_bytes[kind]);
        if (link) CHECK((after->events[kind] > before->events[kind]) == (moved > 0));
    }
    CHECK(after->events[EVENT_SQUARES] > before->events[EVENT_SQUARES] && !after->misplaced);
}

enum { COUNTED_STEPS = 3 };

// Checks that all steps together have moved the planned bytes: the first step, an evaluation, a digest and
// the early completion of a delayed update add none.
static inline void check_bytes_of_steps(toy *t, const zero_plan *plan) {
    const int n = COUNTED_STEPS, step = ZERO_FOR_STEP;
    char hex[17];
    zero_files files;
    zero_traffic sent;
    MUST(zero_finish_update(t->z));
    MUST(toy_eval(t));
    MUST(zero_hash(t->z, 1, hex));
    MUST(zero_check_finite(t->z));
    zero_files_info(t->z, &files);
    zero_traffic_info(t->z, &sent);
    CHECK(files.read[step] + files.not_read[step] == n * plan->file_read);
    CHECK(files.written[step] == n * plan->file_written);
    CHECK(sent.all_gather[step] == n * plan->traffic.all_gather[step]);
    CHECK(sent.reduce_scatter[step] == n * plan->traffic.reduce_scatter[step]);
}

// Checks that a step copies, reads and writes the planned bytes once the order of uses is known.
static inline void check_traffic(const mixture *m, int stage, const settings_format *format,
                                 int micro_batches, int delayed) {
    zero_config c = tiers_config(m, stage, format, micro_batches, &settings_variations[1]);
    zero_files before, after;
    zero_plan plan;
    trace_totals totals_before = { .misplaced = 0 };
    toy t;
    if (tiers.place) tiers.place(&c, 0);
    c.offload.delayed_update = delayed;
    c.debug.trace_events = 8192;
    CHECK_SETTING("traffic: %s, stage %d, %s, %d micro-batches%s, %s", m->name, stage, format->name,
                  micro_batches, delayed ? ", delayed" : "", toy_is_frozen());
    MUST(outcome_create(&t, &c));
    for (int step = 1; step <= COUNTED_STEPS; step++) {
        zero_files_info(t.z, &before);
        totals_before = totals_of(t.z);
        MUST(toy_step(&t, micro_batches, step, NULL));
        MUST(zero_barrier(t.z));
    }
    zero_files_info(t.z, &after);
    zero_plan_info(t.z, &plan);
    CHECK(after.copied_down - before.copied_down == plan.copied_down);
    CHECK(after.copied_up - before.copied_up == plan.copied_up);
    CHECK((plan.copied_down + plan.copied_up > 0) == (c.device == ZERO_CUDA));
    const int64_t not_read = after.not_read[ZERO_FOR_STEP] - before.not_read[ZERO_FOR_STEP];
    const trace_totals totals = totals_of(t.z);
    check_trace(&totals_before, &totals, &plan, not_read);
    const int params_in_files = m->params == ZERO_NVME && m->in_host < ALL;
    const int in_files = params_in_files || (m->optimizer == ZERO_NVME && m->ratio > 0) ||
                         m->gradients == ZERO_NVME;
    const int puts = params_in_files && !m->in_host && c.device == ZERO_CPU && !delayed;
    if (puts && t.z->layout.units[0].padded) CHECK(not_read > 0);
    const int may_round_to_0 = m->ratio < 1 && toy_frozen_set;  // the number of offloaded elements
    if (!may_round_to_0) CHECK((after.how != NULL) == in_files);
    check_bytes_of_steps(&t, &plan);
    zero_destroy(t.z);
}

static inline void check_traffic_of(int set) {
    toy_freeze(set);
    for (int i = 0; i < tiers.n_mixtures; i++)
        for (int stage = 1; stage <= 3; stage++)
            for (int b = 0; b < SETTINGS_COUNT(settings_micro_batches); b++)
                for (int delayed = 0; delayed <= (tiers.mixtures[i].optimizer != ZERO_DEVICE); delayed++)
                    if (fits_stage(&tiers.mixtures[i], stage) &&
                        settings_chosen(i + stage + b + delayed + set, set ? 5 : 2))
                        check_traffic(&tiers.mixtures[i], stage, &settings_formats[(i / 2 + b) % 2],
                                      settings_micro_batches[b], delayed);
}

static inline void check_all_traffic(void) {
    for (int set = 0; set < TOY_FROZEN_SETS; set++) check_traffic_of(set);
    toy_freeze(0);
}

// -------- faults

// Runs three steps and a hash, and returns the first error. The message of a disk error must name the folder,
// and later calls must fail too.
static inline int run_with_fault(const zero_config *c, int of_disk) {
    char hex[17] = "";
    toy t = { .z = NULL };
    int rc = outcome_create(&t, c);  // if setting the values fails, the plugin exists nevertheless
    for (int step = 1; step <= 3 && !rc; step++) rc = toy_step(&t, c->micro_batches, step, NULL);
    if (!rc) rc = zero_hash(t.z, 1, hex);
    if (!rc) CHECK(strlen(hex) == 16);
    if (rc && of_disk) CHECK(strstr(zero_last_error(), outcome_folder));
    if (rc && of_disk && t.z) CHECK(zero_hash(t.z, 1, hex));
    zero_destroy(t.z);
    return rc;
}

// Makes the n-th read, write or submission fail, for increasing n, until a run makes fewer than n.
static inline void check_files_that_fail(const zero_config *c) {
    static const file_operation kinds[] = { FILE_READ, FILE_WRITE, FILE_SUBMIT };
    for (int k = 0; k < SETTINGS_COUNT(kinds); k++) {
        int rc = -1;
        long n = 1;
        CHECK_SETTING("the n-th operation of kind %d fails", (int)kinds[k]);
        for (; rc; n += 1 + n / 8) {
            set_fault(kinds[k], n, 1, -EIO);
            rc = run_with_fault(c, 1);
            file_fault = NULL;
            CHECK(!rc || rc == ZERO_ERR_TIER);
        }
        CHECK(n > 20);
    }
}

#endif
