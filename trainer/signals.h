// Signals ask a run for something, and it does that between two steps, on all ranks at once:
//   SIGTERM, SIGINT, SIGHUP, SIGUSR2   stop: save if there is a folder (-o), and end with status 0. A second
//                                      one, but for SIGHUP, ends the rank at once, and so does one before the
//                                      training
//   SIGUSR1                            save, and go on
// It is enough that one rank gets the signal. What a rank has been asked for travels with the sum of the
// losses, so that no step has a collective more. docs/running.md says what launchers do with signals.
#ifndef TRAINER_SIGNALS_H
#define TRAINER_SIGNALS_H

enum { REQUESTS = 4 };  // doubles: what signals ask for, whether stdout is gone, and whether a save goes on

// To be called before any thread exists. Signals are taken by a thread of their own, so no system call of
// another one is interrupted. SIGPIPE and SIGXFSZ become errors of the write that they would have ended.
void take_signals(void);
// From here on a signal to stop waits for the end of the step.
void signals_in_training(void);

// What this rank has been asked for since the last call, to be summed over the ranks.
void requests_of_rank(double requests[REQUESTS]);
// The sum, on all ranks.
void requests_of_all(const double requests[REQUESTS]);
// (collective) Both of these, where no other sum takes the requests along.
void share_requests(void);

// Return the same on all ranks. A stop asks for a checkpoint too, unless this was the last step.
int stop_is_asked(void);
int checkpoint_is_asked(int last_step);
void checkpoint_is_written(void);  // nobody waits for one any more
// Returns 1, on all ranks, if one of them still wrote a checkpoint beside training at the last sum.
int save_goes_on(void);

// Ends the run with an error if stdout could not be written to, and says what has become of the run; NULL:
// nothing more. It is no error after a signal to stop, whichever rank got it, since a terminal that closes
// sends SIGHUP.
void check_output(const char *outcome);

#endif
