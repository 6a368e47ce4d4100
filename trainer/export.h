// --export: writes a model from any source as llm.c's file or as a Hugging Face folder. One process, no
// ranks, and memory that does not grow with the model.
#ifndef TRAINER_EXPORT_H
#define TRAINER_EXPORT_H

void export_model(void);

#endif
