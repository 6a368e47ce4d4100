// Folders that tests make.
#ifndef TESTS_FILES_H
#define TESTS_FILES_H
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>

// Returns the number of entries in a folder, or -1 if it cannot be listed.
static inline int files_in(const char *path) {
    int n = -2;  // . and ..
    DIR *list = opendir(path);
    if (!list) return -1;
    while (readdir(list)) n++;
    closedir(list);
    return n;
}

static inline int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

// Removes a folder and its contents.
static inline int remove_tree(const char *path) { return nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS); }

#endif
