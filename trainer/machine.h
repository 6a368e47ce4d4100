// This process's rank, device, threads and dtype, and the plugin's settings, which follow from them and from
// the options.
#ifndef TRAINER_MACHINE_H
#define TRAINER_MACHINE_H
#include "../gpt2/layers.h"
#include "../llmc_zero/zero.h"
#include "options.h"

// Reads the launcher's environment. Comes first, since only rank 0 prints messages about options.
void take_launched_ranks(void);
// Call it once the plugin exists: it must have found the same rank.
void check_launched_ranks(void);
// (collective) Warns if program, device, instruction set or threads differ between ranks. Results are still
// correct, but their last bits depend on these.
void note_differences(void);

// Settles the ranks, the device, threads and overlap in `run`. What cannot be had as requested ends the run.
void settle_machine(void);
gpt2_dtype settle_dtype(void);
const char *dtype_name(gpt2_dtype dtype);

// Returns the settings in the options. The dtype and the micro-batches are not known yet.
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
