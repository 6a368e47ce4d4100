// --export: a model, from wherever it is, as llm.c's file or as a folder of Hugging Face's. One process, no
// ranks, and memory that does not grow with the model.
#ifndef TRAINER_EXPORT_H
#define TRAINER_EXPORT_H

void export_model(void);

#endif
