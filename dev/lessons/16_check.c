// Lesson 16: compares the bits of tree_sum with those of a tree that is added level by level, of all numbers
// and of ranks that have summed their parts.
#include <string.h>
#include "lesson.h"

enum { MOST = 33, ROUNDS = 8, MOST_RANKS = 8, MOST_PARTS = 4 };

static float expected(const float *x, int n) {
    float level[MOST];
    memcpy(level, x, n * sizeof *x);
    while (n > 1) {
        for (int i = 0; i + 1 < n; i += 2) level[i / 2] = level[i] + level[i + 1];
        if (n % 2) level[n / 2] = level[n - 1];
        n = (n + 1) / 2;
    }
    return level[0];
}

static float plain_loop(const float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

static int is_same(float a, float b) { return !memcmp(&a, &b, sizeof a); }

static void draw(float *x, int n, int round) {
    for (int i = 0; i < n; i++) x[i] = lesson_number((uint64_t)(round * 100000 + n * 100 + i));
}

static void check_sizes(void) {
    float x[MOST];
    for (int n = 1; n <= MOST; n++)
        for (int round = 0; round < ROUNDS; round++) {
            draw(x, n, round);
            const float yours = tree_sum(x, n), tree = expected(x, n);
            if (!is_same(yours, tree)) lesson_off("n = %d: you get %.9g; the tree %.9g", n, yours, tree);
        }
    lesson_check("n = 1 to %d: the bits of the sum", MOST);
}

// The sizes in which the order of addition shows.
static void check_plain_loop(void) {
    float x[MOST];
    int sizes = 0;
    for (int n = 1; n <= MOST; n++) {
        int differs = 0;
        for (int round = 0; round < ROUNDS; round++) {
            draw(x, n, round);
            const float tree = expected(x, n), loop = plain_loop(x, n);
            if (is_same(tree, loop)) continue;
            differs = 1;
            if (!is_same(tree_sum(x, n), tree))
                lesson_off("n = %d: you get %.9g; a plain loop %.9g; the tree %.9g", n, tree_sum(x, n), loop,
                           tree);
        }
        sizes += differs;
    }
    lesson_check("in %d of %d sizes a plain loop has other bits, and yours has the tree's", sizes, MOST);
}

// Each rank has `parts` of the numbers, sums them, and the ranks' sums are summed.
static void compare_ranks(int ranks) {
    float x[MOST], of_rank[MOST_RANKS];
    for (int parts = 1; parts <= MOST_PARTS; parts *= 2)
        for (int round = 0; round < ROUNDS; round++) {
            draw(x, ranks * parts, round);
            for (int r = 0; r < ranks; r++) of_rank[r] = tree_sum(x + r * parts, parts);
            const float yours = tree_sum(of_rank, ranks), tree = expected(x, ranks * parts);
            if (!is_same(yours, tree))
                lesson_off("%d ranks with %d numbers each: you get %.9g; one tree over all %.9g", ranks,
                           parts, yours, tree);
        }
}

int main(int argc, char **argv) {
    lesson_begin(argv, 1, 16, "can anyone check a run?");
    check_sizes();
    check_plain_loop();
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) compare_ranks(ranks);
    lesson_check("2 to %d ranks sum 1, 2 or 4 numbers each: the bits of one tree", MOST_RANKS);
    return lesson_end();
}
