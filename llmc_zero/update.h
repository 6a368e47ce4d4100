// AdamW on the parts that this rank owns, piece by piece. Owns the order of the units, the pieces and which
// are open, and the versions of a delayed update. Each function that returns an int returns 0, or a negative
// error with the sentence set.
#ifndef LLMC_ZERO_UPDATE_H
#define LLMC_ZERO_UPDATE_H
#include "device/kernels.h"
#include "tiers/state.h"
#include "base/tasks.h"

struct update_unit {
    int first_piece, n_pieces;  // the unit's pieces on this rank, in update.pieces
    int is_early;               // its task was submitted during this step's backward
    task adamw;
    task publish;  // of a delayed update: makes its result the parameters
};

// The unit of work: a range that this rank owns, and its segment of each tensor.
struct update_piece {
    state_range range;
    adamw_table table;
    device *by;  // runs the AdamW
    device_stream on;
};

struct update {
    struct update_unit *units;    // (n_units)
    struct update_piece *pieces;  // (n_pieces) unit by unit
    int64_t n_pieces;
    adamw_constants constants;
    int *order;         // (n_units) units in the order of their update
    int n_known;        // how many entries of it are known; the update's lane reads it
    int n_early;        // how many were submitted during backward: the last units of the table
    int at;             // the entry being updated
    int is_ahead;       // 1: a piece is opened while the previous one is updated
    int is_delayed;     // the last update is: it does not change the parameters
    int unpublished;    // its masters are not the parameters yet
    state next_params;  // written by a delayed update to files: see state_has_next
    state_part opened[2][STATES];
    int window;                                // which of the two is opened next
    const struct update_piece *read_ahead[2];  // the two pieces begun during backward; NULL: none
};

int update_create(zero *z);

// After each backward use: submits the units that can be updated already, if the step's end is promised.
// Otherwise begins to read the first pieces of the update.
int update_during_backward(zero *z);
// Lanes with a thread may still be working when it returns.
int update_units(zero *z, const zero_hyper *h, double grad_scale);
// The step ends without an update.
void update_discard(zero *z);

// Makes the result of a delayed last update the parameters.
int update_publish(zero *z);
// The states were loaded: there is nothing to publish.
void update_forget(zero *z);
// Returns when the last update has ended.
int update_wait(zero *z);
// Returns when all gathers have ended too and the device has finished, so that states may be read. After
// params_drop_all they may also be changed.
int update_settle(zero *z);
int update_pieces_read_ahead(const zero *z);  // 0, 1 or 2

#endif
