#include "saving.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "options.h"
#include "run.h"
#include "saved_model.h"
#include "signals.h"

// --------
// which checkpoint a run resumes

static struct {
    Listing in;
    int at;      // its index
    int named;   // 1: the folder of --resume; no other one is tried
    int inside;  // 1: it is one of -o, under whatever name
    int aside;   // 1: it was set aside there
    int step;    // -1: none chosen
    char path[OUTPUT_PATH];
    SavedRun saved;
} chosen = { .step = -1 };

// Chooses a checkpoint's folder. Returns 0, or -1 with gpt2_last_error(). step: from its name; -1: the name
// has none.
static int choose_folder(const char *path, int step) {
    saved_run_free(&chosen.saved);
    chosen.step = -1;
    if (snprintf(chosen.path, sizeof chosen.path, "%s", path) >= OUTPUT_PATH)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (saved_run_of(&chosen.saved, path)) return -1;
    const int saved = chosen.saved.state.step;
    if (step >= 0 && saved != step) return gpt2_fail("%s: is of step %d", path, saved);
    chosen.step = saved;
    return 0;
}

// Chooses the newest complete checkpoint from number `from` on with a good manifest. Returns 0, or -1 with
// gpt2_last_error() for the last one tried.
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

// No checkpoint is complete. A killed save may have left the others; but if there ever was a complete one, a
// run has been lost, and must not silently start over.
static void begin_anew(const Listing *l) {
    if (l->had_some)
        die("option -y 1: %s had checkpoints, but none is complete now; move the folder away to start a new "
            "run",
            l->folder);
    if (l->n)
        print0("no checkpoint in %s is complete: the save of step %d did not finish; starting from the "
               "beginning\n",
               l->folder, l->found[0].step);
}

static void refuse_other_runs(const Listing *l) {
    for (int i = 0; i < l->n; i++) {
        if (!checkpoint_check_run(l, &l->found[i])) continue;
        check_folder_lock();
        die("option -y 1: %s; move those of the other run out of this folder", gpt2_last_error());
    }
}

// Without -y 1, an -o that has checkpoints or logs is refused: a new run needs its own folder.
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

static int lies_in_output(const char *path) {
    char parent[OUTPUT_PATH + 4];
    struct stat a, b;
    snprintf(parent, sizeof parent, "%s/..", path);
    if (!opt.output || stat(parent, &a) || stat(opt.output, &b)) return 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int resume_named(const Found *newest, int has_logs) {
    chosen.inside = lies_in_output(opt.resume_path);
    if (opt.output && !chosen.inside)
        opt.resume ? begin_anew(&chosen.in) : refuse_used_folder(newest, has_logs);
    if (!is_checkpoint(opt.resume_path))
        die("option --resume: %s/manifest.json: No such file, so this is not a checkpoint; name a folder "
            "step_NNNNNNNN, or resume the newest one of a run with -o and -y 1",
            opt.resume_path);
    if (choose_folder(opt.resume_path, -1)) die("option --resume: %s", gpt2_last_error());
    chosen.named = 1;
    (void)checkpoint_step_of(opt.resume_path, &chosen.aside);
    chosen.aside &= chosen.inside;
    return chosen.step;
}

// With -y 1 the checkpoint of --resume only starts the run: if -o has one, that one is newer.
int checkpoint_to_resume(int has_logs) {
    if (opt.output) chosen.in = checkpoints_in("-o", opt.output);
    const Found *newest = checkpoints_newest(&chosen.in);
    const int goes_on = newest && opt.resume;
    if (opt.resume_path && !goes_on) return resume_named(newest, has_logs);
    if (!opt.output) return -1;
    if (!opt.resume) refuse_used_folder(newest, has_logs);
    if (!newest && opt.resume) begin_anew(&chosen.in);
    if (!newest) return -1;
    refuse_other_runs(&chosen.in);
    chosen.inside = 1;
    if (choose_from(0)) {
        check_folder_lock();  // checkpoints that another run removes meanwhile are not damage
        die("option -y 1: %s; there is no other checkpoint in %s", gpt2_last_error(), opt.output);
    }
    return chosen.step;
}

void checkpoint_config(GPT2Config *config) { *config = chosen.saved.config; }

long long checkpoint_batch(void) { return chosen.saved.tokens_a_step; }

const char *checkpoint_evidence(void) {
    static char path[OUTPUT_PATH];
    path_in(path, chosen.path, "manifest.json");
    return path;
}

// --------
// the checkpoint that a failed run falls back to

static int standing = -1;  // the step of the last one saved or resumed

static void die_after_failure(const zero_failure *failure) {
    char more[100];
    snprintf(more, sizeof more, "; %s", checkpoint_that_stands());
    die_of_plugin(failure, more);
}

const char *checkpoint_that_stands(void) {
    static char sentence[80];
    if (standing < 0) return "no checkpoint has been saved";
    snprintf(sentence, sizeof sentence, "the checkpoint of step %d is unchanged", standing);
    return sentence;
}

void check_last_update(void) {
    if (standing == run.step || !zero_check_finite(run.z)) return;
    zero_failure failure = *zero_last_failure();
    run.step--;  // the step that wrote it
    die_after_failure(&failure);
}

// --------
// reading

// Takes the state that was loaded. The files may have been replaced since the checkpoint was chosen.
static void take_state(char *text, TrainerState *state) {
    SavedRun loaded;
    gpt2_check(saved_run_read(&loaded, text, chosen.path));
    *state = loaded.state;
    if (state->step != chosen.step) die("%s: is of step %d", chosen.path, state->step);
    saved_run_free(&loaded);
    free(text);
    standing = chosen.step;
}

// The tensors are compared when they are loaded, but no tensor's shape shows the number of heads.
static void check_same_model(const GPT2 *model) {
    const int heads = chosen.saved.config.num_heads;
    if (heads != model->config.num_heads)
        die("%s: it has %d heads, but the damaged checkpoint has %d", chosen.path, heads,
            model->config.num_heads);
}

// The model file is made from step_%08d/, so a checkpoint that was set aside gets that name back first.
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
        // One rank has printed which one is damaged; the states are unchanged.
        print0("%s; looking for an older checkpoint\n", zero_last_error());
        zero_failure failure = *zero_last_failure();
        if (choose_from(chosen.at + 1))
            die_of_plugin(&failure, "; there is no older checkpoint that is intact");
        check_same_model(model);
        print0("using the checkpoint of step %d\n", chosen.step);
    }
    take_state(text, state);
    add_model_file();
}

// --------
// saving

int checkpoint_was_set_aside(void) { return chosen.aside; }

int checkpoint_leaves_a_course(void) {
    const Found *newest = checkpoints_newest(&chosen.in);
    return newest && newest->as.number > chosen.saved.as.number;
}

// The first save sets the abandoned branch aside: first the checkpoint of its own step, which it would
// replace, and afterwards those of later steps. Only this save's manifest makes -y 1 follow the new branch:
// until then the old checkpoints are valid, whatever their names.
static int has_left_courses;
int checkpoint_is_named(void) { return chosen.named && !has_left_courses; }
static int first_of_other_course(void) { return chosen.step + !chosen.aside; }
static void leave_course_of(int step) {
    if (run.rank == 0 && !has_left_courses && step >= first_of_other_course())
        checkpoints_set_aside(step, step, -1);
}
static void leave_later_courses(int saved) {
    if (run.rank == 0 && !has_left_courses) checkpoints_set_aside(first_of_other_course(), INT_MAX, saved);
    has_left_courses = 1;
}

// Resuming from another folder starts another run.
static SavedAs saved;
static const SavedAs *next_save(void) {
    uint64_t id;
    if (run.rank == 0 && !saved.number) {
        if (getrandom(&id, sizeof id, 0) != sizeof id) die("cannot get a random number: %s", strerror(errno));
        snprintf(saved.run, sizeof saved.run, "%016llx", (unsigned long long)id);
        if (chosen.step >= 0 && chosen.inside) saved = chosen.saved.as;
        saved.number = checkpoints_last_number(&chosen.in);
    }
    saved.number++;
    return &saved;
}

// rc: of a saving function. A failed save leaves nothing behind: other ranks have removed their files by
// then.
static void check_saved(int rc, int step) {
    char path[OUTPUT_PATH];
    if (!rc) return;
    zero_failure failure = *zero_last_failure();
    output_path(path, "step_%08d", step);
    const int connected = rc != ZERO_ERR_COMM && rc != ZERO_ERR_DEVICE && !zero_barrier(run.z);
    if (connected && run.rank == 0) rmdir(path);  // unless it has a checkpoint
    die_after_failure(&failure);
}

// The model file comes last, since resuming does not need it; older checkpoints are removed once it exists.
static void note_complete(int step) {
    standing = step;
    if (run.rank == 0) checkpoints_note(saved.number, step);
    leave_later_courses(step);
    model_file_begin(step, 1, 0);
    if (!opt.async_save) model_file_wait();
}

static int beside = -1;  // the step of the checkpoint being written beside training; -1: none
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
    char path[OUTPUT_PATH];
    end_checkpoint(1);
    check_lock_is_held();
    began = now();
    run.saving = step;
    print0("writing checkpoint at step %d\n", step);
    leave_course_of(step);
    output_path(path, "step_%08d", step);
    // The folder is created first, so that a killed save can be found by it.
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
