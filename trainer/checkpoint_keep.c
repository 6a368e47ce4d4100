#include "checkpoint_keep.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../llmc_zero/zero.h"
#include "checkpoint_list.h"
#include "options.h"
#include "run.h"

// --------
// removing

void checkpoint_remove_file(const char *path) {
    if (remove(path) && errno != ENOENT) print0("warning: %s: %s\n", path, strerror(errno));
}

// Removes the files whose names have this prefix and suffix.
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
        checkpoint_remove_file(path);
    }
    if (dir) closedir(dir);
}

void checkpoint_remove_temporary(int step) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model_%08d.bin.", step);
    remove_files(prefix, ".tmp");
}

// The folder goes last: after a kill in between, the rest is found by it, and it can be resumed without the
// model file.
static void remove_checkpoint(const Found *f) {
    char path[OUTPUT_PATH], inside[OUTPUT_PATH];
    output_path(path, "%s", f->name);
    output_path(inside, "%s/model_%08d.bin", f->name, f->step);
    checkpoint_remove_temporary(f->step);
    checkpoint_remove_file(checkpoint_model(f->step));
    checkpoint_remove_file(inside);  // it was about to be set aside
    if (zero_checkpoint_remove(path)) print0("warning: %s\n", zero_last_error());
}

void checkpoints_prune(int step) {
    Listing l = checkpoints_list("-o", opt.output);
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
// another branch

static void move(const char *from, const char *to) {
    if (rename(from, to)) die("%s: cannot be renamed to %s: %s", from, to, strerror(errno));
}

// All its files are kept. Its model file is moved into its folder first, so that no model file is ever
// without a checkpoint.
static void set_aside(const Found *f) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH], inside[OUTPUT_PATH];
    output_path(to, ABANDONED "%08d", f->step);
    for (int number = 1; file_is_there(to); number++) output_path(to, ABANDONED "%08d.%d", f->step, number);
    output_path(from, "%s", f->name);
    output_path(inside, "%s/model_%08d.bin", f->name, f->step);
    if (file_is_there(checkpoint_model(f->step))) move(checkpoint_model(f->step), inside);
    move(from, to);
    print0("the checkpoint of step %d is not of the course that this run goes on with; it is %s now\n",
           f->step, to);
}

void checkpoints_set_aside(int from, int to, int but) {
    Listing l = checkpoints_list("-o", opt.output);
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->complete && !f->abandoned && f->step >= from && f->step <= to && f->step != but) set_aside(f);
    }
    free(l.found);
}

int checkpoint_set_back(const Found *f) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH], path[OUTPUT_PATH];
    output_path(from, "%s", f->name);
    output_path(to, "step_%08d", f->step);
    output_path(path, "step_%08d/manifest.json", f->step);
    if (!strcmp(from, to)) return 1;
    if (file_is_there(path)) return 0;
    output_path(path, "%s/model_%08d.bin", f->name, f->step);
    checkpoint_remove_file(path);  // it is written again at its usual place
    if (zero_checkpoint_remove(to)) {
        print0("warning: %s\n", zero_last_error());
        return 0;
    }
    move(from, to);
    return 1;
}
