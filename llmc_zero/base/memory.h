// The only allocator. Every byte has a class and a purpose, so the memory table is complete.
#ifndef LLMC_ZERO_BASE_MEMORY_H
#define LLMC_ZERO_BASE_MEMORY_H
#include "../device/device.h"
#include "../zero.h"

// An allocation request. The plugin's requests are in its plan (plan.h).
typedef struct {
    zero_memory_class class_;
    const char *purpose;
    zero_tier tier;  // ZERO_HOST: host memory when the device is a GPU
    size_t bytes;
    int blocks;    // in a plan: number of allocations of this size; 0: none
    int moved_by;  // of zero_movers
} memory_request;

typedef struct memory_block {
    void *base;
    size_t bytes;
    int line;       // index in memory.lines
    device *owner;  // NULL: it is part of the reserved memory, or allocated elsewhere
    int moved_by;   // of zero_movers
    int pinned;     // 1: pinned for the memory's device
    struct memory_block *next;
} memory_block;
typedef struct {
    device *device;  // where memory_alloc allocates
    device *mover;  // the same device with NCCL's allocator, for memory that NCCL reads or writes; NULL: none
    char *reserved;  // memory_reserve; NULL: none
    size_t reserved_bytes, taken_bytes;
    memory_block *blocks;
    zero_memory_line *lines;  // one per class, tier and purpose, in the order of first use
    int n_lines;
    struct memory_array *tables;
    int disk_hangs;  // 1: a hung disk may still access host memory, so it is never released
} memory;

// Rounds a request up to whole pages, at least one.
size_t memory_whole_pages(size_t bytes);
// On a CPU, allocates the memory of the next requests in one piece, so that small blocks share large pages.
int memory_reserve(memory *m, size_t bytes);
// Returns zeroed, page-aligned memory, or NULL with ZERO_ERR_MEMORY and a message that names the request and
// the memory in use. Memory that collectives read or write is allocated by the mover, if one is set.
void *memory_alloc(memory *m, const memory_request *r);
// Returns host memory that is pinned for the device.
void *memory_alloc_pinned(memory *m, const memory_request *r);
// Records memory that is allocated elsewhere: the shared window, NCCL's memory, files and their tables.
int memory_note(memory *m, const memory_request *r);
// Returns n zeroed elements outside the memory table, for memory_free_all to free. NULL: failed, error set.
void *memory_array(memory *m, size_t n, size_t elem_bytes);
void memory_free_all(memory *m);
// Returns the line with the request's class, purpose and tier, or NULL.
zero_memory_line *memory_find_line(zero_memory_line *lines, int n, const memory_request *r);
size_t memory_bytes(const memory *m, zero_memory_class class_);

#endif
