// How the library fails: a call stores the failure for its thread and returns the failure's code.
#ifndef LLMC_ZERO_BASE_ERROR_H
#define LLMC_ZERO_BASE_ERROR_H
#include "../zero.h"
#include <stddef.h>

// Each returns `code`: return zero_fail(ZERO_ERR_..., ...). The arguments may point into the last failure.
// The message is fmt. If a rank is given, "rank R (host H)" precedes it ("rank R" if host is NULL). If a
// setting is given, its name in zero_config precedes it; of several, separated by spaces, the first one.
#define zero_fail(code, ...) zero_fail_of(code, -1, NULL, "", __VA_ARGS__)
#define zero_fail_rank(code, rank, host, ...) zero_fail_of(code, rank, host, "", __VA_ARGS__)
#define zero_fail_setting(code, setting, ...) zero_fail_of(code, -1, NULL, setting, __VA_ARGS__)
#define zero_refuse(setting, ...) zero_fail_setting(ZERO_ERR_ARGUMENT, setting, __VA_ARGS__)
int zero_fail_of(int code, int rank, const char *host, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

// A failure as threads and ranks pass it to each other.
typedef struct {
    zero_failure fields;  // zero_last_failure()
    int lower;            // number of lower ranks that failed with the same message; -1: unknown
    int reason;           // bytes of the message before any advice
} failure_record;
const failure_record *zero_failed(void);       // the calling thread's last failure
int zero_fail_again(const failure_record *f);  // another rank's or thread's failure, or an earlier one

// Add details to the last failure; each returns its code.
int zero_failed_at_unit(int unit);
int zero_failed_by_setting(const char *setting);  // of zero_config; the message does not change
int zero_failed_advice(const char *fmt, ...)
    __attribute__((format(printf, 1, 2)));       // appends "; " and the advice
int zero_failed_on(int rank, const char *host);  // prepends "rank R (host H): " unless it names a rank
int zero_failed_after(int lower);                // lower: see failure_record

// Lists the chosen ranks: "rank 1 (host a)", or "ranks 1 (host a), 2 (host b) and 3 more". The host of rank r
// is at hosts + r * stride, "" if it is unknown.
enum { ZERO_LIST = 320 };
const char *zero_list_ranks(char list[ZERO_LIST], int ranks, const char *chosen, const char *hosts,
                            size_t stride);

// Returns from the caller if the call fails.
#define ZERO_TRY(call)               \
    do {                             \
        int try_rc_ = (call);        \
        if (try_rc_) return try_rc_; \
    } while (0)
// Returns from the caller if an allocation has failed, that is, returned NULL with the error set.
#define ZERO_TRY_ALLOC(pointer) ZERO_TRY((pointer) ? 0 : ZERO_ERR_MEMORY)

#endif
