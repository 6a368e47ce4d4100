// What becomes of each key of a DeepSpeed JSON file, for a trainer that takes its own options from the file
// too, or shows what holds. zero_config_from_file needs nothing of this.
#ifndef LLMC_ZERO_DEEPSPEED_H
#define LLMC_ZERO_DEEPSPEED_H
#include "zero.h"
#ifdef __cplusplus
extern "C" {
#endif

// -------- what a DeepSpeed file says

// Done as asked; without effect here; refused.
typedef enum { ZERO_KEY_HONOURED, ZERO_KEY_NO_EFFECT, ZERO_KEY_REFUSED } zero_key_fate;

enum { ZERO_DEEPSPEED_KEYS = 256, ZERO_DEEPSPEED_VALUE = 256 };
typedef struct {
    zero_key_fate fate;
    int line;                          // of the file
    char key[96];                      // "zero_optimization.stage"
    char setting[48];                  // what it sets, or what to set instead: of zero_config, or of the
                                       // trainer: "trainer.lr"; "": nothing
    char value[ZERO_DEEPSPEED_VALUE];  // of the setting, "3", "bf16" or "nvme"; "auto": it is
                                       // left as it was; of another key, the file's
    char remark[200];                  // why this value, why no effect, why refused; "": as the file has it
} zero_deepspeed_key;

typedef struct {
    zero_deepspeed_key keys[ZERO_DEEPSPEED_KEYS];  // in the file's order
    int n;
} zero_deepspeed;

// Returns 0: *config has taken over what the file asks of the plugin, and *said lists every key; what the
// file asks of the trainer stands only there. With config->micro_batches 0 it is not known yet, and what
// depends on it is not looked at. ZERO_ERR_ARGUMENT: keys are refused, *said has all of them, and *config is
// unchanged. offload.nvme of the file is valid until the calling thread reads the next one.
int zero_deepspeed_read(zero_config *config, zero_deepspeed *said, const char *path);

#ifdef __cplusplus
}
#endif
#endif
