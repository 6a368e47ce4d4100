#include "run.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include "../gpt2/bar.h"

Run run = { .ranks = 1, .ranks_on_host = 1, .layers = &layers_cpu, .threads = 1, .step = -1, .saving = -1 };

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void print0(const char *fmt, ...) {
    if (run.rank != 0) return;
    va_list args;
    va_start(args, fmt);
    errno = 0;
    bar_clear();
    vprintf(fmt, args);
    va_end(args);
    int failed = fflush(stdout) || ferror(stdout);
    if (failed && !run.output_error) run.output_error = errno ? errno : EIO;
}
