// The DeepSpeed file of --zero-config. Its settings become options, as if given on the command line.
#ifndef TRAINER_ZERO_FILE_H
#define TRAINER_ZERO_FILE_H
#include "../llmc_zero/zero.h"

// Reads the file, if given. Call it after reading the command line. Unsupported keys, and keys that an option
// contradicts, end the run with a list of all of them.
void take_zero_file(void);
// Sets B and opt.micro_batches from the file's batch sizes. The ranks must be known.
void settle_file_batch(void);
// Ends the run if the batch size differs from the file's.
void check_file_batch(int micro_batches);

// Returns the file's contents, or NULL without a file.
const zero_deepspeed *zero_file(void);
// Returns the file's key for a setting, even if its value is "auto"; NULL: none.
const zero_deepspeed_key *zero_file_key(const char *setting);

#endif
