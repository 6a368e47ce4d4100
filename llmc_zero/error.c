#include "error.h"
#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[1024];

int zero_fail(int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    return code;
}

const char *zero_last_error(void) { return sentence; }
