// Tests states in files: mpirun -np N mpi_tiers, for any N. Every mixture of tiers gives the same bits as the
// run in memory. Pieces are tiny, so that every wrap-around occurs. Memory and traffic equal the plan
// (tiers.h). This file also tests overlap.
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include "tiers.h"
#include "../llmc_zero/internal.h"

// clang-format off
static const mixture mixtures[] = {
    // name                       params       optimizer    gradients    ratio  in_host  piece  verify
    { "optimizer",                ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "optimizer, small pieces",  ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 1,     0,       2048,  1 },
    { "0.4 of the optimizer",     ZERO_DEVICE, ZERO_NVME,   ZERO_HOST,   0.4,   0,       4096,  0 },
    { "none of the optimizer",    ZERO_DEVICE, ZERO_NVME,   ZERO_DEVICE, 0,     0,       4096,  0 },
    { "parameters",               ZERO_NVME,   ZERO_DEVICE, ZERO_DEVICE, 1,     0,       2048,  1 },
    { "both",                     ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "both, small pieces",       ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     0,       2048,  1 },
    { "both, some in memory",     ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 0.6,   15000,   2048,  0 },
    { "host",                     ZERO_HOST,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       0,     0 },
    { "gradients",                ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   1,     0,       2048,  1 },
    { "gradients, 0.4 optimizer", ZERO_HOST,   ZERO_NVME,   ZERO_NVME,   0.4,   0,       4096,  0 },
    { "gradients, no optimizer",  ZERO_DEVICE, ZERO_NVME,   ZERO_NVME,   0,     0,       0,     0 },
    { "all",                      ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       0,     0 },
    { "all, small pieces",        ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   1,     0,       2048,  1 },
    { "all, some in memory",      ZERO_NVME,   ZERO_NVME,   ZERO_NVME,   0.6,   15000,   2048,  0 },
    { "optimizer on the host",    ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     0,       2048,  0 },
    { "some parameters on host",  ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     15000,   2048,  0 },
    { "all parameters on host",   ZERO_NVME,   ZERO_HOST,   ZERO_DEVICE, 1,     ALL,     2048,  0 },
    { "both, none in files",      ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 0,     ALL,     0,     0 },
    { "both, params in memory",   ZERO_NVME,   ZERO_NVME,   ZERO_DEVICE, 1,     ALL,     0,     0 },
};
// clang-format on

// -------- reading states during backward

// Runs two steps, a skipped step, a step with newly set values, and a step with an abandoned pass. The next
// pass uses the units in a different order, so the pieces that were read ahead are not the first to be
// updated. early 1: the first two pieces of the update must be read during backward.
static void hash_with_read_ahead(const zero_config *c, int early, char hash[17]) {
    static const int order[] = { 1, 0, 4, 2, 3, 0 };
    toy t;
    MUST(toy_create(&t, c, NULL));
    for (int step = 1; step <= 5; step++) {
        const zero_hyper h = toy_hyper(step);
        zero_files files;
        MUST(toy_forward_pass(&t, 0, 1));
        zero_files_info(t.z, &files);  // waits for the disk
        CHECK(update_pieces_read_ahead(t.z) == 0);
        MUST(toy_backward_pass(&t));
        CHECK(update_pieces_read_ahead(t.z) == 2 * early);
        if (step == 5) {
            MUST(zero_begin_train(t.z, 0, 1));
            MUST(toy_start(&t, 0.3f));
            for (int i = 0; i < SETTINGS_COUNT(order); i++) MUST(toy_forward(&t, order[i]));
            MUST(toy_backward_pass(&t));
        }
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(step == 3 ? zero_discard(t.z) : zero_update(t.z, &h));
        CHECK(update_pieces_read_ahead(t.z) == 0);
        if (step == 3) MUST(toy_set_initial(&t));
    }
    MUST(zero_hash(t.z, 1, hash));
    zero_destroy(t.z);
}

static void check_read_ahead(void) {
    for (int f = 0; f < SETTINGS_COUNT(settings_formats); f++) {
        const settings_format *format = &settings_formats[f];
        char want[17], hash[17];
        if (format->dtype == ZERO_F16) continue;
        CHECK_SETTING("states read during backward, %s", format->name);
        zero_config c = settings_config(&settings_paths[4], format, 1, &settings_variations[0]);
        hash_with_read_ahead(&c, 0, want);
        c = tiers_config(&mixtures[13], 3, format, 1, &settings_variations[0]);
        hash_with_read_ahead(&c, 1, hash);
        CHECK(!strcmp(hash, want));
    }
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

static int step_updates_in_backward(const zero_config *c, int early, double compute_s) {
    const zero_hyper h = toy_hyper(1);
    toy t;
    MUST(toy_create(&t, c, NULL));
    t.compute_s = compute_s;
    if (early) MUST(zero_promise_update(t.z, &h));
    MUST(toy_passes(&t, c->micro_batches));
    MUST(zero_step(t.z, &h, NULL));
    MUST(update_settle(t.z));  // nothing adds to the trace while it is read
    const int found = updated_in_backward(t.z);
    zero_destroy(t.z);
    return found;
}

static void check_early_overlaps(void) {
    for (int early = 0; early <= 1; early++) {
        int overlap = -1;
        zero_config c = tiers_config(&mixtures[13], 3, &settings_formats[1], 3, &settings_variations[0]);
        CHECK_SETTING("an update that is %s during backward",
                      early ? "promised begins" : "not promised does not begin");
        c.debug.trace_events = 4096;
        // On a busy machine the update may start late, so the loop makes backward longer until they overlap.
        for (double compute_s = 1e-3; overlap != early && compute_s < 0.5; compute_s *= 4)
            overlap = step_updates_in_backward(&c, early, compute_s);
        CHECK(overlap == early);
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

// Writes the trace and returns the number of updates in it.
static int updates_written(zero *z) {
    char path[] = "/tmp/mpi_tiers.XXXXXX";
    trace_event e;
    int n = 0;
    close(mkstemp(path));
    MUST(zero_trace_write(z, path));
    unlink(path);
    for (int i = 0; trace_at(&z->trace, i, &e); i++) n += e.kind == EVENT_UPDATE && e.unit >= 0;
    return n;
}

// With only the optimizer states in files, forward can run while the disk hangs, unless it waits for the
// update.
static void check_delayed_overlaps(void) {
    for (int delayed = 0; delayed <= 1; delayed++) {
        toy t;
        outcome o;
        zero_config c = tiers_config(&mixtures[0], 3, &settings_formats[1], 1, &settings_variations[0]);
        CHECK_SETTING("forward %s an update", delayed ? "does not wait for" : "waits for");
        c.debug.trace_events = 4096;
        c.offload.delayed_update = delayed;
        set_fault(FILE_READ, 0, 0, 0);
        MUST(toy_create(&t, &c, NULL));
        fault_waits = delayed;
        run_delayed_step(&t, 1, 1, &o);
        MUST(toy_forward_pass(&t, 0, 1));
        fault_waits = 0;
        CHECK(updates_written(t.z) == t.z->layout.n_units);
        MUST(toy_backward_pass(&t));
        MUST(zero_finish_gradients(t.z, NULL));
        MUST(zero_barrier(t.z));
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
static int64_t int_of(const json_t *event, const char *key) {
    return json_integer_value(json_object_get(event, key));
}
static const char *text_of(const json_t *event, const char *key) {
    return json_string_value(json_object_get(event, key));
}
static int64_t bytes_of(const json_t *event) { return int_of(json_object_get(event, "args"), "bytes"); }

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
        if (strcmp(text_of(e, "ph"), "X")) continue;
        const char *kind = text_of(e, "cat");
        const int64_t start = ns_of(e, "ts");
        slices[n++] = (slice){ (int)int_of(e, "pid"), (int)int_of(e, "tid"),
                               !strcmp(kind, "read") || !strcmp(kind, "write"), start,
                               start + ns_of(e, "dur") };
    }
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++) wrong += overlap_wrongly(&slices[i], &slices[k]);
    free(slices);
    return wrong;
}

// Returns the last value of a process's counter, or -1 if its values or times ever decrease.
static int64_t counted(const json_t *file, int process, const char *name) {
    int64_t value = 0, at = 0;
    for (size_t i = 0; i < json_array_size(file) && value >= 0; i++) {
        const json_t *e = json_array_get(file, i);
        if (strcmp(text_of(e, "ph"), "C") || int_of(e, "pid") != process || strcmp(text_of(e, "name"), name))
            continue;
        value = bytes_of(e) < value || ns_of(e, "ts") < at ? -1 : bytes_of(e);
        at = ns_of(e, "ts");
    }
    return value;
}

// Adds up the bytes of all slices of a kind, and counts the slices in *n.
static int64_t moved(const json_t *file, int process, const char *kind, int *n) {
    int64_t sum = *n = 0;
    for (size_t i = 0; i < json_array_size(file); i++) {
        const json_t *e = json_array_get(file, i);
        const char *cat = text_of(e, "cat");
        if (!cat || strcmp(cat, kind) || int_of(e, "pid") != process) continue;
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
    zero_config c = tiers_config(&mixtures[13], 3, &settings_formats[1], 2, &settings_variations[0]);
    CHECK_SETTING("one file for the traces of all ranks");
    c.debug.trace_events = 8192;
    MUST(toy_create(&t, &c, NULL));
    for (int step = 1; step <= STEPS; step++) MUST(toy_step(&t, 2, step, NULL));
    snprintf(path, sizeof path, "%s/trace.json", outcome_folder);
    MUST(zero_trace_write(t.z, path));
    for (int i = 0; i < ZERO_MEMORY_CLASSES; i++) allocated += (int64_t)zero_memory_bytes(t.z, i);
    if (!checks.rank) check_file(path, STEPS, allocated);
    if (!checks.rank) CHECK(!remove(path));
    CHECK(zero_trace_write(t.z, "/nonexistent/trace.json") == ZERO_ERR_IO);
    CHECK(strstr(zero_last_error(), "/nonexistent/trace.json"));
    zero_destroy(t.z);
}

static void run(const char *asked) {
    tiers.mixtures = mixtures;
    tiers.n_mixtures = SETTINGS_COUNT(mixtures);
    tiers.n_manners = 1;
    outcome_begin("tiers");
    check_all_bits();
    check_own_updates();
    check_all_traffic();
    check_read_ahead();
    check_early_overlaps();
    check_delayed_overlaps();
    check_trace_file();
    if (checks.ranks == 1) {  // other ranks would wait for the one that fails
        const zero_config c = tiers_config(&mixtures[13], 3, &settings_formats[1], 3,
                                           &settings_variations[6]);
        check_files_that_fail(&c);
    }
    outcome_end();
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_tiers", run); }
