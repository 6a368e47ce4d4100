// Waiting for the other ranks: for how long, and what an error says of those that have not come.
#ifndef LLMC_ZERO_COMM_LATE_H
#define LLMC_ZERO_COMM_LATE_H
#include "../comm/comm.h"

typedef struct {
    double waited, last;
} comm_patience;  // seconds so far; of comm_now's clock
static inline comm_patience comm_start_waiting(void) { return (comm_patience){ 0, comm_now() }; }
// Counts the time since the last look, and returns the sum. Time in which this process was itself stopped
// does not count, so that the look at the others that follows it is not its last one: call it before each
// look.
double comm_waited(comm_patience *p);

const char *comm_exchange_name(comm_exchange x);  // "a reduce-scatter"
enum { COMM_WHERE = 64 };
enum { COMM_UNITS = 32 };
const char *comm_units(const comm_use *use, char text[COMM_UNITS]);  // "unit 3", "units 3 to 5"
const char *comm_where(const comm *c, comm_exchange x,
                       char text[COMM_WHERE]);  // "a reduce-scatter of unit 3"
const char *comm_host(const comm *c, int rank);
enum { COMM_LIST = 320 };
const char *comm_list(const comm *c, const char *chosen,
                      char list[COMM_LIST]);  // "rank 3 (host a), rank 5 (host b) and 12 more"
// Fails, as c->timeout_s are over: this rank waited in x for those in missing[ranks].
int comm_fail_late(const comm *c, comm_exchange x, const char *missing);

// Ranks that give up at about the same moment hear of each other in so many seconds.
static const double comm_hear_s = 0.5;

// How long a rank with so many before it waits for its turn to speak, where the ranks cannot agree on who
// does.
double comm_turn_s(int before);

#endif
