// Beside a CUDA device: model states that are used on the other side of the bus from where they lie. A stream
// opens what lies in host memory or in files, and the processor what lies on the device: each gets a copy, in
// memory of a ring or where it asks for it (state_begin's `into`).
//
// Copies to the host are queued on stream DOWN and copies to the device on UP, beside the trainer's kernels
// and the collectives. Events order them: a copy waits for the work that has used the part, and that work for
// the copy. Pieces on the host have events of their own, since copies and the processor take turns on them:
// what comes next waits for the last copy of the same piece, and for no other.
#ifndef LLMC_ZERO_STATE_ACROSS_H
#define LLMC_ZERO_STATE_ACROSS_H
#include "state.h"
#include "state_host.h"
#include "trace.h"

// Who opens what lies on the other side, one thread each.
typedef enum {
    RING_PROCESSOR,   // the processor's AdamW: gradients and parameters that lie on the device
    RING_REDUCTIONS,  // gradients that leave the device
    RING_UPDATE,      // the device's AdamW on the part of the states that stays there
    RING_GATHERS,     // parameters on their way to a gather: into its memory
    RINGS
} across_ring_name;

typedef struct {
    size_t bytes[RINGS], block_bytes[RINGS];  // block_bytes: the least that a block takes
    int blocks[RINGS];
} across_plan;
// All 0 where nothing crosses. The processor's ring is pinned host memory, the others are the device's.
across_plan state_plan_across(const zero_config *c, const layout *l);
int state_goes_across(const zero_config *c);  // 1: some state does

struct state_across;
// Returns 0, or a negative error with the sentence set; in either case *a is to be closed. memory: each
// ring's, of the planned size. tr: gets the copies.
int state_across_open(struct state_across **a, const across_plan *plan, char *const memory[RINGS], device *d,
                      trace *tr);
// After the device has done all its work.
void state_across_close(struct state_across *a);

// From now on the state may be opened on both sides. `home` is the store that it would have without; its host
// memory, if it takes some, is planned as `away`. Before it is created. a must outlive it.
int state_go_across(state *s, zero_value what, const zero_config *c, struct state_across *a,
                    const state_store *home, memory *m, const memory_request *away);
void state_stay(state *s, device *d);  // frees what state_go_across has made

// Bytes copied since the start.
void state_across_count(const struct state_across *a, int64_t *down, int64_t *up);

#endif
