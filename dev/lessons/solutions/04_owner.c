// Lesson 4: who owns what? dev/lessons/04_owner.c has the task.
#include "../lesson.h"

int64_t shard_elems(int64_t unit_elems, int ranks) {
    const int64_t part = (unit_elems + ranks - 1) / ranks;
    return (part + 127) / 128 * 128;
}

void owner(int64_t element, int64_t unit_elems, int ranks, int *rank, int64_t *offset) {
    const int64_t shard = shard_elems(unit_elems, ranks);
    *rank = (int)(element / shard), *offset = element % shard;
}

void update_range(int rank, int ranks, int64_t unit_elems, int64_t begin, int64_t elems, int64_t *first,
                  int64_t *n) {
    const int64_t shard = shard_elems(unit_elems, ranks), mine = rank * shard;
    const int64_t from = mine > begin ? mine : begin;
    const int64_t to = mine + shard < begin + elems ? mine + shard : begin + elems;
    *first = from - begin;
    *n = to > from ? to - from : 0;
}
