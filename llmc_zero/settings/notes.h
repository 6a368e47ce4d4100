// The report of what each key of a DeepSpeed file did.
#ifndef LLMC_ZERO_SETTINGS_NOTES_H
#define LLMC_ZERO_SETTINGS_NOTES_H
#include "../zero.h"
#include "json.h"

typedef struct {
    zero_config config;      // with the keys read so far
    zero_deepspeed *report;  // of the keys read so far
    const json_t *root;
    const int *lines;             // of the keys not read yet
    int line;                     // of the current key
    char path[96];                // of the current key: "zero_optimization.stage"
    zero_deepspeed_key *no_type;  // bf16.enabled or fp16.enabled, if false; NULL: absent
} reader;

// The next functions add the current key to the report. v NULL: without its value.
zero_deepspeed_key *key_note(reader *r, zero_key_fate fate, const json_t *v, const char *remark);
// Reports that the key sets `setting`, and stores a setting of the plugin. remark: why its value differs.
void key_sets(reader *r, const char *setting, double value, const char *remark);
// Reports that the key sets `setting` to a text.
void key_sets_text(reader *r, const char *setting, const char *value, const char *remark);
// Returns the key that set a setting, or NULL.
zero_deepspeed_key *key_that_sets(const reader *r, const char *setting);
// Refuses the key and returns 0. setting: what to set instead, or NULL.
int key_refuse(reader *r, const json_t *v, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
