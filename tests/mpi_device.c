// Tests what only a plugin on CUDA devices does, apart from bits, memory and traffic (mpi_bits.c): mpirun -np
// N mpi_device, for any N. A rank fails while it starts, each rank finds its device, NCCL sums in its own
// order, and copies in both directions of the bus are independent.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include "check.h"
#include "settings.h"
#include "toy.h"

#ifndef ZERO_HAVE_CUDA
int main(void) {
    if (!zero_launched().rank) printf("skip mpi_device: built without CUDA\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "device.h"
#include "../llmc_zero/internal.h"

static zero_config simple(int stage, int format) {
    zero_config c = settings_config(&settings_paths[stage + 1], &settings_formats[format], 1, 1);
    c.comm.nccl = 0;
    c.device = ZERO_CUDA;
    return c;
}

// Trains three steps. full: the digest of all states.
static void train(const zero_config *c, char full[17]) {
    toy t;
    MUST(toy_create_on_device(&t, c));
    for (int step = 1; step <= 3; step++) MUST(toy_step(&t, c->micro_batches, step, NULL));
    MUST(zero_hash(t.z, 1, full));
    zero_destroy(t.z);
}

// -------- one rank fails

// A call fails during zero_create, on the last rank only. All ranks must return its error at once.
static void check_one_fails(void) {
#ifdef CUDA_STAND_IN
    static const char *const calls[] = { "cudaGetDeviceCount:1",
                                         "cudaGetDeviceProperties:2",
                                         "cudaStreamCreateWithPriority:1",
                                         "cudaHostRegister:1",
                                         "cudaMalloc:1",
                                         "cudaMalloc:2",
                                         "cudaMalloc:4",
                                         "cudaEventCreateWithFlags:3" };
    set_manner(manners[0]);
    for (int shared = 0; shared < 2; shared++)
        for (int i = 0; i < SETTINGS_COUNT(calls); i++) {
            zero_config c = simple(3, 1);
            char own[256], last[256];
            zero *z;
            CHECK_SETTING("%s on the last rank, shared %d", calls[i], shared);
            if (checks.ranks == 1 && !strncmp(calls[i], "cudaHostRegister", 16)) continue;
            c.comm.shared_window = shared;
            if (checks.rank == checks.ranks - 1) cuda_stand_in_set("CUDA_STAND_IN_FAIL", calls[i]);
            int rc = zero_create(&z, &c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS);
            cuda_stand_in_set("CUDA_STAND_IN_FAIL", NULL);
            CHECK(rc == ZERO_ERR_DEVICE || rc == ZERO_ERR_MEMORY);
            snprintf(own, sizeof own, "%d: %s", rc, zero_last_error());
            memcpy(last, own, sizeof last);
            MPI_Bcast(last, sizeof last, MPI_CHAR, checks.ranks - 1, MPI_COMM_WORLD);
            CHECK(!strcmp(own, last));
            if (!rc) zero_destroy(z);
        }
#endif
}

// -------- several devices

// With several devices, each rank uses the device with its number, or all use the one in the settings.
static void check_devices(void) {
#ifdef CUDA_STAND_IN
    use_devices(2);
    set_manner(manners[0]);
#endif
    int devices = zero_cuda_devices();
    for (int number = -1; number < devices; number++)
        for (int stage = 0; stage < 4; stage++) {
            zero_config c = simple(stage, 1);
            zero_job e;
            toy t;
            CHECK_SETTING("device %d of %d, stage %d", number, devices, stage);
            c.cuda_device = number;
            MUST(toy_create_on_device(&t, &c));
            MUST(toy_step(&t, 1, 1, NULL));
            zero_job_info(t.z, &e);
            CHECK(e.cuda_device == (number < 0 ? checks.rank % devices : number));
            int sharing = 0;
            for (int r = 0; r < checks.ranks; r++) sharing += number >= 0 || r % devices == e.cuda_device;
            CHECK(e.ranks_on_device == sharing);
            zero_destroy(t.z);
        }
    CUDA_MUST(cudaSetDevice(0));
}

// For two ranks, NCCL's sum of the gradients has the same bits as the plugin's. The exception is bf16 at
// stages 2 and 3: NCCL rounds each micro-batch's sum before the plugin adds them. fp32 sums are not rounded.
static void check_sum_of_two(void) {
#ifdef ZERO_HAVE_NCCL
    if (checks.ranks != 2 || zero_cuda_devices() < 2) return;
    for (int stage = 0; stage < 4; stage++)
        for (int wide = 0; wide < 2; wide++) {
            zero_config plain = simple(stage, 1), c = plain;
            char want[17], got[17];
            CHECK_SETTING("NCCL's sum of two, stage %d, fp32 on the wire %d", stage, wide);
            set_manner(manners[stage % MANNERS]);
            plain.device = ZERO_CPU;
            plain.micro_batches = c.micro_batches = 3;
            c.comm.nccl = c.comm.reduce_nccl = 1;
            c.comm.reduce_fp32 = wide;
            train(&plain, want);
            train(&c, got);
            CHECK(!strcmp(got, want) == (wide || stage < 2));
        }
    CUDA_MUST(cudaSetDevice(0));
#endif
}

// -------- both directions of the bus

#ifdef CUDA_STAND_IN
// Creates the toy with lazy streams, which run queued work only when a call waits for it. Its parameters are
// on the host; gradients 1: its gradients are.
static zero *create_lazy(toy *t, int gradients) {
    zero_config c = simple(3, 0);
    c.offload.sub_group_size = 2048;
    if (!gradients) c.offload.params = ZERO_HOST;
    if (gradients) c.offload.optimizer = c.offload.gradients = ZERO_HOST;
    if (gradients) c.offload.optimizer_ratio = 0;
    set_manner("lazy");
    MUST(toy_create_on_device(t, &c));
    MUST(wait_for_device(t->z, COMPUTE));
    return t->z;
}

static void destroy_lazy(zero *z) {
    zero_destroy(z);
    set_manner(manners[0]);
}

// Sets a range to NaN on the device, and copies it back to the host.
static void spoil(zero *z, zero_value what, device_stream on, state_range r, state_intent intent) {
    state_part p;
    MUST(state_open_range(&p, rank_state(z, what), on, r, intent));
    MUST(z->device.f->fill_nan(&z->device, on, p.at, r.elems * sizeof(float)));
    MUST(state_close(&p));
}

// Queues a copy of the range to the device, and from there a copy of its first element to
// rank_states_room(z).
static void look_at(zero *z, zero_value what, state_range r) {
    state_part p;
    rank_states_room(z)[0] = NAN;
    MUST(state_open_range(&p, rank_state(z, what), UP, r, STATE_READ));
    MUST(z->device.f->copy(&z->device, UP, rank_states_room(z), p.at, sizeof(float)));
    MUST(state_close(&p));
}

// Waiting for the copy of the second piece to the device must not run the copy of the first piece to the
// host. Streams are lazy, so it runs only if the copy to the device wrongly waits for it.
static void check_independent_copies(void) {
    toy t;
    CHECK_SETTING("one piece is copied to the device while another is copied to the host");
    zero *z = create_lazy(&t, 0);
    device *d = &z->device;
    const state *params = rank_state(z, ZERO_PARAM);
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
    CHECK(isnan(home[one.from]) && !isnan(home[two.from]) && isnan(rank_states_room(z)[0]));
    MUST(d->f->wait(d, DOWN));
    CHECK(isnan(home[two.from]));
    destroy_lazy(z);
}

// Neither the CPU nor a copy to the host may overwrite host memory that is still being copied to the device.
static void check_copies_before_writes(void) {
    toy t;
    state_part p;
    CHECK_SETTING("the CPU waits for a copy to the device before it writes");
    zero *z = create_lazy(&t, 0);
    const state_range one = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    look_at(z, ZERO_PARAM, one);
    MUST(state_open_range(&p, rank_state(z, ZERO_PARAM), PROCESSOR, one, STATE_WRITE));
    *(float *)p.at = NAN;
    MUST(state_close(&p));
    MUST(z->device.f->wait(&z->device, UP));
    CHECK(!isnan(rank_states_room(z)[0]));
    destroy_lazy(z);

    CHECK_SETTING("a copy to the host waits for the copy to the device that reads its target");
    z = create_lazy(&t, 1);
    const state_range part = plan_first_piece(&z->config, &z->layout, checks.rank, 0);
    look_at(z, ZERO_GRADIENT, part);
    spoil(z, ZERO_GRADIENT, COMM, part, STATE_WRITE);
    MUST(z->device.f->wait(&z->device, DOWN));
    MUST(z->device.f->wait(&z->device, UP));
    CHECK(!isnan(rank_states_room(z)[0]));
    destroy_lazy(z);
}
#endif

static void check_all(const char *asked) {
    if (zero_cuda_devices() <= 0) {
        checks.skipped = zero_last_error();
        return;
    }
    check_one_fails();
    check_devices();
    check_sum_of_two();
#ifdef CUDA_STAND_IN
    check_independent_copies();
    check_copies_before_writes();
#endif
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_device", check_all); }
#endif
