// The time of a step on the machine of --machine: what the trainer's own step took in virtual time.
#ifndef TRAINER_STEP_TIME_H
#define TRAINER_STEP_TIME_H
#include "../../llmc_zero/zero.h"
#include "../running/activations.h"

typedef struct {
    double seconds;
    double busy[ZERO_TIMES];  // of each kind of operation, whether hidden or not
} StepTime;
StepTime time_now(void);  // since the plugin's creation
StepTime time_between(const StepTime *from, const StepTime *to);

// Ways on which a step can wait.
enum { NETWORK, BUS, DISK, LINKS };
typedef struct {
    StepTime is;
    double without[LINKS];  // seconds, if that way took no time
} StepTimes;
// Returns the machine of --machine, on which this way takes no time.
zero_machine machine_without(int link);

// Parts of the step: in which the link is busy, and by which it would be shorter if the link took no time.
double share_busy(const StepTimes *times, int link);
double share_exposed(const StepTimes *times, int link);
// Returns the model's arithmetic as a part of the data sheet's peak rate; 0: not known.
double share_of_peak(const GPT2 *model, double tokens, const StepTimes *times);

void print_times(const GPT2 *model, double tokens, const StepTimes *times);

#endif
