// The plugin's settings, from the options and from the file of --zero-config.
#ifndef TRAINER_SETTINGS_H
#define TRAINER_SETTINGS_H
#include "../gpt2/layers.h"
#include "../llmc_zero/zero.h"
#include "../llmc_zero/zero.h"
#include "options.h"

// Returns what the options say. The dtype and the micro-batches are not known yet.
zero_config settings_of(const Options *o);
// Returns what zero_create is given. Ends the run if the file of --zero-config does not go with it.
zero_config plugin_settings(gpt2_dtype dtype, int micro_batches);
// Returns the same settings with the stage and the tiers that the options have now.
zero_config settings_with_options(const zero_config *config);
// Returns the same settings at another stage: what that stage does not shard stays on the device.
zero_config settings_at_stage(const zero_config *config, int stage);
// Returns the settings that plugin_settings came to.
const zero_config *effective_settings(void);
// Returns 1 if they put some states on NVMe: the same on all ranks, even if all states of one fit elsewhere.
int settings_use_nvme(void);

#endif
