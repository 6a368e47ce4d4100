// The struct behind a `zero *`. In all internal headers, functions that return an int return 0, or a negative
// error code with the error set (base/error.h), unless stated otherwise.
#ifndef LLMC_ZERO_INTERNAL_H
#define LLMC_ZERO_INTERNAL_H
#include "accumulate.h"
#include "check.h"
#include "comm/comm.h"
#include "device/device.h"
#include "base/error.h"
#include "device/kernels.h"
#include "grads.h"
#include "layout.h"
#include "base/memory.h"
#include "norm.h"
#include "params.h"
#include "pass.h"
#include "plan.h"
#include "schedule.h"
#include "rank_states.h"
#include "step.h"
#include "base/tasks.h"
#include "base/trace.h"
#include "update.h"
#include "zero.h"

struct zero {
    // used by every file
    zero_config config;
    device device;
    layout layout;
    plan plan;
    memory memory;
    net net;
    comm comm;
    tasks tasks;
    trace trace;
    schedule schedule;  // of the uses that read parameters
    // each is owned by the file of the same name; other files may only call that file's functions
    // (tests/test_house.sh)
    struct pass pass;
    struct rank_states rank_states;
    struct params params;
    struct grads grads;
    struct accumulate accumulate;
    struct norm norm;
    struct update update;
    struct step step;
    struct check check;
    struct {                 // checkpoint/save.c
        char *copy;          // memory for this rank's file of a checkpoint; NULL: async_save is off
        struct save *begun;  // the save in progress; NULL: none
    } saving;
};

// Returns n zeroed elements: see memory_array.
static inline void *allocate_array(zero *z, size_t n, size_t elem_bytes) {
    return memory_array(&z->memory, n, elem_bytes);
}
static inline void *allocate(zero *z, plan_item item) { return memory_alloc(&z->memory, &z->plan.own[item]); }
static inline void *allocate_for_unit(zero *z, plan_item item, int unit) {
    memory_request r = plan_for_unit(&z->plan, item, &z->config, &z->layout, unit);
    return memory_alloc(&z->memory, &r);
}

// The lane shown in the trace: without overlap the trainer's thread does everything.
static inline lane traced_lane(const zero *z, lane of_task) {
    return z->config.overlap ? of_task : LANE_TRAINER;
}

// -------- job.c

// Waits for the stream.
int wait_for_device(zero *z, device_stream s);
// Waits for pending collectives. Afterwards this thread may use the net or run a collective itself; if that
// collective fails, pass the error to tasks_fail.
int end_collectives(zero *z);
// (collective) rc: this rank's result. If any rank has failed, all fail with the error of the lowest rank
// that did.
int agree(zero *z, int rc);

// same_settings.c: fails on all ranks if the settings or tables of any rank differ from rank 0's
int same_settings(zero *z, const zero_tensor *tensors, int n_tensors, const zero_unit *units, int n_units);

#endif
