#include "failure.h"
#include "../base/clock.h"
#include "../base/error.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static const double hear_s = 0.5;    // time for late ranks to receive each other's LATE
static const double farewell_s = 1;  // for a note to arrive
static const double claim_s = 1;     // for a lower rank to send END too
static const double reporter_s = 3;  // for the reporting rank to print

// -------- dead ranks, and ranks that have ended the job

void failure_take(net *n, int from, const net_note *note) {
    net_peer *p = &n->peers[from];
    if (note->kind == NOTE_GOODBYE) p->left = 1;
    if (note->kind == NOTE_LATE) {
        p->late = 1;
        p->timed_out = note->timed_out;
        p->exchange = note->exchange;
    }
    if (note->kind != NOTE_END) return;
    p->ended = 1;
    if (n->ended.root >= 0 && note->root >= n->ended.root) return;
    n->ended = *note;
    zero_plain(n->ended.words, sizeof n->ended.words);
}

static int has_one_ended(const net *n) { return n->ended.root >= 0; }

static int lost_rank(const net *n) {
    if (has_one_ended(n)) return n->ended.root;
    for (int r = 0; r < n->ranks; r++)
        if (n->peers[r].gone) return r;
    return -1;
}

static int fail_lost(const net *n, int r, const char *tail) {
    if (has_one_ended(n)) return zero_fail_rank(ZERO_ERR_COMM, r, NULL, " ended the job: %s", n->ended.words);
    int error = n->peers[r].error, is_end = !error || error == ECONNRESET || error == EPIPE;
    const char *why = is_end ? "its connection closed" : strerror(error);
    if (error == ETIMEDOUT) why = "its host stopped responding";
    if (error == EBADMSG) why = "it sent an invalid message,";
    if (error == ESHUTDOWN) why = "it exited normally, but all ranks must make the same calls,";
    return zero_fail_rank(ZERO_ERR_COMM, r, net_host(n, r), " is gone: %s%s", why, tail);
}

int failure_seen(const net *n, net_use use, exchange_kind x) {
    int r = lost_rank(n);
    char tail[192], where[NET_WHERE];
    if (r < 0) return 0;
    snprintf(tail, sizeof tail, " while rank %d (host %s) waited for it in %s", n->rank, net_host(n, n->rank),
             net_where(use, x, where));
    fail_lost(n, r, tail);
    return zero_failed_at_unit(use.units ? use.unit : -1);
}

// Returns 1 with the lock held and notes received. Returns 0 if the launcher ends all ranks, or if another
// thread is in an exchange, because that thread notices failures itself.
static int look_around(net *n) {
    if (!n->f || n->f->end || pthread_mutex_trylock(&n->lock)) return 0;
    n->f->look(n);
    return 1;
}

int failure_lost_in(net *n, net_use use, exchange_kind x) {
    if (!look_around(n)) return 0;
    int rc = failure_seen(n, use, x);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

int failure_lost(net *n, const char *tail) {
    if (!look_around(n)) return -1;
    int r = lost_rank(n);
    if (r >= 0) fail_lost(n, r, tail);
    pthread_mutex_unlock(&n->lock);
    return r;
}

// -------- states: failed, late

int failure_keep(net *n) {
    n->failure = *zero_failed();
    n->closed = n->failed = 1;
    return n->failure.fields.code;
}

static int is_silent(const net *n, int r) {
    const net_peer *p = &n->peers[r];
    return r != n->rank && !p->late && !p->ahead;
}

static int is_off(const net *n, int r) { return n->peers[r].gone || n->peers[r].left; }
static int has_lower_ended(const net *n) { return has_one_ended(n) && n->ended.root < n->rank; }
static int has_reporter_ended(const net *n) { return is_off(n, n->ended.root); }
static int is_told(const net *n) { return !n->f->telling || !n->f->telling(n); }
static int all_heard(const net *n) {
    int silent = 0;
    for (int r = 0; r < n->ranks; r++) silent |= is_silent(n, r) && !n->peers[r].gone;
    return !silent || has_one_ended(n);
}
// Returns 1 if no lower rank can still send END.
static int are_lower_heard(const net *n) {
    int all = 1;
    for (int r = 0; r < n->rank; r++) all &= n->peers[r].ended || is_off(n, r);
    return all || n->reports == 1 || has_lower_ended(n);
}

static void listen(net *n, double seconds, int (*is_over)(const net *n)) {
    patience p = patience_start();
    do {
        n->f->look(n);
        clock_nap(500e-6);
    } while (!is_over(n) && patience_waited(&p) < seconds);
}

// Sends LATE, and listens for the other ranks' LATE. The caller holds the lock.
static void ask(net *n, int timed_out) {
    net_note note = { .kind = NOTE_LATE, .timed_out = timed_out, .exchange = n->exchanges };
    int first = n->rank;
    uint32_t earliest = n->exchanges;
    n->f->abandon(n);
    n->closed = 1;
    n->f->tell(n, &note);
    listen(n, hear_s, all_heard);
    for (int r = 0; r < n->ranks; r++) {
        const net_peer *p = &n->peers[r];
        if (!p->late || p->exchange > earliest || (p->exchange == earliest && r > first)) continue;
        earliest = p->exchange;
        first = r;
    }
    n->reports = first == n->rank;
}

int failure_ask(net *n, int timed_out, char *silent) {
    int late = timed_out, any = 0;
    pthread_mutex_lock(&n->lock);
    if (!n->failed && !has_one_ended(n)) ask(n, timed_out);
    int ended = has_one_ended(n);
    if (ended) fail_lost(n, n->ended.root, "");
    for (int r = 0; r < n->ranks; r++) {
        late |= n->peers[r].late && n->peers[r].timed_out;
        any |= silent[r] = is_silent(n, r);
    }
    pthread_mutex_unlock(&n->lock);
    if (ended) return ZERO_ERR_COMM;
    return late && any;  // without a timeout, this rank may just be the first to notice a fault
}

int failure_late(net *n, net_use use, exchange_kind x, const char *missing) {
    char silent[n->ranks], list[ZERO_LIST], where[NET_WHERE];
    int any = 0, ended = failure_ask(n, 1, silent) < 0;
    for (int r = 0; r < n->ranks; r++) any |= silent[r] = missing[r] && silent[r];
    if (!ended)
        zero_fail_rank(ZERO_ERR_COMM, n->rank, net_host(n, n->rank),
                       " waited %.3g s in %s for %s: stuck, dead, or calling the hooks in a different order",
                       n->timeout_s, net_where(use, x, where), net_list(n, any ? silent : missing, list));
    zero_failed_at_unit(use.units ? use.unit : -1);
    pthread_mutex_lock(&n->lock);
    failure_keep(n);
    pthread_mutex_unlock(&n->lock);
    return ZERO_ERR_COMM;
}

// -------- states: ending, ended

static void tell_all(net *n, const net_note *note) {
    n->f->tell(n, note);
    listen(n, farewell_s, is_told);
}

static void tell_end(net *n, int status) {
    net_note note = { .kind = NOTE_END, .root = n->rank, .status = status };
    const char *why = n->failed ? n->failure.fields.sentence : zero_last_error();
    if (n->told++) return;
    snprintf(note.words, sizeof note.words, "%.639s", *why ? why : "it gave no reason");
    tell_all(n, has_one_ended(n) ? &n->ended : &note);
}

// Returns how long this rank waits for a lower one to report. Usually one of the first ranks fails too, so
// the wait grows slowly beyond them: even in a job of a thousand ranks, no rank should wait for minutes.
static double turn_s(const net *n) {
    int before = 0;
    if (n->reports >= 0) return n->reports ? 0 : reporter_s;
    for (int r = 0; r < n->rank; r++) before += !is_off(n, r);
    return before < 15 ? before * 0.2 : 3 + (before - 15) * 5e-3;
}

int failure_reports(net *n, int status) {
    n->ending = 1;  // makes another thread's exchange return
    pthread_mutex_lock(&n->lock);
    n->f->abandon(n);
    n->closed = 1;
    n->f->look(n);
    listen(n, turn_s(n), has_one_ended);
    int heard = has_one_ended(n);
    tell_end(n, status);
    if (!heard) listen(n, claim_s, are_lower_heard);
    int reports = !heard && !has_lower_ended(n);
    pthread_mutex_unlock(&n->lock);
    return reports;
}

// Writes everything at once, so that other ranks' output cannot split it. Flushes only stdout, because a
// thread blocked in a write to a hung disk may hold another stream's lock.
static void say(const char *sentence) {
    if (!sentence) return;
    fflush(stdout);
    struct iovec parts[] = { { (char *)sentence, strlen(sentence) }, { "\n", 1 } };
    ssize_t written = writev(STDERR_FILENO, parts, 2);
    (void)written;  // an error cannot be reported any more
}

// -------- a program that exits without zero_destroy

static struct {
    net *of;  // the open connections, newest first
    pid_t process;
    int is_registered;
} at_exit;

// Runs in exit. failure_end calls _exit, so all streams are flushed here. A forked child is not a rank.
static void end_unclosed(void) {
    net *n = at_exit.of;
    struct timespec until;
    if (!n || n->ending || at_exit.process != getpid()) return;
    n->ending = 1;  // makes another thread's exchange return
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 2;
    // If a signal handler called exit during an exchange, this thread holds the lock and cannot send.
    if (pthread_mutex_timedlock(&n->lock, &until)) return;
    pthread_mutex_unlock(&n->lock);
    fflush(NULL);
    zero_fail_rank(ZERO_ERR_MISUSE, n->rank, net_host(n, n->rank),
                   " exited without zero_destroy: call it on every rank before the program ends, or "
                   "zero_end_job after an error");
    failure_end(n, 1, zero_last_error());
}

void failure_at_exit(net *n) {
    if (!n->f || n->ranks == 1) return;
    n->watched_next = at_exit.of;
    at_exit.of = n;
    at_exit.process = getpid();
    if (!at_exit.is_registered) at_exit.is_registered = !atexit(end_unclosed);
}

void net_close(net *n, int clean) {
    for (net **at = &at_exit.of; *at; at = &(*at)->watched_next)
        if (*at == n) {
            *at = n->watched_next;
            break;
        }
    if (n->f) {
        pthread_mutex_lock(&n->lock);
        if (!clean || n->failed)
            tell_end(n, 1);
        else if (!n->f->end)
            tell_all(n, &(net_note){ .kind = NOTE_GOODBYE });
        n->f->close(n, clean);
        pthread_mutex_unlock(&n->lock);
        pthread_mutex_destroy(&n->lock);
    }
    free(n->connection);
    free(n->peers);
    free(n->who);
    n->f = NULL;
    n->connection = n->peers = NULL;
    n->who = NULL;
}

void failure_end(net *n, int status, const char *sentence) {
    if (!n || !n->f) {
        say(sentence);
        exit(status);
    }
    if (failure_reports(n, status)) {
        say(sentence);
    } else {  // launchers kill the other ranks when one ends, so let the reporting rank end first
        pthread_mutex_lock(&n->lock);
        listen(n, reporter_s, has_reporter_ended);
        pthread_mutex_unlock(&n->lock);
        status = n->ended.status;
    }
    fflush(stdout);
    if (n->f->end) n->f->end(n, status);
    _exit(status);  // no exit handler may wait for the other ranks
}
