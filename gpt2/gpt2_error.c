// The message of each thread's last failure.
#include <stdarg.h>
#include <stdio.h>
#include "gpt2_error.h"

static _Thread_local char message[1024];

int gpt2_fail(const char *fmt, ...) {
    char text[sizeof message];  // separate, because an argument may be the previous message
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    snprintf(message, sizeof message, "%s", text);
    return -1;
}

const char *gpt2_last_error(void) { return message; }
