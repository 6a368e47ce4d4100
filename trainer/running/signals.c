#include "signals.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../checkpoints/folder.h"
#include "run.h"

// OUTPUT_GONE also requests a stop. WRITES: a checkpoint is being written.
typedef enum { STOP, SAVE, OUTPUT_GONE, WRITES } Request;

static const int taken[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGUSR1 };
enum { TAKEN = sizeof taken / sizeof *taken };

// `timeout` and some launchers send a signal to the rank and to its process group.
static const double same_signal_s = 0.2;

static atomic_int asked[REQUESTS];        // on this rank, since the last requests_of_rank
static int agreed[REQUESTS];              // by all ranks
static atomic_int in_training, stopping;  // stopping: a signal has requested a stop

// -------- the thread that receives them

// Signals from a launcher are not printed: the launcher reports them itself, and may end a rank because
// another failed.
static void report(const siginfo_t *signal, const char *what) {
    if (zero_launched().rank != 0 || signal->si_pid == getppid()) return;
    dprintf(STDERR_FILENO, "%strain_gpt2_zero: SIG%s %s\n", in_training && run.peak_flops > 0 ? "\n" : "",
            sigabbrev_np(signal->si_signo), what);
}

// Ends the rank as the signal would without a handler.
static void end_at_once(int number) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
    _exit(128 + number);
}

static void *wait_for_signals(void *waited_for) {
    double first_s = 0;  // time of the first request to stop
    for (;;) {
        siginfo_t signal;
        int number = sigwaitinfo(waited_for, &signal);
        if (number < 0) continue;
        Request request = number == SIGUSR1 ? SAVE : STOP;
        if (request == STOP && !in_training) {
            report(&signal, "ends the run; there is nothing to save");
            end_at_once(number);
        }
        // SIGHUP never counts as a second request: a terminal that closes sends one, and its shell sends
        // another up to a second later.
        if (request == STOP && stopping && number != SIGHUP && now() - first_s > same_signal_s)
            end_at_once(number);
        if (request == STOP && !stopping) {
            first_s = now();
            stopping = 1;
            report(&signal, number == SIGHUP ? "stops the run after this step; SIGTERM then ends it at once"
                                             : "stops the run after this step; a second one ends it at once");
        }
        asked[request] = 1;
    }
    return NULL;
}

void take_signals(void) {
    static sigset_t waited_for;
    struct sigaction action;
    pthread_t thread;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&waited_for);
    for (int i = 0; i < TAKEN; i++) {
        // A signal that was ignored at the start stays ignored: nohup ignores SIGHUP.
        if (!sigaction(taken[i], NULL, &action) && action.sa_handler == SIG_IGN) continue;
        sigaddset(&waited_for, taken[i]);
    }
    int failed = pthread_sigmask(SIG_BLOCK, &waited_for, NULL);
    if (failed) die("signals cannot be blocked: %s", strerror(failed));
    failed = pthread_create(&thread, NULL, wait_for_signals, &waited_for);
    if (failed) die("no thread for signals: %s", strerror(failed));
    pthread_detach(thread);
}

void signals_in_training(void) { in_training = 1; }

// -------- the requests of all ranks

// If stdout has no reader, the run saves and stops as well.
void requests_of_rank(double requests[REQUESTS]) {
    for (int i = 0; i < REQUESTS; i++) requests[i] = atomic_exchange(&asked[i], 0);
    requests[OUTPUT_GONE] = run.output_error != 0;
    requests[WRITES] = !zero_save_written(run.z);
}

void requests_of_all(const double requests[REQUESTS]) {
    agreed[WRITES] = 0;
    for (int i = 0; i < REQUESTS; i++) agreed[i] |= requests[i] > 0;
}

void share_requests(void) {
    double requests[REQUESTS];
    requests_of_rank(requests);
    zero_check(zero_sum(run.z, requests, REQUESTS));
    requests_of_all(requests);
}

int stop_is_requested(void) { return agreed[STOP] || agreed[OUTPUT_GONE]; }
int save_goes_on(void) { return agreed[WRITES]; }

int checkpoint_is_requested(int last_step) {
    const char *why_not = why_no_checkpoint();
    if (why_not && agreed[SAVE]) {
        print0("SIGUSR1: no checkpoint is saved, because %s\n", why_not);
        agreed[SAVE] = 0;
    }
    return !why_not && (agreed[SAVE] || (stop_is_requested() && !last_step));
}

void checkpoint_is_written(void) { agreed[SAVE] = 0; }

void check_output(const char *outcome) {
    if (!run.output_error || agreed[STOP] || stopping) return;
    die("stdout: %s%s%s", strerror(run.output_error), outcome ? "; " : "", outcome ? outcome : "");
}
