/* The one named allocator: every byte has a class and a purpose. */
#ifndef LLMC_ZERO_MEMORY_H
#define LLMC_ZERO_MEMORY_H
#include "device.h"
#include "zero.h"

typedef struct memory_block { void *base; size_t bytes; int line; device *owner; struct memory_block *next; } memory_block;
typedef struct {
    device *device;             /* where memory_alloc allocates */
    memory_block *blocks;
    zero_memory_line *lines;        /* one a purpose, in the order of first use */
    int n_lines;
} memory;

/* Zeroed, page-aligned. NULL with ZERO_ERR_MEMORY's sentence: what was asked for and what is held. */
void *memory_alloc(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
/* The same of the host's memory, whatever the device. */
void *memory_alloc_host(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
/* Books bytes that somebody else mapped (the shared window). */
int memory_note(memory *m, zero_memory_class class_, const char *purpose, size_t bytes);
void memory_free_all(memory *m);
size_t memory_bytes(const memory *m, zero_memory_class class_);

#endif
