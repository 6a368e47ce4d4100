#include "files.h"
#include "../base/error.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int folder_path(char path[PATH_MAX], const char *folder, const char *name) {
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%.64s...: the name is too long", folder);
}

int folder_make(const char *folder) {
    if (!mkdir(folder, 0777) || errno == EEXIST) return 0;
    return zero_fail(ZERO_ERR_IO, "%s: the folder cannot be created: %s", folder, strerror(errno));
}

int folder_sync(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    if (failed) zero_fail(ZERO_ERR_IO, "%s: the folder cannot be synced: %s", folder, strerror(errno));
    if (fd >= 0) close(fd);  // cannot lose data, because nothing was written through it
    return failed ? ZERO_ERR_IO : 0;
}

int folder_sync_parent(const char *folder) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", folder);
    return folder_sync(dirname(copy));
}

int folder_create_file(const char *path, int *fd) {
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return *fd >= 0 ? 0 : zero_fail(ZERO_ERR_IO, "%s: cannot be created: %s", path, strerror(errno));
}

int folder_write(int fd, const char *path, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return zero_fail(ZERO_ERR_IO, "%s: not written: %s", path, strerror(errno));
        done += (size_t)n;
    }
    return 0;
}

int folder_close_written(int fd, const char *path) {
    int failed = fsync(fd) ? errno : 0;
    if (close(fd) && !failed) failed = errno;
    return failed ? zero_fail(ZERO_ERR_IO, "%s: not written: %s", path, strerror(failed)) : 0;
}

static int ends_in(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static int is_left_over(const char *name, const char *keep) {
    if (!strcmp(name, MANIFEST)) return !keep;
    if (!strncmp(name, "." MANIFEST ".", strlen("." MANIFEST "."))) return 1;
    return !strncmp(name, "rank", 4) && ends_in(name, FILE_END) && !(keep && ends_in(name, keep));
}

int folder_clean(const char *folder, const char *keep) {
    DIR *dir = opendir(folder);
    int failed = 0;
    if (!dir) return zero_fail(ZERO_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    errno = 0;
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        if (is_left_over(e->d_name, keep) && unlinkat(dirfd(dir), e->d_name, 0) && errno != ENOENT)
            failed = zero_fail(ZERO_ERR_IO, "%s/%s: cannot be removed: %s", folder, e->d_name,
                               strerror(errno));
        errno = 0;
    }
    if (errno) failed = zero_fail(ZERO_ERR_IO, "%s: cannot be listed: %s", folder, strerror(errno));
    closedir(dir);
    return failed;
}
