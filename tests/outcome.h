// Runs the toy for a few steps, with an evaluation, values set by the caller, an abandoned pass, a save and a
// load. Returns everything it computed. Tests compare the results of different settings bit for bit.
#ifndef TESTS_OUTCOME_H
#define TESTS_OUTCOME_H
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "check.h"
#include "toy.h"

enum { STEPS = 3, EVAL_AFTER = 1, MOST_STEPS = 6 };

typedef struct {
    char set[17], trained[17], full[17];
    double norms[MOST_STEPS];
    float eval, gradient[33], moment[33];
} outcome;

static char outcome_folder[64];

// These run on the CPU; a test for another device replaces them.
static inline int outcome_toy(toy *t, const zero_config *c) { return toy_create(t, c, NULL); }
static inline float outcome_activation_of(const toy *t) { return t->activation; }
static int (*outcome_create)(toy *t, const zero_config *c) = outcome_toy;
static float (*outcome_activation)(const toy *t) = outcome_activation_of;

// Abandons a training pass in the middle of backward, which leaves the gradients incomplete.
static inline void outcome_give_up(toy *t) {
    MUST(zero_begin_train(t->z, 0, 1));
    MUST(toy_start(t, 0.1f));
    for (int u = 0; u < TOY_UNITS; u++) MUST(toy_forward(t, u));
    MUST(toy_forward(t, 0));
    MUST(toy_backward(t, 0, 0));
    MUST(toy_backward(t, TOY_UNITS - 1, 0));
}

static inline void outcome_set_values(toy *t, const zero_config *c, char hash[17]) {
    const zero_value last = ZERO_MASTER + c->update_states;
    float values[40];
    for (int i = 0; i < 40; i++) values[i] = 0.01f * i + 0.003f;
    for (int layer = 0; layer < toy_tensors[4].layers; layer++) {
        MUST(zero_set(t->z, ZERO_PARAM, 4, layer, 600, 40, values));
        if (c->update_states && !toy_tensors[2].frozen)
            MUST(zero_set(t->z, last, 2, layer, 2480, 40, values));
    }
    MUST(zero_hash(t->z, 1, hash));
}

// Saves the states, overwrites them and loads them back, which must restore every bit.
static inline void outcome_reload(toy *t) {
    char path[128];
    snprintf(path, sizeof path, "%s/saved", outcome_folder);
    MUST(zero_save(t->z, path, NULL));
    MUST(toy_set_initial(t));
    MUST(zero_load(t->z, path, NULL));
}

static inline outcome outcome_of(const zero_config *c, int with_files, void (*before_destroy)(zero *z)) {
    const zero_hyper h = toy_hyper(STEPS + 1);
    outcome o;
    zero_step_result result;
    toy t;
    memset(&o, 0, sizeof o);
    MUST(outcome_create(&t, c));
    for (int step = 1; step <= STEPS; step++) {
        MUST(toy_step(&t, c->micro_batches, step, &result));
        o.norms[step - 1] = result.grad_norm;
        if (step != EVAL_AFTER) continue;
        MUST(toy_eval(&t));
        o.eval = outcome_activation(&t);
        outcome_set_values(&t, c, o.set);
        outcome_give_up(&t);
    }
    MUST(zero_hash(t.z, 0, o.trained));
    if (with_files) outcome_reload(&t);
    MUST(toy_passes(&t, c->micro_batches));
    MUST(zero_finish_gradients(t.z, &result));
    o.norms[STEPS] = result.grad_norm;
    if (!toy_tensors[0].frozen) MUST(zero_get(t.z, ZERO_GRADIENT, 0, 0, TOY_LARGEST / 2 - 7, 33, o.gradient));
    MUST(zero_update(t.z, &h));
    if (c->update_states && !toy_tensors[2].frozen)
        MUST(zero_get(t.z, ZERO_MOMENT1, 2, 2, 2490, 33, o.moment));
    MUST(zero_hash(t.z, 1, o.full));
    if (before_destroy) before_destroy(t.z);
    zero_destroy(t.z);
    return o;
}

// Creates the folder for checkpoints and states, shared by all ranks. It must be on a disk.
static inline void outcome_begin(const char *name) {
    snprintf(outcome_folder, sizeof outcome_folder, "build/%s.XXXXXX", name);
    if (!checks.rank) CHECK(mkdtemp(outcome_folder));
    MPI_Bcast(outcome_folder, sizeof outcome_folder, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static inline void outcome_end(void) {
    char path[128];
    snprintf(path, sizeof path, "%s/saved", outcome_folder);
    MPI_Barrier(MPI_COMM_WORLD);
    if (checks.rank) return;
    CHECK(!zero_checkpoint_remove(path));
    CHECK(!rmdir(outcome_folder));
}

#endif
