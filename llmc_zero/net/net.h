// The ranks of a job, connected by MPI (net/mpi.c) or by TCP (net/tcp.c), or one rank alone.
#ifndef LLMC_ZERO_NET_NET_H
#define LLMC_ZERO_NET_NET_H
#include "rendezvous.h"
#include "../base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

enum { NET_SENTENCE = 640 };  // size of an error message that ranks exchange
typedef enum { EXCHANGE_SCATTER, EXCHANGE_GATHER, EXCHANGE_ROOT, EXCHANGE_BARRIER } exchange_kind;

// The purpose of an exchange, for error messages.
typedef struct {
    const char *name;  // the collective, "a reduce-scatter"; NULL: named after the kind of the exchange
    int unit, units;   // its first unit, and how many; 0: it moves scalars
} net_use;

// Notes about failures that ranks send each other outside the exchanges: see net/failure.h.
typedef enum { NOTE_LATE, NOTE_END, NOTE_GOODBYE, NOTES } note_kind;
typedef struct {
    int32_t kind;
    int32_t root, status;      // END: the rank that ended the job, and its exit status
    int32_t timed_out;         // LATE
    uint32_t exchange;         // LATE: number of exchanges that the sender has begun
    char words[NET_SENTENCE];  // END: the error message of rank `root`
} net_note;

typedef struct {      // what this rank knows about another one
    int gone, error;  // 1: its connection ended; errno, 0, or ESHUTDOWN: it left while it was still needed
    int left;         // it sent GOODBYE: it ended normally
    int ended;        // it sent END
    int late;         // it sent LATE, with:
    int timed_out;
    uint32_t exchange;
    int ahead;  // it has sent a message of a later exchange, so it does not hang
} net_peer;

enum { NET_WAITING, NET_MOVED, NET_DONE };  // results of one step of an exchange
typedef struct net net;

// Implemented by MPI and TCP. Called with the lock held.
typedef struct {
    // Begins an exchange: sends `bytes` bytes from send[r] to each rank r and receives as many into
    // receive[r]; ROOT: only from root to the others. The caller then calls `step`, which does not wait and
    // returns one of NET_*, or an error.
    int (*begin)(net *n, exchange_kind x, int root, char *const *send, char *const *receive, size_t bytes);
    int (*step)(net *n);
    void (*rest)(net *n, double idle_s);         // pauses for up to 50 ms; idle_s: since the last progress
    void (*pending)(net *n, char *missing);      // sets missing[r] if the exchange still waits for rank r
    void (*abandon)(net *n);                     // stops accessing the caller's memory
    void (*tell)(net *n, const net_note *note);  // starts sending the note to all connected ranks
    int (*telling)(const net *n);                // 1: a note is still being sent; NULL: never
    void (*look)(net *n);                        // receives notes (failure_take)
    // Ends all ranks, as a launcher does when one dies. NULL: each rank ends by itself, and any thread may
    // check for dead ranks.
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
    uint32_t exchanges;      // number of exchanges begun
    // failures (net/failure.c)
    pthread_mutex_t lock;      // held by the thread that communicates
    net_peer *peers;           // (ranks)
    atomic_int ending;         // 1: this rank ends the job, so another thread's exchange returns
    int closed, failed, told;  // 1: no more exchanges; `failure` is set; END was sent
    failure_record failure;    // this rank's; every later exchange returns it
    int reports;               // 1: this rank reports the failure, 0: another one does; -1: not known
    net_note ended;            // END of the lowest rank that has ended the job; root -1: none
    net *watched_next;         // failure_at_exit's list
};

// (collective) Connects the ranks as the configuration or the launcher requires (net/start.c). After an error
// the caller calls net_close(n, 0).
int net_start(net *n, const zero_config *config);

// Reads RANK and WORLD_SIZE (MASTER_ADDR, MASTER_PORT), Open MPI's variables, or Slurm's, whichever is found
// first. Sets rank, ranks and job; Open MPI's key if s has none; and server if s has neither server nor file.
// The server is MASTER_ADDR or Slurm's first host, with MASTER_PORT or, if that is not set or torchrun itself
// uses it, a port that all ranks compute. Returns 1; 0 without a launcher, leaving *s unchanged; or a
// ZERO_ERR_*. The text of s->server is valid until the next call.
int launched_read(rendezvous_settings *s);
int launched_by_mpi(void);  // 1: this process was started by a launcher that MPI supports

// -------- exchanges (net/exchange.c). If one rank fails, all ranks fail.

// (collective) Call it from one thread at a time. After a failure every later exchange returns the same
// error.
int net_exchange(net *n, exchange_kind x, net_use use, int root, char *const *send, char *const *receive,
                 size_t bytes);
int net_gather(net *n, const void *mine, void *all, size_t bytes);  // all (ranks, bytes): from each rank
int net_least(net *n, int value);  // returns the smallest of the ranks' values (>= 0); negative: an error
int net_broadcast(net *n, int root, void *data, size_t bytes);

// (collective) If any rank has failed, all fail with the failure of the lowest such rank, and the message
// names it unless all have failed. All ranks return together, because a rank that ended before the others
// knew of the failure would look like the cause.
int failure_agree(net *n, int rc);

// -------- for mpi.c and tcp.c, which connect the ranks; n->timeout_s is already set

// Allocates the table of ranks; also fails if n->connection is NULL.
int net_prepare(net *n, const char *name, int rank, int ranks);
void net_seat(net *n);  // finds the ranks on this node, from `who`
int net_open_mpi(net *n, const zero_config *config, zero_launch launched);
int net_open_tcp(net *n, const rendezvous_settings *s);

// -------- waits

// How long this rank has waited, not counting time in which the process itself was stopped. Call
// patience_waited before each poll, so that after a stop the caller polls once more before it gives up.
typedef struct {
    double waited, last;  // seconds; clock_now at the last call
} patience;
patience patience_start(void);
double patience_waited(patience *p);  // adds the time since the last call, and returns the sum
// Calls run(state) in a thread. If it has not returned after `limit` seconds, leaves the thread behind and
// returns 1.
int patience_outlasts(double limit, void *(*run)(void *), void *state);

// -------- names for messages

enum { NET_UNITS = 32, NET_WHERE = 64 };
const char *net_host(const net *n, int rank);
const char *net_units(int unit, int units, char text[NET_UNITS]);              // "units 3 to 5"
const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]);     // "a broadcast of unit 3"
const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]);  // zero_list_ranks
const char *exchange_name(exchange_kind x);                                    // "a reduce-scatter"

#endif
