#include "file_folder.h"
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { OWNER = 160, HOST = 64, OPEN_TRIES = 10, NAME = PATH_MAX + 8 };
#ifdef FILE_FAULTS
long (*file_fault)(file_operation what, size_t bytes);
#endif

// -------- the lock: a small text file that names the process whose states are in the folder

typedef struct {
    char host[HOST];
    int pid;
} file_owner;

static file_owner this_process(void) {
    file_owner o = { .pid = (int)getpid() };
    if (gethostname(o.host, sizeof o.host - 1) || !*o.host) strcpy(o.host, "unknown");
    return o;
}

// Returns 0 or errno.
static int write_owner(int fd) {
    char text[OWNER];
    const file_owner o = this_process();
    int n = snprintf(text, sizeof text, "llmc_zero: host %s pid %d\n", o.host, o.pid);
    errno = ENOSPC;  // after a short write
    return pwrite(fd, text, (size_t)n, 0) == n && !ftruncate(fd, n) ? 0 : errno;
}

// Returns 1 if the file is a lock file of this library.
static int read_owner(int fd, file_owner *o) {
    char text[OWNER] = "";
    if (pread(fd, text, sizeof text - 1, 0) < 0) return 0;
    return sscanf(text, "llmc_zero: host %63s pid %d", o->host, &o->pid) == 2;
}

static int fail_in_use(const char *name, int fd) {
    file_owner other, own = this_process();
    if (!read_owner(fd, &other))
        return FILE_FAIL("give each run a separate folder", "%s: another process uses this file", name);
    if (other.pid == own.pid && !strcmp(other.host, own.host))
        return FILE_FAIL("name each folder once", "%s: this process uses the file already", name);
    return FILE_FAIL("end that run, or give each run a separate folder",
                     "%s: process %d on host %s uses this file", name, other.pid, other.host);
}

static int fail_at_open(const char *name, int error) {
    const int is_full = error == EMFILE || error == ENFILE;
    return FILE_FAIL(is_full ? "raise the limit of open files (ulimit -n)"
                             : "name a folder that this user may write",
                     "%s: the file cannot be opened: %s", name, strerror(error));
}

// Returns 1 if the name still refers to the open file: a run that ends removes its lock file.
static int has_name(const char *name, int fd) {
    struct stat named, opened;
    if (lstat(name, &named) || fstat(fd, &opened)) return 0;
    return named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

static void name_lock(const file_folder *f, char name[NAME]) { snprintf(name, NAME, "%s.lock", f->path); }

// Writes this process into the lock file. A lock file that no process holds was left by a killed run.
static int sign_lock(file_folder *f, const char *name, int fd) {
    struct stat st;
    file_owner before;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || (st.st_size && !read_owner(fd, &before)))
        return FILE_FAIL("remove it, or name another folder",
                         "%s: this file was not left by a run, so it stays unchanged", name);
    f->lock = fd;  // from now on this process must remove it
    int error = write_owner(fd);
    return error ? fail_at_open(name, error) : 0;
}

static int take_lock(file_folder *f) {
    char name[NAME];
    name_lock(f, name);
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        int rc = 0, fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) return fail_at_open(name, errno);
        if (flock(fd, LOCK_EX | LOCK_NB))
            rc = errno == EWOULDBLOCK ? fail_in_use(name, fd) : fail_at_open(name, errno);
        else if (has_name(name, fd))
            rc = sign_lock(f, name, fd);
        else
            rc = 1;  // removed in the meantime
        if (f->lock < 0) close(fd);
        if (rc <= 0) return rc;
    }
    return FILE_FAIL("give each run a separate folder",
                     "%s: other processes keep removing and creating this file", name);
}

// -------- the states

static int check_folder(const char *folder) {
    struct statfs s;
    if (statfs(folder, &s)) {
        const char *what = errno == ENOENT ? "there is no folder" : strerror(errno);
        zero_fail_setting(ZERO_ERR_IO, "offload.nvme", ": %s %s", what, folder);
        return zero_failed_advice("create it, on a disk with room for the model states");
    }
    if ((s.f_type != TMPFS_MAGIC && s.f_type != RAMFS_MAGIC) || !file_allowed(FILE_IN_MEMORY, 1)) return 0;
    return zero_refuse("offload.nvme", " names %s, where files are in memory (%s); name a folder on a disk",
                       folder, s.f_type == TMPFS_MAGIC ? "tmpfs" : "ramfs");
}

// Removes the name first, so that nothing stays on the disk no matter how the process ends.
static int make_nameless(file_folder *f) {
    char name[NAME];
    snprintf(name, sizeof name, "%s.XXXXXX", f->path);
    f->fd = mkostemp(name, O_CLOEXEC);
    if (f->fd < 0) return fail_at_open(name, errno);
    if (!unlink(name)) return 0;
    return FILE_FAIL("name a folder on a local disk", "%s: the file cannot be removed while it is open: %s",
                     name, strerror(errno));
}

static int fail_without_room(const file_folder *f, int64_t bytes, int error) {
    struct statvfs s;
    double room = fstatvfs(f->fd, &s) ? 0 : (double)s.f_bavail * (double)s.f_frsize;
    return FILE_FAIL("make room there, or name another folder",
                     "%s: %.1f MiB for model states cannot be reserved, with %.1f MiB free: %s", f->path,
                     (double)bytes / 1048576, room / 1048576, strerror(error));
}

// For file systems that cannot reserve space: at least checks the free space.
static int reserve_unreserved(const file_folder *f, int64_t bytes) {
    struct statvfs s;
    if (fstatvfs(f->fd, &s)) return errno;
    if ((double)s.f_bavail * (double)s.f_frsize < (double)bytes) return ENOSPC;
    return ftruncate(f->fd, bytes) ? errno : 0;
}

// First checks the process's file size limit, because a write beyond it would kill the process with a signal.
static int reserve(const file_folder *f, int64_t bytes) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < (rlim_t)bytes)
        return FILE_FAIL(f->lock < 0 ? "raise the limit (ulimit -f)"
                                     : "raise the limit (ulimit -f), or name more folders",
                         "%s: the file needs %.1f MiB, but this process may write at most %.1f MiB per file",
                         f->path, (double)bytes / 1048576, (double)limit.rlim_cur / 1048576);
    long allowed = file_allowed(FILE_RESERVE, 1);
    int error = allowed < 0 ? (int)-allowed : fallocate(f->fd, 0, 0, bytes) ? errno : 0;
    if (error == EOPNOTSUPP || error == ENOSYS) error = reserve_unreserved(f, bytes);
    return error ? fail_without_room(f, bytes, error) : 0;
}

// Some file systems accept O_DIRECT but refuse the first read, so this reads the first block.
static int try_direct(file_folder *f) {
    long allowed = file_allowed(FILE_DIRECT, 1);
    if (allowed < 0) return (int)-allowed;
    void *block = aligned_alloc(FILE_ALIGN, FILE_ALIGN);
    if (!block) return ENOMEM;
    ssize_t n = fcntl(f->fd, F_SETFL, O_DIRECT) ? -1 : pread(f->fd, block, FILE_ALIGN, 0);
    int error = n == FILE_ALIGN ? 0 : n < 0 ? errno : EIO;
    free(block);
    return error;
}

static int settle_direct(file_folder *f) {
    f->refused = try_direct(f);
    return f->refused && fcntl(f->fd, F_SETFL, 0) ? fail_at_open(f->path, errno) : 0;
}

int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes) {
    *f = (file_folder){ .fd = -1, .lock = -1 };
    int n = snprintf(f->path, sizeof f->path, "%s/llmc_zero.rank%05d", folder, rank);
    if (n >= (int)sizeof f->path)
        return zero_fail(ZERO_ERR_IO, "the name of folder %.200s... is too long", folder);
    ZERO_TRY(check_folder(folder));
    int rc = take_lock(f);
    if (!rc) rc = make_nameless(f);
    if (!rc) rc = reserve(f, bytes);
    if (!rc) rc = settle_direct(f);
    if (rc) folder_close(f);
    return rc;
}

int folder_take(file_folder *f, int fd, const char *path, int64_t bytes) {
    *f = (file_folder){ .fd = fd, .lock = -1 };
    snprintf(f->path, sizeof f->path, "%s", path);
    int rc = bytes ? reserve(f, bytes) : 0;
    return rc ? rc : settle_direct(f);
}

void folder_close(file_folder *f) {
    char name[NAME];
    if (f->lock < 0) return;
    name_lock(f, name);
    if (f->fd >= 0) close(f->fd);
    if (has_name(name, f->lock)) unlink(name);
    close(f->lock);
    f->lock = -1;
}

int folder_is_gone(const file_folder *f) {
    struct stat st;
    return f->lock < 0 && (fstat(f->fd, &st) || !st.st_nlink);
}
