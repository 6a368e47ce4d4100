#include "error.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local failure_record last = { .fields = { .rank = -1, .unit = -1 }, .lower = -1 };

const char *zero_last_error(void) { return last.fields.sentence; }
const zero_failure *zero_last_failure(void) { return &last.fields; }
const failure_record *zero_failed(void) { return &last; }

// The arguments may point into `last`, so this formats the new failure in a separate struct.
int zero_fail_of(int code, int rank, const char *host, const char *setting, const char *fmt, ...) {
    failure_record f = { .fields = { .code = code, .rank = rank, .unit = -1 }, .lower = -1 };
    va_list args;
    snprintf(f.fields.setting, sizeof f.fields.setting, "%s", setting);
    size_t used = strcspn(f.fields.setting, " ");
    memcpy(f.fields.sentence, f.fields.setting, used);
    if (rank >= 0)
        used = (size_t)snprintf(f.fields.sentence, sizeof f.fields.sentence,
                                host ? "rank %d (host %s)" : "rank %d", rank, host);
    va_start(args, fmt);
    vsnprintf(f.fields.sentence + used, sizeof f.fields.sentence - used, fmt, args);
    va_end(args);
    f.reason = (int)strlen(f.fields.sentence);
    return zero_fail_again(&f);
}

int zero_fail_again(const failure_record *f) {
    last = *f;
    return f->fields.code;
}

int zero_failed_at_unit(int unit) {
    last.fields.unit = unit;
    return last.fields.code;
}

int zero_failed_by_setting(const char *setting) {
    snprintf(last.fields.setting, sizeof last.fields.setting, "%s", setting);
    return last.fields.code;
}

int zero_failed_advice(const char *fmt, ...) {
    size_t used = strlen(last.fields.sentence), room = sizeof last.fields.sentence - used;
    va_list args;
    if (room < 3) return last.fields.code;
    memcpy(last.fields.sentence + used, "; ", 3);
    va_start(args, fmt);
    vsnprintf(last.fields.sentence + used + 2, room - 2, fmt, args);
    va_end(args);
    return last.fields.code;
}

int zero_failed_on(int rank, const char *host) {
    if (last.fields.rank >= 0) return last.fields.code;
    failure_record f = last;
    f.fields.rank = rank;
    snprintf(f.fields.sentence, sizeof f.fields.sentence, "rank %d (host %s): %.900s", rank, host,
             last.fields.sentence);
    f.reason += (int)(strlen(f.fields.sentence) - strlen(last.fields.sentence));
    return zero_fail_again(&f);
}

int zero_failed_after(int lower) {
    last.lower = lower;
    return last.fields.code;
}

const char *zero_list_ranks(char list[ZERO_LIST], int ranks, const char *chosen, const char *hosts,
                            size_t stride) {
    int left = 0;
    for (int r = 0; r < ranks; r++) left += chosen[r] != 0;
    size_t used = (size_t)snprintf(list, ZERO_LIST, left > 1 ? "ranks" : "rank");
    const char *before = " ";
    for (int r = 0; r < ranks; r++) {
        const char *host = hosts + (size_t)r * stride;
        if (!chosen[r]) continue;
        if (used > ZERO_LIST - 110) {
            snprintf(list + used, ZERO_LIST - used, " and %d more", left);
            break;
        }
        used += (size_t)snprintf(list + used, ZERO_LIST - used, *host ? "%s%d (host %s)" : "%s%d", before, r,
                                 host);
        before = --left == 1 ? " and " : ", ";
    }
    return list;
}
