// A run's reports: lines or a bar on the screen, main.log, metrics.jsonl and, at the end, summary.json.
#ifndef TRAINER_REPORT_H
#define TRAINER_REPORT_H
#include <stdio.h>
#include "../../llmc_zero/zero.h"
#include "activations.h"

typedef struct {
    double loss;          // mean over the global batch
    double norm;          // of the gradients
    double zloss, znorm;  // their z-scores; NaN until the window is full
    float lr;             // learning rate
} StepResult;

// The logs in the output folder: main.log, in llm.c's format, and metrics.jsonl. Each contains every step
// once.
//
// Returns 1 if -o has logs of an earlier run.
int logs_exist(void);
// A run that resumes at `step` removes the lines of later steps, because it will write them again. validates:
// 1 to remove the line of the validation at `step` too. step -1: removes the lines of all steps. Does nothing
// on ranks other than 0.
void logs_continue(int step, int validates);

enum { MOST_TIMES = 4096 };  // number of steps in the median

typedef struct {
    int steps;                    // of the whole run
    long long tokens_a_step;      // over all ranks
    int first_step;               // of this process
    double start_s;               // when it began
    int steps_run;                // so far
    int is_done;                  // 1: the files in -o stay unchanged
    double times[MOST_TIMES];     // seconds of the last steps
    double average_rate;          // tokens per second, exponential moving average
    double loss, norm, val_loss;  // the latest; NaN before the first
    zero_traffic traffic_at_start;
    zero_files files_at_start, files_at_end;  // of the steps; the caller sets the latter after the last one
} Report;

// Returns 1 on rank 0 if -o has the summary.json of a finished run.
int summary_exists(void);
// (collective) Begins the report. Rank 0 chooses between a bar and lines. For a bar, all ranks measure their
// peak FLOP/s. is_done: 1 if -o holds a finished run without a step left to do, whose files stay unchanged.
void report_begin(Report *r, const GPT2 *model, int first_step, int steps, long long tokens_a_step,
                  int is_done);
void report_validation(Report *r, double loss);
void report_hellaswag(const Report *r, int correct, int examples);
// (collective) Call it after the step, because with --hash-every it computes the digest of the parameters.
void report_step(Report *r, const GPT2 *model, const StepResult *step, double seconds);
// (collective) Prints the digests and the last lines, and writes summary.json unless is_done is set.
void report_end(Report *r, const GPT2 *model);
// Ends the run now if the file of --trace, which is written at its end, could not be created.
void try_outputs(void);
// Prints the last line of a run stopped by a signal or --stop-after.
void report_stop(const Report *r);

// Members of summary.json and inference.json: "ranks" to "device", and the bytes of a rank's memory.
void write_run(FILE *f, const GPT2 *model);
void write_memory(FILE *f);

#endif
