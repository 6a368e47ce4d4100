// AdamW on the parts that this rank owns, piece by piece. It owns the order of the units, the pieces and what
// is open of them, and the versions of a delayed update. Each function that returns an int returns 0, or a
// negative error with the sentence set.
#ifndef LLMC_ZERO_UPDATE_H
#define LLMC_ZERO_UPDATE_H
#include "device/kernels.h"
#include "state.h"
#include "tasks.h"

struct update_unit {
    int first_piece, n_pieces;  // what this rank updates of the unit, of update.pieces
    int is_early;               // in this step: its task was submitted during backward
    task adamw;
    task publish;  // of a delayed update: the parameters become what the last update made
};

// What is updated at once: a range that this rank owns, and what it has of each tensor.
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
    int *order;         // (n_units) units in the order in which they are updated
    int n_known;        // how many of them are known; the update's lane reads it
    int n_early;        // how many of these were submitted during backward: the last units of the table
    int at;             // which of them is updated now
    int is_ahead;       // 1: a piece is opened while the one before is updated
    int is_delayed;     // the last update is: it leaves the parameters as they are
    int unpublished;    // its masters have not been made parameters yet
    state next_params;  // that a delayed update makes in the files: see state_has_next
    state_part opened[2][STATES];
    int window;                                // the one of the two that is opened next
    const struct update_piece *read_ahead[2];  // what of the two was begun during backward; NULL: nothing
};

int update_create(zero *z);
void update_free(zero *z);

// After each backward use: submits what can be updated already, if the step's end is promised. Else begins to
// read what is updated first.
int update_during_backward(zero *z);
// What has a thread may still be under way when it returns.
int update_units(zero *z, const zero_hyper *h, double grad_scale);
// The step ends without an update.
void update_discard(zero *z);

// The result of the last update becomes the parameters, if the update was delayed.
int update_publish(zero *z);
// The states were loaded: nothing is left to be published.
void update_forget(zero *z);
// Returns when the last update has ended.
int update_wait(zero *z);
// Returns when all gathers have ended too and the device has done its work, so that states may be read. With
// params_drop_all after it they may be changed.
int update_settle(zero *z);
int update_pieces_read_ahead(const zero *z);  // 0, 1 or 2

#endif
