#include "folder_lock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "folder.h"
#include "options.h"
#include "run.h"

#define LOCK_FILE "run.lock"

static char refusal[1024 + OUTPUT_PATH];  // "": none
static int held = -1;                     // descriptor of the file that this run has locked; -1: none

static void refuse(const char *path, const char *why) {
    snprintf(refusal, sizeof refusal, "option -o: %s: %s", path, why);
}

// The holder's text: "host a, process 123".
static void name_holder(char *holder, size_t size, int fd) {
    ssize_t n = pread(fd, holder, size - 1, 0);
    holder[n > 0 ? n : 0] = 0;
    holder[strcspn(holder, "\n")] = 0;
    for (char *c = holder; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
    if (!*holder) snprintf(holder, size, "a process that has not written its name yet");
}

static void refuse_second_run(int fd) {
    char holder[300], why[600];
    name_holder(holder, sizeof holder, fd);
    snprintf(why, sizeof why,
             "another run is using this folder (%s); wait for its end, or give this run a folder of its own",
             holder);
    refuse(opt.output, why);
}

static void write_holder(int fd, const char *path) {
    char host[256] = "", line[320];
    if (gethostname(host, sizeof host - 1)) snprintf(host, sizeof host, "unknown");
    int length = snprintf(line, sizeof line, "host %s, process %ld\n", host, (long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, line, (size_t)length, 0) != length) refuse(path, strerror(errno));
}

static int has_no_locks(int error) {
    return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

// The descriptor stays open until the process ends, and holds the lock until then. The file itself is never
// removed, since another process may already have opened it, and would then wait for the lock of a file
// without a name.
void lock_folder(void) {
    char path[OUTPUT_PATH];
    struct stat st;
    if (!opt.output || run.rank != 0) return;
    output_path(path, "%s", LOCK_FILE);
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st)) {
        refuse(path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        refuse(path, "not a regular file");
    } else if (!flock(fd, LOCK_EX | LOCK_NB)) {
        held = fd;
        write_holder(fd, path);
    } else if (errno == EWOULDBLOCK) {
        refuse_second_run(fd);
    } else if (has_no_locks(errno)) {
        print0("warning: %s: this file system has no locks (%s): nothing stops a second run in this folder\n",
               path, strerror(errno));
    } else {
        refuse(path, strerror(errno));
    }
}

void check_folder_lock(void) {
    if (*refusal) die("%s", refusal);
}

// If the file is removed, another run locks a new one. If none has yet, this run does.
void check_lock_is_held(void) {
    char path[OUTPUT_PATH];
    struct stat ours, st;
    if (held < 0) return;
    output_path(path, "%s", LOCK_FILE);
    const int removed = lstat(path, &st) != 0;
    if (removed && errno != ENOENT) die("%s: %s", path, strerror(errno));
    if (fstat(held, &ours)) die("%s: %s", path, strerror(errno));
    if (!removed && st.st_ino == ours.st_ino && st.st_dev == ours.st_dev) return;
    close(held);  // nothing is written through it
    held = -1;
    lock_folder();
    if (!removed && !*refusal)
        refuse(path, "it was removed, and another run has used this folder since; -y 1 goes on from what it "
                     "has now");
    check_folder_lock();
}
