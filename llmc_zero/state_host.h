// Beside a CUDA device: what of a rank's parts of a state lies on the host's side of the bus, and the store
// of states that lie in host memory there (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840). On a CPU nothing
// of this exists, because the device's memory is the host's.
#ifndef LLMC_ZERO_STATE_HOST_H
#define LLMC_ZERO_STATE_HOST_H
#include "state.h"

// Of the rank's part of a unit the first elements are away, in host memory or in files. The others are kept
// in the state's own array. The offsets count elements of the units before.
typedef struct {
    int64_t away, away_offset, kept_offset;
} state_split;

struct state_host {
    char *array;         // what is away, pinned; NULL: it lies in files, or nothing is away
    int keeps;           // 1: what is kept lies in host memory too (offload.params_in_host)
    state_split *units;  // (n_units)
};

// Returns 0 with the table made. The caller sets `array`.
int state_host_open(struct state_host *h, zero_value what, const zero_config *c, const layout *l, int rank);
void state_host_close(struct state_host *h);
// 1: the range lies in host memory or in files.
int state_lies_on_host(const state *s, state_range r);

extern const state_store state_in_host;

#endif
