// The library's one way to fail: keep the failure's fields for the calling thread, and return its code. The
// sentence that zero_last_error() gives is put together here.
#ifndef LLMC_ZERO_ERROR_H
#define LLMC_ZERO_ERROR_H
#include "zero.h"
#include <stddef.h>

// Each returns `code`, so that `return zero_fail(ZERO_ERR_..., ...)` reads well. What is formatted may come
// from the last failure. Of a rank the sentence is "rank R (host H)" and then fmt; host NULL: "rank R". Of a
// setting it is the name, as in zero_config, and then fmt. Several settings: "start.rank start.ranks" goes
// into the field, and only the first into the sentence.
#define zero_fail(code, ...) zero_fail_of(code, -1, NULL, "", __VA_ARGS__)
#define zero_fail_rank(code, rank, host, ...) zero_fail_of(code, rank, host, "", __VA_ARGS__)
#define zero_fail_setting(code, setting, ...) zero_fail_of(code, -1, NULL, setting, __VA_ARGS__)
#define zero_refuse(setting, ...) zero_fail_setting(ZERO_ERR_ARGUMENT, setting, __VA_ARGS__)
int zero_fail_of(int code, int rank, const char *host, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int zero_fail_again(const zero_failure *f);  // a failure of another rank, of another thread, or of earlier

// What is known of the last failure besides; each returns its code.
int zero_failed_at_unit(int unit);
int zero_failed_by_setting(const char *setting);  // of zero_config; the sentence stays as it is
int zero_failed_advice(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));       // adds "; " and what to do
int zero_failed_on(int rank, const char *host);  // puts "rank R (host H): " before a sentence without a rank
int zero_failed_after(int lower);                // so many lower ranks have failed with the same sentence

// Returns "rank 1 (host a)", or "ranks 1 (host a), 2 (host b) and 3 more", of those that are chosen. The name
// of rank r's host is at hosts + r * stride; "" where it is not known.
enum { ZERO_LIST = 320 };
const char *zero_list_ranks(char list[ZERO_LIST], int ranks, const char *chosen, const char *hosts,
                            size_t stride);

// Ends a text that came from elsewhere, and replaces what could do anything to a terminal: only printable
// ASCII and valid UTF-8 from U+00C0 on remain, without characters that turn the direction of the writing or
// are not seen. A newline or a tab becomes a space, each other byte '?'.
void zero_plain(char *text, size_t bytes);

// Relays a failure.
#define ZERO_TRY(call)               \
    do {                             \
        int try_rc_ = (call);        \
        if (try_rc_) return try_rc_; \
    } while (0)

#endif
