#include "file_folder.h"
#include "../error.h"
#include "file.h"
#include "file_fault.h"
#include "../clock.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { FORMAT = 1, HOST = 64, OPEN_TRIES = 10, LOCK_FOLDER_S = 10 };
long (*file_fault)(file_operation what, size_t bytes);

// -------- the first block: whose file it is, in readable text

typedef struct {
    char host[HOST];
    int pid;
    int64_t bytes;
} file_owner;

static file_owner this_process(int64_t bytes) {
    file_owner o = { .pid = (int)getpid(), .bytes = bytes };
    if (gethostname(o.host, sizeof o.host - 1) || !*o.host) strcpy(o.host, "unknown");
    return o;
}

static int write_owner(int fd, const file_owner *o) {
    char block[FILE_ALIGN] = "";
    snprintf(block, sizeof block, "llmc_zero states %d\nhost %s pid %d bytes %" PRId64 "\n", FORMAT, o->host,
             o->pid, o->bytes);
    ssize_t n = pwrite(fd, block, sizeof block, 0);
    if (n != (ssize_t)sizeof block) return n < 0 ? -errno : -EIO;
    return fdatasync(fd) ? -errno : 0;  // A file that survives a power failure is recognised too.
}

// Returns 1 if the file is one of ours.
static int read_owner(int fd, file_owner *o) {
    char block[FILE_ALIGN + 1] = "";
    int format = 0;
    if (pread(fd, block, FILE_ALIGN, 0) < 0) return 0;
    int fields = sscanf(block, "llmc_zero states %d host %63s pid %d bytes %" SCNd64, &format, o->host,
                        &o->pid, &o->bytes);
    return fields == 4 && format == FORMAT;
}

// -------- the lock

static int fail_in_use(const file_folder *f, int fd) {
    file_owner other, own = this_process(0);
    if (!read_owner(fd, &other)) {
        zero_fail(ZERO_ERR_IO, "%s: another process uses this file", f->path);
        return zero_failed_advice("give each run a folder of its own");
    }
    if (other.pid == own.pid && !strcmp(other.host, own.host)) {
        zero_fail(ZERO_ERR_IO, "%s: this process uses the file already", f->path);
        return zero_failed_advice("name each folder once");
    }
    zero_fail(ZERO_ERR_IO, "%s: process %d on host %s uses this file", f->path, other.pid, other.host);
    return zero_failed_advice("end that run, or give each run a folder of its own");
}

// Returns 1 if the file with that name is still the one that is open: a run that ends removes its own.
static int has_name(const char *path, int fd) {
    struct stat named, opened;
    if (lstat(path, &named) || fstat(fd, &opened)) return 0;
    return named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

static int fail_at_open(const file_folder *f, const char *folder, int error) {
    if (error == ENOENT) {
        zero_fail(ZERO_ERR_IO, "%s: there is no folder %s", f->path, folder);
        return zero_failed_advice("create it, on a disk with room for the model states");
    }
    if (error == ELOOP) {
        zero_fail(ZERO_ERR_IO, "%s: a symbolic link is there, and stays as it is", f->path);
        return zero_failed_advice("remove it, or name another folder");
    }
    zero_fail(ZERO_ERR_IO, "%s: the file for model states does not open: %s", f->path, strerror(error));
    return zero_failed_advice("name a folder that this user may write");
}

// Opens and locks the file, new or not.
static int open_locked(file_folder *f, const char *folder) {
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        int fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0) return fail_at_open(f, folder, errno);
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            int rc = errno == EWOULDBLOCK ? fail_in_use(f, fd) : fail_at_open(f, folder, errno);
            close(fd);
            return rc;
        }
        if (has_name(f->path, fd)) {
            f->fd = fd;
            return 0;
        }
        close(fd);
    }
    zero_fail(ZERO_ERR_IO, "%s: the file is removed and created again by others", f->path);
    return zero_failed_advice("give each run a folder of its own");
}

// -------- its space

// -------- what killed runs have left

// Files are opened and leftovers removed under a lock on the folder. So no rank meets a file that another one
// has locked only to look at it, and a rank that comes later finds the space free. Returns a descriptor, or
// -1 where folders cannot be locked, as on NFS, or others keep it too long.
static int lock_folder(const char *folder) {
    double until = clock_now() + LOCK_FOLDER_S;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || clock_now() >= until) {
            close(fd);
            return -1;
        }
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return fd;
}

// A file of ours that nobody has locked belongs to a run that was killed. One of another host stays: where
// hosts share a folder they may not see each other's locks.
static void remove_leftover(const char *path) {
    struct stat st;
    file_owner own = this_process(0), other;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    int is_left = !fstat(fd, &st) && S_ISREG(st.st_mode) && !flock(fd, LOCK_EX | LOCK_NB) &&
                  read_owner(fd, &other) && !strcmp(other.host, own.host) && has_name(path, fd);
    if (is_left) unlink(path);
    close(fd);
}

// What a run on more ranks has left is not taken over by any rank of this one, so it is removed.
static void remove_leftovers(const file_folder *f, const char *folder) {
    char path[PATH_MAX];
    const struct dirent *entry;
    DIR *list = opendir(folder);
    if (!list) return;
    while ((entry = readdir(list))) {
        int n = snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (n >= (int)sizeof path || !strcmp(path, f->path)) continue;
        if (!fnmatch("llmc_zero.rank[0-9]*.states", entry->d_name, 0)) remove_leftover(path);
    }
    closedir(list);
}

// -------- room for the states

static int fail_without_room(const file_folder *f, int64_t bytes, int error) {
    struct statvfs s;
    double room = statvfs(f->path, &s) ? 0 : (double)s.f_bavail * (double)s.f_frsize;
    zero_fail(ZERO_ERR_IO, "%s: %.1f MiB for model states cannot be reserved, with %.1f MiB free: %s",
              f->path, (double)bytes / 1048576, room / 1048576, strerror(error));
    return zero_failed_advice("make room there, or name another folder");
}

// Where the file system cannot reserve, its free space is compared at least.
static int reserve_unreserved(const file_folder *f, int64_t bytes) {
    struct statvfs s;
    if (fstatvfs(f->fd, &s)) return errno;
    if ((double)s.f_bavail * (double)s.f_frsize < (double)bytes) return ENOSPC;
    return ftruncate(f->fd, bytes) ? errno : 0;
}

// What a killed run has left is dropped first, so all is 0. A file that is larger than the process may write
// would end the process by a signal.
static int reserve(const file_folder *f, int64_t bytes) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < (rlim_t)bytes) {
        zero_fail(ZERO_ERR_IO, "%s: the file needs %.1f MiB, and this process may write %.1f MiB to a file",
                  f->path, (double)bytes / 1048576, (double)limit.rlim_cur / 1048576);
        return zero_failed_advice("raise the limit (ulimit -f)%s", f->opened ? ", or name more folders" : "");
    }
    long allowed = file_allowed(FILE_RESERVE, 1);
    int error = allowed < 0 ? (int)-allowed : ftruncate(f->fd, FILE_ALIGN) ? errno : 0;
    if (!error && fallocate(f->fd, 0, 0, bytes)) error = errno;
    if (error == EOPNOTSUPP || error == ENOSYS) error = reserve_unreserved(f, bytes);
    return error ? fail_without_room(f, bytes, error) : 0;
}

// Some file systems take the flag and refuse the first read, so the first block is read.
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
    f->direct = !f->refused;
    if (!f->direct && fcntl(f->fd, F_SETFL, 0)) return fail_at_open(f, "", errno);
    return 0;
}

static int make_ready(file_folder *f, int64_t bytes) {
    struct stat st;
    file_owner own = this_process(bytes), before;
    if (fstat(f->fd, &st)) return fail_at_open(f, "", errno);
    if (!S_ISREG(st.st_mode) || (st.st_size && !read_owner(f->fd, &before))) {
        zero_fail(ZERO_ERR_IO, "%s: something is there that no run has left, and stays as it is", f->path);
        return zero_failed_advice("remove it, or name another folder");
    }
    f->opened = 1;  // From here on the file is ours to remove.
    int rc = write_owner(f->fd, &own);
    if (rc) return fail_without_room(f, bytes, -rc);
    ZERO_TRY(reserve(f, bytes));
    return settle_direct(f);
}

int folder_open(file_folder *f, const char *folder, int rank, int64_t bytes) {
    *f = (file_folder){ .fd = -1 };
    int n = snprintf(f->path, sizeof f->path, "%s/llmc_zero.rank%05d.states", folder, rank);
    if (n >= (int)sizeof f->path)
        return zero_fail(ZERO_ERR_IO, "the name of folder %.200s... is too long", folder);
    int lock = lock_folder(folder);
    int rc = open_locked(f, folder);
    if (!rc && lock >= 0) remove_leftovers(f, folder);
    if (lock >= 0) close(lock);
    if (!rc) rc = make_ready(f, bytes);
    if (rc) folder_close(f);
    return rc;
}

int folder_take(file_folder *f, int fd, const char *path, int64_t bytes) {
    *f = (file_folder){ .fd = fd, .given = 1 };
    snprintf(f->path, sizeof f->path, "%s", path);
    int rc = bytes ? reserve(f, bytes) : 0;
    if (!rc) rc = settle_direct(f);
    if (rc) folder_close(f);
    return rc;
}

void folder_unlink(file_folder *f) {
    if (f->opened && has_name(f->path, f->fd)) unlink(f->path);
}

// The name goes before the lock does.
void folder_close(file_folder *f) {
    if (f->fd < 0) return;
    folder_unlink(f);
    if (!f->given) close(f->fd);
    f->fd = -1;
    f->opened = 0;
}

int folder_is_gone(const file_folder *f) {
    struct stat st;
    return fstat(f->fd, &st) || !st.st_nlink;
}
