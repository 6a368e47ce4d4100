// Checkpoints: saved by all ranks at once, loaded at any number of ranks, read and verified by one process.
// docs/formats.md describes every byte. Part of zero.h, which includes this file at its end.
#ifndef LLMC_ZERO_CHECKPOINT_INFO_H
#define LLMC_ZERO_CHECKPOINT_INFO_H
#ifdef __cplusplus
extern "C" {
#endif

// -------- checkpoints

// (collective) Returns 0 when a checkpoint is on disk: the masters and moments of all ranks, and `text`, a
// JSON object of the trainer's own (NULL: none; rank 0's counts). path: a folder, the same for all ranks and
// hosts, made if it is not there. It holds the checkpoint that it had, or the new one, at every instant. All
// ranks fail if one does. ZERO_ERR_ARGUMENT: a value is not finite, and the sentence names it. If
// all that failed is the last sync of the folder (ZERO_ERR_IO), the new checkpoint is complete and counts,
// but a power failure may still bring back the one before.
int zero_save(zero *z, const char *path, const char *text);
// (collective) Returns 0 if what zero_save would write is finite, else ZERO_ERR_ARGUMENT likewise. Outside of
// a step.
int zero_check_finite(zero *z);
// (collective) Returns 0 when the plugin is what zero_save wrote with the same tables, at any number of
// ranks, stage, tier and dtype. *text: the trainer's object, printed anew, the caller's to free; text may be
// NULL. ZERO_ERR_IO on all ranks, with the states as they were: missing, damaged, or not to be read, so that
// an older checkpoint may help; ZERO_ERR_ARGUMENT: of another model.
int zero_load(zero *z, const char *path, char **text);

// -------- saving while training goes on

// (collective) Returns 0 when the states are copied, and threads write the copy as zero_save would write
// them: training goes on. The folder has the checkpoint that it had until zero_save_end. A save that has
// begun before is ended first. With async_save.
int zero_save_begin(zero *z, const char *path, const char *text);
// (collective) Returns 0 when the checkpoint is on disk, or none has begun; waits for the ranks that still
// write. An error is that of the save, which is over, and the folder has what zero_save would have left.
// zero_save ends one too; zero_destroy drops it. Outside of a step.
int zero_save_end(zero *z);
// Returns 1 if zero_save_end would not wait for this rank: its part is written, or has failed, or none has
// begun. Ranks that sum something anyway can sum this too, and end the save when none of them writes.
int zero_save_written(const zero *z);

// -------- checkpoints without a plugin

// Returns 0 and the trainer's object of a checkpoint, before there is a plugin. Its states are not looked at.
int zero_checkpoint_text(const char *path, char **text);
// A checkpoint that is read without a plugin and without its ranks: for programs that convert or inspect one.
typedef struct zero_checkpoint zero_checkpoint;
// Returns 0 and *c, which the caller closes, or an error and NULL: no checkpoint, damaged, or of other
// tables.
int zero_checkpoint_open(zero_checkpoint **c, const char *path, const zero_tensor *tensors, int n_tensors,
                         const zero_unit *units, int n_units);
// Returns 0 and elements [offset, offset + n) of a tensor's layer, of ZERO_MASTER, of a moment, or of
// ZERO_PARAM: the masters, rounded to the dtype of the run that saved them. Blocks are compared with their
// checksums as they are read.
int zero_checkpoint_get(zero_checkpoint *c, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
                        float *values);
zero_dtype zero_checkpoint_dtype(const zero_checkpoint *c);  // of the run that saved it
void zero_checkpoint_close(zero_checkpoint *c);
// Returns 0 if every byte of a checkpoint's folder is what was saved; else the first damage, with its file
// and offset. `told`, if not NULL, is called for each file that is good. One process does it, without a
// plugin, in the memory of the manifest and a few buffers.
typedef void (*zero_verified)(void *ctx, const char *file, int64_t bytes);
int zero_checkpoint_verify(const char *path, zero_verified told, void *ctx);
// Returns 0 when the checkpoint is gone, or what a save that died has left of one. One rank calls it.
int zero_checkpoint_remove(const char *path);

#ifdef __cplusplus
}
#endif
#endif
