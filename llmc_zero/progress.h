// Collectives as jobs, run in the order in which they were submitted: by a progress thread, the only one that
// then talks to the other ranks, while the trainer computes; or, without overlap, right where they are
// submitted. All ranks submit the same jobs in the same order.
//
// On a device with streams a job that was prepared runs on a stream of its own between two events: it begins
// when what the trainer's stream held at its submission is done, and what the trainer's stream gets after
// progress_wait begins when the job's work is done. The host waits for neither.
#ifndef LLMC_ZERO_PROGRESS_H
#define LLMC_ZERO_PROGRESS_H
#include "device/device.h"
#include "trace.h"
#include <pthread.h>

typedef struct job {
    int (*run)(void *ctx, struct job *self);
    void *ctx;
    int index;             // the unit or bucket it is about
    int unit;              // the unit, or a bucket's first, for the trace; -1: none
    device_stream stream;  // that its work is queued on
    int pending, rc;       // submitted and not finished; result
    void *ready,
        *done;  // events: what it needs of the trainer's stream is there; its own stream has finished it
    char error[1024];  // the sentence, if rc is not 0
    struct job *next;
} job;

typedef struct {
    device *device;
    trace *trace;  // gets the waits; NULL: nobody asks
    int threaded, stopping, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    job *first, *last;
    int failed;  // after a failed job no other is run: the ranks no longer agree on what comes next
    char error[sizeof((job *)0)->error];  // its sentence, which the later ones relay: who waits for those
                                          // must learn the cause
} progress;

int progress_start(progress *p, device *d, int threaded);
void progress_stop(progress *p);  // waits for what was submitted
int progress_prepare(progress *p, job *j,
                     device_stream s);  // a job that uses the device, before its first submission: its events
void progress_forget(progress *p, job *j);
int progress_submit(progress *p, job *j);  // j must not be pending; it belongs to the caller
int progress_wait(progress *p, job *j);    // relays the job's failure; returns at once if j is not pending
int progress_run(progress *p, int (*run)(void *, job *), void *ctx);  // submit and wait

#endif
