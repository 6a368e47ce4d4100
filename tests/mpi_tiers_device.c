// Model states beside a CUDA device: mpirun -np N mpi_tiers_device, for any N. Every mixture of device, host
// memory and files gives the bits of the run on the processor that has all in memory, with tiny pieces, so
// that every wrap-around happens. The stand-in (tests/cuda/) runs streams as early or as late as their events
// allow, so a missing event gives other bits.
#include <stdint.h>
#include <stdio.h>
#include "check.h"
#include "delayed.h"
#include "early.h"
#include "faults.h"
#include "lanes.h"
#include "outcome.h"
#include "plan.h"
#include "settings.h"

#ifndef ZERO_HAVE_CUDA
int main(void) {
    if (!zero_launched().rank)
        printf("skip mpi_tiers_device: built without CUDA\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "device.h"
#include "../llmc_zero/internal.h"
#include "../llmc_zero/tiers/state_host.h"

typedef struct {
    const char *name;
    zero_tier params, optimizer, gradients;
    double ratio;
    int64_t in_host, piece;  // elements
} mixture;
enum { ALL = 1 << 30 };  // of the parameters in memory
// clang-format off
static const mixture mixtures[] = {
    // name                         params       optimizer    gradients    ratio  in_host  piece
    { "optimizer",                  ZERO_DEVICE, ZERO_HOST,   ZERO_DEVICE, 1,     0,       0 },
    { "optimizer, small pieces",    ZERO_DEVICE, ZERO_HOST,   ZERO_DEVICE, 1,     0,       2048 },
    { "and gradients",              ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   1,     0,       0 },
    { "parameters",                 ZERO_HOST,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048 },
    { "parameters and optimizer",   ZERO_HOST,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       4096 },
    { "all",                        ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   1,     0,       0 },
    { "all, small pieces",          ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   1,     0,       2048 },
    { "all, 0.4 of the optimizer",  ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   0.4,   0,       4096 },
    { "0.4 of the optimizer",       ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   0.4,   0,       4096 },
    { "none of the optimizer",      ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   0,     0,       4096 },
    { "optimizer in files",         ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   1,     0,       2048 },
    { "parameters on the host too", ZERO_HOST,   ZERO_NVME,   ZERO_HOST,   1,     0,       2048 },
    { "0.6 of the optimizer there", ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   0.6,   0,       4096 },
    { "parameters in files",        ZERO_NVME,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048 },
    { "some parameters in files",   ZERO_NVME,   ZERO_HOST,   ZERO_HOST,   0.6,   15000,   2048 },
    { "both in files",              ZERO_NVME,   ZERO_NVME,   ZERO_HOST,   1,     0,       0 },
    { "no parameters in files",     ZERO_NVME,   ZERO_HOST,   ZERO_HOST,   1,     ALL,     2048 },
    { "all in files",               ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       2048 },
    { "all in files, 0.6 of the optimizer", ZERO_NVME, ZERO_NVME, ZERO_NVME, 0.6, 0,       2048 },
    { "gradients in files",         ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   1,     0,       0 },
    { "and gradients, small pieces", ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   1,     0,       2048 },
};
// clang-format on

static cudaStream_t own_stream;

static int by_nccl;  // the ranks have a device each, and NCCL moves the bytes

static zero_config config_of(const mixture *m, const settings_path *path, const settings_format *format,
                             int micro_batches, const settings_variation *v) {
    zero_config c = settings_config(path, format, micro_batches, v);
    c.device = ZERO_CUDA;
    c.comm.nccl = by_nccl;  // 0: the ranks share a device
    c.offload.params = m->params;
    c.offload.optimizer = m->optimizer;
    c.offload.gradients = m->gradients;
    c.offload.optimizer_ratio = m->ratio;
    c.offload.params_in_host = m->in_host;
    if (m->piece) c.offload.sub_group_size = m->piece;
    c.offload.nvme = outcome_folder;
    return c;
}

// What is held is what is planned, line by line.
static zero_plan planned;
static void compare_with_plan(zero *z) {
    const char *difference = plan_differs_in_any_order(&planned, z);
    if (*difference) fprintf(stderr, "%s\n", difference);
    CHECK(!*difference);
}

static void check_mixture(const mixture *m, const settings_path *path, const settings_format *format,
                          int micro_batches, const settings_variation *v, const manner *how, int with_files,
                          const outcome *want) {
    char name[sizeof checks.setting];
    zero_config c = config_of(m, path, format, micro_batches, v);
    settings_name(name, sizeof name, path, format, micro_batches, v);
    CHECK_SETTING("%s: %.90s, %s, %s stream%s", m->name, name, how->mode, how->own_stream ? "own" : "default",
                  by_nccl ? ", NCCL" : "");
    set_manner(how);
    c.cuda_stream = how->own_stream ? own_stream : NULL;
    c.start.rank = checks.rank;
    MUST(zero_make_plan(&planned, &c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS, checks.ranks,
                        checks.ranks));
    c.start.rank = -1;
    outcome o = outcome_of(&c, with_files, compare_with_plan);
    CHECK(!memcmp(&o, want, sizeof o));
}

static int is_possible(const mixture *m, int stage) {
    return (m->params == ZERO_DEVICE || stage == 3) && (m->gradients == ZERO_DEVICE || stage >= 2);
}

// Manners take turns, and variations so that each is met with every manner.
static void check_in_turn(int turn, const mixture *m, const settings_path *path,
                          const settings_format *format, int micro_batches, const outcome *want) {
    const int of_manners = SETTINGS_COUNT(manners), of_variations = SETTINGS_COUNT(settings_variations);
    const settings_variation *v = &settings_variations[(7 * turn + turn / of_manners) % of_variations];
    check_mixture(m, path, format, micro_batches, v, &manners[turn % of_manners], turn % 3 == 0, want);
}

static void check_same_bits(int first_stage, int first_format, int last_format) {
    int turn = 0;
    for (int f = first_format; f <= last_format; f++)
        for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
            for (int p = first_stage + 1; p < SETTINGS_COUNT(settings_paths); p++) {
                static outcome want;
                const settings_path *path = &settings_paths[p];
                int micro_batches = settings_micro_batches[m];
                zero_config c = settings_config(path, &settings_formats[f], micro_batches,
                                                &settings_variations[0]);
                want = outcome_of(&c, 0, NULL);
                for (int i = 0; i < SETTINGS_COUNT(mixtures); i++) {
                    if (!is_possible(&mixtures[i], path->stage)) continue;
                    if (!settings_chosen(f + m + p + i + checks.ranks, by_nccl ? 2 : 3)) continue;
                    check_in_turn(turn++, &mixtures[i], path, &settings_formats[f], micro_batches, &want);
                }
            }
}

// With NCCL the host waits for no collective: only events order them and the copies.
static void check_nccl(void) {
#if defined(ZERO_HAVE_NCCL) && defined(CUDA_STAND_IN)
    char devices[16];
    cudaStream_t of_device_0 = own_stream;
    if (checks.ranks == 1) return;
    snprintf(devices, sizeof devices, "%d", checks.ranks);
    setenv("CUDA_STAND_IN_DEVICES", devices, 1);
    set_manner(&manners[0]);
    by_nccl = 1;
    CUDA_MUST(cudaSetDevice(checks.rank));
    CUDA_MUST(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
    check_same_bits(3, 1, 1);
    CUDA_MUST(cudaStreamDestroy(own_stream));
    unsetenv("CUDA_STAND_IN_DEVICES");
    set_manner(&manners[0]);
    CUDA_MUST(cudaSetDevice(0));
    own_stream = of_device_0;
    by_nccl = 0;
#endif
}

// -------- traffic

// A step copies, reads and writes what the plan says, once the order of uses is known.
static void check_traffic(const mixture *m, int stage, int format, int micro_batches) {
    zero_config c = config_of(m, &settings_paths[stage + 1], &settings_formats[format], micro_batches,
                              &settings_variations[1]);
    zero_files before, after;
    zero_plan plan;
    trace_lanes lanes_before = { .named = 0 };
    toy t;
    c.debug.trace_events = 4096;
    CHECK_SETTING("traffic: %s, stage %d, %s, %d micro-batches", m->name, stage,
                  settings_formats[format].name, micro_batches);
    MUST(device_toy_create(&t, &c));
    for (int step = 1; step <= 3; step++) {
        zero_files_info(t.z, &before);
        lanes_before = lanes_of(t.z);
        MUST(toy_step(&t, micro_batches, step, NULL));
        MUST(zero_barrier(t.z));
    }
    zero_files_info(t.z, &after);
    zero_plan_info(t.z, &plan);
    CHECK(after.copied_down - before.copied_down == plan.copied_down);
    CHECK(after.copied_up - before.copied_up == plan.copied_up);
    CHECK(plan.copied_down + plan.copied_up > 0);
    CHECK(after.read - before.read + after.not_read - before.not_read == plan.file_read);
    CHECK(after.written - before.written == plan.file_written);
    const trace_lanes lanes = lanes_of(t.z);
    check_lanes(&lanes_before, &lanes, &plan);
    const int in_files = m->params == ZERO_NVME && m->in_host < ALL;
    CHECK((after.gathers_from_memory > 0) == (in_files && m->in_host > 0));
    CHECK((after.gathers_from_files > 0) == in_files);
    zero_destroy(t.z);
}

static void check_all_traffic(void) {
    set_manner(&manners[0]);
    for (int i = 0; i < SETTINGS_COUNT(mixtures); i++)
        for (int stage = 1; stage <= 3; stage++)
            for (int m = 0; m < SETTINGS_COUNT(settings_micro_batches); m++)
                if (is_possible(&mixtures[i], stage) && settings_chosen(i + stage + m, 2))
                    check_traffic(&mixtures[i], stage, (i / 2 + m) % 2, settings_micro_batches[m]);
}

// -------- both directions of the bus

static const mixture *mixture_called(const char *name) {
    const mixture *m = mixtures;
    while (strcmp(m->name, name)) m++;
    return m;
}

#ifdef CUDA_STAND_IN
// Lazy streams: they run only what somebody waits for.
static zero *create_lazy(toy *t, const char *mixture) {
    zero_config c = config_of(mixture_called(mixture), &settings_paths[4], &settings_formats[0], 1,
                              &settings_variations[0]);
    set_manner(&manners[1]);
    c.overlap = 1;
    MUST(device_toy_create(t, &c));
    MUST(wait_for_device(t->z, COMPUTE));
    return t->z;
}

static void destroy_lazy(zero *z) {
    zero_destroy(z);
    set_manner(&manners[0]);
}

// A range becomes NaN on the device, and goes back to the host.
static void spoil(zero *z, zero_value what, device_stream on, state_range r, state_intent intent) {
    state_part p;
    MUST(state_open_range(&p, states_get(z, what), on, r, intent));
    MUST(z->device.f->fill_nan(&z->device, on, p.at, r.elems * sizeof(float)));
    MUST(state_close(&p));
}

// Queues a copy of the range to the device, and one of its first element to the room for values.
static void look_at(zero *z, zero_value what, state_range r) {
    state_part p;
    states_room(z)[0] = NAN;
    MUST(state_open_range(&p, states_get(z, what), UP, r, STATE_READ));
    MUST(z->device.f->copy(&z->device, UP, states_room(z), p.at, sizeof(float)));
    MUST(state_close(&p));
}

// A copy to the host that has run by the time that the next piece's copy to the device has, is one that this
// has waited for.
static void check_independent_copies(void) {
    toy t;
    CHECK_SETTING("a piece goes to the device while the one before it goes to the host");
    zero *z = create_lazy(&t, "parameters");
    device *d = &z->device;
    const struct state_host *host = states_get(z, ZERO_PARAM)->host;
    const state_range one = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    const state_range two = plan_next_piece(&z->config, &z->layout, checks.rank, one);
    const float *home = (const float *)host->array + host->units[0].away_offset;
    CHECK(one.elems && two.elems);
    spoil(z, ZERO_PARAM, UP, one, STATE_CHANGE);
    spoil(z, ZERO_PARAM, UP, two, STATE_CHANGE);
    MUST(d->f->wait(d, UP));
    CHECK(!isnan(home[one.from]) && !isnan(home[two.from]));
    // The same piece again: what goes to the device is what has come to the host.
    look_at(z, ZERO_PARAM, one);
    MUST(d->f->wait(d, UP));
    CHECK(isnan(home[one.from]) && !isnan(home[two.from]) && isnan(states_room(z)[0]));
    MUST(d->f->wait(d, DOWN));
    CHECK(isnan(home[two.from]));
    destroy_lazy(z);
}

// What is being copied to the device is not written over on the host, by the processor or by a copy.
static void check_copies_before_writes(void) {
    toy t;
    state_part p;
    CHECK_SETTING("the processor waits for a copy to the device before it writes");
    zero *z = create_lazy(&t, "parameters");
    const state_range one = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    look_at(z, ZERO_PARAM, one);
    MUST(state_open_range(&p, states_get(z, ZERO_PARAM), PROCESSOR, one, STATE_WRITE));
    *(float *)p.at = NAN;
    MUST(state_close(&p));
    MUST(z->device.f->wait(&z->device, UP));
    CHECK(!isnan(states_room(z)[0]));
    destroy_lazy(z);

    CHECK_SETTING("a copy to the host waits for a copy to the device of what it writes over");
    z = create_lazy(&t, "none of the optimizer");
    const state_range part = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    look_at(z, ZERO_GRADIENT, part);
    spoil(z, ZERO_GRADIENT, COMM, part, STATE_WRITE);
    MUST(z->device.f->wait(&z->device, DOWN));
    MUST(z->device.f->wait(&z->device, UP));
    CHECK(!isnan(states_room(z)[0]));
    destroy_lazy(z);
}
#endif

static void check_both_directions(void) {
#ifdef CUDA_STAND_IN
    check_independent_copies();
    check_copies_before_writes();
#endif
}

// -------- the update begins during backward

// Copies and reductions of other units are still queued when a unit's update begins.
static void check_early(void) {
    int turn = 0;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int stage = 1; stage <= 3; stage++) {
            const settings_format *format = &settings_formats[f];
            const settings_path *path = &settings_paths[stage + 1];
            if (format->dtype == ZERO_F16) continue;
            zero_config c = settings_config(path, format, 3, &settings_variations[0]);
            const early_outcome want = early_outcome_of(&c, 0, 0, NULL);
            for (int i = 0; i < SETTINGS_COUNT(mixtures); i++) {
                const mixture *m = &mixtures[i];
                if (!is_possible(m, stage) || !settings_chosen(f + stage + i, 2)) continue;
                turn++;
                const manner *how = &manners[turn % SETTINGS_COUNT(manners)];
                const settings_variation *v =
                    &settings_variations[turn % SETTINGS_COUNT(settings_variations)];
                CHECK_SETTING("early, %s: stage %d, %s, %s, %s, %s stream", m->name, stage, format->name,
                              v->name, how->mode, how->own_stream ? "own" : "default");
                c = config_of(m, path, format, 3, v);
                set_manner(how);
                c.cuda_stream = how->own_stream ? own_stream : NULL;
                const early_outcome o = early_outcome_of(&c, 1, 0, NULL);
                CHECK(!memcmp(&o, &want, sizeof o));
            }
        }
}

// -------- a delayed update

// The processor updates masters and moments while the device runs the next step on the parameters before.
static void check_delayed(void) {
    int turn = 0;
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++)
        for (int stage = 1; stage <= 3; stage++) {
            const settings_format *format = &settings_formats[f];
            const settings_path *path = &settings_paths[stage + 1];
            const int micro_batches =
                settings_micro_batches[(f + stage) % SETTINGS_COUNT(settings_micro_batches)];
            if (format->no_master) continue;
            const delayed_outcome want =
                delayed_wanted(settings_config(path, format, micro_batches, &settings_variations[0]));
            for (int i = 0; i < SETTINGS_COUNT(mixtures); i++) {
                const mixture *m = &mixtures[i];
                if (!is_possible(m, stage) || !m->optimizer) continue;
                if (!settings_chosen(f + stage + i + checks.ranks, 2)) continue;
                turn++;
                const manner *how = &manners[turn % SETTINGS_COUNT(manners)];
                const settings_variation *v =
                    &settings_variations[turn % SETTINGS_COUNT(settings_variations)];
                CHECK_SETTING("delayed, %s: stage %d, %s, %d micro-batches, %s, %s, %s stream", m->name,
                              stage, format->name, micro_batches, v->name, how->mode,
                              how->own_stream ? "own" : "default");
                zero_config c = config_of(m, path, format, micro_batches, v);
                c.offload.delayed_update = FIRST_DELAYED;
                set_manner(how);
                c.cuda_stream = how->own_stream ? own_stream : NULL;
                const delayed_outcome o = delayed_outcome_of(&c, 0);
                CHECK(!memcmp(&o, &want, sizeof o));
            }
        }
}

// -------- faults

static const mixture *all_in_files(void) { return mixture_called("all in files, 0.6 of the optimizer"); }

// The n-th call of a function of the CUDA run time fails, for every n up to `most` or until a run has fewer:
// while the plugin is created, or later.
#ifdef CUDA_STAND_IN
static void check_calls(const char *call, long most) {
    const zero_config c = config_of(all_in_files(), &settings_paths[4], &settings_formats[1], 3,
                                    &settings_variations[6]);
    int rc = -1;
    CHECK_SETTING("%s fails, the n-th for every n", call);
    for (long n = 1; rc && n < most; n += 1 + n / 3) {
        char fail[64];
        snprintf(fail, sizeof fail, "%s:%ld", call, n);
        setenv("CUDA_STAND_IN_FAIL", fail, 1);
        cuda_stand_in_settings();
        rc = run_with_fault(&c, 0);
        unsetenv("CUDA_STAND_IN_FAIL");
        cuda_stand_in_settings();
        CHECK(!rc || rc == ZERO_ERR_DEVICE || rc == ZERO_ERR_MEMORY);
    }
}
#endif

// On one rank: others would wait for it.
static void check_faults(void) {
    const zero_config c = config_of(all_in_files(), &settings_paths[4], &settings_formats[1], 3,
                                    &settings_variations[6]);
    set_manner(&manners[0]);
    faults_of_files(&c);
#ifdef CUDA_STAND_IN
    check_calls("cudaHostRegister", 100);
    check_calls("cudaMalloc", 100);
    check_calls("cudaEventCreateWithFlags", 1000);
    check_calls("cudaMemcpyAsync", 3000);
    check_calls("cudaEventSynchronize", 1000);
#endif
}

int main(int argc, char **argv) {
    int provided, status = 0;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 1;
    checks_begin();
    if (zero_cuda_devices() < 0) {
        if (!checks.rank)
            printf("skip mpi_tiers_device: %s\n0 passed, 0 failed, 1 skipped\n", zero_last_error());
    } else {
        CUDA_MUST(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
        outcome_begin("tiers_device");
        outcome_create = device_toy_create;
        outcome_activation = device_activation_of;
        check_same_bits(1, 0, SETTINGS_COUNT(settings_formats) - 1);
        check_nccl();
        check_all_traffic();
        check_both_directions();
        check_early();
        check_delayed();
        if (checks.ranks == 1) check_faults();
        outcome_end();
        CUDA_MUST(cudaStreamDestroy(own_stream));
        status = checks_end("mpi_tiers_device");
    }
    MPI_Finalize();
    return status;
}
#endif
