// What a run says of itself from the first step to the end: lines or a bar on the screen, main.log and
// metrics.jsonl as it goes, the last line and summary.json.
#ifndef TRAINER_REPORT_H
#define TRAINER_REPORT_H
#include "../llmc_zero/zero.h"
#include "activations.h"

typedef struct {
    double loss;          // mean over the global batch
    double norm;          // of the gradients
    double zloss, znorm;  // how many deviations out they are; NaN at first
    float lr;             // learning rate
} StepResult;

enum { MOST_TIMES = 4096 };  // that the median is taken of

typedef struct {
    int steps;                    // of the whole run
    long long tokens_a_step;      // over all ranks
    int first_step;               // that this run makes
    double start_s;               // when it began
    int steps_run;                // so far
    double times[MOST_TIMES];     // seconds of the last steps
    double average_rate;          // tokens a second, exponential moving average
    double loss, norm, val_loss;  // the last ones; NaN before the first
    zero_traffic traffic_at_start;
    zero_file_info files_at_start;
} Report;

// (collective) Begins the report. Rank 0 decides between bar and lines; for a bar all ranks measure their
// peak.
void report_begin(Report *r, const GPT2 *model, int first_step, int steps, long long tokens_a_step);
void report_validation(Report *r, double loss);
void report_step(Report *r, const GPT2 *model, const StepResult *step, double seconds);
// (collective) The digests, the last line, and summary.json.
void report_end(Report *r, const GPT2 *model);
// Ends the run if a file that it writes at its end could not be made: that of --trace, summary.json and the
// like.
void try_outputs(void);
// The last lines of a run that a signal has stopped, and the command that goes on.
void report_stop(const Report *r, int argc, char **argv);
// Writes what --trace asks for. Each rank has a file of its own.
void write_trace(void);

#endif
