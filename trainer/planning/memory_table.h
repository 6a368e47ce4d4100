// Prints a rank's memory as a table: the actual memory of a run, or the planned memory.
#ifndef TRAINER_MEMORY_TABLE_H
#define TRAINER_MEMORY_TABLE_H
#include "../running/activations.h"
#include "room.h"

enum { MOST_LINES = ZERO_PLAN_LINES + 5 };  // the plugin's, four for activations, one for CUDA's context
typedef struct {
    zero_memory_line lines[MOST_LINES];
    int n;
} MemoryTable;

// Returns the lines that a run with this plan would print. On a GPU of --machine also those of memory that a
// run finds taken: they are estimates, and their names say so.
MemoryTable table_of_plan(const GPT2 *model, const zero_plan *plan);
// Prints the table, with the plan's formula next to the sum of the model states.
void print_table(const MemoryTable *t, const zero_plan *plan);
// Writes the lines as a JSON array.
void write_table(FILE *f, const MemoryTable *t);
// Prints the memory that this rank holds.
void print_memory(void);

#endif
