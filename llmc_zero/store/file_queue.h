// Transfers on their way: cut into requests, in order, with checksums and the first failure. file_engine.c
// puts transfers in; a driver (io_uring, or threads) takes requests out and says what has become of them.
#ifndef LLMC_ZERO_STORE_FILE_QUEUE_H
#define LLMC_ZERO_STORE_FILE_QUEUE_H
#include <pthread.h>
#include "file.h"
#include "file_folder.h"

// A part of a transfer, within one block of one folder.
typedef struct file_request {
    file_transfer *of;  // NULL: idle; with `lost` its memory may be gone
    int write, lost;
    char *data;
    size_t bytes;
    size_t done;     // of these; a short read or write is continued
    int64_t offset;  // in the states
    int folder;      // and where that is on the disks
    int64_t at;
    int tries;   // after an interruption
    long asked;  // bytes; what comes beyond does not count
    struct file_request *next;
} file_request;

typedef struct {
    uint64_t now, before;  // of what was written last to FILE_ALIGN bytes, and of what was there; 0: nothing
} file_sums;

typedef struct {
    file_folder folders[FILE_FOLDERS];
    int n_folders;
    int64_t bytes;  // of the states
    size_t block_bytes;
    int depth;
    double timeout_s;
    file_sums *sums;  // NULL: no checksums

    pthread_mutex_t lock;  // for the rest
    pthread_cond_t ended;  // a transfer has ended
    pthread_cond_t work;   // there may be a request to take, for drivers that wait here
    // Those that have not ended, in the order of their start. A hundred thousand may be queued, so that what
    // is done for each does not depend on their number unless they overlap.
    file_transfer *first, *last;
    int64_t end;       // of the states: none of them reaches further
    int64_t waits;     // the sum of what each waits for
    int64_t uncut[2];  // reads, and writes, of which requests are still to be made
    int64_t urgent;    // of those, the urgent ones
    file_request *requests, *idle;
    int underway;   // requests taken and not ended
    int lost;       // of them those of a disk that has not answered: nobody waits for them any more
    int last_kind;  // the kind of the request taken last: reads and writes take turns
    int closing;
    double progress;  // when the last request has ended, or the first transfer was put in
    int failed;       // the first failure's code, and the failure itself
    zero_failure failure;
    file_counters counters;
} file_queue;

// file_engine.c fills the fields above the sums before, and closes the folders after.
int queue_open(file_queue *q, int verify);
int64_t queue_memory_bytes(int64_t bytes, int depth, int verify);
void queue_close(file_queue *q);

// For file_engine.c, with the lock held. Puts a transfer at the end of the queue.
void queue_append(file_queue *q, file_transfer *t);
// Returns 0 when t has ended, or with NULL all have; 1 if that is not so after so many seconds; or the first
// failure, also if that is the time. After a failure no transfer is used any more, though the disk may still
// move bytes from or to its buffer.
int queue_wait(file_queue *q, const file_transfer *t, double seconds);
// Gives a disk that has not answered a little more time to do so. Returns how many requests it still has.
int queue_wait_lost(file_queue *q);

// For drivers, without the lock. Returns a request to carry out, or NULL: none may begin now. With `wait` it
// returns NULL only when the queue is closing.
file_request *queue_take(file_queue *q, int wait);
// Takes what a request has moved, or a negative errno. Returns 1 if it goes on with what is left.
int queue_end(file_queue *q, file_request *r, long moved);
int queue_is_closing(file_queue *q);
static inline char *request_data(const file_request *r) { return r->data + r->done; }
static inline int64_t request_at(const file_request *r) { return r->at + (int64_t)r->done; }
// Returns how many bytes to ask for, or what a test puts in the place of the request's outcome, 0 or less.
long request_bytes(file_request *r);

// One way to carry out requests. Functions return 0 or errno.
typedef struct {
    const char *name;
    int (*open)(void **driver, file_queue *q, int threads);  // an error: it cannot be used here
    int (*pin)(void *driver, void *memory, size_t bytes);    // (optional) registers a buffer
    int (*start)(void *driver);                              // its threads begin to take requests
    void (*wake)(void *driver);                              // with the lock held: a request may be taken
    void (*close)(void *driver);                             // the queue is closing, and nothing is under way
} file_driver;
extern const file_driver file_threads;
extern const file_driver *const file_uring;  // NULL: built without it

#endif
