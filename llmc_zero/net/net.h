// The ranks of a job: one rank started alone, or those that Open MPI connects; and their names for messages.
#ifndef LLMC_ZERO_NET_NET_H
#define LLMC_ZERO_NET_NET_H
#include "../base/error.h"
#include "../base/patience.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { EXCHANGE_SCATTER, EXCHANGE_GATHER, EXCHANGE_ROOT, EXCHANGE_BARRIER } exchange_kind;

// The purpose of an exchange, for error messages.
typedef struct {
    int unit, units;  // its first unit, and how many; 0: it moves scalars
} net_use;

enum { NET_NAME = 64 };
typedef struct {
    char host[NET_NAME];  // name of the rank's machine
    uint64_t node;        // identifies the machine
} net_place;

enum { NET_SENTENCE = 640 };  // size of an error message that ranks exchange
// Notes that ranks send each other outside the exchanges: see net/failure.h.
typedef enum { NOTE_LATE, NOTE_END, NOTES } note_kind;
typedef struct {
    int32_t kind;
    int32_t root, status;      // END: the rank that ends the job, and its exit status
    uint32_t exchange;         // LATE: number of exchanges that the sender has begun
    char words[NET_SENTENCE];  // END: the error message of rank `root`
} net_note;

typedef struct {  // what this rank knows about another one
    int late;     // it sent LATE, with:
    uint32_t exchange;
    int ahead;  // it has sent a message of a later exchange, so it does not hang
} net_peer;

typedef struct {
    net_use use;
    exchange_kind x;
    double since;  // clock_now; 0: no wait, or a short one
} net_wait;

typedef struct net net;
struct net {
    int rank, ranks, node_rank, ranks_on_node;
    int on_one_node;     // every rank is on this node
    const char *name;    // "mpi", or "self"
    net_place *who;      // (ranks)
    double timeout_s;    // of a wait for the other ranks
    struct link *link;   // to the other ranks (net/link.h); NULL: one rank, started alone, or not connected
    uint32_t exchanges;  // number of exchanges begun
    // failures (net/failure.c)
    pthread_mutex_t lock;      // held by the thread that communicates
    net_peer *peers;           // (ranks)
    atomic_int ending;         // 1: this rank ends the job, so another thread's exchange returns
    int closed, failed, told;  // 1: no more exchanges; `failure` is set; END was sent
    failure_record failure;    // this rank's; every later exchange returns it
    int reports;               // 1: this rank reports the failure, 0: another one does; -1: not known
    net_note ended;            // END of the lowest rank that has ended the job; root -1: none
    net_wait wait;             // this rank's current one
    char *missing;             // (ranks) for which it waits; NULL: not kept
    net *next;                 // failure_watch's list
};

// -------- names for messages

// Returns a number that identifies this machine until it reboots, and sets host to its name. Containers and
// network namespaces count as separate machines if their names differ.
uint64_t net_machine(char host[NET_NAME]);
enum { NET_UNITS = 32, NET_WHERE = 64 };
const char *net_host(const net *n, int rank);
const char *net_units(int unit, int units, char text[NET_UNITS]);              // "units 3 to 5"
const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]);     // "a broadcast of unit 3"
const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]);  // zero_list_ranks
// Fails: this rank and another one are in different collectives. units: " (units 1 and 2)", or empty.
int net_fail_unlike(const net *n, int other, const char *units);
const char *exchange_name(exchange_kind x);  // "a reduce-scatter"

#endif
