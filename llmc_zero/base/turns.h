#ifndef LLMC_ZERO_BASE_TURNS_H
#define LLMC_ZERO_BASE_TURNS_H

// Asks for short turns on a core for this thread, which moves data and mostly waits: when data arrives, it
// goes on at once, and not after the turn (3 ms) of a thread that computes there. Works on Linux since 6.12.
void turns_short(void);

#endif
