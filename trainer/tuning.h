// --tune: a file of the fastest algorithms of matrix products.
#ifndef TRAINER_TUNING_H
#define TRAINER_TUNING_H

// (collective) Around the planning of the layers. Rank 0 times the products that the file lacks, and all
// ranks take its choices, so that bits depend on the file and not on who measured what.
char *tuning_begin(void);     // returns the file's text, for tuning_end
void tuning_end(char *text);  // adds what was timed to the file; frees the text

#endif
