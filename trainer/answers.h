// A run of --prompts: the model answers, and nothing is trained. The prompts are divided among the ranks, and
// all rows of a rank are one batch, so that a layer that is gathered once serves them all.
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
    zero_file_info files_at_start;
} Answers;

// Reads the prompts, and settles what the model needs for them: the passes, their rows and the cache.
void answers_describe(Answers *a, GPT2 *model);

// Returns the rows of this rank. The clock starts.
Generation *answers_begin(Answers *a, const GPT2 *model);
void answers_passed(Answers *a);  // after each pass
// (collective) Prints the answers in the order of the prompts, and how fast they came. With -o they are in
// answers.jsonl, as token numbers, and the figures in inference.json.
void answers_end(Answers *a, const GPT2 *model);

void answers_free(Answers *a);

#endif
