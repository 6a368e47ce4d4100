// What is behind a `zero *`.
#ifndef LLMC_ZERO_INTERNAL_H
#define LLMC_ZERO_INTERNAL_H
#include "comm/comm.h"
#include "device/device.h"
#include "error.h"
#include "device/kernels.h"
#include "grads.h"
#include "layout.h"
#include "memory.h"
#include "net/exchange.h"
#include "norm.h"
#include "params.h"
#include "pass.h"
#include "plan.h"
#include "schedule.h"
#include "states.h"
#include "step.h"
#include "tasks.h"
#include "trace.h"
#include "zero.h"

typedef struct {
    // the update (update.c)
    int first_piece, n_pieces;  // what this rank updates of the unit, of zero.pieces
    int updated_early;          // in this step: its task was submitted during backward
    task adamw;
    task publish;  // of a delayed update: the parameters become what the last update made
} unit_state;

// What is updated at once: a range that this rank owns, and what it has of each tensor.
typedef struct {
    state_range range;
    adamw_table table;
    device *by;  // runs the AdamW
    device_stream on;
} update_piece;

struct zero {
    zero_config config;
    device device;
    layout layout;
    plan plan;
    memory memory;
    net net;
    comm comm;
    tasks tasks;
    trace trace;
    struct pass pass;
    struct states states;
    struct params params;
    struct grads grads;
    struct norm norm;
    struct step step;
    unit_state *units;            // (n_units)
    state next_params;            // that a delayed update makes in the files: see state_has_next
    // the update under way
    adamw_constants adamw;
    update_piece *pieces;  // (n_pieces) unit by unit
    int64_t n_pieces;
    int *update_order;    // (n_units) units in the order in which they are updated
    int update_known;     // how many of them are known; the update's lane reads it
    int update_early;     // how many of these were submitted during backward: the last units of the table
    int update_at;        // which of them is updated now
    int delays;           // the last update is delayed: it leaves the parameters as they are
    int unpublished;      // its masters have not been made parameters yet
    char *save_copy;      // room for this rank's file of a checkpoint; NULL: not wanted
    struct save_later *later;  // a save that has begun and not ended; NULL: none
    int begins_ahead;          // 1: a piece is opened while the one before is updated
    state_part opened[2][STATES];
    int window;                         // the one of the two that is opened next
    const update_piece *read_ahead[2];  // what of the two was begun during backward; NULL: nothing
    schedule schedule;                  // of the uses that read parameters
};

static inline void *allocate(zero *z, plan_item item) { return memory_alloc(&z->memory, &z->plan.own[item]); }
static inline void *allocate_for_unit(zero *z, plan_item item, int unit) {
    memory_request r = plan_for_unit(&z->plan, item, &z->config, &z->layout, unit);
    return memory_alloc(&z->memory, &r);
}

// The lane that the trace shows an event on: without overlap all is done by the trainer.
static inline int traced_lane(const zero *z, task_lane lane) {
    return z->config.overlap ? lane : LANE_TRAINER;
}

int wait_for_update(zero *z);  // all units have been updated
int wait_for_device(
    zero *z, device_stream s);  // and no collective has failed on it: what lies in its memory can be believed
// all (ranks, n): each rank's mine (n)
int share_values(zero *z, const double *mine, double *all, int n);
int end_collectives(zero *z);  // those begun have ended, so this thread may use the net
int agree(zero *z, int rc);    // if one rank has failed, all fail with the failure of the lowest that has

// same.c: all ranks were given rank 0's settings and tables, or all fail
int same_settings(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units);

#endif
