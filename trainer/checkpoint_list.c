#include "checkpoint_list.h"
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/disk.h"
#include "../gpt2/error.h"
#include "../llmc_zero/zero.h"
#include "die.h"
#include "run.h"
#include "saved_run.h"

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
    checkpoint_path(manifest, l->folder, "step_%08d/manifest.json", step);
    add_found(l, step, 0, file_is_there(manifest));
}

static int newest_first(const void *a, const void *b) {
    const Found *x = a, *y = b;
    if (x->step != y->step) return (x->step < y->step) - (x->step > y->step);
    return x->old - y->old;
}

// A folder that is not there has no checkpoints. One that cannot be read may have some, so the run ends.
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
    checkpoint_path(checkpoint, folder, "step_%08d", step);
    checkpoint_path(model, folder, "model_%08d.bin", step);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", checkpoint);
    if (!file_is_there(manifest)) return 1;
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
    char *ending = strstr(name, ".bin");
    if (!ending || ending[4]) return 1;
    *ending = 0;
    int step = step_in(name, "model_");
    return step < 0 ? 1 : check_model_file(folder, step);
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
        if (check_model_file(folder, l.found[i].step) >= 0) break;
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
    if (any)
        checkpoint_path(path, folder, l.found[newest].old ? "model_%08d.bin" : "step_%08d",
                        l.found[newest].step);
    free(l.found);
    return any ? path : NULL;
}

// Ranks that have saved an old state file; docs/formats.md has its header. 1 if it cannot be read, which is
// found when it is verified.
static int ranks_of_old(const char *path) {
    int32_t header[4] = { 0 };
    int64_t bytes;
    int fd, failed = disk_open(path, &fd, &bytes);
    if (failed) return 1;
    failed = disk_read(fd, path, 0, sizeof header, header);
    close(fd);  // nothing was written
    return !failed && header[3] > 0 && header[3] <= 99999 ? header[3] : 1;
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
    Listing l = checkpoints_list("--verify", folder);
    char states[OUTPUT_PATH], model[OUTPUT_PATH];
    int rc = 0;
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        checkpoint_path(states, folder, "step_%08d", f->step);
        checkpoint_path(model, folder, "model_%08d.bin", f->step);
        if (f->old)
            rc |= visit_old(folder, f->step, model, fn, ctx);
        else
            rc |= fn(ctx, &(CheckpointPaths){ states, model, f->complete });
    }
    free(l.found);
    return rc;
}

// Returns the newest one that is complete, or NULL.
const Found *checkpoints_newest(const Listing *l) {
    for (int i = 0; i < l->n; i++)
        if (l->found[i].complete) return &l->found[i];
    return NULL;
}
