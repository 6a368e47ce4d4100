// Which checkpoints of the output folder are kept. Only rank 0 calls this.
#ifndef TRAINER_CHECKPOINT_KEEP_H
#define TRAINER_CHECKPOINT_KEEP_H
#include "checkpoint_list.h"

// Removes complete checkpoints up to this step beyond the newest -nk, except those of -nm, and leftovers of
// killed saves. Ignores later steps, which are not part of this branch.
void checkpoints_prune(int step);
// Sets aside complete ones of steps `from` to `to`, except step `but`, as abandoned_%08d/: they belong to an
// abandoned branch. -y 1 ignores them once a newer one is recorded.
void checkpoints_set_aside(int from, int to, int but);
// Gives one that was set aside its name back: the save that was to replace it did not complete. Returns 1 if
// the checkpoint has that name now, 0 if another save of its step has it.
int checkpoint_set_back(const Found *f);
// Removes what killed saves of this step have left of its model file.
void checkpoint_remove_temporary(int step);
// Removes a file, and prints a warning if that fails. A missing file is not an error.
void checkpoint_remove_file(const char *path);

#endif
