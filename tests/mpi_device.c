// Compares the plugin on CUDA devices with the same run on the CPU: mpirun -np N mpi_device, for any N. The
// host does not wait for the toy's kernels on the trainer's stream, so a missing event may give different
// bits on a GPU, and always does on the stand-in (tests/cuda/), whose streams run as early or as late as
// their events allow. Every value of every setting is combined with every stage.
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include "check.h"
#include "copies.h"
#include "plan.h"
#include "settings.h"
#include "toy.h"

#ifndef ZERO_HAVE_CUDA
int main(void) {
    if (!zero_launched().rank) printf("skip mpi_device: built without CUDA\n0 passed, 0 failed, 1 skipped\n");
    return 0;
}
#else
#include "device.h"

enum { STEPS = 3, EVAL_AFTER = 2 };

// -------- one run

static cudaStream_t own_stream;

typedef struct {
    char params[17], full[17];
    double norms[STEPS];
    float eval, gradient[33];
} outcome;

// Abandons passes while gathers and reductions are in progress. Their results must not affect the next pass.
static void abandon_passes(toy *t, const zero_config *c) {
    MUST(zero_begin_eval(t->z));
    MUST(toy_forward(t, 0));
    if (c->prefetch) {
        // These units take the slots of prefetched ones.
        for (int u = TOY_UNITS - 1; u > TOY_UNITS - 3; u--) MUST(zero_pre_forward(t->z, u));
        for (int u = TOY_UNITS - 1; u > TOY_UNITS - 3; u--) MUST(zero_post_forward(t->z, u));
    }
    MUST(toy_forward(t, 1));
    MUST(zero_begin_eval(t->z));
    MUST(toy_forward(t, 0));
    MUST(toy_pass(t, 0, c->micro_batches));
}

// The last step calls zero_finish_gradients, reads a gradient, and calls zero_update; others call zero_step.
static void last_step(toy *t, const zero_config *c, outcome *o) {
    zero_hyper h = { .lr = 1e-2f,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-8f,
                     .weight_decay = 0.1f,
                     .grad_clip = 1.0f,
                     .t = STEPS };
    zero_step_result result;
    MUST(toy_passes(t, c->micro_batches));
    MUST(zero_finish_gradients(t->z, &result));
    o->norms[STEPS - 1] = result.grad_norm;
    MUST(zero_get(t->z, ZERO_GRADIENT, 3, 1, 0, 33, o->gradient));
    MUST(zero_update(t->z, &h));
}

// The plan must equal the memory table line by line, and mark as assumed only what zero_create may change.
static void check_plan(const zero *z, const zero_config *c) {
    zero_plan planned;
    zero_job job;
    zero_config own = *c;
    own.start.rank = checks.rank;
    zero_job_info(z, &job);
    MUST(zero_make_plan(&planned, &own, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS, checks.ranks,
                        job.ranks_on_host));
    check_that(!*plan_differs(&planned, z), plan_differs(&planned, z), __FILE__, __LINE__);
    for (int i = 0; i < planned.n_lines; i++) {
        const zero_memory_line *l = &planned.lines[i];
        int by_nccl = !strcmp(l->purpose, "NCCL (measured)");
        int found_later = !strcmp(l->purpose, "shared window") || by_nccl ||
                          (!strcmp(l->purpose, "bytes of other ranks") && c->comm.nccl != 1);
        CHECK(l->assumed == found_later && (l->bytes == 0) == by_nccl);
    }
}

static outcome train(const zero_config *c) {
    outcome o;
    toy t;
    memset(&o, 0, sizeof o);
    device_create(&t, c);
    if (state_default_store == &state_in_memory) check_plan(t.z, c);  // copies take more memory
    for (int step = 1; step < STEPS; step++) {
        zero_step_result result;
        MUST(toy_step(&t, c->micro_batches, step, &result));
        o.norms[step - 1] = result.grad_norm;
        if (step != EVAL_AFTER) continue;
        MUST(toy_eval(&t));
        o.eval = device_activation_of(&t);
        abandon_passes(&t, c);
    }
    last_step(&t, c, &o);
    MUST(zero_hash(t.z, 1, o.full));
    MUST(zero_hash(t.z, 0, o.params));
    CHECK(copies_stop() == 0);
    zero_destroy(t.z);
    return o;
}

// -------- same bits

// A setting: an index into the values of each axis.
typedef enum { STAGE, FORMAT, MICRO, OVERLAP, PREFETCH, POISON, SHARED, BUCKET, MANNER, WIDE, AXES } axis;
typedef struct {
    int at[AXES];
} point;

static int by_nccl;  // 1: each rank has its own device, and NCCL transfers the data

static zero_config config_of(const point *p) {
    static const int prefetch[] = { 0, 1, 3 };
    static const int64_t bucket[] = { 0, 1, 1LL << 40 };
    settings_variation v = {
        .bucket = bucket[p->at[BUCKET]],
        .prefetch = prefetch[p->at[PREFETCH]],
        .max_open = 1,
        .overlap = p->at[OVERLAP],
        .poison = p->at[POISON],
        .shared_window = p->at[SHARED],
        .window_bytes = 64 << 10,
    };
    int micro_batches = settings_micro_batches[p->at[MICRO]];
    zero_config c = settings_config(&settings_paths[p->at[STAGE] + 1], &settings_formats[p->at[FORMAT]],
                                    micro_batches, &v);
    c.comm.nccl = by_nccl;  // 0: the ranks share a device
    c.device = ZERO_CUDA;
    c.comm.reduce_fp32 = p->at[WIDE];
    c.cuda_stream = manners[p->at[MANNER]].own_stream ? own_stream : NULL;
    return c;
}

// Returns the outcome on the CPU, which is computed once for each stage, format and number of micro-batches.
static const outcome *on_cpu(const point *p) {
    typedef struct {
        int done;
        outcome o;
    } run;
    static run runs[4][SETTINGS_COUNT(settings_formats)][2];
    run *known = &runs[p->at[STAGE]][p->at[FORMAT]][p->at[MICRO]];
    zero_config c = config_of(p);
    c.device = ZERO_CPU;
    c.overlap = c.comm.reduce_fp32 = c.comm.nccl = 0;
    if (!known->done) *known = (run){ 1, train(&c) };
    return &known->o;
}

static void check_point(const point *p) {
    zero_config c = config_of(p);
    const manner *m = &manners[p->at[MANNER]];
    const outcome *want = on_cpu(p);
    CHECK_SETTING("stage %d, %s, %d micro-batches, overlap %d, prefetch %d, poison %d, shared %d, "
                  "bucket %lld, fp32 on the wire %d, %s, %s stream%s",
                  c.stage, settings_formats[p->at[FORMAT]].name, c.micro_batches, c.overlap, c.prefetch,
                  c.debug.poison, c.comm.shared_window, (long long)c.reduce_bucket_size, c.comm.reduce_fp32,
                  m->mode, m->own_stream ? "own" : "default", by_nccl ? ", NCCL" : "");
    set_manner(m);
    outcome got = train(&c);
    CHECK(!strcmp(got.full, want->full));
    CHECK(!strcmp(got.params, want->params));
    CHECK(!memcmp(got.norms, want->norms, sizeof got.norms));
    CHECK(!memcmp(&got.eval, &want->eval, sizeof got.eval));
    CHECK(!memcmp(got.gradient, want->gradient, sizeof got.gradient));
}

// Runs with copied states (copies.h): a part that is closed too early, or on a stream other than the one that
// uses it, gives different bits.
static void check_copied(const point *p) {
    zero_config c = config_of(p);
    const outcome *want = on_cpu(p);
    CHECK_SETTING("copied states, stage %d, %s, %d micro-batches, overlap %d, %s", c.stage,
                  settings_formats[p->at[FORMAT]].name, c.micro_batches, c.overlap,
                  manners[p->at[MANNER]].mode);
    int bucket_units = c.reduce_bucket_size > TOY_LARGEST ? TOY_BLOCKS : 1;
    set_manner(&manners[p->at[MANNER]]);
    copies_start(3, (c.stage < 2 ? 2 : 0) + bucket_units);
    protect_device(0);  // check_point runs this setting with protected memory
    outcome got = train(&c);
    protect_device(1);
    if (copies.breach[0]) fprintf(stderr, "rank %d: [%s] %s\n", checks.rank, checks.setting, copies.breach);
    CHECK(!copies.breach[0] && copies.opened > 100);
    CHECK(!memcmp(&got, want, sizeof got));
}

// Combines every two values of stage, overlap and manner, or every three with SETTINGS=all. The other
// settings cycle with different periods. Copied states are tested at half of the points, or with NCCL at a
// quarter, because mpi_tiers_device tests that too.
static void check_some(void) {
    int n = 0;
    for (int stage = 0; stage < 4; stage++)
        for (int overlap = 0; overlap < 2; overlap++)
            for (int m = 0; m < SETTINGS_COUNT(manners); m++, n++) {
                point p = { { stage, n % SETTINGS_COUNT(settings_formats), n / 4 % 2, overlap,
                              (n + stage) % 3, n / 3 % 2, (m / 2 + stage / 2 + overlap) % 2, n / 5 % 3, m,
                              (n + n / 8) % 2 } };
                const int turn = stage + overlap + m + by_nccl;
                if (settings_chosen(turn, 2)) check_point(&p);
                if (settings_chosen(turn + 1, by_nccl ? 4 : 2)) check_copied(&p);
            }
}

// -------- files

static char folder[64];
static void path_of(char path[160], const char *name) { snprintf(path, 160, "%s/%s", folder, name); }

static zero_config simple(zero_device device, int stage, int format) {
    zero_config c = settings_config(&settings_paths[stage + 1], &settings_formats[format], 1,
                                    &settings_variations[1]);
    c.comm.nccl = 0;
    c.device = device;
    return c;
}

static void save_at(zero_device device, int stage, int format, const char *path, char saved[17],
                    char end[17]) {
    zero_config c = simple(device, stage, format);
    toy t;
    device_create(&t, &c);
    for (int step = 1; step <= 2; step++) MUST(toy_step(&t, 1, step, NULL));
    MUST(zero_save(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, saved));
    MUST(toy_step(&t, 1, 3, NULL));
    MUST(zero_hash(t.z, 1, end));
    zero_destroy(t.z);
}

static void load_at(zero_device device, int stage, int format, const char *path, const char saved[17],
                    const char end[17]) {
    zero_config c = simple(device, stage, format);
    char hex[17];
    toy t;
    device_create(&t, &c);
    MUST(toy_step(&t, 1, 1, NULL));
    MUST(zero_load(t.z, path, NULL));
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, saved));
    MUST(toy_step(&t, 1, 2, NULL));
    MUST(zero_load(t.z, path, NULL));  // the next kernels must read the loaded values
    MUST(toy_step(&t, 1, 3, NULL));
    MUST(zero_hash(t.z, 1, hex));
    CHECK(!strcmp(hex, end));
    zero_destroy(t.z);
}

// Saves on the CPU and loads on the GPU, and vice versa, at a different stage.
static void check_files(void) {
    char path[160], saved[17], end[17];
    check_make_folder(folder, sizeof folder, "/tmp");
    path_of(path, "state");
    for (int stage = 0; stage < 4; stage++)
        for (int m = stage % 2; m < SETTINGS_COUNT(manners); m += 2) {
            int format = (stage + m) % SETTINGS_COUNT(settings_formats);
            set_manner(&manners[m]);
            for (int from = 0; from < 2; from++) {
                CHECK_SETTING("saved on the %s at stage %d, %s, %s", from ? "GPU" : "CPU", stage,
                              settings_formats[format].name, manners[m].mode);
                save_at(from ? ZERO_CUDA : ZERO_CPU, stage, format, path, saved, end);
                load_at(from ? ZERO_CPU : ZERO_CUDA, 3 - stage, format, path, saved, end);
            }
        }
    MPI_Barrier(MPI_COMM_WORLD);
    if (checks.rank) return;
    CHECK(!zero_checkpoint_remove(path));
    CHECK(!rmdir(folder));
}

// -------- values

static float value_of(int what, int tensor, int layer, int64_t i) {
    return (float)((i * 37 + tensor * 11 + layer * 5 + what * 3) % 1009) / 1009;
}

// Sets values while gathers are in progress, reads them back, and checks that the kernels use them.
static void check_values(const zero_config *c) {
    static float x[TOY_LARGEST], got[TOY_LARGEST];
    // The last value set below that also changes the parameter.
    int last = c->numbers.dtype == ZERO_F32 || c->numbers.no_master ? ZERO_MASTER : ZERO_PARAM;
    float a = 0;
    toy t;
    device_create(&t, c);
    for (int step = 1; step <= 2; step++) MUST(toy_step(&t, 1, step, NULL));
    MUST(toy_eval(&t));
    MUST(zero_begin_eval(t.z));
    MUST(toy_forward(&t, 0));
    for (int what = ZERO_PARAM; what <= ZERO_MOMENT2; what++)
        for (int k = 0; k < TOY_TENSORS; k++) {
            int64_t n = toy_elems(k), third = n / 3, wrong = 0;
            for (int64_t i = 0; i < n; i++) x[i] = value_of(what, k, 0, i);
            MUST(zero_set(t.z, what, k, 0, third, n - third, x + third));
            MUST(zero_set(t.z, what, k, 0, 0, third, x));
            MUST(zero_get(t.z, what, k, 0, 0, n, got));
            for (int64_t i = 0; i < n; i++) {
                if (what == ZERO_PARAM || what == last) x[i] = toy_rounded(c->numbers.dtype, x[i]);
                wrong += got[i] != x[i];
                if (toy_has(k, 1) && what == last) a = toy_add_parameter(a, x[i], i);
            }
            CHECK(wrong == 0);
        }
    MUST(toy_start(&t, 0));
    MUST(toy_forward(&t, 1));
    CHECK(device_activation_of(&t) == a);
    zero_destroy(t.z);
}

static void check_all_values(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int m = stage % 2; m < SETTINGS_COUNT(manners); m += 2) {
            zero_config c = simple(ZERO_CUDA, stage, (stage + m) % SETTINGS_COUNT(settings_formats));
            CHECK_SETTING("values, stage %d, %s", stage, manners[m].mode);
            set_manner(&manners[m]);
            check_values(&c);
        }
}

// -------- one rank fails

// A call fails during zero_create, on the last rank only. All ranks must return its error at once.
static void check_one_fails(void) {
#ifdef CUDA_STAND_IN
    static const char *const calls[] = {
        "cudaGetDeviceCount:1",
        "cudaGetDeviceProperties:2",
        "cudaStreamCreateWithPriority:1",
        "cudaHostRegister:1",
        "cudaMalloc:1",
        "cudaMalloc:2",
        "cudaMalloc:4",
        "cudaEventCreateWithFlags:3",
    };
    set_manner(&manners[0]);
    for (int shared = 0; shared < 2; shared++)
        for (int i = 0; i < SETTINGS_COUNT(calls); i++) {
            zero_config c = simple(ZERO_CUDA, 3, 1);
            char own[256], last[256];
            zero *z;
            CHECK_SETTING("%s on the last rank, shared %d", calls[i], shared);
            if (checks.ranks == 1 && !strncmp(calls[i], "cudaHostRegister", 16)) continue;
            c.comm.shared_window = shared;
            if (checks.rank == checks.ranks - 1) setenv("CUDA_STAND_IN_FAIL", calls[i], 1);
            cuda_stand_in_settings();
            int rc = zero_create(&z, &c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS);
            unsetenv("CUDA_STAND_IN_FAIL");
            cuda_stand_in_settings();
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

// With several devices, each rank uses the device of its own number, or all use the one in the settings.
static void check_devices(void) {
#ifdef CUDA_STAND_IN
    setenv("CUDA_STAND_IN_DEVICES", "2", 1);
    set_manner(&manners[0]);
#endif
    int devices = zero_cuda_devices();
    for (int number = -1; number < devices; number++)
        for (int stage = 0; stage < 4; stage++) {
            zero_config c = simple(ZERO_CUDA, stage, 1), plain = simple(ZERO_CPU, stage, 1);
            zero_job e;
            toy t;
            CHECK_SETTING("device %d of %d, stage %d", number, devices, stage);
            c.cuda_device = number;
            outcome want = train(&plain), got = train(&c);
            CHECK(!strcmp(got.full, want.full) && !strcmp(got.params, want.params));
            device_create(&t, &c);
            zero_job_info(t.z, &e);
            CHECK(e.cuda_device == (number < 0 ? checks.rank % devices : number));
            int sharing = 0;
            for (int r = 0; r < checks.ranks; r++) sharing += number >= 0 || r % devices == e.cuda_device;
            CHECK(e.ranks_on_device == sharing);
            zero_destroy(t.z);
        }
    CUDA_MUST(cudaSetDevice(0));
}

// With NCCL collectives only queue work, and the hooks wait for it.
static void check_nccl(void) {
#ifdef ZERO_HAVE_NCCL
#ifdef CUDA_STAND_IN
    char devices[16];
    snprintf(devices, sizeof devices, "%d", checks.ranks);
    setenv("CUDA_STAND_IN_DEVICES", devices, 1);
    set_manner(&manners[0]);
    if (checks.ranks == 2) return;  // three ranks test this too
#endif
    if (checks.ranks == 1 || zero_cuda_devices() < checks.ranks) return;
    cudaStream_t of_device_0 = own_stream;
    by_nccl = 1;
    CUDA_MUST(cudaSetDevice(checks.rank));
    CUDA_MUST(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
    check_some();
    CUDA_MUST(cudaStreamDestroy(own_stream));
    CUDA_MUST(cudaSetDevice(0));
    own_stream = of_device_0;
    by_nccl = 0;
#endif
}

// -------- small units

// If units are smaller than the number of ranks, some ranks hold only padding.
static void train_small(const zero_config *c, char full[17]) {
    enum { TENSORS = 3, UNITS = 3 };
    static const zero_tensor tensors[TENSORS] = {
        { "one", 1, { 1 }, 3, 0, 1, 0 },
        { "more", 1, { 130 }, 1, 1, 0, 1 },
        { "two", 1, { 1 }, 1, 2, 0, 1 },
    };
    static const zero_unit units[UNITS] = { { "0", 1, 1, 0 }, { "1", 1, 1, 0 }, { "2", 1, 1, 0 } };
    static char gradient[4 * 130];
    zero_hyper h = { .lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_clip = 0.5f };
    zero_step_result result;
    zero *z;
    MUST(zero_create(&z, c, tensors, TENSORS, units, UNITS));
    for (int t = 1; t <= 3; t++) {
        MUST(zero_begin_train(z, 0, 1));
        for (int u = 0; u < UNITS; u++) {
            MUST(zero_pre_forward(z, u));
            MUST(zero_post_forward(z, u));
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            MUST(zero_pre_backward(z, u));
            for (int k = 0; k < TENSORS; k++) {
                int layer = u - tensors[k].unit;
                if (layer < 0 || layer >= tensors[k].layers) continue;
                size_t bytes = zero_tensor_elems(&tensors[k]) * (c->numbers.dtype == ZERO_F32 ? 4 : 2);
                void *g = zero_grad(z, k, layer);
                for (int i = 0; i < zero_tensor_elems(&tensors[k]); i++)
                    toy_store(c->numbers.dtype, gradient, i, value_of(t + checks.rank, k, layer, i));
                if (c->device == ZERO_CPU)
                    memcpy(g, gradient, bytes);
                else
                    CUDA_MUST(cudaMemcpy(g, gradient, bytes, cudaMemcpyHostToDevice));
            }
            MUST(zero_post_backward(z, u));
        }
        h.t = t;
        MUST(zero_step(z, &h, &result));
        CHECK(result.finite && result.grad_norm > 0);
    }
    MUST(zero_hash(z, 1, full));
    zero_destroy(z);
}

static void check_small_units(void) {
    char first[2][17];
    set_manner(&manners[0]);
    for (int i = 0; i < 16; i++) {
        zero_config c = simple(i / 8 ? ZERO_CUDA : ZERO_CPU, i / 2 % 4, i % 2);
        char full[17];
        c.debug.poison = 1;
        c.cuda_device = i / 8 ? 0 : -1;
        CHECK_SETTING("small units, stage %d, %s, %s", c.stage, settings_formats[i % 2].name,
                      i / 8 ? "CUDA" : "CPU");
        train_small(&c, full);
        if (i < 2) strcpy(first[i], full);
        CHECK(!strcmp(full, first[i % 2]));
    }
}

// For two ranks, NCCL's sum of the gradients has the same bits as the plugin's. The exception is bf16 at
// stages 2 and 3: NCCL rounds each micro-batch's sum before the plugin adds them. fp32 sums are not rounded.
static void check_sum_of_two(void) {
#ifdef ZERO_HAVE_NCCL
    if (checks.ranks != 2 || zero_cuda_devices() < 2) return;
    for (int stage = 0; stage < 4; stage++)
        for (int wide = 0; wide < 2; wide++) {
            zero_config plain = simple(ZERO_CPU, stage, 1), c = simple(ZERO_CUDA, stage, 1);
            const manner *m = &manners[stage % SETTINGS_COUNT(manners)];
            CHECK_SETTING("NCCL's sum of two, stage %d, %s, fp32 on the wire %d", stage, m->mode, wide);
            set_manner(m);
            plain.micro_batches = c.micro_batches = 3;
            c.comm.nccl = c.comm.reduce_nccl = 1;
            c.comm.reduce_fp32 = wide;
            outcome want = train(&plain), got = train(&c);
            CHECK(!strcmp(got.full, want.full) == (wide || stage < 2));
        }
    CUDA_MUST(cudaSetDevice(0));
#endif
}

// --------

static void timed(const char *name, void (*check)(void)) {
    double start = MPI_Wtime();
    check();
    if (!checks.rank && getenv("TEST_TIMES")) printf("  %-20s %.2f s\n", name, MPI_Wtime() - start);
}

int main(int argc, char **argv) {
    int provided, status = 0;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 1;
    checks_begin();
    if (zero_cuda_devices() <= 0) {
        if (!checks.rank) printf("skip mpi_device: %s\n0 passed, 0 failed, 1 skipped\n", zero_last_error());
    } else {
        CUDA_MUST(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
        timed("same bits", check_some);
        timed("files", check_files);
        timed("values", check_all_values);
        timed("one rank fails", check_one_fails);
        timed("devices", check_devices);
        timed("NCCL", check_nccl);
        timed("small units", check_small_units);
        timed("NCCL's sum of two", check_sum_of_two);
        CUDA_MUST(cudaStreamDestroy(own_stream));
        status = checks_end("mpi_device");
    }
    MPI_Finalize();
    return status;
}
#endif
