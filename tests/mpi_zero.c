// Tests what several ranks do, apart from bits, memory and traffic (mpi_bits.c): mpirun -np N mpi_zero, for
// any N. Collectives, updates and reads overlap with computation where they may; sums over ranks are in rank
// order; ranks whose updates differ, or that are out of memory, fail together.
//   mpi_zero NAME         runs one check, such as "overlap" or "no memory"
//   mpi_zero timeout      ranks that miss a collective, or call different ones, fail with an error
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include "check.h"
#include "faults.h"
#include "pretend.h"
#include "saves.h"
#include "settings.h"
#include "toy.h"
#include "../llmc_zero/internal.h"

// Returns a config with fp32, one micro-batch, and defaults for the rest.
static zero_config simple(int stage, int overlap) {
    return settings_config(&settings_paths[stage + 1], &settings_formats[0], 1, overlap);
}

// All states in files, in pieces so small that each unit has several.
static zero_config in_files(int format, int micro_batches) {
    zero_config c = settings_config(&settings_paths[4], &settings_formats[format], micro_batches, 0);
    c.offload.params = c.offload.optimizer = c.offload.gradients = ZERO_NVME;
    c.offload.sub_group_size = 2048;
    c.offload.nvme = folder;
    c.offload.nvme_verify = 1;
    return c;
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
// gather starts before the next unit is updated. At stage 3 those of the first units of the next step do;
// tests/test_hooks.c checks the whole step.
static void check_order_in_update(void) {
    static const char *const orders[] = { "U0 U1 U2 U3 U4", "U0 G0 U1 G1 U2 G2 U3 G3 U4 G4",
                                          "U0 G0 U1 G1 U2 G2 U3 U4" };
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

// -------- reading states during backward

// The first pieces of the update must be read during backward: three, or two if gradients are in files too.
// They may be dropped again (mpi_bits.c).
static void check_pieces_read_ahead(zero_tier gradients, int pieces) {
    zero_config c = in_files(1, 1);
    zero_files files;
    toy t;
    CHECK_SETTING("%d pieces read during backward", pieces);
    c.offload.gradients = gradients;
    MUST(toy_create(&t, &c, NULL));
    for (int step = 1; step <= 3; step++) {
        MUST(toy_forward_pass(&t, 0, 1));
        zero_files_info(t.z, &files);  // waits for the disk
        CHECK(update_pieces_read_ahead(t.z) == 0);
        MUST(toy_backward_pass(&t));
        CHECK(update_pieces_read_ahead(t.z) == pieces);
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(step == 2 ? zero_discard(t.z) : zero_update(t.z, &(zero_hyper){ .lr = 1e-3f, .t = step }));
        MUST(step_settle(t.z));  // the update counts its own pieces too
        CHECK(update_pieces_read_ahead(t.z) == 0);
    }
    zero_destroy(t.z);
}

static void check_read_ahead(void) {
    check_pieces_read_ahead(ZERO_NVME, 2);
    check_pieces_read_ahead(ZERO_DEVICE, 3);
}

// -------- an update during backward

// Returns 1 if the update of a unit began before backward ended.
static int updated_in_backward(const zero *z) {
    trace_event e;
    double backward_s = 0;
    int found = 0;
    for (int i = 0; trace_at(&z->trace, i, &e); i++)
        if (e.kind == EVENT_BACKWARD && e.end_s > backward_s) backward_s = e.end_s;
    for (int i = 0; trace_at(&z->trace, i, &e); i++)
        found |= e.kind == EVENT_UPDATE && e.unit >= 0 && e.start_s < backward_s;
    return found;
}

// Returns 1 if states of a unit were read during backward, before the unit's own use ended.
static int read_in_backward(const zero *z) {
    trace_event read, use;
    double began_s = INFINITY;
    for (int i = 0; trace_at(&z->trace, i, &use); i++)
        if (use.kind == EVENT_BACKWARD && use.start_s < began_s) began_s = use.start_s;
    for (int i = 0; trace_at(&z->trace, i, &read); i++)
        for (int k = 0; read.kind == EVENT_READ && read.start_s > began_s && trace_at(&z->trace, k, &use);
             k++)
            if (use.kind == EVENT_BACKWARD && use.unit == read.unit && read.start_s < use.end_s) return 1;
    return 0;
}

// Steps once, with only the optimizer's states in files.
static int step_has(int (*found_in)(const zero *z), int early, double compute_s) {
    zero_config c = in_files(1, 1);
    const zero_hyper h = toy_hyper(1);
    toy t;
    c.offload.params = c.offload.gradients = ZERO_DEVICE;
    c.debug.trace_events = 4096;
    MUST(toy_create(&t, &c, NULL));
    t.compute_s = compute_s;
    if (early) MUST(zero_promise_update(t.z, &h));
    MUST(toy_passes(&t, 1));
    MUST(zero_step(t.z, &h, NULL));
    MUST(step_settle(t.z));                      // nothing adds to the trace while it is read
    const int found = check_any(found_in(t.z));  // all ranks make the same number of steps
    zero_destroy(t.z);
    return found;
}

static void check_early_overlaps(void) {
    static const struct {
        const char *what;
        int (*found_in)(const zero *z);
        int early, expected;
    } cases[] = {
        { "an update that is promised begins during backward", updated_in_backward, 1, 1 },
        { "an update that is not promised does not begin during backward", updated_in_backward, 0, 0 },
        { "its states are read before the gradients are there", read_in_backward, 1, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int found = -1;
        CHECK_SETTING("%s", cases[i].what);
        // On a busy machine the update may start late, so the loop makes backward longer.
        for (double compute_s = 1e-3; found != cases[i].expected && compute_s < 0.5; compute_s *= 4)
            found = step_has(cases[i].found_in, cases[i].early, compute_s);
        CHECK(found == cases[i].expected);
    }
}

// -------- a delayed update

// Returns 1 if a forward pass used a unit after zero_update returned but before the unit's update ended.
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

// With only the optimizer states in files, forward can run while the disk hangs, unless it waits for the
// update.
static void check_delayed_overlaps(void) {
    for (int delayed = 0; delayed <= 1; delayed++) {
        toy t;
        zero_config c = in_files(1, 1);
        CHECK_SETTING("forward %s an update", delayed ? "does not wait for" : "waits for");
        c.offload.params = c.offload.gradients = ZERO_DEVICE;
        c.debug.trace_events = 4096;
        c.offload.delayed_update = delayed;
        set_fault(FILE_READ, 0, 0, 0);
        MUST(toy_create(&t, &c, NULL));
        fault_waits = delayed;
        MUST(toy_step(&t, 1, 1, NULL));
        MUST(toy_forward_pass(&t, 0, 1));
        fault_waits = 0;
        MUST(toy_backward_pass(&t));
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(step_settle(t.z));
        CHECK(used_before_updated(t.z) == delayed);
        zero_destroy(t.z);
        file_fault = NULL;
    }
}

// -------- the trace's file

typedef struct {
    int process, track, transfer;
    int64_t start, end;  // ns
} slice;

static int64_t ns_of(const json_t *event, const char *key) {
    return llround(json_number_value(json_object_get(event, key)) * 1e3);
}
static int int_of(const json_t *event, const char *key) {
    return (int)json_integer_value(json_object_get(event, key));
}
static int has(const json_t *event, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(event, key));
    return value && !strcmp(value, text);
}
static int64_t bytes_of(const json_t *event) {
    return json_integer_value(json_object_get(json_object_get(event, "args"), "bytes"));
}

// Viewers misplace a slice that begins inside another slice of its track and ends after it.
static int overlap_wrongly(const slice *a, const slice *b) {
    if (a->process != b->process || a->track != b->track || a->start > b->start || a->end <= b->start)
        return 0;
    return b->end > a->end || a->transfer || b->transfer;
}

static int count_wrong_slices(const json_t *file) {
    slice *slices = calloc(json_array_size(file), sizeof *slices);
    int n = 0, wrong = 0;
    for (size_t i = 0; i < json_array_size(file); i++) {
        const json_t *e = json_array_get(file, i);
        const int64_t start = ns_of(e, "ts");
        if (has(e, "ph", "X"))
            slices[n++] = (slice){ int_of(e, "pid"), int_of(e, "tid"),
                                   has(e, "cat", "read") || has(e, "cat", "write"), start,
                                   start + ns_of(e, "dur") };
    }
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) wrong += overlap_wrongly(&slices[i], &slices[k]);
    free(slices);
    return wrong;
}

// Returns the last value of a process's counter, or -1 if its values ever decrease.
static int64_t counted(const json_t *file, int process, const char *name) {
    int64_t value = 0;
    for (size_t i = 0; i < json_array_size(file) && value >= 0; i++) {
        const json_t *e = json_array_get(file, i);
        if (has(e, "ph", "C") && int_of(e, "pid") == process && has(e, "name", name))
            value = bytes_of(e) < value ? -1 : bytes_of(e);
    }
    return value;
}

// Adds up the bytes of all slices of a kind, and counts the slices in *n.
static int64_t moved(const json_t *file, int process, const char *kind, int *n) {
    int64_t sum = *n = 0;
    for (size_t i = 0; i < json_array_size(file); i++) {
        const json_t *e = json_array_get(file, i);
        if (!has(e, "cat", kind) || int_of(e, "pid") != process) continue;
        sum += bytes_of(e);
        ++*n;
    }
    return sum;
}

static void check_file(const char *path, int steps, int64_t allocated) {
    json_t *file = json_load_file(path, 0, NULL);
    CHECK(file);
    CHECK(!count_wrong_slices(file));
    for (int process = 1; process <= checks.ranks; process++) {
        int n;
        const int64_t read = moved(file, process, "read", &n);
        CHECK(n > 0 && read > 0 && counted(file, process, "bytes read") == read);
        CHECK(moved(file, process, "write", &n) == counted(file, process, "bytes written"));
        CHECK(moved(file, process, "gather", &n) == counted(file, process, "bytes gathered"));
        moved(file, process, "step", &n);
        CHECK(n == steps);
    }
    CHECK(counted(file, 1, "memory allocated") == allocated);
    json_decref(file);
}

static void check_trace_file(void) {
    enum { STEPS = 3 };
    char path[300];
    int64_t allocated = 0;
    toy t;
    zero_config c = in_files(1, 2);
    CHECK_SETTING("one file for the traces of all ranks");
    c.debug.trace_events = 8192;
    MUST(toy_create(&t, &c, NULL));
    for (int step = 1; step <= STEPS; step++) MUST(toy_step(&t, 2, step, NULL));
    snprintf(path, sizeof path, "%s/trace.json", folder);
    MUST(zero_trace_write(t.z, path));
    for (int i = 0; i < ZERO_MEMORY_CLASSES; i++) allocated += (int64_t)zero_memory_bytes(t.z, i);
    if (!checks.rank) check_file(path, STEPS, allocated);
    if (!checks.rank) CHECK(!remove(path));
    CHECK(zero_trace_write(t.z, "/nonexistent/trace.json") == ZERO_ERR_IO);
    CHECK(strstr(zero_last_error(), "/nonexistent/trace.json"));
    zero_destroy(t.z);
}

// -------- scalars

// Returns the sum of value i of ranks [first, first + n), in tree order.
static double tree_of_scalars(int i, int first, int n) {
    int left = 1;
    if (n == 1) return (first % 2 ? -1 : 1) * (0.1 + i) * (i % 3 ? 1e16 : 1) / (first + 1);
    while (2 * left < n) left *= 2;
    return tree_of_scalars(i, first, left) + tree_of_scalars(i, first + left, n - left);
}

static void check_scalars(void) {
    enum { BIG = 300001 };
    static char data[BIG];
    double x[64], want[64], mine[64];
    zero *z;
    const zero_config c = simple(0, 0);
    CHECK_SETTING("scalars");
    MUST(zero_create(&z, &c, toy_tensors, TOY_TENSORS, toy_units, TOY_UNITS));
    CHECK(zero_rank(z) == checks.rank && zero_ranks(z) == checks.ranks);
    for (int i = 0; i < 64; i++) {
        mine[i] = x[i] = tree_of_scalars(i, checks.rank, 1);
        want[i] = tree_of_scalars(i, 0, checks.ranks);
    }
    MUST(zero_sum(z, x, 64));
    CHECK(!memcmp(x, want, sizeof x));
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

// -------- timeout

// The last rank misses the first step. At stage 2, the first collective of a step reduces the last units.
// With two groups, ranks of other hosts wait for ranks that wait for it, and name it too.
static void check_units_named(void) {
    static const struct {
        int stage;
        int64_t bucket;
        const char *where;
    } cases[] = {
        { 2, 1, "a reduce-scatter of unit 4" },
        { 2, 1LL << 40, "a reduce-scatter of units 1 to 4" },
        { 3, 1, "an all-gather of unit 0" },
    };
    char expected[80];
    for (int n = 0; n < 2 * SETTINGS_COUNT(cases); n++) {
        const int i = n / 2;
        zero_config c = simple(cases[i].stage, 0);
        toy t;
        ranks_per_host = n % 2 * 2;
        c.reduce_bucket_size = cases[i].bucket;
        c.comm.timeout_s = 3;
        CHECK_SETTING("the last rank misses %s, %d ranks per host", cases[i].where, ranks_per_host);
        snprintf(expected, sizeof expected, " in %s for rank %d (", cases[i].where, checks.ranks - 1);
        MUST(toy_create(&t, &c, NULL));
        if (checks.rank < checks.ranks - 1) {
            CHECK(toy_step(&t, 1, 1, NULL) == ZERO_ERR_COMM);
            CHECK(strstr(zero_last_error(), expected));
        }
        checks_meet();
        zero_destroy(t.z);
    }
    ranks_per_host = 0;
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

static int gather_or_reduce(zero *z) {
    enum { ELEMS = 100, MOST_RANKS = 8 };
    static float full[ELEMS * MOST_RANKS], shard[ELEMS];
    const comm_piece p = { (char *)full, (char *)shard, ELEMS };
    const comm_use use = { .purpose = ZERO_FOR_STEP, .unit = 1, .units = 1 };
    return checks.rank ? comm_all_gather(&z->comm, use, &p, 1, sizeof *full)
                       : comm_reduce_scatter(&z->comm, use, &p, 1, ZERO_F32, ZERO_F32, 1);
}

// Ranks that open different units, 0 of another size, or whose collectives differ only in their kind, fail
// instead of mixing up their bytes.
static void check_disorder(void) {
    enum { KINDS = 2 };
    for (int way = 0; way < 12; way++) {
        const int shared = way & 1, overlap = way >> 1 & 1, unit = way >> 2;
        zero_config c = simple(3, overlap);
        toy t;
        c.comm.shared_window = shared;
        CHECK_SETTING("ranks %s %d, %s, overlap %d", unit == KINDS ? "gather and reduce" : "open unit 2 and",
                      unit, shared ? "window" : "messages", overlap);
        MUST(toy_create(&t, &c, NULL));
        MUST(zero_begin_eval(t.z));
        int rc = unit == KINDS ? gather_or_reduce(t.z) : zero_pre_forward(t.z, checks.rank == 0 ? unit : 2);
        CHECK(rc == (checks.ranks > 1 ? ZERO_ERR_COMM : 0));  // rank 0 differs from all others
        if (rc) CHECK(strstr(zero_last_error(), "different collectives"));
        zero_destroy(t.z);
    }
}

// If rank 0 cannot have the window's memory, the ranks send messages, and the name has the reason.
static void check_no_window(void) {
    const zero_config c = simple(3, 0);
    struct rlimit before, low;
    zero_job job;
    toy t;
    CHECK_SETTING("the shared memory is too small");
    if (checks.ranks == 1) return;
    MUST(getrlimit(RLIMIT_FSIZE, &before));
    low = before;
    low.rlim_cur = 1 << 18;
    signal(SIGXFSZ, SIG_IGN);
    if (!checks.rank) MUST(setrlimit(RLIMIT_FSIZE, &low));
    MUST(toy_create(&t, &c, NULL));
    MUST(setrlimit(RLIMIT_FSIZE, &before));
    zero_job_info(t.z, &job);
    CHECK(strstr(job.comm, "messages (") && strstr(job.comm, "MiB of shared memory: File too large)"));
    MUST(toy_step(&t, 1, 1, NULL));
    zero_destroy(t.z);
}

// -------- unequal updates, no memory

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
            zero_config c = settings_config(&settings_paths[p], &settings_formats[1], 1, 1);
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

// -------- faults

// Runs three steps and a hash, and returns the first error. The message of a disk error must name the folder,
// and later calls must fail too.
static int run_with_fault(const zero_config *c) {
    char hex[17] = "";
    toy t = { .z = NULL };
    int rc = toy_create(&t, c, NULL);  // if setting the values fails, the plugin exists nevertheless
    for (int step = 1; step <= 3 && !rc; step++) rc = toy_step(&t, c->micro_batches, step, NULL);
    if (!rc) rc = zero_hash(t.z, 1, hex);
    if (!rc) CHECK(strlen(hex) == 16);
    if (rc) CHECK(strstr(zero_last_error(), folder));
    if (rc && t.z) CHECK(zero_hash(t.z, 1, hex));
    zero_destroy(t.z);
    return rc;
}

// Makes the n-th read, write or submission fail, for increasing n, until a run makes fewer than n.
static void check_files_that_fail(void) {
    const zero_config c = in_files(1, 3);
    static const file_operation kinds[] = { FILE_READ, FILE_WRITE, FILE_SUBMIT };
    // other ranks would wait for the one that fails
    for (int k = 0; k < SETTINGS_COUNT(kinds) && checks.ranks == 1; k++) {
        int rc = -1;
        long n = 1;
        CHECK_SETTING("the n-th operation of kind %d fails", (int)kinds[k]);
        for (; rc; n += 1 + n / 8) {
            set_fault(kinds[k], n, 1, -EIO);
            rc = run_with_fault(&c);
            file_fault = NULL;
            CHECK(!rc || rc == ZERO_ERR_TIER);
        }
        CHECK(n > 20);
    }
}

// --------

static const struct {
    const char *group, *name;
    void (*check)(void);
} all_checks[] = {
    { "timeout", "missing in a step", check_units_named },
    { "timeout", "different units", check_disorder },
    { "timeout", "no communicator", check_no_communicator },
    { "", "no window", check_no_window },
    { "", "order in the update", check_order_in_update },
    { "", "overlap", check_overlap },
    { "", "read ahead", check_read_ahead },
    { "", "early updates", check_early_overlaps },
    { "", "delayed updates", check_delayed_overlaps },
    { "", "trace", check_trace_file },
    { "", "scalars", check_scalars },
    { "", "unequal updates", check_unequal_updates },
    { "", "disk faults", check_files_that_fail },
    { "", "no memory", check_no_memory },
};

static void run(const char *asked) {
    check_make_folder(folder, sizeof folder, "build");
    for (int i = 0; i < SETTINGS_COUNT(all_checks); i++)
        if (!strcmp(asked, all_checks[i].group) || !strcmp(asked, all_checks[i].name)) all_checks[i].check();
    check_remove_folder(folder);
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_zero", run); }
