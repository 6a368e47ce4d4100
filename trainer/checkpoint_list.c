#include "checkpoint_list.h"
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/disk.h"
#include "../gpt2/gpt2_error.h"
#include "../llmc_zero/zero.h"
#include "checkpoint_stored.h"
#include "run.h"

// --------
// names

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

void checkpoint_path(char path[OUTPUT_PATH], const char *folder, const char *fmt, int step) {
    char name[64];
    snprintf(name, sizeof name, fmt, step);
    if (snprintf(path, OUTPUT_PATH, "%s/%s", folder, name) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", folder);
}

static int has(const char *folder, const char *fmt, int step) {
    char path[OUTPUT_PATH];
    checkpoint_path(path, folder, fmt, step);
    return file_is_there(path);
}

// Splits a path; ignores slashes at its end.
static void split(const char *path, char folder[OUTPUT_PATH], char name[64]) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/') begin--;
    snprintf(name, 64, "%.*s", (int)(end - begin), path + begin);
    snprintf(folder, OUTPUT_PATH, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin ? path : ".");
}

// Sets *aside to 1 for the folder of a checkpoint that was set aside.
static int step_of_name(char name[64], int *aside) {
    *aside = !strncmp(name, ABANDONED, strlen(ABANDONED));
    if (*aside) name[strcspn(name, ".")] = 0;  // abandoned_%08d.1
    return step_in(name, *aside ? ABANDONED : "step_");
}

int checkpoint_step_of(const char *folder) {
    char parent[OUTPUT_PATH], name[64];
    int aside;
    split(folder, parent, name);
    return step_of_name(name, &aside);
}

int checkpoint_model_of(char path[OUTPUT_PATH], const char *folder) {
    char parent[OUTPUT_PATH], name[64];
    int aside;
    split(folder, parent, name);
    const int step = step_of_name(name, &aside);
    if (step < 0) return -1;
    checkpoint_path(path, aside ? folder : parent, "model_%08d.bin", step);
    return 0;
}

// --------
// what is in a folder

void checkpoint_folder(char path[OUTPUT_PATH], const Listing *l, const Found *f) {
    if (snprintf(path, OUTPUT_PATH, "%s/%s", l->folder, f->name) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", l->folder);
}

int checkpoint_is_there(const Listing *l, const Found *f) {
    char path[OUTPUT_PATH];
    checkpoint_folder(path, l, f);
    return has(path, "manifest.json", 0);
}

static void add_found(Listing *l, const Found *f) {
    l->found = realloc(l->found, (l->n + 1) * sizeof *l->found);
    if (!l->found) die("out of memory for the checkpoints in %s", l->folder);
    l->found[l->n++] = *f;
}

// The model file is written after the manifest and removed before it. Both may have appeared since the
// manifest was looked for.
static void look_at(const Listing *l, Found *f) {
    char folder[OUTPUT_PATH], model[OUTPUT_PATH];
    f->complete = checkpoint_is_there(l, f);
    if (f->complete) return;
    checkpoint_folder(folder, l, f);
    if (checkpoint_model_of(model, folder)) return;
    if (!f->abandoned && !file_is_there(model)) return;
    f->complete = checkpoint_is_there(l, f);
    f->damaged = !f->complete;
}

static void add_entry(Listing *l, const char *name) {
    char copy[64];
    Found f = { .step = -1 };
    if (!strcmp(name, NEWEST)) l->had_some = 1;
    if (strlen(name) >= sizeof f.name) return;
    strcpy(f.name, name);
    strcpy(copy, name);
    f.step = step_of_name(copy, &f.abandoned);
    if (f.step < 0) return;
    look_at(l, &f);
    l->had_some |= f.abandoned | f.damaged;
    add_found(l, &f);
}

static int newest_first(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->as.number != y->as.number) return x->as.number < y->as.number ? 1 : -1;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return strcmp(y->name, x->name);
}

static void sort(Listing *l) {
    if (l->n) qsort(l->found, l->n, sizeof *l->found, newest_first);
}

Listing checkpoints_list(const char *option, const char *folder) {
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

static Newest read_noted(const char *option, const char *folder) {
    char path[OUTPUT_PATH];
    Newest n = { 0, -1 };
    checkpoint_path(path, folder, NEWEST, 0);
    FILE *f = fopen(path, "r");
    if (!f && (errno == ENOENT || errno == ENOTDIR)) return n;
    if (f && fscanf(f, NEWEST_TEXT, &n.number, &n.step) != 2) n = (Newest){ 0, -1 };
    if (!f || ferror(f)) die("option %s: %s: %s", option, path, strerror(errno));
    fclose(f);  // nothing was written
    return n;
}

// "run" stays empty if it cannot be read.
static void read_as(const Listing *l, Found *f) {
    char path[OUTPUT_PATH], *text = NULL;
    checkpoint_folder(path, l, f);
    if (zero_checkpoint_text(path, &text) || saved_run_as(text, &f->as)) f->as = (SavedAs){ .number = 0 };
    free(text);
}

// A checkpoint is set aside before or after its successor is saved. Until its successor is saved it counts.
static void number(Listing *l) {
    int64_t last = 0;
    for (int i = l->n - 1; i >= 0; i--) {  // in the order of steps
        Found *f = &l->found[i];
        if (f->complete) read_as(l, f);
        if (f->abandoned) f->abandoned = !l->noted.number || f->as.number < l->noted.number;
        if (f->abandoned) continue;
        if (!*f->as.run) f->as.number = last;
        if (f->as.number > last) last = f->as.number;
    }
}

// The recorded newest save was complete, so if all that remain are older, it is damaged or has vanished.
static void add_missing(Listing *l) {
    Found f = { .step = l->noted.step, .as.number = l->noted.number, .damaged = 1 }, *same = NULL;
    for (int i = 0; i < l->n; i++) {
        Found *other = &l->found[i];
        if (*other->as.run && other->as.number >= l->noted.number) return;
        if (other->step == l->noted.step && (!other->abandoned || !*other->as.run)) same = other;
    }
    snprintf(f.name, sizeof f.name, "step_%08d", f.step);
    if (!same) {
        add_found(l, &f);
    } else if (!*same->as.run) {
        same->as.number = l->noted.number;
        same->damaged = !same->complete;
        same->abandoned = 0;
    }
}

static int has_damage(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].damaged) return 1;
    return 0;
}

// A run that saves here records that before it removes anything, so the listing is complete if the record did
// not change meanwhile. It renames without a record, so what seems damaged is looked at twice.
Listing checkpoints_in_order(const char *option, const char *folder) {
    for (int twice = 0;;) {
        const Newest noted = read_noted(option, folder);
        Listing l = checkpoints_list(option, folder);
        l.noted = noted;
        number(&l);
        if (read_noted(option, folder).number == noted.number) {
            if (noted.number) add_missing(&l);
            sort(&l);
            if (twice++ || !has_damage(&l)) return l;
        }
        free(l.found);
    }
}

const Found *checkpoints_newest(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].complete && !l->found[i].abandoned) return &l->found[i];
    return NULL;
}

int64_t checkpoints_last_number(const Listing *l) {
    int64_t last = l->noted.number;
    for (int i = 0; i < l->n; i++)
        if (l->found[i].as.number > last) last = l->found[i].as.number;
    return last;
}

int checkpoint_check_run(const Listing *l, const Found *f) {
    const Found *newest = checkpoints_newest(l);
    if (f->abandoned || !*f->as.run || !newest || !*newest->as.run) return 0;
    if (!strcmp(f->as.run, newest->as.run)) return 0;
    return gpt2_fail("%s/%s was saved by run %s, and %s, the newest, by run %s", l->folder, f->name,
                     f->as.run, newest->name, newest->as.run);
}

// --------
// one of them

const char *checkpoint_model(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "model_%08d.bin", step);
    return path;
}

// Its checkpoint is beside it or, after it was set aside, the folder around it.
int checkpoint_check_model(const char *path) {
    char folder[OUTPUT_PATH], name[64], checkpoint[OUTPUT_PATH];
    split(path, folder, name);
    char *ending = strstr(name, ".bin");
    if (!ending || ending[4]) return 1;
    *ending = 0;
    const int step = step_in(name, "model_");
    if (step < 0) return 1;
    if (has(folder, "step_%08d/manifest.json", step)) {
        checkpoint_path(checkpoint, folder, "step_%08d", step);
        return checkpoint_compare_model(checkpoint, path);
    }
    return has(folder, "manifest.json", step) ? checkpoint_compare_model(folder, path) : 1;
}

// Returns 1 with the model file open if it can be used; -1: it has been removed meanwhile.
static int take_model(const Listing *l, const Found *f, char path[OUTPUT_PATH], int *fd) {
    char folder[OUTPUT_PATH];
    int64_t bytes;
    checkpoint_folder(folder, l, f);
    if (!f->complete || f->abandoned || checkpoint_model_of(path, folder)) return 0;
    if (!file_is_there(path)) {
        if (!checkpoint_is_there(l, f)) return -1;
        print0("%s: No such file, though its checkpoint is complete; looking for an older one\n", path);
        return 0;
    }
    if (!disk_open(path, fd, &bytes)) {
        if (checkpoint_check_model(path) >= 0) return 1;
        close(*fd);  // nothing was written
    }
    if (!file_is_there(path) || !checkpoint_is_there(l, f)) return -1;
    print0("%s; looking for an older checkpoint\n", gpt2_last_error());
    return 0;
}

// A run in this folder removes older ones only after the model file of a newer one exists.
const char *checkpoint_model_in(const char *folder, int *fd) {
    static char path[OUTPUT_PATH];
    int taken;
    do {
        Listing l = checkpoints_in_order("-e", folder);
        taken = 0;
        for (int i = 0; i < l.n && !taken; i++) taken = take_model(&l, &l.found[i], path, fd);
        free(l.found);
    } while (taken < 0);
    return taken ? path : NULL;
}

const char *checkpoint_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = checkpoints_in_order("--export", folder);
    const Found *newest = checkpoints_newest(&l);
    if (newest) checkpoint_folder(path, &l, newest);
    free(l.found);
    return newest ? path : NULL;
}
