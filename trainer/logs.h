// main.log, in llm.c's format, and metrics.jsonl, in the output folder. Both have each step once.
#ifndef TRAINER_LOGS_H
#define TRAINER_LOGS_H

#define MAIN_LOG "main.log"
#define METRICS "metrics.jsonl"

// Returns 1 if -o has lines of an earlier run.
int logs_exist(void);

// Both are for rank 0, and do nothing on the others. A new run keeps existing logs, under other names.
void logs_begin(void);
// A run that resumes at `step` cuts the lines of later steps, which it writes again. validates: also that of
// the validation at `step`. keep: 1: keeps the old logs under other names.
void logs_continue(int step, int validates, int keep);

// Adds a line to one of them on rank 0, if there is a folder.
void log_line(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
