// Pretends that the ranks of a test are on several hosts. Link with --wrap=net_machine.
#ifndef TESTS_PRETEND_H
#define TESTS_PRETEND_H
#include "../llmc_zero/net/net.h"
#include "check.h"

static int ranks_per_host;  // for the next zero_create; 0: does not pretend

uint64_t __real_net_machine(char host[NET_NAME]);
uint64_t __wrap_net_machine(char host[NET_NAME]) {
    const uint64_t machine = __real_net_machine(host);
    return ranks_per_host ? machine + 1 + (uint64_t)(checks.rank / ranks_per_host) : machine;
}

#endif
