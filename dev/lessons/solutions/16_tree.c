// Lesson 16: the order of a sum. dev/lessons/16_tree.c has the task.
#include "../lesson.h"

// The left half of the last sum is the largest power of two below n: all its levels are even.
float tree_sum(const float *x, int n) {
    int left = 1;
    if (n == 1) return x[0];
    while (2 * left < n) left *= 2;
    return tree_sum(x, left) + tree_sum(x + left, n - left);
}
