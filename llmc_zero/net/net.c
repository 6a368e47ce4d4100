#define XXH_INLINE_ALL
#include "net.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t net_machine(char host[NET_NAME]) {
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(boot, sizeof boot, f)) *boot = 0;
    if (f) fclose(f);
    memset(host, 0, NET_NAME);
    if (gethostname(host, NET_NAME - 1)) strcpy(host, "unknown");
    return XXH3_64bits_withSeed(host, strlen(host), XXH3_64bits(boot, strlen(boot)));
}

const char *net_host(const net *n, int rank) {
    return n->who && *n->who[rank].host ? n->who[rank].host : "unknown";
}

const char *net_units(int unit, int units, char text[NET_UNITS]) {
    snprintf(text, NET_UNITS, units > 1 ? "units %d to %d" : "unit %d", unit, unit + units - 1);
    return text;
}

const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]) {
    static const char *const names[] = { [EXCHANGE_SCATTER] = "a reduce-scatter of ",
                                         [EXCHANGE_GATHER] = "an all-gather of ",
                                         [EXCHANGE_ROOT] = "a broadcast of ",
                                         [EXCHANGE_BARRIER] = "a barrier" };
    char units[NET_UNITS];
    const char *what = use.units ? net_units(use.unit, use.units, units) : "scalars";
    snprintf(text, NET_WHERE, "%s%s", names[x], x == EXCHANGE_BARRIER ? "" : what);
    return text;
}

int net_fail_unlike(const net *n, int other, const char *units) {
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d and rank %d are in different collectives%s: all ranks must call the same hooks "
                     "in the same order, in validation and sampling too",
                     n->rank, other, units);
}

const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]) {
    return zero_list_ranks(list, n->ranks, chosen, n->who ? n->who->host : "unknown",
                           n->who ? sizeof *n->who : 0);
}
