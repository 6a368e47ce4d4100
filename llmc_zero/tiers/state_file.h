// Model states that are partly in files (ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857): each rank
// stores exactly its own part of every unit. Opening reads into a buffer of a small pool; closing writes the
// buffer back asynchronously. Read-only data may be read directly into the memory that needs it
// (state_begin's `into`). A bucket's gradients are opened together, as whole parts, in separate memory with
// two halves: one bucket is reduced in one half while the previous bucket is written from the other.
#ifndef LLMC_ZERO_TIERS_STATE_FILE_H
#define LLMC_ZERO_TIERS_STATE_FILE_H
#include "state.h"
#include "../base/trace.h"

// With a GPU: how many parts of the parameters can be read or copied at a time.
enum { STATE_FETCHES = 4 };

typedef struct {
    int64_t file_bytes[STATES];  // of each state
    int buffers;                 // number of buffers in the pool, of buffer_bytes each
    size_t buffer_bytes;
    int halves;  // for reducing gradients, of half_bytes each, after the buffers
    size_t half_bytes;
    size_t pool_bytes;  // buffers and halves
} state_files_plan;
state_files_plan state_plan_files(const zero_config *c, const layout *l, int rank);
// Returns the bytes read to open a range, or written to close it: whole pages.
size_t state_file_bytes(const state *s, state_range r);
file_settings state_file_settings(const zero_config *c, int rank);

// Creates the files, all zeros. m: for the tables. pool: memory of the planned size. tr: records transfers.
int state_files_open(struct state_files **f, const zero_config *c, const layout *l, int rank, memory *m,
                     char *pool, trace *tr);
// Removes the files. Returns 1 if a hung disk may still use the pool or direct reads' memory. f may be NULL.
int state_files_close(struct state_files *f);
// Sets the members of *info that concern files. Waits for pending writes.
void state_files_describe(struct state_files *f, zero_files *info);

// Returns 1 if a third of the pool, a buffer for each state, is neither in use nor being written.
int state_files_have_buffers(struct state_files *f);

// Returns the bytes in files of this rank's part of a unit, without those of `read`, which starts at 0.
int64_t state_files_not_read(const state *s, state_range read);

// Stores the state in these files. Call it before state_create.
int state_keep_in_files(state *s, struct state_files *f, const zero_config *c, memory *m);

// Call it after state_keep_in_files. Sets *next to the state that a delayed update writes, for the units of
// placement_has_next. state_publish makes its elements of a unit the parameters; no part of the unit may be
// open in either state.
int state_keep_next(state *next, const state *params, const zero_config *c, memory *m);
void state_publish(const state *params, const state *next, int unit);

#endif
