// The plugin's settings, from the options and from the file of --zero-config.
#ifndef TRAINER_SETTINGS_H
#define TRAINER_SETTINGS_H
#include "../gpt2/layers.h"
#include "../llmc_zero/zero.h"

// Returns what zero_create is given. Options that the file overrules take its values: opt.stage, prefetch and
// comm_type, and run.overlap.
zero_config plugin_settings(gpt2_dtype dtype, int micro_batches);

#endif
