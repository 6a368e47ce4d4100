// Parameters: gathered before the layers use them and released afterwards. Owns the slots and the gathers.
// Each unit has a task that last changes its parameters; its gathers run after that task.
#ifndef LLMC_ZERO_PARAMS_H
#define LLMC_ZERO_PARAMS_H
#include "comm/comm.h"
#include "tiers/state.h"
#include "base/tasks.h"

// Bytes of gathers at stage 3.
typedef struct {
    int64_t sent;
    state_moved files;
    int64_t not_read;  // taken from the update's buffers, not from the files
} params_bytes;

// A unit of the table.
struct params_unit {
    char *whole;            // the whole unit; NULL: not gathered (stage 3), or not open (stages 0 to 2)
    char *own;              // stage 3: private memory of a unit used more than once; NULL: it uses a slot
    int slot;               // the slot that holds it; -1: none
    int for_next_pass;      // stage 3: gathered before its pass began
    int kept;               // stage 3: released, but still gathered for the step's next use
    params_bytes gathered;  // by gathers that no use has followed yet
    task gather;
    comm_use gather_use;
    task fetch;   // with a GPU: the task that copies what this rank keeps from the host
    task spread;  // after the update: gathers the new parameters on the ranks that keep them
    comm_use spread_use;
    task *changed_by;  // the last task that changes its parameters
    char *put_to;      // stage 3: destination of this rank's new parameters; NULL: none
    int64_t put_from;  // elements from this one to the end of the part have been copied
};

// A stored unit: one of the table, or a frozen unit, which is gathered together with its unit.
struct params_stored {
    state_part opened;  // stages 0 to 2
    char *gather_to;    // stage 3: destination of the whole unit
    state_part source;  // stage 3: what this rank sends
};

struct params {
    struct params_unit *units;     // (n_units)
    struct params_stored *stored;  // (n_stored)
    struct params_slot {
        char *memory;
        int unit;  // the unit in the slot; -1: empty
    } * slots;     // (n_slots) stage 3
    int n_slots;
    params_bytes gathered[ZERO_TRAFFIC_PURPOSES];  // by the kind of pass that used them
};

int params_create(zero *z);
// Stages 1 to 3, called at creation: gathers the unit once, on zeros. Its bytes are not counted.
int params_rehearse(zero *z, int unit);

// -------- around a use

// Waits until the unit is gathered, and starts gathering the next ones.
int params_acquire(zero *z, int unit);
// Closes the unit unless another use of it is open, and prefetches units that now fit.
int params_release(zero *z, int unit);
// Returns the address of a unit, frozen or not, that is open.
char *params_at(const zero *z, int stored);
// Stage 3: drops units left over from the last pass, except those kept for this one, which continues a step.
int params_begin_pass(zero *z, int continues);
// Returns when no gather is in progress and the device has finished its work.
int params_complete(zero *z);
// Returns when no gather is in progress and, at stage 3, all slots are empty.
int params_drop_all(zero *z);
// Stage 3: adds the bytes of gathers under the purpose of the pass that used them. params_count needs an end
// of all collectives, params_count_files params_complete.
void params_count(const zero *z, zero_traffic *t);
void params_count_files(const zero *z, zero_files *f);

// -------- around the update

// Call it before submitting the task that changes the unit's parameters. If the unit is one of the next
// step's first, it is gathered right after the task. params_put then copies all new parameters to the gather,
// which reads none. If the task was submitted during backward, the gather reads the pieces updated before.
int params_before_update(zero *z, int unit);
// Call it after submitting the task that changes the unit's parameters; it must stay at its address. From now
// on the unit may be gathered, after that task.
int params_updated(zero *z, int unit, task *by);
// Call it in that task when a piece's new parameters, opened for the CPU, are complete. If a gather waits for
// the task, copies them to where the gather needs them, so that it need not read them.
void params_put(zero *z, const state_part *p);

#endif
