#ifndef LLMC_ZERO_BASE_TURNS_H
#define LLMC_ZERO_BASE_TURNS_H

// Asks for short turns for this thread, which moves data and mostly waits. When data arrives on a core that
// computes, it goes on at once, not after the other thread's turn of 3 ms. Linux since 6.12.
void turns_short(void);

#endif
