// Tests model states offloaded from a CUDA device: mpirun -np N mpi_tiers_device, for any N. Every mixture of
// device, host memory and files gives the same bits as the CPU run in memory. Pieces are tiny, so that every
// wrap-around occurs. The stand-in (tests/cuda/) runs streams as early or as late as their events allow, so a
// missing event gives different bits.
#include <stdint.h>
#include <stdio.h>
#include "tiers.h"

#ifndef ZERO_HAVE_CUDA
int main(void) {
    if (!zero_launched().rank)
        printf("skip mpi_tiers_device: built without CUDA\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "device.h"
#include "../llmc_zero/internal.h"

// clang-format off
static const mixture mixtures[] = {
    // name                         params       optimizer    gradients    ratio  in_host  piece  verify
    { "optimizer",                  ZERO_DEVICE, ZERO_HOST,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "optimizer, small pieces",    ZERO_DEVICE, ZERO_HOST,   ZERO_DEVICE, 1,     0,       2048,  0 },
    { "optimizer and gradients",    ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   1,     0,       0,     0 },
    { "parameters",                 ZERO_HOST,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048,  0 },
    { "parameters and optimizer",   ZERO_HOST,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       4096,  0 },
    { "all",                        ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   1,     0,       0,     0 },
    { "all, small pieces",          ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   1,     0,       2048,  0 },
    { "all, 0.4 of the optimizer",  ZERO_HOST,   ZERO_HOST,   ZERO_HOST,   0.4,   0,       4096,  0 },
    { "0.4 of the optimizer",       ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   0.4,   0,       4096,  0 },
    { "none of the optimizer",      ZERO_DEVICE, ZERO_HOST,   ZERO_HOST,   0,     0,       4096,  0 },
    { "optimizer in files",         ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   1,     0,       2048,  0 },
    { "and parameters on the host", ZERO_HOST,   ZERO_NVME,   ZERO_HOST,   1,     0,       2048,  0 },
    { "0.6 of optimizer in files",  ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   0.6,   0,       4096,  0 },
    { "parameters in files",        ZERO_NVME,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048,  0 },
    { "some parameters in files",   ZERO_NVME,   ZERO_HOST,   ZERO_HOST,   0.6,   15000,   2048,  0 },
    { "both in files",              ZERO_NVME,   ZERO_NVME,   ZERO_HOST,   1,     0,       0,     0 },
    { "no parameters in files",     ZERO_NVME,   ZERO_HOST,   ZERO_HOST,   1,     ALL,     2048,  0 },
    { "all in files",               ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       2048,  0 },
    { "all in files, 0.6 of the optimizer", ZERO_NVME, ZERO_NVME, ZERO_NVME, 0.6, 0,       2048,  0 },
    { "gradients in files",         ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   1,     0,       0,     0 },
    { "with gradients, small pieces", ZERO_DEVICE, ZERO_HOST,  ZERO_HOST,   1,     0,       2048,  0 },
};
// clang-format on

static cudaStream_t own_stream;
static int by_nccl;  // 1: NCCL transfers the data, and each rank has a device; 0: the ranks share one

static const char *on_the_device(zero_config *c, int turn) {
    static char name[64];
    const manner *how = &manners[turn % SETTINGS_COUNT(manners)];
    set_manner(how);
    c->device = ZERO_CUDA;
    c->update_ctx = (void *)&toy_cuda;
    c->comm.nccl = by_nccl;
    c->cuda_stream = how->own_stream ? own_stream : NULL;
    snprintf(name, sizeof name, ", %s, %s stream%s", how->mode, how->own_stream ? "own" : "default",
             by_nccl ? ", NCCL" : "");
    return name;
}

// With NCCL only events order collectives and copies.
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
    kind_of_run often = plain_runs;
    often.one_in = 2;
    check_bits(&often, 3, &settings_formats[1], 1, 0);
    CUDA_MUST(cudaStreamDestroy(own_stream));
    unsetenv("CUDA_STAND_IN_DEVICES");
    set_manner(&manners[0]);
    CUDA_MUST(cudaSetDevice(0));
    own_stream = of_device_0;
    by_nccl = 0;
#endif
}

// -------- both directions of the bus

#ifdef CUDA_STAND_IN
// Creates the toy with lazy streams, which run queued work only when a call waits for it.
static zero *create_lazy(toy *t, const char *mixture) {
    zero_config c = tiers_config(mixture_called(mixture), 3, &settings_formats[0], 1,
                                 &settings_variations[0]);
    tiers.place(&c, 1);
    c.overlap = 1;
    MUST(device_toy_create(t, &c));
    MUST(wait_for_device(t->z, COMPUTE));
    return t->z;
}

static void destroy_lazy(zero *z) {
    zero_destroy(z);
    set_manner(&manners[0]);
}

// Sets a range to NaN on the device, and copies it back to the host.
static void spoil(zero *z, zero_value what, device_stream on, state_range r, state_intent intent) {
    state_part p;
    MUST(state_open_range(&p, states_get(z, what), on, r, intent));
    MUST(z->device.f->fill_nan(&z->device, on, p.at, r.elems * sizeof(float)));
    MUST(state_close(&p));
}

// Queues a copy of the range to the device, and from there a copy of its first element to states_room(z).
static void look_at(zero *z, zero_value what, state_range r) {
    state_part p;
    states_room(z)[0] = NAN;
    MUST(state_open_range(&p, states_get(z, what), UP, r, STATE_READ));
    MUST(z->device.f->copy(&z->device, UP, states_room(z), p.at, sizeof(float)));
    MUST(state_close(&p));
}

// Waiting for the copy of the second piece to the device must not run the copy of the first piece to the
// host. Streams are lazy, so it runs only if the copy to the device wrongly waits for it.
static void check_independent_copies(void) {
    toy t;
    CHECK_SETTING("one piece is copied to the device while another is copied to the host");
    zero *z = create_lazy(&t, "parameters");
    device *d = &z->device;
    const state *params = states_get(z, ZERO_PARAM);
    const state_range one = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    const state_range two = plan_next_piece(&z->config, &z->layout, checks.rank, one);
    const float *home = (const float *)(params->away + params->units[0].region);
    CHECK(one.elems && two.elems);
    spoil(z, ZERO_PARAM, UP, one, STATE_CHANGE);
    spoil(z, ZERO_PARAM, UP, two, STATE_CHANGE);
    MUST(d->f->wait(d, UP));
    CHECK(!isnan(home[one.from]) && !isnan(home[two.from]));
    // A copy of the same piece to the device must wait, and read what was copied to the host.
    look_at(z, ZERO_PARAM, one);
    MUST(d->f->wait(d, UP));
    CHECK(isnan(home[one.from]) && !isnan(home[two.from]) && isnan(states_room(z)[0]));
    MUST(d->f->wait(d, DOWN));
    CHECK(isnan(home[two.from]));
    destroy_lazy(z);
}

// Neither the CPU nor a copy to the host may overwrite host memory that is still being copied to the device.
static void check_copies_before_writes(void) {
    toy t;
    state_part p;
    CHECK_SETTING("the CPU waits for a copy to the device before it writes");
    zero *z = create_lazy(&t, "parameters");
    const state_range one = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    look_at(z, ZERO_PARAM, one);
    MUST(state_open_range(&p, states_get(z, ZERO_PARAM), PROCESSOR, one, STATE_WRITE));
    *(float *)p.at = NAN;
    MUST(state_close(&p));
    MUST(z->device.f->wait(&z->device, UP));
    CHECK(!isnan(states_room(z)[0]));
    destroy_lazy(z);

    CHECK_SETTING("a copy to the host waits for the copy to the device that reads its target");
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

// -------- faults

// Makes the n-th call of a CUDA runtime function fail, during creation or later. n increases up to `most`, or
// until a run makes fewer calls.
#ifdef CUDA_STAND_IN
static void check_calls(const zero_config *c, const char *call, long most) {
    int rc = -1;
    CHECK_SETTING("the n-th %s fails, for increasing n", call);
    for (long n = 1; rc && n < most; n += 1 + n / 3) {
        char fail[64];
        snprintf(fail, sizeof fail, "%s:%ld", call, n);
        setenv("CUDA_STAND_IN_FAIL", fail, 1);
        cuda_stand_in_settings();
        rc = run_with_fault(c, 0);
        unsetenv("CUDA_STAND_IN_FAIL");
        cuda_stand_in_settings();
        CHECK(!rc || rc == ZERO_ERR_DEVICE || rc == ZERO_ERR_MEMORY);
    }
}
#endif

// Runs only with one rank, because other ranks would wait for the one that fails.
static void check_faults(void) {
    zero_config c = tiers_config(mixture_called("all in files, 0.6 of the optimizer"), 3,
                                 &settings_formats[1], 3, &settings_variations[6]);
    tiers.place(&c, 0);
    check_files_that_fail(&c);
#ifdef CUDA_STAND_IN
    check_calls(&c, "cudaHostRegister", 100);
    check_calls(&c, "cudaMalloc", 100);
    check_calls(&c, "cudaEventCreateWithFlags", 1000);
    check_calls(&c, "cudaMemcpyAsync", 3000);
    check_calls(&c, "cudaEventSynchronize", 1000);
#endif
}

int main(int argc, char **argv) {
    int provided, status = 0;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 1;
    checks_begin();
    if (zero_cuda_devices() <= 0) {
        if (!checks.rank)
            printf("skip mpi_tiers_device: %s\n0 passed, 0 failed, 1 skipped\n", zero_last_error());
    } else {
        CUDA_MUST(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
        outcome_begin("tiers_device");
        outcome_create = device_toy_create;
        outcome_activation = device_activation_of;
        tiers.mixtures = mixtures;
        tiers.n_mixtures = SETTINGS_COUNT(mixtures);
        tiers.n_manners = SETTINGS_COUNT(manners);
        tiers.place = on_the_device;
        check_all_bits();
        check_own_updates();
        check_nccl();
        check_all_traffic();
#ifdef CUDA_STAND_IN
        check_independent_copies();
        check_copies_before_writes();
#endif
        if (checks.ranks == 1) check_faults();
        outcome_end();
        CUDA_MUST(cudaStreamDestroy(own_stream));
        status = checks_end("mpi_tiers_device");
    }
    MPI_Finalize();
    return status;
}
#endif
