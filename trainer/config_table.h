// The settings that hold, each with the reason: in the start table, in summary.json and for --print-config.
#ifndef TRAINER_CONFIG_TABLE_H
#define TRAINER_CONFIG_TABLE_H
#include <stdio.h>
#include "activations.h"

// Prints every setting, and what of the DeepSpeed file has no effect. Settings that do not go together end
// the run.
void print_config(const GPT2 *model, int micro_batches);
// Prints the settings that are no defaults or were derived, and the same of the file. plugin_settings comes
// before.
void print_config_lines(void);
// Prints the bucket size and the slots that a plan has.
void print_buckets(const zero_plan *plan);
// Writes all settings as a JSON object.
void write_config(FILE *f);

#endif
