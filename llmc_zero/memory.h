// The one named allocator: every byte has a class and a purpose.
#ifndef LLMC_ZERO_MEMORY_H
#define LLMC_ZERO_MEMORY_H
#include "device/device.h"
#include "zero.h"

// Which collectives read or write memory where it lies.
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
    device *mover;   // the same, with the allocator of the library that moves memory; NULL: none
    memory_block *blocks;
    zero_memory_line *lines;  // one a purpose, in the order of first use
    int n_lines;
} memory;

// Zeroed, page-aligned. NULL with ZERO_ERR_MEMORY's sentence: what was asked for and what is held.
void *memory_alloc(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// The same for memory that collectives move: from the mover, where there is one. moves: of memory_moves.
void *memory_alloc_moved(memory *m, zero_memory_class class_, const char *purpose, size_t bytes, int moves);
// The same of the host's memory, whatever the device.
void *memory_alloc_host(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// Books bytes that somebody else mapped (the shared window).
int memory_note(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
// The same for bytes of the device (what NCCL took).
int memory_note_device(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
void memory_free_all(memory *m);
size_t memory_bytes(const memory *m, zero_memory_class class_);

#endif
