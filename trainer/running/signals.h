// A run handles signals between two steps, on all ranks at once:
//   SIGTERM, SIGINT, SIGHUP, SIGUSR2   stop: save if -o is given, and exit with status 0. A second signal,
//                                      except SIGHUP, ends the rank at once, as does one before training
//   SIGUSR1                            save, and continue
// It is enough if one rank gets the signal. Requests are summed with the losses, so no step needs an extra
// collective. docs/checkpoints.md describes what launchers do with signals.
#ifndef TRAINER_SIGNALS_H
#define TRAINER_SIGNALS_H

// Number of requests: stop, save, stdout is gone, a save is in progress.
enum { REQUESTS = 4 };

// Call it before any thread exists. A separate thread receives the signals, so they interrupt no system call.
// SIGPIPE and SIGXFSZ become errors of the write that caused them.
void take_signals(void);
// From here on a stop takes effect at the end of the step.
void signals_in_training(void);

// Returns this rank's requests since the last call, to be summed over the ranks.
void requests_of_rank(double requests[REQUESTS]);
// Stores the sum, on all ranks.
void requests_of_all(const double requests[REQUESTS]);
// (collective) Does both, where no other sum carries the requests.
void share_requests(void);

// Both return the same on all ranks. A stop also requests a checkpoint, unless this was the last step.
int stop_is_requested(void);
int checkpoint_is_requested(int last_step);
void checkpoint_is_written(void);  // clears the request
// Returns 1 on all ranks if one of them was still writing a checkpoint at the last sum.
int save_goes_on(void);

// Ends the run with an error if a write to stdout failed. The message includes `outcome`, unless that is
// NULL. After a stop signal on any rank, a failed write is not an error, since a terminal that closes sends
// SIGHUP.
void check_output(const char *outcome);

#endif
