// Beside a CUDA device: the parts of a rank's states on the host's side of the bus, and the store for states
// in host memory (ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840). Unused on a CPU, where device memory is
// host memory.
#ifndef LLMC_ZERO_TIERS_STATE_HOST_H
#define LLMC_ZERO_TIERS_STATE_HOST_H
#include "state.h"

// The first elements of the rank's part of a unit are away, in host memory or in files. The others are kept
// in the state's own array. The offsets count the elements of the units before.
typedef struct {
    int64_t away, away_offset, kept_offset;
} state_split;

struct state_host {
    char *array;         // the elements away, pinned; NULL: they are in files, or there are none
    int keeps;           // 1: the kept elements are in host memory too (offload.params_in_host)
    state_split *units;  // (n_units)
};

// Returns 0 with the table built. The caller sets `array`.
int state_host_open(struct state_host *h, zero_value what, const zero_config *c, const layout *l, int rank);
void state_host_close(struct state_host *h);
// 1: the range is in host memory or in files.
int state_lies_on_host(const state *s, state_range r);

extern const state_store state_in_host;

#endif
