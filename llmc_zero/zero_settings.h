// The settings of zero_config as a table, for a trainer that prints them or sets them by name. Programs that
// set the members of zero_config directly do not need it.
#ifndef LLMC_ZERO_SETTINGS_TABLE_H
#define LLMC_ZERO_SETTINGS_TABLE_H
#include "zero.h"
#ifdef __cplusplus
extern "C" {
#endif

// -------- settings by name

// The type of the member: FLAG is an int of 0 or 1, TEXT a const char *, DTYPE and the next two are enums.
typedef enum {
    ZERO_KIND_INT,
    ZERO_KIND_FLAG,
    ZERO_KIND_UNSIGNED,
    ZERO_KIND_DTYPE,
    ZERO_KIND_DEVICE,
    ZERO_KIND_TIER,
    ZERO_KIND_INT64,
    ZERO_KIND_REAL,
    ZERO_KIND_TEXT
} zero_kind;

typedef struct {
    const char *name;  // "offload.nvme_depth"
    zero_kind kind;
    size_t offset;             // in zero_config
    double preset, min, max;   // for numbers and enums; the default may lie outside of min to max
    int same;                  // 1: all ranks must have the same value
    const char *help;          // one line
    const char *const *words;  // for enums: the names of the values, then NULL; otherwise only NULL
} zero_setting;

// Returns all settings except pointers, memory_beside and start.same.
const zero_setting *zero_settings(int *n);
// Returns the setting with this name, or NULL.
const zero_setting *zero_setting_named(const char *name);
// Writes the setting's value in *config as text; "" for NULL.
void zero_setting_text(const zero_setting *s, const zero_config *config, char *text, size_t size);
// Sets the setting in *config from `text`, or returns ZERO_ERR_ARGUMENT. A setting of kind TEXT keeps the
// pointer.
int zero_setting_set(const zero_setting *s, zero_config *config, const char *text);
// Sets debug.poison and debug.check_steps, if they are -1, from ZERO_POISON and ZERO_CHECK in the
// environment. Each must be 0, 1, or unset, which leaves the -1. zero_create calls it too.
int zero_settings_from_env(zero_config *config);
// Returns the edit distance: how many characters must be inserted, removed or replaced to turn a into b. It
// serves to suggest the nearest of several names. na and nb: their lengths; if either exceeds 64, returns
// their sum.
int zero_edit_distance(const char *a, size_t na, const char *b, size_t nb);

#ifdef __cplusplus
}
#endif
#endif
