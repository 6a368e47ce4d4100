// Text files. They are written under another name first, and renamed once they are on disk.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "error.h"
#include "text_file.h"

enum { LONGEST_PATH = 4096 };

static char *read_all(FILE *f, const char *path) {
    size_t n = 0, room = 4096;
    char *text = malloc(room);
    while (text) {
        size_t got = fread(text + n, 1, room - n - 1, f);
        if (got == 0) break;
        n += got;
        if (n + 1 < room) continue;
        room *= 2;
        char *larger = realloc(text, room);
        if (!larger) free(text);
        text = larger;
    }
    if (!text)
        gpt2_fail("%s: no memory for its text", path);
    else if (ferror(f))
        gpt2_fail("%s: %s", path, strerror(errno));
    else if (memchr(text, 0, n))
        gpt2_fail("%s: not a text file", path);
    else {
        text[n] = 0;
        return text;
    }
    free(text);
    return NULL;
}

char *text_file_read(const char *path) {
    FILE *f = fopen(path, "r");
    char *text = NULL;
    if (f)
        text = read_all(f, path);
    else if (errno == ENOENT)
        text = strdup("");
    else
        gpt2_fail("%s: %s", path, strerror(errno));
    if (f) fclose(f);
    return text;
}

static int sync_folder(const char *path) {
    char folder[LONGEST_PATH + 32];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash) slash[1] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY);
    int bad = fd < 0 || fsync(fd) != 0;
    if (bad) gpt2_fail("%s: its folder: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return bad ? -1 : 0;
}

int text_file_write(const char *path, const char *text) {
    char temporary[LONGEST_PATH + 32];
    if (strlen(path) >= LONGEST_PATH) return gpt2_fail("%.60s...: the name is too long", path);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    FILE *f = fopen(temporary, "w");
    if (!f) return gpt2_fail("%s: %s", temporary, strerror(errno));
    int bad = fputs(text, f) < 0 || fflush(f) != 0 || fsync(fileno(f)) != 0;
    bad |= fclose(f) != 0;
    if (!bad && rename(temporary, path) == 0) return sync_folder(path);
    gpt2_fail("%s: not written: %s", path, strerror(errno));
    unlink(temporary);
    return -1;
}
