// Tasks on lanes. A task runs after the earlier tasks of its lane, and after the tasks that it needs on any
// lane. Only the trainer's thread submits tasks, those of LANE_COLLECTIVES in the same order on all ranks.
//
// A lane that may have a thread starts it with its first task. On other lanes the submitting call runs the
// task itself, once the tasks it needs have run. On a device with streams, a task only queues work and then
// an event. Its stream waits for the events of the tasks it needs; the host does not, except for the
// trainer's stream while other ranks can stall those tasks (device.check).
//
// The first task that fails ends all lanes. Those that have not begun never do, because the ranks no longer
// agree on what comes next; waiting for one returns that first failure. Every task has a time limit.
#ifndef LLMC_ZERO_BASE_TASKS_H
#define LLMC_ZERO_BASE_TASKS_H
#include "../device/device.h"
#include "error.h"
#include "trace.h"
#include <pthread.h>

enum { TASK_NEEDS = 4 };

// The caller sets the first five fields. A task that is all zeros counts as run.
typedef struct task {
    int (*run)(void *ctx, struct task *self);
    void *ctx;
    lane lane;
    int index;  // of its unit or bucket
    int unit;   // shown in the trace: its unit, or the first unit of its bucket; -1: none
    // set by tasks_prepare
    device_stream stream;  // the stream on which it queues work
    void *ready;           // event: the trainer's stream has reached the submission
    void *done;            // event: the task's stream has finished its work
    struct task *prepared_before;
    // set by tasks_submit
    uint64_t number;  // of this submission, counted within its lane
    struct {
        const struct task *task;
        uint64_t number;
    } needs[TASK_NEEDS];
    int n_needs, needs_trainer;
    int rc;
    double submitted_s, ended_s;  // in virtual time
    struct task *next;
} task;

typedef struct {
    struct tasks *of;
    int may_have_thread, started;
    pthread_t thread;
    pthread_cond_t work;
    task *first, *last;            // pending; the running task, if any, is first
    uint64_t submitted, finished;  // numbers of tasks
} task_queue;                      // of a lane

typedef struct tasks {
    device *device;
    trace *trace;    // records the waits; NULL: no trace
    int cores;       // threads that an update on the CPU may use
    task trainer;    // needing it means running after all work that the trainer did or queued before
    task *prepared;  // the last prepared task
    int opened, closing;
    pthread_mutex_t lock;
    pthread_cond_t done;  // a lane has finished a task
    task_queue queues[LANES];
    int failed;  // code of the first failure, 0: none; and the failure itself
    failure_record failure;
} tasks;

#define LANE_BIT(lane) (1u << (lane))
// threads: the LANE_BITs of lanes that may have a thread.
int tasks_open(tasks *t, device *d, trace *tr, unsigned threads);
// Waits for the submitted tasks and destroys the events of prepared ones.
void tasks_close(tasks *t);

// For a task that uses the device, before its first submission. k must stay at its address until tasks_close.
int tasks_prepare(tasks *t, task *k, device_stream s);

// Submits k, which must not be pending. k and the tasks it needs must stay where they are until k has run.
//   tasks_submit(&t, &gather, AFTER(&read, &t.trainer));
int tasks_submit(tasks *t, task *k, const task *const *needs);
#define AFTER(...) ((const task *const[]){ __VA_ARGS__, NULL })
#define AFTER_NOTHING ((const task *const[]){ NULL })

// Waits until k's last submission has run and returns its failure. Work queued on the trainer's stream from
// now on runs after k's. Returns at once if k was never submitted.
int tasks_wait(tasks *t, task *k);
// Returns 1 if the last submission of k has run, or if k was never submitted.
int tasks_have_run(tasks *t, const task *k);
// Reports a failure outside of a task: if rc is not 0, ends all lanes. Returns rc.
int tasks_fail(tasks *t, int rc);
// Runs a host task on LANE_COLLECTIVES and waits for it.
int tasks_run(tasks *t, int (*run)(void *, task *), void *ctx);

#endif
