// How a job ends when one of its ranks fails, dies or hangs: one rank prints one error message, and every
// rank ends within a known time. A rank goes through these states:
//
//   running   Until its own call fails, a wait has taken timeout_s, or another rank has sent END.
//   late      Only after a timeout. A rank that waits for a hung one makes others wait too. So each late rank
//             sends LATE to all, with the number of its exchange, and listens for half a second. The silent
//             ranks hang, and the message names them. The lowest rank in the earliest exchange reports.
//   failed    The current exchange is abandoned, and every later one returns the same failure.
//   ending    The program calls zero_end_job. Unless the ranks know who reports, a rank other than 0 listens
//             half a second for END of another rank, sends END to all, and listens a second for END of a
//             lower rank. If it hears one, it does not report.
//   ended     The reporting rank prints its message and calls MPI_Abort, with which the launcher ends all
//             ranks. The others wait for that for three seconds at most.
//
// A dead rank reports nothing. The launcher notices it: mpirun prints which rank it was, sends SIGCONT to the
// others at once, SIGTERM a second later and SIGKILL after another one. After SIGCONT, the lowest rank of a
// group that is not missing itself prints for whom it waits, in which collective, and for how long.
#ifndef LLMC_ZERO_NET_FAILURE_H
#define LLMC_ZERO_NET_FAILURE_H
#include "net.h"

// -------- waits, of any thread. missing[ranks] marks the ranks for which this one waits.

// Keeps what this rank waits for, to print it. Call it every 50 to 100 ms, and with missing NULL at the end.
void failure_waits(net *n, net_use use, exchange_kind x, double waited, const char *missing);
// Returns the failure of a wait that has taken timeout_s.
int failure_late(net *n, net_use use, exchange_kind x, const char *missing);
// For waits outside exchanges, as often: fails if another rank has ended the job.
int failure_heard(net *n, net_use use);
// For waits outside exchanges that have taken timeout_s: asks the other ranks whether they are alive. Returns
// 1 if some are silent, which it marks in silent[ranks]; a negative error if a rank has ended the job, with
// that rank's message in zero_last_error(); else 0. No exchange is possible afterwards.
int failure_ask(net *n, char *silent);

// -------- the end

// For a rank that has failed and can no longer communicate. Sends END. Returns 1 if this rank reports.
int failure_reports(net *n, int status);
// Ends the job. The reporting rank writes `sentence` (NULL: nothing) and a newline to stderr. The library
// writes messages and ends the process only in failure.c. n NULL, or not connected: ends only this process.
void failure_end(net *n, int status, const char *sentence) __attribute__((noreturn));

// From the first exchange until the link closes. In between, exit ends the job with a message that names
// zero_destroy: otherwise the other ranks would wait for this one, or end without a reason. failure_unwatch:
// the caller holds the lock; clean 0: after a failure; the other ranks get END.
void failure_watch(net *n);
void failure_unwatch(net *n, int clean);

// -------- for exchanges. The caller holds the lock.

int failure_seen(net *n, net_use use);  // hears the notes; returns 0, or that another rank has ended the job
void failure_close(net *n);             // abandons the current exchange, and refuses later ones
void failure_keep(net *n);              // also stores the last failure, which later ones return

#endif
