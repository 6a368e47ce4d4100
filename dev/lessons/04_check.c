// Lesson 4: compares shard_elems, owner and update_range with the elements that the library passes to the
// optimizer on each rank at stage 1.
#include <string.h>
#include "lesson.h"

enum { TENSORS = 3, MOST = 5000 };

// Three tensors of one unit. The library begins each at a multiple of 128 elements, so `begin` counts these
// gaps, and the unit has extent() elements.
typedef struct {
    int64_t elems[TENSORS], begin[TENSORS];
} shapes;

static int64_t extent(const shapes *s) { return s->begin[TENSORS - 1] + s->elems[TENSORS - 1]; }

static shapes shapes_of(int64_t a, int64_t b, int64_t c) {
    shapes s = { { a, b, c }, { 0 } };
    for (int t = 1; t < TENSORS; t++) s.begin[t] = (s.begin[t - 1] + s.elems[t - 1] + 127) / 128 * 128;
    return s;
}

// 1 for each element that this rank updates
typedef struct {
    char mine[TENSORS][MOST];
} updated;

// The optimizer: records the elements that it gets. ctx: an updated.
static void note(void *ctx, const zero_piece *p) {
    updated *u = ctx;
    memset(&u->mine[p->tensor][p->offset], 1, p->n);
}

// Runs one step of the library at stage 1, and sets *seen to the elements that this rank updates and *shard
// to the elements of its shard.
static void engine_step(const shapes *s, updated *seen, int64_t *shard) {
    const zero_unit unit = { "layer", 1, 1, 0 };
    const zero_hyper hyper = { .lr = 0.1f, .t = 1 };
    zero_tensor tensors[TENSORS];
    zero_config config = zero_defaults();
    zero_traffic traffic;
    zero *z;
    memset(seen, 0, sizeof *seen);
    for (int t = 0; t < TENSORS; t++)
        tensors[t] = (zero_tensor){ .name = "tensor", .n_dims = 1, .dims = { s->elems[t] }, .layers = 1 };
    config.stage = 1;
    config.update_with = note;
    config.update_ctx = seen;
    lesson_start(&config);
    lesson_must(zero_create(&z, &config, tensors, TENSORS, &unit, 1));
    lesson_must(zero_begin_train(z, 0, 1));
    lesson_must(zero_pre_forward(z, 0));
    lesson_must(zero_post_forward(z, 0));
    lesson_must(zero_pre_backward(z, 0));
    lesson_must(zero_post_backward(z, 0));
    lesson_must(zero_step(z, &hyper, NULL));
    // The gather of the new parameters sends this rank's shard to each other rank.
    zero_traffic_info(z, &traffic);
    *shard = traffic.all_gather[ZERO_FOR_STEP] / (int64_t)sizeof(float) / (zero_ranks(z) - 1);
    zero_destroy(z);
}

static void check_shard(const shapes *s, const updated *seen, int64_t shard) {
    const int64_t yours = shard_elems(extent(s), wire_ranks());
    if (yours != shard)
        lesson_off("N = %d: you get %lld elements; the library's shards have %lld", wire_ranks(),
                   (long long)yours, (long long)shard);
}

// owner, for the elements that this rank updates. Their offsets count from the beginning of its shard.
static void check_owner(const shapes *s, const updated *seen, int64_t shard) {
    const int me = wire_rank(), ranks = wire_ranks();
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < s->elems[t]; i++) {
            const int64_t element = s->begin[t] + i, place = element - me * shard;
            int rank = -1;
            int64_t offset = -1;
            if (!seen->mine[t][i]) continue;
            owner(element, extent(s), ranks, &rank, &offset);
            if (rank != me || offset != place)
                lesson_off(
                    "N = %d, element %lld: you get rank %d, offset %lld; the library rank %d, offset %lld",
                    ranks, (long long)element, rank, (long long)offset, me, (long long)place);
        }
}

static void check_range(const shapes *s, const updated *seen, int64_t shard) {
    for (int t = 0; t < TENSORS; t++) {
        int64_t first = -1, n = -1, real_first = 0, real_n = 0;
        while (real_first < s->elems[t] && !seen->mine[t][real_first]) real_first++;
        while (real_first + real_n < s->elems[t] && seen->mine[t][real_first + real_n]) real_n++;
        update_range(wire_rank(), wire_ranks(), extent(s), s->begin[t], s->elems[t], &first, &n);
        if (n != real_n || (n && first != real_first))
            lesson_off(
                "N = %d, rank %d, tensor of %lld elements at %lld: you get %lld elements from %lld on; "
                "the library %lld from %lld on",
                wire_ranks(), wire_rank(), (long long)s->elems[t], (long long)s->begin[t], (long long)n,
                (long long)first, (long long)real_n, (long long)(real_n ? real_first : 0));
    }
}

typedef void (*check_function)(const shapes *s, const updated *seen, int64_t shard);

// Calls check() with what the library does, on 2, 3 and 4 ranks.
static void check_shapes(const char *name, check_function check, shapes s) {
    static updated seen;
    for (int ranks = 2; ranks <= 4; ranks++) {
        int64_t shard;
        if (!lesson_join(ranks)) continue;
        engine_step(&s, &seen, &shard);
        check(&s, &seen, shard);
    }
    lesson_check("%s, unit of %lld elements", name, (long long)extent(&s));
}

int main(int argc, char **argv) {
    const struct {
        const char *name;
        check_function check;
    } functions[] = { { "shard_elems", check_shard },
                      { "owner", check_owner },
                      { "update_range", check_range } };
    lesson_begin(argv, 4, 4, "stage 1: who owns what?");
    for (int f = 0; f < 3; f++) {
        check_shapes(functions[f].name, functions[f].check, shapes_of(1024, 512, 1536));  // no padding
        check_shapes(functions[f].name, functions[f].check,
                     shapes_of(1000, 1, 1921));                                      // one element too many
        check_shapes(functions[f].name, functions[f].check, shapes_of(10, 20, 30));  // ranks without elements
    }
    return lesson_end();
}
