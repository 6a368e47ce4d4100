// The link to the other ranks: messages over MPI. mpi.c implements it and is the only file that includes
// mpi.h. Everything but link_open is called with the net's lock held. Unless a comment states otherwise,
// functions return 0 or an error.
#ifndef LLMC_ZERO_NET_LINK_H
#define LLMC_ZERO_NET_LINK_H
#include "net.h"

// (collective) Starts MPI, or takes it over if the program has started it, and sets n's link, rank and ranks.
// launched: what the launcher started, for the message about a start that takes too long.
int link_open(net *n, const zero_config *config, zero_launch launched);
// Ends MPI if link_open has started it. clean 0: after a failure; MPI is left as it is. No message touches
// the caller's memory afterwards.
void link_close(net *n, int clean);

// Begins an exchange: sends `bytes` bytes from send[r] to each rank r and receives as many into receive[r];
// ROOT: only from root to the others. The caller then polls.
int link_begin(net *n, exchange_kind x, int root, char *const *send, char *const *receive, size_t bytes);
int link_poll(net *n, int *done);          // sets *done to 1 when the exchange has ended; does not wait
void link_pending(net *n, char *missing);  // sets missing[r] if the exchange still waits for rank r
void link_abandon(net *n);                 // ends the exchange without its messages; marks peers ahead

void link_tell(net *n, const net_note *note);      // starts sending a note to all ranks; does not wait
int link_hear(net *n, int *from, net_note *note);  // returns 1 and a note if one has arrived
// Ends all ranks, as the launcher does when one dies. May return if the program has finalised MPI.
void link_end_all(net *n, int status);

#endif
