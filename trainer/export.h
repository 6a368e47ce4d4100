// --export: a model, from wherever it is, as llm.c's file or as a folder of Hugging Face's. One process, no
// ranks, and memory that does not grow with the model.
#ifndef TRAINER_EXPORT_H
#define TRAINER_EXPORT_H
#include "activations.h"

// Finds what --export names and fills the model's configuration and table of tensors.
void export_find(GPT2 *model);
// Writes it, once the model is described to the plugin.
void export_write(const GPT2 *model);

#endif
