#include "checkpoint_keep.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../llmc_zero/zero.h"
#include "checkpoint_list.h"
#include "die.h"
#include "options.h"
#include "run.h"

// --------
// removing

void checkpoint_remove_file(const char *path) {
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
        checkpoint_remove_file(path);
    }
    if (dir) closedir(dir);
}

void checkpoint_remove_temporary(int step) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model_%08d.bin.", step);
    remove_files(prefix, ".tmp");
}

// The folder goes last: what a death in between leaves is found by it, and it resumes without the model file.
static void remove_checkpoint(const Found *f) {
    char path[OUTPUT_PATH];
    checkpoint_path(path, opt.output, "step_%08d", f->step);
    checkpoint_remove_temporary(f->step);
    checkpoint_remove_file(checkpoint_model(f->step));
    if (zero_checkpoint_remove(path)) print0("warning: %s\n", zero_last_error());
}

void checkpoints_prune(int step) {
    Listing l = checkpoints_list("-o", opt.output);
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
// another course

static void move_to(const char *folder, const char *name) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH + 300];
    output_path(from, "%s", name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    if (rename(from, to) && errno != ENOENT) die("%s: cannot be moved to %s: %s", from, to, strerror(errno));
}

// It keeps all that it has, under a name that -y 1 does not look at.
static void set_aside(const Found *f) {
    char from[OUTPUT_PATH], to[OUTPUT_PATH], model[64];
    checkpoint_path(to, opt.output, ABANDONED "%08d", f->step);
    for (int number = 1; file_is_there(to); number++) output_path(to, ABANDONED "%08d.%d", f->step, number);
    checkpoint_path(from, opt.output, "step_%08d", f->step);
    if (rename(from, to)) die("%s: cannot be renamed to %s: %s", from, to, strerror(errno));
    snprintf(model, sizeof model, "model_%08d.bin", f->step);
    move_to(to, model);
    print0("the checkpoint of step %d is not of the course that this run goes on with; it is %s now\n",
           f->step, to);
}

void checkpoints_set_aside(int from, int to, int but) {
    Listing l = checkpoints_list("-o", opt.output);
    for (int i = 0; i < l.n; i++) {
        const Found *f = &l.found[i];
        if (f->complete && f->step >= from && f->step <= to && f->step != but) set_aside(f);
    }
    free(l.found);
}
