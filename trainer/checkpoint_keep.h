// Which checkpoints of the output folder stay. For rank 0 alone.
#ifndef TRAINER_CHECKPOINT_KEEP_H
#define TRAINER_CHECKPOINT_KEEP_H
#include "checkpoint_list.h"

// Removes complete checkpoints up to this step beyond the newest -nk, but for those of -nm, and what saves
// that died have left. It looks at none of later steps: those are no part of this course.
void checkpoints_prune(int step);
// Sets aside complete ones of steps from `from` to `to`, but not that of step `but`, as abandoned_%08d/: they
// are of another course than this run. -y 1 does not look there once a newer one is noted.
void checkpoints_set_aside(int from, int to, int but);
// Gives one that was set aside its name again: the save that was to replace it has not ended.
void checkpoint_set_back(const Found *f);
// Removes what saves of this step that died have left of its model file.
void checkpoint_remove_temporary(int step);
// Removes a file, and tells on the screen if that fails. One that is not there is none to remove.
void checkpoint_remove_file(const char *path);

#endif
