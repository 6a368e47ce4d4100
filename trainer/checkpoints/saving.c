#include "saving.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "../../gpt2/gpt2_error.h"
#include "../running/inputs.h"
#include "../options/options.h"
#include "../running/run.h"
#include "saved_model.h"
#include "../running/signals.h"

// -------- the checkpoint that a run resumes from

static struct {
    Listing in;     // the checkpoints in -o
    int elsewhere;  // 1: it is --resume's, and the run has not saved since
    int step;       // -1: none chosen
    char path[OUTPUT_PATH];
    SavedRun saved;
} chosen = { .step = -1 };

const char *checkpoint_chosen(void) { return chosen.step < 0 ? NULL : chosen.path; }
const SavedRun *checkpoint_saved(void) { return chosen.step < 0 ? NULL : &chosen.saved; }

// Chooses a checkpoint's folder. Returns 0, or -1 with gpt2_last_error().
static int choose_folder(const char *path) {
    const int named = checkpoint_step_of(path);
    saved_run_free(&chosen.saved);
    if (snprintf(chosen.path, sizeof chosen.path, "%s", path) >= OUTPUT_PATH)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (saved_run_of(&chosen.saved, path)) return -1;
    const int saved = chosen.saved.state.step;
    if (named >= 0 && saved != named) return gpt2_fail("%s: was saved at step %d", path, saved);
    chosen.step = saved;
    return 0;
}

// Returns the end of a message: the newest checkpoint of -o up to step `most`. A folder has one history, so a
// run continues from an older checkpoint in another folder.
static const char *way_on(int most) {
    static char text[2 * OUTPUT_PATH];
    for (const Found *f = chosen.in.found; f < chosen.in.found + chosen.in.n; f++) {
        if (!f->complete || f->step > most) continue;
        snprintf(text, sizeof text, "; to continue from step %d, add --resume %s and name another -o",
                 f->step, f->path);
        return text;
    }
    snprintf(text, sizeof text, "; %s has no older checkpoint", opt.output);
    return text;
}

// An unfinished save is not a checkpoint. A damaged checkpoint is not skipped, because the run would then
// save its steps a second time.
static void choose_newest(void) {
    const Found *f = chosen.in.found;
    while (!f->complete && !f->damaged) f++;
    const int failed = f->damaged ? checkpoint_is_damaged(f) : choose_folder(f->path);
    if (!failed) return;
    check_folder_lock();  // another run may have removed checkpoints meanwhile
    die("option -y 1: %s%s", gpt2_last_error(), way_on(f->step - 1));
}

// Checks that a run may start over because no checkpoint is complete. Killed saves leave incomplete ones. But
// if the folder ever had a complete one, that was lost, and the run must not silently restart.
static void start_over(void) {
    if (chosen.in.had_some)
        die("option -y 1: %s had checkpoints, but none is complete now; move the folder away to start a new "
            "run",
            opt.output);
    if (file_is_there(in_output("summary.json")))
        die("option -y 1: %s holds a finished run without checkpoints; a new run needs another folder",
            opt.output);
    if (opt.resume_path) return;
    if (chosen.in.n)
        print0("no checkpoint in %s is complete: the save of step %d did not finish; starting at step 1\n",
               opt.output, chosen.in.found[0].step);
    else
        print0("no checkpoint in %s: starting at step 1\n", opt.output);
}

// Refuses an -o with checkpoints or logs: a new run needs a separate folder.
static void refuse_used_folder(int has_logs) {
    const Found *newest = chosen.in.newest;
    if (!newest && !has_logs) return;
    check_folder_lock();
    if (newest)
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, but a new run needs another "
            "folder",
            opt.output, newest->step);
    die("option -o: %s holds the logs of an earlier run without checkpoints; a new run needs another folder, "
        "or -y 1, which starts at step 1 and replaces these logs",
        opt.output);
}

static void choose_named(void) {
    chosen.elsewhere = 1;
    if (!is_checkpoint(opt.resume_path))
        die("option --resume %s: not a complete checkpoint, because it has no manifest.json; name a folder "
            "step_NNNNNNNN",
            opt.resume_path);
    if (choose_folder(opt.resume_path)) die("option --resume: %s", gpt2_last_error());
}

// With -y 1, --resume's checkpoint only starts the run: any checkpoint in -o takes precedence.
int checkpoint_to_resume(int has_logs) {
    if (opt.output) chosen.in = checkpoints_in("-o", opt.output);
    if (opt.output && !opt.resume) refuse_used_folder(has_logs);
    if (opt.output && opt.resume && !chosen.in.newest) start_over();
    if (chosen.in.newest)
        choose_newest();
    else if (opt.resume_path)
        choose_named();
    return chosen.step;
}

// -------- room for future checkpoints

// Returns the bytes that a checkpoint and its model file take on a disk, where every file takes whole blocks.
static double bytes_of_checkpoint(const GPT2 *model, const TrainingData *data, double block) {
    enum { OUTLIERS = 2 * OUTLIER_WINDOW * 24 };  // bytes of the text's numbers when the windows are full
    const int files = run.ranks + 3;              // with the manifest, its folder and the model file
    const TrainerState begin = { .step = data->steps };
    int64_t bytes;
    char *text = saved_run_write(model, data, &begin);
    zero_check(zero_save_bytes(run.z, text, &bytes));
    free(text);
    return (double)bytes + OUTLIERS +
           (double)gpt2_file_bytes(&model->config, model_file_dtype(model->dtype)) + files * block;
}

static int saves_to_come(int steps) {
    const int begin = chosen.step > 0 ? chosen.step : 0, every = opt.checkpoint_every;
    if (!steps) return every && chosen.step < 0;  // -x 0 saves the initial values
    if (every <= 0) return every < 0 && steps > begin;
    return (steps + every - 1) / every - begin / every;
}

// Returns how many checkpoints the disk must hold at once in addition to those there now.
// Without -nk, counts only the first one.
static int most_at_once(int steps) {
    const int to_come = saves_to_come(steps);
    int most = 1;
    if (opt.checkpoints_keep) most += opt.checkpoints_keep;
    for (int i = 0; i < chosen.in.n && most > 1; i++) most -= chosen.in.found[i].complete;
    return most < to_come ? most : to_come;
}

void check_room(const GPT2 *model, const TrainingData *data) {
    enum { OTHER_FILES = 6 };    // logs, run.json, run.lock, summary.json, tokenizer.bin
    enum { LOGS_A_STEP = 300 };  // bytes of a step's two lines, at most
    struct statvfs disk;
    const int n = most_at_once(data->steps);
    if (n <= 0 || !opt.output || run.rank != 0 || statvfs(opt.output, &disk) || !disk.f_blocks) return;
    const double block = (double)disk.f_frsize, left = (double)disk.f_bavail * block;
    const double each = bytes_of_checkpoint(model, data, block);
    const double logs = (double)data->steps * LOGS_A_STEP + OTHER_FILES * block;
    if (n * each + logs <= left) return;
    die("option -o: %s has %.2f MiB free, but %d checkpoint%s of %.2f MiB and the logs need %.2f MiB; "
        "make room there, name a folder on another disk%s, or set -n 0 to save none",
        opt.output, mib(left), n, n > 1 ? "s" : "", mib(each), mib(n * each + logs),
        n > 1 ? ", lower -nk" : "");
}

// -------- the checkpoint that a failed run falls back to

static int last_step = -1;  // of the last checkpoint saved or resumed

static void die_after_failure(const zero_failure *failure) {
    char more[100];
    snprintf(more, sizeof more, "; %s", last_checkpoint());
    die_of_plugin(failure, more);
}

const char *last_checkpoint(void) {
    static char text[80];
    if (last_step < 0) return "no checkpoint has been saved";
    snprintf(text, sizeof text, "the checkpoint of step %d is unchanged", last_step);
    return text;
}

int checkpoint_is_saved(void) { return last_step == run.step && !chosen.elsewhere; }

void check_last_update(void) {
    if (last_step == run.step || !zero_check_finite(run.z)) return;
    run.step--;  // the step that wrote it
    die_after_failure(zero_last_failure());
}

// -------- reading

// Reads the position from the loaded text, because the files may have been replaced since the checkpoint was
// chosen.
void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state) {
    char *text = NULL;
    saved_run_compare(&chosen.saved, chosen.path, model, data);
    const int rc = zero_load(run.z, chosen.path, &text);
    if (rc == ZERO_ERR_IO && !chosen.elsewhere) die_of_plugin(zero_last_failure(), way_on(chosen.step - 1));
    zero_check(rc);
    saved_run_free(&chosen.saved);
    gpt2_check(saved_run_read(&chosen.saved, text, chosen.path));
    free(text);
    *state = chosen.saved.state;
    if (state->step != chosen.step) die("%s: was saved at step %d", chosen.path, state->step);
    last_step = chosen.step;
    if (!chosen.elsewhere) model_file_begin(chosen.step, 1);  // it may be missing
}

// -------- saving

int checkpoint_is_elsewhere(void) { return chosen.elsewhere; }

// Ends the run if rc, which a saving function returned, is an error. After the barrier all ranks have removed
// their files, so a failed save leaves nothing behind.
static void check_saved(int rc, int step) {
    if (!rc) return;
    zero_failure failure = *zero_last_failure();
    const int connected = rc != ZERO_ERR_COMM && rc != ZERO_ERR_DEVICE && !zero_barrier(run.z);
    if (connected && run.rank == 0) rmdir(in_output("step_%08d", step));  // fails if it has a checkpoint
    die_after_failure(&failure);
}

// Resuming does not need the model file, so it comes last. Once it exists, older checkpoints are removed.
static void note_complete(int step) {
    last_step = step;
    chosen.elsewhere = 0;
    model_file_begin(step, 0);
}

static int beside = -1;  // the step of the checkpoint being written while training continues; -1: none
static double began;

static void end_beside(void) {
    const int step = beside;
    run.saving = step;
    check_saved(zero_save_end(run.z), step);
    run.saving = beside = -1;
    print0("the checkpoint of step %d is complete, %.2f s after it was started\n", step, now() - began);
    note_complete(step);
}

void end_checkpoint(int wait) {
    model_file_look();
    if (beside >= 0 && (wait || !save_goes_on())) end_beside();
    if (wait) model_file_wait();
}

void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state) {
    const int step = state->step;
    const char *path = in_output("step_%08d", step);
    end_checkpoint(1);
    began = now();
    run.saving = step;
    print0("writing checkpoint at step %d\n", step);
    // Create the folder first, so that the next run finds the leftovers of a killed save.
    if (run.rank == 0 && mkdir(path, 0777) && errno != EEXIST) die("%s: %s", path, strerror(errno));
    char *text = saved_run_write(model, data, state);
    check_saved(opt.async_save ? zero_save_begin(run.z, path, text) : zero_save(run.z, path, text), step);
    free(text);
    run.saving = -1;
    if (opt.async_save)
        beside = step;
    else
        note_complete(step);
}
