// Shared by the benchmarks: medians, arguments, and runs of fio, which measures the disk.
#ifndef BENCH_H
#define BENCH_H
#include "llmc_zero/base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int bench_compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}
static inline double bench_median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, bench_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

// An option with an integer value from least to most. If most is 0, it is a flag, which sets *to to 1.
typedef struct {
    const char *name;
    int *to, least, most;
} bench_option;

// Parses the command line. The list of options ends with a NULL name. Returns the positional argument, or
// NULL if there is none or if an option is invalid.
static inline const char *bench_arguments(int argc, char **argv, const bench_option *options) {
    const char *folder = NULL;
    for (int i = 1; i < argc; i++) {
        const bench_option *o = options;
        if (*argv[i] != '-') {
            folder = argv[i];
            continue;
        }
        while (o->name && strcmp(argv[i], o->name)) o++;
        if (!o->name || (o->most && ++i == argc)) return NULL;
        *o->to = o->most ? atoi(argv[i]) : 1;
        if (o->most && (*o->to < o->least || *o->to > o->most)) return NULL;
    }
    return folder;
}

// Runs one fio job that bypasses the page cache. Returns its GB/s, reads plus writes, or 0 or less if it
// fails. For io_uring, pass --fixedbufs in `options`: like huge pages, it saves work in the kernel.
static inline double fio_run(const char *options, int small_pages) {
    enum { READ_FIELD = 7, WRITE_FIELD = 48 };  // KiB/s in fio's terse output, version 3
    char command[10000], line[65536] = "";
    snprintf(command, sizeof command,
             "%sfio --minimal --terse-version=3 --name=all --direct=1 --invalidate=1 %s 2>&1",
             small_pages ? "" : "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 ", options);
    FILE *f = popen(command, "r");
    double sum = 0;
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "3;fio", 5)) continue;
        char *field = line;
        for (int i = 1; field; i++) {
            if (i == READ_FIELD || i == WRITE_FIELD) sum += atof(field) * 1024e-9;
            field = strchr(field, ';');
            field += field != NULL;
        }
    }
    return pclose(f) ? -1 : sum;
}

// Prints the medians of our rates and of fio's, and their ratio.
static inline void bench_print(double *ours, double *fios, int rounds, int no_fio) {
    const double x = bench_median(ours, rounds), y = bench_median(fios, rounds);
    if (no_fio)
        printf(" %8.3f %8s %6s", x, "-", "-");
    else
        printf(" %8.3f %8.3f %6.2f", x, y, x / y);
}

#define FIO_FAILS "fio failed: install it (scripts/install_deps.sh bench), or use --no-fio"

#endif
