// This rank's model states and where they are stored, and the host buffers through which values are read and
// written. state.h opens and closes a state.
#ifndef LLMC_ZERO_RANK_STATES_H
#define LLMC_ZERO_RANK_STATES_H
#include "comm/comm.h"
#include "tiers/state.h"
#include "zero.h"

struct rank_states {
    state of[STATES];                          // by zero_value
    struct state_files *files;                 // for states in files; NULL: all are in memory
    struct state_across *across;               // for states copied across the bus; NULL: none are
    int touched;                               // 0: all are still 0, as after zero_create
    state_moved moved[ZERO_TRAFFIC_PURPOSES];  // by rank_state_read and rank_state_write
    float *values;    // (VALUES_CHUNK) zero_hash, zero_save and zero_load stream values through this
    uint16_t *low;    // (VALUES_CHUNK) the same in 16 bits
    float *staging;   // (VALUES_CHUNK) copies of device memory
    double *scalars;  // (ranks + 1, NORM_VALUES) for the norm
    int pinned;       // 1: the allocation that starts at `values` is pinned
};

// Opens the files and the copies across the bus. Modules create the states that they use: rank_state_create.
int rank_states_open(zero *z);
int rank_state_create(zero *z, zero_value what);
// Ends pending file transfers. Call rank_states_free later, once no collective uses the states.
void rank_states_stop_files(zero *z);
void rank_states_free(zero *z);

state *rank_state(const zero *z, zero_value what);
// Returns the state that stores a unit's value. Without masters, ZERO_MASTER is stored in the parameters.
state *rank_state_with(const zero *z, zero_value what, int stored);
// Read elements of a value to the host as fp32; write them, counted as a checkpoint's: see state_move.
int rank_state_read(zero *z, zero_purpose purpose, zero_value what, state_range r, float *values);
int rank_state_write(zero *z, zero_value what, state_range r, state_intent intent, const float *values);
// (collective) Gathers all that this rank keeps of a unit: of each part, from the rank that owns it. On the
// stream of gathers; for states on the host, returns when they are there.
int rank_state_gather(zero *z, comm_use use, zero_value what, int unit);
// Return host buffers: (ranks + 1, NORM_VALUES) scalars for the norm; VALUES_CHUNK values; and the
// first n of those values converted to another dtype, valid until the next call.
double *rank_states_scalars(zero *z);
float *rank_states_room(zero *z);
const void *rank_states_room_as(zero *z, zero_dtype dtype, int64_t n);

int rank_states_are_touched(const zero *z);  // 0: all are still 0, as after zero_create
void rank_states_touch(zero *z);
int rank_states_are_away(const zero *z);  // 1: some are in files, or must cross the bus for their update
// Returns 1 if a piece can be read from files without waiting for writes.
int rank_states_have_buffers(const zero *z);
void rank_states_count(const zero *z, zero_files *f);

#endif
