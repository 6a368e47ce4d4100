#include "error.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[1024];
static _Thread_local int shared_as = -1;

int zero_fail(int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    shared_as = -1;
    return code;
}

int zero_fail_shared(int code, int rank) {
    shared_as = rank;
    return code;
}
int zero_failure_shared_as(void) { return shared_as; }

const char *zero_last_error(void) { return sentence; }
