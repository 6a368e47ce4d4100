#include "state_file.h"
#include "../base/error.h"
#include "../base/tasks.h"
#include "../placement.h"
#include <pthread.h>
#include <string.h>

// -------- in the files

typedef struct file_buffer {
    char *memory;
    int taken;
    file_transfer write;  // of its previous contents
    int unit;
} file_buffer;

struct state_files {
    file_engine *engine;
    trace *trace;
    int n_units;
    int64_t placed;        // bytes of the files in use
    pthread_mutex_t lock;  // for the counters, and for `taken` and `write` of the buffers
    file_buffer *buffers;
    int n_buffers;
    file_buffer *sums;  // (n_units) memory in which a unit's gradients are reduced
    int halves;         // of that memory
    state_moved of_steps;
};

// A part begins at the same offset within a page in its file and in the gathered unit, for direct reads.
static size_t skew(const state *s, int unit) {
    return layout_before(&s->layout->units[unit], s->rank) * dtype_bytes(s->dtype) % FILE_ALIGN;
}

size_t state_file_bytes(const state *s, state_range r) {
    const size_t size = dtype_bytes(s->dtype);
    int64_t first = skew(s, r.unit) + r.from * size;
    return round_up(first + r.elems * size, FILE_ALIGN) - round_down(first, FILE_ALIGN);
}

file_settings state_file_settings(const zero_config *c, int rank) {
    const zero_offload_config *o = &c->offload;
    return (file_settings){ .folders = o->nvme,
                            .block_bytes = o->nvme_block_bytes,
                            .depth = o->nvme_depth,
                            .threads = o->nvme_threads,
                            .verify = o->nvme_verify,
                            .timeout_s = c->comm.timeout_s,
                            .rank = rank };
}

// Blocks alternate between the folders, so if regions can exceed a block, they start on block boundaries.
static size_t region_bytes(const state *s, const zero_config *c, int unit) {
    const size_t block = c->offload.nvme_block_bytes;
    const size_t align = placement_largest_part(c, s->layout) * sizeof(float) > block ? block : FILE_ALIGN;
    const int64_t away = placement_away(s->what, c, s->layout, s->rank, unit);
    return away ? round_up(skew(s, unit) + away * dtype_bytes(s->dtype), align) : 0;
}

// A bucket's sums are adjacent in its half, and each starts at a page boundary.
static void plan_sums(state_files_plan *p, const state *s) {
    const layout *l = s->layout;
    p->halves = l->n_buckets < 2 ? l->n_buckets : 2;
    for (int i = 0; i < l->n_buckets; i++) {
        size_t bytes = 0;
        for (int u = 0; u < l->n_units; u++)
            if (l->units[u].bucket == i) bytes += state_file_bytes(s, state_all(s, u, s->rank));
        if (bytes > p->half_bytes) p->half_bytes = bytes;
    }
}

state_files_plan state_plan_files(const zero_config *c, const layout *l, int rank) {
    state_files_plan p = { .buffer_bytes = placement_piece_elems(c, l) * sizeof(float) + 2 * FILE_ALIGN };
    for (int what = 0; what < STATES; what++) {
        state s = state_of(what, c, l, rank, NULL);
        if (!s.kept || !placement_in_files(what, c)) continue;
        for (int u = 0; u < state_units(&s); u++) {
            const int versions = 1 + (what == ZERO_PARAM && placement_has_next(c, l, rank, u));
            p.file_bytes[what] += versions * region_bytes(&s, c, u);
        }
        if (!p.file_bytes[what]) continue;
        p.buffers += what == ZERO_GRADIENT ? 2 : 3;  // one being read, one in use, one being written
        if (what == ZERO_PARAM && c->device == ZERO_CUDA) p.buffers += STATE_FETCHES;
        if (what == ZERO_GRADIENT) plan_sums(&p, &s);
    }
    p.pool_bytes = p.buffers * p.buffer_bytes + p.halves * p.half_bytes;
    return p;
}

// -------- opening the files

static void place_sums(struct state_files *f, const state_files_plan *p, const zero_config *c,
                       const layout *l, int rank, char *halves) {
    const state s = state_of(ZERO_GRADIENT, c, l, rank, NULL);
    size_t used[l->n_buckets];
    f->halves = p->halves;
    memset(used, 0, sizeof used);
    for (int u = 0; u < l->n_units; u++) {
        const int bucket = l->units[u].bucket;
        if (bucket < 0) continue;
        f->sums[u] = (file_buffer){ .memory = halves + bucket % p->halves * p->half_bytes + used[bucket],
                                    .unit = u };
        used[bucket] += state_file_bytes(&s, state_all(&s, u, rank));
    }
}

int state_files_open(struct state_files **out, const zero_config *c, const layout *l, int rank, memory *m,
                     char *pool, trace *tr) {
    const state_files_plan plan = state_plan_files(c, l, rank);
    file_settings settings = state_file_settings(c, rank);
    settings.time = tr->time;
    int64_t bytes = 0;
    for (int what = 0; what < STATES; what++) bytes += plan.file_bytes[what];
    struct state_files *f = memory_array(m, 1, sizeof *f);
    if (!f) return ZERO_ERR_MEMORY;
    f->trace = tr;
    f->n_units = l->n_units;
    f->n_buffers = plan.buffers;
    f->buffers = memory_array(m, plan.buffers, sizeof *f->buffers);
    if (plan.halves) f->sums = memory_array(m, l->n_units, sizeof *f->sums);
    if (!f->buffers || (plan.halves && !f->sums)) return ZERO_ERR_MEMORY;
    for (int i = 0; i < plan.buffers; i++) f->buffers[i].memory = pool + i * plan.buffer_bytes;
    if (plan.halves) place_sums(f, &plan, c, l, rank, pool + plan.buffers * plan.buffer_bytes);
    if (pthread_mutex_init(&f->lock, NULL))
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the states in files");
    ZERO_TRY(file_open(&f->engine, &settings, bytes));
    *out = f;
    file_buffers(f->engine, pool, plan.pool_bytes);
    return 0;
}

int state_files_close(struct state_files *f) {
    if (!f) return 0;
    const int hangs = file_close(f->engine);
    pthread_mutex_destroy(&f->lock);
    return hangs;
}

// An I/O error here loses the states themselves. It must not look like a checkpoint error, which callers
// handle by trying an older checkpoint.
static int lost_states(int rc) {
    failure_record failure = *zero_failed();
    if (rc != ZERO_ERR_IO) return rc;
    failure.fields.code = ZERO_ERR_TIER;
    return zero_fail_again(&failure);
}

// Another thread may be looking at the transfer: see state_files_have_buffers.
static void set_transfer(struct state_files *f, file_transfer *t, const file_transfer *to) {
    pthread_mutex_lock(&f->lock);
    *t = *to;
    pthread_mutex_unlock(&f->lock);
}

// Waits for a transfer, and records it in the trace.
static int finish(struct state_files *f, file_transfer *t, int unit) {
    int rc = lost_states(file_wait(f->engine, t));
    if (t->bytes && t->ended_s > 0)
        trace_add_past(f->trace, &(trace_event){ .kind = t->write ? EVENT_WRITE : EVENT_READ,
                                                 .unit = unit,
                                                 .lane = t->write ? LANE_WRITES : LANE_IO,
                                                 .bytes = t->bytes,
                                                 .start_s = t->started_s,
                                                 .end_s = t->ended_s });
    set_transfer(f, t, &(file_transfer){ 0 });
    return rc;
}

// Errors are ignored here: the engine keeps the first one and returns it to later callers.
void state_files_describe(struct state_files *f, zero_files *info) {
    for (int i = 0; i < f->n_buffers; i++) finish(f, &f->buffers[i].write, f->buffers[i].unit);
    for (int i = 0; f->sums && i < f->n_units; i++) finish(f, &f->sums[i].write, i);
    pthread_mutex_lock(&f->lock);
    *info = (zero_files){ .how = file_name(f->engine),
                          .read = { [ZERO_FOR_STEP] = f->of_steps.read },
                          .written = { [ZERO_FOR_STEP] = f->of_steps.written },
                          .waited_s = file_count(f->engine).waited_s };
    pthread_mutex_unlock(&f->lock);
}

// -------- the pool

// Returns a free buffer, preferably one that is not being written. NULL: all are in use.
static file_buffer *best_buffer(struct state_files *f) {
    file_buffer *writing = NULL;
    for (file_buffer *b = f->buffers; b < f->buffers + f->n_buffers; b++) {
        if (b->taken) continue;
        if (file_done(f->engine, &b->write)) return b;
        if (!writing) writing = b;
    }
    return writing;
}

int state_files_have_buffers(struct state_files *f) {
    int n = 0;
    pthread_mutex_lock(&f->lock);
    for (const file_buffer *b = f->buffers; b < f->buffers + f->n_buffers; b++)
        n += !b->taken && file_done(f->engine, &b->write);
    pthread_mutex_unlock(&f->lock);
    return n >= f->n_buffers / 3;
}

static int take_buffer(struct state_files *f, file_buffer **out) {
    pthread_mutex_lock(&f->lock);
    file_buffer *b = best_buffer(f);
    if (b) b->taken = 1;
    pthread_mutex_unlock(&f->lock);
    *out = b;
    if (!b)
        return zero_fail(ZERO_ERR_MISUSE, "all %d buffers of the states in files are in use", f->n_buffers);
    return finish(f, &b->write, b->unit);
}

// Waits until the unit's sums, and those of other buckets in its half, have been written. Then returns the
// unit's memory. Only reductions call this, one at a time.
static int take_sums(struct state_files *f, const layout *l, int unit, file_buffer **out) {
    const int half = l->units[unit].bucket % f->halves;
    *out = &f->sums[unit];
    for (int u = 0; u < f->n_units; u++) {
        const int others = l->units[u].bucket != l->units[unit].bucket &&
                           l->units[u].bucket % f->halves == half;
        if (others || u == unit) ZERO_TRY(finish(f, &f->sums[u].write, u));
    }
    return 0;
}

static void give_buffer(struct state_files *f, file_buffer *b) {
    pthread_mutex_lock(&f->lock);
    b->taken = 0;
    pthread_mutex_unlock(&f->lock);
}

// -------- the store

// Finds the range's whole pages in the files. Returns the number of bytes before the range in the first page.
static size_t locate(const state_part *p, int64_t *offset, size_t *bytes) {
    const state *s = p->of;
    const int64_t inside = skew(s, p->range.unit) + p->range.from * dtype_bytes(s->dtype);
    *offset = s->units[p->range.unit].region + round_down(inside, FILE_ALIGN);
    *bytes = state_file_bytes(s, p->range);
    return inside % FILE_ALIGN;
}

// Returns 1 if the part's pages contain nothing outside its range, so writing them needs no prior read.
static int owns_its_pages(const state_part *p) {
    const state *s = p->of;
    const int64_t before = layout_before(&s->layout->units[p->range.unit], s->rank);
    const int64_t from = p->range.from, end = from + p->range.elems, away = s->units[p->range.unit].away;
    return (from == 0 || (before + from) % PAGE_ELEMS == 0) &&
           (end == away || (before + end) % PAGE_ELEMS == 0);
}

static void count(const state_part *p, size_t read, size_t written) {
    struct state_files *f = p->of->files;
    state_moved *moved = p->moved ? p->moved : &f->of_steps;
    pthread_mutex_lock(&f->lock);
    moved->read += (int64_t)read;
    moved->written += (int64_t)written;
    pthread_mutex_unlock(&f->lock);
}

static int files_begin(state_part *p) {
    state *s = p->of;
    p->buffer = NULL;
    p->transfer = (file_transfer){ 0 };
    if (p->range.from >= s->units[p->range.unit].away) return 0;
    size_t bytes, inside = locate(p, &p->transfer.offset, &bytes);
    int direct = p->into && p->intent == STATE_READ;
    const int reduces = s->what == ZERO_GRADIENT && p->intent != STATE_READ;
    if (reduces)
        ZERO_TRY(take_sums(s->files, s->layout, p->range.unit, &p->buffer));
    else if (!direct)
        ZERO_TRY(take_buffer(s->files, &p->buffer));
    p->transfer.urgent = s->what == ZERO_PARAM && p->intent == STATE_READ;  // for a gather
    p->transfer.data = direct ? p->into - inside : p->buffer->memory;
    p->transfer.bytes = bytes;
    if (p->intent == STATE_WRITE && owns_its_pages(p)) return 0;
    count(p, bytes, 0);
    return lost_states(file_start(s->files->engine, &p->transfer));
}

static int files_ready(state_part *p) {
    const state *s = p->of;
    int64_t offset;
    size_t bytes;
    const int is_away = p->range.from < s->units[p->range.unit].away;
    p->at = is_away ? p->transfer.data + locate(p, &offset, &bytes) : state_kept_at(s, p->range);
    return is_away ? finish(s->files, &p->transfer, p->range.unit) : 0;
}

static int files_close(state_part *p) {
    struct state_files *f = p->of->files;
    file_buffer *b = p->buffer;
    if (!b) return 0;
    int rc = 0;
    if (p->intent != STATE_READ) {
        file_transfer write = { .data = b->memory, .write = 1 };
        locate(p, &write.offset, &write.bytes);
        count(p, 0, write.bytes);
        b->unit = p->range.unit;
        set_transfer(f, &b->write, &write);
        rc = lost_states(file_start(f->engine, &b->write));
    }
    give_buffer(f, b);
    return rc;
}

static void files_abandon(state_part *p) {
    finish(p->of->files, &p->transfer, p->range.unit);
    if (p->buffer) give_buffer(p->of->files, p->buffer);
}

static const state_store in_files = {
    .create = state_create_kept,
    .begin = files_begin,
    .ready = files_ready,
    .close = files_close,
    .abandon = files_abandon,
    .reuses = 1,
};

int64_t state_files_not_read(const state *s, state_range read) {
    const state_range all = state_all(s, read.unit, s->rank);
    if (!s->units[read.unit].away || read.elems == all.elems) return 0;
    return (int64_t)(state_file_bytes(s, all) - (read.elems ? state_file_bytes(s, read) : 0));
}

// Places the elements that are away in the files, after those placed before.
static int place(state *s, const zero_config *c, memory *m, int n_units) {
    ZERO_TRY(state_split_units(s, c, m, n_units));
    for (int u = 0; u < n_units; u++) {
        s->units[u].region = s->files->placed;
        s->files->placed += region_bytes(s, c, u);
    }
    return 0;
}

int state_keep_in_files(state *s, struct state_files *f, const zero_config *c, memory *m) {
    s->store = &in_files;
    s->files = f;
    return place(s, c, m, state_units(s));
}

int state_keep_next(state *next, const state *params, const zero_config *c, memory *m) {
    *next = *params;
    return params->files ? place(next, c, m, next->layout->n_units) : 0;
}

void state_publish(const state *params, const state *next, int unit) {
    const int64_t old = params->units[unit].region;
    params->units[unit].region = next->units[unit].region;
    next->units[unit].region = old;
}
