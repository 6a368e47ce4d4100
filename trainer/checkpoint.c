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
#include "options.h"
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
} Listing;

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

const char *checkpoint_model_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = list_folder("-e", folder);
    const char *model = NULL;
    for (int i = 0; i < l.n && !model; i++) {
        if (!l.found[i].complete) continue;
        path_in(path, folder, "model_%08d.bin", l.found[i].step);
        if (is_there(path)) model = path;
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

// --------
// which one a run goes on from

static struct {
    Listing in;
    int at;                  // which of them; in.n: the folder of --resume, none else
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
        if (!f->complete) continue;
        if (tried++) print0("%s; looking for an older checkpoint\n", gpt2_last_error());
        if (f->old) {
            choose_old(f->step);
            return 0;
        }
        path_in(path, chosen.in.folder, "step_%08d", f->step);
        if (!choose_folder(path, f->step)) return 0;
    }
    return tried ? -1 : gpt2_fail("%s: there is no older checkpoint", chosen.in.folder);
}

static int any_complete(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].complete) return 1;
    return 0;
}

// No checkpoint is complete. Old states without their mark may be all that is left of a run, so it is not
// begun anew.
static void begin_anew(const Listing *l) {
    if (l->old_states)
        die("option -y 1: %s has state files but none that a DONE_ file declares complete; move them away to "
            "begin a new run",
            l->folder);
    if (l->n)
        print0("no checkpoint in %s is complete: the save of step %d did not end; beginning anew\n",
               l->folder, l->found[0].step);
}

int checkpoint_to_resume(void) {
    if (opt.resume_path) {
        if (choose_folder(opt.resume_path, -1)) die("option --resume: %s", gpt2_last_error());
        return chosen.step;
    }
    if (!opt.output) return -1;
    chosen.in = list_folder("-o", opt.output);
    if (!any_complete(&chosen.in)) {
        if (opt.resume) begin_anew(&chosen.in);
        return -1;
    }
    if (!opt.resume) {
        int newest = 0;
        while (!chosen.in.found[newest].complete) newest++;
        die("option -o: %s holds a checkpoint at step %d; -y 1 resumes it, and a new run needs a folder of "
            "its own",
            opt.output, chosen.in.found[newest].step);
    }
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
            return;
        }
        if (rc != ZERO_ERR_IO || opt.resume_path) zero_check(rc);
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

// First what makes it complete, then the state files of all ranks.
static void remove_old(int step) {
    char path[OUTPUT_PATH], prefix[64];
    path_in(path, opt.output, "DONE_%08d", step);
    remove_file(path);
    snprintf(prefix, sizeof prefix, "state_%08d_", step);
    DIR *dir = opendir(opt.output);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        if (strncmp(e->d_name, prefix, strlen(prefix))) continue;
        output_path(path, "%s", e->d_name);
        remove_file(path);
    }
    if (dir) closedir(dir);
}

// The model file goes last, so that what is left by a death in between is found again by its folder.
static void remove_checkpoint(const Found *f) {
    char path[OUTPUT_PATH];
    path_in(path, opt.output, "step_%08d", f->step);
    if (f->old)
        remove_old(f->step);
    else if (zero_checkpoint_remove(path))
        print0("warning: %s\n", zero_last_error());
    remove_file(checkpoint_model(f->step));
}

// Rank 0 removes complete checkpoints beyond the newest -nk, but for those of -nm, and what saves that died
// have left. Those of later steps are of another course of the run, and stay.
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

void write_checkpoint(const GPT2 *model, const TrainingData *data, const TrainerState *state) {
    const int step = state->step;
    char path[OUTPUT_PATH];
    print0("writing checkpoint at step %d\n", step);
    output_path(path, "step_%08d", step);
    // The folder comes first, so that a save that dies is found by it.
    if (run.rank == 0 && mkdir(path, 0777) && errno != EEXIST) die("%s: %s", path, strerror(errno));
    gpt2_dtype stored = model->dtype == GPT2_BF16 ? GPT2_BF16 : GPT2_F32;
    gpt2_check(
        gpt2_file_write(checkpoint_model(step), &model->config, stored, give_values, NULL, run.rank == 0));
    char *text = saved_run_write(model, data, state);
    zero_check(zero_save(run.z, path, text));
    free(text);
    if (run.rank == 0 && opt.checkpoints_keep) prune(step);
}
