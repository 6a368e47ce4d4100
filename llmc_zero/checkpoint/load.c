// Every rank reads what it owns from the files that have it, however many ranks wrote them. It reads whole
// blocks and checks each against the manifest's digest. If states could be lost, it first reads and checks
// everything it needs, and reads it again to use it once all ranks have found theirs good. A plugin whose
// states are all still 0 reads once, and zeroes its states after a failure.
#include "block_sums.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    zero *z;
    block_reader from;
    int uses;  // 0: values are only checked
} source;

static int read_piece(void *ctx, int saved, state_range r) {
    source *s = ctx;
    zero *z = s->z;
    const int64_t shard = layout_before(&z->layout.units[r.unit], r.part), from = shard + r.from;
    s->from.needs_from = shard;
    s->from.needs_until = shard + z->layout.units[r.unit].shard;
    ZERO_TRY(blocks_read_unit(&s->from, r.unit, saved, from, r.elems, states_room(z)));
    if (!s->uses) return 0;
    return states_write(z, saved_values[saved], r, STATE_WRITE, states_room(z));
}

// -------- the checkpoint

// Each rank reads the manifest itself; all check that they read the same.
static int read_manifest(zero *z, manifest *m, const char *folder) {
    const net *n = &z->net;
    int rc = manifest_read(m, folder);
    if (!rc) rc = manifest_check_model(m, &z->layout);
    ZERO_TRY(agree(z, rc));
    uint64_t first = m->digest;
    ZERO_TRY(zero_broadcast(z, 0, &first, sizeof first));
    if (first != m->digest)
        rc = zero_fail_rank(
            ZERO_ERR_IO, n->rank, net_host(n, n->rank),
            " has another checkpoint than rank 0 (host %s) in %s: all ranks must see one folder",
            net_host(n, 0), folder);
    return agree(z, rc);
}

static int clear_piece(void *ctx, int saved, state_range r) {
    zero *z = ctx;
    memset(states_room(z), 0, r.elems * sizeof(float));
    return states_write(z, saved_values[saved], r, STATE_WRITE, states_room(z));
}

// rc: the result of reading. Returns it, or the error of clearing.
static int clear_after(int rc, zero *z) {
    if (!rc) return 0;
    at_work work = at_work_begin(z);
    int cleared = at_work_end(&work, visit_parts(&work, 1, clear_piece, z));
    if (cleared) states_touch(z);
    return cleared ? cleared : rc;
}

// Returns when all ranks have read their parts, or one has failed.
static int read_once(source *s, const manifest *m) {
    at_work work = at_work_begin(s->z);
    int rc = blocks_begin(&s->from, m, &work);
    if (!rc) rc = visit_parts(&work, 1, read_piece, s);
    blocks_end(&s->from);
    return at_work_end(&work, rc);
}

static int read_states(zero *z, const manifest *m) {
    source s = { .z = z, .uses = !states_are_touched(z) };
    int rc = read_once(&s, m);
    if (s.uses) return clear_after(rc, z);
    if (rc) return rc;
    s.uses = 1;
    return read_once(&s, m);
}

static int text_of(const manifest *m, char **text) {
    *text = json_dumps(json_object_get(m->root, "trainer"), JSON_COMPACT);
    return *text ? 0 : zero_fail(ZERO_ERR_MEMORY, "%s: out of memory for the trainer's text", m->path);
}

static int load_folder(zero *z, const char *path, char **text) {
    manifest m;
    int rc = read_manifest(z, &m, path);
    if (!rc) rc = agree(z, text_of(&m, text));
    if (!rc) rc = read_states(z, &m);
    if (!rc) step_restore_scale(z, m.dtype, &m.scale);
    manifest_free(&m);
    return rc;
}

// Gathers a unit on all ranks, and waits: nothing else runs on the device.
static int gather_now(zero *z, state *s, int unit) {
    const comm_use use = { .purpose = ZERO_FOR_CHECKPOINT, .unit = unit, .units = 1 };
    state_part p;
    ZERO_TRY(wait_for_device(z, COMM));
    ZERO_TRY(state_open(&p, s, z->comm.gather_stream, unit, STATE_WHOLE, STATE_CHANGE));
    comm_piece piece = { p.at, state_own(&p), z->layout.units[unit].shard };
    int rc = comm_all_gather(&z->comm, use, &piece, 1, dtype_bytes(s->dtype));
    ZERO_TRY(state_close_after(rc, &p, 1));
    return wait_for_device(z, z->comm.gather_stream);
}

// If masters or parameters are on the host's side of the bus, both go through the host in small pieces.
static int round_on_host(zero *z, state_range r) {
    const int64_t end = r.from + r.elems;
    for (; r.from < end; r.from += r.elems) {
        r.elems = end - r.from < VALUES_CHUNK ? end - r.from : VALUES_CHUNK;
        ZERO_TRY(states_read(z, ZERO_MASTER, r, states_room(z)));
        ZERO_TRY(states_write(z, ZERO_PARAM, r, STATE_WRITE, states_room(z)));
    }
    return 0;
}

static int round_range(zero *z, state_range r) {
    return state_goes_across(&z->config) ? round_on_host(z, r) : params_round(z, &z->device, COMM, r);
}

static int round_masters(zero *z, int unit) {
    const int64_t shard = z->layout.units[unit].shard;
    state_range r = { .unit = unit, .part = z->comm.group.rank };
    for (; r.from < shard; r.from += r.elems) {
        r.elems = shard - r.from;
        r.elems = state_span(states_get(z, ZERO_PARAM), r);
        r.elems = state_span(states_get(z, ZERO_MASTER), r);
        ZERO_TRY(round_range(z, r));
    }
    return 0;
}

// Every rank has read its own parts. Rounds parameters from their masters and gathers the units that this
// stage keeps whole.
static int run_complete(void *ctx, task *k) {
    (void)k;
    zero *z = ctx;
    for (int u = 0; u < z->layout.n_units; u++) {
        if (states_get(z, ZERO_MASTER)->kept) ZERO_TRY(round_masters(z, u));
        for (int what = 0; what < STATES; what++) {
            state *s = states_get(z, what);
            if (what != ZERO_GRADIENT && s->kept && !s->sharded) ZERO_TRY(gather_now(z, s, u));
        }
    }
    return z->device.f->wait(&z->device, COMM);
}

int zero_load(zero *z, const char *path, char **text) {
    char *own = NULL;
    ZERO_TRY(pass_may_train(z, "zero_load"));
    ZERO_TRY(pass_outside_step(z, "zero_load"));
    ZERO_TRY(update_settle(z));
    ZERO_TRY(params_drop_all(z));
    int rc = load_folder(z, path, &own);
    if (!rc) update_forget(z);
    if (!rc) states_touch(z);
    if (!rc) rc = tasks_run(&z->tasks, run_complete, z);
    if (!rc && text)
        *text = own;
    else
        free(own);
    return rc;
}

int zero_checkpoint_text(const char *path, char **text) {
    manifest m;
    int rc = manifest_read(&m, path);
    if (!rc) rc = text_of(&m, text);
    manifest_free(&m);
    return rc;
}
