// Tasks on lanes. A task runs after the earlier tasks of its lane, and after the tasks that it needs, on any
// lane. Only the trainer's thread submits, and all ranks submit the same tasks to LANE_COLLECTIVES in the
// same order.
//
// A lane that may have a thread starts it with its first task. On the other lanes the submitting call runs
// the task, once the tasks it needs have run. On a device with streams a task only queues work, and its
// completion is an event: its stream waits for the events of the tasks it needs, the host for none.
//
// The first task that fails ends all lanes: tasks that have not begun never run, since ranks no longer agree
// on what comes next, and waiting for one returns that first failure. A wait ends when the tasks before it
// do, and each of those has its own time limit.
#ifndef LLMC_ZERO_BASE_TASKS_H
#define LLMC_ZERO_BASE_TASKS_H
#include "../device/device.h"
#include "error.h"
#include "trace.h"
#include <pthread.h>

// The lane's number is also its thread number in traces.
typedef enum {
    LANE_TRAINER,      // the trainer's own thread and its stream, COMPUTE
    LANE_COLLECTIVES,  // exchanges with the other ranks, one after another
    LANE_COPIES,       // to and from the host
    LANE_IO,           // reads and writes files
    LANE_PROCESSOR,    // AdamW on states in host memory
    LANES
} task_lane;

enum { TASK_NEEDS = 4 };

// The first five fields are set by the caller; a zeroed task counts as run.
typedef struct task {
    int (*run)(void *ctx, struct task *self);
    void *ctx;
    task_lane lane;
    int index;  // its unit or bucket
    int unit;   // for the trace: its unit, or its bucket's first one; -1: none
    // set by tasks_prepare
    device_stream stream;  // its work is queued on it
    void *ready, *done;    // events: the trainer's stream has reached its submission; its own has finished it
    struct task *prepared_before;
    // set by tasks_submit
    uint64_t number;  // of the submission in its lane
    struct {
        const struct task *task;
        uint64_t number;
    } needs[TASK_NEEDS];
    int n_needs, needs_trainer;
    int rc;
    struct task *next;
} task;

typedef struct {
    struct tasks *of;
    int may_have_thread, started;
    pthread_t thread;
    pthread_cond_t work;
    task *first, *last;            // the running one, if any, is first
    uint64_t submitted, finished;  // numbers of tasks
} lane;

typedef struct tasks {
    device *device;
    trace *trace;    // records the waits; NULL: no trace
    int cores;       // threads that AdamW on the CPU may use
    task trainer;    // stands for all work that the trainer has done or queued when a task that needs it is
                     // submitted
    task *prepared;  // the last one that was
    int opened, closing;
    pthread_mutex_t lock;
    pthread_cond_t done;  // a lane has finished a task
    lane lanes[LANES];
    int failed;  // the first failure's code, and the failure itself
    failure_record failure;
} tasks;

#define LANE_BIT(lane) (1u << (lane))
int tasks_open(tasks *t, device *d, trace *tr,
               unsigned threads);  // threads: LANE_BITs of the lanes that may have one
// After the tasks submitted so far. Destroys the events of all that were prepared.
void tasks_close(tasks *t);

// Call it before the first submission of a task that uses the device: gives it a stream and creates its
// events. k must stay at its address until tasks_close.
int tasks_prepare(tasks *t, task *k, device_stream s);

// The last submission of k must have finished. k and the tasks it needs must stay at their addresses until it
// has run.
//   tasks_submit(&t, &gather, AFTER(&read, &t.trainer));
int tasks_submit(tasks *t, task *k, const task *const *needs);
#define AFTER(...) ((const task *const[]){ __VA_ARGS__, NULL })
#define AFTER_NOTHING ((const task *const[]){ NULL })

// Waits until k's last submission has run and returns its failure. Work that the trainer's stream gets from
// now on runs after k's. Returns at once if k was never submitted.
int tasks_wait(tasks *t, task *k);
// Returns 1 if the last submission of k has run, or k was never submitted.
int tasks_have_run(tasks *t, const task *k);
// After a failure outside of a task: ends all lanes if rc is one, and returns it.
int tasks_fail(tasks *t, int rc);
// Runs a host task on LANE_COLLECTIVES, and waits for it.
int tasks_run(tasks *t, int (*run)(void *, task *), void *ctx);

#endif
