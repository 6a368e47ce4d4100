// Parameters: whole where the layers use them, gathered and released around their uses. Owns the slots, the
// gathers, and the last task that changes a unit's parameters: every gather runs after it. Each function that
// returns an int returns 0, or a negative error with the sentence set.
#ifndef LLMC_ZERO_PARAMS_H
#define LLMC_ZERO_PARAMS_H
#include "comm/comm.h"
#include "tiers/state.h"
#include "base/tasks.h"

struct params_unit {
    char *whole;             // the whole unit; NULL: not gathered (stage 3), or not open (stages 0 to 2)
    state_part opened;       // stages 0 to 2: `whole` points into it
    char *own;               // stage 3: private memory of a unit used more than once; NULL: it uses a slot
    int slot;                // the slot that holds it; -1: none
    int for_next_pass;       // stage 3: gathered for a pass that had not begun
    int64_t gathered_ahead;  // bytes of that gather; the pass that uses them is not known yet
    task gather;
    comm_use gather_use;
    char *gather_to;    // stage 3: where the whole unit goes; NULL: gathered in place
    task fetch;         // beside a GPU: copies what this rank sends from the host
    state_part source;  // what this rank sends
    // by the update
    task *changed_by;
    int may_put;       // it passes its new parameters to params_put
    char *put_to;      // stage 3: where this rank's new parameters are copied; NULL: nowhere
    int64_t put_from;  // elements of the part from here on have been copied
};

struct params {
    struct params_unit *units;  // (n_units)
    struct params_slot {
        char *memory;
        int unit;  // the unit in it; -1: empty
    } * slots;     // (n_slots) stage 3
    int n_slots;
    int64_t gathered_ahead[ZERO_TRAFFIC_PURPOSES];  // by the kind of pass that used them
};

int params_create(zero *z);
// Stages 1 to 3, at creation: gathers the unit once, as zeros; counter gets the bytes.
int params_rehearse(zero *z, int unit, int64_t *counter);

// -------- around a use

// Returns with the unit gathered and open; the next ones are being gathered.
int params_acquire(zero *z, int unit);
// Closes the unit unless another use of it is open, and prefetches what now fits.
int params_release(zero *z, int unit);
char *params_whole(const zero *z, int unit);  // of an open unit
// Stage 3: drops units that were not gathered for this pass.
int params_begin_pass(zero *z);
// Returns when no gather is under way and the device has done its work.
int params_complete(zero *z);
// Returns when no gather is under way; at stage 3 all slots are empty.
int params_drop_all(zero *z);
// Adds the bytes that were gathered ahead, by the purpose of the pass that used it.
void params_count(const zero *z, zero_traffic *t);

// -------- around the update

// From now on this task changes the unit's parameters; it must stay at its address. puts: it passes them to
// params_put.
void params_change_with(zero *z, int unit, task *by, int puts);
// That task is about to be submitted, and no use of the unit comes before it.
void params_before_update(zero *z, int unit);
// A piece's new parameters, opened for the CPU, are complete: gathers need not read them.
void params_put(zero *z, const state_part *p);
// The task has been submitted, so the unit may be gathered.
int params_updated(zero *z, int unit);
// Rounds the masters in the range into the parameters. d: where both are opened, for `on`.
int params_round(zero *z, device *d, device_stream on, state_range r);

#endif
