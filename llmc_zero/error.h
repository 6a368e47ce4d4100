// The library's one way to fail: keep the failure's fields for the calling thread, and return its code. The
// sentence that zero_last_error() gives is put together here.
#ifndef LLMC_ZERO_ERROR_H
#define LLMC_ZERO_ERROR_H
#include "zero.h"

// Each returns `code`, so that `return zero_fail(ZERO_ERR_..., ...)` reads well. What is formatted may come
// from the last failure.
int zero_fail(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// The sentence is "rank R (host H)" and then fmt; host NULL: "rank R".
int zero_fail_rank(int code, int rank, const char *host, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// The sentence is the setting's name, as in zero_config, and then fmt. Several settings: "start.rank
// start.ranks" goes into the field, and only the first into the sentence.
int zero_fail_setting(int code, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int zero_fail_again(const zero_failure *f);  // a failure of another rank, of another thread, or of earlier

// What is known of the last failure besides; each returns its code.
int zero_failed_at_unit(int unit);
int zero_failed_by_setting(const char *setting);  // of zero_config; the sentence stays as it is
int zero_failed_advice(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));       // adds "; " and what to do
int zero_failed_on(int rank, const char *host);  // puts "rank R (host H): " before a sentence without a rank
int zero_failed_after(int lower);                // so many lower ranks have failed with the same sentence

// Relays a failure.
#define ZERO_TRY(call)               \
    do {                             \
        int try_rc_ = (call);        \
        if (try_rc_) return try_rc_; \
    } while (0)

#endif
