// Runs fio, which measures what the disk can do.
#ifndef BENCH_FIO_H
#define BENCH_FIO_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Returns GB/s of one job past the page cache, reads and writes together; 0 or less: it has failed. Huge
// pages and fixed buffers spare the kernel work, so `options` for io_uring has --fixedbufs.
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
#define FIO_FAILS "fio fails: install it (scripts/install_deps.sh bench), or use --no-fio"

#endif
