#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local zero_failure last = { .rank = -1, .unit = -1, .lower = -1 };

const char *zero_last_error(void) { return last.sentence; }
const zero_failure *zero_last_failure(void) { return &last; }

// args may point into `last`, so the new failure is put together beside it.
static int keep(zero_failure f, const char *fmt, va_list args) {
    size_t used = strlen(f.sentence);
    f.unit = f.lower = -1;
    vsnprintf(f.sentence + used, sizeof f.sentence - used, fmt, args);
    f.reason = (int)strlen(f.sentence);
    last = f;
    return f.code;
}

int zero_fail(int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    keep((zero_failure){ .code = code, .rank = -1 }, fmt, args);
    va_end(args);
    return code;
}

int zero_fail_rank(int code, int rank, const char *host, const char *fmt, ...) {
    zero_failure f = { .code = code, .rank = rank };
    snprintf(f.sentence, sizeof f.sentence, host ? "rank %d (host %s)" : "rank %d", rank, host);
    va_list args;
    va_start(args, fmt);
    keep(f, fmt, args);
    va_end(args);
    return code;
}

int zero_fail_setting(int code, const char *setting, const char *fmt, ...) {
    zero_failure f = { .code = code, .rank = -1 };
    snprintf(f.setting, sizeof f.setting, "%s", setting);
    snprintf(f.sentence, sizeof f.sentence, "%.*s", (int)strcspn(setting, " "), setting);
    va_list args;
    va_start(args, fmt);
    keep(f, fmt, args);
    va_end(args);
    return code;
}

int zero_fail_again(const zero_failure *f) {
    last = *f;
    return f->code;
}

int zero_failed_at_unit(int unit) {
    last.unit = unit;
    return last.code;
}

int zero_failed_by_setting(const char *setting) {
    snprintf(last.setting, sizeof last.setting, "%s", setting);
    return last.code;
}

int zero_failed_advice(const char *fmt, ...) {
    size_t used = strlen(last.sentence), room = sizeof last.sentence - used;
    va_list args;
    if (room < 3) return last.code;
    memcpy(last.sentence + used, "; ", 3);
    va_start(args, fmt);
    vsnprintf(last.sentence + used + 2, room - 2, fmt, args);
    va_end(args);
    return last.code;
}

int zero_failed_on(int rank, const char *host) {
    if (last.rank >= 0) return last.code;
    zero_failure f = last;
    f.rank = rank;
    snprintf(f.sentence, sizeof f.sentence, "rank %d (host %s): %.900s", rank, host, last.sentence);
    f.reason += (int)(strlen(f.sentence) - strlen(last.sentence));
    return zero_fail_again(&f);
}

int zero_failed_after(int lower) {
    last.lower = lower;
    return last.code;
}
