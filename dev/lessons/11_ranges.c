// Lesson 11: what a new rank reads from the old ranks' files. Fill in the function; then: make lesson N=11
#include "lesson.h"

// Finds where rank new_rank of new_ranks reads its part of one unit. Fills in `ranges` in the order of the
// unit's elements, and returns their number, 0 if the rank has no part of the unit.
//   unit_elems   elements of the unit, 4 bytes each
//   saved        where the old_ranks ranks saved the unit: file r has elements [from, from + elems), from its
//                byte `at` on. The parts are in order and without gaps; one may be empty
//   ranges       room for old_ranks ranges
// The new rank owns elements [new_rank * shard, new_rank * shard + shard), up to the end of the unit. A shard
// has unit_elems / new_ranks elements, rounded up, and rounded up again to a multiple of 128 (lesson 4).
int find_ranges(int64_t unit_elems, const saved_part *saved, int old_ranks, int new_rank, int new_ranks,
                file_range *ranges) {
    return 0;
}
