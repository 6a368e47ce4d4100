#include "checkpoint.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/error.h"
#include "die.h"
#include "folder.h"
#include "folder_lock.h"
#include "logs.h"
#include "options.h"
#include "report.h"
#include "run.h"

// --------
// what is in a folder

typedef struct {
    int step;
    int old;       // 1: a state file of each rank and a DONE_ file
    int complete;  // 0: what a save that died has left
} Found;

typedef struct {
    char folder[OUTPUT_PATH];
    Found *found;  // (n) the newest first
    int n;
    int old_states;  // state files of old runs are there, whether complete or not
    int had_some;    // there has been a complete one
} Listing;

// A file that the first complete checkpoint of a folder leaves for good, and the names of those that were set
// aside.
#define HAD_SOME "has_checkpoints"
#define ABANDONED "abandoned_"

// The number in PREFIX%08d, or -1 for every other name.
static int step_in(const char *name, const char *prefix) {
    const size_t n = strlen(prefix);
    char again[64], *end;
    if (strncmp(name, prefix, n)) return -1;
    long step = strtol(name + n, &end, 10);
    if (step < 0 || step > INT32_MAX || *end) return -1;
    snprintf(again, sizeof again, "%s%08ld", prefix, step);
    return strcmp(name, again) ? -1 : (int)step;
}

static void path_in(char path[OUTPUT_PATH], const char *folder, const char *fmt, int step) {
    char name[64];
    snprintf(name, sizeof name, fmt, step);
    if (snprintf(path, OUTPUT_PATH, "%s/%s", folder, name) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", folder);
}

static int is_there(const char *path) {
    if (!access(path, F_OK)) return 1;
    if (errno != ENOENT && errno != ENOTDIR) die("%s: %s", path, strerror(errno));
    return 0;
}

static void add_found(Listing *l, int step, int old, int complete) {
    if (step < 0) return;
    l->found = realloc(l->found, (l->n + 1) * sizeof *l->found);
    if (!l->found) die("out of memory for the checkpoints in %s", l->folder);
    l->found[l->n++] = (Found){ step, old, complete };
}

static void add_entry(Listing *l, const char *name) {
    char manifest[OUTPUT_PATH];
    int step = step_in(name, "step_");
    add_found(l, step_in(name, "DONE_"), 1, 1);
    if (!strncmp(name, "state_", 6)) l->old_states = 1;
    if (!strcmp(name, HAD_SOME) || !strncmp(name, ABANDONED, strlen(ABANDONED))) l->had_some = 1;
    if (step < 0) return;
    path_in(manifest, l->folder, "step_%08d/manifest.json", step);
    add_found(l, step, 0, is_there(manifest));
}

static int newest_first(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->step != y->step) return (x->step < y->step) - (x->step > y->step);
    return x->old - y->old;
}

// A folder that is not there has no checkpoints. One that cannot be read may have some, so the run ends.
static Listing list_folder(const char *option, const char *folder) {
    Listing l = { .n = 0 };
    if (snprintf(l.folder, sizeof l.folder, "%s", folder) >= OUTPUT_PATH)
        die("option %s: the name is too long", option);
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT) return l;
    if (!dir) die("option %s: %s cannot be searched for checkpoints: %s", option, folder, strerror(errno));
    errno = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        add_entry(&l, e->d_name);
        errno = 0;
    }
    if (errno) die("option %s: %s cannot be searched for checkpoints: %s", option, folder, strerror(errno));
    closedir(dir);
    if (l.n) qsort(l.found, l.n, sizeof *l.found, newest_first);
    return l;
}

const char *checkpoint_model(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "model_%08d.bin", step);
    return path;
}

// As checkpoint_check_model.
static int check_model_file(const char *folder, int step) {
    char checkpoint[OUTPUT_PATH], manifest[OUTPUT_PATH + 16], model[OUTPUT_PATH];
    char *text = NULL;
    path_in(checkpoint, folder, "step_%08d", step);
    path_in(model, folder, "model_%08d.bin", step);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", checkpoint);
    if (!is_there(manifest)) return 1;
    if (zero_checkpoint_text(checkpoint, &text)) return gpt2_fail("%s", zero_last_error());
    int failed = saved_run_check_model(text, model);
    free(text);
    return failed;
}

int checkpoint_check_model(const char *path) {
    char folder[OUTPUT_PATH], name[64];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    snprintf(name, sizeof name, "%s", slash ? slash + 1 : path);
    if (strlen(name) > 4) name[strlen(name) - 4] = 0;  // ".bin"
    int step = step_in(name, "model_");
    return step < 0 ? 1 : check_model_file(folder, step);
}

const char *checkpoint_model_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = list_folder("-e", folder);
    const char *model = NULL;
    for (int i = 0; i < l.n; i++) {
        if (!l.found[i].complete) continue;
        path_in(path, folder, "model_%08d.bin", l.found[i].step);
        if (!is_there(path)) continue;
        model = path;
        if (check_model_file(folder, l.found[i].step) >= 0) break;
        model = NULL;
        print0("%s; looking for an older checkpoint\n", gpt2_last_error());
    }
    free(l.found);
    return model;
}

const char *checkpoint_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = list_folder("--export", folder);
    int newest = 0;
    while (newest < l.n && !l.found[newest].complete) newest++;
    const int any = newest < l.n;
    if (any)
        path_in(path, folder, l.found[newest].old ? "model_%08d.bin" : "step_%08d", l.found[newest].step);
    free(l.found);
    return any ? path : NULL;
}

// Ranks that have saved an old state file; docs/formats.md has its header. 1 if it cannot be read, which is
// found when it is verified.
static int ranks_of_old(const char *path) {
    int32_t header[4] = { 0 };
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(header, sizeof header, 1, f) : 0;
    if (f) fclose(f);  // nothing was written
    return n == 1 && header[3] > 0 && header[3] <= 99999 ? header[3] : 1;
}

static int visit_old(const char *folder, int step, const char *model, CheckpointVisitor fn, void *ctx) {
    char path[OUTPUT_PATH];
    int rc = 0, ranks = 1;
    for (int rank = 0; rank < ranks; rank++) {
        if (snprintf(path, sizeof path, "%s/state_%08d_%05d.bin", folder, step, rank) >= OUTPUT_PATH)
            die("%.64s...: the name is too long", folder);
        if (rank == 0) ranks = ranks_of_old(path);
        rc |= fn(ctx, &(CheckpointPaths){ path, rank ? NULL : model, 1 });
    }
    return rc;
}

int checkpoints_visit(const char *folder, CheckpointVisitor fn, void *ctx) {
    Listing l = list_folder("--verify", folder);
    char states[OUTPUT_PATH], model[OUTPUT_PATH];
    int rc = 0;
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        path_in(states, folder, "step_%08d", f->step);
        path_in(model, folder, "model_%08d.bin", f->step);
        if (f->old)
            rc |= visit_old(folder, f->step, model, fn, ctx);
        else
            rc |= fn(ctx, &(CheckpointPaths){ states, model, f->complete });
    }
    free(l.found);
    return rc;
}

// --------
// which one a run goes on from

static struct {
    Listing in;
    int at;                  // which of them
    int named;               // 1: the folder of --resume, and no other one instead
    int step;                // -1: none is chosen
    int old;                 // as in Found
    char path[OUTPUT_PATH];  // what zero_load takes
    char *text;              // what it says of the run; NULL: an old one
} chosen = { .step = -1 };

// Takes the folder of a checkpoint. Returns 0, or -1 with gpt2_last_error(). step: what its name says; -1:
// that it says nothing.
static int choose_folder(const char *path, int step) {
    TrainerState state;
    GPT2Config config;
    free(chosen.text);
    chosen.text = NULL;
    chosen.step = -1;
    chosen.old = 0;
    if (snprintf(chosen.path, sizeof chosen.path, "%s", path) >= OUTPUT_PATH)
        return gpt2_fail("%.64s...: the name is too long", path);
    if (zero_checkpoint_text(path, &chosen.text)) return gpt2_fail("%s", zero_last_error());
    if (saved_run_state(chosen.text, &state) || saved_run_config(chosen.text, &config)) {
        char why[400];
        snprintf(why, sizeof why, "%s", gpt2_last_error());
        return gpt2_fail("%s: %s", path, why);
    }
    if (step >= 0 && state.step != step) return gpt2_fail("%s: is of step %d", path, state.step);
    chosen.step = state.step;
    return 0;
}

static void choose_old(int step) {
    chosen.step = step;
    chosen.old = 1;
    output_path(chosen.path, "state_%08d_%05d.bin", step, run.rank);
}

// Takes the newest complete checkpoint from number `from` on whose manifest is good. Returns 0, or -1 with
// gpt2_last_error(): the last one that was tried.
static int choose_from(int from) {
    char path[OUTPUT_PATH];
    int tried = 0;
    for (chosen.at = from; chosen.at < chosen.in.n; chosen.at++) {
        const Found *f = &chosen.in.found[chosen.at];
        if (tried) print0("%s; looking for an older checkpoint\n", gpt2_last_error());
        tried = 1;
        path_in(path, chosen.in.folder, "step_%08d", f->step);
        if (!f->complete) {
            gpt2_fail("%s: the save did not end", path);
            continue;
        }
        if (f->old) {
            choose_old(f->step);
            return 0;
        }
        if (!choose_folder(path, f->step)) return 0;
    }
    return tried ? -1 : gpt2_fail("%s: there is no older checkpoint", chosen.in.folder);
}

// Returns the newest one that is complete, or NULL.
static const Found *newest_complete(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].complete) return &l->found[i];
    return NULL;
}

// No checkpoint is complete. A save that died may have left the others, but where there has been a complete
// one, or there are states without their mark, a run has been lost, and is not begun anew.
static void begin_anew(const Listing *l) {
    if (l->old_states)
        die("option -y 1: %s has state files but none that a DONE_ file declares complete; move them away to "
            "begin a new run",
            l->folder);
    if (l->had_some)
        die("option -y 1: %s has had checkpoints, and none is complete now; move the folder away to begin a "
            "new run",
            l->folder);
    if (l->n)
        print0("no checkpoint in %s is complete: the save of step %d did not end; beginning anew\n",
               l->folder, l->found[0].step);
}

// A run that neither resumes what is in -o nor belongs to it needs a folder of its own.
static void refuse_used_folder(const Found *newest) {
    if (!newest && !logs_exist()) return;
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
    char parent[OUTPUT_PATH];
    struct stat a, b;
    snprintf(parent, sizeof parent, "%s/..", path);
    if (!opt.output || stat(parent, &a) || stat(opt.output, &b)) return 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int resume_named(const Found *newest) {
    if (opt.output && !lies_in_output(opt.resume_path)) refuse_used_folder(newest);
    if (choose_folder(opt.resume_path, -1)) die("option --resume: %s", gpt2_last_error());
    chosen.named = 1;
    return chosen.step;
}

// With -y 1 a checkpoint from elsewhere only begins the run: what is in -o has gone on from there.
int checkpoint_to_resume(void) {
    if (opt.output) chosen.in = list_folder("-o", opt.output);
    const Found *newest = newest_complete(&chosen.in);
    const int goes_on = newest && opt.resume;
    if (opt.resume_path && !(goes_on && !lies_in_output(opt.resume_path))) return resume_named(newest);
    if (!opt.output) return -1;
    if (!opt.resume) refuse_used_folder(newest);
    if (!newest && opt.resume) begin_anew(&chosen.in);
    if (!newest) return -1;
    if (choose_from(0)) die("option -y 1: %s; no checkpoint in %s is left", gpt2_last_error(), opt.output);
    return chosen.step;
}

void checkpoint_config(GPT2Config *config) {
    gpt2_dtype stored;
    if (chosen.old)
        gpt2_check(gpt2_file_read_header(checkpoint_model(chosen.step), config, &stored));
    else
        gpt2_check(saved_run_config(chosen.text, config));
}

long long checkpoint_batch(void) { return chosen.text ? saved_run_batch(chosen.text) : 0; }

const char *checkpoint_evidence(void) {
    static char path[OUTPUT_PATH];
    if (chosen.old) return checkpoint_model(chosen.step);
    if (snprintf(path, sizeof path, "%s/manifest.json", chosen.path) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", chosen.path);
    return path;
}

// --------
// which checkpoint a run falls back to when it fails

static int standing = -1;  // the step of the last one that was saved or resumed

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
    run.step--;  // the step that made it
    die_after_failure(&failure);
}

// --------
// reading

// The state is in *text. One of another step than its name says is not what it is taken for.
static int take_state(const char *text, TrainerState *state) {
    if (saved_run_state(text, state)) return -1;
    return state->step == chosen.step ? 0 : gpt2_fail("it is of step %d", state->step);
}

void load_checkpoint(const GPT2 *model, const TrainingData *data, TrainerState *state) {
    for (;;) {
        char *text = NULL;
        if (chosen.text) saved_run_compare(chosen.text, chosen.path, model, data);
        int rc = zero_load(run.z, chosen.path, &text);
        if (!rc) {
            if (take_state(text, state)) die("%s: %s", chosen.path, gpt2_last_error());
            free(text);
            standing = chosen.step;
            return;
        }
        if (rc != ZERO_ERR_IO || chosen.named) zero_check(rc);
        // What was damaged has been told by one rank; nothing has changed.
        print0("%s; looking for an older checkpoint\n", zero_last_error());
        zero_failure failure = *zero_last_failure();
        if (choose_from(chosen.at + 1))
            die_of_plugin(&failure, "; there is no older checkpoint that is good");
        print0("taking the checkpoint of step %d\n", chosen.step);
    }
}

// --------
// writing

static int give_values(void *ctx, int tensor, int layer, int64_t offset, int64_t n, float *values) {
    (void)ctx;
    int rc = zero_get(run.z, ZERO_PARAM, tensor, layer, offset, n, values);
    return rc ? gpt2_fail("%s", zero_last_error()) : 0;
}

static void remove_file(const char *path) {
    if (remove(path) && errno != ENOENT) print0("warning: %s: %s\n", path, strerror(errno));
}

// Removes the files whose names begin and end so.
static void remove_files(const char *prefix, const char *suffix) {
    char path[OUTPUT_PATH];
    const size_t begins = strlen(prefix), ends = strlen(suffix);
    DIR *dir = opendir(opt.output);
    if (!dir) print0("warning: %s cannot be listed: %s\n", opt.output, strerror(errno));
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        const size_t n = strlen(e->d_name);
        if (n < begins + ends || strncmp(e->d_name, prefix, begins)) continue;
        if (strcmp(e->d_name + n - ends, suffix)) continue;
        output_path(path, "%s", e->d_name);
        remove_file(path);
    }
    if (dir) closedir(dir);
}

// First what makes it complete, then the state files of all ranks.
static void remove_old(int step) {
    char path[OUTPUT_PATH], prefix[64];
    path_in(path, opt.output, "DONE_%08d", step);
    remove_file(path);
    snprintf(prefix, sizeof prefix, "state_%08d_", step);
    remove_files(prefix, "");
}

// The folder goes last: what a death in between leaves is found by it, and it resumes without the model file.
// An old checkpoint does not resume without that.
static void remove_checkpoint(const Found *f) {
    char path[OUTPUT_PATH];
    char temporary[64];  // what saves that died have left of the model file
    path_in(path, opt.output, "step_%08d", f->step);
    snprintf(temporary, sizeof temporary, "model_%08d.bin.", f->step);
    if (f->old) remove_old(f->step);
    remove_files(temporary, ".tmp");
    remove_file(checkpoint_model(f->step));
    if (!f->old && zero_checkpoint_remove(path)) print0("warning: %s\n", zero_last_error());
}

// Rank 0 removes complete checkpoints beyond the newest -nk, but for those of -nm, and what saves that died
// have left. It looks at none of later steps: those are no part of this course.
static void prune(int step) {
    Listing l = list_folder("-o", opt.output);
    int kept = 0;
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->step > step) continue;
        const int major = opt.checkpoint_major && f->step % opt.checkpoint_major == 0;
        if (f->complete && (kept++ < opt.checkpoints_keep || major)) continue;
        remove_checkpoint(f);
    }
    free(l.found);
}

// --------
// another course: checkpoints of later steps than the one that the run goes on from

static void move_to(const char *folder, const char *name) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH + 300];
    output_path(from, "%s", name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    if (rename(from, to) && errno != ENOENT) die("%s: cannot be moved to %s: %s", from, to, strerror(errno));
}

// First what makes it complete.
static void move_old_files(const char *folder, int step) {
    char name[64];
    if (mkdir(folder, 0777)) die("%s: %s", folder, strerror(errno));
    snprintf(name, sizeof name, "DONE_%08d", step);
    move_to(folder, name);
    for (int rank = 0;; rank++) {
        char path[OUTPUT_PATH];
        snprintf(name, sizeof name, "state_%08d_%05d.bin", step, rank);
        output_path(path, "%s", name);
        if (!is_there(path)) return;
        move_to(folder, name);
    }
}

// It keeps all that it has, under a name that -y 1 does not look at.
static void set_aside(const Found *f) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH], model[64];
    path_in(to, opt.output, ABANDONED "%08d", f->step);
    for (int number = 1; is_there(to); number++) output_path(to, ABANDONED "%08d.%d", f->step, number);
    path_in(from, opt.output, "step_%08d", f->step);
    if (f->old)
        move_old_files(to, f->step);
    else if (rename(from, to))
        die("%s: cannot be renamed to %s: %s", from, to, strerror(errno));
    snprintf(model, sizeof model, "model_%08d.bin", f->step);
    move_to(to, model);
    print0("the checkpoint of step %d is not of the course that this run goes on with; it is %s now\n",
           f->step, to);
}

static int is_of_another_course(const Found *f) { return f->complete && f->step > chosen.step; }

int checkpoint_leaves_a_course(void) {
    const Found *newest = newest_complete(&chosen.in);
    return newest && is_of_another_course(newest);
}

// Before the first save rank 0 sets aside what the run has not gone on from, so that nothing of it is
// replaced, and -y 1 goes on with what was saved last.
static void leave_other_courses(void) {
    static int left;
    if (run.rank != 0 || left++) return;
    Listing l = list_folder("-o", opt.output);
    for (int i = 0; i < l.n; i++)
        if (is_of_another_course(&l.found[i])) set_aside(&l.found[i]);
    free(l.found);
}

// From now on the folder says that it has had a complete checkpoint.
static void note_saved(int step) {
    char path[OUTPUT_PATH];
    standing = step;
    if (run.rank != 0) return;
    output_path(path, HAD_SOME);
    if (is_there(path)) return;
    FILE *f = create_file(path);
    fprintf(f,
            "There has been a complete checkpoint in this folder, so -y 1 does not begin a new run here.\n");
    int bad = fflush(f) || fsync(fileno(f));
    if (fclose(f) || bad) die("%s: not written: %s", path, strerror(errno));
}

// --------
// saving

// A save that failed leaves nothing of itself. Other ranks have removed their files by then.
static void withdraw(const char *path, int step) {
    if (zero_barrier(run.z) || run.rank != 0) return;
    rmdir(path);  // unless it has a checkpoint
    if (!is_there(path)) remove_file(checkpoint_model(step));
}

// rc: of a function that saves.
static void check_saved(int rc, int step) {
    char path[OUTPUT_PATH];
    if (!rc) return;
    zero_failure failure = *zero_last_failure();
    output_path(path, "step_%08d", step);
    if (rc != ZERO_ERR_COMM && rc != ZERO_ERR_DEVICE) withdraw(path, step);
    die_after_failure(&failure);
}

static void note_complete(int step) {
    note_saved(step);
    if (run.rank == 0 && opt.checkpoints_keep) prune(step);
}

static int beside = -1;  // the step of the checkpoint that is written beside training; -1: none is
static double began;

void end_checkpoint(int wait) {
    int complete;
    if (beside < 0) return;
    run.saving = beside;
    check_saved(zero_save_end(run.z, wait, &complete), beside);
    run.saving = -1;
    if (!complete) return;
    print0("the checkpoint of step %d is complete, %.2f s after its beginning\n", beside, now() - began);
    note_complete(beside);
    beside = -1;
}

void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state) {
    const int step = state->step;
    char path[OUTPUT_PATH];
    end_checkpoint(1);
    began = now();
    run.saving = step;
    print0("writing checkpoint at step %d\n", step);
    leave_other_courses();
    output_path(path, "step_%08d", step);
    // The folder comes first, so that a save that dies is found by it.
    if (run.rank == 0 && mkdir(path, 0777) && errno != EEXIST) die("%s: %s", path, strerror(errno));
    gpt2_dtype stored = model->dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32;
    gpt2_check(
        gpt2_file_write(checkpoint_model(step), &model->config, stored, give_values, NULL, run.rank == 0));
    char *text = saved_run_write(model, data, state, run.rank == 0 ? checkpoint_model(step) : NULL);
    check_saved(opt.async_save ? zero_save_begin(run.z, path, text) : zero_save(run.z, path, text), step);
    free(text);
    run.saving = -1;
    if (opt.async_save)
        beside = step;
    else
        note_complete(step);
}
