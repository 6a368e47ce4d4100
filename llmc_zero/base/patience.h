// Waits with a time limit, and threads that handle no signals.
#ifndef LLMC_ZERO_BASE_PATIENCE_H
#define LLMC_ZERO_BASE_PATIENCE_H

// How long this process has waited, not counting time in which it was stopped. Call patience_waited before
// each poll, so that after a stop the caller polls once more before it gives up.
typedef struct {
    double waited, last;  // seconds; clock_now at the last call
} patience;
patience patience_start(void);
double patience_waited(patience *p);  // adds the time since the last call, and returns the sum
// Starts a detached thread that handles no signals: the program's threads do. Returns 0 or an errno.
int patience_thread(void *(*run)(void *), void *state);

#endif
