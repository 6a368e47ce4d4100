// Checkpoints. All ranks save together; any number of ranks can load, and a single process can read and
// verify. docs/reference/formats.md describes every byte. Part of zero.h, which includes this file.
#ifndef LLMC_ZERO_CHECKPOINT_INFO_H
#define LLMC_ZERO_CHECKPOINT_INFO_H
#ifdef __cplusplus
extern "C" {
#endif

// -------- checkpoints

// (collective) Returns 0 when a checkpoint is on disk: the masters and moments of all ranks, and `text`, a
// JSON object with the trainer's values (rank 0's is saved; NULL: none). path is a folder that all ranks and
// hosts share, created if needed. At every instant it holds either the older checkpoint or the new one,
// complete. If one rank fails, all do. Fails with ZERO_ERR_ARGUMENT if a value is Inf or NaN, and names it.
// If only the last sync of the folder fails (ZERO_ERR_IO), the new checkpoint is complete, but a power
// failure may bring back the older one.
int zero_save(zero *z, const char *path, const char *text);
// Sets *bytes to the size of all files that zero_save would write with this text, on all ranks. Returns 0, or
// an error if the text is invalid or memory runs out.
int zero_save_bytes(zero *z, const char *text, int64_t *bytes);
// (collective) Returns 0 if all values that zero_save would write are finite, else ZERO_ERR_ARGUMENT. Call it
// outside of a step.
int zero_check_finite(zero *z);
// (collective) Loads a checkpoint of the same tables, saved with any number of ranks, stage, tier and dtype.
// Sets *text to the trainer's object as JSON, which the caller frees; text may be NULL. After an error
// nothing has changed: ZERO_ERR_IO on all ranks if the checkpoint is missing, damaged or unreadable, so an
// older one may work; ZERO_ERR_ARGUMENT if it belongs to another model.
int zero_load(zero *z, const char *path, char **text);

// -------- saving during training

// (collective) Copies the states and returns; threads then write the copy as zero_save would, while training
// continues. The folder keeps the older checkpoint until zero_save_end. Calls zero_save_end first if another
// save is in progress. Needs async_save.
int zero_save_begin(zero *z, const char *path, const char *text);
// (collective) Waits for ranks that are still writing. Returns 0 when the checkpoint is on disk, or if no
// save is in progress; otherwise the save's error, with the folder as zero_save would leave it. zero_save
// calls it too; zero_destroy drops an unfinished save. Call it outside of a step.
int zero_save_end(zero *z);
// Returns 1 if zero_save_end would not wait for this rank: its part is written or has failed, or no save is
// in progress. Sum it over the ranks (zero_sum) to end the save when all are done.
int zero_save_written(const zero *z);

// -------- checkpoints without a plugin

// Reads only a checkpoint's trainer object; the caller frees *text.
int zero_checkpoint_text(const char *path, char **text);
// A checkpoint opened without zero_create, for programs that convert or inspect it.
typedef struct zero_checkpoint zero_checkpoint;
// Returns 0 and sets *c, which the caller closes; or sets it to NULL and returns an error if the checkpoint
// is missing or damaged, or its tables differ.
int zero_checkpoint_open(zero_checkpoint **c, const char *path, const zero_tensor *tensors, int n_tensors,
                         const zero_unit *units, int n_units);
// Gets elements [offset, offset + n) of a tensor's layer: of ZERO_MASTER, a moment, or ZERO_PARAM (the
// masters, rounded to the dtype of the run that saved them). Verifies the checksums of the blocks that it
// reads.
int zero_checkpoint_get(zero_checkpoint *c, zero_value what, int tensor, int layer, int64_t offset, int64_t n,
                        float *values);
zero_dtype zero_checkpoint_dtype(const zero_checkpoint *c);  // of the run that saved it
void zero_checkpoint_close(zero_checkpoint *c);
// Returns 0 if every byte of a checkpoint is as it was saved; otherwise an error with the file and offset of
// the first damage. Calls `told`, if not NULL, for each intact file. One process calls it; it needs memory
// only for the manifest and a few buffers.
typedef void (*zero_verified)(void *ctx, const char *file, int64_t bytes);
int zero_checkpoint_verify(const char *path, zero_verified told, void *ctx);
// Removes a checkpoint, or the remains of an interrupted save. One rank calls it.
int zero_checkpoint_remove(const char *path);

#ifdef __cplusplus
}
#endif
#endif
