#include "folder.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../gpt2/disk.h"
#include "options.h"
#include "run.h"

void output_path(char path[OUTPUT_PATH], const char *fmt, ...) {
    int used = snprintf(path, OUTPUT_PATH, "%s/", opt.output);
    if (used >= OUTPUT_PATH) die("option -o: the name is too long");
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(path + used, OUTPUT_PATH - used, fmt, args);
    va_end(args);
    if (length >= OUTPUT_PATH - used) die("option -o: the name is too long");
}

static FILE *opened(int fd, const char *path, const char *mode) {
    FILE *f = fd < 0 ? NULL : fdopen(fd, mode);
    if (!f) die("%s: %s", path, strerror(errno));
    return f;
}

// O_EXCL does not follow a symlink, so an existing file is removed, not written to.
FILE *create_file(const char *path) {
    if (unlink(path) && errno != ENOENT) die("%s: cannot be replaced: %s", path, strerror(errno));
    return opened(open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666), path, "w");
}

void commit_file(FILE *f, const char *temporary, const char *path) {
    int bad = ferror(f) || fflush(f) || fsync(fileno(f));
    bad |= fclose(f) != 0;
    if (!bad) bad = rename(temporary, path);
    int error = errno;
    if (bad) unlink(temporary);
    if (bad) die("%s: not written: %s", path, strerror(error));
    gpt2_check(disk_sync_parent(path));
}

FILE *append_to_file(const char *path) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    return opened(open(path, flags, 0666), path, "a");
}

void try_file(const char *option, const char *path) {
    char temporary[OUTPUT_PATH + 32];
    struct stat st;
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (!lstat(path, &st) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        die("%s: %s exists and is not a regular file; name another one", option, path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || close(fd) || unlink(temporary))
        die("%s: %s cannot be written: %s", option, path, strerror(errno));
}

int file_is_there(const char *path) {
    if (!access(path, F_OK)) return 1;
    if (errno != ENOENT && errno != ENOTDIR) die("%s: %s", path, strerror(errno));
    return 0;
}

// the longest name that a save writes here, such as /abandoned_00000100.1/rank00000-0123456789abcdef.states,
// with the final 0
enum { LONGEST_NAME = 80 };

void make_folder(void) {
    struct stat st;
    if (!opt.output) return;
    if (strlen(opt.output) + LONGEST_NAME > PATH_MAX)
        die("option -o: the name is too long: a path has %d bytes at most, and %d of them are for the names "
            "of "
            "files in this folder",
            PATH_MAX - 1, LONGEST_NAME - 1);
    // a new folder and its contents are lost if the power fails before its name is on disk
    if (!mkdir(opt.output, 0777))
        gpt2_check(disk_sync_parent(opt.output));
    else if (errno != EEXIST)
        die("option -o: %s cannot be made: %s", opt.output, strerror(errno));
    if (!stat(opt.output, &st) && !S_ISDIR(st.st_mode)) die("option -o: %s is not a folder", opt.output);
    if (access(opt.output, W_OK | X_OK))
        die("option -o: %s cannot be written to: %s", opt.output, strerror(errno));
}

// --------
// one folder for all ranks: all see rank 0's files

enum { PAUSE_US = 20000 };

// Rank 0's name for a file that cannot exist yet, on all ranks; "": rank 0 has no folder.
static void agree_on_a_name(char name[64]) {
    uint64_t word;
    memset(name, 0, 64);
    if (run.rank == 0 && opt.output) {
        if (getrandom(&word, sizeof word, 0) != sizeof word) die("no random number: %s", strerror(errno));
        snprintf(name, 64, ".one_folder_%016llx", (unsigned long long)word);
    }
    zero_check(zero_broadcast(run.z, 0, name, 64));
}

static void make_file(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 || close(fd)) die("%s: %s", path, strerror(errno));
}

// NFS shows a file with a delay. The other ranks wait meanwhile, so this polls for less than half of their
// timeout.
static int appears(const char *path) {
    double seconds = opt.zero.comm.timeout_s < 6 ? opt.zero.comm.timeout_s / 2 : 3;
    int looks = (int)(seconds * 1e6 / PAUSE_US);
    while (access(path, F_OK)) {
        if (looks-- <= 0) return 0;
        usleep(PAUSE_US);
    }
    return 1;
}

static const char no_folder[] = "there is no folder (-o)";
static const char *no_checkpoint;  // why a signal does not save a checkpoint; NULL: it does

const char *why_no_checkpoint(void) { return no_checkpoint; }

// Ranks without -n may have different folders, where only a signal would save.
static int note_own_folders(int same) {
    double with = same;
    int rc = zero_sum(run.z, &with, 1);
    if (rc || with == run.ranks) return rc;
    no_checkpoint = "-o is not one folder of all ranks";
    print0("option -o %s: not one folder of all ranks, so a signal saves no checkpoint\n", opt.output);
    return 0;
}

// Some ranks may have no folder, so all of them ask rank 0.
static void compare_folders(void) {
    char name[64], path[OUTPUT_PATH];
    agree_on_a_name(name);
    if (!*name) {
        no_checkpoint = no_folder;
        return;
    }
    if (opt.output) output_path(path, "%s", name);
    if (run.rank == 0) make_file(path);
    int rc = zero_barrier(run.z);
    if (!rc) {
        int same = opt.output && appears(path);
        if (opt.checkpoint_every)
            rc = zero_require_same(run.z,
                                   same ? "-o = the folder that rank 0 writes to" : "-o = another folder");
        else
            rc = note_own_folders(same);
    }
    if (run.rank == 0) unlink(path);
    zero_check(rc);
}

void check_one_folder(void) {
    if (opt.prompts) return;
    if (run.ranks > 1)
        compare_folders();
    else if (!opt.output)
        no_checkpoint = no_folder;
}
