// What a run begins with: the model's sizes, its first values, its data, the tokenizer of its samples.
#ifndef TRAINER_INPUTS_H
#define TRAINER_INPUTS_H
#include "../gpt2/dataloader.h"
#include "../gpt2/tokenizer.h"
#include "activations.h"

// Returns the path to open the model file by that -e names. One that was found in the folder of a run stays
// open for that, since the run may remove it.
const char *model_path(void);

// Fills config, tensors, dtype, B, T and the -r of a model, from the checkpoint of this step if it is not -1,
// else as -e says.
void describe_model(GPT2 *model, int resume_step);

// Gives the plugin the parameters of a run that does not resume: of what -e names, or llm.c's first values.
void load_values(const GPT2 *model);

// Returns the path of the tokenizer that goes with a vocabulary of V tokens.
const char *usual_tokenizer(int V);
// Opens the tokenizer that was asked for, else the one that goes with the vocabulary of V tokens. Where that
// one is not there, or --tokenizer is none, vocab_size stays 0 and tokens are numbers, as in llm.c.
void open_tokenizer(Tokenizer *tokenizer, int V);

// What a run trains on, and how it is divided.
typedef struct {
    DataLoader train, val;
    Tokenizer tokenizer;       // of the samples
    long long tokens_at_once;  // of a micro-batch over all ranks
    int micro_batches;         // A, of a step
    int steps;                 // of the whole run, those before a checkpoint included
    int val_batches;           // of a validation
} TrainingData;

// Sets tokens_at_once and micro_batches: as -d says, or without it as the checkpoint that is resumed does.
void data_divide(TrainingData *d, const GPT2 *model);
// Opens the rest, after data_divide.
void data_open(TrainingData *d, const GPT2 *model);
void data_close(TrainingData *d);

#endif
