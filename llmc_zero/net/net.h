// The ranks of a job, connected by MPI (net/mpi.c) or by TCP (net/tcp.c), or one rank alone.
#ifndef LLMC_ZERO_NET_NET_H
#define LLMC_ZERO_NET_NET_H
#include "rendezvous.h"
#include "../base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { NET_SENTENCE = 640 };  // bytes of a sentence that ranks exchange
typedef enum { EXCHANGE_SCATTER, EXCHANGE_GATHER, EXCHANGE_ROOT, EXCHANGE_BARRIER } exchange_kind;

// The purpose of an exchange, for error sentences.
typedef struct {
    const char *name;  // the collective, "a reduce-scatter"; NULL: named after the kind of the exchange
    int unit, units;   // its first unit, and how many; 0: it moves scalars
} net_use;

// Notes that ranks send each other about failures, outside the exchanges: see net/failure.h.
typedef enum { NOTE_LATE, NOTE_END, NOTE_GOODBYE, NOTES } note_kind;
typedef struct {
    int32_t kind;
    int32_t root, status;      // END: the rank that ended the job, and its exit status
    int32_t timed_out;         // LATE
    uint32_t exchange;         // LATE: how many exchanges the sender has begun
    char words[NET_SENTENCE];  // END: the sentence of rank `root`
} net_note;

typedef struct {      // what this rank knows of another one
    int gone, error;  // its connection ended; errno, 0, or ESHUTDOWN: it left after GOODBYE though we need it
    int left;         // it sent GOODBYE: it ended normally
    int ended;        // it sent END
    int late;         // it sent LATE, with:
    int timed_out;
    uint32_t exchange;
    int ahead;  // a message of a later exchange has arrived, so it is running
} net_peer;

enum { NET_WAITING, NET_MOVED, NET_DONE };  // of a step of an exchange
typedef struct net net;

// MPI's and TCP's implementations. They are called with the lock held.
typedef struct {
    // An exchange: `bytes` from send[r] to each rank r, and from each into receive[r]; ROOT: only from root
    // to the others. It begins, and then takes steps that do not wait, with pauses of up to 50 ms in between.
    // A step returns one of NET_*, or an error.
    int (*begin)(net *n, exchange_kind x, int root, char *const *send, char *const *receive, size_t bytes);
    int (*step)(net *n);
    void (*rest)(net *n, double idle_s);         // idle_s: since the last progress
    void (*pending)(net *n, char *missing);      // missing[r]: the exchange still waits for rank r
    void (*abandon)(net *n);                     // does not access the caller's memory after this
    void (*tell)(net *n, const net_note *note);  // starts sending it to all connected ranks
    int (*telling)(const net *n);                // a note is still being sent; NULL: it never is
    void (*look)(net *n);                        // receives notes, into peers
    // Ends all ranks, as a launcher does when one dies. NULL: each rank ends by itself, and ranks watch each
    // other, from any thread.
    void (*end)(net *n, int status);
    void (*close)(net *n, int clean);
} net_functions;

struct net {
    int rank, ranks, node_rank, ranks_on_node;
    int on_one_node;         // every rank is on this node
    int is_open;             // anyone who reached rank 0's port could have joined: TCP without a key
    const char *name;        // "mpi", "tcp", "self"
    const net_functions *f;  // NULL: one rank, started alone, or not connected
    rendezvous_peer *who;    // (ranks)
    double timeout_s;        // of a wait for the other ranks
    void *connection;        // of f; freed by net_close
    uint32_t exchanges;      // begun
    // failures (net/failure.c)
    pthread_mutex_t lock;      // held by the thread that communicates
    net_peer *peers;           // (ranks)
    atomic_int ending;         // this rank ends the job: another thread's exchange returns
    int closed, failed, told;  // exchanges are over; `failure` is why; END was sent
    failure_record failure;    // this rank's; every later exchange returns it
    int speaks;                // 1: this rank reports the failure, 0: another one does; -1: not known
    net_note ended;            // END of the lowest rank that has ended the job; root -1: none
};

// (collective) Connects the ranks as the configuration or the launcher requires (net/start.c). After an error
// the caller calls net_close(n, 0).
int net_start(net *n, const zero_config *config);

// Reads RANK and WORLD_SIZE (MASTER_ADDR, MASTER_PORT), Open MPI's variables, or Slurm's, whichever is found
// first. Sets rank, ranks and job; Open MPI's key if s has none; and server if s has neither server nor file:
// rank 0 is on MASTER_ADDR, or on Slurm's first host, at a port that all compute if MASTER_PORT is torchrun's
// own. Returns 1; 0 without a launcher, leaving *s unchanged; or a ZERO_ERR_*. The text of s->server is valid
// until the next call.
int launched_read(rendezvous_settings *s);
int launched_by_mpi(void);  // 1: this process was started by a launcher that MPI supports

const char *net_host(const net *n, int rank);

// For mpi.c and tcp.c, which connect the ranks; n->timeout_s is set before. net_prepare allocates the table
// of ranks; it also fails if n->connection is NULL. net_seat determines from `who` which ranks are on this
// node.
int net_prepare(net *n, const char *name, int rank, int ranks);
void net_seat(net *n);
int net_open_mpi(net *n, const zero_config *config, zero_launch launched);
int net_open_tcp(net *n, const rendezvous_settings *s);

// How long this rank has waited. Time in which the process itself was stopped does not count. Call
// patience_waited before each poll, so that a last poll follows such a stop.
typedef struct {
    double waited, last;  // seconds; clock_now at the last call
} patience;
patience patience_start(void);
double patience_waited(patience *p);  // adds the time since the last call, and returns the sum

enum { NET_UNITS = 32, NET_WHERE = 64 };
const char *net_units(int unit, int units, char text[NET_UNITS]);              // "units 3 to 5"
const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]);     // "a broadcast of unit 3"
const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]);  // zero_list_ranks
const char *exchange_name(exchange_kind x);                                    // "a reduce-scatter"

#endif
