#define XXH_INLINE_ALL
#include "file_queue.h"
#include "../base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { MAX_TRIES = 10 };  // for an interrupted request

// -------- the list

static size_t padded(size_t bytes) { return (bytes + FILE_ALIGN - 1) / FILE_ALIGN * FILE_ALIGN; }

static void put_last(file_queue *q, file_transfer *t) {
    t->next = NULL;
    t->prev = q->last;
    *(q->last ? &q->last->next : &q->first) = t;
    q->last = t;
    t->queued = 1;
}

static void take_out(file_queue *q, file_transfer *t) {
    *(t->prev ? &t->prev->next : &q->first) = t->next;
    *(t->next ? &t->next->prev : &q->last) = t->prev;
    t->queued = 0;
}

// -------- failures

// The caller holds the lock. Keeps the first failure, and drops requests that have not begun.
static void fail_all(file_queue *q) {
    if (q->failed) return;
    q->failure = *zero_failed();
    q->failed = q->failure.fields.code;
    for (file_transfer *t = q->first, *next; t; t = next) {
        next = t->next;
        t->cut = padded(t->bytes);
        if (!t->underway) take_out(q, t);
    }
    pthread_cond_broadcast(&q->ended);
}

static const char *advice_for(int error) {
    if (error == ENOSPC || error == EDQUOT) return "make room there, or name another folder";
    if (error == EIO || error == ENODEV || error == ENXIO)
        return "see the kernel's log (dmesg); check the disk, or name a folder on another one";
    if (error == ENOENT) return "do not remove the files of a run; restart from a checkpoint";
    return "check the file system, or name another folder; then restart from a checkpoint";
}

static int fail_request(const file_queue *q, const file_request *r, const char *what, int error) {
    return FILE_FAIL(advice_for(error), "%s: %s of %zu bytes at offset %lld failed: %s",
                     q->folders[r->folder].path, r->write ? "the write" : "the read", r->bytes - r->done,
                     (long long)request_at(r), what);
}

// -------- checksums of FILE_ALIGN bytes, stored by offset

static uint64_t sum_of(const char *data) {
    uint64_t sum = XXH3_64bits(data, FILE_ALIGN);
    return sum ? sum : 1;
}

// Overlapping transfers wait for each other, so no other thread can use these sums now.
static void note_sums(file_queue *q, const file_request *r) {
    for (size_t i = 0; i < r->bytes; i += FILE_ALIGN) {
        file_sums *s = &q->sums[(r->offset + (int64_t)i) / FILE_ALIGN];
        s->before = s->now;
        s->now = sum_of(r->data + i);
    }
}

// Data that was never written is all zeros.
static uint64_t or_of_zeros(uint64_t sum) {
    static const char zeros[FILE_ALIGN];
    return sum ? sum : sum_of(zeros);
}

static int check_sums(const file_queue *q, const file_request *r) {
    for (size_t i = 0; i < r->bytes; i += FILE_ALIGN) {
        const file_sums *s = &q->sums[(r->offset + (int64_t)i) / FILE_ALIGN];
        uint64_t sum = sum_of(r->data + i);
        if (sum == or_of_zeros(s->now)) continue;
        const char *what = sum == or_of_zeros(s->before)
                               ? "is from an older step: the disk has lost the last write"
                               : "differs from what was written: wrong checksum";
        return FILE_FAIL("check the disk, or name a folder on another one; then restart from a checkpoint",
                         "%s: the block of %d bytes at offset %lld %s", q->folders[r->folder].path,
                         FILE_ALIGN, (long long)(r->at + (int64_t)i), what);
    }
    return 0;
}

// -------- order

static int must_wait(const file_transfer *later, const file_transfer *earlier) {
    if (!later->write && !earlier->write) return 0;
    return later->offset < earlier->offset + (int64_t)padded(earlier->bytes) &&
           earlier->offset < later->offset + (int64_t)padded(later->bytes);
}

void queue_append(file_queue *q, file_transfer *t) {
    const int64_t end = t->offset + (int64_t)padded(t->bytes);
    t->started_s = clock_now();
    t->cut = 0;
    t->underway = t->earlier = 0;
    if (!q->first) {
        q->progress = clock_now();
        q->end = 0;
    }
    // A transfer after the end of all others overlaps none.
    for (const file_transfer *o = t->offset < q->end ? q->first : NULL; o; o = o->next)
        t->earlier += must_wait(t, o);
    q->waits += t->earlier;
    q->uncut[!!t->write]++;
    q->urgent += t->urgent;
    if (end > q->end) q->end = end;
    put_last(q, t);
}

// The caller holds the lock.
static void end_transfer(file_queue *q, file_transfer *t) {
    for (file_transfer *later = q->waits ? t->next : NULL; later; later = later->next) {
        const int waits = must_wait(later, t);
        later->earlier -= waits;
        q->waits -= waits;
    }
    take_out(q, t);
    t->ended_s = clock_now();
    if (t->write)
        q->counters.bytes_written += (int64_t)t->bytes;
    else
        q->counters.bytes_read += (int64_t)t->bytes;
    pthread_cond_broadcast(&q->ended);
    pthread_cond_broadcast(&q->work);
}

// -------- cutting into requests

static int may_be_cut(const file_transfer *t) { return !t->earlier && t->cut < padded(t->bytes); }

// Returns the oldest transfer that can begin a request. Prefers urgent ones, then a read after a write or a
// write after a read, because disks do both at once.
static file_transfer *next_transfer(const file_queue *q) {
    file_transfer *other = NULL;
    for (file_transfer *t = q->urgent ? q->first : NULL; t; t = t->next)
        if (t->urgent && may_be_cut(t)) return t;
    for (file_transfer *t = q->first; t; t = t->next) {
        if (!may_be_cut(t)) continue;
        if (t->write != q->last_kind) return t;
        if (!other) other = t;
        if (!q->uncut[!t->write]) return t;
    }
    return other;
}

// Cuts the next request from a transfer. Block i of the states is in folder i % n. In a single folder all
// blocks are contiguous, so a request may begin anywhere.
static void cut_request(file_queue *q, file_transfer *t, file_request *r) {
    const int64_t block = (int64_t)q->s.block_bytes, offset = t->offset + (int64_t)t->cut, i = offset / block;
    const size_t bytes = padded(t->bytes) - t->cut;
    const size_t room = (size_t)(q->n_folders > 1 ? block - offset % block : block);
    *r = (file_request){ .of = t,
                         .write = t->write,
                         .data = t->data + t->cut,
                         .bytes = bytes < room ? bytes : room,
                         .offset = offset,
                         .folder = (int)(i % q->n_folders),
                         .at = i / q->n_folders * block + offset % block };
    t->cut += r->bytes;
    t->underway++;
    const int is_cut = t->cut == padded(t->bytes);
    q->uncut[!!t->write] -= is_cut;
    q->urgent -= is_cut && t->urgent;
}

// The caller holds the lock.
static file_request *take(file_queue *q) {
    file_request *r = q->idle;
    file_transfer *t = r && !q->failed ? next_transfer(q) : NULL;
    if (!t) return NULL;
    q->idle = r->next;
    cut_request(q, t, r);
    q->last_kind = t->write;
    return r;
}

file_request *queue_take(file_queue *q, int wait) {
    pthread_mutex_lock(&q->lock);
    file_request *r = take(q);
    while (!r && wait && !q->closing) {
        pthread_cond_wait(&q->work, &q->lock);
        r = take(q);
    }
    pthread_mutex_unlock(&q->lock);
    if (r && q->sums && r->write) note_sums(q, r);
    return r;
}

long request_bytes(file_request *r) {
    r->asked = file_allowed(r->write ? FILE_WRITE : FILE_READ, r->bytes - r->done);
    return r->asked > 0 ? (long)padded((size_t)r->asked) : r->asked;
}

// -------- the end of a request

// Returns the number of bytes moved, or an error code. Only multiples of FILE_ALIGN count, because direct
// requests cannot continue at other offsets.
static long judge(const file_queue *q, file_request *r, long moved) {
    char what[80];
    if ((moved == -EINTR || moved == -EAGAIN) && r->tries++ < MAX_TRIES) return 0;
    if (moved < 0) return fail_request(q, r, strerror((int)-moved), (int)-moved);
    if (folder_is_gone(&q->folders[r->folder]))
        return fail_request(q, r, "the file has been removed", ENOENT);
    if (moved > r->asked) moved = r->asked;
    if (moved >= FILE_ALIGN) return moved / FILE_ALIGN * FILE_ALIGN;
    snprintf(what, sizeof what, r->write ? "only %ld bytes were written" : "only %ld bytes were there",
             moved);
    return fail_request(q, r, what, 0);
}

int queue_end(file_queue *q, file_request *r, long moved) {
    long rc = judge(q, r, moved);
    if (rc > 0) r->done += (size_t)rc;
    int is_whole = r->done == r->bytes;
    if (is_whole && q->sums && !r->write) rc = check_sums(q, r);
    pthread_mutex_lock(&q->lock);
    if (rc < 0) fail_all(q);
    int goes_on = !is_whole && !q->failed;
    if (!goes_on) {
        file_transfer *t = r->lost ? NULL : r->of;
        if (r->lost && !--q->lost) pthread_cond_broadcast(&q->ended);
        r->of = NULL;
        r->next = q->idle;
        q->idle = r;
        q->progress = clock_now();
        if (t && !--t->underway && t->cut == padded(t->bytes)) end_transfer(q, t);
    }
    pthread_mutex_unlock(&q->lock);
    return goes_on;
}

// -------- waiting

// Fails because no request has ended for too long. The caller holds the lock. Requests in flight may end at
// any time or never, so nothing waits for them from now on, and the owners get their transfers back.
static int fail_late(file_queue *q) {
    const file_request *oldest = NULL;
    for (file_request *r = q->requests; r < q->requests + q->s.depth; r++) {
        if (!r->of || r->lost) continue;
        if (!oldest) oldest = r;
        r->lost = 1;
        q->lost++;
    }
    if (oldest)
        zero_fail(ZERO_ERR_IO, "%s: the %s at offset %lld did not end within %g s",
                  q->folders[oldest->folder].path, oldest->write ? "write" : "read",
                  (long long)request_at(oldest), q->s.timeout_s);
    else
        zero_fail(ZERO_ERR_IO, "%s: no read or write began within %g s", q->folders[0].path, q->s.timeout_s);
    zero_failed_advice("the disk does not answer: check it (dmesg)");
    fail_all(q);
    while (q->first) take_out(q, q->first);
    pthread_cond_broadcast(&q->ended);
    return ZERO_ERR_IO;
}

static void wait_until(file_queue *q, double until) {
    const struct timespec deadline = { (time_t)until, (long)((until - (double)(time_t)until) * 1e9) };
    pthread_cond_timedwait(&q->ended, &q->lock, &deadline);
}

int queue_wait(file_queue *q, const file_transfer *t, double seconds) {
    const double enough = clock_now() + seconds;
    while (t ? t->queued : q->first != NULL) {
        const double late = q->progress + q->s.timeout_s, now = clock_now();
        if (now >= late) {
            fail_late(q);
            break;
        }
        if (now >= enough) return 1;
        wait_until(q, late < enough ? late : enough);
    }
    return q->failed ? zero_fail_again(&q->failure) : 0;
}

int queue_wait_lost(file_queue *q) {
    const double most_s = 5, part = q->s.timeout_s / 4;
    const double until = clock_now() + (part < most_s ? part : most_s);
    while (q->lost && clock_now() < until) wait_until(q, until);
    return q->lost;
}

// -------- opening

int queue_open(file_queue *q) {
    const size_t n_sums = padded((size_t)q->bytes) / FILE_ALIGN;
    q->requests = calloc((size_t)q->s.depth, sizeof *q->requests);
    q->sums = q->s.verify ? calloc(n_sums + 1, sizeof *q->sums) : NULL;
    if (!q->requests || (q->s.verify && !q->sums)) {
        free(q->requests);
        free(q->sums);
        return zero_fail(ZERO_ERR_MEMORY, "no memory for %d requests and %zu checksums of files on NVMe",
                         q->s.depth, q->s.verify ? n_sums : 0);
    }
    for (int i = 0; i < q->s.depth; i++) {
        q->requests[i].next = q->idle;
        q->idle = &q->requests[i];
    }
    pthread_condattr_t monotonic;
    int rc = pthread_condattr_init(&monotonic);
    if (!rc) rc = pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    if (!rc) rc = pthread_mutex_init(&q->lock, NULL);
    if (!rc) rc = pthread_cond_init(&q->ended, &monotonic);
    if (!rc) rc = pthread_cond_init(&q->work, NULL);
    pthread_condattr_destroy(&monotonic);
    return rc ? zero_fail(ZERO_ERR_MEMORY, "cannot open the queue for files: %s", strerror(rc)) : 0;
}

void queue_close(file_queue *q) {
    pthread_cond_destroy(&q->work);
    pthread_cond_destroy(&q->ended);
    pthread_mutex_destroy(&q->lock);
    free(q->sums);
    free(q->requests);
}
