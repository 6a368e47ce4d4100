// Shared by the tests of checkpoints.
#ifndef TESTS_SAVES_H
#define TESTS_SAVES_H
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "check.h"
#include "files.h"
#include "settings.h"
#include "toy.h"

enum { PATH_BYTES = 200 };
static char folder[100];  // contains all files of the test

// The path stays valid for the next seven calls.
static inline const char *in_folder(const char *name) {
    static char paths[8][PATH_BYTES];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, PATH_BYTES, "%s/%.95s", folder, name);
    return path;
}

static inline void steps(toy *t, int from, int to) {
    for (int step = from; step <= to; step++) MUST(toy_step(t, 1, step, NULL));
}

static inline void create_and_train(toy *t, const zero_config *c, int n) {
    MUST(toy_create(t, c, NULL));
    steps(t, 1, n);
}

static inline zero_config config_at(int stage, int format) {
    return settings_config(&settings_paths[stage + 1], &settings_formats[format], 1, stage & 1);
}

static inline int has_hash(zero *z, const char hash[17]) {
    char hex[17];
    MUST(zero_hash(z, 1, hex));
    return !strcmp(hex, hash);
}

static inline int has_text(const char *path, const char *text) {
    char *own = NULL;
    MUST(zero_checkpoint_text(path, &own));
    int same = !strcmp(own, text);
    free(own);
    return same;
}

// (collective) Compares between barriers, since another rank may be writing the file.
static inline void must_have(const char *path, const char *text) {
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(has_text(path, text));
    CHECK(files_in(path) == checks.ranks + 1);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Finds the file with a rank's states in a checkpoint.
static inline void file_in(char path[2 * PATH_BYTES], const char *checkpoint, int rank) {
    char prefix[16];
    snprintf(prefix, sizeof prefix, "rank%05d", rank);
    DIR *dir = opendir(checkpoint);
    CHECK(dir);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (!strncmp(e->d_name, prefix, strlen(prefix)))
            snprintf(path, 2 * PATH_BYTES, "%s/%.60s", checkpoint, e->d_name);
    if (dir) closedir(dir);
}

static inline long size_of(const char *path) {
    struct stat st;
    return stat(path, &st) ? -1 : (long)st.st_size;
}

static inline void flip(const char *path, long at, int bits) {
    FILE *f = fopen(path, "r+b");
    int byte, ok = f && !fseek(f, at, SEEK_SET) && (byte = fgetc(f)) != EOF && !fseek(f, at, SEEK_SET) &&
                   fputc(byte ^ bits, f) != EOF;
    CHECK(f && !fclose(f) && ok);
}

// (collective)
static inline void remove_checkpoint(const char *path) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) CHECK(!zero_checkpoint_remove(path));
    MPI_Barrier(MPI_COMM_WORLD);
}

#endif
