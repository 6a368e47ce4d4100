#include "folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../gpt2/disk.h"
#include "../../gpt2/gpt2_error.h"
#include "../../gpt2/text_file.h"
#include "../options/options.h"
#include "../running/run.h"

char *path_in(char path[OUTPUT_PATH], const char *folder, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int length = snprintf(path, OUTPUT_PATH, "%s/", folder);
    if (length < OUTPUT_PATH) length += vsnprintf(path + length, OUTPUT_PATH - length, fmt, args);
    va_end(args);
    if (length >= OUTPUT_PATH) die("%.64s...: the name is too long", folder);
    return path;
}

void write_to_output(const char *name, Text *t) {
    char *text = text_end(t);
    gpt2_check(text_file_write(in_output("%s", name), text));
    free(text);
}

void copy_to_output(const char *from, const char *name) {
    char bytes[4096];
    disk_file copy;
    FILE *in;
    gpt2_check(disk_open_stream(from, &in));
    if (!in) die("%s: %s", from, strerror(errno));
    int failed = disk_create(&copy, in_output("%s", name));
    for (size_t n; !failed && (n = fread(bytes, 1, sizeof bytes, in)) > 0;)
        failed = disk_write(&copy, bytes, n);
    if (!failed && ferror(in)) failed = gpt2_fail("%s: cannot be read: %s", from, strerror(errno));
    gpt2_check(disk_finish(&copy, failed));
    fclose(in);  // nothing was written
}

size_t last_name(const char *path, size_t *end) {
    *end = strlen(path);
    while (*end > 1 && path[*end - 1] == '/') (*end)--;
    size_t begin = *end;
    while (begin && path[begin - 1] != '/') begin--;
    return begin;
}

int file_is_there(const char *path) {
    if (!access(path, F_OK)) return 1;
    if (errno != ENOENT && errno != ENOTDIR) die("%s: %s", path, strerror(errno));
    return 0;
}

int is_folder(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

void make_folder(void) {
    if (!opt.output) return;
    // If the power fails before a new folder's name is on disk, the folder and its contents are lost.
    if (!mkdir(opt.output, 0777))
        gpt2_check(disk_sync_parent(opt.output));
    else if (errno != EEXIST)
        die("option -o: %s cannot be created: %s", opt.output, strerror(errno));
    if (!access(opt.output, F_OK) && !is_folder(opt.output)) die("option -o: %s is not a folder", opt.output);
    if (access(opt.output, W_OK | X_OK))
        die("option -o: %s cannot be written to: %s", opt.output, strerror(errno));
}

// -------- one folder for all ranks

// NFS may show a new file late. The other ranks wait in the meantime, so this polls for at most half of their
// timeout.
static int appears(const char *name) {
    const char *path = in_output("%s", name);
    const double until = now() + (opt.zero.comm.timeout_s < 6 ? opt.zero.comm.timeout_s / 2 : 3);
    while (access(path, F_OK)) {
        if (now() > until) return 0;
        usleep(20000);
    }
    return 1;
}

static const char *no_checkpoint;  // why no checkpoint can be saved; NULL: one can

const char *why_no_checkpoint(void) { return no_checkpoint; }

// Without -n N, ranks may have different folders; they then save nothing.
static int note_own_folders(int same) {
    double with = same;
    int rc = zero_sum(run.z, &with, 1);
    if (rc || with == run.ranks) return rc;
    no_checkpoint = "-o is not a folder shared by all ranks";
    print0("option -o %s: not a folder shared by all ranks, so no checkpoint is saved\n", opt.output);
    return 0;
}

// Rank 0 creates a file with a new random name, and the others look for it. Some ranks may have no folder, so
// all ranks take part in the collectives.
void check_one_folder(void) {
    char name[64] = "";
    disk_file file = { .f = NULL };
    if (is_answering(&opt)) return;
    if (run.rank == 0 && opt.output && run.ranks > 1) {
        gpt2_check(disk_create(&file, in_output(".one_folder")));
        snprintf(name, sizeof name, "%s", basename(file.temporary));
    }
    if (run.ranks > 1) zero_check(zero_broadcast(run.z, 0, name, sizeof name));
    if (run.ranks > 1 ? !*name : !opt.output) no_checkpoint = "no folder was given (-o)";
    if (!*name) return;
    const int same = opt.output && appears(name);
    const char *where = same ? "-o = the folder that rank 0 writes to" : "-o = another folder";
    const int rc = opt.checkpoint_every > 0 ? zero_require_same(run.z, where) : note_own_folders(same);
    disk_finish(&file, 1);  // removes it
    zero_check(rc);
}

// -------- the lock

#define LOCK_FILE "run.lock"

static char refusal[1024 + OUTPUT_PATH];  // "": none
static int held = -1;                     // descriptor of the locked file; -1: none

#define REFUSE(...) (void)snprintf(refusal, sizeof refusal, "option -o: " __VA_ARGS__)

// The run that holds the lock has written "host a, process 123" to the file.
static void refuse_second_run(int fd) {
    char holder[300] = "";
    if (pread(fd, holder, sizeof holder - 1, 0) <= 0)
        strcpy(holder, "its process has not written its name yet");
    holder[strcspn(holder, "\n")] = 0;
    REFUSE("%s: another run is using this folder (%s); wait until it ends, or give this run another folder",
           opt.output, holder);
}

static void write_holder(int fd, const char *path) {
    char host[256] = "", line[320];
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "unknown");
    int length = snprintf(line, sizeof line, "host %s, process %ld\n", host, (long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, line, (size_t)length, 0) != length)
        REFUSE("%s: %s", path, strerror(errno));
}

// The descriptor stays open, and the lock held, until the process ends. The run never removes the file:
// another process may already have opened it, and would then lock a file that no longer has a name.
void lock_folder(void) {
    struct stat st;
    if (!opt.output || run.rank != 0) return;
    const char *path = in_output(LOCK_FILE);
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st)) {
        REFUSE("%s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        REFUSE("%s: not a regular file", path);
    } else if (!flock(fd, LOCK_EX | LOCK_NB)) {
        held = fd;
        write_holder(fd, path);
    } else if (errno == EWOULDBLOCK) {
        refuse_second_run(fd);
    } else {
        print0("warning: %s: this file system has no locks (%s), so a second run in this folder will "
               "not be detected\n",
               path, strerror(errno));
    }
}

void check_folder_lock(void) {
    if (*refusal) die("%s", refusal);
}

int folder_is_locked(void) { return held >= 0; }
