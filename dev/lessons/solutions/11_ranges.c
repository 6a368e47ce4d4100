// Lesson 11: another number of ranks. dev/lessons/11_ranges.c has the task.
#include "../lesson.h"

int find_ranges(int64_t unit_elems, const saved_part *saved, int old_ranks, int new_rank, int new_ranks,
                file_range *ranges) {
    const int64_t shard = ((unit_elems + new_ranks - 1) / new_ranks + 127) / 128 * 128;
    const int64_t mine = new_rank * shard, end = mine + shard < unit_elems ? mine + shard : unit_elems;
    int n = 0;
    for (int r = 0; r < old_ranks; r++) {
        const int64_t its_end = saved[r].from + saved[r].elems;
        const int64_t first = saved[r].from > mine ? saved[r].from : mine;
        const int64_t until = its_end < end ? its_end : end;
        if (first >= until) continue;
        ranges[n++] = (file_range){ r, saved[r].at + 4 * (first - saved[r].from), 4 * (until - first) };
    }
    return n;
}
