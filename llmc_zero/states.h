// This rank's model states and their stores, and the host buffers that values pass through. How to open and
// close a state: state.h.
#ifndef LLMC_ZERO_STATES_H
#define LLMC_ZERO_STATES_H
#include "tiers/state.h"
#include "zero.h"

struct states {
    state of[STATES];             // by zero_value
    struct state_files *files;    // of states not in memory; NULL: all are
    struct state_across *across;  // of states copied across the bus; NULL: none are
    int touched;                  // 0: all are still 0, as zero_create left them
    float *values;                // (VALUES_CHUNK) zero_hash, zero_save and zero_load stream through it
    uint16_t *low;                // (VALUES_CHUNK) the same in two bytes each
    float *staging;               // (VALUES_CHUNK) the host's view of device memory
    double *scalars;              // ((ranks + 1) n_units) for the norm
    int pinned;                   // the memory that `values` begins
};

// Returns 0 with the stores open. Each state is created by the module that uses it, with states_create.
int states_open(zero *z);
int states_create(zero *z, zero_value what);
// Ends file transfers under way. The rest is freed when no collective uses it any more.
void states_stop_files(zero *z);
void states_free(zero *z);

state *states_get(const zero *z, zero_value what);
// Where a value is kept: parameters without masters are their own masters.
state *states_with(const zero *z, zero_value what);
// Elements of a value as fp32 on the host, and back: see state_read.
int states_read(zero *z, zero_value what, state_range r, float *values);
int states_write(zero *z, zero_value what, state_range r, state_intent intent, const float *values);
// A buffer of VALUES_CHUNK values; its first n in the dtype of a state, valid until the next call.
double *states_scalars(zero *z);  // (ranks + 1, n_units), for the norm
float *states_room(zero *z);
const void *states_room_as(zero *z, zero_dtype dtype, int64_t n);

int states_are_touched(const zero *z);  // 0: all are still 0, as zero_create left them
void states_touch(zero *z);
int states_are_away(const zero *z);     // some are read from files, or copied across the bus
int states_are_written(const zero *z);  // no write to files is pending
void states_count(const zero *z, zero_files *f);

#endif
