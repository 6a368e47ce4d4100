// Parameters: whole where the layers use them, gathered and released around their uses. It owns the slots,
// the gathers, and which task changes a unit's parameters last: every gather comes after that one. Each
// function that returns an int returns 0, or a negative error with the sentence set.
#ifndef LLMC_ZERO_PARAMS_H
#define LLMC_ZERO_PARAMS_H
#include "comm/comm.h"
#include "state.h"
#include "tasks.h"

struct params_unit {
    char *whole;             // all of the unit, or NULL: it is not gathered (stage 3), or not open (below it)
    state_part opened;       // stages 0 to 2: what whole points into
    char *own;               // stage 3: room of a unit that is used more than once; NULL: it goes to a slot
    int slot;                // which slot holds it; -1: none
    int for_next_pass;       // stage 3: gathered for a pass that had not begun
    int64_t gathered_ahead;  // bytes of that gather; the pass that uses them is not known yet
    task gather;
    comm_use gather_use;
    char *gather_to;    // stage 3: where the whole unit goes; NULL: it is gathered in place
    task fetch;         // beside a device: copies what this rank sends from the host
    state_part source;  // what this rank sends
    // of the update
    task *changed_by;
    int may_put;       // its new parameters are handed to params_put
    char *put_to;      // stage 3: there this rank's new parameters are put; NULL: nowhere
    int64_t put_from;  // they have been from this element of the part on
};

struct params {
    struct params_unit *units;  // (n_units)
    struct params_slot {
        char *memory;
        int unit;  // who is in it; -1: nobody
    } * slots;     // (n_slots) stage 3
    int n_slots;
    int64_t gathered_ahead[ZERO_TRAFFIC_PURPOSES];  // by what the pass was that used them
};

int params_create(zero *z);
void params_free(zero *z);
// Stages 1 to 3, at creation: the unit's gather, of zeros; counter gets the bytes.
int params_rehearse(zero *z, int unit, int64_t *counter);

// -------- around a use

// Returns with the unit gathered and open; the next ones are on their way.
int params_acquire(zero *z, int unit);
// Closes the unit unless another use of it is open, and gathers what there is room for now.
int params_release(zero *z, int unit);
char *params_whole(const zero *z, int unit);  // of an open unit
// Stage 3: drops what was not gathered for this pass.
int params_begin_pass(zero *z);
// Returns when no gather is under way and the device has done its work.
int params_complete(zero *z);
// Returns when no gather is under way; at stage 3 nothing is held any more.
int params_drop_all(zero *z);
// Adds what was gathered ahead, by the purpose of the pass that used it.
void params_count(const zero *z, zero_traffic *t);

// -------- around the update

// From now on the unit's parameters are changed by this task, which stays where it is. puts: it hands them to
// params_put.
void params_change_with(zero *z, int unit, task *by, int puts);
// That task is going to be submitted, and no use of the unit comes before it.
void params_before_update(zero *z, int unit);
// A piece's new parameters, opened by the processor, are there: gathers need not read them.
void params_put(zero *z, const state_part *p);
// The task has been submitted, so the unit may be gathered.
int params_updated(zero *z, int unit);
// Parameters in the range become the rounded masters. d: where both are opened, for `on`.
int params_round(zero *z, device *d, device_stream on, state_range r);

#endif
