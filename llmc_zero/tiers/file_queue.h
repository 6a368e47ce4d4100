// Pending transfers: their order, their requests, checksums, and the first failure. file_engine.c adds
// transfers; a driver (io_uring or threads) takes requests and returns their results.
#ifndef LLMC_ZERO_TIERS_FILE_QUEUE_H
#define LLMC_ZERO_TIERS_FILE_QUEUE_H
#include <pthread.h>
#include <stdatomic.h>
#include "file.h"
#include "file_folder.h"

// A part of a transfer, within one block of one folder.
typedef struct file_request {
    file_transfer *of;  // NULL: idle; if `lost`, it may have been freed
    int write, lost;
    char *data;
    size_t bytes;
    size_t done;     // bytes already moved by short reads or writes
    int64_t offset;  // in the states
    int folder;      // on disk: the folder,
    int64_t at;      // and the offset in its file
    int tries;       // retries after interruptions
    long asked;      // bytes requested; a larger result is cut to this
    struct file_request *next;
} file_request;

typedef struct {
    uint64_t now, before;  // checksums of FILE_ALIGN bytes, from the last write and the one before; 0: none
} file_sums;

typedef struct {
    file_settings s;  // its strings may no longer exist
    file_folder folders[FILE_FOLDERS];
    int n_folders;
    int64_t bytes;    // of the states
    file_sums *sums;  // NULL: no checksums

    pthread_mutex_t lock;  // for the fields below
    pthread_cond_t ended;  // a transfer has ended
    pthread_cond_t work;   // a request may be available; drivers may wait for it
    // Unfinished transfers, in the order in which they were started. A hundred thousand are possible, so the
    // cost per transfer must not grow with their number unless they overlap.
    file_transfer *first, *last;
    int64_t end;       // the largest offset at which a transfer ends
    int64_t waits;     // the sum of their `earlier`
    int64_t uncut[2];  // number of reads, and of writes, not completely cut into requests
    int64_t urgent;    // number of urgent ones among them
    file_request *requests, *idle;
    int lost;            // number of requests that a hung disk still has and nothing waits for
    int last_kind;       // kind of the last request taken; reads and writes alternate
    atomic_int closing;  // also read without the lock
    double progress;     // when the last request ended, or the first transfer was added
    int failed;          // the first failure's code, and the failure itself
    failure_record failure;
    file_counters counters;
} file_queue;

// file_engine.c must set the fields above `sums` first.
int queue_open(file_queue *q);
void queue_close(file_queue *q);

// For file_engine.c. The caller holds the lock.
void queue_append(file_queue *q, file_transfer *t);
// Returns 0 when t (NULL: every transfer) has ended, 1 if it has not in time, or the first failure, perhaps a
// timeout of the disk. Then the queue accesses no transfer any more, but the disk may still use the buffers.
int queue_wait(file_queue *q, const file_transfer *t, double seconds);
// Gives a hung disk a little more time. Returns the number of requests it still has.
int queue_wait_lost(file_queue *q);

// For drivers, which must not hold the lock. Returns a request to perform, or NULL if none can begin. If
// `wait` is set, waits for one and returns NULL only when the queue is closing.
file_request *queue_take(file_queue *q, int wait);
// Records the bytes that a request has moved, or a negative errno. Returns 1 if the driver must go on.
int queue_end(file_queue *q, file_request *r, long moved);
static inline char *request_data(const file_request *r) { return r->data + r->done; }
static inline int64_t request_at(const file_request *r) { return r->at + (int64_t)r->done; }
// Returns the number of bytes to request; 0 or less is a result injected by a test.
long request_bytes(file_request *r);

// Performs requests. Functions return 0 or errno.
typedef struct {
    int (*open)(void **driver, file_queue *q);             // fails if the driver cannot be used here
    int (*pin)(void *driver, void *memory, size_t bytes);  // (optional) registers a buffer
    int (*start)(void *driver);                            // its threads start taking requests
    void (*wake)(void *driver);   // called with the lock held: a request is available
    void (*close)(void *driver);  // the queue is closing and idle
} file_driver;
extern const file_driver file_threads;
extern const file_driver *const file_uring;  // NULL: built without it

#endif
