#include "state_host.h"
#include "../base/error.h"
#include "state_file.h"
#include <stdlib.h>

int state_host_open(struct state_host *h, zero_value what, const zero_config *c, const layout *l, int rank) {
    h->keeps = what == ZERO_PARAM && state_goes_to_files(what, c);
    h->units = calloc(l->n_units + 1, sizeof *h->units);
    if (!h->units) return zero_fail(ZERO_ERR_MEMORY, "out of memory for the table of states on the host");
    for (int u = 0; u < l->n_units; u++) {
        state_split *split = &h->units[u], *next = split + 1;
        split->away = state_away(what, c, l, rank, u);
        next->away_offset = split->away_offset + split->away;
        next->kept_offset = split->kept_offset + l->units[u].shard - split->away;
    }
    return 0;
}

void state_host_close(struct state_host *h) { free(h->units); }

int state_lies_on_host(const state *s, state_range r) {
    return s->host->keeps || r.from < s->host->units[r.unit].away;
}

// -------- the store

static int host_begin(state_part *p) { return 0; }

static int host_ready(state_part *p) {
    const state *s = p->of;
    const state_split *split = &s->host->units[p->range.unit];
    const int64_t from = p->range.from, size = dtype_bytes(s->dtype);
    if (from < split->away)
        p->at = s->host->array + (split->away_offset + from) * size;
    else
        p->at = s->array + (split->kept_offset + from - split->away) * size;
    return 0;
}

static int host_close(state_part *p) { return 0; }

static int64_t host_span(const state *s, state_range r) {
    int64_t left = s->host->units[r.unit].away - r.from;
    return left > 0 && left < r.elems ? left : r.elems;
}

const state_store state_in_host = {
    .create = state_create_kept,
    .begin = host_begin,
    .ready = host_ready,
    .close = host_close,
    .span = host_span,
};
