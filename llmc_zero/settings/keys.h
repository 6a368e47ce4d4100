// The table of known keys of a DeepSpeed file.
#ifndef LLMC_ZERO_SETTINGS_KEYS_H
#define LLMC_ZERO_SETTINGS_KEYS_H
#include "notes.h"

enum { KEY_BYTES = 96 };  // of a key with its block, "zero_optimization.stage"

// WORD: one of the setting's words. BY_SETTING: WORD, or COUNT, REAL or BOOL with the setting's range.
typedef enum { ONLY, COUNT, REAL, BOOL, WORD, ANY, BLOCK, BY_SETTING } key_kind;

typedef struct {
    const char *keys;  // with the same treatment: "key key block: key key"; before a block: the top level
    key_kind kind;
    const char *only;     // ONLY: the allowed values as JSON, separated by |
    const char *why;      // ONLY: why no other value is allowed. For keys without effect: why
    const char *setting;  // what the key sets, or what to set instead
    double min, max;      // COUNT and REAL
    void (*set)(reader *r, const json_t *v, double x);  // x: the value, unless ANY or ONLY
} key_row;

#define NO_LIMIT 1e18  // as `max`; fits an int64_t

// path: with the block. Returns 1 and sets *row to the key's row, with BY_SETTING replaced; 0: it is unknown.
int key_find(const char *path, key_row *row);
// Writes the nearest known key, with its block, or "" if more than half of the name would change. Returns 1
// if it is so near that the name is probably a misspelling of it.
int key_nearest(const char *path, char nearest[KEY_BYTES]);
// Returns 1 if the file has a scheduler whose parameters can be applied.
int scheduler_is_known(const reader *r);

#endif
