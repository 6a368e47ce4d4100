// The only allocator: every byte has a class and a purpose, so that the memory table is complete.
#ifndef LLMC_ZERO_MEMORY_H
#define LLMC_ZERO_MEMORY_H
#include "device/device.h"
#include "zero.h"

// Which collectives read or write the memory in place.
typedef enum { MOVED_BY_NONE = 0, MOVED_BY_GATHERS = 1, MOVED_BY_REDUCTIONS = 2 } memory_moves;

typedef struct memory_block {
    void *base;
    size_t bytes;
    int line;
    device *owner;
    int moves;  // of memory_moves
    struct memory_block *next;
} memory_block;
typedef struct {
    device *device;  // where memory_alloc allocates
    device *mover;   // the same with the allocator of the library that moves memory (NCCL); NULL: none
    memory_block *blocks;
    zero_memory_line *lines;  // one for each purpose, in the order of first use
    int n_lines;
} memory;

// Returns zeroed, page-aligned memory, or NULL with a sentence that says what was asked for and what is held.
void *memory_alloc(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// The same for memory that collectives move, from the mover if there is one. moves: of memory_moves.
void *memory_alloc_moved(memory *m, zero_memory_class class_, const char *purpose, size_t bytes, int moves);
// The same for host memory, whatever the device.
void *memory_alloc_host(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// Adds bytes to the table that somebody else mapped (the shared window).
int memory_note(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// The same for device memory (what NCCL took).
int memory_note_device(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
void memory_free_all(memory *m);
size_t memory_bytes(const memory *m, zero_memory_class class_);

#endif
