// Text files, written under a temporary name and renamed once they are on disk.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "disk.h"
#include "gpt2_error.h"
#include "text_file.h"

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
    FILE *f;
    if (disk_open_stream(path, &f)) return NULL;
    if (!f) return strdup("");
    char *text = read_all(f, path);
    fclose(f);  // nothing was written
    return text;
}

int text_file_write(const char *path, const char *text) {
    disk_file d;
    int failed = disk_create(&d, path);
    if (!failed) failed = disk_write(&d, text, strlen(text));
    return disk_finish(&d, failed);
}
