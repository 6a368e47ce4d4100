// The keys of DeepSpeed's schedulers, which set the trainer's learning-rate schedule.
#ifndef LLMC_ZERO_SETTINGS_SCHEDULER_H
#define LLMC_ZERO_SETTINGS_SCHEDULER_H
#include "notes.h"

// Setters of scheduler.type and optimizer.params.lr.
void scheduler_set(reader *r, const json_t *v, double x);
void scheduler_or_lr(reader *r, const json_t *v, double x);
// Returns 1 if the file has a scheduler whose parameters can be applied.
int scheduler_is_known(const reader *r);

#endif
