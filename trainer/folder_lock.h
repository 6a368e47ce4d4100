// The lock of the output folder, so that two runs do not mix their files. Rank 0 holds it, and the kernel
// releases it when the process ends in any way.
#ifndef TRAINER_FOLDER_LOCK_H
#define TRAINER_FOLDER_LOCK_H

// Rank 0 locks -o before anything there is read or changed. A failure is kept for check_folder_lock, so that
// it ends all ranks once they are connected.
void lock_folder(void);
// Ends the run if rank 0 did not get the lock: the message names the run that has it.
void check_folder_lock(void);
// Ends the run if another one has taken the folder, after the lock's file was removed. Called before each
// save, on rank 0; other ranks return at once.
void check_lock_is_held(void);

#endif
