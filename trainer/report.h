// A run's reports: lines or a bar on the screen, main.log and metrics.jsonl during the run, the last line and
// summary.json.
#ifndef TRAINER_REPORT_H
#define TRAINER_REPORT_H
#include "../llmc_zero/zero.h"
#include "activations.h"

typedef struct {
    double loss;          // mean over the global batch
    double norm;          // of the gradients
    double zloss, znorm;  // by how many standard deviations they are off; NaN at first
    float lr;             // learning rate
} StepResult;

// main.log, in llm.c's format, and metrics.jsonl are in the output folder. Both have each step once.
//
// Returns 1 if -o has lines of an earlier run.
int logs_exist(void);
// Both are for rank 0, and do nothing on the others. A new run keeps existing logs, under other names.
void logs_begin(void);
// A run that resumes at `step` cuts the lines of later steps, which it writes again. validates: also that of
// the validation at `step`. keep: 1: keeps the old logs under other names.
void logs_continue(int step, int validates, int keep);

enum { MOST_TIMES = 4096 };  // steps that the median covers

typedef struct {
    int steps;                    // of the whole run
    long long tokens_a_step;      // over all ranks
    int first_step;               // of this run
    double start_s;               // when it began
    int steps_run;                // so far
    double times[MOST_TIMES];     // seconds of the last steps
    double average_rate;          // tokens per second, exponential moving average
    double loss, norm, val_loss;  // the last ones; NaN before the first
    zero_traffic traffic_at_start;
    zero_files files_at_start;
} Report;

// (collective) Begins the report. Rank 0 decides between bar and lines; for a bar all ranks measure their
// peak.
void report_begin(Report *r, const GPT2 *model, int first_step, int steps, long long tokens_a_step);
void report_validation(Report *r, double loss);
void report_step(Report *r, const GPT2 *model, const StepResult *step, double seconds);
// (collective) The digests, the last line, and summary.json.
void report_end(Report *r, const GPT2 *model);
// Ends the run if one of the files written at its end (--trace, summary.json and the like) could not be
// created.
void try_outputs(void);
// The last lines of a run stopped by a signal, and the command that resumes it.
void report_stop(const Report *r, int argc, char **argv);
// Writes the --trace files, one per rank.
void write_trace(void);

#endif
