// A --prompts run: the model answers, without training. The prompts are divided among the ranks, and all rows
// of a rank are one batch, so that gathering a layer once serves them all.
#ifndef TRAINER_ANSWERS_H
#define TRAINER_ANSWERS_H
// defines: zero_traffic
#include "../llmc_zero/zero.h"
#include "activations.h"
#include "generate.h"
#include "prompts.h"

typedef struct {
    Tokenizer tokenizer;
    Prompts prompts;
    Generation generation;  // of this rank's rows
    int passes;
    double start_s, prefilled_s;  // when the first pass began and ended
    zero_traffic traffic_at_start;
    zero_files files_at_start;
} Answers;

// Reads the prompts, and sizes the model for them: the passes, their rows and the cache.
void answers_describe(Answers *a, GPT2 *model);

// Returns this rank's rows, and starts the clock.
Generation *answers_begin(Answers *a, const GPT2 *model);
void answers_passed(Answers *a);  // after each pass
// (collective) Prints the answers in the order of the prompts, and their speed. With -o, answers.jsonl has
// them as token numbers, and inference.json the speed.
void answers_end(Answers *a, const GPT2 *model);

void answers_free(Answers *a);

#endif
