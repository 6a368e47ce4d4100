#include "patience.h"
#include "clock.h"
#include <pthread.h>
#include <signal.h>

patience patience_start(void) { return (patience){ 0, clock_now() }; }

double patience_waited(patience *p) {
    const double most = 0.2;  // a longer time between two polls means that the process was stopped
    double now = clock_now(), since = now - p->last;
    p->last = now;
    return p->waited += since < most ? since : most;
}

int patience_thread(void *(*run)(void *), void *state) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, run, state);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return failed;
}
