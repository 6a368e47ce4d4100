#include "disk.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "gpt2_error.h"

int disk_open(const char *path, int *fd, int64_t *bytes) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // does not block on a pipe without a writer
    if (*fd < 0) return gpt2_fail("%s: cannot open: %s", path, strerror(errno));
    int failed = 0;
    if (fstat(*fd, &st))
        failed = gpt2_fail("%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        failed = gpt2_fail("%s: not a regular file", path);
    *bytes = failed ? 0 : st.st_size;
    if (failed) close(*fd);  // nothing was written
    return failed;
}

int disk_open_stream(const char *path, FILE **f) {
    int64_t bytes;
    int fd;
    *f = NULL;
    if (access(path, F_OK) && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (disk_open(path, &fd, &bytes)) return -1;
    *f = fdopen(fd, "r");
    if (*f) return 0;
    gpt2_fail("%s: cannot open: %s", path, strerror(errno));
    close(fd);  // nothing was written
    return -1;
}

int disk_read(int fd, const char *path, int64_t at, size_t bytes, void *to) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return gpt2_fail("%s: cannot be read at offset %lld: %s", path, (long long)(at + (int64_t)done),
                             strerror(errno));
        if (n == 0)
            return gpt2_fail("%s: ends at offset %lld: it was cut short after it was opened", path,
                             (long long)(at + (int64_t)done));
        done += (size_t)n;
    }
    return 0;
}

int disk_read_header(int fd, const char *path, int64_t bytes, const char *kind, int32_t magic,
                     int32_t header[256]) {
    const size_t size = 256 * sizeof *header;
    if (bytes < (int64_t)size)
        return gpt2_fail("%s: %lld bytes cannot be a %s, which has a header of %zu", path, (long long)bytes,
                         kind, size);
    if (disk_read(fd, path, 0, size, header)) return -1;
    if (header[0] == magic) return 0;
    return gpt2_fail("%s: not a %s: its first number is %d, expected %d", path, kind, header[0], magic);
}

int disk_temporary(char name[PATH_MAX], const char *path) {
    uint64_t number;
    if (getrandom(&number, sizeof number, 0) != sizeof number)
        return gpt2_fail("%s: no random number for a temporary name: %s", path, strerror(errno));
    if (snprintf(name, PATH_MAX, "%s.%016llx.tmp", path, (unsigned long long)number) >= PATH_MAX)
        return gpt2_fail("%.64s...: the name is too long", path);
    return 0;
}

int disk_create(disk_file *d, const char *path) {
    *d = (disk_file){ .path = path };
    if (disk_temporary(d->temporary, path)) return -1;
    int fd = open(d->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) d->f = fdopen(fd, "wb");
    // exit() flushes file buffers, so bytes that another thread is still writing could reach the file twice.
    // An unbuffered file has no such bytes.
    if (d->f) return setvbuf(d->f, NULL, _IONBF, 0);
    gpt2_fail("%s: cannot create: %s", d->temporary, strerror(errno));
    if (fd < 0) return -1;
    close(fd);  // nothing was written
    unlink(d->temporary);
    return -1;
}

int disk_write(disk_file *d, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, d->f) == bytes) return 0;
    return gpt2_fail("%s: cannot write: %s", d->path, strerror(errno));
}

int disk_sync_parent(const char *path) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    if (failed) gpt2_fail("%s: written, but its folder cannot be synced: %s", path, strerror(errno));
    if (fd >= 0) close(fd);  // nothing was written through it
    return failed ? -1 : 0;
}

int disk_finish(disk_file *d, int failed) {
    if (!d->f) return -1;
    if (!failed && (fflush(d->f) || fsync(fileno(d->f))))
        failed = gpt2_fail("%s: cannot write: %s", d->path, strerror(errno));
    if (fclose(d->f) && !failed) failed = gpt2_fail("%s: cannot close: %s", d->path, strerror(errno));
    if (!failed && rename(d->temporary, d->path))
        failed = gpt2_fail("%s: cannot rename %s to it: %s", d->path, d->temporary, strerror(errno));
    if (!failed) return disk_sync_parent(d->path);
    unlink(d->temporary);
    return -1;
}
