// Connects the ranks, and exchanges data between them.
#include "../base/clock.h"
#include "failure.h"
#include <stdlib.h>
#include <string.h>

// Waits until the exchange is done or has failed. Returns 1 after timeout_s, and the ranks in missing[ranks].
static int wait_for_all(net *n, net_use use, exchange_kind x, char *missing) {
    const double look_s = 50e-3;
    patience p = patience_start();
    double looked = p.last;
    for (int done = 0;;) {
        double waited = patience_waited(&p);
        ZERO_TRY(link_poll(n, &done));
        if (done) return 0;
        if (n->ending) return zero_fail_rank(ZERO_ERR_COMM, n->rank, NULL, " ends the job");
        if (p.last - looked > look_s || waited > n->timeout_s) {
            link_pending(n, missing);
            failure_waits(n, use, x, waited, missing);
            ZERO_TRY(failure_seen(n, use));
            if (waited > n->timeout_s) return 1;
            looked = p.last;
        }
        clock_pause(waited);
    }
}

static int exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                    size_t bytes, char *missing) {
    n->exchanges++;
    for (int r = 0; r < n->ranks; r++)
        missing[r] = r != n->rank && send[r] && (x != EXCHANGE_ROOT || r == root);
    failure_waits(n, use, x, 0, missing);  // already here, because the first poll may block
    int rc = link_begin(n, x, root, send, receive, bytes);
    if (!rc) rc = wait_for_all(n, use, x, missing);
    failure_waits(n, use, x, 0, NULL);
    if (rc) failure_close(n);
    if (rc < 0 && !n->ending) failure_keep(n);  // otherwise the thread that ends the job keeps its failure
    return rc;
}

int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes) {
    if (n->ranks == 1 || !n->link) return 0;
    char missing[n->ranks];
    pthread_mutex_lock(&n->lock);
    if (n->closed && !n->failed) failure_keep(n);
    int rc = n->failed ? zero_fail_again(&n->failure)
                       : exchange(n, x, use, root, send, receive, bytes, missing);
    pthread_mutex_unlock(&n->lock);
    return rc > 0 ? failure_late(n, use, x, missing) : rc;
}

static const net_use scalars = { .units = 0 };

int net_gather(net *n, const void *mine, void *all, size_t bytes) {
    char *send[n->ranks], *receive[n->ranks];
    for (int r = 0; r < n->ranks; r++) {
        send[r] = (char *)mine;
        receive[r] = (char *)all + r * bytes;
        if (r == n->rank || !n->link) memcpy(receive[r], mine, bytes);  // in virtual time all do as this rank
    }
    return net_exchange(n, EXCHANGE_GATHER, scalars, 0, send, receive, bytes);
}

int net_least(net *n, int value) {
    int all[n->ranks], least = value;
    ZERO_TRY(net_gather(n, &value, all, sizeof value));
    for (int r = 0; r < n->ranks; r++)
        if (all[r] < least) least = all[r];
    return least;
}

int net_broadcast(net *n, int root, void *data, size_t bytes) {
    char *all[n->ranks];
    for (int r = 0; r < n->ranks; r++) all[r] = data;
    return net_exchange(n, EXCHANGE_ROOT, scalars, root, all, all, bytes);
}

int net_agree(net *n, int rc) {
    failure_record first = *zero_failed();
    int all[n->ranks], failed = 0, lowest = n->ranks, mine = rc != 0;
    if (n->ranks == 1 || !n->link) return rc;
    ZERO_TRY(net_gather(n, &mine, all, sizeof mine));
    for (int r = n->ranks - 1; r >= 0; r--) {
        failed += all[r];
        if (all[r]) lowest = r;
    }
    if (!failed) return 0;
    ZERO_TRY(net_broadcast(n, lowest, &first, sizeof first));
    net_least(n, 0);  // even if this fails, the first failure is reported
    zero_fail_again(&first);
    if (failed < n->ranks) zero_failed_on(lowest, net_host(n, lowest));
    return zero_failed_after(n->rank);
}

// -------- start and end

// Returns 0 if nodes have different numbers of ranks, or ranks that are not consecutive.
static int count_hosts(const net *n) {
    int each = 0;
    while (each < n->ranks && n->peers[each].node == n->peers[0].node) each++;
    for (int r = 0; r < n->ranks; r++)
        for (int s = 0; s < r; s++)
            if ((n->peers[r].node == n->peers[s].node) != (r / each == s / each)) return 0;
    return n->ranks % each ? 0 : n->ranks / each;
}

static int meet_peers(net *n) {
    net_peer mine = { .late_in = 0 };
    n->peers = calloc((size_t)n->ranks, sizeof *n->peers);
    if (!n->peers) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the table of %d ranks", n->ranks);
    if (n->ranks > 1) failure_watch(n);
    mine.node = net_machine(mine.host);
    ZERO_TRY(net_gather(n, &mine, n->peers, sizeof mine));
    for (int r = 0; r < n->ranks; r++) {
        int here = n->peers[r].node == mine.node;
        n->ranks_on_node += here && r != n->rank;
        n->node_rank += here && r < n->rank;
    }
    n->hosts = count_hosts(n);
    return 0;
}

static int check_numbers(const net *n, const zero_start_config *s, zero_launch launched) {
    if (!s->mpi_comm && launched.ranks != n->ranks)
        return zero_fail(ZERO_ERR_COMM,
                         "the launcher has started %d ranks, but MPI sees %d, so this MPI does not work with "
                         "this launcher: start with its own mpirun, or under Slurm with srun --mpi=pmix",
                         launched.ranks, n->ranks);
    if ((s->ranks > 0 && s->ranks != n->ranks) || (s->rank >= 0 && s->rank != n->rank))
        return zero_refuse("start.rank start.ranks", " %d of %d: this is rank %d of %d", s->rank, s->ranks,
                           n->rank, n->ranks);
    return 0;
}

// One rank of a job in virtual time, which has no link to the others.
static int start_virtual(net *n, const zero_config *config) {
    const int here = config->machine->ranks_on_host;
    n->name = "virtual";
    n->rank = config->start.rank > 0 ? config->start.rank : 0;
    n->ranks = config->start.ranks > 0 ? config->start.ranks : 1;
    n->ranks_on_node = here < n->ranks ? here : n->ranks;
    n->hosts = n->ranks % n->ranks_on_node ? 0 : n->ranks / n->ranks_on_node;
    return 0;
}

int net_start(net *n, const zero_config *config) {
    *n = (net){ .ranks = 1, .ranks_on_node = 1, .hosts = 1, .name = "self", .reports = -1 };
    n->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    n->ended.root = -1;
    n->timeout_s = config->comm.timeout_s;
    if (config->machine) return start_virtual(n, config);
    zero_launch launched = zero_launched();
    const void *given = config->start.mpi_comm;
    if (!given && !launched.ranks) return zero_last_failure()->code;
    if (!given && !launched_by_mpi()) return check_numbers(n, &config->start, launched);
    ZERO_TRY(link_open(n, config, launched));
    n->name = "mpi";
    ZERO_TRY(meet_peers(n));
    return check_numbers(n, &config->start, launched);
}

void net_close(net *n, int clean) {
    if (n->link && n->peers) {
        pthread_mutex_lock(&n->lock);
        failure_unwatch(n, clean);
        link_close(n, clean && !n->failed);
        pthread_mutex_unlock(&n->lock);
    }
    free(n->peers);
    n->link = NULL;
    n->peers = NULL;
}
