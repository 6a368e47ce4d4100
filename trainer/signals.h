// A run handles signals between two steps, on all ranks at once:
//   SIGTERM, SIGINT, SIGHUP, SIGUSR2   stop: save if there is a folder (-o), and end with status 0. A second
//                                      one, except SIGHUP, ends the rank at once, and so does one before the
//                                      training
//   SIGUSR1                            save, and continue
// It is enough that one rank gets the signal. Requests are summed with the losses, so no step needs another
// collective. docs/running.md describes what launchers do with signals.
#ifndef TRAINER_SIGNALS_H
#define TRAINER_SIGNALS_H

// Doubles: the signals' requests, whether stdout is gone, and whether a save is under way.
enum { REQUESTS = 4 };

// Call it before any thread exists. A separate thread receives the signals, so they interrupt no system call
// of another one. SIGPIPE and SIGXFSZ become errors of the write that caused them.
void take_signals(void);
// From here on a stop takes effect at the end of the step.
void signals_in_training(void);

// This rank's requests since the last call, to be summed over the ranks.
void requests_of_rank(double requests[REQUESTS]);
// Stores the sum, on all ranks.
void requests_of_all(const double requests[REQUESTS]);
// (collective) Both of these, where no other sum includes the requests.
void share_requests(void);

// Return the same on all ranks. A stop also requests a checkpoint, unless this was the last step.
int stop_is_requested(void);
int checkpoint_is_requested(int last_step);
void checkpoint_is_written(void);  // the request is fulfilled
// Returns 1, on all ranks, if one of them was still writing a checkpoint beside training at the last sum.
int save_goes_on(void);

// Ends the run with an error if writing to stdout failed, and prints the run's outcome; NULL: nothing more.
// After a signal to stop, on whichever rank, it is not an error, since a terminal that closes sends SIGHUP.
void check_output(const char *outcome);

#endif
