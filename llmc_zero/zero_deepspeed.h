// Settings from a DeepSpeed JSON file. Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_DEEPSPEED_H
#define LLMC_ZERO_DEEPSPEED_H
#ifdef __cplusplus
extern "C" {
#endif

// -------- settings from a DeepSpeed file

// Applies the plugin's keys of a DeepSpeed JSON file to *config (see docs/deepspeed.md). If keys cannot
// be honoured, fails with ZERO_ERR_ARGUMENT, lists them all with file, line and value, and leaves *config
// unchanged. Fails with ZERO_ERR_IO if the file is unreadable. Every rank reads the file. offload.nvme is
// valid until the calling thread reads another file.
int zero_config_from_file(zero_config *config, const char *path);
// Does the same from the environment: ZERO_STAGE=0..3, and ZERO_CONFIG=path of a DeepSpeed file. If both are
// set, they must agree.
int zero_config_from_env(zero_config *config);

// The next types report every key of the file, for a trainer that reads options from it or prints the result.

// Applied; accepted, but without effect here; refused.
typedef enum { ZERO_KEY_HONOURED, ZERO_KEY_NO_EFFECT, ZERO_KEY_REFUSED } zero_key_fate;

enum { ZERO_DEEPSPEED_KEYS = 256, ZERO_DEEPSPEED_VALUE = 256 };
typedef struct {
    zero_key_fate fate;
    int line;          // of the file
    char key[96];      // "zero_optimization.stage"
    char setting[48];  // the setting that the key sets, or the one to set instead: in zero_config, or the
                       // trainer's, "trainer.lr"; "": none
    char value[ZERO_DEEPSPEED_VALUE];  // of the setting, "3", "bf16" or "nvme"; "auto": not changed; if there
                                       // is no setting, the file's text
    char remark[200];  // why this value, why no effect, or why refused; "": nothing to explain
} zero_deepspeed_key;

typedef struct {
    zero_deepspeed_key keys[ZERO_DEEPSPEED_KEYS];  // in the file's order
    int n;
} zero_deepspeed;

// Like zero_config_from_file, but lists every key in *report, also after ZERO_ERR_ARGUMENT. The trainer's
// keys are listed, not refused.
int zero_deepspeed_read(zero_config *config, zero_deepspeed *report, const char *path);

#ifdef __cplusplus
}
#endif
#endif
