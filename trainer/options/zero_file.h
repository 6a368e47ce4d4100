// The DeepSpeed file of --zero-config. Its settings become options, as if given on the command line.
#ifndef TRAINER_ZERO_FILE_H
#define TRAINER_ZERO_FILE_H
#include "../../llmc_zero/zero.h"

// Reads the file, if given. Call it after reading the command line. Refuses keys that are unsupported or
// that an option contradicts, by adding them to a list.
void take_zero_file(void);
// Sets B and opt.micro_batches from the file's batch sizes, and refuses keys that this device or the ranks
// rule out. The machine must be settled.
void settle_zero_file(void);
// Refuses keys that the run's batch contradicts.
void check_zero_file(int micro_batches);
// Ends the run with the list of all refused keys, if there are any. With --print-config, does so only
// if settings_shown is 1.
void end_if_refused(int settings_shown);

// Returns the file's contents, or NULL without a file.
const zero_deepspeed *zero_file(void);
// Returns the file's key for a setting, even if its value is "auto"; NULL: none.
zero_deepspeed_key *zero_file_key(const char *setting);

#endif
