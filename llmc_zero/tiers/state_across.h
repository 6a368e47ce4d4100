// With a CUDA device: model states that are used across the bus from where they are stored. A stream opens
// states in host memory or in files; the CPU opens states on the device. Each such user gets a copy, in a
// ring's memory or in memory that it passes itself (state_begin's `into`).
//
// Copies to the host are queued on stream DOWN and copies to the device on UP, so they overlap with the
// trainer's kernels and the collectives. Events order them: a copy waits for earlier work on the part, and
// later work waits for the copy. Each piece on the host has its own event, so that its next user, a copy or
// the CPU, waits only for the last copy of that piece.
#ifndef LLMC_ZERO_TIERS_STATE_ACROSS_H
#define LLMC_ZERO_TIERS_STATE_ACROSS_H
#include "state.h"
#include "../base/trace.h"

// The users of copies. Each is one thread.
typedef enum {
    RING_PROCESSOR,   // AdamW on the CPU: gradients and parameters on the device
    RING_REDUCTIONS,  // gradients leaving the device
    RING_UPDATE,      // AdamW on the device, for the states kept there
    RING_GATHERS,     // parameters for a gather, copied into its memory
    RINGS
} across_ring_name;

typedef struct {
    size_t bytes[RINGS], block_bytes[RINGS];  // block_bytes: the smallest size of a block
    int blocks[RINGS];
} across_plan;
// All 0 if no state crosses the bus. The CPU's ring is pinned host memory; the others are on the device.
across_plan state_plan_across(const zero_config *c, const layout *l);

struct state_across;
// Returns 0, or a negative error; call state_across_close in either case. m: allocates the tables. memory:
// the memory of each ring, in the planned size. tr: records the copies.
int state_across_open(struct state_across **a, const across_plan *plan, memory *m, char *const memory[RINGS],
                      device *d, trace *tr);
// Call it after the device has finished its work.
void state_across_close(struct state_across *a);

// Allows opening the state on both sides of the bus. Call it after state_keep_in_files and before
// state_create. away: the plan of its host memory, if any. a must outlive the state.
int state_go_across(state *s, const zero_config *c, struct state_across *a, memory *m,
                    const memory_request *away);
void state_stay(const state *s, device *d);  // destroys its events

// Bytes copied since the start.
void state_across_count(const struct state_across *a, int64_t *down, int64_t *up);

#endif
