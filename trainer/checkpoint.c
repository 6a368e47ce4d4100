#include "checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/error.h"
#include "die.h"
#include "folder.h"
#include "options.h"
#include "run.h"

// --------
// names

const char *checkpoint_model(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "model_%08d.bin", step);
    return path;
}

static const char *checkpoint_state(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "state_%08d_%05d.bin", step, run.rank);
    return path;
}

static const char *checkpoint_done(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "DONE_%08d", step);
    return path;
}

static int last_checkpoint(const char *folder) {
    DIR *dir = folder ? opendir(folder) : NULL;
    int last = -1, step;
    if (!dir) return -1;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir))
        if (sscanf(e->d_name, "DONE_%8d", &step) == 1 && step > last) last = step;
    closedir(dir);
    return last;
}

const char *checkpoint_model_in(const char *folder) {
    static char path[OUTPUT_PATH];
    int last = last_checkpoint(folder);
    if (last < 0) return NULL;
    int length = snprintf(path, sizeof path, "%s/model_%08d.bin", folder, last);
    if (length >= (int)sizeof path) die("option -e: the name is too long");
    return path;
}

int checkpoint_to_resume(void) {
    int last = last_checkpoint(opt.output);
    if (last >= 0 && !opt.resume)
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, and a new run needs a folder of "
            "its own",
            opt.output, last);
    return last;
}

// --------
// complete or not

static void sync_and_close(int fd, const char *path) {
    if (fd < 0 || fsync(fd)) die("%s: %s", path, strerror(errno));
    close(fd);
}

// From here on the step has no complete checkpoint, whatever else happens.
static void withdraw_checkpoint(int step) {
    if (run.rank == 0) {
        const char *done = checkpoint_done(step);
        if (remove(done) && errno != ENOENT) die("%s: %s", done, strerror(errno));
    }
    zero_check(zero_barrier(run.z));
}

static void declare_checkpoint(int step) {
    zero_check(zero_barrier(run.z));
    if (run.rank != 0) return;
    const char *done = checkpoint_done(step);
    sync_and_close(open(done, O_CREAT | O_WRONLY | O_TRUNC, 0666), done);
    sync_and_close(open(opt.output, O_RDONLY | O_DIRECTORY), opt.output);
}

static void delete_checkpoint(int step) {
    withdraw_checkpoint(step);
    if (run.rank == 0) remove(checkpoint_model(step));
    remove(checkpoint_state(step));
}

// --------
// writing and reading

static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    (void)ctx;
    int rc = zero_get(run.z, ZERO_PARAM, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

void write_checkpoint(const GPT2 *model, const TrainerState *state) {
    const int step = state->step;
    print0("writing checkpoint at step %d\n", step);
    withdraw_checkpoint(step);
    gpt2_dtype stored = model->dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32;
    gpt2_check(
        gpt2_file_write(checkpoint_model(step), &model->config, stored, give_values, NULL, run.rank == 0));
    // If a rank cannot write, the job ends here, before other ranks begin files that nobody finishes.
    zero_check(zero_barrier(run.z));
    zero_check(zero_save(run.z, checkpoint_state(step), state, sizeof *state));
    declare_checkpoint(step);

    long long old = step - (long long)opt.checkpoints_keep * opt.checkpoint_every;
    int major = opt.checkpoint_major && old % opt.checkpoint_major == 0;
    if (opt.checkpoints_keep && old > 0 && !major) delete_checkpoint((int)old);
}

void load_checkpoint(int step, TrainerState *state) {
    zero_check(zero_load(run.z, checkpoint_state(step), state, sizeof *state));
}
