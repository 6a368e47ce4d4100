// The keys of a DeepSpeed file: the table of known keys, and the report of what each key did.
#ifndef LLMC_ZERO_SETTINGS_KEYS_H
#define LLMC_ZERO_SETTINGS_KEYS_H
#include "../zero.h"
#include "json.h"

typedef struct {
    zero_config config;      // with the keys read so far
    zero_deepspeed *report;  // of the keys read so far
    const json_t *root;
    const int *lines;  // of the keys not read yet
    int env_stage;     // the value of ZERO_STAGE; -1: not set
    int line;          // of the current key
    char path[96];     // of the current key: "zero_optimization.stage"
    int type_chosen;   // 1: bf16.enabled or fp16.enabled was true
    // Keys that can only be judged when all others are known; NULL: absent.
    zero_deepspeed_key *params_folder, *states_folder;  // nvme_path of offload_param and offload_optimizer
    zero_deepspeed_key *no_type;                        // bf16.enabled or fp16.enabled, if false
} reader;

// WORD: one of the setting's words. BY_SETTING: WORD, or COUNT, REAL or BOOL with the setting's range.
typedef enum { ONLY, COUNT, REAL, BOOL, WORD, ANY, BLOCK, BY_SETTING } key_kind;

typedef struct {
    const char *block, *names;  // block "": the top level. names: keys with the same treatment
    key_kind kind;
    const char *only;  // ONLY: the allowed values as JSON, separated by |; NULL: none. BLOCK: the block in
                       // the table that has its keys; NULL: its own
    const char *why;   // ONLY: why no other value is allowed. For keys without effect: why. BLOCK: a remark
    const char *setting;    // what the key sets, or what to set instead
    const char *automatic;  // what "auto" means, if it differs from leaving out the key
    double min, max;        // COUNT and REAL
    void (*set)(reader *r, const json_t *v, double x);  // x: the value, unless ANY
} key_row;

// Sets *row to the row of a key, with BY_SETTING replaced, and returns 1; returns 0 if the key is unknown.
int key_find(const char *block, const char *name, key_row *row);
// Writes the nearest known key, with its block, or "" if more than half of `name` would change.
void key_nearest(const reader *r, const char *name, char *nearest, size_t size);

// The next functions add the current key to the report. v NULL: without its value.
zero_deepspeed_key *key_note(reader *r, zero_key_fate fate, const json_t *v, const char *remark);
// The key sets `setting`; if that is a setting of the plugin, also in the configuration. remark: why the
// value differs from the file's, if it does.
void key_sets(reader *r, const char *setting, double value, const char *remark);
// Returns the key that set a setting, or NULL.
zero_deepspeed_key *key_that_sets(const reader *r, const char *setting);
// The key is refused. setting: what to set instead, or NULL.
void key_refuse(reader *r, const json_t *v, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
