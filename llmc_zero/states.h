// This rank's model states and where they are stored, and the host buffers that values pass through. state.h
// opens and closes a state.
#ifndef LLMC_ZERO_STATES_H
#define LLMC_ZERO_STATES_H
#include "tiers/state.h"
#include "zero.h"

struct states {
    state of[STATES];             // by zero_value
    struct state_files *files;    // of states not in memory; NULL: all are
    struct state_across *across;  // of states copied across the bus; NULL: none are
    int touched;                  // 0: all are still 0, as after zero_create
    float *values;                // (VALUES_CHUNK) zero_hash, zero_save and zero_load stream through it
    uint16_t *low;                // (VALUES_CHUNK) the same in 16 bits
    float *staging;               // (VALUES_CHUNK) copies of device memory
    double *scalars;              // (ranks + 1, n_units + HYPER_VALUES) for the norm
    int pinned;                   // 1: the allocation that starts at `values` is pinned
};

// Opens the files and the copies across the bus. The module that uses a state creates it with states_create.
int states_open(zero *z);
int states_create(zero *z, zero_value what);
// Ends pending file transfers. states_free follows when no collective uses the states any more.
void states_stop_files(zero *z);
void states_free(zero *z);

state *states_get(const zero *z, zero_value what);
// The state that stores a value: parameters without masters are their own masters.
state *states_with(const zero *z, zero_value what);
// Read elements of a value as fp32 to the host, and write them: see state_read.
int states_read(zero *z, zero_value what, state_range r, float *values);
int states_write(zero *z, zero_value what, state_range r, state_intent intent, const float *values);
// Host buffers: for the norm, (ranks + 1, n_units + HYPER_VALUES); for VALUES_CHUNK values; and the first n
// of these values in another dtype, valid until the next call.
double *states_scalars(zero *z);
float *states_room(zero *z);
const void *states_room_as(zero *z, zero_dtype dtype, int64_t n);

int states_are_touched(const zero *z);  // 0: all are still 0, as after zero_create
void states_touch(zero *z);
int states_are_away(const zero *z);     // some are in files, or across the bus from their update
int states_are_written(const zero *z);  // no write to files is pending
void states_count(const zero *z, zero_files *f);

#endif
