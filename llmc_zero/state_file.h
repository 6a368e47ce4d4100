// Model states of which a part lies in files (ZeRO-Infinity, Rajbhandari et al. 2021, arXiv 2104.07857): each
// rank's own part of every unit, and no other byte. What is opened is read into a buffer of a small pool, and
// written back when it is closed, while the trainer goes on. What is only read may go straight to where it is
// needed (state_begin's `into`). The gradients of a bucket are opened all at once to be reduced, each part
// whole, in room of their own: one of two halves, in turn, so that a bucket is reduced while the one before
// is written.
#ifndef LLMC_ZERO_STATE_FILE_H
#define LLMC_ZERO_STATE_FILE_H
#include "state.h"
#include "trace.h"

// Of a rank's part of a unit the elements that lie in files or, beside a CUDA device, in host memory: the
// first ones. From the settings and the layout alone.
int64_t state_away(zero_value what, const zero_config *c, const layout *l, int rank, int unit);
// 1: some lie in files.
int state_goes_to_files(zero_value what, const zero_config *c);
// 1: what a delayed update makes of this rank's parameters of the unit has room of its own in the files, so
// that nothing need be read and written once more when it becomes the parameters.
int state_has_next(const zero_config *c, const layout *l, int rank, int unit);
// ZERO_NVME; ZERO_HOST, where the device is another; else ZERO_DEVICE, whose memory is the host's on a CPU.
zero_tier state_tier(zero_value what, const zero_config *c);

// Elements of a part are read, updated and written in pieces that end at multiples of this, counted in the
// unit, so that pieces of all states are whole pages of their files.
int64_t state_piece_elems(const zero_config *c, const layout *l);
// The range of a piece that begins at `from`: as far as the next multiple, or the next end of what lies in
// files.
int64_t state_piece_end(const zero_config *c, const layout *l, int rank, int unit, int64_t from);

// Beside a device: parts of the parameters that are read, or still copied to it, at once.
enum { STATE_FETCHES = 4 };

typedef struct {
    int64_t file_bytes[STATES];  // of each state
    int buffers;                 // of the pool, each of buffer_bytes
    size_t buffer_bytes;
    int halves;  // for the sums of the gradients, each of half_bytes, behind the buffers
    size_t half_bytes;
    size_t pool_bytes;  // of all of them
} state_files_plan;
state_files_plan state_plan_files(const zero_config *c, const layout *l, int rank);
// What is read or written where a range is opened: whole pages. size: of an element.
size_t state_file_bytes(const layout *l, int rank, size_t size, state_range r);
file_settings state_file_settings(const zero_config *c, int rank);

// Returns 0 with the files made and nothing in them but zeros. pool: of the planned size.
// tr: gets what is read and written.
int state_files_open(struct state_files **f, const zero_config *c, const layout *l, int rank, char *pool,
                     trace *tr);
// Removes them. Returns as file_close does, about the pool and what was read into. NULL is allowed.
int state_files_close(struct state_files *f);
// Waits for what is being written.
void state_files_describe(struct state_files *f, zero_file_info *info);

// Returns 1 if nothing is being written from the buffers of the pool.
int state_files_written(struct state_files *f);

// A part of the parameters is gathered from where it lies. read: what of it is read there; the rest was not
// written yet when it was needed.
void state_files_count_gather(const state *s, state_range read);
// 1: this rank's part of the unit lies in the files.
int state_files_has(const state *s, int unit);

// From now on state `number` of these files is opened through them. Before it is created.
void state_keep_in_files(state *s, int number, struct state_files *f, const zero_config *c);

// After that. *next: a state for the update to write, of the units that state_has_next names. Its elements
// become the parameters with state_publish, unit by unit, while no part of the unit is open in either.
void state_keep_next(state *next, const state *params);
void state_publish(const state *params, int unit);

#endif
