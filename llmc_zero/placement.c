#include "placement.h"

zero_tier placement_tier(zero_value what, const zero_config *c) {
    zero_tier tier = c->offload.optimizer;
    if (what == ZERO_PARAM) tier = c->offload.params;
    if (what == ZERO_GRADIENT) tier = c->offload.gradients;
    return tier == ZERO_HOST && c->device == ZERO_CPU ? ZERO_DEVICE : tier;
}

int placement_in_files(zero_value what, const zero_config *c) { return placement_tier(what, c) == ZERO_NVME; }

int placement_crosses(const zero_config *c) {
    return c->device == ZERO_CUDA && (placement_tier(ZERO_PARAM, c) || placement_tier(ZERO_MOMENT1, c));
}

// The first units that fit into params_in_host stay in memory. The choice hardly matters, because a step
// reads nearly all units equally often.
static int stays_in_host(const zero_config *c, const layout *l, int unit) {
    int64_t left = c->offload.params_in_host;
    for (int u = 0; u < unit; u++)
        if (l->units[u].shard <= left) left -= l->units[u].shard;
    return l->units[unit].shard <= left;
}

int64_t placement_away(zero_value what, const zero_config *c, const layout *l, int rank, int unit) {
    int64_t shard = l->units[unit].shard, before = layout_before(&l->units[unit], rank);
    if (!placement_tier(what, c)) return 0;
    if (what == ZERO_PARAM) return placement_in_files(what, c) && stays_in_host(c, l, unit) ? 0 : shard;
    if (what == ZERO_GRADIENT || c->offload.optimizer_ratio >= 1) return shard;
    int64_t end = round_down(before + (int64_t)(c->offload.optimizer_ratio * shard), PAGE_ELEMS);
    return end > before ? end - before : 0;
}

int placement_has_next(const zero_config *c, const layout *l, int rank, int unit) {
    const int in_files = placement_in_files(ZERO_PARAM, c) &&
                         placement_away(ZERO_PARAM, c, l, rank, unit) > 0;
    return in_files && c->offload.delayed_update && unit < l->n_units;
}

// With inference only parameters exist.
int64_t placement_largest_part(const zero_config *c, const layout *l) {
    return placement_tier(ZERO_PARAM, c) || c->inference ? l->largest_stored_shard : l->largest_shard;
}

int64_t placement_piece_elems(const zero_config *c, const layout *l) {
    int64_t most = round_up(placement_largest_part(c, l), PAGE_ELEMS);
    return c->offload.sub_group_size < most ? round_up(c->offload.sub_group_size, PAGE_ELEMS) : most;
}

int64_t placement_piece_end(const zero_config *c, const layout *l, int rank, int unit, int64_t from) {
    const layout_unit *u = &l->units[unit];
    if (!placement_tier(ZERO_MOMENT1, c) && !placement_tier(ZERO_PARAM, c)) return u->shard;
    int64_t end = placement_cut(layout_before(u, rank), from, u->shard, placement_piece_elems(c, l));
    int64_t away = placement_away(ZERO_MOMENT1, c, l, rank, unit);
    return from < away && away < end ? away : end;
}
