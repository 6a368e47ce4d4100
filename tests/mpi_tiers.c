// States in files: mpirun -np N mpi_tiers [FOLDER], for any N. Every mixture of tiers gives the bits of the
// run that has all in memory, with tiny pieces, so that every wrap-around happens; the plan is what is held;
// and a rank reads and writes what the plan says.
#include <stdint.h>
#include <stdio.h>
#include "check.h"
#include "delayed.h"
#include "early.h"
#include "outcome.h"
#include "plan.h"
#include "faults.h"
#include "lanes.h"
#include "settings.h"
#include "../llmc_zero/internal.h"

typedef struct {
    const char *name;
    zero_tier params, optimizer, gradients;
    double ratio;
    int64_t in_host, piece;  // elements
    int verify;
} mixture;
enum { ALL = 1 << 30 };  // of the parameters in memory
// clang-format off
static const mixture mixtures[] = {
    // name                       params       optimizer    gradients    ratio  in_host  piece  verify
    { "optimizer",                ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "optimizer, small pieces",  ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 1,     0,       2048,  1 },
    { "optimizer, 0.4 of it",     ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   0.4,   0,       4096,  0 },
    { "optimizer, none of it",    ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 0,     0,       4096,  0 },
    { "parameters",               ZERO_NVME,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048,  1 },
    { "both",                     ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "both, small pieces",       ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     0,       2048,  1 },
    { "both, some in memory",     ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 0.6,   15000,   2048,  0 },
    { "host",                     ZERO_HOST,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "gradients",                ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   1,     0,       2048,  1 },
    { "gradients, 0.4 of others", ZERO_HOST,   ZERO_NVME,   ZERO_NVME,   0.4,   0,       4096,  0 },
    { "gradients, none of them",  ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   0,     0,       0,     0 },
    { "all",                      ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       0,     0 },
    { "all, small pieces",        ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       2048,  1 },
    { "all, some in memory",      ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   0.6,   15000,   2048,  0 },
    { "optimizer on the host",    ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       2048,  0 },
    { "some parameters there",    ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     15000,   2048,  0 },
    { "all parameters there",     ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     ALL,     2048,  0 },
    { "both, none in files",      ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 0,     ALL,     0,     0 },
    { "both, no parameters",      ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     ALL,     0,     0 },
};
// clang-format on

static int fits_stage(const mixture *m, int stage) {
    if (m->params != ZERO_DEVICE) return stage == 3;
    return m->gradients == ZERO_DEVICE || stage >= 2;
}

static zero_config config_of(const mixture *m, const settings_path *path, const settings_format *format,
                             int micro_batches, const settings_variation *v) {
    zero_config c = settings_config(path, format, micro_batches, v);
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

// What is held is what is planned, line by line.
static zero_plan planned;
static void compare_with_plan(zero *z) {
    const char *difference = plan_differs_in_any_order(&planned, z);
    if (*difference) fprintf(stderr, "%s\n", difference);
    CHECK(!*difference);
}

// A step moves what the plan says, once the order of uses is known.
static void check_traffic(const mixture *m, int stage, int micro_batches, int delayed) {
    zero_config c = config_of(m, &settings_paths[stage + 1], &settings_formats[1], micro_batches,
                              &settings_variations[1]);
    c.offload.delayed_update = delayed;
    zero_files before, after;
    zero_plan plan;
    zero_step_result result;
    trace_lanes lanes_before = { .named = 0 };
    toy t;
    c.debug.trace_events = 8192;
    CHECK_SETTING("traffic with files: %s, stage %d, %d micro-batches%s", m->name, stage, micro_batches,
                  delayed ? ", delayed" : "");
    MUST(toy_create(&t, &c, NULL));
    for (int step = 1; step <= 3; step++) {
        zero_files_info(t.z, &before);
        lanes_before = lanes_of(t.z);
        MUST(toy_step(&t, micro_batches, step, &result));
        MUST(zero_barrier(t.z));
    }
    zero_files_info(t.z, &after);
    zero_plan_info(t.z, &plan);
    CHECK(after.read - before.read + after.not_read - before.not_read == plan.file_read);
    CHECK(after.written - before.written == plan.file_written);
    const trace_lanes lanes = lanes_of(t.z);
    plan.file_read -= after.not_read - before.not_read;
    check_lanes(&lanes_before, &lanes, &plan);
    const int puts = m->params == ZERO_NVME && !m->in_host && c.prefetch && !delayed;
    CHECK(!puts || after.not_read > before.not_read);
    const int params_in_files = m->params == ZERO_NVME && m->in_host < ALL;
    const int optimizer_in_files = m->optimizer == ZERO_NVME && m->ratio > 0;
    CHECK((after.gathers_from_memory > 0) == (params_in_files && m->in_host > 0));
    CHECK((after.gathers_from_files > 0) == params_in_files);
    CHECK((after.how != NULL) == (params_in_files || optimizer_in_files || m->gradients == ZERO_NVME));
    zero_destroy(t.z);
}

static void check_mixture(const mixture *m, const settings_path *path, const settings_format *format,
                          int micro_batches, const settings_variation *v, int with_files,
                          const outcome *want) {
    char name[sizeof checks.setting];
    zero_config c = config_of(m, path, format, micro_batches, v);
    settings_name(name, sizeof name, path, format, micro_batches, v);
    CHECK_SETTING("%s: %.120s", m->name, name);
    c.start.rank = checks.rank;
    MUST(zero_make_plan(&planned, &c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS, checks.ranks,
                        checks.ranks));
    c.start.rank = -1;
    outcome o = outcome_of(&c, with_files, compare_with_plan);
    CHECK(!memcmp(&o, want, sizeof o));
}

// The variations take turns.
static void check_same_bits(void) {
    int turn = 0;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            for (int p = 2; p < SETTINGS_COUNT(settings_paths); p++) {
                static outcome want;
                const settings_path *path = &settings_paths[p];
                int micro_batches = settings_micro_batches[m];
                zero_config c = settings_config(path, &settings_formats[f], micro_batches,
                                                &settings_variations[0]);
                want = outcome_of(&c, 0, NULL);
                for (int i = 0; i < SETTINGS_COUNT(mixtures); i++) {
                    if (!fits_stage(&mixtures[i], path->stage)) continue;
                    if (!settings_chosen(f + m + p + i + checks.ranks, 3)) continue;
                    int v = turn++ % SETTINGS_COUNT(settings_variations);
                    check_mixture(&mixtures[i], path, &settings_formats[f], micro_batches,
                                  &settings_variations[v], turn % 2, &want);
                }
            }
}

static void check_all_traffic(void) {
    for (int i = 0; i < SETTINGS_COUNT(mixtures); i++)
        for (int stage = 2; stage <= 3; stage++)
            for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++) {
                if (!fits_stage(&mixtures[i], stage)) continue;
                for (int delayed = 0; delayed <= (mixtures[i].optimizer != ZERO_DEVICE); delayed++)
                    if (settings_chosen(i + stage + m + delayed, 2))
                        check_traffic(&mixtures[i], stage, settings_micro_batches[m], delayed);
            }
}

// -------- states are read during backward

// Two steps, one that is skipped, new values, and two more steps. early: the disk has finished when backward
// begins, so that the first two pieces of the update are read during backward.
static void hash_with_skipped_step(const zero_config *c, int early, char hash[17]) {
    toy t;
    MUST(toy_create(&t, c, NULL));
    for (int step = 1; step <= 5; step++) {
        zero_files files;
        const zero_hyper h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = step };
        MUST(toy_forward_pass(&t, 0, 1));
        zero_files_info(t.z, &files);
        CHECK(update_pieces_read_ahead(t.z) == 0);
        MUST(toy_backward_pass(&t));
        CHECK(update_pieces_read_ahead(t.z) == 2 * early);
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(step == 3 ? zero_discard(t.z) : zero_update(t.z, &h));
        CHECK(update_pieces_read_ahead(t.z) == 0);
        if (step == 3) MUST(toy_set_initial(&t));
    }
    MUST(zero_hash(t.z, 1, hash));
    zero_destroy(t.z);
}

// A step is given up after its backward pass, and the next one uses the units in another order: what was read
// is not what is updated first.
static void hash_with_another_order(const zero_config *c, int early, char hash[17]) {
    static const int order[] = { 1, 0, 4, 2, 3, 0 };
    const zero_hyper h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 2 };
    zero_files files;
    toy t;
    MUST(toy_create(&t, c, NULL));
    MUST(toy_step(&t, 1, 1, NULL));
    MUST(toy_forward_pass(&t, 0, 1));
    zero_files_info(t.z, &files);
    MUST(toy_backward_pass(&t));
    CHECK(update_pieces_read_ahead(t.z) == 2 * early);
    MUST(zero_begin_train(t.z, 0, 1));
    MUST(toy_start(&t, 0.3f));
    for (int i = 0; i < SETTINGS_COUNT(order); i++) MUST(toy_forward(&t, order[i]));
    MUST(toy_backward_pass(&t));
    MUST(zero_step(t.z, &h, NULL));
    MUST(zero_hash(t.z, 1, hash));
    zero_destroy(t.z);
}

static void check_read_ahead(void) {
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++) {
        zero_config c = settings_config(&settings_paths[4], &settings_formats[f], 1, &settings_variations[0]);
        char want[17], want_of_another[17], hash[17];
        if (settings_formats[f].dtype == ZERO_F16) continue;
        CHECK_SETTING("states are read during backward, %s", settings_formats[f].name);
        hash_with_skipped_step(&c, 0, want);
        hash_with_another_order(&c, 0, want_of_another);
        c = config_of(&mixtures[13], &settings_paths[4], &settings_formats[f], 1, &settings_variations[0]);
        hash_with_skipped_step(&c, 1, hash);
        CHECK(!strcmp(hash, want));
        hash_with_another_order(&c, 1, hash);
        CHECK(!strcmp(hash, want_of_another));
    }
}

// -------- the update begins during backward

// Every fourth mixture, the others with the settings that follow.
static void check_early(void) {
    int turn = 0;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            for (int stage = 1; stage <= 3; stage++) {
                const settings_format *format = &settings_formats[f];
                const settings_path *path = &settings_paths[stage + 1];
                const int micro_batches = settings_micro_batches[m];
                if (format->dtype == ZERO_F16) continue;
                zero_config c = settings_config(path, format, micro_batches, &settings_variations[0]);
                const early_outcome want = early_outcome_of(&c, 0, 0, NULL);
                for (int i = 0; i < SETTINGS_COUNT(mixtures); i++) {
                    char name[sizeof checks.setting];
                    if (!fits_stage(&mixtures[i], stage)) continue;
                    if (!settings_chosen(f + 2 * m + stage + i, 4)) continue;
                    const settings_variation *v =
                        &settings_variations[turn++ % SETTINGS_COUNT(settings_variations)];
                    settings_name(name, sizeof name, path, format, micro_batches, v);
                    CHECK_SETTING("early, %s: %.120s", mixtures[i].name, name);
                    c = config_of(&mixtures[i], path, format, micro_batches, v);
                    const early_outcome o = early_outcome_of(&c, 1, 1e-4 * (turn % 3), NULL);
                    CHECK(!memcmp(&o, &want, sizeof o));
                }
            }
}

static void check_early_overlaps(void) {
    for (int early = 0; early <= 1; early++) {
        int overlap = -1;
        zero_config c = config_of(&mixtures[13], &settings_paths[4], &settings_formats[1], 3,
                                  &settings_variations[0]);
        CHECK_SETTING("an update %s begins during backward",
                      early ? "promised early" : "that is not promised");
        c.debug.trace_events = 4096;
        // On a busy machine the update may come late, so backward takes longer until it does not.
        for (double compute_s = 1e-3; overlap != early && compute_s < 0.1; compute_s *= 4)
            early_outcome_of(&c, early, compute_s, &overlap);
        CHECK(overlap == early);
    }
}

// -------- a delayed update

static zero_config delayed_config(const mixture *m, const settings_path *path, const settings_format *format,
                                  int micro_batches, const settings_variation *v) {
    zero_config c = config_of(m, path, format, micro_batches, v);
    c.offload.delayed_update = FIRST_DELAYED;
    return c;
}

// Every other mixture: what is not waited for shows in few settings.
static void check_delayed(void) {
    int turn = 0;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            for (int stage = 1; stage <= 3; stage++) {
                const settings_format *format = &settings_formats[f];
                const settings_path *path = &settings_paths[stage + 1];
                const int micro_batches = settings_micro_batches[m];
                if (format->no_master) continue;
                zero_config c = settings_config(path, format, micro_batches, &settings_variations[0]);
                const delayed_outcome want = delayed_wanted(c);
                for (int i = (f + m + stage) % 2; i < SETTINGS_COUNT(mixtures); i += 2) {
                    const settings_variation *v =
                        &settings_variations[turn++ % SETTINGS_COUNT(settings_variations)];
                    char name[sizeof checks.setting];
                    if (!fits_stage(&mixtures[i], stage) || !mixtures[i].optimizer) continue;
                    settings_name(name, sizeof name, path, format, micro_batches, v);
                    CHECK_SETTING("delayed, %s: %.120s", mixtures[i].name, name);
                    c = delayed_config(&mixtures[i], path, format, micro_batches, v);
                    const delayed_outcome o = delayed_outcome_of(&c, 1e-4 * (turn % 3));
                    CHECK(!memcmp(&o, &want, sizeof o));
                }
            }
}

// Whether some unit was used by a forward pass after zero_update, and before the unit's update had ended.
static int used_before_updated(const zero *z) {
    trace_event update, use;
    double ended_s = 0;
    for (int i = 0; trace_at(&z->trace, i, &update); i++)
        if (update.kind == EVENT_UPDATE && update.unit < 0) ended_s = update.end_s;
    for (int i = 0; trace_at(&z->trace, i, &update); i++)
        for (int k = 0; update.kind == EVENT_UPDATE && trace_at(&z->trace, k, &use); k++)
            if (use.kind == EVENT_FORWARD && use.unit == update.unit && use.start_s > ended_s &&
                use.end_s < update.end_s)
                return 1;
    return 0;
}

// A disk that does nothing until it is released; after 20 seconds it goes on, so that nothing hangs.
static int disk_waits;
static long wait_for_release(file_operation what, size_t bytes) {
    const struct timespec nap = { 0, 1000000 };
    (void)what;
    for (int ms = 0; ms < 20000 && __atomic_load_n(&disk_waits, __ATOMIC_ACQUIRE); ms++)
        nanosleep(&nap, NULL);
    return (long)bytes;
}

// Only the optimizer is in files: while its disk waits, forward can run if it does not wait for the update.
static void check_delayed_overlaps(void) {
    for (int delayed = 0; delayed <= 1; delayed++) {
        toy t;
        delayed_outcome o;
        zero_config c = config_of(&mixtures[0], &settings_paths[4], &settings_formats[1], 1,
                                  &settings_variations[0]);
        CHECK_SETTING("forward %s an update", delayed ? "does not wait for" : "waits for");
        c.debug.trace_events = 4096;
        c.offload.delayed_update = delayed;
        MUST(toy_create(&t, &c, NULL));
        file_fault = wait_for_release;
        __atomic_store_n(&disk_waits, delayed, __ATOMIC_RELEASE);
        run_delayed_step(&t, 1, 1, &o);
        MUST(toy_forward_pass(&t, 0, 1));
        __atomic_store_n(&disk_waits, 0, __ATOMIC_RELEASE);
        MUST(toy_backward_pass(&t));
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(zero_barrier(t.z));
        CHECK(used_before_updated(t.z) == delayed);
        zero_destroy(t.z);
        file_fault = NULL;
    }
}

// -------- faults

// On one rank: others would wait for it.
static void check_faults(void) {
    const zero_config c = config_of(&mixtures[13], &settings_paths[4], &settings_formats[1], 3,
                                    &settings_variations[6]);
    faults_of_files(&c);
}

int main(int argc, char **argv) {
    int provided;
    (void)argc;
    (void)argv;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 1;
    checks_begin();
    outcome_begin("tiers");
    check_same_bits();
    check_all_traffic();
    check_read_ahead();
    check_early();
    check_early_overlaps();
    check_delayed();
    check_delayed_overlaps();
    if (checks.ranks == 1) check_faults();
    outcome_end();
    int status = checks_end("mpi_tiers");
    MPI_Finalize();
    return status;
}
