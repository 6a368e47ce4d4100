#include "net.h"
#include "../base/clock.h"
#include "../base/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int net_prepare(net *n, const char *name, int rank, int ranks) {
    n->name = name;
    n->rank = rank;
    n->ranks = ranks;
    n->ended.root = n->reports = -1;
    n->peers = calloc((size_t)ranks, sizeof *n->peers);
    n->who = calloc((size_t)ranks, sizeof *n->who);
    if (n->connection && n->peers && n->who && !pthread_mutex_init(&n->lock, NULL)) return 0;
    return zero_fail(ZERO_ERR_MEMORY, "out of memory for the connections of %d ranks", ranks);
}

void net_seat(net *n) {
    n->node_rank = n->ranks_on_node = 0;
    for (int r = 0; r < n->ranks; r++) {
        int here = n->who[r].node == n->who[n->rank].node;
        n->ranks_on_node += here;
        n->node_rank += here && r < n->rank;
    }
    n->on_one_node = n->ranks_on_node == n->ranks;
}

const char *net_host(const net *n, int rank) {
    return n->who && *n->who[rank].host ? n->who[rank].host : "unknown";
}

// -------- waiting

patience patience_start(void) { return (patience){ 0, clock_now() }; }

double patience_waited(patience *p) {
    const double most = 0.2;  // a longer time between two polls means that the process was stopped
    double now = clock_now(), since = now - p->last;
    p->last = now;
    return p->waited += since < most ? since : most;
}

int patience_outlasts(double limit, void *(*run)(void *), void *state) {
    pthread_t thread;
    patience p = patience_start();
    if (pthread_create(&thread, NULL, run, state)) return run(state) != NULL;
    while (pthread_tryjoin_np(thread, NULL)) {
        if (patience_waited(&p) > limit) return !pthread_detach(thread);
        clock_nap(1e-3);
    }
    return 0;
}

// -------- names for messages

const char *exchange_name(exchange_kind x) {
    static const char *const names[] = { [EXCHANGE_SCATTER] = "a reduce-scatter",
                                         [EXCHANGE_GATHER] = "an all-gather",
                                         [EXCHANGE_ROOT] = "a broadcast",
                                         [EXCHANGE_BARRIER] = "a barrier" };
    return (unsigned)x < sizeof names / sizeof *names ? names[x] : "?";
}

const char *net_units(int unit, int units, char text[NET_UNITS]) {
    snprintf(text, NET_UNITS, units > 1 ? "units %d to %d" : "unit %d", unit, unit + units - 1);
    return text;
}

const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]) {
    char units[NET_UNITS];
    const char *name = use.name ? use.name : exchange_name(x);
    if (x == EXCHANGE_BARRIER && !use.name)
        snprintf(text, NET_WHERE, "%s", name);
    else if (!use.units)
        snprintf(text, NET_WHERE, "%s of scalars", name);
    else
        snprintf(text, NET_WHERE, "%s of %s", name, net_units(use.unit, use.units, units));
    return text;
}

const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]) {
    return zero_list_ranks(list, n->ranks, chosen, n->who ? n->who->host : "unknown",
                           n->who ? sizeof *n->who : 0);
}
