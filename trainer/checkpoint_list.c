#include "checkpoint_list.h"
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../gpt2/error.h"
#include "../llmc_zero/zero.h"
#include "checkpoint_stored.h"
#include "die.h"
#include "run.h"

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

static void add_found(Listing *l, Found f) {
    if (f.step < 0) return;
    l->found = realloc(l->found, (l->n + 1) * sizeof *l->found);
    if (!l->found) die("out of memory for the checkpoints in %s", l->folder);
    l->found[l->n++] = f;
}

static int has(const char *folder, const char *fmt, int step) {
    char path[OUTPUT_PATH];
    checkpoint_path(path, folder, fmt, step);
    return file_is_there(path);
}

static Found find_new(const char *folder, int step) {
    Found f = { .step = step };
    if (step < 0) return f;
    f.complete = has(folder, "step_%08d/manifest.json", step);
    f.damaged = !f.complete && has(folder, "model_%08d.bin", step);
    return f;
}

static int is_set_aside(const char *name) { return !strncmp(name, ABANDONED, strlen(ABANDONED)); }

static int add_entry(void *listing, const char *name) {
    Listing *l = listing;
    const Found f = find_new(l->folder, step_in(name, "step_"));
    add_found(l, f);
    if (!strcmp(name, HAD_SOME) || is_set_aside(name) || f.damaged) l->had_some = 1;
    return 0;
}

static int newest_first(const void *a, const void *b) {
    const Found *x = a, *y = b;
    return (x->step < y->step) - (x->step > y->step);
}

// Calls fn for each name. A folder that is not there has none. One that cannot be read may have checkpoints,
// so the run ends. Returns the or of what fn has returned.
static int each_name(const char *option, const char *folder, int (*fn)(void *ctx, const char *name),
                     void *ctx) {
    int rc = 0;
    DIR *dir = opendir(folder);
    if (!dir && errno == ENOENT) return 0;
    if (!dir) die("option %s: %s cannot be searched for checkpoints: %s", option, folder, strerror(errno));
    errno = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        rc |= fn(ctx, e->d_name);
        errno = 0;
    }
    if (errno) die("option %s: %s cannot be searched for checkpoints: %s", option, folder, strerror(errno));
    closedir(dir);
    return rc;
}

Listing checkpoints_list(const char *option, const char *folder) {
    Listing l = { .n = 0 };
    if (snprintf(l.folder, sizeof l.folder, "%s", folder) >= OUTPUT_PATH)
        die("option %s: the name is too long", option);
    each_name(option, folder, add_entry, &l);
    if (l.n) qsort(l.found, l.n, sizeof *l.found, newest_first);
    return l;
}

const char *checkpoint_model(int step) {
    static char path[OUTPUT_PATH];
    output_path(path, "model_%08d.bin", step);
    return path;
}

// Splits a path; slashes at its end count for nothing.
static void split(const char *path, char folder[OUTPUT_PATH], char name[64]) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin && path[begin - 1] != '/') begin--;
    snprintf(name, 64, "%.*s", (int)(end - begin), path + begin);
    snprintf(folder, OUTPUT_PATH, "%.*s", begin > 1 ? (int)begin - 1 : 1, begin ? path : ".");
}

// Sets *aside to 1 for the folder of one that was set aside.
static int step_of_name(char name[64], int *aside) {
    *aside = is_set_aside(name);
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

// Its checkpoint is beside it, or, once that was set aside, around it.
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

const char *checkpoint_model_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = checkpoints_list("-e", folder);
    const char *model = NULL;
    for (int i = 0; i < l.n; i++) {
        if (!l.found[i].complete) continue;
        checkpoint_path(path, folder, "model_%08d.bin", l.found[i].step);
        if (!file_is_there(path)) {
            print0("%s: No such file, though its checkpoint is complete; looking for an older one\n", path);
            continue;
        }
        model = path;
        if (checkpoint_check_model(path) >= 0) break;
        model = NULL;
        print0("%s; looking for an older checkpoint\n", gpt2_last_error());
    }
    free(l.found);
    return model;
}

const char *checkpoint_in(const char *folder) {
    static char path[OUTPUT_PATH];
    Listing l = checkpoints_list("--export", folder);
    int newest = 0;
    while (newest < l.n && !l.found[newest].complete) newest++;
    const int any = newest < l.n;
    if (any) checkpoint_path(path, folder, "step_%08d", l.found[newest].step);
    free(l.found);
    return any ? path : NULL;
}

static int visit_listed(const Listing *l, CheckpointVisitor fn, void *ctx) {
    char states[OUTPUT_PATH], model[OUTPUT_PATH];
    int rc = 0;
    for (const Found *f = l->found; f < l->found + l->n; f++) {
        checkpoint_path(states, l->folder, "step_%08d", f->step);
        checkpoint_path(model, l->folder, "model_%08d.bin", f->step);
        rc |= fn(ctx, &(CheckpointPaths){ states, model, f->complete, f->damaged });
    }
    return rc;
}

typedef struct {
    const char *folder;
    CheckpointVisitor fn;
    void *ctx;
} Visit;

static int is_visible(void *none, const char *name) {
    (void)none;
    return *name != '.';
}

// A checkpoint that was set aside was complete.
static int visit_set_aside(void *visit, const char *name) {
    const Visit *v = visit;
    char path[OUTPUT_PATH], model[OUTPUT_PATH];
    if (!is_set_aside(name)) return 0;
    if (snprintf(path, sizeof path, "%s/%s", v->folder, name) >= OUTPUT_PATH)
        die("%.64s...: the name is too long", v->folder);
    if (checkpoint_model_of(model, path)) return 0;
    CheckpointPaths p = { path, model, has(path, "manifest.json", 0), 0 };
    if (!p.complete) p.damaged = each_name("--verify", path, is_visible, NULL);
    return v->fn(v->ctx, &p);
}

int checkpoints_visit(const char *folder, CheckpointVisitor fn, void *ctx) {
    Listing l = checkpoints_list("--verify", folder);
    int rc = visit_listed(&l, fn, ctx);
    free(l.found);
    return rc | each_name("--verify", folder, visit_set_aside, &(Visit){ folder, fn, ctx });
}

// Returns the newest one that is complete, or NULL.
const Found *checkpoints_newest(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].complete) return &l->found[i];
    return NULL;
}
