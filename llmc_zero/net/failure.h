// How a job ends when one of its ranks fails, dies or hangs: one rank prints one error message, and every
// rank ends within a known time. A rank goes through these states:
//
//   running   Until it notices a failure: its own call fails; a connection ends, which with TCP means that
//             the other rank is dead (with MPI the launcher then ends all ranks); a wait has taken
//             timeout_s; or another rank has sent END.
//   late      Only after a timeout. A rank that waits for a hung one makes others wait too. So each late rank
//             sends LATE to all, with the number of its exchange, and listens for half a second. The silent
//             ranks are the hung ones, and the message names them. The lowest rank in the earliest exchange
//             reports.
//   failed    The current exchange is abandoned, and every later one returns the same failure.
//   ending    The program calls zero_end_job. A rank first listens for END, 0.2 s per connected lower rank,
//             except after LATE, when the ranks know which one reports. Then it sends END to all, with its
//             message. Two ranks may do so at the same moment, so this one gives lower ranks another second
//             to send END, and does not report if one does. A rank that receives END forwards it; otherwise a
//             third rank could see this rank's connection end first and take that for the cause.
//   ended     The reporting rank prints its message and ends; with MPI this ends all ranks. The others end
//             with its status when its connection has ended, or after three seconds.
#ifndef LLMC_ZERO_NET_FAILURE_H
#define LLMC_ZERO_NET_FAILURE_H
#include "net.h"

// Returns a rank that is dead or has ended the job, and sets the failure; -1 if there is none. Does not wait;
// any thread may call it. tail: appended to the message about a dead rank.
int failure_lost(net *n, const char *tail);
int failure_lost_in(net *n, net_use use, exchange_kind x);  // for waits: returns 0, or the failure
// Call it when timeout_s has passed and this rank still waits for the ranks marked in missing[ranks]. Returns
// the failure.
int failure_late(net *n, net_use use, exchange_kind x, const char *missing);
// For waits outside exchanges: asks the other ranks whether they are alive. Returns 1 if a rank has timed out
// and others are silent, which it marks in silent[ranks]; a negative error if a rank has ended the job, with
// that rank's message in zero_last_error(); else 0. No exchange is possible afterwards.
int failure_ask(net *n, int timed_out, char *silent);

// Call it when this rank has failed and can no longer communicate with the others. Sends END. Returns 1 if
// this rank reports.
int failure_reports(net *n, int status);
// Ends the job. The reporting rank writes `sentence` (NULL: nothing) and a newline to stderr. The library
// writes messages and ends the process only here. n NULL, or not connected: ends only this process.
void failure_end(net *n, int status, const char *sentence) __attribute__((noreturn));

// If a program with several ranks exits before net_close, ends the job with a message that names
// zero_destroy: otherwise the other ranks would wait for this one, or end without a reason.
void failure_at_exit(net *n);

// Closes the connections. clean 0: after a failure; the other ranks are notified.
void net_close(net *n, int clean);

// For net/*.c. The caller holds the lock.
int failure_seen(const net *n, net_use use, exchange_kind x);  // as failure_lost_in, without receiving notes
void failure_take(net *n, int from, const net_note *note);     // handles a note
int failure_keep(net *n);                                      // stores the last failure in n->failure

#endif
