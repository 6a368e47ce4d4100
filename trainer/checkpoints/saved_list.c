#include "saved_list.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../gpt2/gpt2_error.h"
#include "../../llmc_zero/zero.h"
#include "../options/options.h"
#include "../running/run.h"

// -------- names

// Returns the number in PREFIX%08dEND, or -1 for any other name.
static int step_in(const char *name, const char *prefix, const char *end) {
    const size_t n = strlen(prefix);
    char again[64];
    if (strncmp(name, prefix, n)) return -1;
    const long step = strtol(name + n, NULL, 10);
    if (step < 0 || step > INT32_MAX) return -1;
    snprintf(again, sizeof again, "%s%08ld%s", prefix, step, end);
    return strcmp(name, again) ? -1 : (int)step;
}

// Returns the number in PARENT/PREFIX%08dEND, or -1 for any other path. beside: for the path of the same
// step's NAME in PARENT; NULL: not wanted.
static int step_at(const char *path, const char *prefix, const char *end, char beside[OUTPUT_PATH],
                   const char *name) {
    char own[64], parent[OUTPUT_PATH];
    size_t after;
    const size_t begin = last_name(path, &after);
    snprintf(own, sizeof own, "%.*s", (int)(after - begin), path + begin);
    snprintf(parent, sizeof parent, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin ? path : ".");
    const int step = step_in(own, prefix, end);
    if (step >= 0 && beside) path_in(beside, parent, name, step);
    return step;
}

int checkpoint_step_of(const char *folder) { return step_at(folder, "step_", "", NULL, NULL); }

int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder) {
    return step_at(folder, "step_", "", path, "model_%08d.bin") < 0 ? -1 : 0;
}

int checkpoint_of_model(char folder[OUTPUT_PATH], const char *path) {
    return step_at(path, "model_", ".bin", folder, "step_%08d") >= 0 && is_checkpoint(folder) ? 0 : -1;
}

int is_checkpoint(const char *folder) { return file_is_there(in_folder(folder, "manifest.json")); }

// -------- the contents of a folder

// The model file is written after the manifest and removed before it, so a model file without a manifest
// means damage. Both may have appeared since the first look, so this looks twice.
static void look_at(Found *f) {
    char model[OUTPUT_PATH];
    f->complete = is_checkpoint(f->path);
    if (f->complete || checkpoint_model_of(model, f->path)) return;
    if (!file_is_there(model)) return;
    f->complete = is_checkpoint(f->path);
    f->damaged = !f->complete;
}

static void add_entry(Listing *l, const char *name) {
    Found f = { .step = checkpoint_step_of(name) };
    l->had_some |= step_in(name, "model_", ".bin") >= 0;
    if (f.step < 0) return;
    path_in(f.path, l->folder, "%s", name);
    look_at(&f);
    l->had_some |= f.damaged;
    l->found = realloc(l->found, (l->n + 1) * sizeof *l->found);
    if (!l->found) die("out of memory for the checkpoints in %s", l->folder);
    l->found[l->n++] = f;
}

// Neither step is negative.
static int newest_first(const void *a, const void *b) { return ((Found *)b)->step - ((Found *)a)->step; }

Listing checkpoints_in(const char *option, const char *folder) {
    Listing l = { .n = 0 };
    if (snprintf(l.folder, sizeof l.folder, "%s", folder) >= OUTPUT_PATH)
        die("option %s: the name is too long", option);
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT) return l;
    for (struct dirent *e; dir && (errno = 0, e = readdir(dir));) add_entry(&l, e->d_name);
    if (errno) die("option %s: %s cannot be searched for checkpoints: %s", option, folder, strerror(errno));
    closedir(dir);
    if (l.n) qsort(l.found, l.n, sizeof *l.found, newest_first);
    for (int i = l.n - 1; i >= 0; i--)
        if (l.found[i].complete) l.newest = &l.found[i];
    return l;
}

int checkpoint_is_damaged(const Found *f) {
    return gpt2_fail("%s: damaged: it was complete, and manifest.json is missing", f->path);
}

// -------- removing

// A missing file is not an error.
static void remove_file(const char *path) {
    if (remove(path) && errno != ENOENT) print0("warning: %s: %s\n", path, strerror(errno));
}

// Removes files that disk_create has named: a run renames or removes them within a moment, unless it is
// killed.
static void remove_temporary_files(void) {
    DIR *dir = opendir(opt.output);
    if (!dir) print0("warning: %s cannot be listed: %s\n", opt.output, strerror(errno));
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (!fnmatch("*.+([0-9a-f]).tmp", e->d_name, FNM_EXTMATCH)) remove_file(in_output("%s", e->d_name));
    if (dir) closedir(dir);
}

// Removes the folder last. If the run is killed in between, the folder still identifies the files left to
// remove, and a run can resume from it without the model file.
static int remove_checkpoint(const Found *f) {
    remove_file(in_output("model_%08d.bin", f->step));
    const int failed = zero_checkpoint_remove(f->path);
    if (failed) print0("warning: %s\n", zero_last_error());
    return failed;
}

void checkpoints_remove_leftovers(void) {
    if (!folder_is_locked()) return;
    Listing l = checkpoints_in("-o", opt.output);
    for (const Found *f = l.found; f < l.found + l.n; f++)
        if (!f->complete && !f->damaged && !remove_checkpoint(f))
            print0("%s: removed, because its save did not finish\n", f->path);
    free(l.found);
    remove_temporary_files();
}

void checkpoints_prune(void) {
    Listing l = checkpoints_in("-o", opt.output);
    int kept = 0;
    for (const Found *f = l.found; f < l.found + l.n; f++) {
        const int major = opt.checkpoint_major && f->step % opt.checkpoint_major == 0;
        if (!f->complete || (kept++ >= opt.checkpoints_keep && !major)) remove_checkpoint(f);
    }
    free(l.found);
}
