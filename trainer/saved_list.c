#include "saved_list.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpt2/disk.h"
#include "../gpt2/gpt2_error.h"
#include "../llmc_zero/zero.h"
#include "options.h"
#include "run.h"

// The file that records the newest save, its contents, and the name of checkpoints set aside.
#define NEWEST "has_checkpoints"
#define NEWEST_TEXT "save %lld of step %d is the newest\n"
#define ABANDONED "abandoned_"

// --------
// names

// Returns the number in PREFIX%08d, or -1 for any other name. end: a character that may follow the number.
static int step_in(const char *name, const char *prefix, char end) {
    const size_t n = strlen(prefix);
    char again[64], *rest;
    if (strncmp(name, prefix, n)) return -1;
    long step = strtol(name + n, &rest, 10);
    if (step < 0 || step > INT32_MAX || (*rest && *rest != end)) return -1;
    const int length = snprintf(again, sizeof again, "%s%08ld", prefix, step);
    return rest - name == length && !strncmp(name, again, (size_t)length) ? (int)step : -1;
}

// Splits a path, ignoring trailing slashes.
static void split(const char *path, char folder[OUTPUT_PATH], char name[64]) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/') begin--;
    snprintf(name, 64, "%.*s", (int)(end - begin), path + begin);
    snprintf(folder, OUTPUT_PATH, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin ? path : ".");
}

int checkpoint_step_of(const char *folder, int *aside) {
    char parent[OUTPUT_PATH], name[64];
    split(folder, parent, name);
    *aside = !strncmp(name, ABANDONED, strlen(ABANDONED));
    return *aside ? step_in(name, ABANDONED, '.') : step_in(name, "step_", 0);  // abandoned_%08d.1
}

int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder) {
    char parent[OUTPUT_PATH], name[64];
    int aside;
    const int step = checkpoint_step_of(folder, &aside);
    split(folder, parent, name);
    if (step >= 0) path_in(path, aside ? folder : parent, "model_%08d.bin", step);
    return step >= 0 ? 0 : -1;
}

int checkpoint_of_model(char folder[OUTPUT_PATH], const char *path) {
    char parent[OUTPUT_PATH], name[64];
    split(path, parent, name);
    const int step = step_in(name, "model_", '.');
    if (step < 0 || strcmp(strchr(name, '.') ? strchr(name, '.') : "", ".bin")) return -1;
    path_in(folder, parent, "step_%08d", step);
    if (is_checkpoint(folder)) return 0;
    snprintf(folder, OUTPUT_PATH, "%s", parent);
    return is_checkpoint(folder) ? 0 : -1;
}

int is_checkpoint(const char *folder) { return file_is_there(in_folder(folder, "manifest.json")); }

// --------
// the contents of a folder

static void add_found(Listing *l, const Found *f) {
    l->found = realloc(l->found, (l->n + 1) * sizeof *l->found);
    if (!l->found) die("out of memory for the checkpoints in %s", l->folder);
    l->found[l->n++] = *f;
}

// The model file is written after the manifest and removed before it, so a model file without a manifest
// means damage. Both may have appeared since the first look, so this looks twice.
static void look_at(Found *f) {
    char model[OUTPUT_PATH];
    f->complete = is_checkpoint(f->path);
    if (f->complete || checkpoint_model_of(model, f->path)) return;
    if (!f->abandoned && !file_is_there(model)) return;
    f->complete = is_checkpoint(f->path);
    f->damaged = !f->complete;
}

static void add_entry(Listing *l, const char *name) {
    Found f = { .step = checkpoint_step_of(name, &f.abandoned) };
    if (!strcmp(name, NEWEST)) l->had_some = 1;
    if (f.step < 0) return;
    path_in(f.path, l->folder, "%s", name);
    look_at(&f);
    l->had_some |= f.abandoned | f.damaged;
    add_found(l, &f);
}

static int newest_first(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->as.number != y->as.number) return x->as.number < y->as.number ? 1 : -1;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return strcmp(y->path, x->path);
}

static void sort(Listing *l) {
    if (l->n) qsort(l->found, l->n, sizeof *l->found, newest_first);
}

// Reads only names: sorts by step, and treats every checkpoint set aside as abandoned.
static Listing list_names(const char *option, const char *folder) {
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
    sort(&l);
    return l;
}

// --------
// the order of the saves

static long long read_noted(const char *option, const char *folder, int *step) {
    const char *path = in_folder(folder, NEWEST);
    long long number = 0;
    FILE *f;
    if (disk_open_stream(path, &f)) die("option %s: %s", option, gpt2_last_error());
    if (!f) return 0;
    if (fscanf(f, NEWEST_TEXT, &number, step) != 2) number = 0;
    if (ferror(f)) die("option %s: %s: %s", option, path, strerror(errno));
    fclose(f);  // opened for reading only, so fclose cannot lose data
    return number;
}

// A checkpoint may be set aside before its successor is saved. Until then it still counts.
static void number(Listing *l) {
    int64_t last = 0;
    for (int i = l->n - 1; i >= 0; i--) {  // ordered by step
        Found *f = &l->found[i];
        SavedRun saved = { .root = NULL };
        if (f->complete && !saved_run_of(&saved, f->path)) f->as = saved.as;
        saved_run_free(&saved);
        if (f->abandoned) f->abandoned = !l->noted_number || f->as.number < l->noted_number;
        if (f->abandoned) continue;
        if (!*f->as.run) f->as.number = last;
        if (f->as.number > last) last = f->as.number;
    }
}

// The recorded newest save was complete. If only older ones remain, it is damaged or has vanished.
static void add_missing(Listing *l) {
    Found f = { .step = l->noted_step, .as.number = l->noted_number, .damaged = 1 }, *same = NULL;
    for (int i = 0; i < l->n; i++) {
        Found *other = &l->found[i];
        if (*other->as.run && other->as.number >= l->noted_number) return;
        if (other->step == l->noted_step && (!other->abandoned || !*other->as.run)) same = other;
    }
    path_in(f.path, l->folder, "step_%08d", f.step);
    if (!same) {
        add_found(l, &f);
    } else if (!*same->as.run) {
        same->as.number = l->noted_number;
        same->damaged = !same->complete;
        same->abandoned = 0;
    }
}

// A run that saves here updates the record before it removes anything, so the listing is complete if the
// record did not change during it. Renames are not recorded, so apparent damage is checked a second time.
Listing checkpoints_in(const char *option, const char *folder) {
    for (int twice = 0;;) {
        int step = -1, damaged = 0;
        const long long noted = read_noted(option, folder, &step);
        Listing l = list_names(option, folder);
        l.noted_number = noted;
        l.noted_step = step;
        number(&l);
        if (read_noted(option, folder, &step) == noted) {
            if (noted) add_missing(&l);
            sort(&l);
            for (int i = l.n - 1; i >= 0; i--) {
                damaged |= l.found[i].damaged;
                if (l.found[i].complete && !l.found[i].abandoned) l.newest = &l.found[i];
            }
            if (twice++ || !damaged) return l;
        }
        free(l.found);
    }
}

int64_t checkpoints_last_number(const Listing *l) {
    int64_t last = l->noted_number;
    for (int i = 0; i < l->n; i++)
        if (l->found[i].as.number > last) last = l->found[i].as.number;
    return last;
}

int checkpoint_check_run(const Listing *l, const Found *f) {
    const Found *newest = l->newest;
    if (f->abandoned || !*f->as.run || !newest || !*newest->as.run) return 0;
    if (!strcmp(f->as.run, newest->as.run)) return 0;
    return gpt2_fail("%s was saved by run %s, but the newest checkpoint, %s, was saved by run %s", f->path,
                     f->as.run, basename(newest->path), newest->as.run);
}

void checkpoints_note(int64_t number, int step) {
    const char *temporary = in_output(NEWEST ".tmp");
    FILE *f = create_file(temporary);
    fprintf(f, NEWEST_TEXT, (long long)number, step);
    commit_file(f, temporary, in_output(NEWEST));
}

// --------
// removing

// A missing file is not an error.
static void remove_file(const char *path) {
    if (remove(path) && errno != ENOENT) print0("warning: %s: %s\n", path, strerror(errno));
}

// Files that a run renames or removes within a moment, unless it is killed.
static const char *const temporary_files[] = {
    "@(main.log|metrics.jsonl|run.json|summary.json|answers.jsonl|inference.json|" TOKENIZER_FILE "|" NEWEST
    ")?(.+([0-9])).tmp",
    "model_+([0-9]).bin.+([0-9a-f]).tmp",
    ".one_folder_+([0-9a-f])",
};

static int is_temporary(const char *name) {
    for (size_t i = 0; i < sizeof temporary_files / sizeof *temporary_files; i++)
        if (!fnmatch(temporary_files[i], name, FNM_EXTMATCH)) return 1;
    return 0;
}

static void remove_temporary_files(void) {
    DIR *dir = opendir(opt.output);
    if (!dir) print0("warning: %s cannot be listed: %s\n", opt.output, strerror(errno));
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (is_temporary(e->d_name)) remove_file(in_output("%s", e->d_name));
    if (dir) closedir(dir);
}

void checkpoints_remove_leftovers(void) {
    if (!folder_is_locked()) return;
    Listing l = checkpoints_in("-o", opt.output);
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->complete || f->damaged) continue;
        if (zero_checkpoint_remove(f->path))
            print0("warning: %s\n", zero_last_error());
        else
            print0("%s: removed, because its save did not finish\n", f->path);
    }
    free(l.found);
    remove_temporary_files();
}

// Removes the folder last. If the run is killed in between, the folder still identifies the files left to
// remove, and a run can resume from it without the model file.
static void remove_checkpoint(const Found *f) {
    remove_file(in_output("model_%08d.bin", f->step));
    // This one exists if a run was killed while setting the checkpoint aside.
    remove_file(in_folder(f->path, "model_%08d.bin", f->step));
    if (zero_checkpoint_remove(f->path)) print0("warning: %s\n", zero_last_error());
}

void checkpoints_prune(int step) {
    Listing l = list_names("-o", opt.output);
    int kept = 0;
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->step > step || f->abandoned) continue;
        const int major = opt.checkpoint_major && f->step % opt.checkpoint_major == 0;
        if (f->complete && (kept++ < opt.checkpoints_keep || major)) continue;
        remove_checkpoint(f);
    }
    free(l.found);
}

// --------
// abandoned branches

static void rename_file(const char *from, const char *to) {
    if (rename(from, to)) die("%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

// Keeps all files. Moves the model file into the folder first, so that no model file is ever without a
// checkpoint.
static void set_aside(const Found *f) {
    const char *model = in_output("model_%08d.bin", f->step);
    char *to = in_output(ABANDONED "%08d", f->step);
    for (int number = 1; file_is_there(to); number++)
        path_in(to, opt.output, ABANDONED "%08d.%d", f->step, number);
    if (file_is_there(model)) rename_file(model, in_folder(f->path, "model_%08d.bin", f->step));
    rename_file(f->path, to);
    print0("the checkpoint of step %d belongs to an abandoned branch; its name is now %s\n", f->step, to);
}

void checkpoints_set_aside(int from, int to, int but) {
    Listing l = list_names("-o", opt.output);
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->complete && !f->abandoned && f->step >= from && f->step <= to && f->step != but) set_aside(f);
    }
    free(l.found);
}

int checkpoint_set_back(const Found *f) {
    const char *to = in_output("step_%08d", f->step);
    if (!strcmp(f->path, to)) return 1;
    if (is_checkpoint(to)) return 0;
    remove_file(in_folder(f->path, "model_%08d.bin", f->step));  // it is written again, next to the folder
    if (zero_checkpoint_remove(to)) {
        print0("warning: %s\n", zero_last_error());
        return 0;
    }
    rename_file(f->path, to);
    return 1;
}
