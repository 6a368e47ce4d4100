// The DeepSpeed file of --zero-config: its settings become options, as if given on the command line.
#ifndef TRAINER_ZERO_FILE_H
#define TRAINER_ZERO_FILE_H
#include "../llmc_zero/zero.h"

// Reads the file, if there is one, after the command line. Keys that are not supported, or that an option
// contradicts, end the run, which lists them all.
void take_zero_file(void);
// Settles B from the batch sizes of the file, and opt.micro_batches. The ranks must be known.
void settle_file_batch(void);
// Ends the run if its batch is not the file's.
void check_file_batch(int micro_batches);

// Returns the file's contents, or NULL without a file.
const zero_deepspeed *zero_file(void);
// Returns the key by which the file has set a setting, even to "auto", or NULL.
const zero_deepspeed_key *zero_file_key(const char *setting);

#endif
