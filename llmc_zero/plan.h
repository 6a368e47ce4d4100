// Every allocation of a rank and every byte that it sends, computed from the settings and the layout alone,
// for any number of ranks. zero_create allocates from this plan, so the two cannot differ.
#ifndef LLMC_ZERO_PLAN_H
#define LLMC_ZERO_PLAN_H
#include "comm/comm.h"
#include "device/kernels.h"
#include "layout.h"
#include "placement.h"
#include "base/memory.h"
#include "tiers/state_across.h"
#include "tiers/state_file.h"
#include "zero.h"

// What the ranks share for the norm: the words of its sum, and a zero_hyper, as fp64 values.
enum { HYPER_VALUES = 7, NORM_VALUES = EXACT_WORDS + HYPER_VALUES };

// The allocations, in order of creation. The collectives' memory (comm_memory) comes first, except NCCL's,
// which is last. The rings' memory, from PLAN_PINNED on, is in the order of across_ring_name.
typedef enum {
    PLAN_TRACE,
    PLAN_VALUES,        // staging of zero_set, zero_get and files; scalars of the norm
    PLAN_FILE_BUFFERS,  // for reading and writing files
    PLAN_FILE_TABLES,   // of the file engine
    PLAN_PINNED,        // states on the device that the CPU updates
    PLAN_COPIES,        // states on the host that streams use
    PLAN_COPIES_UPDATE,
    PLAN_PARAMETERS,
    PLAN_SHARED_SLOTS,  // stage 3: a block for each unit used more than once; see plan_for_unit
    PLAN_SLOTS,
    PLAN_SAVE_COPY,  // async_save: the contents of this rank's checkpoint file
    PLAN_GRADIENTS,
    PLAN_BUCKETS,
    PLAN_SHARED_BUCKETS,  // see PLAN_SHARED_SLOTS
    PLAN_MICRO,           // accumulate_layers: the gradient of one micro-batch of the open unit
    PLAN_PARTIALS,        // accumulate_layers: sums of 1, 2, 4 .. micro-batches of the open unit
    PLAN_EARLIER,         // accumulate_layers: the means of earlier uses; see PLAN_SHARED_SLOTS
    PLAN_WIRE,
    PLAN_CLEARED,
    PLAN_MASTERS,
    PLAN_MOMENT1,
    PLAN_MOMENT2,
    PLAN_NORM,
    PLAN_UPDATE,
    PLAN_UPDATE_HOST,  // the same tables for AdamW on the CPU when the device is a GPU
    PLAN_UPDATE_ROOM,  // gradients for update_with on a GPU
    PLAN_ITEMS
} plan_item;
plan_item plan_item_of_state(zero_value what);

// The rank that a plan is for.
typedef struct {
    int rank;
    int ranks_on_node;
    comm_way way;
} plan_rank;

typedef struct {
    plan_rank of;
    memory_request comm[COMM_MEMORIES];
    memory_request own[PLAN_ITEMS];   // bytes: of one block, except for plan_for_unit
    memory_request away[STATES];      // states in files or, with a GPU, in host memory
    across_plan across;               // how PLAN_PINNED, PLAN_COPIES and PLAN_COPIES_UPDATE are used
    int64_t file_read, file_written;  // by a training step
    int64_t copied_down, copied_up;   // across the bus
    zero_traffic to_each;  // bytes sent to each other rank by a training step and by an evaluation; gathers:
                           // within param_group
    int64_t spread;  // bytes that a step gathers between the ranks that keep the same parameters, or sums
} plan;

// -------- facts that depend only on the settings

// How often a step passes all units.
static inline int plan_passes(const zero_config *c) { return c->accumulate_layers ? 1 : c->micro_batches; }
// Sums over micro-batches: by passes in the state, or by layers in the buckets, before the reduction.
static inline int plan_sums(const zero_config *c) { return plan_passes(c) > 1; }
static inline int plan_sums_in_buckets(const zero_config *c) {
    return c->accumulate_layers && c->micro_batches > 1;
}
// Stages 2 and 3 keep only shards of gradients, and a sum over micro-batches is separate from this
// micro-batch's gradients. By layers, each use of a unit is reduced separately.
static inline int plan_uses_buckets(const zero_config *c) {
    return c->stage >= 2 || plan_sums(c) || c->accumulate_layers;
}
// Stages 0 and 1 reduce the state in place, unless each use is reduced separately.
static inline int plan_reduces_in_place(const zero_config *c) {
    return c->stage < 2 && !c->accumulate_layers;
}
// The dtype of the gradients that are reduced: that of the sum if they are added up before.
static inline zero_dtype plan_reduced_type(const zero_config *c) {
    return (c->stage < 2 && plan_sums(c)) || plan_sums_in_buckets(c) ? ZERO_F32 : c->numbers.dtype;
}
// The dtype of the buckets. At stages 0 and 1 they hold one micro-batch, which is added to the state.
static inline zero_dtype plan_bucket_type(const zero_config *c) {
    return plan_sums_in_buckets(c) ? ZERO_F32 : c->numbers.dtype;
}
// How many partial sums a binary tree over the micro-batches needs at once, the result included.
static inline int plan_partial_sums(const zero_config *c) {
    int n = 0;
    while (plan_sums_in_buckets(c) && n < 31 && 1u << n < (unsigned)c->micro_batches) n++;
    return n;
}
// The dtype in which gradients are sent.
static inline zero_dtype plan_wire_type(const zero_config *c) {
    return c->comm.reduce_fp32 ? ZERO_F32 : plan_reduced_type(c);
}

// -------- the pieces of the update

// Return the first piece of this rank's part of a unit, and the piece after `r`. elems is 0 if there is none.
// At stage 0 each rank updates whole units. If all states are in memory, a piece is a whole part.
state_range plan_first_piece(const zero_config *c, const layout *l, int rank, int unit);
state_range plan_next_piece(const zero_config *c, const layout *l, int rank, state_range r);
typedef struct {
    int64_t pieces, segments;  // of all units; a segment is the part of one tensor in one piece
} plan_pieces;
plan_pieces plan_count_pieces(const zero_config *c, const layout *l, int rank);

// -------- the plan

// Returns 0, or ZERO_ERR_ARGUMENT if the staging is too small for the ranks.
int plan_make(plan *p, const zero_config *c, const layout *l, const plan_rank *of);

// Returns the memory of all items on a CPU, without the file engine's tables, which it allocates itself.
size_t plan_own_bytes(const plan *p, const zero_config *c, const layout *l);
// Returns the request for a shared unit's block of PLAN_SHARED_SLOTS, PLAN_SHARED_BUCKETS or PLAN_EARLIER.
memory_request plan_for_unit(const plan *p, plan_item item, const zero_config *c, const layout *l, int unit);

// assumed: 1 if nothing in the plan is allocated yet (zero_memory_line.assumed).
void plan_describe(const plan *p, const zero_config *c, const layout *l, int assumed, zero_plan *info);

#endif
