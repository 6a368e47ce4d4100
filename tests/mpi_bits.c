// Same bits: mpirun -np N mpi_bits, for any N. Cases drawn from seeds (drawn.h) run on the naive path and
// with settings that must not matter. Every norm, activation, value and digest must be equal, bit for bit;
// memory and traffic must equal the plan; and without rounding, gradients must equal the ranks' mean.
//   mpi_bits            runs 40 cases, and those that once found a fault; SEED=n in the environment: 40 cases
//                       from seed n on
//   mpi_bits SECONDS    draws cases for that long (make fuzz)
// The first case that fails ends the test. It is printed, made as small as possible, and printed again.
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>
#include "check.h"
#include "copies.h"
#include "drawn.h"
#include "plan.h"
#include "pretend.h"
#include "toy.h"
#include "../dev/examples/optimizers.h"
#include "../llmc_zero/internal.h"
#ifdef ZERO_HAVE_CUDA
#include "device.h"
#endif

enum { CASES = 40, SHRINK_S = 60, VALUES = ZERO_GRADIENT };
static char folder[64], problem[512];  // problem: of this case on this rank; "": none

#define TRY(call)                      \
    do {                               \
        int rc_ = (call);              \
        if (rc_) return failed(#call); \
    } while (0)
#define EXPECT(condition, ...) \
    ((condition) ? (void)0 : (void)(!*problem && snprintf(problem, sizeof problem, __VA_ARGS__)))

static int failed(const char *call) {
    EXPECT(0, "%s: %s", call, zero_last_error());
    return 1;
}

// -------- one run of a case

typedef struct {
    double norm, scale;
    int finite;
    float activation;  // differs between ranks
    uint64_t values;   // digest of the values that the call returned
} record;

typedef struct {
    record records[MOST_CALLS];
    char digests[2][17];
    float *values[VALUES];  // all tensors
} result;

// how: index of the settings; -1: the reference.
typedef struct {
    const drawn *d;
    int how, t, micro, micro_batches;  // micro_batches: that pass each use
    zero_config config;
    zero *z;
    zero_plan planned;
    result *to;
    const toy_device *on;
    void *stream;
    float activation[MOST_MICRO], *on_device;  // (MOST_MICRO) by micro-batch, if all pass a unit at once
    // The reference imitates a delayed update: while one is pending, the toy reads the old parameters.
    int pending;
    float *old, *newest, *set, *scratch;  // old: in the parameters' dtype. set: the last values set
    double *summed;                       // the reference's gradients of this rank
    float *leaves;  // (3 uses, MOST_MICRO, elements) by layers: the reference's gradients as computed
    int64_t gathered, planned_gathers;
    int steps, uneven;    // uneven: some of the steps are not as planned
    zero_files at_start;  // with NCCL zero_create reduces once, into files if gradients are there
    int wrong_pieces, infers;
} run;

static int64_t elems_of(const drawn *d, int k) { return zero_tensor_elems(&d->tensors[k]); }
static int64_t place_of(const drawn *d, int tensor, int layer) {
    int64_t at = 0;
    for (int k = 0; k < tensor; k++) at += elems_of(d, k) * d->tensors[k].layers;
    return at + layer * elems_of(d, tensor);
}
static int64_t all_elems(const drawn *d) { return place_of(d, d->n_tensors, 0); }

static int gives(const run *r, zero_value what, int tensor) {
    if (what == ZERO_PARAM || what == ZERO_MASTER) return 1;
    return !r->d->tensors[tensor].frozen && (int)what - ZERO_MASTER <= r->config.update_states;
}

// Gets or sets all tensors.
static int all_values(run *r, zero_value what, float *values, int sets) {
    const drawn *d = r->d;
    for (int k = 0; k < d->n_tensors; k++)
        for (int l = 0; l < d->tensors[k].layers; l++) {
            float *x = values + place_of(d, k, l);
            if (!gives(r, what, k)) continue;
            TRY(sets ? zero_set(r->z, what, k, l, 0, elems_of(d, k), x)
                     : zero_get(r->z, what, k, l, 0, elems_of(d, k), x));
        }
    return 0;
}

// -------- the trainer's updates

// AdamW as a function. It must give the bits of the plugin's own.
static void adamw_with(void *ctx, const zero_piece *p) {
    run *r = ctx;
    const zero_hyper *h = p->hyper;
    const zero_tensor *t = &r->d->tensors[p->tensor];
    const float factor = t->lr_factor ? t->lr_factor : 1;
    const float step = (float)(h->lr / (1 - pow(h->beta1, h->t))) * factor;
    const float correction = (float)(1 / sqrt(1 - pow(h->beta2, h->t)));
    const float keep = (float)(1 - (double)h->lr * h->weight_decay * ((double)factor * t->decay));
    const int wrong = p->lr != h->lr * factor || p->weight_decay != h->weight_decay * t->decay ||
                      p->layer >= t->layers || p->offset + p->n > zero_tensor_elems(t);
    float *m = p->states[0], *v = p->states[1];
    for (int64_t i = 0; i < p->n; i++) {
        const float g = p->gradient[i];
        m[i] = fmaf(1 - h->beta1, g, h->beta1 * m[i]);
        v[i] = fmaf((1 - h->beta2) * g, g, h->beta2 * v[i]);
        p->weights[i] = fmaf(-step, m[i] / fmaf(sqrtf(v[i]), correction, h->eps), keep * p->weights[i]);
    }
    __atomic_fetch_add(&r->wrong_pieces, wrong, __ATOMIC_RELAXED);
}

#ifdef ZERO_HAVE_CUDA
#define ON_DEVICE(p, f) ((p)->on_device ? (void)toy_cuda.f(p) : (void)0)
#else
#define ON_DEVICE(p, f) ((void)0)
#endif
static void momentum_with(void *ctx, const zero_piece *p) {
    p->on_device ? ON_DEVICE(p, sgd_momentum) : sgd_momentum(ctx, p);
}
static void lion_with(void *ctx, const zero_piece *p) { p->on_device ? ON_DEVICE(p, lion) : lion(ctx, p); }
static void sgd_with(void *ctx, const zero_piece *p) { p->on_device ? ON_DEVICE(p, sgd) : toy_sgd(ctx, p); }
static const struct {
    zero_update_with with;
    int states;
} updates[] = { { NULL, 2 }, { adamw_with, 2 }, { momentum_with, 1 }, { lion_with, 1 }, { sgd_with, 0 } };

static float *floats(const drawn *d) {
    float *x = calloc((size_t)all_elems(d), sizeof *x);
    if (!x) MUST(ZERO_ERR_MEMORY);
    return x;
}

// -------- settings

// Without rounding of sums, stages 2 and 3 have the bits of the naive path with accumulation too.
static int naive_is_reference(const drawn *d) {
    return !d->trained[LAYERS] && (d->trained[MICRO] == 1 || d->trained[EXACT] || d->how[0][STAGE] < 2);
}

static zero_config config_of(run *r, int how) {
    const int64_t *t = r->d->trained, *h = how < 0 ? plain_settings : r->d->how[how];
    zero_config c = zero_defaults();
    c.stage = (int)h[STAGE];
    if (how < 0) c.debug.naive = naive_is_reference(r->d);
    if (how < 0 && !c.debug.naive && !t[LAYERS]) c.stage = 2;
    c.accumulate_layers = (int)t[LAYERS];
    c.numbers.dtype = (zero_dtype)t[DTYPE];
    c.numbers.no_master = (int)t[NO_MASTER];
    c.numbers.rounding_seed = 1234;
    c.numbers.initial_scale_power = (int)t[SCALE];
    c.micro_batches = (int)t[MICRO];
    c.update_with = updates[t[UPDATE]].with;
    c.update_states = updates[t[UPDATE]].states;
    if (c.update_with == adamw_with && (how < 0 || h[CUDA])) c.update_with = NULL;
    c.update_ctx = r;
    c.device = h[CUDA] ? ZERO_CUDA : ZERO_CPU;
    c.comm.nccl = (int)h[NCCL];
    c.overlap = (int)h[OVERLAP];
    c.prefetch = (int)h[PREFETCH];
    c.max_open = (int)h[MAX_OPEN] + (how < 0);
    c.reduce_bucket_size = h[BUCKET];
    c.debug.poison = (int)h[POISON];
    c.debug.trace_events = h[TRACE] ? 1 << 15 : 0;
    c.comm.shared_window = (int)h[SHARED];
    c.comm.window_bytes = h[WINDOW];
    c.param_group = (int)h[GROUP];
    c.comm.reduce_fp32 = (int)h[WIRE];
    c.comm.timeout_s = 60;
    c.offload.params = (zero_tier)h[PARAMS];
    c.offload.optimizer = (zero_tier)h[OPTIMIZER];
    c.offload.gradients = (zero_tier)h[GRADIENTS];
    c.offload.optimizer_ratio = (double)h[RATIO] / 100;
    c.offload.params_in_host = h[IN_HOST];
    c.offload.sub_group_size = h[PIECE];
    c.offload.nvme_verify = (int)h[VERIFY];
    c.offload.nvme = folder;
    if (r->infers) {
        c.inference = 1;
        c.update_with = NULL;
        c.update_states = 2;
        c.offload.optimizer = c.offload.gradients = ZERO_DEVICE;
        return c;
    }
    if (how >= 0) c.offload.delayed_update = (int)t[DELAYED];
    return c;
}

// The store of copies has only as many slots as its rules require: for parameters, the units in use and one
// being gathered, each with its frozen part; for gradients, a bucket and, below stage 2, the units in use.
static void start_copies(const run *r) {
    const drawn *d = r->d;
    const int open = 1 + (int)d->trained[AHEAD];
    int shared = 0;
    for (int u = 0; u < d->n_units; u++) shared += d->units[u].backward_uses > 1;
    copies_start((open + 1) * (has_frozen(d) ? 2 : 1),
                 (r->config.stage < 2 ? open + shared : 0) +
                     (r->config.reduce_bucket_size == 1 ? 1 : d->n_units));
}

#ifdef ZERO_HAVE_CUDA
static int start_device(run *r, const int64_t *h) {
    r->on = NULL;
    r->stream = NULL;
    if (!h[CUDA]) return 0;
    (void)use_devices(h[NCCL] ? r->d->ranks : 1);
    set_manner(manners[h[MANNER]]);
    protect_device(!h[COPIES] && h[MANNER] == 0);
    r->config.cuda_device = h[NCCL] ? checks.rank : 0;
    CUDA_MUST(cudaSetDevice(r->config.cuda_device));
    if (h[STREAM]) CUDA_MUST(cudaStreamCreateWithFlags((cudaStream_t *)&r->stream, cudaStreamNonBlocking));
    r->config.cuda_stream = r->stream;
    r->on = &toy_cuda;
    return 0;
}
static void end_device(run *r) {
    if (r->stream) CUDA_MUST(cudaStreamDestroy(r->stream));
    r->stream = NULL;
}
static float activation_of(const run *r) {
    return device_activation(r->on, r->stream, r->on_device, *r->activation);
}
#else
static int start_device(run *r, const int64_t *h) { return 0; }
static void end_device(run *r) {}
static float activation_of(const run *r) { return *r->activation; }
#endif

// -------- memory and traffic

// Called before the first step and after the last: if memory equals the plan both times, no step allocates.
static void check_memory(run *r) {
    const zero_plan *p = &r->planned;
    const zero *z = r->z;
    const layout *l = &z->layout;
    zero_plan own;
    if (state_default_store != &state_in_memory) return;  // copies take more
    const char *difference = plan_differs(p, z);
    EXPECT(!*difference, "%s", difference);
    zero_plan_info(z, &own);
    EXPECT(!*plan_differs(&own, z), "its own plan: %s", plan_differs(&own, z));
    EXPECT(!memcmp(&own.traffic, &p->traffic, sizeof own.traffic), "traffic differs between the plans");
    for (int k = 0; k < ZERO_ACTIVATIONS; k++)
        EXPECT(r->config.comm.nccl || p->bytes[k] == zero_memory_bytes(z, (zero_memory_class)k),
               "%zu bytes of class %d, planned %zu", zero_memory_bytes(z, (zero_memory_class)k), k,
               p->bytes[k]);
    const memory *m = &z->memory;
    EXPECT(m->taken_bytes == m->reserved_bytes, "%zu bytes taken of %zu", m->taken_bytes, m->reserved_bytes);
    for (const memory_block *b = z->device.asynchronous ? NULL : m->blocks; b; b = b->next) {
        const char *purpose = m->lines[b->line].purpose;
        EXPECT(!b->owner || !strcmp(purpose, "message staging"), "%s is not in the reserved memory", purpose);
    }
    for (int i = 0; i < p->n_lines; i++) {
        const zero_memory_line *line = &p->lines[i];
        const int by_nccl = !strcmp(line->purpose, "NCCL (measured)");
        const int found_later = !strcmp(line->purpose, "shared window") || by_nccl ||
                                (!strcmp(line->purpose, "bytes of other ranks") && !r->config.comm.nccl);
        EXPECT(line->assumed == found_later, "%s is assumed: %d", line->purpose, line->assumed);
    }
    // States take the formula's bytes, plus the padding of units and of states to whole pages.
    const zero_formula *f = &p->formulas[r->config.stage];
    const size_t held = zero_memory_bytes(z, ZERO_STATES);
    const int64_t padding = l->stored_flat_elems - l->elems;
    const int moved = r->config.offload.delayed_update || r->config.update_with || r->config.inference;
    EXPECT(moved || (held >= f->bytes && held <= f->bytes + 18 * (size_t)padding + 4 * 4096 * 8),
           "%zu bytes of states, by the formula %zu", held, f->bytes);
}

static void check_transport(const run *r) {
    zero_job job;
    zero_job_info(r->z, &job);
    const int L = ranks_per_host ? ranks_per_host : checks.ranks;
    const int two_groups = L > 1 && L < checks.ranks && checks.ranks % L == 0;
    const char *nccl = two_groups ? "nccl, summed in tree order by 2 ranks of a host, then between 2 hosts"
                       : L >= checks.ranks ? "nccl, summed in tree order"
                                           : "nccl, summed in tree order (";
    const char *way = checks.ranks == 1               ? "mpi, one rank"
                      : r->config.comm.nccl           ? nccl
                      : !r->config.comm.shared_window ? "mpi, messages (as"
                      : two_groups && !r->on ? "mpi, shared windows of 2 ranks, messages between 2 hosts"
                      : L >= checks.ranks    ? "mpi, shared window"
                                             : "mpi, messages (";
    EXPECT(!strncmp(job.comm, way, strlen(way)), "the ranks are connected by %s, not %s", job.comm, way);
}

static int measures(const run *r) { return r->config.debug.trace_events > 0; }

static zero_traffic traffic_of(run *r) {
    zero_traffic t = { { 0 }, { 0 }, { 0 } };
    if (measures(r)) zero_traffic_info(r->z, &t);
    return t;
}

// Returns the bytes gathered by a step of so many micro-batches at stage 3.
static int64_t planned_gathers(const run *r, int micro_batches) {
    zero_config c = r->config;
    zero_job job;
    zero_plan p = { .parameters = 0 };
    zero_job_info(r->z, &job);
    c.micro_batches = micro_batches;
    const int rc = zero_make_plan(&p, &c, r->d->tensors, r->d->n_tensors, r->d->units, r->d->n_units,
                                  checks.ranks, job.ranks_on_host);
    EXPECT(!rc, "no plan for %d micro-batches: %s", micro_batches, zero_last_error());
    return p.traffic.all_gather[ZERO_FOR_STEP];
}

// Returns the bytes that an update gathers; at stage 0 none.
static int64_t planned_spread(const run *r) {
    const int stage = r->config.stage, group = r->config.param_group;
    const int parts = stage < 3 ? checks.ranks : group ? checks.ranks / group : 1;
    return stage ? r->z->plan.spread * (parts - 1) : 0;
}

// Checks the traffic of a step. Gathers of delayed updates belong to the next step, so they are only summed.
static void check_step_traffic(run *r, const zero_traffic *before, const call *c, int updated) {
    const zero_traffic now = traffic_of(r), *plan = &r->planned.traffic;
    const int s = ZERO_FOR_STEP, A = r->config.micro_batches, stage = r->config.stage;
    const int64_t gathered = now.all_gather[s] - before->all_gather[s];
    if (!measures(r)) return;
    EXPECT(now.reduce_scatter[s] - before->reduce_scatter[s] ==
               plan->reduce_scatter[s] * (stage < 2 || r->config.accumulate_layers ? A : c->of) / A,
           "a step reduces %lld bytes, not as planned",
           (long long)(now.reduce_scatter[s] - before->reduce_scatter[s]));
    EXPECT(now.other[s] - before->other[s] == plan->other[s], "a step sends other bytes, not as planned");
    EXPECT(now.other[ZERO_FOR_SCALARS] - before->other[ZERO_FOR_SCALARS] == plan->other[ZERO_FOR_SCALARS],
           "a step sends scalars, not as planned");
    const int64_t spread = planned_spread(r);
    const int64_t all = stage == 3 ? planned_gathers(r, c->of) : plan->all_gather[s];
    const int64_t want = updated ? all : all - spread;
    if (!r->config.offload.delayed_update || !spread)
        EXPECT(gathered == want, "a step gathers %lld bytes, planned are %lld", (long long)gathered,
               (long long)want);
    r->gathered += gathered;
    r->planned_gathers += want;
}

typedef struct {
    int64_t bytes[EVENT_KINDS];
    int misplaced;
} trace_totals;

// Totals of the trace so far, and the number of events with a wrong lane or time.
static trace_totals totals_of(zero *z) {
    static const lane lanes[EVENT_KINDS] = {
        [EVENT_READ] = LANE_IO,
        [EVENT_WRITE] = LANE_WRITES,
        [EVENT_TO_HOST] = LANE_TO_HOST,
        [EVENT_TO_DEVICE] = LANE_TO_DEVICE,
        [EVENT_GATHER] = LANE_COLLECTIVES,
        [EVENT_REDUCE] = LANE_COLLECTIVES,
    };
    trace_totals totals = { .misplaced = step_settle(z) };  // nothing adds to the trace while it is read
    trace_event e;
    for (int i = 0; trace_at(&z->trace, i, &e); i++) {
        totals.bytes[e.kind] += e.bytes;
        totals.misplaced += e.start_s < 0 || e.end_s < e.start_s ||
                            (lanes[e.kind] && z->config.overlap && e.lane != lanes[e.kind]);
    }
    return totals;
}

// The last step must move the planned bytes over every link, and its trace must show them.
static void check_moved(run *r, const zero_files *before, const trace_totals *totals_before) {
    zero_files after;
    zero_plan plan;
    zero_files_info(r->z, &after);
    zero_plan_info(r->z, &plan);
    const trace_totals totals = totals_of(r->z);
    const int p = ZERO_FOR_STEP;
    const int64_t not_read = after.not_read[p] - before->not_read[p];
    int64_t traced[EVENT_KINDS];
    for (int kind = 0; kind < EVENT_KINDS; kind++)
        traced[kind] = totals.bytes[kind] - totals_before->bytes[kind];
    const struct {
        const char *name;
        int64_t moved, planned, traced;
    } links[] = {
        { "read from files", after.read[p] - before->read[p], plan.file_read - not_read, traced[EVENT_READ] },
        { "written to files", after.written[p] - before->written[p], plan.file_written, traced[EVENT_WRITE] },
        { "copied to the host", after.copied_down - before->copied_down, plan.copied_down,
          traced[EVENT_TO_HOST] },
        { "copied to the device", after.copied_up - before->copied_up, plan.copied_up,
          traced[EVENT_TO_DEVICE] },
        // check_step_traffic checks the counters of these.
        { "gathered", plan.traffic.all_gather[p], plan.traffic.all_gather[p], traced[EVENT_GATHER] },
        { "reduced", plan.traffic.reduce_scatter[p], plan.traffic.reduce_scatter[p], traced[EVENT_REDUCE] },
    };
    const int n = r->config.stage ? 6 : 4;  // stage 0 reduces and gathers the sums in one event
    // A gather ahead is counted in the step that uses it, but traced when it happens, and it reads only what
    // the update has not put there.
    const int ahead = r->config.offload.params == ZERO_NVME;
    for (int i = 0; i < n; i++)
        EXPECT(links[i].moved == links[i].planned && (links[i].traced == links[i].planned || (ahead && !i)),
               "a step has %s %lld bytes, %lld in the trace; planned are %lld", links[i].name,
               (long long)links[i].moved, (long long)links[i].traced, (long long)links[i].planned);
    EXPECT(!totals.misplaced, "%d events of the trace have a wrong lane or time", totals.misplaced);
}

// -------- the toy: its gradients depend on every parameter read, their order, the rank and the micro-batch

static void *shown(run *r, int tensor, int layer) {
    if (r->how >= 0 || !r->pending) return NULL;
    return (char *)r->old + place_of(r->d, tensor, layer) * (int64_t)dtype_bytes(r->config.numbers.dtype);
}

// at: index of the micro-batch's activation
static int read_unit(run *r, int unit, int at) {
    const zero_dtype dtype = r->config.numbers.dtype;
    for (int k = 0; k < r->d->n_tensors; k++) {
        if (!holds(r->d, k, unit)) continue;
        const int layer = unit - r->d->tensors[k].unit;
        const void *p = zero_param(r->z, k, layer), *instead = shown(r, k, layer);
        if (!p) return failed("zero_param");
        const int64_t n = elems_of(r->d, k);
        if (r->on) {
            TRY(r->on->read(r->stream, r->on_device + at, dtype, p, n));
            continue;
        }
        float a = r->activation[at];
        for (int64_t i = 0; i < n; i++)
            a = toy_add_parameter(a, toy_load(dtype, instead ? instead : p, i), i);
        r->activation[at] = a;
    }
    return 0;
}

static float *leaf(const run *r, int use, int micro) {
    return r->leaves + (use * MOST_MICRO + micro) * all_elems(r->d);
}

static int write_gradient(run *r, int unit, int use, int micro) {
    const int at = r->config.accumulate_layers ? micro : 0;
    const zero_unit *of = &r->d->units[unit];
    const int reads = use < of->backward_uses - of->gradient_only_uses;
    for (int k = 0; k < r->d->n_tensors; k++) {
        const zero_tensor *t = &r->d->tensors[k];
        const int layer = unit - t->unit;
        if (!holds(r->d, k, unit) || t->frozen) continue;
        const void *p = reads ? zero_param(r->z, k, layer) : NULL;
        void *g = zero_grad(r->z, k, layer);
        if ((reads && !p) || !g) return failed("zero_grad");
        if (reads && shown(r, k, layer)) p = shown(r, k, layer);
        toy_use u = { r->config.numbers.dtype, checks.ranks, checks.rank, micro, use };
        const int64_t n = elems_of(r->d, k);
        u.exact = (int)r->d->trained[EXACT];
        u.loss_scale = (float)zero_loss_scale(r->z);
        u.writes = t->backward_overwrites && use == 0;
        if (r->on) {
            TRY(r->on->add_gradient(r->stream, &u, r->on_device + at, p, g, n));
            continue;
        }
        for (int64_t i = 0; i < n; i++) toy_add_gradient(&u, r->activation[at], p, g, i);
        if (r->leaves)
            for (int64_t i = 0; i < n; i++)
                leaf(r, use, micro)[place_of(r->d, k, layer) + i] = toy_load(u.dtype, g, i);
        if (r->how < 0 && use == of->backward_uses - 1)
            for (int64_t i = 0; i < n; i++)
                r->summed[place_of(r->d, k, layer) + i] += toy_load(u.dtype, g, i);
    }
    return 0;
}

// The use's computation, by layers for all micro-batches.
static int compute_use(run *r, one_use u, int backward) {
    const int n = r->config.accumulate_layers ? r->micro_batches : 1;
    for (int i = 0; i < n; i++) {
        const int micro = r->config.accumulate_layers ? i : r->micro;
        TRY(backward ? write_gradient(r, u.unit, u.use, micro) : read_unit(r, u.unit, i));
        if (backward && (r->config.accumulate_layers || micro % 2)) TRY(zero_post_micro(r->z, u.unit, micro));
    }
    return 0;
}
static int finish_use(run *r, one_use u, int backward) {
    if (compute_use(r, u, backward)) return 1;
    TRY(backward ? zero_post_backward(r->z, u.unit) : zero_post_forward(r->z, u.unit));
    return 0;
}

// Runs the first `most` uses of forward and, in training, of backward; INT32_MAX: all. A use may be opened
// before the previous one is computed and closed.
static int pass(run *r, const call *c, int micro, int of, int most) {
    const drawn *d = r->d;
    one_use uses[2][MOST_USES];
    const uint64_t draw = d->seed + (d->trained[SHUFFLED] ? c->draw + (uint64_t)micro : 0);
    const uint64_t forward_draw = draw + (d->trained[APART] ? (uint64_t)checks.rank : 0);
    const int n_forward = order_of(d, 0, forward_draw, uses[0]);
    const int n = n_forward + (of ? order_of(d, 1, draw, uses[1]) : 0);
    one_use opened = { -1, 0 };  // but not yet computed
    int opened_backward = 0;
    const int is_whole = of == 1 || r->config.accumulate_layers;
    if (of && is_whole && most < INT32_MAX && most >= n) most = n - 1;  // a complete step cannot be given up
    TRY(of ? zero_begin_train(r->z, micro, of) : zero_begin_eval(r->z));
    r->micro = micro;
    r->micro_batches = of && r->config.accumulate_layers ? of : 1;
    for (int i = 0; i < r->micro_batches; i++) {
        r->activation[i] = 0.1f * checks.rank + 0.05f * (micro + i);
        if (r->on) TRY(r->on->start(r->stream, r->on_device + i, r->activation[i]));
    }
    for (int i = 0; i < n && i < most; i++) {
        const int backward = i >= n_forward, turns = of && i == n_forward - 1;
        const one_use u = uses[backward][backward ? i - n_forward : i];
        const int is_same = opened.unit == u.unit && opened_backward == backward;
        if (is_same) TRY(finish_use(r, opened, opened_backward));
        TRY(backward ? zero_pre_backward(r->z, u.unit) : zero_pre_forward(r->z, u.unit));
        if (opened.unit >= 0 && !is_same) TRY(finish_use(r, opened, opened_backward));
        opened = u;
        opened_backward = backward;
        if (i < n - 1 && i < most - 1 && d->trained[turns ? JOINED : AHEAD]) continue;
        TRY(finish_use(r, u, backward));
        opened.unit = -1;
    }
    return 0;
}

// -------- the calls

static int finish_update(run *r) {
    const zero_traffic before = traffic_of(r);
    r->pending = 0;
    TRY(zero_finish_update(r->z));
    const zero_traffic now = traffic_of(r);
    if (planned_spread(r)) r->gathered += now.all_gather[ZERO_FOR_STEP] - before.all_gather[ZERO_FOR_STEP];
    return 0;
}

// Compares all gradients of a reference whose sums are not rounded with the mean of what the ranks have
// added.
static int check_mean(run *r, const zero_step_result *s) {
    const drawn *d = r->d;
    double squares = 0;
    MPI_Allreduce(MPI_IN_PLACE, r->summed, (int)all_elems(d), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < d->n_tensors; k++)
        for (int l = 0; l < d->tensors[k].layers && !d->tensors[k].frozen; l++) {
            const double *sum = r->summed + place_of(d, k, l);
            int64_t wrong = 0;
            TRY(zero_get(r->z, ZERO_GRADIENT, k, l, 0, elems_of(d, k), r->scratch));
            for (int64_t i = 0; i < elems_of(d, k); i++) {
                wrong += r->scratch[i] != sum[i] / checks.ranks;
                squares += (double)r->scratch[i] * r->scratch[i];
            }
            EXPECT(!wrong || !s->finite, "%lld gradients of tensor %d are not the mean", (long long)wrong, k);
        }
    EXPECT(s->grad_norm == sqrt(squares) / s->loss_scale || !s->finite, "norm %g, of the gradients %g",
           s->grad_norm, sqrt(squares) / s->loss_scale);
    return 0;
}

// The sum of a gradient over all micro-batches of all ranks, from leaves (ranks, n): if n is a power of two,
// in one tree; otherwise each rank's in a tree, and then the ranks'.
static float sum_of_leaves(const float *leaves, int n, int64_t stride) {
    float x[64], of_ranks[8];
    for (int i = 0; i < checks.ranks * n; i++) x[i] = leaves[i * stride];
    if (!(n & (n - 1))) return toy_tree(x, checks.ranks * n);
    for (int r = 0; r < checks.ranks; r++) of_ranks[r] = toy_tree(x + r * n, n);
    return toy_tree(of_ranks, checks.ranks);
}

// By layers: compares all gradients of the reference with the sum of what the ranks have computed, in the
// order that the documentation promises.
static int check_tree(run *r, int n) {
    const drawn *d = r->d;
    const int64_t elems = all_elems(d);
    const float scale = 1.0f / (float)(checks.ranks * n);
    float *all = calloc((size_t)(checks.ranks * n * elems), sizeof *all), *mean = floats(d);
    int64_t wrong = 0;
    if (!all) MUST(ZERO_ERR_MEMORY);
    for (int use = 0; use < 3; use++) {
        MPI_Allgather(leaf(r, use, 0), (int)(n * elems), MPI_FLOAT, all, (int)(n * elems), MPI_FLOAT,
                      MPI_COMM_WORLD);
        for (int k = 0; k < d->n_tensors; k++)
            for (int64_t i = place_of(d, k, 0); i < place_of(d, k + 1, 0); i++) {
                const int layer = (int)((i - place_of(d, k, 0)) / elems_of(d, k));
                if (use >= d->units[d->tensors[k].unit + layer].backward_uses) continue;
                const float of_use = sum_of_leaves(all + i, n, elems) * scale;
                mean[i] = use ? of_use + mean[i] : of_use;
            }
    }
    for (int k = 0; k < d->n_tensors; k++)
        for (int l = 0; l < d->tensors[k].layers && !d->tensors[k].frozen; l++) {
            TRY(zero_get(r->z, ZERO_GRADIENT, k, l, 0, elems_of(d, k), r->scratch));
            for (int64_t i = 0; i < elems_of(d, k); i++) {
                const float want = toy_rounded(r->config.numbers.dtype, mean[place_of(d, k, l) + i]);
                wrong += memcmp(&want, &r->scratch[i], sizeof want) && !(isnan(want) && isnan(r->scratch[i]));
            }
        }
    EXPECT(!wrong, "%lld gradients are not the tree's sums", (long long)wrong);
    free(all);
    free(mean);
    return 0;
}

// A tensor's layer and a range of elements, for a call that gets or sets values.
typedef struct {
    zero_value what;
    int tensor, layer;
    int64_t from, n;
} range;
static range draw_range(const run *r, zero_value least, zero_value most, uint64_t *s) {
    const drawn *d = r->d;
    range x = { .tensor = below(s, d->n_tensors) };
    x.layer = below(s, d->tensors[x.tensor].layers);
    x.from = below(s, (int)elems_of(d, x.tensor));
    x.n = 1 + below(s, (int)(elems_of(d, x.tensor) - x.from));
    x.what = least + (zero_value)below(s, (int)(most - least) + 1);
    if (x.what < ZERO_GRADIENT && !gives(r, x.what, x.tensor)) x.what = ZERO_PARAM;
    return x;
}

static int get_some(run *r, zero_value least, zero_value most, uint64_t s, record *to) {
    static float values[LARGEST + 1];
    const range x = draw_range(r, least, most, &s);
    if (x.what == ZERO_GRADIENT && r->d->tensors[x.tensor].frozen) return 0;
    TRY(zero_get(r->z, x.what, x.tensor, x.layer, x.from, x.n, values));
    to->values = XXH3_64bits(values, (size_t)x.n * sizeof *values);
    return 0;
}

// Sets parameters or moments. After a load, masters alone would be lost in the parameters.
static int set_some(run *r, uint64_t s) {
    static float values[LARGEST + 1];
    range x = draw_range(r, ZERO_PARAM, ZERO_MOMENT2, &s);
    if (x.what == ZERO_MASTER) x.what = ZERO_PARAM;
    const float most = x.what == ZERO_PARAM ? 1 : 0.01f;
    for (int64_t i = 0; i < x.n; i++) values[i] = most * (float)below(&s, 1000) / 1009;
    TRY(zero_set(r->z, x.what, x.tensor, x.layer, x.from, x.n, values));
    if (x.what == ZERO_PARAM)
        memcpy(r->set + place_of(r->d, x.tensor, x.layer) + x.from, values, (size_t)x.n * sizeof *values);
    return 0;
}

static int step(run *r, const call *c, record *to) {
    const int delays = r->d->trained[DELAYED] && r->how < 0;
    zero_hyper h = { 1e-2f, 0.9f, 0.95f, 1e-3f, 0.1f, c->clips ? 1.0f : 0, r->t + 1 };
    zero_step_result s;
    if (delays) TRY(all_values(r, ZERO_PARAM, r->newest, 0));
    if (c->abandoned) TRY(pass(r, c, 0, c->of, c->abandoned));
    if (c->promises) TRY(zero_promise_update(r->z, &h));
    const zero_traffic before = traffic_of(r);
    memset(r->summed, 0, (size_t)all_elems(r->d) * sizeof *r->summed);
    const int passes = r->config.accumulate_layers ? 1 : c->of;
    for (int m = 0; m < passes; m++) TRY(pass(r, c, m, c->of, INT32_MAX));
    const long opened = copies.opened;
    TRY(zero_finish_gradients(r->z, &s));
    // The reduction sums the squares of sharded gradients, so the norm does not open them again.
    EXPECT(r->config.stage < 2 || r->config.overlap || copies.opened == opened, "the norm opens gradients");
    *to = (record){ s.grad_norm, s.loss_scale, s.finite, 0, 0 };
    // Reading gradients from files is not in the plan, so the last step does not.
    if (c < r->d->calls + r->d->n_calls - 1) TRY(get_some(r, ZERO_GRADIENT, ZERO_GRADIENT, c->draw, to));
    if (r->leaves) TRY(check_tree(r, c->of));
    if (r->how < 0 && r->d->trained[EXACT] && !r->leaves) TRY(check_mean(r, &s));
    TRY(c->discards ? zero_discard(r->z) : zero_update(r->z, &h));
    const int updated = !c->discards && (s.finite || r->config.numbers.dtype != ZERO_F16);
    check_step_traffic(r, &before, c, updated);
    r->steps++;
    r->uneven |= c->of < r->config.micro_batches || c->abandoned || !updated ||
                 h.t < r->config.offload.delayed_update;
    r->t += updated;
    r->pending = updated && r->d->trained[DELAYED] && h.t >= r->d->trained[DELAYED];
    for (int64_t i = 0; i < all_elems(r->d) && delays && r->pending; i++)
        toy_store(r->config.numbers.dtype, r->old, i, r->newest[i]);
    return 0;
}

static int evaluate(run *r, const call *c, record *to) {
    if (c->abandoned > 0) TRY(pass(r, c, 0, 0, c->abandoned));
    const zero_traffic before = traffic_of(r);
    TRY(pass(r, c, 0, 0, INT32_MAX));
    to->activation = activation_of(r);
    const zero_traffic now = traffic_of(r);
    const int64_t sent = now.all_gather[ZERO_FOR_EVAL] - before.all_gather[ZERO_FOR_EVAL];
    EXPECT(!measures(r) || c->abandoned || sent == r->planned.traffic.all_gather[ZERO_FOR_EVAL],
           "an evaluation gathers %lld bytes, not as planned", (long long)sent);
    return 0;
}

static int create(run *r, int how) {
    const drawn *d = r->d;
    const int64_t *h = how < 0 ? plain_settings : d->how[how];
    zero_job job;
    r->how = how;
    r->config = config_of(r, how);
    r->gathered = r->planned_gathers = r->steps = r->uneven = 0;
    TRY(start_device(r, h));
    if (h[COPIES]) start_copies(r);
    ranks_per_host = (int)h[HOSTS];
    TRY(zero_create(&r->z, &r->config, d->tensors, d->n_tensors, d->units, d->n_units));
    if (r->on) {
        r->on_device = zero_alloc(r->z, ZERO_DEVICE, ZERO_ACTIVATIONS, "activation", sizeof r->activation);
        if (!r->on_device) return failed("zero_alloc");
    }
    zero_job_info(r->z, &job);
    zero_config own = r->config;
    own.start.rank = checks.rank;
    TRY(zero_make_plan(&r->planned, &own, d->tensors, d->n_tensors, d->units, d->n_units, checks.ranks,
                       job.ranks_on_host));
    zero_files_info(r->z, &r->at_start);
    check_memory(r);
    check_transport(r);
    return 0;
}

// Whole steps together move the planned bytes, whatever evaluations, digests and values move besides.
static void check_all_moved(run *r) {
    const int p = ZERO_FOR_STEP;
    zero_files files;
    zero_files_info(r->z, &files);
    files.read[p] -= r->at_start.read[p];
    files.written[p] -= r->at_start.written[p];
    EXPECT(r->uneven || (files.read[p] + files.not_read[p] == r->steps * r->planned.file_read &&
                         files.written[p] == r->steps * r->planned.file_written),
           "%d steps have read %lld bytes, found %lld in memory and written %lld; planned are %lld and %lld",
           r->steps, (long long)files.read[p], (long long)files.not_read[p], (long long)files.written[p],
           (long long)r->planned.file_read, (long long)r->planned.file_written);
}

// After a failure, too.
static void destroy(run *r) {
    if (r->z && !*problem) {
        check_memory(r);
        check_all_moved(r);
        EXPECT(r->gathered == r->planned_gathers || !r->d->trained[DELAYED],
               "updates gathered %lld bytes, planned are %lld", (long long)r->gathered,
               (long long)r->planned_gathers);
    }
    const int open = copies_stop();
    EXPECT(!open && !copies.breach[0], "%d copies are open: %s", open, copies.breach);
    zero_destroy(r->z);
    r->z = NULL;
    end_device(r);
}

// The naive run simply goes on.
static int resume(run *r) {
    char path[100];
    snprintf(path, sizeof path, "%s/saved", folder);
    TRY(finish_update(r));
    if (r->how < 0) return 0;
    TRY(zero_save(r->z, path, NULL));
    destroy(r);
    TRY(create(r, !r->how));
    TRY(zero_load(r->z, path, NULL));
    return 0;
}

static int make_call(run *r, int i) {
    const call *c = &r->d->calls[i];
    record *to = &r->to->records[i];
    if (c->kind == SET && c->abandoned) TRY(pass(r, c, 0, 0, c->abandoned));  // gathers are in progress
    if (c->kind == GET || c->kind == SET) TRY(finish_update(r));
    if (c->kind == STEP) return step(r, c, to);
    if (c->kind == EVAL) return evaluate(r, c, to);
    if (c->kind == GET) return get_some(r, ZERO_PARAM, ZERO_MOMENT2, c->draw, to);
    return c->kind == SET ? set_some(r, c->draw) : resume(r);
}

// Returns 1 if call i follows two like it, so that the order of uses is known and delayed updates are too.
static int is_steady(const run *r, int i) {
    const drawn *d = r->d;
    if (i < 2 || d->trained[SHUFFLED] || (d->trained[DELAYED] && r->t <= d->trained[DELAYED])) return 0;
    for (const call *c = &d->calls[i - 2]; c <= &d->calls[i]; c++)
        if (c->kind != STEP || c->of != r->config.micro_batches || c->discards || c->abandoned) return 0;
    return r->to->records[i - 2].finite && r->to->records[i - 1].finite;
}

// The last step, of which every byte is planned.
static int make_last_call(run *r, int i) {
    zero_files before;
    if (!measures(r) || !is_steady(r, i)) return make_call(r, i);
    zero_files_info(r->z, &before);
    const trace_totals totals = totals_of(r->z);
    TRY(make_call(r, i));
    TRY(zero_barrier(r->z));
    if (r->to->records[i].finite) check_moved(r, &before, &totals);
    return 0;
}

static int set_initial(run *r) {
    const drawn *d = r->d;
    for (int k = 0; k < d->n_tensors; k++)
        for (int l = 0; l < d->tensors[k].layers; l++)
            for (int64_t i = 0; i < elems_of(d, k); i++) r->set[place_of(d, k, l) + i] = toy_initial(k, l, i);
    return all_values(r, ZERO_PARAM, r->set, 1);
}

static int run_case(run *r, int how) {
    TRY(create(r, how));
    TRY(set_initial(r));
    for (int i = 0; i < r->d->n_calls; i++) TRY((i < r->d->n_calls - 1 ? make_call : make_last_call)(r, i));
    TRY(finish_update(r));
    for (int full = 0; full < 2; full++) TRY(zero_hash(r->z, full, r->to->digests[full]));
    for (int what = ZERO_PARAM; what < VALUES; what++)
        TRY(all_values(r, (zero_value)what, r->to->values[what], 0));
    EXPECT(!r->wrong_pieces, "the update as a function got wrong arguments");
    for (int k = 0; k < r->d->n_tensors; k++)
        for (int64_t i = place_of(r->d, k, 0); i < place_of(r->d, k + 1, 0) && r->d->tensors[k].frozen; i++)
            EXPECT(r->to->values[ZERO_PARAM][i] == toy_rounded(r->config.numbers.dtype, r->set[i]),
                   "frozen tensor %d has changed", k);
    return 0;
}

// Runs the case and fills *to. After a failure some of it is 0.
static void run_all(const drawn *d, int how, result *to) {
    run r = {
        .d = d, .to = to, .old = floats(d), .newest = floats(d), .set = floats(d), .scratch = floats(d)
    };
    r.summed = calloc((size_t)all_elems(d), sizeof *r.summed);
    if (!r.summed) MUST(ZERO_ERR_MEMORY);
    for (int i = 0; i < VALUES; i++) to->values[i] = floats(d);
    if (how < 0 && d->trained[LAYERS])
        r.leaves = calloc((size_t)(3 * MOST_MICRO * all_elems(d)), sizeof(float));
    if (how < 0 && d->trained[LAYERS] && !r.leaves) MUST(ZERO_ERR_MEMORY);
    (void)run_case(&r, how);
    destroy(&r);
    free(r.old);
    free(r.newest);
    free(r.set);
    free(r.scratch);
    free(r.summed);
    free(r.leaves);
}

// A plugin for inference evaluates with the same bits, and gathers units with private memory only once.
static int infer(run *r, const result *want, int how) {
    int64_t once = 0;
    TRY(create(r, how));
    const state *params = rank_state(r->z, ZERO_PARAM);
    TRY(all_values(r, ZERO_PARAM, want->values[ZERO_PARAM], 1));
    for (int i = 0; i < 2; i++)
        TRY(evaluate(r, &(call){ .kind = EVAL, .abandoned = -1 }, &r->to->records[i]));
    EXPECT(!memcmp(&r->to->records[0], &r->to->records[1], sizeof(record)), "two evaluations differ");
    TRY(zero_hash(r->z, 0, r->to->digests[0]));
    EXPECT(!strcmp(r->to->digests[0], want->digests[0]), "inference has other parameters");
    for (int s = 0; s < r->z->layout.n_stored && r->config.stage == 3; s++)
        if (r->z->layout.units[r->z->layout.units[s].of].shared) once += r->z->layout.units[s].shard;
    once *= state_parts(params) * (params->group - 1) * (int64_t)dtype_bytes(params->dtype);
    const zero_traffic t = traffic_of(r);
    EXPECT(!measures(r) ||
               t.all_gather[ZERO_FOR_EVAL] == 2 * r->planned.traffic.all_gather[ZERO_FOR_EVAL] + once,
           "inference gathers %lld bytes, not as planned", (long long)t.all_gather[ZERO_FOR_EVAL]);
    EXPECT(!t.all_gather[ZERO_FOR_STEP] && !t.reduce_scatter[ZERO_FOR_STEP], "inference trains");
    return 0;
}

static void run_inference(const drawn *d, const result *want) {
    result got = { 0 };
    run r = { .d = d, .to = &got, .infers = 1 };
    (void)infer(&r, want, 0);
    destroy(&r);
}

// -------- comparison

static void compare(const drawn *d, const result *want, const result *got) {
    static const char *const names[VALUES] = { "parameter", "master", "first moment", "second moment" };
    for (int i = 0; i < d->n_calls; i++)
        EXPECT(!memcmp(&want->records[i], &got->records[i], sizeof(record)),
               "call %d (%s) gives norm %.17g, finite %d, scale %g, activation %.9g, values %llx instead of "
               "%.17g, %d, %g, %.9g, %llx",
               i, call_names[d->calls[i].kind], got->records[i].norm, got->records[i].finite,
               got->records[i].scale, got->records[i].activation, (unsigned long long)got->records[i].values,
               want->records[i].norm, want->records[i].finite, want->records[i].scale,
               want->records[i].activation, (unsigned long long)want->records[i].values);
    for (int what = 0; what < VALUES; what++)
        for (int64_t i = 0; i < all_elems(d); i++)
            EXPECT(!memcmp(&want->values[what][i], &got->values[what][i], sizeof(float)),
                   "%s %lld is %.9g instead of %.9g", names[what], (long long)i, got->values[what][i],
                   want->values[what][i]);
    EXPECT(!memcmp(want->digests, got->digests, sizeof want->digests),
           "digests %s and %s instead of %s and %s", got->digests[0], got->digests[1], want->digests[0],
           want->digests[1]);
}

// Everything but the activations is the same on all ranks.
static void compare_ranks(const drawn *d, const result *r) {
    result first = *r;
    MPI_Bcast(first.records, sizeof first.records, MPI_BYTE, 0, MPI_COMM_WORLD);
    for (int i = 0; i < d->n_calls; i++) {
        first.records[i].activation = r->records[i].activation;
        EXPECT(!memcmp(&first.records[i], &r->records[i], sizeof(record)), "call %d differs between ranks",
               i);
    }
}

static char text[1 << 14];  // the case that is running

// (collective) Returns 1 if a rank has found a problem.
static int case_fails(const drawn *d) {
    result want = { 0 }, got = { 0 };
    *problem = 0;
    print_case(d, text, sizeof text);
    run_all(d, -1, &want);
    if (!check_any(*problem != 0)) run_all(d, 0, &got);
    if (!check_any(*problem != 0)) compare(d, &want, &got);
    if (!check_any(*problem != 0)) compare_ranks(d, &got);
    if (!check_any(*problem != 0) && d->trained[INFERENCE]) run_inference(d, &want);
    for (int i = 0; i < VALUES; i++) {
        free(want.values[i]);
        free(got.values[i]);
    }
    return check_any(*problem != 0);
}

static void print_problem(const drawn *d, const char *what) {
    char all[2][sizeof problem];
    const int first = check_any(*problem ? checks.ranks - checks.rank : 0);  // the lowest rank with a problem
    print_case(d, text, sizeof text);
    memcpy(all[0], problem, sizeof problem);
    MPI_Bcast(all[0], sizeof all[0], MPI_CHAR, checks.ranks - first, MPI_COMM_WORLD);
    if (!checks.rank) fprintf(stderr, "%s: rank %d: %s\n%s", what, checks.ranks - first, all[0], text);
}

static void shrink(const drawn *failing) {
    const double start = MPI_Wtime();
    drawn best = *failing;
    for (int i = 0; !check_any(MPI_Wtime() - start > SHRINK_S); i++) {
        drawn d = best;
        if (!make_smaller(&d, i)) break;
        if (!is_possible(&d)) continue;
        make_legal(&d);
        if (!memcmp(&d, &best, sizeof d) || !case_fails(&d)) continue;
        best = d;
        i = -1;
    }
    case_fails(&best);
    print_problem(&best, "the smallest case that fails");
}

// -------- the program

static void print_running(int signal) {
    if (!checks.rank && write(2, text, strlen(text)) < 0) _exit(2);
    _exit(1);
}

static void run_seed(uint64_t seed) {
    const drawn d = draw_case(seed, checks.ranks);
    CHECK_SETTING("seed %llu", (unsigned long long)seed);
    checks.failed = case_fails(&d);
    if (!checks.failed) return;
    print_problem(&d, "FAILED");
    shrink(&d);
}

static void set_possible(void) {
#ifdef ZERO_HAVE_CUDA
    possible.cuda = zero_cuda_devices() > 0;
    possible.nccl = possible.cuda && use_devices(checks.ranks);
    possible.manners = MANNERS;
#endif
}

static void body(const char *asked) {
    static const int fatal[] = { SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTERM };
    const double start = MPI_Wtime(), seconds = atof(asked);
    const char *first = getenv("SEED");
    uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
    for (int i = 0; i < (int)(sizeof fatal / sizeof *fatal); i++) signal(fatal[i], print_running);
    set_possible();
    check_make_folder(folder, sizeof folder, "build");
    // Units that stayed gathered between micro-batches although the plan did not say so.
    static const uint64_t found[] = { 5099, 5122, 5221 };
    for (size_t i = 0; !first && !(seconds > 0) && !checks.failed && i < sizeof found / sizeof *found; i++)
        run_seed(found[i]);
    for (uint64_t n = 0; !checks.failed; n++) {
        if (seconds > 0 ? !check_any(MPI_Wtime() - start < seconds) : n == CASES) break;
        run_seed(seed + n);
    }
    char path[100];
    snprintf(path, sizeof path, "%s/saved", folder);
    MPI_Barrier(MPI_COMM_WORLD);
    if (checks.rank) return;
    zero_checkpoint_remove(path);
    CHECK(!rmdir(folder));
}

int main(int argc, char **argv) { return checks_main(argc, argv, "mpi_bits", body); }
