// What becomes of each key of a DeepSpeed file: the table, and what the keys set.
#ifndef LLMC_ZERO_SETTINGS_KEYS_H
#define LLMC_ZERO_SETTINGS_KEYS_H
#include "../zero.h"
#include "json.h"

typedef struct {
    zero_config config;    // as far as the file has been read
    zero_deepspeed *said;  // what has become of the keys so far
    const json_t *root;
    const int *lines;  // of the keys still to be read
    int env_stage;     // what ZERO_STAGE asks for, or -1
    int line;          // of the key in hand
    char path[96];     // of the key in hand: "zero_optimization.stage"
    int type_chosen;   // by bf16.enabled or fp16.enabled
    // Keys that are judged when all others are known; NULL: absent.
    zero_deepspeed_key *params_folder, *states_folder;  // nvme_path of offload_param and offload_optimizer
    zero_deepspeed_key *no_type;                        // bf16.enabled or fp16.enabled, which is false
} reader;

// WORD: one of the words of the setting. BY_SETTING: WORD, or COUNT, REAL or BOOL with the setting's range.
typedef enum { ONLY, COUNT, REAL, BOOL, WORD, ANY, BLOCK, BY_SETTING } key_kind;

typedef struct {
    const char *block, *names;  // block "": the top level. Keys that are treated alike stand in one row
    key_kind kind;
    const char *only;  // ONLY: the values taken, as JSON parted by |, NULL for none. BLOCK: the block whose
                       // keys it has, if not its own
    const char *why;   // ONLY: why no other value is taken. Of a key without effect: why it has none.
                       // BLOCK: what to know of the block
    const char *setting;    // what the key sets, or what does it here
    const char *automatic;  // what "auto" comes to, if not to what holds without the key
    double min, max;        // COUNT and REAL
    void (*set)(reader *r, const json_t *v, double x);  // x: the value, but of ANY
} key_row;

// Finds the row of a key, of kind BY_SETTING no more. Returns 0: there is none.
int key_find(const char *block, const char *name, key_row *row);
// Writes the nearest known key, with its block, or "" if more than half of `name` would change.
void key_nearest(const reader *r, const char *name, char *nearest, size_t size);

// Each notes what has become of the key in hand; v NULL: without its value.
zero_deepspeed_key *key_note(reader *r, zero_key_fate fate, const json_t *v, const char *remark);
// It sets `setting` to a value, in the configuration too if the setting is the plugin's. remark: why, if that
// is another value than the file's.
void key_sets(reader *r, const char *setting, double value, const char *remark);
// Returns the key that has set a setting, or NULL.
zero_deepspeed_key *key_that_sets(const reader *r, const char *setting);
// It is refused; setting: what to set instead, or NULL.
void key_refuse(reader *r, const json_t *v, const char *setting, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
