// Tasks on lanes. A task runs after those that its lane was given before it, and after the tasks that it
// needs, whatever lanes those are on. Only the trainer's thread submits, and all ranks submit the same tasks
// to LANE_COLLECTIVES in the same order.
//
// A lane that may have a thread starts it with its first task. On the other lanes a task runs where it is
// submitted, once what it needs has run. On a device with streams that only queues its work, and completion
// is an event: the stream of a task waits for the events of the tasks that it needs, the host for none.
//
// The first task that fails ends all lanes: tasks that have not begun are not run, since ranks no longer
// agree on what comes next, and whoever waits for one gets the sentence of that first failure. A wait
// therefore ends when the tasks before it do, and each of those bounds its own.
#ifndef LLMC_ZERO_TASKS_H
#define LLMC_ZERO_TASKS_H
#include "device/device.h"
#include "trace.h"
#include "zero.h"
#include <pthread.h>

// The lane's number is its thread's number in traces.
typedef enum {
    LANE_TRAINER,      // the trainer's own thread and its stream, COMPUTE
    LANE_COLLECTIVES,  // exchanges with the other ranks, one after the other
    LANE_COPIES,       // to and from the host
    LANE_IO,           // reads and writes files
    LANE_PROCESSOR,    // AdamW on states that lie in the host's memory
    LANES
} task_lane;

enum { TASK_NEEDS = 4 };

// The first five fields are the caller's; a task of zeros has run.
typedef struct task {
    int (*run)(void *ctx, struct task *self);
    void *ctx;
    task_lane lane;
    int index;  // the unit or bucket it is about
    int unit;   // the unit, or a bucket's first, for the trace; -1: none
    // set by tasks_prepare
    device_stream stream;  // that its work is queued on
    void *ready, *done;    // events: the trainer's stream has come to its submission; its own has finished it
    // set by tasks_submit
    uint64_t number;  // of the submission, counted by its lane
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
    task *first, *last;            // the one that is running, if any, first
    uint64_t submitted, finished;  // numbers of tasks
} lane;

typedef struct tasks {
    device *device;
    trace *trace;  // gets the waits; NULL: nobody asks
    int cores;     // threads that the processor's AdamW may use
    task trainer;  // stands for all that the trainer has done and queued when a task that needs it is
                   // submitted
    int opened, closing;
    pthread_mutex_t lock;
    pthread_cond_t done;  // some lane has finished a task
    lane lanes[LANES];
    int failed;  // the first failure's code, and the failure itself
    zero_failure failure;
} tasks;

#define LANE_BIT(lane) (1u << (lane))
int tasks_open(tasks *t, device *d, trace *tr,
               unsigned threads);  // threads: LANE_BIT of those that may have one
void tasks_close(tasks *t);        // after the tasks submitted so far

// Before the first submission of a task that uses the device: gives it a stream and creates its events.
int tasks_prepare(tasks *t, task *k, device_stream s);
void tasks_forget(tasks *t, task *k);

// The last submission of k has finished. k, and the tasks that it needs, stay where they are until it has
// run.
//   tasks_submit(&t, &gather, AFTER(&read, &t.trainer));
int tasks_submit(tasks *t, task *k, const task *const *needs);
#define AFTER(...) ((const task *const[]){ __VA_ARGS__, NULL })
#define AFTER_NOTHING ((const task *const[]){ NULL })

// Until k's last submission has run: relays its failure. What the trainer's stream gets from now on comes
// after k's work. Returns at once if k was never submitted.
int tasks_wait(tasks *t, task *k);
// Returns 1 if the last submission of k has run, or there was none.
int tasks_have_run(tasks *t, const task *k);
// Submits a task of the host's to LANE_COLLECTIVES, and waits for it.
int tasks_run(tasks *t, int (*run)(void *, task *), void *ctx);

#endif
