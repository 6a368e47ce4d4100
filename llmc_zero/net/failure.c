#include "failure.h"
#include "../base/clock.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static const double hear_s = 0.5;    // time for late ranks to receive each other's LATE
static const double grace_s = 0.5;   // for a lower rank that fails a little later to send END first
static const double claim_s = 1;     // for a lower rank to send END too
static const double reporter_s = 3;  // for the reporting rank to print and to end all
static const double read_s = 0.1;    // for the launcher to read the message, which an abort may drop
static const double settle_s = 0.3;  // a wait is worth a note only if it takes longer

// Writes everything at once, so that other ranks' output cannot split it. Flushes only stdout, because a
// thread blocked in a write to a hung disk may hold another stream's lock.
static void say(const char *sentence) {
    if (!sentence) return;
    fflush(stdout);
    struct iovec parts[] = { { (char *)sentence, strlen(sentence) }, { "\n", 1 } };
    if (writev(STDERR_FILENO, parts, 2) < 0) return;  // an error cannot be reported any more
}

// The jobs of this process, of which there is rarely more than one.
static struct {
    pthread_mutex_t lock;  // of the list and of the jobs' waits
    net *first;            // the newest
    pid_t process;
    int is_prepared;
    atomic_int ending;  // 1: the launcher has begun to end the job
} jobs = { .lock = PTHREAD_MUTEX_INITIALIZER };

// -------- notes

static int has_one_ended(const net *n) { return n->ended.root >= 0; }
static int has_lower_ended(const net *n) { return has_one_ended(n) && n->ended.root < n->rank; }

static void hear(net *n) {
    net_note note;
    int from;
    while (link_hear(n, &from, &note)) {
        if (note.kind == NOTE_LATE)
            n->peers[from].late_in = note.exchange;
        else if (!has_one_ended(n) || note.root < n->ended.root)
            n->ended = note;
    }
}

static void listen(net *n, double seconds, int (*is_over)(const net *n)) {
    patience p = patience_start();
    do {
        hear(n);
        clock_nap(500e-6);
    } while (!is_over(n) && patience_waited(&p) < seconds);
}

int failure_seen(net *n, net_use use) {
    hear(n);
    if (!has_one_ended(n)) return 0;
    zero_fail_rank(ZERO_ERR_COMM, n->ended.root, NULL, " ended the job: %s", n->ended.words);
    return zero_failed_at_unit(use.units ? use.unit : -1);
}

// -------- states: failed, late

void failure_close(net *n) {
    if (!n->closed) link_abandon(n);
    n->closed = 1;
}

void failure_keep(net *n) {
    failure_close(n);
    n->failure = *zero_failed();
    n->failed = 1;
}

static int is_silent(const net *n, int r) {
    const net_peer *p = &n->peers[r];
    return r != n->rank && !p->late_in && !p->ahead;
}

static int all_heard(const net *n) {
    int silent = 0;
    for (int r = 0; r < n->ranks; r++) silent |= is_silent(n, r);
    return !silent || has_one_ended(n);
}

// Sends LATE, and listens for the other ranks' LATE. The caller holds the lock.
static void ask(net *n) {
    failure_close(n);
    link_tell(n, &(net_note){ .kind = NOTE_LATE, .exchange = n->exchanges });
    listen(n, hear_s, all_heard);
    n->reports = 1;  // unless another rank began to wait earlier, or is lower
    for (int r = 0; r < n->ranks; r++) {
        const net_peer *p = &n->peers[r];
        int earlier = p->late_in < n->exchanges || (p->late_in == n->exchanges && r < n->rank);
        if (p->late_in && earlier) n->reports = 0;
    }
}

int failure_ask(net *n, char *silent) {
    int any = 0;
    pthread_mutex_lock(&n->lock);
    if (!n->failed && !has_one_ended(n)) ask(n);
    const int ended = failure_seen(n, (net_use){ .units = 0 });
    for (int r = 0; r < n->ranks; r++) any |= silent[r] = is_silent(n, r);
    pthread_mutex_unlock(&n->lock);
    return ended ? ended : any;
}

int failure_heard(net *n, net_use use) {
    pthread_mutex_lock(&n->lock);
    const int rc = failure_seen(n, use);
    if (rc) failure_keep(n);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

int failure_late(net *n, net_use use, exchange_kind x, const char *missing) {
    char silent[n->ranks], list[ZERO_LIST], where[NET_WHERE];
    const int asked = failure_ask(n, silent);
    int any = 0;
    for (int r = 0; r < n->ranks; r++) any |= missing[r] && silent[r];
    for (int r = 0; r < n->ranks && any; r++) silent[r] = silent[r] && missing[r];
    any = any || asked > 0;  // the missing ranks themselves wait, in another group, for the silent ones
    if (asked >= 0)
        zero_fail_rank(ZERO_ERR_COMM, n->rank, net_host(n, n->rank),
                       " waited %.3g s in %s for %s: stuck, dead, or calling the hooks in a different order",
                       n->timeout_s, net_where(use, x, where), net_list(n, any ? silent : missing, list));
    zero_failed_at_unit(use.units ? use.unit : -1);
    pthread_mutex_lock(&n->lock);
    failure_keep(n);
    pthread_mutex_unlock(&n->lock);
    return ZERO_ERR_COMM;
}

// -------- waits, and a launcher that ends the job

void failure_waits(net *n, net_use use, exchange_kind x, double waited, const char *missing) {
    if (!n->missing || (!missing && !n->wait.since)) return;
    pthread_mutex_lock(&jobs.lock);
    n->wait = (net_wait){ use, x, missing ? clock_now() - waited : 0 };
    if (missing) memcpy(n->missing, missing, (size_t)n->ranks);
    pthread_mutex_unlock(&jobs.lock);
}

// Returns 1 if it has printed what this rank waits for. A lower rank of the group does so if it is there.
static int print_wait(net *n) {
    char list[ZERO_LIST], where[NET_WHERE], sentence[NET_SENTENCE];
    const double waited = clock_now() - n->wait.since;
    const net_group of = n->wait.use.of;
    if (!n->wait.since || n->ending || waited < settle_s) return 0;
    for (int i = 0; i < (of.ranks ? of.rank : n->rank); i++)
        if (!n->missing[of.ranks ? of.first + i * of.step : i]) return 0;
    if (!pthread_mutex_trylock(&n->lock)) {  // otherwise another thread is in an exchange and hears the notes
        listen(n, 20e-3, has_one_ended);
        pthread_mutex_unlock(&n->lock);
    }
    if (has_one_ended(n)) return 0;
    snprintf(sentence, sizeof sentence,
             "llmc_zero: the launcher ends the job; rank %d (host %s) has waited %.3g s in %s for %s",
             n->rank, net_host(n, n->rank), waited, net_where(n->wait.use, n->wait.x, where),
             net_list(n, n->missing, list));
    say(sentence);
    return 1;
}

// Open MPI may block in the call that notices a dead rank, so this thread prints. It wakes regularly to
// notice that the process is stopped: then the others have reported this rank before they ended the job.
static void *watch(void *unused) {
    const double stopped_s = 2;
    double now = clock_now(), continued = -stopped_s;
    while (!jobs.ending) {
        const double before = now;
        clock_nap(50e-3);
        now = clock_now();
        if (now - before > stopped_s) continued = now;
    }
    if (now - continued < stopped_s) return NULL;
    clock_nap(settle_s);
    for (int printed = 0; !printed; clock_nap(50e-3)) {
        pthread_mutex_lock(&jobs.lock);
        for (net *n = jobs.first; n && !printed; n = n->next) printed = print_wait(n);
        pthread_mutex_unlock(&jobs.lock);
    }
    return NULL;
}

static void on_continue(int signal, siginfo_t *from, void *context) {
    if (from->si_pid == getppid()) jobs.ending = 1;
}

// oneDNN's fp32 kernels keep data farther below the stack pointer than a signal handler leaves alone (128
// bytes). A handler on this thread's stack would overwrite them, so ours has another one. Returns 1 if not.
static int no_handler_stack(void) {
    static char stack[1 << 16];  // with AMX, the registers alone take 11 KB
    stack_t now, ours = { .ss_sp = stack, .ss_size = sizeof stack };
    return sigaltstack(NULL, &now) || (now.ss_flags & SS_DISABLE && sigaltstack(&ours, NULL));
}

// Leaves a handler of the program's own in place. Without the thread only this message is missing.
static void watch_launcher(void) {
    struct sigaction now,
        ours = { .sa_sigaction = on_continue, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    sigemptyset(&ours.sa_mask);
    if (no_handler_stack() || patience_thread(watch, NULL)) return;
    if (!sigaction(SIGCONT, NULL, &now) && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL)
        sigaction(SIGCONT, &ours, NULL);
}

// -------- states: ending, ended

static void tell_end(net *n, int status) {
    net_note note = { .kind = NOTE_END, .root = n->rank, .status = status };
    const char *why = n->failed ? n->failure.fields.sentence : zero_last_error();
    // An END of this rank's own would make the rank that has ended the job leave its message to this one.
    if (has_one_ended(n) || n->told++) return;
    snprintf(note.words, sizeof note.words, "%.639s", *why ? why : "it gave no reason");
    link_tell(n, &note);
}

int failure_reports(net *n, int status) {
    n->ending = 1;  // makes another thread's exchange return
    pthread_mutex_lock(&n->lock);
    failure_close(n);
    const int unsure = n->reports < 0 && n->rank > 0;
    listen(n, n->reports == 0 ? reporter_s : unsure ? grace_s : 0, has_one_ended);
    int reports = !has_one_ended(n);
    if (reports) tell_end(n, status);
    if (reports) listen(n, unsure ? claim_s : 0, has_lower_ended);
    reports = reports && !has_lower_ended(n);
    pthread_mutex_unlock(&n->lock);
    return reports;
}

void failure_end(net *n, int status, const char *sentence) {
    if (!n || !n->link) {
        say(sentence);
        exit(status);
    }
    if (failure_reports(n, status)) {
        say(sentence);
        clock_nap(read_s);
    } else {  // MPI_Abort ends all ranks, so let the reporting rank call it first
        clock_nap(reporter_s);
        status = n->ended.status;
    }
    fflush(stdout);
    link_end_all(n, status);
    _exit(status);  // no exit handler may wait for the other ranks
}

// -------- a program that exits without zero_destroy

// Runs in exit. failure_end calls _exit, so all streams are flushed here. A forked child is not a rank.
static void end_unclosed(void) {
    net *n = jobs.first;
    struct timespec until;
    if (!n || n->ending || jobs.process != getpid()) return;
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

void failure_watch(net *n) {
    n->missing = calloc((size_t)n->ranks, 1);  // without it, the rank's waits are not printed
    pthread_mutex_lock(&jobs.lock);
    n->next = jobs.first;
    jobs.first = n;
    jobs.process = getpid();
    pthread_mutex_unlock(&jobs.lock);
    if (jobs.is_prepared++) return;
    atexit(end_unclosed);
    watch_launcher();
}

void failure_unwatch(net *n, int clean) {
    pthread_mutex_lock(&jobs.lock);
    net **at = &jobs.first;
    while (*at && *at != n) at = &(*at)->next;
    if (*at) *at = n->next;
    free(n->missing);
    n->missing = NULL;
    pthread_mutex_unlock(&jobs.lock);
    if (!clean || n->failed) tell_end(n, 1);
}
