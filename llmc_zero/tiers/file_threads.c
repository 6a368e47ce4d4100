// Performs requests with threads. Each runs one pread or pwrite at a time.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include "file_queue.h"

typedef struct {
    file_queue *q;
    int started;
    pthread_t threads[];
} pool;

static long perform(const file_queue *q, file_request *r) {
    int fd = q->folders[r->folder].fd;
    long bytes = request_bytes(r);
    if (bytes <= 0) return bytes;
    ssize_t moved = r->write ? pwrite(fd, request_data(r), (size_t)bytes, request_at(r))
                             : pread(fd, request_data(r), (size_t)bytes, request_at(r));
    return moved < 0 ? -errno : moved;
}

static void *thread_loop(void *arg) {
    file_queue *q = arg;
    file_request *r;
    while ((r = queue_take(q, 1)))
        while (queue_end(q, r, perform(q, r))) continue;
    return NULL;
}

static int threads_open(void **driver, file_queue *q) {
    pool *p = calloc(1, sizeof *p + (size_t)q->s.threads * sizeof *p->threads);
    if (!p) return ENOMEM;
    p->q = q;
    *driver = p;
    return 0;
}

static int threads_start(void *driver) {
    pool *p = driver;
    while (p->started < p->q->s.threads) {
        int rc = pthread_create(&p->threads[p->started], NULL, thread_loop, p->q);
        if (rc) return rc;
        p->started++;
    }
    return 0;
}

static void threads_wake(void *driver) { pthread_cond_broadcast(&((pool *)driver)->q->work); }

static void threads_close(void *driver) {
    pool *p = driver;
    for (int i = 0; i < p->started; i++) pthread_join(p->threads[i], NULL);
    free(p);
}

const file_driver file_threads = { threads_open, NULL, threads_start, threads_wake, threads_close };
