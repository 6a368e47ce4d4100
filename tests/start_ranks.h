// Runs ranks as child processes that connect through an address or a start file, and checks their outcomes.
#ifndef TESTS_START_RANKS_H
#define TESTS_START_RANKS_H
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include "../llmc_zero/net/rendezvous.h"
#include "../llmc_zero/net/start_file.h"
#include "ranks.h"

enum { JOB = 7, EVIL_PID = 4711 };  // EVIL_PID: the process ID that an imitated rank claims
typedef struct {
    rendezvous_settings s;
    double delay, die;  // seconds before it connects, and from then until it dies (0: never)
    int files;          // limit on open files; 0: unchanged
} plan;
static plan plans[MOST_RANKS];
static char folder[] = "/tmp/start.XXXXXX", path[64];

static inline int fresh(void **state) {
    fresh_outcomes();
    snprintf(path, sizeof path, "%s/meet", folder);
    unlink(path);
    return 0;
}

// Sends every other rank a number that it can check, and receives one from it. Returns 1 if all are right.
static inline int talk(int rank, int ranks, const int *sockets) {
    double until = now() + HANGS_AFTER_S;
    for (int r = 0; r < ranks; r++) {
        int word = rank * 100 + r;
        if (r != rank && net_write(sockets[r], &word, sizeof word, until)) return 0;
    }
    for (int r = 0; r < ranks; r++) {
        int word = -1;
        if (r != rank && (net_read(sockets[r], &word, sizeof word, until) || word != r * 100 + rank))
            return 0;
    }
    return sockets[rank] == -1;
}

// Sets the outcome's value to 1 if this rank can exchange messages with all others, and all are on one host.
static inline void one_rank(int i, void *ctx) {
    const plan *p = &((plan *)ctx)[i];
    int sockets[MOST_RANKS], right = 1;
    rendezvous_peer peers[MOST_RANKS];
    nap(p->delay);
    if (p->files) setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)p->files, (rlim_t)p->files });
    if (p->die > 0)
        setitimer(ITIMER_REAL,
                  &(struct itimerval){ .it_value = { (long)p->die, (long)(p->die * 1e6) % 1000000 } }, NULL);
    o[i].rc = rendezvous(&p->s, sockets, peers);
    if (o[i].rc) return;
    for (int r = 0; r < p->s.ranks; r++)
        right &= peers[r].node == peers[0].node && peers[r].pid > 0 && *peers[r].host;
    o[i].value = right && peers[p->s.rank].pid == getpid() && talk(p->s.rank, p->s.ranks, sockets);
    for (int r = 0; r < p->s.ranks; r++)
        if (sockets[r] >= 0) close(sockets[r]);
}

static inline void plan_ranks(int n, const char *at, const char *file, double limit) {
    for (int i = 0; i < n; i++)
        plans[i] = (plan){ .s = { i, n, at, file, .timeout_s = limit, .job = JOB, .version = "1" } };
}
static inline void start(int from, int n) {
    for (int i = from; i < n; i++) start_child(i, one_rank, plans);
}
static inline void run(int n) {
    start(0, n);
    assert_int_equal(end_children(n), 0);
}

static inline void have_connected(int from, int n) {
    for (int i = from; i < n; i++) {
        if (o[i].rc || !o[i].value)
            fail_msg("process %d: %s", i, o[i].rc ? o[i].message : "the ranks cannot exchange messages");
        ended_in_order(i);
    }
    assert_int_equal(access(path, F_OK), -1);
}

// Finds an address of this machine that others can reach. Returns 0 if it has none.
static inline int own_address(net_address *at) {
    struct ifaddrs *all = NULL;
    int found = 0;
    assert_int_equal(getifaddrs(&all), 0);
    for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) continue;
        *at = net_from(i->ifa_addr, port);
        found = !net_is_loopback(at);
    }
    freeifaddrs(all);
    return found;
}

// Returns a start file that names another host but has an address on this machine.
static inline start_file start_file_of(int at_port, double written) {
    start_file c = {
        .begins = "llmc_zero start file 3\n", .host = "ghost", .pid = EVIL_PID, .port = at_port, .n = 1
    };
    c.written = written;
    c.at[0].v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    c.at[0].v4.sin_port = htons((uint16_t)at_port);
    return c;
}
static inline void put_file(const void *bytes, size_t n, mode_t mode) {
    FILE *f = fopen(path, "w");
    assert_true(f && !fchmod(fileno(f), mode) && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

#endif
