// --tune: a file of the fastest matmul algorithms.
#ifndef TRAINER_TUNING_H
#define TRAINER_TUNING_H

// (collective) Called around the planning of the layers. Rank 0 times the matmuls missing in the file, and
// all ranks use its choices, so that bits depend on the file and not on which rank measured.
char *tuning_begin(void);     // returns the file's text, for tuning_end
void tuning_end(char *text);  // adds the timings to the file; frees the text

#endif
