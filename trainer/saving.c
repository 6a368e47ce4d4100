#include "saving.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "inputs.h"
#include "options.h"
#include "run.h"
#include "saved_model.h"
#include "signals.h"

// --------
// the checkpoint that a run resumes from

static struct {
    Listing in;
    int at;      // index of the checkpoint in it
    int named;   // 1: it is --resume's, so no other is tried
    int inside;  // 1: it is in -o, under any name
    int aside;   // 1: it was set aside there
    int step;    // -1: none chosen
    char path[OUTPUT_PATH];
    SavedRun saved;
} chosen = { .step = -1 };

// Chooses a checkpoint's folder. step: the step in its name; -1: any. Returns 0, or -1 with
// gpt2_last_error().
static int choose_folder(const char *path, int step) {
    saved_run_free(&chosen.saved);
    chosen.step = -1;
    if (snprintf(chosen.path, sizeof chosen.path, "%s", path) >= OUTPUT_PATH)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (saved_run_of(&chosen.saved, path)) return -1;
    const int saved = chosen.saved.state.step;
    if (step >= 0 && saved != step) return gpt2_fail("%s: was saved at step %d", path, saved);
    chosen.step = saved;
    return 0;
}

// Chooses the newest complete checkpoint with a valid manifest, starting at index `from`. Returns 0, or -1
// with gpt2_last_error() for the last one tried.
static int choose_from(int from) {
    int tried = 0;
    for (chosen.at = from; chosen.at < chosen.in.n; chosen.at++) {
        const Found *f = &chosen.in.found[chosen.at];
        if (f->abandoned) continue;
        if (tried) print0("%s; looking for an older checkpoint\n", gpt2_last_error());
        tried = 1;
        if (f->complete && !choose_folder(f->path, f->step)) return 0;
        if (!f->complete)
            gpt2_fail(f->damaged ? "%s: damaged: it was complete, and manifest.json is missing"
                                 : "%s: the save did not finish",
                      f->path);
    }
    return tried ? -1 : gpt2_fail("%s: there is no older checkpoint", chosen.in.folder);
}

// Checks that a run may start over because no checkpoint is complete. Killed saves leave incomplete ones. But
// if the folder ever had a complete one, that was lost, and the run must not silently restart.
static void start_over(const Listing *l) {
    if (l->had_some)
        die("option -y 1: %s had checkpoints, but none is complete now; move the folder away to start a new "
            "run",
            l->folder);
    if (opt.resume_path) return;
    if (l->n)
        print0("no checkpoint in %s is complete: the save of step %d did not finish; starting at step 1\n",
               l->folder, l->found[0].step);
    else
        print0("no checkpoint in %s: starting at step 1\n", l->folder);
}

static void refuse_other_runs(const Listing *l) {
    for (int i = 0; i < l->n; i++) {
        if (!checkpoint_check_run(l, &l->found[i])) continue;
        check_folder_lock();
        die("option -y 1: %s; move those of the other run out of this folder", gpt2_last_error());
    }
}

// Without -y 1, an -o with checkpoints or logs is refused: a new run needs a separate folder.
static void refuse_used_folder(const Found *newest, int has_logs) {
    if (!newest && !has_logs) return;
    check_folder_lock();
    if (newest)
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, but a new run needs another "
            "folder",
            opt.output, newest->step);
    die("option -o: %s holds the logs of an earlier run without checkpoints; a new run needs another folder, "
        "or -y 1, which keeps these logs under other names",
        opt.output);
}

static int is_in_output(const char *path) {
    char parent[OUTPUT_PATH + 4];
    struct stat a, b;
    snprintf(parent, sizeof parent, "%s/..", path);
    if (!opt.output || stat(parent, &a) || stat(opt.output, &b)) return 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static void refuse_no_checkpoint(void) {
    const Found *newest = checkpoints_in("--resume", opt.resume_path).newest;
    if (newest)
        die("option --resume %s: this is a run's folder, not a checkpoint; its newest is --resume %s",
            opt.resume_path, newest->path);
    die("option --resume: %s/manifest.json: No such file, so this is not a complete checkpoint; name a "
        "folder "
        "step_NNNNNNNN",
        opt.resume_path);
}

static int resume_named(const Found *newest, int has_logs) {
    chosen.inside = is_in_output(opt.resume_path);
    if (opt.output && !chosen.inside)
        opt.resume ? start_over(&chosen.in) : refuse_used_folder(newest, has_logs);
    if (!is_checkpoint(opt.resume_path)) refuse_no_checkpoint();
    if (choose_folder(opt.resume_path, -1)) die("option --resume: %s", gpt2_last_error());
    chosen.named = 1;
    checkpoint_step_of(opt.resume_path, &chosen.aside);
    chosen.aside &= chosen.inside;
    return chosen.step;
}

// With -y 1, --resume's checkpoint only starts the run: any checkpoint in -o takes precedence.
int checkpoint_to_resume(int has_logs) {
    if (opt.output) chosen.in = checkpoints_in("-o", opt.output);
    const Found *newest = chosen.in.newest;
    if (opt.resume_path && !(newest && opt.resume)) return resume_named(newest, has_logs);
    if (!opt.output) return -1;
    if (!opt.resume) refuse_used_folder(newest, has_logs);
    if (!newest && opt.resume) start_over(&chosen.in);
    if (!newest) return -1;
    refuse_other_runs(&chosen.in);
    chosen.inside = 1;
    if (choose_from(0)) {
        check_folder_lock();  // another run may have removed checkpoints meanwhile
        die("option -y 1: %s; there is no other checkpoint in %s", gpt2_last_error(), opt.output);
    }
    return chosen.step;
}

const char *checkpoint_chosen(void) { return chosen.step < 0 ? NULL : chosen.path; }

void checkpoint_config(GPT2Config *config) { *config = chosen.saved.config; }

long long checkpoint_batch(void) { return chosen.saved.tokens_a_step; }

const char *checkpoint_evidence(void) {
    static char path[OUTPUT_PATH];
    return path_in(path, chosen.path, "manifest.json");
}

// --------
// room for future checkpoints

// Returns the description of the run as long as it will be later, when the outliers' windows are full.
static char *longest_text(const GPT2 *model, const TrainingData *data) {
    const SavedAs as = { .run = "0123456789abcdef", .number = data->steps };
    TrainerState full = { .step = data->steps };
    for (int i = 0; i < OUTLIER_WINDOW; i++)
        full.loss_outliers.buffer[i] = full.norm_outliers.buffer[i] = 1.0 / 3;
    return saved_run_write(model, data, &full, &as);
}

// Returns the bytes that a checkpoint and its model file take on a disk, where every file takes whole blocks.
static double bytes_of_checkpoint(const GPT2 *model, const TrainingData *data, double block) {
    const int files = run.ranks + 3;  // with the manifest, its folder and the model file
    int64_t bytes;
    char *text = longest_text(model, data);
    zero_check(zero_save_bytes(run.z, text, &bytes));
    free(text);
    return (double)bytes + (double)gpt2_file_bytes(&model->config, model_file_dtype(model->dtype)) +
           files * block;
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
    for (int i = 0; i < chosen.in.n && most > 1; i++)
        most -= chosen.in.found[i].complete && !chosen.in.found[i].abandoned &&
                chosen.in.found[i].step <= chosen.step;  // later ones are set aside
    return most < to_come ? most : to_come;
}

// Returns the number of steps until n more checkpoints exist.
static int steps_until(int n, int steps) {
    const int left = steps - (chosen.step > 0 ? chosen.step : 0), every = opt.checkpoint_every;
    return every > 0 && n < left / every ? n * every : left;
}

void check_room(const GPT2 *model, const TrainingData *data, int logged_a_step) {
    enum { OTHER_FILES = 7 };  // logs, run.json, run.lock, summary.json, tokenizer.bin, has_checkpoints
    struct statvfs disk;
    const int n = most_at_once(data->steps);
    if (n <= 0 || !opt.output || run.rank != 0 || statvfs(opt.output, &disk) || !disk.f_blocks) return;
    const double block = (double)disk.f_frsize, left = (double)disk.f_bavail * block;
    const double each = bytes_of_checkpoint(model, data, block);
    const double logs = (double)steps_until(n, data->steps) * logged_a_step + OTHER_FILES * block;
    if (n * each + logs <= left) return;
    die("option -o: %s has %.2f MiB free, but %d checkpoint%s of %.2f MiB and the logs need %.2f MiB; make "
        "room "
        "there, name a folder on another disk%s, or set -n 0 to save none",
        opt.output, mib(left), n, n > 1 ? "s" : "", mib(each), mib(n * each + logs),
        n > 1 ? ", lower -nk" : "");
}

// --------
// the checkpoint that a failed run falls back to

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

void check_last_update(void) {
    if (last_step == run.step || !zero_check_finite(run.z)) return;
    zero_failure failure = *zero_last_failure();
    run.step--;  // the step that wrote it
    die_after_failure(&failure);
}

// --------
// reading

// Reads the position from the loaded text, because the files may have been replaced since the checkpoint was
// chosen.
static void take_state(char *text, TrainerState *state) {
    SavedRun loaded;
    gpt2_check(saved_run_read(&loaded, text, chosen.path));
    *state = loaded.state;
    if (state->step != chosen.step) die("%s: was saved at step %d", chosen.path, state->step);
    saved_run_free(&loaded);
    free(text);
    last_step = chosen.step;
}

// The model file is written from step_%08d/, so a checkpoint that was set aside gets that name back first.
static void add_model_file(void) {
    if (chosen.named) return;
    const int has_name = run.rank != 0 || checkpoint_set_back(&chosen.in.found[chosen.at]);
    model_file_begin(chosen.step, has_name, 1);
    if (!opt.async_save) model_file_wait();
}

void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state) {
    char *text = NULL;
    for (;;) {
        saved_run_compare(&chosen.saved, chosen.path, model, data);
        const int rc = zero_load(run.z, chosen.path, &text);
        if (!rc) break;
        if (rc != ZERO_ERR_IO || chosen.named) zero_check(rc);
        // The error names the damaged checkpoint. The failed load has not changed the states.
        print0("%s; looking for an older checkpoint\n", zero_last_error());
        zero_failure failure = *zero_last_failure();
        if (choose_from(chosen.at + 1))
            die_of_plugin(&failure, "; there is no older checkpoint that is intact");
        // Loading compares the tensors' shapes, but none of them depends on the number of heads.
        if (chosen.saved.config.num_heads != model->config.num_heads)
            die("%s: it has %d heads, but the damaged checkpoint has %d", chosen.path,
                chosen.saved.config.num_heads, model->config.num_heads);
        print0("using the checkpoint of step %d\n", chosen.step);
    }
    take_state(text, state);
    add_model_file();
}

// --------
// saving

int checkpoint_was_abandoned(void) { return chosen.aside; }

int checkpoint_leaves_branch(void) {
    const Found *newest = chosen.in.newest;
    return newest && newest->as.number > chosen.saved.as.number;
}

// A run's first save sets the abandoned branch aside: first the checkpoint of the same step, which the save
// would replace, then, once the save is complete, those of later steps. The new manifest makes -y 1 follow
// the new branch. Until it exists the old checkpoints are valid, whatever their names.
static int has_left_branch;
int checkpoint_is_named(void) { return chosen.named && !has_left_branch; }
static void leave_branch(int from, int to, int but) {
    const int first = chosen.step + !chosen.aside;
    if (run.rank == 0 && !has_left_branch) checkpoints_set_aside(from > first ? from : first, to, but);
}

// A run resumed from another folder is a new run.
static SavedAs saved;
static const SavedAs *next_save(void) {
    if (run.rank == 0 && !saved.number) {
        random_digits(saved.run);
        if (chosen.step >= 0 && chosen.inside) saved = chosen.saved.as;
        saved.number = checkpoints_last_number(&chosen.in);
    }
    saved.number++;
    return &saved;
}

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
    if (run.rank == 0) checkpoints_note(saved.number, step);
    leave_branch(0, INT_MAX, step);
    has_left_branch = 1;
    model_file_begin(step, 1, 0);
    if (!opt.async_save) model_file_wait();
}

static int beside = -1;  // the step of the checkpoint being written while training continues; -1: none
static double began;

static void end_beside(void) {
    const int step = beside;
    check_lock_is_held();
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
    check_lock_is_held();
    began = now();
    run.saving = step;
    print0("writing checkpoint at step %d\n", step);
    leave_branch(step, step, -1);
    // Create the folder first, so that the next run finds the leftovers of a killed save.
    if (run.rank == 0 && mkdir(path, 0777) && errno != EEXIST) die("%s: %s", path, strerror(errno));
    char *text = saved_run_write(model, data, state, next_save());
    check_saved(opt.async_save ? zero_save_begin(run.z, path, text) : zero_save(run.z, path, text), step);
    free(text);
    run.saving = -1;
    if (opt.async_save)
        beside = step;
    else
        note_complete(step);
}
