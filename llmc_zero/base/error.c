#include "error.h"
#include <stdarg.h>
#include <stdint.h>
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

// Invisible characters that change how other text is displayed (its direction, its line breaks, or which
// characters are joined or hidden), and code points that are not characters.
static int is_hidden(uint32_t c) {
    static const struct {
        uint32_t first, last;
    } hidden[] = {
        { 0x600, 0x605 },   { 0x61c, 0x61c },     { 0x180e, 0x180e },   { 0x200b, 0x200f },
        { 0x2028, 0x202e }, { 0x2060, 0x206f },   { 0xd800, 0xdfff },   { 0xfeff, 0xfeff },
        { 0xfff0, 0xfffb }, { 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0xe0fff },
        { 0x110000, ~0u },
    };
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (c >= hidden[i].first && c <= hidden[i].last) return 1;
    return 0;
}

// Returns the length in bytes of the UTF-8 character at `text`, or 0 if it is invalid, overlong, hidden, or
// below U+00C0, which includes the terminal control codes.
static size_t utf8_length(const unsigned char *text) {
    size_t n = *text < 0xc3 ? 0 : *text < 0xe0 ? 2 : *text < 0xf0 ? 3 : *text < 0xf5 ? 4 : 0;
    uint32_t c = *text & (0xffu >> (n + 1));
    if ((*text == 0xe0 && text[1] < 0xa0) || (*text == 0xf0 && text[1] < 0x90)) return 0;
    for (size_t i = 1; i < n; i++) {
        if (text[i] >> 6 != 2) return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    return is_hidden(c) ? 0 : n;
}

void zero_plain(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (unsigned char *at = (unsigned char *)text; *at;) {
        size_t length = *at >= ' ' && *at < 0x7f ? 1 : utf8_length(at);
        if (!length) *at = *at == '\n' || *at == '\t' ? ' ' : '?';
        at += length ? length : 1;
    }
}
