// The settings in effect, each with its reason, for the start table, summary.json and --print-config.
#ifndef TRAINER_CONFIG_TABLE_H
#define TRAINER_CONFIG_TABLE_H
#include <stdio.h>
#include "../running/activations.h"

// Prints every setting, and the keys of the DeepSpeed file that have no effect. Ends the run if settings
// conflict.
void print_config(const GPT2 *model, int micro_batches);
// Prints the settings that differ from their defaults or were derived, and the file's keys that have no
// effect. Call it after plugin_settings.
void print_config_lines(void);
// Returns why the setting has its value: "option --overlap". Valid until the next call of these functions.
const char *reason_of(const char *name);
// Prints a plan's bucket size and its number of slots.
void print_buckets(const zero_plan *plan);
// Writes all settings as a JSON object.
void write_config(FILE *f);

#endif
