// Each rank reads its own parts from the files that have them, no matter how many ranks wrote those. It reads
// whole blocks and checks them against the manifest's digests. If a failure could destroy states, each rank
// first reads and checks all its parts, and loads them only in a second read, after all ranks have succeeded.
// If all states are still 0, it reads once, and clears the states after a failure.
#include "../settings/settings.h"
#include "blocks.h"
#include <stdlib.h>
#include <string.h>

// -------- the checkpoint

// Each rank reads the manifest itself, and compares it with rank 0's.
static int read_manifest(zero *z, manifest *m, const char *folder) {
    const net *n = &z->net;
    int rc = manifest_read(m, folder);
    if (!rc) rc = manifest_check_model(m, &z->layout);
    if (!rc && m->update_states != z->config.update_states)
        rc = zero_fail(ZERO_ERR_ARGUMENT,
                       "%s: was saved with %d optimizer states per parameter, but this run has %d "
                       "(update_states)",
                       m->path, m->update_states, z->config.update_states);
    const char *update = settings_update(&z->config);
    if (!rc && update && m->update && strcmp(update, m->update))
        rc = zero_fail(ZERO_ERR_ARGUMENT,
                       "%s: its optimizer is %s, and this run's is %s (update_with and update_name)", m->path,
                       m->update, update);
    ZERO_TRY(agree(z, rc));
    uint64_t first = m->digest;
    ZERO_TRY(zero_broadcast(z, 0, &first, sizeof first));
    if (first != m->digest)
        rc = zero_fail_rank(
            ZERO_ERR_IO, n->rank, net_host(n, n->rank),
            " sees a different checkpoint than rank 0 (host %s) in %s: all ranks must share one folder",
            net_host(n, 0), folder);
    return agree(z, rc);
}

// from NULL: the values are 0. uses 0: they are only checked. Parameters are rounded from their masters.
static int read_piece(zero *z, block_reader *from, const saved_piece *p, int uses) {
    const layout_unit *u = &z->layout.units[p->at.unit];
    const int64_t shard = layout_before(u, p->at.part);
    float *room = rank_states_room(z);
    if (from) {
        from->needs_from = shard;
        from->needs_until = shard + u->shard;
        ZERO_TRY(blocks_read_unit(from, p->at.unit, p->saved, shard + p->at.from, p->at.elems, room));
    } else {
        memset(room, 0, p->at.elems * sizeof *room);
    }
    if (!uses) return 0;
    if (rank_state_with(z, saved_values[p->saved], p->at.unit)->what == ZERO_MASTER)
        ZERO_TRY(rank_state_write(z, ZERO_PARAM, p->at, STATE_WRITE, room));
    return rank_state_write(z, saved_values[p->saved], p->at, STATE_WRITE, room);
}

// Returns when all ranks have read their parts or one rank has failed. from, uses: see read_piece.
static int read_all(zero *z, block_reader *from, const manifest *m, int uses) {
    at_work work = at_work_begin(z);
    int rc = from ? blocks_begin(from, m, &work) : 0;
    for (saved_piece p = pieces_of(z, 1); !rc && pieces_next(&p);) {
        rc = read_piece(z, from, &p, uses);
        if (!rc) rc = at_work_goes_on(&work);
    }
    if (from) blocks_end(from);
    return at_work_end(&work, rc);
}

static int read_states(zero *z, const manifest *m) {
    const int can_be_lost = rank_states_are_touched(z);
    block_reader from;
    if (can_be_lost) ZERO_TRY(read_all(z, &from, m, 0));
    int rc = read_all(z, &from, m, 1);
    if (!rc || can_be_lost) return rc;
    int cleared = read_all(z, NULL, NULL, 1);
    if (cleared) rank_states_touch(z);
    return cleared ? cleared : rc;
}

static int load_folder(zero *z, const char *path, char **text) {
    manifest m;
    int rc = read_manifest(z, &m, path);
    if (!rc) rc = agree(z, manifest_text(&m, text));
    if (!rc) rc = read_states(z, &m);
    if (!rc) step_restore_scale(z, m.dtype, &m.scale);
    manifest_free(&m);
    return rc;
}

// Gathers the states of which this stage keeps more than the own parts, which are all that a rank has read.
static int run_complete(void *ctx, task *k) {
    zero *z = ctx;
    ZERO_TRY(wait_for_device(z, COMM));
    for (int u = 0; u < z->layout.n_stored; u++) {
        const comm_use use = { .purpose = ZERO_FOR_CHECKPOINT, .unit = z->layout.units[u].of, .units = 1 };
        for (int what = 0; what < ZERO_GRADIENT; what++) {
            const state *s = rank_state(z, what);
            if (!s->kept || state_parts(s) == 1 || u >= state_units(s) || !z->layout.units[u].padded)
                continue;
            ZERO_TRY(rank_state_gather(z, use, what, u));
            ZERO_TRY(wait_for_device(z, z->comm.gather_stream));
        }
    }
    return z->device.f->wait(&z->device, COMM);
}

int zero_load(zero *z, const char *path, char **text) {
    char *own = NULL;
    ZERO_TRY(pass_may_train(z, "zero_load"));
    ZERO_TRY(pass_outside_step(z, "zero_load"));
    ZERO_TRY(step_settle(z));
    ZERO_TRY(params_drop_all(z));
    int rc = load_folder(z, path, &own);
    if (!rc) update_forget(z);
    if (!rc) rank_states_touch(z);
    if (!rc) check_loaded(z);
    if (!rc) rc = tasks_run(&z->tasks, run_complete, z);
    if (!rc && text)
        *text = own;
    else
        free(own);
    return rc;
}
