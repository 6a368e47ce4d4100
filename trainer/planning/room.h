// Where a rank's memory is: the device, the host and files, and how much of each is available.
#ifndef TRAINER_ROOM_H
#define TRAINER_ROOM_H
#include <stddef.h>
#include "../../llmc_zero/zero.h"
#include "../running/activations.h"

enum { PLACES = ZERO_NVME + 1 };
typedef struct {
    size_t on[PLACES];  // indexed by zero_tier
} Bytes;

// Returns the bytes on a tier of some lines. Those of a plan leave out NCCL's device memory, which is unknown
// until NCCL connects.
size_t bytes_on(const zero_memory_line *lines, int n, zero_tier tier);
// Returns the bytes that this rank holds on a tier; 0 before the plugin exists.
size_t bytes_held_on(zero_tier tier);
// Returns 0 with the bytes still available for the plan and activations of a rank on the settings' device, or
// the plugin's error. SIZE_MAX: the machine of --machine has no such figure.
int memory_left(const GPT2 *model, const zero_config *config, size_t *left);
// The same on every tier, including what this rank holds already. SIZE_MAX: any amount, or not known.
int find_room(Bytes *room, const GPT2 *model, const zero_config *config);
// Returns the number of ranks that share the device; 1 on CPUs.
int ranks_on_device(void);
// Returns the memory on a CPU that a rank's process takes besides plan and activations, estimated: heap,
// libraries, MPI, code that oneDNN compiles and, under a limit on address space or data, stacks of threads.
size_t process_bytes(const GPT2 *model, const zero_config *config);
// Returns what this process will still take of it, which memory_left leaves to it.
size_t bytes_beside(const GPT2 *model, const zero_config *config);
// Call it before any thread exists. Keeps malloc from reserving 64 MiB of address space for each thread.
void use_one_arena(void);

// -------- the GPU of --machine

// Memory that neither the plugin nor the trainer allocates.
enum { CUDA_CONTEXT, NCCL_BUFFERS, ESTIMATES };
// Returns these bytes on each GPU: an estimate from the machine's figures; 0 without a GPU of --machine.
size_t bytes_estimated(int of);

#endif
