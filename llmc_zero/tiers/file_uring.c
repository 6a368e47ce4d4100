// Performs requests with io_uring. One thread owns the ring: it submits requests, and sleeps until one has
// ended or another thread wakes it.
#include "file_queue.h"
#ifndef ZERO_HAVE_URING
const file_driver *const file_uring = NULL;
#else
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PIN_BYTES = 1 << 30, PIN_PARTS = 64 };  // the kernel accepts at most 1 GiB per buffer

typedef struct {
    file_queue *q;
    struct io_uring ring;
    int wake_fd;
    int started;
    pthread_t thread;
    char *pinned;  // NULL: no buffer is registered
    size_t pinned_bytes;
    int in_kernel;  // requests submitted but not ended
    int n_ready;    // requests in the ring but not submitted
    file_request *ready[];
} uring;

// -------- preparing a request

// Returns the index of the registered buffer that contains these bytes, or -1.
static int pinned_part(const uring *u, const char *data, size_t bytes) {
    if (!u->pinned || data < u->pinned || data + bytes > u->pinned + u->pinned_bytes) return -1;
    size_t first = (size_t)(data - u->pinned) / PIN_BYTES;
    size_t last = (size_t)(data - u->pinned + (ptrdiff_t)bytes - 1) / PIN_BYTES;
    return first == last ? (int)first : -1;
}

static void fill_entry(const uring *u, struct io_uring_sqe *sqe, file_request *r, unsigned bytes) {
    static const int operations[2][2] = { { IORING_OP_READ, IORING_OP_READ_FIXED },
                                          { IORING_OP_WRITE, IORING_OP_WRITE_FIXED } };
    const int part = pinned_part(u, request_data(r), bytes), is_pinned = part >= 0;
    io_uring_prep_rw(operations[r->write][is_pinned], sqe, u->q->folders[r->folder].fd, request_data(r),
                     bytes, (uint64_t)request_at(r));
    if (is_pinned) sqe->buf_index = (uint16_t)part;
    io_uring_sqe_set_data(sqe, r);
}

static void prepare(uring *u, file_request *r) {
    long bytes = request_bytes(r);
    while (bytes <= 0) {
        if (!queue_end(u->q, r, bytes)) return;
        bytes = request_bytes(r);
    }
    // The ring has an entry for each request, so one is free.
    fill_entry(u, io_uring_get_sqe(&u->ring), r, (unsigned)bytes);
    u->ready[u->n_ready++] = r;
}

// -------- submitting and reaping

static void submit(uring *u) {
    while (u->n_ready) {
        long allowed = file_allowed(FILE_SUBMIT, 1);
        int n = allowed < 0 ? (int)allowed : io_uring_submit(&u->ring);
        if (n == -EINTR) continue;
        int is_later = n == -EAGAIN || n == -EBUSY;
        if (is_later && u->in_kernel) return;  // retries when one of these ends
        if (n <= 0) {
            const int error = is_later ? ENOMEM : n < 0 ? -n : EIO;
            // Their entries stay in the ring, but after a failure nothing more is submitted.
            while (u->n_ready) queue_end(u->q, u->ready[--u->n_ready], -error);
            return;
        }
        u->n_ready -= n;
        u->in_kernel += n;
        memmove(u->ready, u->ready + n, (size_t)u->n_ready * sizeof *u->ready);
    }
}

// Submits each request before taking the next one, so that the disk works while checksums are computed.
static void submit_new(uring *u) {
    file_request *r;
    submit(u);
    while ((r = queue_take(u->q, 0))) {
        prepare(u, r);
        submit(u);
    }
}

static void reap(uring *u) {
    struct io_uring_cqe *cqe;
    while (!io_uring_peek_cqe(&u->ring, &cqe)) {
        file_request *r = io_uring_cqe_get_data(cqe);
        int moved = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        u->in_kernel--;
        if (queue_end(u->q, r, moved)) prepare(u, r);
        submit_new(u);
    }
}

static void sleep_until_needed(uring *u) {
    uint64_t count;
    struct pollfd fds[2] = { { u->ring.ring_fd, POLLIN, 0 }, { u->wake_fd, POLLIN, 0 } };
    poll(fds, 2, -1);
    while (read(u->wake_fd, &count, sizeof count) < 0 && errno == EINTR) continue;
}

static void *uring_loop(void *arg) {
    uring *u = arg;
    for (;;) {
        submit_new(u);
        reap(u);
        if (!u->in_kernel && atomic_load(&u->q->closing)) return NULL;
        sleep_until_needed(u);
    }
}

// -------- the driver

static int uring_open(void **driver, file_queue *q) {
    long allowed = file_allowed(FILE_URING, 1);
    uring *u = calloc(1, sizeof *u + (size_t)q->s.depth * sizeof(file_request *));
    if (!u) return ENOMEM;
    u->q = q;
    int rc = allowed < 0 ? (int)allowed : io_uring_queue_init((unsigned)q->s.depth, &u->ring, 0);
    if (!rc && (u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
        rc = -errno;
        io_uring_queue_exit(&u->ring);
    }
    if (rc) free(u);
    if (!rc) *driver = u;
    return -rc;
}

static int uring_pin(void *driver, void *memory, size_t bytes) {
    uring *u = driver;
    struct iovec parts[PIN_PARTS] = { { NULL, 0 } };
    unsigned n = 0;
    for (size_t at = 0; at < bytes && n < PIN_PARTS; at += PIN_BYTES) {
        size_t left = bytes - at;
        parts[n++] = (struct iovec){ (char *)memory + at, left < PIN_BYTES ? left : PIN_BYTES };
    }
    long allowed = file_allowed(FILE_PIN, 1);
    int rc = allowed < 0 ? (int)allowed : io_uring_register_buffers(&u->ring, parts, n);
    if (rc) return -rc;
    u->pinned = memory;
    u->pinned_bytes = n < PIN_PARTS ? bytes : (size_t)PIN_PARTS * PIN_BYTES;
    return 0;
}

static int uring_start(void *driver) {
    uring *u = driver;
    int rc = pthread_create(&u->thread, NULL, uring_loop, u);
    u->started = !rc;
    return rc;
}

static void uring_wake(void *driver) {
    uint64_t one = 1;
    ssize_t n;
    do n = write(((uring *)driver)->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static void uring_close(void *driver) {
    uring *u = driver;
    if (u->started) pthread_join(u->thread, NULL);
    io_uring_queue_exit(&u->ring);
    close(u->wake_fd);
    free(u);
}

static const file_driver driver_of_uring = { uring_open, uring_pin, uring_start, uring_wake, uring_close };
const file_driver *const file_uring = &driver_of_uring;
#endif
