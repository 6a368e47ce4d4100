#include "plan.h"
#include "base/error.h"
#include "settings/settings.h"
#include <string.h>

// -------- memory

static memory_request request(zero_memory_class class_, const char *purpose, size_t bytes, int moved_by) {
    return (memory_request){ class_, purpose, ZERO_DEVICE, bytes, 1, moved_by };
}

// A request for host memory, which without a GPU is the device's memory.
static memory_request on_host(const zero_config *c, const char *purpose, size_t bytes) {
    memory_request r = request(ZERO_WORKING, purpose, bytes, ZERO_MOVED_BY_NONE);
    if (c->device == ZERO_CUDA) r.tier = ZERO_HOST;
    return r;
}

static int64_t largest_unit(const layout *l) { return l->largest_shard * l->ranks; }

// A shared unit is alone in its bucket.
static int64_t largest_reduction(const layout *l) {
    const int64_t unit = largest_unit(l);
    return unit > l->largest_bucket ? unit : l->largest_bucket;
}

static int units_used_twice(const layout *l) {
    int n = 0;
    for (int i = 0; i < l->n_units; i++) n += l->units[i].shared;
    return n;
}

static int units_reduced_twice(const layout *l) {
    int n = 0;
    for (int i = 0; i < l->n_units; i++) n += l->units[i].backward_uses > 1 && l->units[i].padded > 0;
    return n;
}

static int shared_buckets(const layout *l) {
    int n = 0;
    for (int i = 0; i < l->n_buckets; i++) n += l->buckets[i].shared;
    return n;
}

static void plan_host_memory(plan *p, const zero_config *c, const layout *l) {
    size_t values = VALUES_CHUNK * sizeof(float), low = VALUES_CHUNK * sizeof(uint16_t);
    size_t staging = c->device == ZERO_CUDA ? values : 0;
    size_t norms = c->inference ? 0 : (size_t)(l->ranks + 1) * NORM_VALUES * sizeof(double);
    p->own[PLAN_VALUES] = on_host(c, "values in and out", values + low + staging + norms);
    if (c->debug.trace_events)
        p->own[PLAN_TRACE] = on_host(c, "trace", c->debug.trace_events * sizeof(trace_event));
}

plan_item plan_item_of_state(zero_value what) {
    static const plan_item items[STATES] = {
        [ZERO_PARAM] = PLAN_PARAMETERS, [ZERO_MASTER] = PLAN_MASTERS,     [ZERO_MOMENT1] = PLAN_MOMENT1,
        [ZERO_MOMENT2] = PLAN_MOMENT2,  [ZERO_GRADIENT] = PLAN_GRADIENTS,
    };
    return items[what];
}

static void plan_state(plan *p, const zero_config *c, const layout *l, zero_value what, int moved_by) {
    state s = state_of(what, c, l, p->of.rank, NULL);
    memory_request *r = &p->own[plan_item_of_state(what)];
    size_t away = 0;
    for (int u = 0; s.kept && u < state_units(&s); u++)
        away += placement_away(what, c, l, p->of.rank, u) * state_parts(&s) * dtype_bytes(s.dtype);
    *r = request(ZERO_STATES, s.name, state_bytes(&s) - away, moved_by);
    r->blocks = s.kept && r->bytes;
    if (c->device == ZERO_CUDA && what == ZERO_PARAM && placement_in_files(what, c)) {  // params_in_host
        r->tier = ZERO_HOST;
        r->moved_by = ZERO_MOVED_BY_NONE;
    }
    if (away && !placement_in_files(what, c))
        p->away[what] = (memory_request){ ZERO_STATES, s.name, ZERO_HOST, away, 1, ZERO_MOVED_BY_NONE };
}

// Stages 1 and 2 gather parameters in place; stage 3 sends its shards.
static void plan_parameters(plan *p, const zero_config *c, const layout *l) {
    const size_t size = dtype_bytes(c->numbers.dtype);
    const int gathered = ZERO_MOVED_BY_GATHERS, twice = units_used_twice(l), once = l->n_units - twice;
    plan_state(p, c, l, ZERO_PARAM, c->stage ? gathered : ZERO_MOVED_BY_NONE);
    if (c->stage < 3) return;
    p->own[PLAN_SHARED_SLOTS] = request(ZERO_WORKING, "slots (units used twice)", 0, gathered);
    p->own[PLAN_SHARED_SLOTS].blocks = twice;
    int wanted = c->max_open + c->prefetch;
    p->own[PLAN_SLOTS] = request(ZERO_WORKING, "slots", l->largest_slot * size, gathered);
    p->own[PLAN_SLOTS].blocks = wanted < once ? wanted : once;
}

// At most two buckets of single-use units are in use: one is filled while the other is reduced. Units that
// are open at once may be in more buckets.
static void plan_buckets(plan *p, const zero_config *c, const layout *l, int moved_by) {
    const int shared = shared_buckets(l), singles = l->n_buckets - shared;
    const int wanted = c->max_open > 2 ? c->max_open : 2;
    size_t bytes = l->largest_bucket * dtype_bytes(plan_bucket_type(c));
    p->own[PLAN_BUCKETS] = request(ZERO_WORKING, "buckets", bytes, moved_by);
    p->own[PLAN_BUCKETS].blocks = singles < wanted ? singles : wanted;
    p->own[PLAN_SHARED_BUCKETS] = request(ZERO_WORKING, "buckets (units used twice)", 0, moved_by);
    p->own[PLAN_SHARED_BUCKETS].blocks = shared;
}

// The result of the sum over micro-batches is in the bucket. A unit used more than once is reduced after each
// backward use, and the means of the earlier ones are kept in fp32, so that their sum is rounded once.
static void plan_layers(plan *p, const zero_config *c, const layout *l) {
    const int partials = plan_partial_sums(c) - 1;
    const size_t elems = largest_unit(l);
    if (partials >= 0)
        p->own[PLAN_MICRO] = request(ZERO_WORKING, "gradients of a micro-batch",
                                     elems * dtype_bytes(c->numbers.dtype), 0);
    if (partials > 0)
        p->own[PLAN_PARTIALS] = request(ZERO_WORKING, "sums over micro-batches",
                                        partials * elems * sizeof(float), 0);
    p->own[PLAN_EARLIER] = request(ZERO_WORKING, "gradients of earlier uses", 0, 0);
    p->own[PLAN_EARLIER].blocks = units_reduced_twice(l);
}

// Collectives send gradients from where they are stored. Gradients that are converted to fp32 are sent from
// the wire buffer, which is as large as the largest bucket, shared ones included.
static void plan_gradients(plan *p, const zero_config *c, const layout *l) {
    const int in_place = plan_reduces_in_place(c),
              sent_as_they_are = plan_wire_type(c) == plan_reduced_type(c);
    const int reduced = sent_as_they_are ? ZERO_MOVED_BY_REDUCTIONS : ZERO_MOVED_BY_NONE;
    int moved_by = in_place ? reduced : ZERO_MOVED_BY_NONE;
    if (c->stage == 0) moved_by |= ZERO_MOVED_BY_GATHERS;
    plan_state(p, c, l, ZERO_GRADIENT, moved_by);
    if (plan_uses_buckets(c)) plan_buckets(p, c, l, in_place ? ZERO_MOVED_BY_NONE : reduced);
    if (c->accumulate_layers) plan_layers(p, c, l);
    if (sent_as_they_are || l->ranks == 1 || c->debug.naive) return;
    p->own[PLAN_WIRE] = request(ZERO_WORKING, "gradients on the wire, fp32",
                                largest_reduction(l) * sizeof(float), ZERO_MOVED_BY_REDUCTIONS);
}

// With a GPU, update_with reads its table on the host, and gets gradients, scaled and in fp32, in separate
// memory: those of one tensor at a time, and at most 4 MiB.
static void plan_update_with(plan *p, const zero_config *c, const layout *l) {
    enum { MOST = 1 << 20 };
    const int on_device = placement_tier(ZERO_MOMENT1, c) == ZERO_DEVICE || c->offload.optimizer_ratio < 1;
    int64_t elems = 0;
    if (c->device != ZERO_CUDA) return;
    p->own[PLAN_UPDATE].tier = ZERO_HOST;
    for (const layout_place *at = l->places; at < l->places + l->n_places; at++)
        if (at->elems > elems) elems = at->elems;
    if (elems > MOST) elems = MOST;
    if (on_device)
        p->own[PLAN_UPDATE_ROOM] = request(ZERO_WORKING, "gradients for update_with", elems * sizeof(float),
                                           0);
}

// Tables for kernels that process many parts in one launch: the stretches to clear, this rank's part of every
// unit with the sum of squares, and the segments of tensors that this rank updates.
static void plan_tables(plan *p, const zero_config *c, const layout *l) {
    const char *purpose = "tables of the step";
    const layout_unit *last = &l->units[l->n_units - 1];
    size_t cleared = last->first_cleared + last->n_cleared;
    size_t norm = l->n_units * sizeof(stretch) + EXACT_WORDS * sizeof(uint64_t);
    size_t segments = plan_count_pieces(c, l, p->of.rank).segments;
    p->own[PLAN_CLEARED] = request(ZERO_WORKING, purpose, cleared * sizeof(stretch), 0);
    p->own[PLAN_NORM] = request(ZERO_WORKING, purpose, norm, 0);
    p->own[PLAN_UPDATE] = request(ZERO_WORKING, purpose, segments * sizeof(adamw_segment), 0);
    if (c->update_with) {
        plan_update_with(p, c, l);
        return;
    }
    if (!placement_crosses(c)) return;
    p->own[PLAN_UPDATE_HOST] = p->own[PLAN_UPDATE];
    p->own[PLAN_UPDATE_HOST].tier = ZERO_HOST;
}

// Plans the states in files, and the host memory that they need.
static void plan_files(plan *p, const zero_config *c, const layout *l) {
    const state_files_plan files = state_plan_files(c, l, p->of.rank);
    const file_settings settings = state_file_settings(c, p->of.rank);
    int64_t bytes = 0;
    if (!files.buffers) return;
    for (int what = 0; what < STATES; what++) {
        const size_t in_files = files.file_bytes[what];
        const char *name = state_of(what, c, l, p->of.rank, NULL).name;
        if (in_files)
            p->away[what] = (memory_request){ ZERO_STATES, name, ZERO_NVME, in_files, 1, ZERO_MOVED_BY_NONE };
        bytes += in_files;
    }
    p->own[PLAN_FILE_BUFFERS] = on_host(c, "buffers of the files", files.pool_bytes);
    p->own[PLAN_FILE_TABLES] = on_host(c, "tables of the files", file_memory_bytes(&settings, bytes));
}

// With a GPU: plans the copies of states from the other side of the bus.
static void plan_copies(plan *p, const zero_config *c, const layout *l) {
    p->across = state_plan_across(c, l);
    for (int i = 0; i < RINGS; i++) {
        if (!p->across.bytes[i]) continue;
        memory_request *r = &p->own[PLAN_PINNED + i];
        *r = request(ZERO_WORKING, "copies of states", p->across.bytes[i], ZERO_MOVED_BY_NONE);
        if (i == RING_PROCESSOR) r->tier = ZERO_HOST;
    }
}

memory_request plan_for_unit(const plan *p, plan_item item, const zero_config *c, const layout *l, int unit) {
    memory_request r = p->own[item];
    const layout_unit *u = &l->units[unit];
    if (item == PLAN_SHARED_SLOTS)
        r.bytes = u->slot_elems * dtype_bytes(c->numbers.dtype);
    else if (item == PLAN_SHARED_BUCKETS)
        r.bytes = u->padded * dtype_bytes(plan_bucket_type(c));
    else
        r.bytes = u->backward_uses > 1 ? u->shard * sizeof(float) : 0;
    return r;
}

static int is_by_unit(plan_item item) {
    return item == PLAN_SHARED_SLOTS || item == PLAN_SHARED_BUCKETS || item == PLAN_EARLIER;
}

// The bytes that the allocator uses for an item.
static size_t bytes_of(const plan *p, plan_item item, const zero_config *c, const layout *l) {
    const memory_request *r = &p->own[item];
    if (!is_by_unit(item)) return r->blocks * memory_whole_pages(r->bytes);
    size_t bytes = 0;
    for (int i = 0; r->blocks && i < l->n_units; i++) {
        const size_t of_unit = plan_for_unit(p, item, c, l, i).bytes;  // 0: a bucket of a frozen unit
        if (l->units[i].shared && of_unit) bytes += memory_whole_pages(of_unit);
    }
    return bytes;
}

size_t plan_own_bytes(const plan *p, const zero_config *c, const layout *l) {
    size_t bytes = 0;
    for (int i = 0; i < PLAN_ITEMS; i++)
        if (i != PLAN_FILE_TABLES) bytes += bytes_of(p, i, c, l);
    return bytes;
}

// -------- the pieces of the update

state_range plan_next_piece(const zero_config *c, const layout *l, int rank, state_range r) {
    r.from += r.elems;
    r.elems = 0;
    if (r.part != STATE_WHOLE && r.from < l->units[r.unit].shard)
        r.elems = placement_piece_end(c, l, rank, r.unit, r.from) - r.from;
    return r;
}

state_range plan_first_piece(const zero_config *c, const layout *l, int rank, int unit) {
    if (c->stage == 0) return (state_range){ unit, STATE_WHOLE, 0, l->units[unit].padded };
    return plan_next_piece(c, l, rank, (state_range){ unit, rank, 0, 0 });
}

plan_pieces plan_count_pieces(const zero_config *c, const layout *l, int rank) {
    plan_pieces count = { 0, 0 };
    for (int unit = 0; unit < l->n_units; unit++)
        for (state_range r = plan_first_piece(c, l, rank, unit); r.elems;
             r = plan_next_piece(c, l, rank, r)) {
            const layout_unit *u = &l->units[unit];
            const layout_place *places = l->places + u->first_place;
            const int64_t begin = (r.part == STATE_WHOLE ? 0 : layout_before(u, r.part)) + r.from;
            for (const layout_place *at = places; at < places + u->n_places; at++)
                count.segments += at->offset < begin + r.elems && at->offset + at->elems > begin;
            count.pieces++;
        }
    return count;
}

// -------- traffic

// Returns how often stage 3 gathers a unit in a step: once per use that reads it, unless it is still there. A
// unit with private memory stays there for the whole step. The tables do not define the order of uses. We
// assume that forward uses the slots in the table's order: the last unit then stays there for backward, and
// the first one for the next micro-batch.
static int64_t gathers_per_step(const zero_config *c, const layout *l, int stored) {
    const layout_unit *u = &l->units[stored];
    const int64_t uses = u->forward_uses + u->reading_uses, A = plan_passes(c);
    int first = 0, last = l->n_units - 1;
    if (u->shared) return uses > 0;
    if (!u->reading_uses) return A * uses;
    while (l->units[first].shared) first++;
    while (l->units[last].shared) last--;
    return A * uses - (u->of == last) * A - (u->of == first) * (A - 1);
}

static state params_of(const plan *p, const zero_config *c, const layout *l) {
    return state_of(ZERO_PARAM, c, l, p->of.rank, NULL);
}

// The naive path sends all gradients to every rank. Stage 0 gathers sums of gradients, the others parameters.
static void plan_step_traffic(plan *p, const zero_config *c, const layout *l) {
    const state params = params_of(p, c, l);
    zero_traffic *t = &p->to_each;
    const int64_t low = dtype_bytes(c->numbers.dtype), sum = plan_sums(c) ? (int64_t)sizeof(float) : low,
                  wire = dtype_bytes(plan_wire_type(c));
    t->other[ZERO_FOR_SCALARS] = NORM_VALUES * sizeof(double);
    if (c->debug.naive) {
        t->other[ZERO_FOR_STEP] = l->flat_elems * wire;
        return;
    }
    t->reduce_scatter[ZERO_FOR_STEP] = l->shard_elems * wire * (c->stage < 2 ? 1 : plan_passes(c));
    for (int i = 0; c->accumulate_layers && i < l->n_units; i++)
        t->reduce_scatter[ZERO_FOR_STEP] += l->units[i].shard * wire * (l->units[i].backward_uses - 1);
    p->spread = l->shard_elems * (c->stage == 0 ? sum : low);
    for (int i = 0; i < l->n_stored && c->stage == 3; i++)
        t->all_gather[ZERO_FOR_STEP] += state_parts(&params) * l->units[i].shard * low *
                                        gathers_per_step(c, l, i);
}

static void plan_traffic(plan *p, const zero_config *c, const layout *l) {
    const state params = params_of(p, c, l);
    const int64_t each = state_parts(&params) * dtype_bytes(c->numbers.dtype);
    if (!c->inference) plan_step_traffic(p, c, l);
    if (c->stage < 3) return;
    for (const layout_unit *u = l->units; u < l->units + l->n_stored; u++)
        if (!c->inference || !u->shared)
            p->to_each.all_gather[ZERO_FOR_EVAL] += u->shard * each *
                                                    (u->shared ? u->first_uses > 0 : u->first_uses);
}

// Adds the bytes that the update moves for one state of a unit: to and from files, and across the bus to
// where the update runs and back. The update reads and writes each piece, but only writes parameters that
// have masters, and only reads gradients. If parameters are in memory and masters in files, publishing a
// delayed update reads the masters again.
static void add_update_of(plan *p, const zero_config *c, const layout *l, const state *s, int unit) {
    const int rank = p->of.rank, in_files = placement_in_files(s->what, c), crosses = placement_crosses(c);
    const int64_t away = placement_away(s->what, c, l, rank, unit), size = dtype_bytes(s->dtype);
    const int64_t by_cpu_until = placement_away(ZERO_MOMENT1, c, l, rank, unit);
    const int reads = s->what != ZERO_PARAM || !state_of(ZERO_MASTER, c, l, rank, NULL).kept;
    const int writes = s->what != ZERO_GRADIENT, stays_on_host = s->what == ZERO_PARAM && in_files;
    const int publishes = s->what == ZERO_MASTER && c->offload.delayed_update &&
                          !placement_has_next(c, l, rank, unit);
    for (state_range r = plan_first_piece(c, l, rank, unit); r.elems; r = plan_next_piece(c, l, rank, r)) {
        const int is_away = r.from < away, by_cpu = r.from < by_cpu_until;
        const int64_t stored = in_files && is_away ? state_file_bytes(s, r) : 0;
        p->file_read += (reads + publishes) * stored;
        p->file_written += writes * stored;
        if (!crosses || by_cpu == (stays_on_host || is_away)) continue;
        p->copied_down += (by_cpu ? reads : writes) * r.elems * size;
        p->copied_up += (by_cpu ? writes : reads) * r.elems * size;
    }
}

// Gathers read the parameters that this rank keeps. Each micro-batch's reduction writes this rank's part of
// the gradients, and every reduction after the first also reads it.
static void plan_moved_states(plan *p, const zero_config *c, const layout *l) {
    const int rank = p->of.rank;
    const int64_t A = plan_passes(c);
    for (int what = 0; what < STATES; what++) {
        const state s = state_of(what, c, l, rank, NULL);
        const int64_t size = dtype_bytes(s.dtype);
        const int crosses = placement_crosses(c) && placement_tier(what, c) != ZERO_DEVICE;
        for (int u = 0; s.kept && u < state_units(&s); u++) {
            const int in_files = placement_in_files(what, c) && placement_away(what, c, l, rank, u);
            const int64_t stored = in_files ? state_file_bytes(&s, state_all(&s, u, rank)) : 0;
            const int64_t copied = crosses ? state_parts(&s) * l->units[u].shard * size : 0;
            int64_t reads = 0;
            if (what == ZERO_PARAM) reads = gathers_per_step(c, l, u);
            if (what == ZERO_GRADIENT) reads = A - 1;
            const int64_t writes = what == ZERO_GRADIENT ? A : 0;
            if (u < l->n_units) add_update_of(p, c, l, &s, u);
            p->file_read += reads * stored;
            p->file_written += writes * stored;
            p->copied_up += reads * copied;
            p->copied_down += writes * copied;
        }
    }
}

// Refuses a number of micro-batches whose bytes could not be counted: a state has at most 8 bytes per element
// in a step and use, and whole pages in files.
static int check_micro_batches(const zero_config *c, const layout *l) {
    int uses = 0;
    for (const layout_unit *u = l->units; u < l->units + l->n_units; u++)
        if (u->forward_uses + u->backward_uses > uses) uses = u->forward_uses + u->backward_uses;
    const double bytes = 8 * ((double)l->stored_flat_elems + 1024.0 * l->n_stored) * uses;
    if (bytes * c->micro_batches < 4e18) return 0;
    return zero_refuse(
        "micro_batches",
        " %d: a step would move more bytes than can be counted; for this model it must be below %.3g",
        c->micro_batches, 4e18 / bytes);
}

// Returns the traffic of a rank that sends scalars to so many others and its gradients on the naive path to
// `naive` others, and reduces by `way`; without gathers.
static zero_traffic times(const plan *p, int scalars, int naive, const comm_way *way, int wire) {
    zero_traffic all = p->to_each;
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) {
        all.reduce_scatter[i] = comm_reduction_bytes(way, all.reduce_scatter[i] / wire, wire);
        all.other[i] *= i == ZERO_FOR_STEP ? naive : scalars;
    }
    return all;
}

// Returns how many ranks of a group are on other nodes. If nodes differ in their number of ranks, only the
// number of all such ranks is known.
static int elsewhere(const plan *p, net_group of) {
    const int here = p->of.ranks_on_node;
    int n = 0;
    if (of.ranks == p->of.way.ranks) return of.ranks - here;
    for (int i = 0; i < of.ranks; i++) n += (of.first + i * of.step) / here != p->of.rank / here;
    return n;
}

static int far_elsewhere(const plan *p, net_group of) {
    return elsewhere(p, comm_route_of(p->of.way.window, p->of.rank, of).far);
}

// Returns how much of the bytes for each other rank of a group leave the node. Between nodes a rank gathers
// only with its equals, and NCCL's rings leave a node once for all of its ranks.
static int64_t leaving(const plan *p, net_group of, int64_t bytes) {
    const int n = elsewhere(p, of);
    if (!p->of.way.nccl) return bytes * far_elsewhere(p, of);
    return n ? bytes * (of.ranks - 1) / (of.ranks - n) : 0;
}

// Between nodes, reductions in two groups exchange fp32 sums of nodes.
static void describe_traffic(const plan *p, const zero_config *c, const layout *l, zero_plan *info) {
    const comm_way *way = &p->of.way;
    const int wire = dtype_bytes(plan_wire_type(c)), hosts = comm_hosts(way), here = p->of.ranks_on_node;
    const int N = way->ranks, S = params_of(p, c, l).group, others = N - here;
    const net_group near = comm_near(p->of.rank, S), far = comm_far(p->of.rank, N, S);
    const comm_way between = { .ranks = hosts > 1 ? hosts : others + 1 };
    zero_traffic *all = &info->traffic, *out = &info->traffic_between_nodes;
    *all = times(p, N - 1, N - 1, way, wire);
    *out = times(p, far_elsewhere(p, comm_near(p->of.rank, N)), others, &between, wire);
    for (int i = 0; i < ZERO_TRAFFIC_PURPOSES; i++) {
        all->all_gather[i] *= S - 1;
        out->all_gather[i] = leaving(p, near, p->to_each.all_gather[i]);
        if (hosts > 1) out->reduce_scatter[i] *= (int)sizeof(float) / wire;
        if (way->nccl && others && c->comm.reduce_nccl)
            out->reduce_scatter[i] = all->reduce_scatter[i] / here;
    }
    all->all_gather[ZERO_FOR_STEP] += p->spread * (far.ranks - 1);
    out->all_gather[ZERO_FOR_STEP] += leaving(p, far, p->spread);
}

// -------- the whole plan

static int check_group(const zero_config *c, int ranks) {
    const int S = c->param_group, most = S < ranks ? S : ranks;
    int less = most, more = most;
    if (!S || S == ranks) return 0;
    while (ranks % less) less--;
    while (ranks % more) more++;
    if (less != S)
        return zero_refuse("param_group", " %d: must divide the number of ranks, %d; the nearest is %d", S,
                           ranks, more - S < S - less ? more : less);
    if (c->offload.params != ZERO_NVME) return 0;
    return zero_refuse(
        "param_group offload.params",
        ": parameters in files are sharded over all ranks; set offload.params to cpu or none, or "
        "param_group to 0");
}

int plan_make(plan *p, const zero_config *c, const layout *l, const plan_rank *of) {
    *p = (plan){ .of = *of };
    ZERO_TRY(check_group(c, l->ranks));
    if (!l->trained_elems && !c->inference)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "all tensors are frozen, so there is nothing to train; set inference to 1");
    ZERO_TRY(check_micro_batches(c, l));
    size_t reduced = c->inference ? 0 : largest_reduction(l) / l->ranks * dtype_bytes(plan_wire_type(c));
    ZERO_TRY(comm_plan(p->comm, c, &of->way, reduced));
    plan_host_memory(p, c, l);
    plan_parameters(p, c, l);
    if (!c->inference) {
        if (c->async_save)  // this rank's file in fp32: masters or frozen parameters, and moments
            p->own[PLAN_SAVE_COPY] =
                on_host(c, "copy for checkpoints",
                        sizeof(float) * (l->stored_shard_elems + c->update_states * l->shard_elems));
        plan_gradients(p, c, l);
        for (int what = ZERO_MASTER; what <= ZERO_MOMENT2; what++)
            plan_state(p, c, l, what, ZERO_MOVED_BY_NONE);
        plan_tables(p, c, l);
    }
    plan_files(p, c, l);
    plan_copies(p, c, l);
    plan_traffic(p, c, l);
    if (!c->inference) plan_moved_states(p, c, l);
    return 0;
}

_Static_assert(COMM_MEMORIES + PLAN_ITEMS + STATES <= ZERO_PLAN_LINES, "each request may need a line");

static void add_line(zero_plan *info, const memory_request *r, size_t bytes, int assumed) {
    if (!r->blocks) return;
    zero_memory_line *l = memory_find_line(info->lines, info->n_lines, r);
    if (!l) {
        l = &info->lines[info->n_lines++];
        *l = (zero_memory_line){ r->purpose, r->class_, 0, r->tier, r->moved_by, assumed };
    }
    l->bytes += bytes;
    info->bytes[r->class_] += bytes;
}

// NCCL's memory is measured, so it is not rounded to pages.
static void describe_memory(const plan *p, const zero_config *c, const layout *l, int assumed,
                            zero_plan *info) {
    const int incoming_is_assumed = assumed && c->comm.nccl != 1;
    for (int i = COMM_WINDOW; i < COMM_NCCL; i++) {
        const memory_request *r = &p->comm[i];
        int assumes = i == COMM_WINDOW ? assumed : i == COMM_INCOMING ? incoming_is_assumed : 0;
        add_line(info, r, r->blocks * memory_whole_pages(r->bytes), assumes);
    }
    for (int what = 0; what < STATES; what++) {
        const memory_request *r = &p->away[what];
        add_line(info, r, r->tier == ZERO_NVME ? r->bytes : memory_whole_pages(r->bytes), 0);
    }
    for (int i = 0; i < PLAN_ITEMS; i++) add_line(info, &p->own[i], bytes_of(p, i, c, l), 0);
    add_line(info, &p->comm[COMM_NCCL], p->comm[COMM_NCCL].bytes, assumed);
}

// The memory of the model states by the paper's formula (ZeRO, arXiv 1910.02054, section 5).
static zero_formula formula(const zero_config *c, const layout *l, int stage) {
    zero_config at_stage = *c;
    zero_formula f = { .bytes = 0 };
    size_t sharded = 0;  // by all ranks together
    const int S = c->param_group ? c->param_group : l->ranks;
    at_stage.stage = stage;
    if (stage < 1) at_stage.offload.delayed_update = 0;
    for (int what = 0; what < STATES; what++) {
        state s = state_of(what, &at_stage, NULL, 0, NULL);
        const size_t size = dtype_bytes(s.dtype), elems = what == ZERO_PARAM ? l->elems : l->trained_elems;
        const int is_grouped = what == ZERO_PARAM && s.sharded && S < l->ranks;
        if (!s.kept) continue;
        *(is_grouped ? &f.grouped : s.sharded ? &f.sharded : &f.whole) += size;
        *(s.sharded ? &sharded : &f.bytes) += size * elems * (is_grouped ? l->ranks / S : 1);
    }
    f.bytes += (sharded + l->ranks - 1) / l->ranks;
    return f;
}

void plan_describe(const plan *p, const zero_config *c, const layout *l, int assumed, zero_plan *info) {
    memset(info, 0, sizeof *info);
    describe_memory(p, c, l, assumed, info);
    for (int stage = 0; stage <= 3; stage++) info->formulas[stage] = formula(c, l, stage);
    info->parameters = l->elems;
    info->file_read = p->file_read;
    info->file_written = p->file_written;
    info->copied_down = p->copied_down;
    info->copied_up = p->copied_up;
    info->nccl_bytes = p->comm[COMM_NCCL].bytes;
    info->slots = p->own[PLAN_SLOTS].blocks;
    info->bucket_elems = c->inference ? 0 : l->largest_bucket;
    info->bucket_bytes = p->own[PLAN_BUCKETS].blocks * p->own[PLAN_BUCKETS].bytes;
    for (int i = 0; p->own[PLAN_SHARED_BUCKETS].blocks && i < l->n_units; i++)
        if (l->units[i].shared) info->bucket_bytes += plan_for_unit(p, PLAN_SHARED_BUCKETS, c, l, i).bytes;
    describe_traffic(p, c, l, info);
}

int zero_make_plan(zero_plan *info, const zero_config *config, const zero_tensor *tensors, int n_tensors,
                   const zero_unit *units, int n_units, int ranks, int ranks_on_node) {
    ZERO_TRY(settings_check(config));
    const int rank = config->start.rank < 0 ? 0 : config->start.rank;
    if (ranks < 1) return zero_fail(ZERO_ERR_ARGUMENT, "a plan for %d ranks: must be at least 1", ranks);
    if (ranks_on_node < 1 || ranks_on_node > ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "a plan for %d ranks, %d of them on a node: must be 1 to %d",
                         ranks, ranks_on_node, ranks);
    if (rank >= ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "a plan for rank %d of %d: must be 0 to %d", rank, ranks,
                         ranks - 1);
    plan_rank of = { rank, ranks_on_node, comm_way_asked(config, ranks, ranks_on_node) };
    layout l;
    plan p;
    ZERO_TRY(layout_init(&l, ranks, config->reduce_bucket_size, tensors, n_tensors, units, n_units));
    int rc = plan_make(&p, config, &l, &of);
    if (!rc) plan_describe(&p, config, &l, 1, info);
    layout_free(&l);
    return rc;
}
