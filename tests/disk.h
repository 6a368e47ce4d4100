// A folder for model states in files, which must not be in memory, as /tmp may be: beside the test's program.
#ifndef TESTS_DISK_H
#define TESTS_DISK_H
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISK_FOLDER = 200 };

// Returns it, or NULL.
static inline char *disk_folder(char folder[DISK_FOLDER], const char *name) {
    const char *program = program_invocation_name, *end = strrchr(program, '/');
    const int length = end ? (int)(end - program) : 1;
    snprintf(folder, DISK_FOLDER, "%.*s/%s.XXXXXX", length, end ? program : ".", name);
    return mkdtemp(folder);
}

#endif
