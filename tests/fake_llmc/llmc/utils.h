/* Calls that end the program if they fail. */
#ifndef UTILS_H
#define UTILS_H
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what, const char *name) {
    fprintf(stderr, "%s %s\n", what, name);
    exit(EXIT_FAILURE);
}

static inline FILE *fopenCheck(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (file == NULL) { fail("cannot open", path); }
    return file;
}
static inline void freadCheck(void *to, size_t size, size_t n, FILE *file) {
    if (fread(to, size, n, file) != n) { fail("cannot read", "enough"); }
}
static inline void fwriteCheck(const void *from, size_t size, size_t n, FILE *file) {
    if (fwrite(from, size, n, file) != n) { fail("cannot write", "enough"); }
}
static inline void fcloseCheck(FILE *file) {
    if (fclose(file) != 0) { fail("cannot write", "to the end"); }
}
static inline void *mallocCheck(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory == NULL) { fail("no", "memory"); }
    return memory;
}
#endif
