// Pending transfers: split into requests, in order, with checksums and the first failure. file_engine.c adds
// transfers; a driver (io_uring, or threads) takes requests and returns their results.
#ifndef LLMC_ZERO_TIERS_FILE_QUEUE_H
#define LLMC_ZERO_TIERS_FILE_QUEUE_H
#include <pthread.h>
#include "file.h"
#include "file_folder.h"

// A part of a transfer, within one block of one folder.
typedef struct file_request {
    file_transfer *of;  // NULL: idle; with `lost` it may have been freed
    int write, lost;
    char *data;
    size_t bytes;
    size_t done;     // of these bytes; a short read or write is continued
    int64_t offset;  // in the states
    int folder;      // and its place on disk
    int64_t at;
    int tries;   // after interruptions
    long asked;  // bytes; any beyond do not count
    struct file_request *next;
} file_request;

typedef struct {
    uint64_t now, before;  // checksums of FILE_ALIGN bytes: as written last, and before that; 0: none
} file_sums;

typedef struct {
    file_folder folders[FILE_FOLDERS];
    int n_folders;
    int64_t bytes;  // of the states
    size_t block_bytes;
    int depth;
    double timeout_s;
    file_sums *sums;  // NULL: no checksums

    pthread_mutex_t lock;  // for the fields below
    pthread_cond_t ended;  // a transfer has ended
    pthread_cond_t work;   // a request may be available, for drivers that wait here
    // Unfinished transfers, in the order of their start. There may be a hundred thousand, so the work for
    // each must not depend on their number unless they overlap.
    file_transfer *first, *last;
    int64_t end;       // of the states: the furthest end of any of them
    int64_t waits;     // the total of their `earlier`
    int64_t uncut[2];  // reads and writes that are not all in requests yet
    int64_t urgent;    // the urgent ones of these
    file_request *requests, *idle;
    int underway;   // requests taken but not ended
    int lost;       // of these, requests to a hung disk: nothing waits for them any more
    int last_kind;  // kind of the last request taken: reads and writes take turns
    int closing;
    double progress;  // when the last request ended, or the first transfer was added
    int failed;       // the first failure's code, and the failure itself
    failure_record failure;
    file_counters counters;
} file_queue;

// file_engine.c sets the fields above the sums before this, and closes the folders afterwards.
int queue_open(file_queue *q, int verify);
int64_t queue_memory_bytes(int64_t bytes, int depth, int verify);
void queue_close(file_queue *q);

// For file_engine.c. The caller holds the lock. Appends a transfer to the queue.
void queue_append(file_queue *q, file_transfer *t);
// Returns 0 when t (NULL: every transfer) has ended; 1 if it has not after so many seconds; or the first
// failure, which a timeout may be too. After a failure no transfer is used any more, though the disk may
// still access its buffer.
int queue_wait(file_queue *q, const file_transfer *t, double seconds);
// Gives a hung disk a little more time. Returns how many requests it still has.
int queue_wait_lost(file_queue *q);

// For drivers, which must not hold the lock. Returns a request to carry out, or NULL if none may begin now.
// With `wait` it returns NULL only when the queue is closing.
file_request *queue_take(file_queue *q, int wait);
// Records the bytes that a request has moved, or a negative errno. Returns 1 if the request continues with
// the rest.
int queue_end(file_queue *q, file_request *r, long moved);
int queue_is_closing(file_queue *q);
static inline char *request_data(const file_request *r) { return r->data + r->done; }
static inline int64_t request_at(const file_request *r) { return r->at + (int64_t)r->done; }
// Returns how many bytes to request, or a test's replacement for the request's result, 0 or less.
long request_bytes(file_request *r);

// One way to carry out requests. Functions return 0 or errno.
typedef struct {
    const char *name;
    int (*open)(void **driver, file_queue *q, int threads);  // an error: it cannot be used here
    int (*pin)(void *driver, void *memory, size_t bytes);    // (optional) registers a buffer
    int (*start)(void *driver);                              // its threads start taking requests
    void (*wake)(void *driver);                              // under the lock: a request is available
    void (*close)(void *driver);                             // the queue is closing and idle
} file_driver;
extern const file_driver file_threads;
extern const file_driver *const file_uring;  // NULL: built without it

#endif
