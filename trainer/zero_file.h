// The DeepSpeed file of --zero-config: what it says goes to the options, as if the command line had it.
#ifndef TRAINER_ZERO_FILE_H
#define TRAINER_ZERO_FILE_H
#include "../llmc_zero/zero_deepspeed.h"

// Reads the file, if there is one, after the command line. A key that nothing here honours, and one that an
// option contradicts, ends the run, and all of them are listed.
void take_zero_file(void);
// Settles B by the batch sizes of the file, and opt.micro_batches. The ranks are known.
void settle_file_batch(void);
// Ends the run if its batch is not the file's.
void check_file_batch(int micro_batches);

// Returns what the file says, or NULL without a file.
const zero_deepspeed *zero_file(void);
// Returns the key by which the file has set a setting, also to "auto", or NULL.
const zero_deepspeed_key *zero_file_key(const char *setting);

#endif
