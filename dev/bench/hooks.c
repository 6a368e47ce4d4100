// Measures the cost of the hooks alone: a step calls all hooks and accessors of a GPT-2-like table with 1 +
// LAYERS units and 16 tensors, all so small that transfers and computation take no time. build/bench/hooks
// [layers] runs one rank at stages 0 to 3.
#include "llmc_zero/base/clock.h"
#include "llmc_zero/zero.h"
#include <stdio.h>
#include <stdlib.h>

enum { TENSORS = 16, PER_BLOCK = 12, STEPS = 2000 };
static zero *z;

static void check(int failed) {
    if (failed) {
        fprintf(stderr, "hooks: %s\n", zero_last_error());
        exit(1);
    }
}

static void touch(int unit, int layers, int gradients) {
    for (int t = 0; t < TENSORS; t++) {
        int of_block = t >= 2 && t < 2 + PER_BLOCK, layer = of_block ? unit - 1 : 0;
        if (of_block != (unit > 0) || layer >= layers) continue;
        check(!zero_param(z, t, layer));
        if (gradients) check(!zero_grad(z, t, layer));
    }
}
static void forward(int unit, int layers) {
    check(zero_pre_forward(z, unit));
    touch(unit, layers, 0);
    check(zero_post_forward(z, unit));
}
static void backward(int unit, int layers) {
    check(zero_pre_backward(z, unit));
    touch(unit, layers, 1);
    check(zero_post_backward(z, unit));
}

static double seconds_a_step(int layers, int stage) {
    zero_config config = zero_defaults();
    zero_tensor tensors[TENSORS];
    zero_unit units[1 + layers];
    config.stage = stage;
    for (int t = 0; t < TENSORS; t++) {
        int of_block = t >= 2 && t < 2 + PER_BLOCK;
        tensors[t] = (zero_tensor){ "tensor", 1, { 1 }, of_block ? layers : 1, of_block, 0, 0 };
    }
    units[0] = (zero_unit){ "embedding", 2, 2, 0 };
    for (int l = 0; l < layers; l++) units[1 + l] = (zero_unit){ "block", 1, 1, 0 };
    check(zero_create(&z, &config, tensors, TENSORS, units, 1 + layers));
    const zero_hyper hyper = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .t = 1 };
    double start = clock_now();
    for (int i = 0; i < STEPS; i++) {
        check(zero_begin_train(z, 0, 1));
        forward(0, layers);
        for (int l = 0; l < layers; l++) forward(1 + l, layers);
        forward(0, layers);
        backward(0, layers);
        for (int l = layers - 1; l >= 0; l--) backward(1 + l, layers);
        backward(0, layers);
        check(zero_step(z, &hyper, NULL));
    }
    double took = clock_now() - start;
    zero_destroy(z);
    return took / STEPS;
}

int main(int argc, char **argv) {
    int layers = argc > 1 ? atoi(argv[1]) : 48;
    if (layers < 1) {
        fprintf(stderr, "usage: hooks [layers]\n");
        return 1;
    }
    printf("the hooks and the step alone, %d layers, us per step:", layers);
    for (int stage = 0; stage <= 3; stage++)
        printf(" stage %d %.0f%s", stage, seconds_a_step(layers, stage) * 1e6, stage < 3 ? "," : "\n");
    return 0;
}
