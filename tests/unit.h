// For unit tests: cmocka's headers, checks that a call succeeds or fails, and random numbers.
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
#include "../gpt2/gpt2_error.h"
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

// The same for calls of gpt2/.
static inline void must(int rc) {
    if (rc) fail_msg("%s", gpt2_last_error());
}
static inline void assert_error(int rc, const char *part) {
    assert_int_equal(rc, -1);
    if (!strstr(gpt2_last_error(), part)) fail_msg("\"%s\" does not contain \"%s\"", gpt2_last_error(), part);
}

static uint32_t random_state = 1;
static inline uint32_t random_bits(void) { return random_state = random_state * 1664525u + 1013904223u; }
// Returns a number in [-1, 1) that is exact in fp32.
static inline double uniform(void) { return (double)(random_bits() >> 8) / (1 << 23) - 1; }

#endif
