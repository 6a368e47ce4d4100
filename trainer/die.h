// How the trainer ends when something fails: one message for the whole job, then all ranks end.
#ifndef TRAINER_DIE_H
#define TRAINER_DIE_H
#include <stddef.h>
#include "run.h"

// Prints "train_gpt2_zero: " and the sentence to stderr, on one rank of the job, and ends all ranks.
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
// The same with the plugin's sentence, the options concerned, and more.
void die_of_plugin(const zero_failure *f, const char *more) __attribute__((noreturn));

// The command line's -pr shows that this is not rank 0, so it does not report wrong options.
void die_silently_before_create(void);

void zero_check(int rc);  // a call of the plugin must have returned 0
void gpt2_check(int rc);  // the same for gpt2/
void *not_null(void *p);  // the plugin must have returned a pointer
void *malloc_check(size_t bytes);

// Calls a layer on the run's device: LAYER(gelu_forward(...)).
#define LAYER(call) gpt2_check(run.layers->call)

#endif
