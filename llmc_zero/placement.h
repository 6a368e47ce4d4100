// Where a rank's states are: the tier of each, the elements that are away from the device, and the pieces in
// which they are read, updated and written. Computed from the settings and the layout alone.
#ifndef LLMC_ZERO_PLACEMENT_H
#define LLMC_ZERO_PLACEMENT_H
#include "layout.h"

// Returns where the state is stored: ZERO_NVME; with a GPU, ZERO_HOST; or ZERO_DEVICE: on a CPU, host memory.
zero_tier placement_tier(zero_value what, const zero_config *c);
// Returns 1 if some of the state's elements are in files.
int placement_in_files(zero_value what, const zero_config *c);
int placement_crosses(const zero_config *c);  // 1: with a GPU, some state crosses the bus
// Returns how many leading elements of a rank's part of a unit are in files or, with a GPU, in host memory.
int64_t placement_away(zero_value what, const zero_config *c, const layout *l, int rank, int unit);
// Returns 1 if a delayed update writes this rank's parameters of the unit, which is not frozen, to a second
// region of the files, so that publishing them needs no copy.
int placement_has_next(const zero_config *c, const layout *l, int rank, int unit);

// Returns the elements of the largest part of a unit that has states off the device.
int64_t placement_largest_part(const zero_config *c, const layout *l);
// Returns how many elements a piece has at most: a multiple of a page's.
int64_t placement_piece_elems(const zero_config *c, const layout *l);
// Returns the end of a piece of a part, which begins at the unit's element `before`: `end` if that many
// elements are left, or else a multiple of PAGE_ELEMS in the unit, so that in every state's file pieces are
// whole pages.
static inline int64_t placement_cut(int64_t before, int64_t from, int64_t end, int64_t piece) {
    return end - from <= piece ? end : round_down(before + from + piece, PAGE_ELEMS) - before;
}
// Returns the end of the update's piece that begins at `from`, which is at most the end of the elements away.
int64_t placement_piece_end(const zero_config *c, const layout *l, int rank, int unit, int64_t from);

#endif
