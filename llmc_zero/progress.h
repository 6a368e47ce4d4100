/*
 * Collectives as jobs, run in the order in which they were submitted: by a progress thread, the only one that then talks to the other
 * ranks, while the trainer computes; or, without overlap, right where they are submitted. All ranks submit the same jobs in the same order.
 */
#ifndef LLMC_ZERO_PROGRESS_H
#define LLMC_ZERO_PROGRESS_H
#include <pthread.h>

typedef struct job {
    int (*run)(void *ctx, struct job *self);
    void *ctx;
    int index;                  /* the unit or bucket it is about */
    int pending, rc;            /* submitted and not finished; result */
    char error[256];            /* the sentence, if rc is not 0 */
    struct job *next;
} job;

typedef struct {
    int threaded, stopping, started;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    job *first, *last;
    int failed;                 /* after a failed job no other is run: the ranks no longer agree on what comes next */
    char error[sizeof ((job *)0)->error];   /* its sentence, which the later ones relay: who waits for those must learn the cause */
} progress;

int progress_start(progress *p, int threaded);
void progress_stop(progress *p);                /* waits for what was submitted */
int progress_submit(progress *p, job *j);       /* j must not be pending; it belongs to the caller */
int progress_wait(progress *p, job *j);         /* relays the job's failure; returns at once if j is not pending */
int progress_run(progress *p, int (*run)(void *, job *), void *ctx);     /* submit and wait */

#endif
