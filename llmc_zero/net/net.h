// The ranks of a job: one rank started alone, or those that Open MPI connects; and their names for messages.
#ifndef LLMC_ZERO_NET_NET_H
#define LLMC_ZERO_NET_NET_H
#include "../base/error.h"
#include "../base/patience.h"
#include <pthread.h>
#include <stdatomic.h>

typedef enum { EXCHANGE_SCATTER, EXCHANGE_GATHER, EXCHANGE_ROOT, EXCHANGE_BARRIER } exchange_kind;

// Some ranks of a job: rank i of the group is rank first + i * step of the job.
typedef struct {
    int rank, ranks;  // this rank's number in the group, and their number
    int first, step;
} net_group;

// The purpose of an exchange, for error messages.
typedef struct {
    int unit, units;  // its first unit, and how many; 0: it moves scalars
    net_group of;     // the ranks that take part; ranks 0: all
} net_use;

enum { NET_NAME = 64, NET_SENTENCE = 640 };
typedef struct {          // what this rank knows about another one, or itself
    char host[NET_NAME];  // name of its machine
    uint64_t node;        // identifies the machine
    uint32_t late_in;     // the exchange of its LATE; 0: it has sent none
    int ahead;            // it has sent a message of a later exchange, so it does not hang
} net_peer;

// Notes that ranks send each other outside the exchanges: see net/failure.h.
typedef enum { NOTE_LATE, NOTE_END, NOTES } note_kind;
typedef struct {
    int32_t kind;
    int32_t root, status;      // END: the rank that ends the job, and its exit status
    uint32_t exchange;         // LATE: number of exchanges that the sender has begun
    char words[NET_SENTENCE];  // END: the error message of rank `root`
} net_note;

typedef struct {
    net_use use;
    exchange_kind x;
    double since;  // clock_now; 0: no wait, or a short one
} net_wait;

typedef struct net {
    int rank, ranks, node_rank, ranks_on_node;
    int hosts;           // nodes, if each has as many ranks, which are consecutive; otherwise 0
    const char *name;    // "mpi", or "self"
    net_peer *peers;     // (ranks)
    double timeout_s;    // of a wait for the other ranks
    struct link *link;   // to the other ranks (below); NULL: one rank, started alone, or not connected
    uint32_t exchanges;  // number of exchanges begun
    // failures (net/failure.c)
    pthread_mutex_t lock;      // held by the thread that communicates
    atomic_int ending;         // 1: this rank ends the job, so another thread's exchange returns
    int closed, failed, told;  // 1: no more exchanges; `failure` is set; END was sent
    failure_record failure;    // this rank's; every later exchange returns it
    int reports;               // 1: this rank reports the failure, 0: another one does; -1: not known
    net_note ended;            // END of the lowest rank that has ended the job; root -1: none
    net_wait wait;             // this rank's current one
    char *missing;             // (ranks) for which it waits; NULL: not kept
    struct net *next;          // failure_watch's list
} net;

// -------- start and end

// (collective) Connects the ranks that the launcher has started, or those of start.mpi_comm. Without a
// launcher this is one rank, and MPI is not used. After an error the caller calls net_close(n, 0).
int net_start(net *n, const zero_config *config);
// Ends the connection. clean 0: after a failure; notifies the other ranks.
void net_close(net *n, int clean);
int launched_by_mpi(void);  // 1: this process was started by a launcher that Open MPI supports

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

// -------- exchanges (net/exchange.c): each rank sends to the others and receives from them. All are
// collective: call them from one thread at a time. If one fails, it and all later ones fail on all ranks.

// SCATTER and GATHER: sends `bytes` bytes from send[r] to each rank r and receives as many into receive[r].
// ROOT: only from root to the others. BARRIER: no bytes. Rank r takes no part if send[r] is NULL.
int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes);
int net_gather(net *n, const void *mine, void *all, size_t bytes);  // all (ranks, bytes): from each rank
int net_least(net *n, int value);  // returns the smallest of the ranks' values (>= 0); negative: an error
int net_broadcast(net *n, int root, void *data, size_t bytes);
// If any rank has failed, all fail with the failure of the lowest such rank, which the message names unless
// all have. All return together: a rank that ended before the others knew of it would look like the cause.
int net_agree(net *n, int rc);

// -------- for net/: the link to the other ranks, messages over MPI (net/mpi.c). Everything but link_open is
// called with the net's lock held. Unless a comment states otherwise, functions return 0 or an error.

// (collective) Starts MPI, or takes it over if the program has started it, and sets n's link, rank and ranks.
// launched: what the launcher started, for the message about a start that takes too long.
int link_open(net *n, const zero_config *config, zero_launch launched);
void link_send_in_parts(void);  // sets how Open MPI sends over TCP; before MPI's start
// Ends MPI if link_open has started it, unless clean is 0. Afterwards no message touches the caller's memory.
void link_close(net *n, int clean);

// Begins an exchange, as net_exchange. The caller then polls.
int link_begin(net *n, exchange_kind x, int root, char *const *send, char *const *receive, size_t bytes);
int link_poll(net *n, int *done);          // sets *done to 1 when the exchange has ended; does not wait
void link_pending(net *n, char *missing);  // sets missing[r] if the exchange still waits for rank r
void link_abandon(net *n);                 // ends the exchange without its messages; marks peers ahead

void link_tell(net *n, const net_note *note);      // starts sending a note to all ranks; does not wait
int link_hear(net *n, int *from, net_note *note);  // returns 1 and a note if one has arrived
// Ends all ranks, as the launcher does when one dies. May return if the program has finalised MPI.
void link_end_all(net *n, int status);

#endif
