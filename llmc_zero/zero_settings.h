// The settings of zero_config as a table, for a trainer that shows them or sets them by name. A program that
// only sets members of zero_config needs nothing of this.
#ifndef LLMC_ZERO_SETTINGS_TABLE_H
#define LLMC_ZERO_SETTINGS_TABLE_H
#include "zero.h"
#ifdef __cplusplus
extern "C" {
#endif

// -------- settings by name

// What the member is: FLAG an int that is 0 or 1, TEXT a const char *, those with a choice an enum.
typedef enum {
    ZERO_KIND_INT,
    ZERO_KIND_FLAG,
    ZERO_KIND_UNSIGNED,
    ZERO_KIND_DTYPE,
    ZERO_KIND_DEVICE,
    ZERO_KIND_TIER,
    ZERO_KIND_START,
    ZERO_KIND_INT64,
    ZERO_KIND_REAL,
    ZERO_KIND_TEXT
} zero_kind;

typedef struct {
    const char *name;  // "offload.nvme_depth"
    zero_kind kind;
    size_t offset;             // in zero_config
    double preset, min, max;   // of a number or a choice; the default, which may be outside of min to max
    int same;                  // 1: all ranks must have the same value
    const char *help;          // what it is for
    const char *const *words;  // of a choice, the names of its values, and NULL; else NULL first
} zero_setting;

// Returns all settings but what a program hands over: pointers, memory_beside and start.same.
const zero_setting *zero_settings(int *n);
// Returns one of them, or NULL.
const zero_setting *zero_setting_named(const char *name);
// Writes its value in *config; "" for no text.
void zero_setting_text(const zero_setting *s, const zero_config *config, char *text, size_t size);
// Returns 0: *config has the value of `text`, to which a setting of kind TEXT then points; or
// ZERO_ERR_ARGUMENT.
int zero_setting_set(const zero_setting *s, zero_config *config, const char *text);

#ifdef __cplusplus
}
#endif
#endif
