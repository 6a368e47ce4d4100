// What happens when NCCL stalls: the time limits of its calls and collectives, the thread that enforces them,
// and how all ranks fail.
//
// After a failure, work queued by NCCL ends only when its communicators are aborted. The call or the watching
// thread that finds a failure stores its message and aborts both communicators; from then on every call fails
// with that message. After a timeout or another rank's fault, the first such call takes up to half a second
// longer: NCCL does not report which rank stalled, so the ranks ask each other (failure_ask). If NCCL does
// not abort within the smaller of timeout_s and 10 s, a wait for a stream would never end. Only then does the
// library itself write the message to stderr and end the job.
#ifdef ZERO_HAVE_NCCL
#include "../base/clock.h"
#include "../net/failure.h"
#include "host.h"
#include "nccl_state.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_MS = 50 };

// -------- the abort

// Aborts both communicators in one group, because aborting one frees memory, and freeing waits for the
// other's work. Returns NCCL's result.
static ncclResult_t abort_lanes(nccl_state *n) {
    // the library may not even be loaded
    if (!n->lanes[REDUCE].comm && !n->lanes[GATHERING].comm) return ncclSuccess;
    ncclResult_t rc = nccl.GroupStart();
    for (int i = 0; i < LANES; i++) {
        if (!rc && n->lanes[i].comm) rc = nccl.CommAbort(n->lanes[i].comm);
        n->lanes[i].comm = NULL;
    }
    ncclResult_t end = nccl.GroupEnd();
    if (!rc) rc = end;
    return rc == ncclInProgress ? ncclSuccess : rc;
}

static void *run_abort(void *state) {
    nccl_state *n = state;
    device *d = n->c->device;
    d->f->enter(d);  // may fail after a CUDA error, but NCCL must be called anyway
    n->aborted = abort_lanes(n);
    return NULL;
}

int nccl_relay(const nccl_state *n) {
    failure_record f = { .fields = { .code = ZERO_ERR_COMM, .rank = n->c->net->rank, .unit = n->unit },
                         .lower = -1,
                         .reason = (int)n->names_at };
    snprintf(f.fields.sentence, sizeof f.fields.sentence, "%s", n->sentence);
    return zero_fail_again(&f);
}

// The time limit of an abort.
static double abort_s(const nccl_state *n) {
    double timeout_s = n->c->net->timeout_s;
    return timeout_s < 10 ? timeout_s : 10;
}

// Ends the job here, because other threads may be stuck in a wait for the device.
static void end_job(nccl_state *n) {
    net *ranks = n->c->net;
    char sentence[1200];
    if (!n->failed)
        snprintf(n->sentence, sizeof n->sentence, "rank %d on %s: %s", ranks->rank,
                 net_host(ranks, ranks->rank), zero_last_error());
    nccl_relay(n);
    snprintf(sentence, sizeof sentence, "llmc_zero: %s; and NCCL did not abort within %.3g s: the job ends",
             n->sentence, abort_s(n));
    failure_end(ranks, 1, sentence);
}

void nccl_abort(nccl_state *n) {
    if (patience_outlasts(abort_s(n), run_abort, n)) end_job(n);
}

// -------- the error message

int nccl_fail(nccl_state *n, const collective *w, const char *what, const char *message) {
    char about[96] = "", units[NET_UNITS], *text = n->sentence;
    const net *ranks = n->c->net;
    const size_t room = sizeof n->sentence;
    if (n->failed) return nccl_relay(n);
    if (w)
        snprintf(about, sizeof about, "the %s of %s (collective %lld): ",
                 w->kind == COMM_ALL_GATHER ? "all-gather" : "reduce-scatter",
                 net_units(w->use.unit, w->use.units, units), (long long)w->number);
    snprintf(text, room, "rank %d on %s: %s%s", ranks->rank, net_host(ranks, ranks->rank), about, what);
    n->unit = w && w->use.units ? w->use.unit : -1;
    n->names_at = strlen(text);
    if (*message) snprintf(text + n->names_at, room - n->names_at, "; NCCL reports: %.400s", message);
    n->failed = 1;
    nccl_abort(n);
    size_t used = strlen(text);
    if (n->aborted)
        snprintf(text + used, room - used, "; and NCCL could not abort: %s", nccl.GetErrorString(n->aborted));
    return nccl_relay(n);
}

// Inserts the silent ranks, or the rank that ended the job, before NCCL's own message.
static void name_silent(nccl_state *n) {
    net *ranks = n->c->net;
    char silent[ranks->ranks], list[ZERO_LIST], words[sizeof n->sentence], *at = n->sentence + n->names_at;
    const size_t room = sizeof n->sentence - n->names_at;
    int asked = failure_ask(ranks, n->cause == TIME_OUT, silent);
    if (!asked) return;
    memcpy(words, at, room);
    if (asked > 0)
        snprintf(at, room, "; no word from %s%s", net_list(ranks, silent, list), words);
    else
        snprintf(at, room, "; %s%s", zero_last_error(), words);
}

// Returns the failure to a caller on a thread that may exchange with the other ranks.
static int report(nccl_state *n) {
    if (n->cause != OWN_FAULT && !n->asked++) name_silent(n);
    return nccl_relay(n);
}

static const collective *oldest(const nccl_state *n) {
    const collective *w = NULL;
    for (const lane *l = n->lanes; l < n->lanes + LANES; l++) {
        const collective *own = l->first < l->next ? &l->queue[l->first % WATCHED] : NULL;
        if (own && (!w || own->number < w->number)) w = own;
    }
    return w;
}

static int fail_in_nccl(nccl_state *n, const lane *l, const collective *w, const char *what,
                        ncclResult_t rc) {
    char message[400];
    const char *last = nccl.GetLastError(l->comm);
    int known = last && *last;
    snprintf(message, sizeof message, "%s%s%s", nccl.GetErrorString(rc), known ? ": " : "",
             known ? last : "");
    return nccl_fail(n, w, what, message);
}

static int fail_in_cuda(nccl_state *n, const collective *w, const char *call, cudaError_t rc) {
    char what[160];
    snprintf(what, sizeof what, "CUDA: %s: %s (%s)", call, cudaGetErrorString(rc), cudaGetErrorName(rc));
    return nccl_fail(n, w, what, "");
}

// -------- calls to NCCL

ncclResult_t nccl_progress_of(nccl_state *n, const lane *l) {
    ncclResult_t asked = ncclSuccess;
    if (n->rc == ncclInProgress) asked = nccl.CommGetAsyncError(l->comm, &n->rc);
    if (asked) n->rc = asked;
    return n->rc;
}

// rc: an error, or ncclInProgress after a timeout.
static failure_cause cause_of(ncclResult_t rc) {
    return rc == ncclInProgress ? TIME_OUT : rc == ncclRemoteError ? REMOTE_FAULT : OWN_FAULT;
}

int nccl_fail_to_settle(nccl_state *n, const lane *l, ncclResult_t rc) {
    char what[160];
    n->rc = ncclSuccess;
    if (!n->failed) n->cause = cause_of(rc);
    if (rc == ncclInProgress)
        snprintf(what, sizeof what,
                 "%s did not end within %g s: another rank died, hangs, or does something else", n->call,
                 n->c->net->timeout_s);
    else
        snprintf(what, sizeof what, "%s failed", n->call);
    return fail_in_nccl(n, l, n->current, what, rc);
}

int nccl_settle(nccl_state *n, const lane *l) {
    const double limit = clock_now() + n->c->net->timeout_s;
    ncclResult_t rc = n->rc;
    while (rc == ncclInProgress && clock_now() < limit) {
        sched_yield();
        rc = nccl_progress_of(n, l);
    }
    return rc ? nccl_fail_to_settle(n, l, rc) : 0;
}

int nccl_end_group(nccl_state *n, lane *l) {
    ncclResult_t rc = nccl.GroupEnd();
    if (!n->rc || n->rc == ncclInProgress) {
        n->rc = rc;
        n->call = "ncclGroupEnd";
    }
    return nccl_settle(n, l);
}

// -------- the watching thread

// A collective's time limit starts when this thread sees that its `begin` event is done, so earlier work on
// its stream does not count.
static int look_at_queue(nccl_state *n, lane *l) {
    for (; l->first < l->next; l->first++) {
        collective *w = &l->queue[l->first % WATCHED];
        cudaError_t rc = cudaEventQuery(w->end);
        if (rc == cudaErrorNotReady && !w->began) {
            rc = cudaEventQuery(w->begin);
            if (rc == cudaSuccess) {
                w->began = clock_now();
                rc = cudaErrorNotReady;
            }
        } else if (rc == cudaSuccess)
            continue;
        if (rc != cudaErrorNotReady) return fail_in_cuda(n, w, "cudaEventQuery", rc);
        cudaGetLastError();  // the next launch must not report "not ready" as an error
        if (!w->began || clock_now() - w->began <= n->c->net->timeout_s) return 0;
        char what[160];
        const char *last = nccl.GetLastError(l->comm);
        snprintf(what, sizeof what,
                 "did not end within %g s: another rank died, hangs, or is in another collective",
                 n->c->net->timeout_s);
        n->cause = TIME_OUT;
        return nccl_fail(n, w, what, last ? last : "");
    }
    return 0;
}

static int look(nccl_state *n) {
    if (n->failed) return nccl_relay(n);
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) ZERO_TRY(look_at_queue(n, l));
    for (lane *l = n->lanes; l < n->lanes + LANES; l++) {
        ncclResult_t state = ncclSuccess, rc = nccl.CommGetAsyncError(l->comm, &state);
        if (!rc) rc = state;
        if (!rc || rc == ncclInProgress) continue;
        n->cause = cause_of(rc);
        return fail_in_nccl(n, l, oldest(n), "another rank, or the connection to it, failed", rc);
    }
    return 0;
}

static void *watch(void *state) {
    nccl_state *n = state;
    int stop = n->c->device->f->enter(n->c->device);
    pthread_mutex_lock(&n->lock);
    if (stop) nccl_fail(n, NULL, "NCCL's watchdog thread cannot use the device", zero_last_error());
    pthread_mutex_unlock(&n->lock);
    while (!stop) {
        clock_nap(LOOK_MS * 1e-3);
        pthread_mutex_lock(&n->lock);
        stop = n->stop || look(n);
        pthread_mutex_unlock(&n->lock);
    }
    return NULL;
}

int nccl_watch(nccl_state *n) {
    int rc = pthread_create(&n->watchdog, NULL, watch, n);
    if (rc) return zero_fail(ZERO_ERR_COMM, "cannot start NCCL's watchdog thread: %s", strerror(rc));
    n->watching = 1;
    return 0;
}

void nccl_stop_watching(nccl_state *n) {
    if (!n->watching) return;
    pthread_mutex_lock(&n->lock);
    n->stop = 1;
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->watchdog, NULL);
    n->watching = 0;
}

// -------- a collective from its first call to its last

// Waits while WATCHED collectives are queued on the device, which is about CUDA's own limit.
int nccl_begin(nccl_state *n, lane *l, comm_kind kind, comm_use use, collective **out) {
    pthread_mutex_lock(&n->lock);
    while (!n->failed && l->next - l->first == WATCHED) {
        if (look(n)) break;
        pthread_mutex_unlock(&n->lock);
        clock_nap(1e-3);
        pthread_mutex_lock(&n->lock);
    }
    if (n->failed) return nccl_relay(n);
    collective *w = &l->queue[l->next % WATCHED];
    *out = w;
    n->current = w;
    w->kind = kind;
    w->use = use;
    w->number = ++n->collectives;
    w->began = 0;
    cudaError_t rc = cudaEventRecord(w->begin, l->stream);
    return rc == cudaSuccess ? 0 : fail_in_cuda(n, w, "cudaEventRecord", rc);
}

int nccl_finish(nccl_state *n, lane *l, collective *w, int rc) {
    if (!rc) {
        cudaError_t recorded = cudaEventRecord(w->end, l->stream);
        if (recorded == cudaSuccess)
            l->next++;
        else
            rc = fail_in_cuda(n, w, "cudaEventRecord", recorded);
    }
    n->current = NULL;
    if (rc && n->failed) rc = report(n);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

int nccl_failed(comm *c) {
    nccl_state *n = c->nccl;
    pthread_mutex_lock(&n->lock);
    int rc = n->failed ? report(n) : 0;
    pthread_mutex_unlock(&n->lock);
    return rc;
}

// -------- the progress of all ranks

int nccl_worst_of(comm *c, double mine, double *worst, int *who) {
    double all[c->group.ranks];
    ZERO_TRY(comm_share(c, comm_for_scalars, &mine, all, 1));
    *who = 0;
    for (int r = 1; r < c->group.ranks; r++)
        if (all[r] > all[*who]) *who = r;
    *worst = all[*who];
    return 0;
}
#endif
