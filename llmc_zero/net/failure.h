// How a job ends when one of its ranks fails, dies or hangs: one rank reports one sentence, and every rank
// ends within a known time. A rank goes through these states:
//
//   running   It notices a failure: a call of its own fails; a connection ends, which with TCP means that the
//             other rank is dead (with MPI the launcher then ends all ranks); a wait has taken timeout_s; or
//             another rank has sent END.
//   late      Only after a wait that took too long. Ranks that wait for a hung one make others wait in turn.
//             So each sends LATE to all, with the number of its exchange, and listens for half a second. The
//             silent ranks are the hung ones, and the sentence names them. The lowest of the ranks in the
//             first of those exchanges reports.
//   failed    The current exchange is abandoned, and every later one returns the same failure.
//   ending    The program calls zero_end_job. Unless the ranks have been late and so know who reports, a rank
//             waits its turn, 0.2 s for each lower rank that is connected, while it listens for END. Then it
//             sends END to all, with its sentence. Two ranks may do so at the same moment: a rank that is not
//             the lowest gives the lower ones a second to send END as well, and stays silent if one does. A
//             rank that receives END forwards it, because a third rank could first see this rank's
//             connection end and take that for the cause.
//   ended     The reporting rank prints its sentence and ends; with MPI that ends all. The others end with
//             its status when its connection has ended, at most three seconds later.
#ifndef LLMC_ZERO_NET_FAILURE_H
#define LLMC_ZERO_NET_FAILURE_H
#include "net.h"

// Returns the number of a rank that is dead or has ended the job, and fails with that; -1: none. Does not
// wait; any thread may call it. tail: appended to the sentence about a dead rank.
int failure_lost(net *n, const char *tail);
int failure_lost_in(net *n, net_use use, exchange_kind x);  // the same in a wait: 0, or the failure
// Fails: timeout_s are over, and this rank still waits for those in missing[ranks].
int failure_late(net *n, net_use use, exchange_kind x, const char *missing);
// For waits outside exchanges: asks the other ranks whether they are alive. Returns 1 if a rank has timed out
// and others are silent, which are set in silent[ranks]; a negative number if a rank has ended the job, with
// zero_last_error() set to its sentence; else 0. No exchange is possible afterwards.
int failure_ask(net *n, int timed_out, char *silent);

// This rank has failed and its program cannot use the ranks any more. Tells the others that the job is over.
// 1: this rank reports.
int failure_speaks(net *n, int status);
// Ends the job. The reporting rank writes the sentence and a newline to stderr; NULL: nothing. The library
// writes, and ends a process, only here. n NULL or alone: there are no other ranks.
void failure_end(net *n, int status, const char *sentence) __attribute__((noreturn));

// Closes the connections. clean 0: after a failure, which the others are notified of.
void net_close(net *n, int clean);

// For net/*.c, with the lock held
int failure_seen(const net *n, net_use use, exchange_kind x);  // failure_lost_in, from what is known already
void failure_take(net *n, int from, const net_note *note);     // a note has arrived
int failure_keep(net *n);                                      // stores the last failure in n->failure

#endif
