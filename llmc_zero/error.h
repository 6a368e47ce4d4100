// The library's one way to fail: store a sentence, return a code.
#ifndef LLMC_ZERO_ERROR_H
#define LLMC_ZERO_ERROR_H
#include "zero.h"

// Stores the sentence for zero_last_error() and returns `code`, so that `return zero_fail(ZERO_ERR_..., ...)`
// reads well.
int zero_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// After zero_fail: all ranks have this sentence, of which this one, number `rank`, need not print it unless
// it is 0. Returns code.
int zero_fail_shared(int code, int rank);
int zero_failure_shared_as(
    void);  // that rank, of the thread's last failure; -1: it has it alone, as far as is known

// Relays a failure.
#define ZERO_TRY(call)               \
    do {                             \
        int try_rc_ = (call);        \
        if (try_rc_) return try_rc_; \
    } while (0)

#endif
