// How a job ends when one of its ranks fails, dies or hangs: one sentence is told, by one rank, and every
// rank ends within a known time. A rank goes through these states:
//
//   running   It notices a failure: a call of its own fails; a connection ends, which with TCP means that the
//             rank there is gone (with MPI the launcher ends all ranks then); a wait has taken timeout_s; or
//             another rank has said END.
//   late      Only after a wait that took too long. Ranks that wait for one that hangs let others wait for
//             them. So each says LATE to all, with the number of the exchange it is in, and listens for half
//             a second. The ranks that say nothing are the ones that hang, and the sentence names them. Of
//             the ranks in the first of those exchanges the lowest speaks.
//   failed    The exchange under way is given up, and every later one returns the same failure.
//   ending    The program calls zero_end_job. Unless the ranks have been late and so know who speaks, a rank
//             waits its turn, 0.2 s for each lower rank that is connected, while it listens for END. Then it
//             says END to all, with its sentence. Two ranks may do so at the same moment: a rank that is not
//             the lowest gives the lower ones a second to say END as well, and is silent if one did. A rank
//             that hears END passes it on, because the end of its own connection could reach a third rank
//             first, and would look like the cause.
//   ended     The rank that speaks writes its sentence and ends; with MPI that ends all. The others end when
//             its connection has ended, with its status, three seconds later at most.
#ifndef LLMC_ZERO_FAILURE_H
#define LLMC_ZERO_FAILURE_H
#include "net.h"

// Returns the number of a rank that is gone or has ended the job, and fails with that; -1: none. It does not
// wait, and any thread may ask. tail ends the sentence about a rank that is gone.
int failure_lost(net *n, const char *tail);
int failure_lost_in(net *n, net_use use, exchange_kind x);  // the same in a wait: 0, or the failure
// Fails: timeout_s have passed, and this rank still waits for those in missing[ranks].
int failure_late(net *n, net_use use, exchange_kind x, const char *missing);
// For waits that are not for an exchange: asks the others who is still there. Returns 1 where a rank has
// timed out and others say nothing, which are then in silent[ranks]; a negative number where a rank has ended
// the job, which zero_last_error() then says; else 0. There are no exchanges any more.
int failure_ask(net *n, int timed_out, char *silent);

// This rank has failed and its program cannot use the ranks any more. It tells the others that the job is
// over. 1: this rank is the one to speak.
int failure_speaks(net *n, int status);
// Ends the job. The rank that is to speak writes the sentence and a newline to stderr; NULL: nothing. This is
// the only place at which the library writes, and ends a process. n NULL or alone: there are no other ranks.
void failure_end(net *n, int status, const char *sentence) __attribute__((noreturn));

// Closes the connections. clean 0: after a failure, of which the others are told.
void net_close(net *n, int clean);

// For net/*.c, with the lock held
int failure_seen(const net *n, net_use use, exchange_kind x);  // failure_lost_in, of what is known already
void failure_take(net *n, int from, const net_note *note);     // a note has come
int failure_keep(net *n);  // the last failure is what n->failure says from now on

#endif
