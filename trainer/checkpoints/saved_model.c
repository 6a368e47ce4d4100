#include "saved_model.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../gpt2/gpt2_error.h"
#include "../running/activations.h"
#include "../options/options.h"
#include "../running/run.h"
#include "saved_list.h"
#include "saved_run.h"

// -------- values

typedef struct {
    zero_checkpoint *from;
    zero_value what;
    int failed;  // 1: a value could not be read
} Opened;

static int get_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    Opened *o = ctx;
    int rc = zero_checkpoint_get(o->from, o->what, tensor, layer, offset, n, values);
    if (rc) o->failed = 1;
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

static void close_checkpoint(void *ctx) {
    Opened *o = ctx;
    zero_checkpoint_close(o->from);
    free(o);
}

static int open_tensors(Opened *o, const char *folder, const GPT2Config *config) {
    GPT2 model = { .config = *config, .units_a_block = 1 };  // however the checkpoint divides it
    gpt2_tensors(&model.config, model.tensors);
    run.describe(&model);
    const PluginTables *t = &model.tables;
    int rc = zero_checkpoint_open(&o->from, folder, t->tensors, NUM_PARAMETER_TENSORS, t->units, t->n_units);
    free_tables(&model);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

int saved_model_open(const char *folder, zero_value what, GPT2Stored *stored) {
    SavedRun saved;
    Opened *o = malloc_check(sizeof *o);
    *o = (Opened){ .what = what };
    const int failed = saved_run_of(&saved, folder) || open_tensors(o, folder, &saved.config);
    *stored = (GPT2Stored){ .config = saved.config, .get = get_values, .close = close_checkpoint, .ctx = o };
    saved_run_free(&saved);
    if (failed) {
        gpt2_stored_close(stored);
        return -1;
    }
    const zero_dtype dtype = zero_checkpoint_dtype(o->from);
    stored->dtype = dtype == ZERO_BF16 ? GPT2_BF16 : dtype == ZERO_F16 ? GPT2_F16 : GPT2_F32;
    return 0;
}

gpt2_dtype model_file_dtype(gpt2_dtype dtype) { return dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32; }

model_state model_file_check(const char *path) {
    char folder[OUTPUT_PATH];
    GPT2Stored from;
    if (checkpoint_of_model(folder, path)) return MODEL_ALONE;
    if (saved_model_open(folder, ZERO_PARAM, &from)) return MODEL_UNCOMPARED;
    const int differs = gpt2_file_compare(path, &from.config, model_file_dtype(from.dtype), from.get,
                                          from.ctx);
    const int is_read = !((const Opened *)from.ctx)->failed;
    gpt2_stored_close(&from);
    return !differs ? MODEL_GOOD : is_read ? MODEL_DAMAGED : MODEL_UNCOMPARED;
}

// -------- the newest model file in a folder

const char *model_file_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = checkpoints_in("-e", folder);
    int taken = 0;
    for (const Found *f = l.found; f < l.found + l.n && !taken; f++) {
        if (!f->complete || checkpoint_model_of(path, f->path)) continue;
        taken = model_file_check(path) == MODEL_GOOD;
        if (!taken) print0("%s; looking for an older checkpoint\n", gpt2_last_error());
    }
    free(l.found);
    return taken ? path : NULL;
}

// -------- writing the file

static struct {
    int begun;  // on all ranks: rank 0 may be writing
    int step;
    int runs;  // on rank 0: the thread has not been joined
    pthread_t thread;
    GPT2Stored from;
    char path[OUTPUT_PATH];
    atomic_llong pieces;  // read so far
    long long seen;       // pieces when the waiting thread last looked
    double seen_s;        // when the count last grew
    atomic_int ended;     // 1: the thread has set the next two
    int failed;
    char why[1024];
} file;

static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    file.pieces++;
    return file.from.get(ctx, tensor, layer, offset, n, values);
}

static void *write_file(void *none) {
    const GPT2Stored *from = &file.from;
    const gpt2_dtype dtype = model_file_dtype(from->dtype);
    file.failed = gpt2_file_write(file.path, &from->config, dtype, give_values, from->ctx);
    if (file.failed) snprintf(file.why, sizeof file.why, "%s", gpt2_last_error());
    gpt2_stored_close(&file.from);
    file.ended = 1;
    return none;
}

#define DIE_WITHOUT(fmt, ...)                                                                            \
    die(fmt "; the checkpoint of step %d is complete without it, and --export can write its model file", \
        __VA_ARGS__, file.step)

static void start_thread(void) {
    path_in(file.path, opt.output, "model_%08d.bin", file.step);
    if (saved_model_open(in_output("step_%08d", file.step), ZERO_PARAM, &file.from))
        DIE_WITHOUT("%s", gpt2_last_error());
    file.pieces = 0;
    file.ended = 0;
    file.seen = -1;
    const int error = pthread_create(&file.thread, NULL, write_file, NULL);
    if (error) DIE_WITHOUT("%s: no thread to write it: %s", file.path, strerror(error));
    file.runs = 1;
}

void model_file_begin(int step, int missing) {
    file.begun = 1;
    file.step = step;
    if (run.rank == 0 && !(missing && file_is_there(in_output("model_%08d.bin", step)))) start_thread();
    if (!opt.async_save) model_file_wait();
}

void model_file_look(void) {
    if (!file.runs || !file.ended) return;
    pthread_join(file.thread, NULL);
    file.runs = 0;
    if (file.failed) DIE_WITHOUT("%s", file.why);
    if (opt.checkpoints_keep) checkpoints_prune();
}

// Waits for at most `seconds`. Returns 1 if the thread is still writing. A hung disk ends the run.
static int writes_on(double seconds) {
    const double until = now() + seconds;
    while (file.runs && !file.ended && now() < until) usleep(1000);
    model_file_look();
    if (file.seen != file.pieces) file.seen_s = now();
    file.seen = file.pieces;
    if (file.runs && now() - file.seen_s > opt.zero.comm.timeout_s)
        DIE_WITHOUT("%s: nothing was written within %g s", file.path, opt.zero.comm.timeout_s);
    return file.runs;
}

// Rank 0 contacts the other ranks at intervals well below their timeout.
void model_file_wait(void) {
    const double pause_s = opt.zero.comm.timeout_s < 4 ? opt.zero.comm.timeout_s / 4 : 1;
    double writes = file.begun;
    while (writes) {
        writes = writes_on(pause_s);
        zero_check(zero_sum(run.z, &writes, 1));
    }
    file.begun = 0;
}
