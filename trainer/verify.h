// --verify: reads what has been saved, and compares every checksum, and model files with their checkpoints.
// Nothing else of a run happens.
#ifndef TRAINER_VERIFY_H
#define TRAINER_VERIFY_H

// path: a checkpoint, a folder of them or a model file. Prints a line for each file that
// is good, and for each checkpoint that is not its first damage. Returns the exit status: 0: all are good.
int verify(const char *path);

#endif
