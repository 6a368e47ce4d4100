#include "text_file.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_open(FILE *f, const char *path, int64_t most, const char *kind, char **text, int64_t *bytes) {
    struct stat st;
    if (fstat(fileno(f), &st)) return zero_fail(ZERO_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return zero_fail(ZERO_ERR_IO, "%s: not a regular file, so it is not %s", path, kind);
    if (st.st_size > most)
        return zero_fail(ZERO_ERR_IO, "%s: larger than %lld MiB, so it is not %s", path,
                         (long long)most >> 20, kind);
    *text = malloc(st.st_size + 1);
    if (!*text)
        return zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for its %lld bytes", path,
                         (long long)st.st_size);
    *bytes = (int64_t)fread(*text, 1, st.st_size, f);
    (*text)[*bytes] = 0;
    return ferror(f) ? zero_fail(ZERO_ERR_IO, "%s: cannot be read: %s", path, strerror(errno)) : 0;
}

// O_NONBLOCK: opening a pipe must not wait for its writer.
int zero_read_text(const char *path, int64_t most, const char *kind, char **text, int64_t *bytes) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    *text = NULL;
    if (!f) {
        int rc = zero_fail(ZERO_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return rc;
    }
    int rc = read_open(f, path, most, kind, text, bytes);
    fclose(f);  // nothing was written
    return rc;
}
