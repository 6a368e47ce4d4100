// The update of the parts that this rank owns, piece by piece. Owns the order of the units, the pieces, the
// open pieces, and the result of a delayed update until it is published.
#ifndef LLMC_ZERO_UPDATE_H
#define LLMC_ZERO_UPDATE_H
#include "device/kernels.h"
#include "tiers/state.h"
#include "base/tasks.h"

struct update_unit {
    int first_piece, n_pieces;  // this rank's pieces of the unit, in update.pieces
    int is_early;  // 1: its task was submitted during this step's backward, or its states may have been read
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

// Without gradients until they are reduced.
struct update_opened {
    const struct update_piece *piece;
    int at;  // index of its unit in the order
    state_part parts[STATES];
};

enum { UPDATE_OPENED = 3 };  // pieces open at once, at most: see most_opened

struct update {
    struct update_unit *units;    // (n_units)
    struct update_piece *pieces;  // (n_pieces) unit by unit
    int64_t n_pieces;
    adamw_constants constants;
    own_update own;
    int *order;         // (n_units) units in update order
    int n_known;        // number of valid entries in `order`; also read by the update's lane, like
    int n_submitted;    // the number of units, the first ones of the order, whose reductions are submitted
    int n_early;        // units submitted during backward: the last ones of the table
    int at;             // index in `order` of the unit being updated
    int is_ahead;       // 1: pieces are opened while previous ones are updated
    int is_delayed;     // 1: the last update is delayed, so it does not change the parameters
    int unpublished;    // 1: its result is not in the parameters yet
    state next_params;  // parameters in files that a delayed update writes: see placement_has_next
    struct update_opened opened[UPDATE_OPENED];  // a ring: the open pieces, in the order of the update
    int first, n_opened;
    int next_at, next_piece;  // the piece to open next: the index of its unit in `order`, and within the unit
};

int update_create(zero *z);

// Call it after each backward use. If the update is promised, submits units that can already be updated;
// otherwise begins reading the first pieces of the update.
int update_during_backward(zero *z);
// Starts the update. Lanes with a thread may still be updating when it returns.
int update_units(zero *z, const zero_hyper *h, double grad_scale);
// Call it when the step ends without an update.
int update_discard(zero *z);

int update_is_unpublished(const zero *z);  // 1: the last update is delayed, and not in the parameters yet
// If so, makes its result the parameters. Call it when no unit is gathered.
int update_publish(zero *z);
// Call it after loading the states, which replace the result of a delayed update.
void update_forget(zero *z);
// Returns when the last update has ended.
int update_wait(zero *z);
// During backward, and when the last update has ended: returns the number of open pieces.
int update_pieces_read_ahead(const zero *z);

#endif
