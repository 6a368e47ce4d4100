// Runs ranks as child processes of a test. Each writes its outcome to memory that it shares with the test.
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "../llmc_zero/base/error.h"

enum { MOST_RANKS = 16 };
// The machine may be busy, so tests measure no durations. A rank that must not wait for its own time limit
// gets the limit PATIENT_S; the test fails if a rank runs for HANGS_AFTER_S.
enum { HANGS_AFTER_S = 60, PATIENT_S = 200 };
typedef struct {
    int rc, reported, value;  // value: any result of the body
    int fds;                  // descriptors that the body opened and did not close
    char message[1024];       // the error, if rc is not 0
} outcome;
static outcome *outcomes;  // one for each child
static pid_t children[MOST_RANKS];
static int statuses[MOST_RANKS];  // exit status, or 128 + signal

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static inline void nap(double s) {
    struct timespec t = { (time_t)s, (long)((s - (time_t)s) * 1e9) };
    nanosleep(&t, NULL);
}

static inline int open_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static inline void forget_outcomes(void) {
    if (!outcomes)
        outcomes = mmap(NULL, MOST_RANKS * sizeof *outcomes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcomes == MAP_FAILED) abort();
    memset(outcomes, 0, MOST_RANKS * sizeof *outcomes);
}

// Starts a child that runs body(i, ctx), which fills outcomes[i]. It calls exit, so sanitizers report leaks.
static inline void start_child(int i, void (*body)(int i, void *ctx), void *ctx) {
    fflush(NULL);
    if ((children[i] = fork()) < 0) abort();
    if (children[i]) return;
    int before = open_fds();
    outcome *o = &outcomes[i];
    body(i, ctx);
    if (o->rc) snprintf(o->message, sizeof o->message, "%s", zero_last_error());
    o->fds = open_fds() - before;
    o->reported = 1;
    exit(0);
}

// Waits for the children to end. Kills those that hang, and returns their number.
static inline int end_children(int n) {
    double until = now() + HANGS_AFTER_S;
    int hung = 0;
    for (int i = 0; i < n; i++) {
        int status = 0;
        if (!children[i]) continue;
        while (waitpid(children[i], &status, WNOHANG) == 0) {
            if (now() > until) {
                hung++;
                kill(children[i], SIGKILL);
                waitpid(children[i], &status, 0);
                break;
            }
            nap(1e-3);
        }
        statuses[i] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        children[i] = 0;
    }
    return hung;
}

// Returns a free port outside the range that the system assigns.
static inline int free_port(void) {
    static int next;
    for (;;) {
        int port = 12000 + (int)((getpid() * 37 + next++ * 11) % 20000), one = 1,
            fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        int ok = !bind(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
        if (ok) return port;
    }
}

// Connects to a port on this machine as soon as something listens there.
static inline int knock(int port) {
    struct sockaddr_in a = { .sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
    for (double until = now() + HANGS_AFTER_S; now() < until; nap(5e-3)) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (!connect(fd, (struct sockaddr *)&a, sizeof a)) return fd;
        close(fd);
    }
    return -1;
}

// fresh_outcomes sets these before each test: empty outcomes, and a free port for rank 0.
static outcome *o;
static int port;
static char server[64];
static inline void fresh_outcomes(void) {
    forget_outcomes();
    o = outcomes;
    port = free_port();
    snprintf(server, sizeof server, "127.0.0.1:%d", port);
}

static inline void ended_in_order(int i) {
    for (const char *c = o[i].message; *c; c++) assert_in_range(*c, ' ', '~');
    assert_int_equal(o[i].fds, 0);
    assert_int_equal(statuses[i], 0);
}
// Checks that processes `from` to n - 1 failed, with these words in their messages.
static inline void all_fail_with(int from, int n, const char *words) {
    for (int i = from; i < n; i++) {
        if (!o[i].rc || !strstr(o[i].message, words))
            fail_msg("process %d: returned %d (status %d), \"%s\"; expected \"%s\"", i, o[i].rc, statuses[i],
                     o[i].message, words);
        ended_in_order(i);
    }
}
static inline void fails_with(int rank, const char *words) { all_fail_with(rank, rank + 1, words); }

#endif
