// The lock of the output folder, so that two runs do not mix their files. Rank 0 holds it, and the kernel
// takes it back when the process ends, however it ends.
#ifndef TRAINER_FOLDER_LOCK_H
#define TRAINER_FOLDER_LOCK_H

// Rank 0 takes the lock of -o, before anything there is read or changed. A failure is kept for
// check_folder_lock, so that it ends all ranks once they are connected.
void lock_folder(void);
// Ends the run if rank 0 has not got the lock: the message names the run that has it.
void check_folder_lock(void);
// Ends the run if another one has taken the folder, since somebody has removed the lock's file. Before each
// save, on rank 0; the others return.
void check_lock_is_held(void);

#endif
