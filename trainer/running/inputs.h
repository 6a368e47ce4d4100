// The inputs of a run: the model's sizes and initial values, the data, and the tokenizer for samples.
#ifndef TRAINER_INPUTS_H
#define TRAINER_INPUTS_H
#include "../../gpt2/dataloader.h"
#include "../../gpt2/hellaswag.h"
#include "../../gpt2/tokenizer.h"
#include "activations.h"

// Fills in a model's config, tensors, dtype, B, T and recompute, from the chosen checkpoint, or from -e if
// resume_step is -1.
void describe_model(GPT2 *model, int resume_step);

// Ends the run if an option's file is missing, and names the command that makes it, if one does.
void require_file(const char *option, const char *path);

// Ends the run if a model file differs from its checkpoint; prints a warning if that cannot be read.
void check_model_file(const char *option, const char *path);

// Passes the parameters of a new run to the plugin: those of -e, or llm.c's initialisation.
void load_values(const GPT2 *model);

// Opens --tokenizer's file, or by default the one next to `model` (a model file or a checkpoint; NULL: the
// run's), or else the usual one for V tokens. Returns its path, valid until the next call. If the default
// file does not exist, returns NULL and, unless `consequence` is NULL, prints it. vocab_size then stays 0, as
// with --tokenizer none.
const char *open_tokenizer(Tokenizer *tokenizer, int V, const char *model, const char *consequence);
#define AS_NUMBERS "tokens are shown as numbers"  // as in llm.c

// The data of a run, and its division into batches.
typedef struct TrainingData {
    DataLoader train, val;
    HellaSwag hellaswag;         // for -h 1
    Tokenizer tokenizer;         // for samples
    const char *tokenizer_file;  // NULL: none
    long long tokens_at_once;    // per micro-batch over all ranks
    int micro_batches;           // A, per step
    int steps;                   // of the whole run, including those before a checkpoint
    int val_batches;             // per validation
} TrainingData;

// Sets tokens_at_once and micro_batches from -d or, without it, from the checkpoint to resume.
void data_divide(TrainingData *d, GPT2 *model);
// Opens the data, after data_divide.
void data_open(TrainingData *d, const GPT2 *model);
// Rank 0 copies the tokenizer into -o, where runs that use the model will find it.
void data_keep_tokenizer(const TrainingData *d);
void data_close(TrainingData *d);

// Returns the text that zero_create compares between ranks: the options except those marked `own`, the model,
// and fingerprints of the data or the prompts. The caller frees it. A --prompts run has no shards open.
char *must_be_same(const GPT2 *model, int resume_step, const DataLoader *train, const DataLoader *val);

#endif
