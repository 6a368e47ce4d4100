// An LD_PRELOAD library that can make calls on $DISK_FOLDER and its contents fail, and can record them.
//   DISK_FAIL=KIND:N:ERRNO       the N-th call of this kind fails; with N+, all later ones too
//   DISK_FAIL=KIND:N:short       the N-th read or write transfers half of its bytes
//   DISK_FAIL=KIND:N:kill        SIGKILL ends the process instead of the N-th call
//   DISK_FAIL=KIND:N:ERRNO:TEXT  counts only calls on paths that contain TEXT
//   DISK_RANK=1                  affects only rank 1
//   DISK_CALLS=FILE              appends a line KIND PATH for each call, or with DISK_FAIL each failed call
//   DISK_RECORD=FILE             appends the record that record.h describes
//   DISK_FREE=BYTES              statvfs reports this much space
//   DISK_HOLD=TEXT:FILE          writes to paths that contain TEXT wait until FILE exists
// The kinds are the names passed to fails and fault below: stat is any call that only queries, and malloc
// and getrandom are calls by the program itself. fopen returns a stream that uses this file's calls, because
// the C library's streams would bypass them. io_uring bypasses them too.
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "record.h"

enum { MOST_FDS = 1024, MOST_PATH = 2 * PATH_MAX, SHORT = -1, KILL = -2 };

static struct {
    const char *folder, *calls;
    char held[64], until[PATH_MAX];  // from DISK_HOLD
    char kind[16], text[64];
    long nth, seen;
    int error;    // errno; SHORT; KILL
    int onwards;  // 1: later calls fail too
    int record;   // file descriptor; -1: none
    int rank, handles;
    uintptr_t code[2];  // of the program
} disk = { .record = -1 };

static struct {
    char path[PATH_MAX];  // "": not in DISK_FOLDER
    int handle;
    FILE *stream;
} fds[MOST_FDS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

// -------- settings

// The first object is the program.
static int note_code(struct dl_phdr_info *info, size_t size, void *data) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
        disk.code[0] = info->dlpi_addr + p->p_vaddr;
        disk.code[1] = disk.code[0] + p->p_memsz;
    }
    return 1;
}

static void parse_fail(const char *text) {
    char nth[16], error[16];
    if (sscanf(text, "%15[^:]:%15[^:]:%15[^:]:%63s", disk.kind, nth, error, disk.text) < 3) abort();
    disk.nth = atol(nth);
    disk.onwards = strchr(nth, '+') != NULL;
    disk.error = !strcmp(error, "short") ? SHORT : !strcmp(error, "kill") ? KILL : atoi(error);
}

__attribute__((constructor)) static void begin(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *only = getenv("DISK_RANK");
    const char *fail = getenv("DISK_FAIL"), *record_to = getenv("DISK_RECORD");
    const char *hold = getenv("DISK_HOLD");
    disk.rank = rank ? atoi(rank) : 0;
    if (only && atoi(only) != disk.rank) return;
    if (fail) parse_fail(fail);
    if (hold && sscanf(hold, "%63[^:]:%4095s", disk.held, disk.until) != 2) abort();
    dl_iterate_phdr(note_code, NULL);
    disk.calls = getenv("DISK_CALLS");
    if (record_to)
        disk.record = (int)syscall(SYS_openat, AT_FDCWD, record_to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                                   0666);
    disk.folder = getenv("DISK_FOLDER");
}

// Returns 1 if the program itself called, and not a library.
static int is_program(const void *caller) {
    return disk.folder && (uintptr_t)caller >= disk.code[0] && (uintptr_t)caller < disk.code[1];
}

// -------- which calls count, and which fail

// Returns the path if it is in DISK_FOLDER, otherwise NULL.
static const char *ours(const char *path) {
    if (!disk.folder || !path) return NULL;
    size_t n = strlen(disk.folder);
    return !strncmp(path, disk.folder, n) && (path[n] == 0 || path[n] == '/') ? path : NULL;
}

static const char *path_of(int fd) {
    return disk.folder && fd >= 0 && fd < MOST_FDS && *fds[fd].path ? fds[fd].path : NULL;
}

static void note_call(const char *kind, const char *path) {
    char line[PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "%s %s\n", kind, path);
    long fd = syscall(SYS_openat, AT_FDCWD, disk.calls, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || syscall(SYS_write, fd, line, n) != n) abort();
    syscall(SYS_close, fd);
}

// Returns 0 if the call may proceed, otherwise how it must fail: an errno or SHORT. path NULL: not our file.
static int fault(const char *kind, const char *path) {
    int kept = errno, failed = 0;
    if (!path) return 0;
    pthread_mutex_lock(&lock);
    if (!strcmp(kind, disk.kind) && strstr(path, disk.text)) {
        disk.seen++;
        failed = disk.seen == disk.nth || (disk.onwards && disk.seen > disk.nth);
    }
    if (disk.calls && (failed || !*disk.kind)) note_call(kind, path);
    if (failed && disk.error == KILL) raise(SIGKILL);
    pthread_mutex_unlock(&lock);
    errno = kept;
    return failed ? disk.error : 0;
}

// Returns 1 and sets errno if the call must fail.
static int fails(const char *kind, const char *path) {
    const int error = fault(kind, path);
    if (error > 0) errno = error;
    return error > 0;
}

// -------- the record

// No other rank or thread can change the folder between record_begin and record_end.
static void record_begin(void) {
    if (disk.record < 0) return;
    pthread_mutex_lock(&lock);
    if (syscall(SYS_flock, disk.record, LOCK_EX)) abort();
}

// Records the call if it succeeded.
static void record_end(int done, record r, const char *path, const char *other, const void *data) {
    int kept = errno;
    if (disk.record < 0) return;
    r.path_len = path ? (int32_t)strlen(path) : 0;
    r.other_len = other ? (int32_t)strlen(other) : 0;
    const struct iovec parts[] = { { &r, sizeof r },
                                   { (void *)path, r.path_len },
                                   { (void *)other, r.other_len },
                                   { (void *)data, r.bytes } };
    const long bytes = (long)sizeof r + r.path_len + r.other_len + r.bytes;
    if (done && syscall(SYS_writev, disk.record, parts, 4) != bytes) abort();
    if (syscall(SYS_flock, disk.record, LOCK_UN)) abort();
    pthread_mutex_unlock(&lock);
    errno = kept;
}

// -------- open, close

static int open_ours(const char *path, int flags, mode_t mode) {
    const char *kind = flags & O_CREAT ? "create" : "open";
    if (fails(kind, path)) return -1;
    record_begin();
    int was_there = !syscall(SYS_access, path, F_OK);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd >= MOST_FDS) abort();
    if (fd >= 0) {
        snprintf(fds[fd].path, PATH_MAX, "%s", path);
        fds[fd].handle = disk.rank << 20 | ++disk.handles;
        fds[fd].stream = NULL;
    }
    record r = { .kind = RECORD_OPEN, .handle = fd >= 0 ? fds[fd].handle : 0, .at = !was_there };
    record_end(fd >= 0, r, path, NULL, NULL);
    if (fd >= 0 && flags & O_TRUNC && was_there) {
        record_begin();
        record_end(1, (record){ .kind = RECORD_TRUNCATE, .handle = fds[fd].handle }, NULL, NULL, NULL);
    }
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return ours(path) ? open_ours(path, flags, mode) : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

// Like Linux, closes the descriptor even if the call fails.
int close(int fd) {
    char path[PATH_MAX];
    if (!path_of(fd)) return (int)syscall(SYS_close, fd);
    strcpy(path, fds[fd].path);
    *fds[fd].path = 0;
    fds[fd].stream = NULL;
    int rc = (int)syscall(SYS_close, fd);
    return fails("close", path) ? -1 : rc;
}

int fcntl(int fd, int command, ...) {
    va_list args;
    va_start(args, command);
    long value = va_arg(args, long);  // an integer or a pointer
    va_end(args);
    if (path_of(fd) && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) abort();  // is not recorded
    return fails("fcntl", path_of(fd)) ? -1 : (int)syscall(SYS_fcntl, fd, command, value);
}

// -------- read, write

// Returns how many bytes a call on this descriptor may transfer; -1: it must fail.
static ssize_t allowed(const char *kind, int fd, size_t bytes) {
    const int error = fault(kind, path_of(fd));
    if (error > 0) return errno = error, -1;
    return error == SHORT && bytes > 1 ? bytes / 2 : bytes;
}

ssize_t read(int fd, void *to, size_t bytes) {
    const ssize_t n = allowed("read", fd, bytes);
    return n < 0 ? -1 : syscall(SYS_read, fd, to, n);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at) {
    const ssize_t n = allowed("read", fd, bytes);
    return n < 0 ? -1 : syscall(SYS_pread64, fd, to, n, at);
}

// at < 0: writes at the current file position.
static ssize_t write_ours(int fd, const void *from, size_t bytes, off_t at) {
    while (*disk.held && strstr(fds[fd].path, disk.held) && syscall(SYS_access, disk.until, F_OK))
        usleep(1000);
    const ssize_t most = allowed("write", fd, bytes);
    if (most < 0) return -1;
    record_begin();
    ssize_t n = at < 0 ? syscall(SYS_write, fd, from, most) : syscall(SYS_pwrite64, fd, from, most, at);
    record r = { .kind = RECORD_WRITE, .handle = fds[fd].handle, .at = at, .bytes = n > 0 ? n : 0 };
    if (at < 0) r.at = syscall(SYS_lseek, fd, 0, SEEK_CUR) - r.bytes;
    record_end(n > 0, r, NULL, NULL, from);
    return n;
}

ssize_t write(int fd, const void *from, size_t bytes) {
    return path_of(fd) ? write_ours(fd, from, bytes, -1) : syscall(SYS_write, fd, from, bytes);
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at) {
    return path_of(fd) ? write_ours(fd, from, bytes, at) : syscall(SYS_pwrite64, fd, from, bytes, at);
}

// Makes a call that changes a file.
static int change_file(const char *kind, record_kind recorded, long number, int fd, off_t bytes) {
    if (!path_of(fd)) return (int)syscall(number, fd, bytes);
    if (fails(kind, fds[fd].path)) return -1;
    record_begin();
    int rc = (int)syscall(number, fd, bytes);
    record_end(!rc, (record){ .kind = recorded, .handle = fds[fd].handle, .at = bytes }, NULL, NULL, NULL);
    return rc;
}

int ftruncate(int fd, off_t bytes) {
    return change_file("truncate", RECORD_TRUNCATE, SYS_ftruncate, fd, bytes);
}
int fsync(int fd) { return change_file("fsync", RECORD_SYNC, SYS_fsync, fd, 0); }

// Recorded only if the file becomes longer.
int fallocate(int fd, int mode, off_t at, off_t bytes) {
    struct stat st;
    if (!path_of(fd)) return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
    if (mode) abort();
    if (fails("truncate", fds[fd].path)) return -1;
    record_begin();
    int longer = !syscall(SYS_fstat, fd, &st) && st.st_size < at + bytes;
    int rc = (int)syscall(SYS_fallocate, fd, mode, at, bytes);
    record r = { .kind = RECORD_TRUNCATE, .handle = fds[fd].handle, .at = at + bytes };
    record_end(!rc && longer, r, NULL, NULL, NULL);
    return rc;
}
int posix_fallocate(int fd, off_t at, off_t bytes) { return fallocate(fd, 0, at, bytes) ? errno : 0; }

// The trainer calls it only for its error output.
ssize_t writev(int fd, const struct iovec *parts, int n) {
    if (path_of(fd)) abort();
    return syscall(SYS_writev, fd, parts, n);
}

// -------- names

int rename(const char *from, const char *to) {
    if (!ours(from) && !ours(to)) return (int)syscall(SYS_rename, from, to);
    if (fails("rename", from)) return -1;
    record_begin();
    int rc = (int)syscall(SYS_rename, from, to);
    record_end(!rc, (record){ .kind = RECORD_RENAME }, from, to, NULL);
    return rc;
}

// Makes a call that changes a name.
static int change_name(const char *kind, record_kind recorded, long number, const char *path, long mode) {
    if (!ours(path)) return (int)syscall(number, path, mode);
    if (fails(kind, path)) return -1;
    record_begin();
    int rc = (int)syscall(number, path, mode);
    record_end(!rc, (record){ .kind = recorded }, path, NULL, NULL);
    return rc;
}

int unlink(const char *path) { return change_name("unlink", RECORD_UNLINK, SYS_unlink, path, 0); }
int rmdir(const char *path) { return change_name("rmdir", RECORD_RMDIR, SYS_rmdir, path, 0); }
int mkdir(const char *path, mode_t mode) { return change_name("mkdir", RECORD_MKDIR, SYS_mkdir, path, mode); }

int unlinkat(int folder, const char *name, int flags) {
    char path[MOST_PATH];
    if (!path_of(folder)) return (int)syscall(SYS_unlinkat, folder, name, flags);
    snprintf(path, sizeof path, "%s/%s", fds[folder].path, name);
    return flags & AT_REMOVEDIR ? rmdir(path) : unlink(path);
}

int remove(const char *path) {
    struct stat st;
    return !syscall(SYS_lstat, path, &st) && S_ISDIR(st.st_mode) ? rmdir(path) : unlink(path);
}

// -------- queries

#define NEXT(NAME) ((__typeof__(&NAME))dlsym(RTLD_NEXT, #NAME))

int stat(const char *restrict path, struct stat *restrict st) {
    return fails("stat", ours(path)) ? -1 : NEXT(stat)(path, st);
}
int lstat(const char *restrict path, struct stat *restrict st) {
    return fails("stat", ours(path)) ? -1 : NEXT(lstat)(path, st);
}
int fstat(int fd, struct stat *st) { return fails("stat", path_of(fd)) ? -1 : NEXT(fstat)(fd, st); }
int access(const char *path, int how) {
    return fails("stat", ours(path)) ? -1 : (int)syscall(SYS_access, path, how);
}
int flock(int fd, int how) { return fails("lock", path_of(fd)) ? -1 : (int)syscall(SYS_flock, fd, how); }

int statvfs(const char *restrict path, struct statvfs *restrict st) {
    const char *bytes = getenv("DISK_FREE");
    const int rc = NEXT(statvfs)(path, st);
    if (bytes && !rc) st->f_bavail = strtoull(bytes, NULL, 10) / st->f_frsize;
    return rc;
}

DIR *opendir(const char *path) {
    DIR *dir = fails("opendir", ours(path)) ? NULL : NEXT(opendir)(path);
    const int fd = dir ? dirfd(dir) : MOST_FDS;
    if (ours(path) && fd < MOST_FDS) snprintf(fds[fd].path, PATH_MAX, "%s", path);
    return dir;
}
struct dirent *readdir(DIR *dir) {
    return fails("readdir", path_of(dirfd(dir))) ? NULL : NEXT(readdir)(dir);
}
int closedir(DIR *dir) {
    if (path_of(dirfd(dir))) *fds[dirfd(dir)].path = 0;
    return NEXT(closedir)(dir);
}

// -------- streams

static ssize_t stream_read(void *fd, char *to, size_t bytes) { return read((int)(intptr_t)fd, to, bytes); }
static ssize_t stream_write(void *fd, const char *from, size_t bytes) {
    ssize_t n = write((int)(intptr_t)fd, from, bytes);
    return n < 0 ? 0 : n;  // a stream returns 0 for an error, with errno set
}
static int stream_seek(void *fd, off64_t *at, int from) {
    *at = syscall(SYS_lseek, (int)(intptr_t)fd, *at, from);
    return *at < 0 ? -1 : 0;
}
static int stream_close(void *fd) { return close((int)(intptr_t)fd); }

static FILE *stream_over(int fd, const char *mode) {
    static const cookie_io_functions_t calls = { stream_read, stream_write, stream_seek, stream_close };
    FILE *f = fopencookie((void *)(intptr_t)fd, mode, calls);
    if (f) fds[fd].stream = f;
    return f;
}

static int flags_of(const char *mode) {
    int flags = *mode == 'r' ? 0 : *mode == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND;
    if (strchr(mode, 'x')) flags |= O_EXCL;
    if (strchr(mode, 'e')) flags |= O_CLOEXEC;
    return flags | (strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY);
}

FILE *fopen(const char *restrict path, const char *restrict mode) {
    if (!ours(path)) return NEXT(fopen)(path, mode);
    int fd = open(path, flags_of(mode), 0666);
    return fd < 0 ? NULL : stream_over(fd, mode);
}

FILE *fdopen(int fd, const char *mode) {
    return path_of(fd) ? stream_over(fd, mode) : NEXT(fdopen)(fd, mode);
}

int fileno(FILE *f) {
    for (int fd = 0; fd < MOST_FDS; fd++)
        if (*fds[fd].path && fds[fd].stream == f) return fd;
    return NEXT(fileno)(f);
}

// -------- memory, random numbers

// Returns an errno if an allocation must fail. DISK_CALLS gets the address of the call instead of a path.
static int refused(const void *caller) {
    char where[32];
    if (!is_program(caller)) return 0;
    snprintf(where, sizeof where, "%#lx", (unsigned long)((uintptr_t)caller - disk.code[0]));
    int error = fault("malloc", where);
    if (error) errno = ENOMEM;
    return error;
}

#define OR_NULL(CALL) (refused(__builtin_return_address(0)) ? NULL : (CALL))

void *malloc(size_t bytes) { return OR_NULL(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) { return OR_NULL(__libc_calloc(n, bytes)); }
void *realloc(void *p, size_t bytes) { return OR_NULL(__libc_realloc(p, bytes)); }
void *aligned_alloc(size_t alignment, size_t bytes) { return OR_NULL(__libc_memalign(alignment, bytes)); }
FILE *open_memstream(char **text, size_t *bytes) { return OR_NULL(NEXT(open_memstream)(text, bytes)); }
int posix_memalign(void **p, size_t alignment, size_t bytes) {
    void *new = OR_NULL(__libc_memalign(alignment, bytes));
    if (new) *p = new;
    return new ? 0 : ENOMEM;
}
char *strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = OR_NULL(__libc_malloc(bytes));
    return copy ? memcpy(copy, text, bytes) : NULL;
}
int asprintf(char **text, const char *fmt, ...) {
    va_list args;
    if (refused(__builtin_return_address(0))) return -1;
    va_start(args, fmt);
    int n = vasprintf(text, fmt, args);
    va_end(args);
    return n;
}

ssize_t getrandom(void *to, size_t bytes, unsigned flags) {
    const char *counts = is_program(__builtin_return_address(0)) ? "-" : NULL;
    return fails("getrandom", counts) ? -1 : syscall(SYS_getrandom, to, bytes, flags);
}
