#include "notes.h"
#include "settings.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

zero_deepspeed_key *key_note(reader *r, zero_key_fate fate, const json_t *v, const char *remark) {
    zero_deepspeed *report = r->report;
    const int full = report->n == ZERO_DEEPSPEED_KEYS;
    zero_deepspeed_key *k = &report->keys[full ? report->n - 1 : report->n++];
    *k = (zero_deepspeed_key){ .fate = full ? ZERO_KEY_REFUSED : fate, .line = r->line };
    snprintf(k->key, sizeof k->key, "%s", r->path);
    if (v) json_quote(v, k->value, sizeof k->value);
    snprintf(k->remark, sizeof k->remark, "%s", full ? "the file has too many keys" : remark);
    return k;
}

int key_refuse(reader *r, const json_t *v, const char *setting, const char *fmt, ...) {
    zero_deepspeed_key *k = key_note(r, ZERO_KEY_REFUSED, v, "");
    if (setting) snprintf(k->setting, sizeof k->setting, "%s", setting);
    if (strlen(k->value) > 60) strcpy(k->value + 57, "...");
    va_list args;
    va_start(args, fmt);
    vsnprintf(k->remark, sizeof k->remark, fmt, args);
    va_end(args);
    return 0;
}

void key_sets_text(reader *r, const char *setting, const char *value, const char *remark) {
    zero_deepspeed_key *k = key_note(r, ZERO_KEY_HONOURED, NULL, remark);
    snprintf(k->setting, sizeof k->setting, "%s", setting);
    snprintf(k->value, sizeof k->value, "%s", value);
}

zero_deepspeed_key *key_that_sets(const reader *r, const char *setting) {
    for (zero_deepspeed_key *k = r->report->keys; k < r->report->keys + r->report->n; k++)
        if (k->fate == ZERO_KEY_HONOURED && !strcmp(k->setting, setting) && strcmp(k->value, "auto"))
            return k;
    return NULL;
}

void key_sets(reader *r, const char *setting, double value, const char *remark) {
    const zero_setting *s = zero_setting_named(setting);
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    if (s) {
        setting_put(s, &r->config, value);
        zero_setting_text(s, &r->config, text, sizeof text);
    }
    key_sets_text(r, setting, text, remark);
}
