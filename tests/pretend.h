// Pretends that the ranks of a test are on several hosts, also to NCCL. Link with --wrap=net_machine.
#ifndef TESTS_PRETEND_H
#define TESTS_PRETEND_H
#include "../llmc_zero/net/net.h"
#include "check.h"
#include <stdlib.h>

static int ranks_per_host;  // set by pretend_hosts; 0: does not pretend

static inline void pretend_hosts(int each) {
    char host[16];
    ranks_per_host = each;
    snprintf(host, sizeof host, "%d", each ? checks.rank / each : 0);
    each ? setenv("NCCL_HOSTID", host, 1) : unsetenv("NCCL_HOSTID");
}

uint64_t __real_net_machine(char host[NET_NAME]);
uint64_t __wrap_net_machine(char host[NET_NAME]) {
    const uint64_t machine = __real_net_machine(host);
    return ranks_per_host ? machine + 1 + (uint64_t)(checks.rank / ranks_per_host) : machine;
}

#endif
