#include "model_file.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "checkpoint_keep.h"
#include "checkpoint_list.h"
#include "checkpoint_stored.h"
#include "folder.h"
#include "options.h"
#include "run.h"

// --------
// the thread of rank 0

static struct {
    int begun;  // on all ranks: one may be being written
    int step;
    int runs;  // on rank 0: the thread has not been joined
    pthread_t thread;
    GPT2Stored from;
    char path[OUTPUT_PATH];
    atomic_llong pieces;  // read so far
    long long seen;       // of these, seen by the waiting thread, and when the count last grew
    double seen_s;
    atomic_int ended;  // 1: the thread has set the next two
    int failed;
    char why[1024];
} file;

static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    file.pieces++;
    return file.from.get(ctx, tensor, layer, offset, n, values);
}

static void *write_file(void *none) {
    const GPT2Stored *from = &file.from;
    file.failed = gpt2_file_write(file.path, &from->config, checkpoint_model_dtype(from), give_values,
                                  from->ctx);
    if (file.failed) snprintf(file.why, sizeof file.why, "%s", gpt2_last_error());
    gpt2_stored_close(&file.from);
    file.ended = 1;
    return none;
}

static void die_without(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void die_without(const char *fmt, ...) {
    char why[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    die("%s; the checkpoint of step %d is complete without it, and --export makes a model file of it", why,
        file.step);
}

static void start_thread(void) {
    char folder[OUTPUT_PATH];
    output_path(folder, "step_%08d", file.step);
    output_path(file.path, "model_%08d.bin", file.step);
    checkpoint_remove_temporary(file.step);
    if (checkpoint_stored_open(folder, ZERO_PARAM, &file.from)) die_without("%s", gpt2_last_error());
    file.pieces = 0;
    file.ended = 0;
    file.seen = -1;
    int error = pthread_create(&file.thread, NULL, write_file, NULL);
    if (error) die_without("%s: no thread to write it: %s", file.path, strerror(error));
    file.runs = 1;
}

void model_file_begin(int step) {
    file.begun = 1;
    file.step = step;
    if (run.rank == 0) start_thread();
}

void model_file_add(int step, int can) {
    file.begun = 1;
    file.step = step;
    if (run.rank == 0 && can && !file_is_there(checkpoint_model(step))) start_thread();
}

void model_file_look(void) {
    if (!file.runs || !file.ended) return;
    pthread_join(file.thread, NULL);
    file.runs = 0;
    if (file.failed) die_without("%s", file.why);
    if (opt.checkpoints_keep) checkpoints_prune(file.step);
}

// Returns 1 if the thread is still writing after some time. A hung disk ends the run.
static int writes_on(double seconds) {
    const double until = now() + seconds;
    while (file.runs && !file.ended && now() < until) usleep(1000);
    model_file_look();
    if (file.runs && file.seen == file.pieces && now() - file.seen_s > opt.zero.comm.timeout_s)
        die_without("%s: nothing was written within %g s", file.path, opt.zero.comm.timeout_s);
    if (file.seen != file.pieces) file.seen_s = now();
    file.seen = file.pieces;
    return file.runs;
}

// Rank 0 reports to the other ranks well before they consider it stalled.
void model_file_wait(void) {
    const double pause_s = opt.zero.comm.timeout_s < 4 ? opt.zero.comm.timeout_s / 4 : 1;
    double writes = file.begun;
    while (writes) {
        writes = writes_on(pause_s);
        zero_check(zero_sum(run.z, &writes, 1));
    }
    file.begun = 0;
}
