// The memory that the collectives need, computed only from the settings.
#include "../base/error.h"
#include "staging.h"

enum { MOST_NCCL_STAGING = 256 << 20 };  // total for all ranks, unless window_bytes is set
enum { PAGE = 4096, PER_RANK = 2 * STAMP_BYTES };

static size_t staging_bytes(const zero_config *c) {
    return c->comm.window_bytes ? (size_t)c->comm.window_bytes : 4 << 20;
}

// A reduction that needs more is done in rounds.
static size_t nccl_slot_bytes(const zero_config *c, int slots, size_t reduced_bytes) {
    size_t most = MOST_NCCL_STAGING / slots, wanted = reduced_bytes < most ? reduced_bytes : most;
    if (c->comm.window_bytes) wanted = (size_t)c->comm.window_bytes;
    return (wanted + 511) / 512 * 512;
}

static memory_request working(const char *purpose, zero_tier tier, size_t bytes, int blocks) {
    return (memory_request){ ZERO_WORKING, purpose, tier, bytes, blocks, ZERO_MOVED_BY_NONE };
}

// Each rank's part of half the staging must hold two stamps.
static int fail_too_small(const zero_config *c, int ranks) {
    enum { MOST = 8 << 20 };
    const int64_t least = ((int64_t)PER_RANK * ranks + PAGE - 1) / PAGE * PAGE;
    if (least > MOST)
        return zero_refuse("comm.window_bytes", " of at most %d bytes serves at most %d ranks, not %d",
                           2 * MOST, MOST / PER_RANK, ranks);
    return zero_refuse("comm.window_bytes", " %lld is too small for %d ranks: it must be at least %lld",
                       (long long)staging_bytes(c), ranks, 2 * (long long)least);
}

comm_way comm_way_asked(const zero_config *c, int ranks, int on_node) {
    const int cuda = c->device == ZERO_CUDA;
    const int is_subtree = on_node > 1 && !(on_node & (on_node - 1)) && ranks % on_node == 0;
    const int shares = c->comm.shared_window && (on_node == ranks || (is_subtree && !cuda));
    const int near = is_subtree && !c->comm.reduce_nccl ? on_node : ranks;
    return (comm_way){ ranks, shares ? on_node : 0, cuda && c->comm.nccl ? near : 0 };
}

// Whether the hosts' borders are those of the groups must not depend on the rank, because all ranks of a host
// meet in its window.
comm_route comm_route_of(int window, int rank, net_group of) {
    const int L = window ? window : 1, span = of.ranks * of.step, n = L / of.step;
    const net_group alone = { 0, 1, rank, 1 };
    if (L % span == 0) return (comm_route){ alone, of };
    if (span % L || L % of.step) return (comm_route){ of, alone };
    return (comm_route){ { of.rank / n, of.ranks / n, of.first + of.rank % n * of.step, L },
                         { of.rank % n, n, rank / L * L + rank % of.step, of.step } };
}

int64_t comm_reduction_bytes(const comm_way *way, int64_t elems, int elem_bytes) {
    const int hosts = comm_hosts(way);
    return elems * ((way->ranks - hosts) * elem_bytes + (hosts - 1) * (int)sizeof(float));
}

int comm_plan(memory_request planned[COMM_MEMORIES], const zero_config *c, const comm_way *way,
              size_t reduced_bytes) {
    for (int i = 0; i < COMM_MEMORIES; i++) planned[i] = (memory_request){ .blocks = 0 };
    if (way->ranks == 1) return 0;
    const int cuda = c->device == ZERO_CUDA, ranks = way->ranks, slots = comm_slots(way);
    const zero_tier host = cuda ? ZERO_HOST : ZERO_DEVICE;
    const size_t half = staging_bytes(c) / 2 / PAGE * PAGE, part = comm_part(half, ranks);
    if (part < PER_RANK) return fail_too_small(c, ranks);
    // Plans both, because messages replace the window if it cannot be created.
    planned[COMM_WINDOW] = working("shared window", host, 2 * half, way->window ? 1 : 0);
    planned[COMM_MESSAGES] = working("message staging", host, half, way->window == ranks ? 0 : 2);
    if (way->nccl) planned[COMM_NCCL] = working("NCCL (measured)", ZERO_DEVICE, 0, 1);
    if (!cuda || (way->nccl && c->comm.reduce_nccl)) return 0;
    const size_t bytes = way->nccl ? slots * nccl_slot_bytes(c, slots, reduced_bytes) : ranks * part;
    planned[COMM_INCOMING] = working("bytes of other ranks", ZERO_DEVICE, bytes, 1);
    if (way->nccl) planned[COMM_INCOMING].moved_by = ZERO_MOVED_BY_REDUCTIONS;
    return 0;
}
