// The update of the parts that this rank owns, piece by piece. Owns the order of the units, the pieces, the
// open pieces, and the result of a delayed update until it is published. Functions that return an int return
// 0, or a negative error code with the error set.
#ifndef LLMC_ZERO_UPDATE_H
#define LLMC_ZERO_UPDATE_H
#include "device/kernels.h"
#include "tiers/state.h"
#include "base/tasks.h"

struct update_unit {
    int first_piece, n_pieces;  // this rank's pieces of the unit, in update.pieces
    int is_early;               // 1: its task was submitted during this step's backward
    task adamw;
    int is_delayed;  // 1: `publish` makes the result of a delayed update the parameters; 0: it does nothing
    task publish;
};

// The unit of work: a range that this rank owns, and a segment for each tensor in it.
struct update_piece {
    state_range range;
    adamw_table table;
    device *by;  // runs its update
    device_stream on;
};

struct update {
    struct update_unit *units;    // (n_units)
    struct update_piece *pieces;  // (n_pieces) unit by unit
    int64_t n_pieces;
    adamw_constants constants;
    own_update own;
    int *order;         // (n_units) units in update order
    int n_known;        // number of valid entries in `order`; also read by the update's lane
    int n_early;        // units submitted during backward: the last ones of the table
    int at;             // index in `order` of the unit being updated
    int is_ahead;       // 1: each piece is opened while the previous one is updated
    int is_delayed;     // 1: the last update is delayed, so it does not change the parameters
    int unpublished;    // 1: its result is not in the parameters yet
    state next_params;  // parameters in files that a delayed update writes: see placement_has_next
    state_part opened[2][STATES];
    int window;                                // index of `opened` for the next piece
    const struct update_piece *read_ahead[2];  // the two pieces begun during backward; NULL: none
};

int update_create(zero *z);

// Call it after each backward use. If the update is promised, submits units that can already be updated;
// otherwise begins reading the first pieces of the update.
int update_during_backward(zero *z);
// Starts the update. Lanes with a thread may still be updating when it returns.
int update_units(zero *z, const zero_hyper *h, double grad_scale);
// Call it when the step ends without an update.
void update_discard(zero *z);

int update_is_unpublished(const zero *z);  // 1: the last update is delayed, and not in the parameters yet
// If so, makes its result the parameters. Call it when no unit is gathered.
int update_publish(zero *z);
// Call it after loading the states, which replace the result of a delayed update.
void update_forget(zero *z);
// Returns when the last update has ended.
int update_wait(zero *z);
int update_pieces_read_ahead(const zero *z);  // 0, 1 or 2

#endif
