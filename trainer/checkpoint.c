#include "checkpoint.h"
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/gpt2_error.h"
#include "checkpoint_keep.h"
#include "folder.h"
#include "folder_lock.h"
#include "model_file.h"
#include "options.h"
#include "run.h"
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
    SavedAs as;
    char path[OUTPUT_PATH];  // for zero_load
    char *text;              // what it stores about the run
} chosen = { .step = -1 };

// Chooses a checkpoint's folder. Returns 0, or -1 with gpt2_last_error(). step: from its name; -1: the name
// has none.
static int choose_folder(const char *path, int step) {
    TrainerState state;
    GPT2Config config;
    free(chosen.text);
    chosen.text = NULL;
    chosen.step = -1;
    if (snprintf(chosen.path, sizeof chosen.path, "%s", path) >= OUTPUT_PATH)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (zero_checkpoint_text(path, &chosen.text)) return gpt2_fail("%s", zero_last_error());
    if (saved_run_state(chosen.text, &state) || saved_run_config(chosen.text, &config) ||
        saved_run_as(chosen.text, &chosen.as)) {
        char why[400];
        snprintf(why, sizeof why, "%s", gpt2_last_error());
        return gpt2_fail("%s: %s", path, why);
    }
    if (step >= 0 && state.step != step) return gpt2_fail("%s: is of step %d", path, state.step);
    chosen.step = state.step;
    return 0;
}

// Chooses the newest complete checkpoint from number `from` on with a good manifest. Returns 0, or -1 with
// gpt2_last_error() for the last one tried.
static int choose_from(int from) {
    char path[OUTPUT_PATH];
    int tried = 0;
    for (chosen.at = from; chosen.at < chosen.in.n; chosen.at++) {
        const Found *f = &chosen.in.found[chosen.at];
        if (f->abandoned) continue;
        if (tried) print0("%s; looking for an older checkpoint\n", gpt2_last_error());
        tried = 1;
        checkpoint_folder(path, &chosen.in, f);
        if (!f->complete) {
            gpt2_fail(f->damaged ? "%s: damaged: it was complete, and manifest.json is missing"
                                 : "%s: the save did not end",
                      path);
            continue;
        }
        if (!choose_folder(path, f->step)) return 0;
    }
    return tried ? -1 : gpt2_fail("%s: there is no older checkpoint", chosen.in.folder);
}

// No checkpoint is complete. A killed save may have left the others; but if there ever was a complete one, a
// run has been lost, and must not silently start over.
static void begin_anew(const Listing *l) {
    if (l->had_some)
        die("option -y 1: %s has had checkpoints, and none is complete now; move the folder away to begin a "
            "new run",
            l->folder);
    if (l->n)
        print0("no checkpoint in %s is complete: the save of step %d did not end; beginning anew\n",
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
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, and a new run needs a folder of "
            "its own",
            opt.output, newest->step);
    die("option -o: %s holds the logs of an earlier run without checkpoints; a new run needs a folder of its "
        "own, or -y 1, which keeps those logs under other names",
        opt.output);
}

static int lies_in_output(const char *path) {
    char parent[OUTPUT_PATH + 4];
    struct stat a, b;
    snprintf(parent, sizeof parent, "%s/..", path);
    if (!opt.output || stat(parent, &a) || stat(opt.output, &b)) return 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int was_set_aside(const char *path) {
    char copy[OUTPUT_PATH];
    snprintf(copy, sizeof copy, "%s", path);
    return !strncmp(basename(copy), ABANDONED, strlen(ABANDONED));
}

static void require_manifest(const char *path) {
    char manifest[OUTPUT_PATH];
    if (snprintf(manifest, sizeof manifest, "%s/manifest.json", path) >= OUTPUT_PATH)
        die("option --resume: %.64s...: the name is too long", path);
    if (file_is_there(manifest)) return;
    die("option --resume: %s: No such file, so this is no checkpoint; name a folder step_NNNNNNNN, or resume "
        "the newest one of a run by -o and -y 1",
        manifest);
}

static int resume_named(const Found *newest, int has_logs) {
    chosen.inside = lies_in_output(opt.resume_path);
    if (opt.output && !chosen.inside)
        opt.resume ? begin_anew(&chosen.in) : refuse_used_folder(newest, has_logs);
    require_manifest(opt.resume_path);
    if (choose_folder(opt.resume_path, -1)) die("option --resume: %s", gpt2_last_error());
    chosen.named = 1;
    chosen.aside = chosen.inside && was_set_aside(opt.resume_path);
    return chosen.step;
}

// With -y 1 the checkpoint of --resume only starts the run: if -o has one, that one is newer.
int checkpoint_to_resume(int has_logs) {
    if (opt.output) chosen.in = checkpoints_in_order("-o", opt.output);
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
        die("option -y 1: %s; no checkpoint in %s is left", gpt2_last_error(), opt.output);
    }
    return chosen.step;
}

void checkpoint_config(GPT2Config *config) { gpt2_check(saved_run_config(chosen.text, config)); }

long long checkpoint_batch(void) { return chosen.text ? saved_run_batch(chosen.text) : 0; }

const char *checkpoint_evidence(void) {
    static char path[OUTPUT_PATH];
    if (snprintf(path, sizeof path, "%s/manifest.json", chosen.path) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", chosen.path);
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
    snprintf(sentence, sizeof sentence, "the checkpoint of step %d stays as it is", standing);
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

// The state is in *text. Rejects a checkpoint of another step than its name's.
static int take_state(const char *text, TrainerState *state) {
    if (saved_run_state(text, state)) return -1;
    return state->step == chosen.step ? 0 : gpt2_fail("it is of step %d", state->step);
}

// The tensors are compared when they are loaded, but no tensor's shape shows the number of heads.
static void check_same_model(const GPT2 *model) {
    GPT2Config config;
    checkpoint_config(&config);
    if (config.num_heads != model->config.num_heads)
        die("%s: it has %d heads, and the checkpoint that was damaged has %d", chosen.path, config.num_heads,
            model->config.num_heads);
}

// The model file is made from step_%08d/, so a checkpoint that was set aside gets that name back first.
static void add_model_file(void) {
    const int has_name = run.rank != 0 || checkpoint_set_back(&chosen.in.found[chosen.at]);
    model_file_add(chosen.step, has_name);
}

void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state) {
    for (;;) {
        char *text = NULL;
        saved_run_compare(chosen.text, chosen.path, model, data);
        int rc = zero_load(run.z, chosen.path, &text);
        if (!rc) {
            if (take_state(text, state)) die("%s: %s", chosen.path, gpt2_last_error());
            free(text);
            standing = chosen.step;
            if (!chosen.named) add_model_file();
            if (!opt.async_save) model_file_wait();
            return;
        }
        if (rc != ZERO_ERR_IO || chosen.named) zero_check(rc);
        // One rank has printed which one is damaged; the states are unchanged.
        print0("%s; looking for an older checkpoint\n", zero_last_error());
        zero_failure failure = *zero_last_failure();
        if (choose_from(chosen.at + 1))
            die_of_plugin(&failure, "; there is no older checkpoint that is good");
        check_same_model(model);
        print0("taking the checkpoint of step %d\n", chosen.step);
    }
}

// --------
// saving

int checkpoint_was_set_aside(void) { return chosen.aside; }

int checkpoint_leaves_a_course(void) {
    const Found *newest = checkpoints_newest(&chosen.in);
    return newest && newest->as.number > chosen.as.number;
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
        if (getrandom(&id, sizeof id, 0) != sizeof id) die("no random number: %s", strerror(errno));
        snprintf(saved.run, sizeof saved.run, "%016llx", (unsigned long long)id);
        if (chosen.step >= 0 && chosen.inside) saved = chosen.as;
        saved.number = checkpoints_last_number(&chosen.in);
    }
    saved.number++;
    return &saved;
}

static void note_saved(int step) {
    char path[OUTPUT_PATH], temporary[OUTPUT_PATH];
    standing = step;
    if (run.rank != 0) return;
    output_path(path, NEWEST);
    output_path(temporary, NEWEST ".tmp");
    FILE *f = create_file(temporary);
    fprintf(f, NEWEST_TEXT, (long long)saved.number, step);
    commit_file(f, temporary, path);
}

// A failed save leaves nothing behind. Other ranks have removed their files by then.
static void withdraw(const char *path) {
    if (zero_barrier(run.z) || run.rank != 0) return;
    rmdir(path);  // unless it has a checkpoint
}

// rc: of a saving function.
static void check_saved(int rc, int step) {
    char path[OUTPUT_PATH];
    if (!rc) return;
    zero_failure failure = *zero_last_failure();
    output_path(path, "step_%08d", step);
    if (rc != ZERO_ERR_COMM && rc != ZERO_ERR_DEVICE) withdraw(path);
    die_after_failure(&failure);
}

// The model file comes last, since resuming does not need it; older checkpoints are removed once it exists.
static void note_complete(int step) {
    note_saved(step);
    leave_later_courses(step);
    model_file_begin(step);
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
    print0("the checkpoint of step %d is complete, %.2f s after its beginning\n", step, now() - began);
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
