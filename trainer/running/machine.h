// This process's rank, device, threads and dtype, and the plugin's settings, which depend on them and on the
// options.
#ifndef TRAINER_MACHINE_H
#define TRAINER_MACHINE_H
#include "../planning/machines.h"
#include "../../gpt2/layers.h"
#include "../../llmc_zero/zero.h"
#include "../options/options.h"

// Reads the launcher's environment. Call it first, since only rank 0 prints messages about options.
void take_launched_ranks(void);
// Checks that the plugin found the same rank. Call it once the plugin exists.
void check_launched_ranks(void);
// (collective) Warns if the program, device, instruction set or threads differ between ranks. Results are
// still correct, but their last bits depend on all of these.
void note_differences(void);

// Sets the ranks, the device, threads and overlap in `run`. A request that cannot be met ends the run. Starts
// the program again if OpenMP's threads must sleep while they wait; argv: main's.
void settle_machine(char **argv);
// Sets run.overlap once more, after the options have changed.
void settle_overlap(void);
// Returns the machine of --machine.
const Machine *machine_of_plan(void);
gpt2_dtype settle_dtype(void);
const char *dtype_name(gpt2_dtype dtype);

// Returns the settings for these options, without the dtype and the micro-batches.
zero_config settings_of(const Options *o);
// Returns the settings for zero_create. Ends the run if the file of --zero-config contradicts them.
zero_config plugin_settings(gpt2_dtype dtype, int micro_batches);
// Returns the same settings at another stage. States that this stage does not shard stay on the device.
zero_config settings_at_stage(const zero_config *config, int stage);
// Returns the last result of plugin_settings.
const zero_config *effective_settings(void);
// Returns 1 if these settings put some states on NVMe. The result is the same on all ranks, even if this rank
// puts none there.
int settings_use_nvme(void);

#endif
