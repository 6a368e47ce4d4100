// For unit tests: cmocka's headers, and checks that a call of the plugin succeeds or fails.
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../llmc_zero/zero.h"

#define ROWS(table) (sizeof(table) / sizeof *(table))

#define WORKS(call)                                             \
    do {                                                        \
        if (call) fail_msg("%s: %s", #call, zero_last_error()); \
    } while (0)

// Checks that the call failed with this code and a message that contains `part`.
static inline void refused_at(int line, int rc, int code, const char *part) {
    if (rc != code)
        fail_msg("line %d: returned %d, not %d (last error: %s)", line, rc, code, zero_last_error());
    if (!strstr(zero_last_error(), part))
        fail_msg("line %d: \"%s\" does not contain \"%s\"", line, zero_last_error(), part);
}
#define REFUSED(call, code, part) refused_at(__LINE__, (call), (code), (part))

#endif
