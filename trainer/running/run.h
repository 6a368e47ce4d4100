// The run that this process takes part in: values that any file of the trainer may need, and how a failure
// ends the run. The function in parentheses sets the member.
#ifndef TRAINER_RUN_H
#define TRAINER_RUN_H
#include <stdio.h>
#include "../../gpt2/layers.h"     // Layers, layers_cpu
#include "../../llmc_zero/zero.h"  // zero

struct GPT2;

typedef struct {
    zero *z;            // the plugin, which holds the parameters; NULL before create_plugin
    int creating;       // 1: zero_create was called, so ranks learn of each other's failures (create_plugin)
    int rank, ranks;    // this process's rank, and the number of ranks (take_launched_ranks, settle_ranks)
    int ranks_on_host;  // from the launcher or -pg (take_launched_ranks, settle_ranks)
    void (*describe)(struct GPT2 *model);  // fills model->tables, which free_tables frees (main)
    // options_of_settings, for the plugin's errors (parse_options)
    void (*name_options)(const char *settings, char *options, size_t size);
    const Layers *layers;         // for the device in use (settle_device)
    const zero_machine *machine;  // not NULL: in virtual time (settle_device)
    int threads;                  // OpenMP threads of this rank (settle_machine)
    int overlap;        // 1: collectives run concurrently with the layers (settle_overlap, plugin_settings)
    int step;           // the current step, from 0; -1 before the first
    int saving;         // the step whose checkpoint is being written; -1: none (write_checkpoint)
    int output_error;   // errno of the first failed write to stdout; 0: none (print0)
    double peak_flops;  // operations per second of all ranks; 0 unless rank 0 shows a bar (report_begin)
} Run;

extern Run run;

static inline int on_cuda(void) { return *run.layers->device == 'c' && run.layers->device[1] == 'u'; }
static inline double mib(double bytes) { return bytes / (1 << 20); }

// Opens /dev/null as standard input, output and error where these are closed. The program calls it first.
void replace_closed_descriptors(void);

double now(void);  // seconds, on a monotonic clock

// Prints on rank 0 only, above the bar if there is one. check_output (signals.h) reports a failed write at
// the end of the run.
void print0(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// Prints a line to stderr on rank 0 only: stdout may have answers that another program reads.
void note0(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Text composed in memory: text_begin(&t), fprintf(t.f, ...), text_end(&t). Ends the run if memory is short.
typedef struct {
    FILE *f;
    char *text;
    size_t bytes;
} Text;
void text_begin(Text *t);
char *text_end(Text *t);  // the caller frees it
// Writes a text as JSON, in quotes.
void write_json_text(FILE *f, const char *text);

// -------- a failure ends the run: one message for the whole job, then all ranks end

// Prints "train_gpt2_zero: " and the message to stderr, on one rank of the job, and ends all ranks.
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
// Like die, with the plugin's error, the options concerned, and `more`.
void die_of_plugin(const zero_failure *f, const char *more) __attribute__((noreturn));

// Each ends the run with the last error if rc is not 0.
void zero_check(int rc);  // of the plugin
void gpt2_check(int rc);  // of gpt2/
void *malloc_check(size_t bytes);

// Calls a layer on the run's device: LAYER(gelu_forward(...)).
#define LAYER(call) gpt2_check(run.layers->call)

#endif
