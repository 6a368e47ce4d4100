// The table of known keys of a DeepSpeed file.
#ifndef LLMC_ZERO_SETTINGS_KEYS_H
#define LLMC_ZERO_SETTINGS_KEYS_H
#include "notes.h"

// NOTED: BOOL. WORD: one of the setting's words. BY_SETTING: WORD, or COUNT, REAL or BOOL with the setting's
// range.
typedef enum { ONLY, NOTED, COUNT, REAL, BOOL, WORD, ANY, BLOCK, BY_SETTING } key_kind;

typedef struct {
    const char *block, *names;  // block "": the top level. names: keys with the same treatment
    key_kind kind;
    const char *only;  // ONLY: the allowed values as JSON, separated by |; NULL: none. NOTED: the value that
                       // needs no note. BLOCK: the block in the table that has its keys; NULL: its own
    const char *why;   // ONLY: why no other value is allowed. For keys without effect: why. BLOCK: a remark
    const char *setting;    // what the key sets, or what to set instead
    const char *automatic;  // what "auto" means, if it differs from leaving out the key
    double min, max;        // COUNT and REAL
    void (*set)(reader *r, const json_t *v, double x);  // x: the value, unless ANY
} key_row;

#define NO_LIMIT 1e18  // as `max`; fits an int64_t

// Sets *row to the row of a key, with BY_SETTING replaced, and returns 1; returns 0 if the key is unknown.
int key_find(const char *block, const char *name, key_row *row);
// Writes the nearest known key, with its block, or "" if more than half of `name` would change. Returns 1 if
// it is so near that `name` is probably a misspelling of it.
int key_nearest(const reader *r, const char *name, char *nearest, size_t size);

#endif
