// Chooses the implementation that the ranks use.
#include "../base/error.h"
#include "nccl.h"
#include "staging.h"
#include <stdio.h>
#include <string.h>

// How NCCL's reductions sum, for the start table.
static void name_sums(comm *c, const zero_config *config) {
    const char *in_order = "nccl, summed in tree order";
    if (config->comm.reduce_nccl)
        snprintf(c->name, sizeof c->name, "nccl, bits depend on it");
    else if (c->way.nccl < c->group.ranks)
        snprintf(c->name, sizeof c->name, "%s by %d ranks of a host, then between %d hosts", in_order,
                 c->way.nccl, c->net->hosts);
    else if (c->net->hosts == 1)
        snprintf(c->name, sizeof c->name, "%s", in_order);
    else
        snprintf(c->name, sizeof c->name, "%s (%s)", in_order, staging_why_flat(c->net));
}

// If NCCL is optional and the ranks cannot use it, the host's functions stay in use. The name then includes
// the reason: the last failure's message without its advice.
static int open_nccl(comm *c, const zero_config *config, memory *m) {
    int rc = comm_check_nccl(c, config);
    if (!rc) {
        rc = comm_open_nccl(c, config, m);
        if (!rc) name_sums(c, config);
        if (rc && config->comm.nccl < 0) zero_failed_advice("comm.nccl 0 sends the data through the host");
        return rc;
    }
    if (config->comm.nccl > 0) return rc;
    const failure_record *why = zero_failed();
    int n = (int)strlen(c->name), room = (int)(sizeof c->name - sizeof " (no NCCL: )") - n;
    int length = why->reason < room ? why->reason : room;
    snprintf(c->name + n, sizeof c->name - (size_t)n, " (no NCCL: %.*s)", length, why->fields.sentence);
    return 0;
}

int comm_open(comm *c, net *ranks, const zero_config *config, device *d, memory *m, memory_request *planned) {
    *c = (comm){ .net = ranks,
                 .group = { ranks->rank, ranks->ranks },
                 .device = d,
                 .gather_stream = COMM,
                 .way = comm_way_asked(config, ranks->ranks, ranks->hosts ? ranks->ranks_on_node : 1),
                 .ranks_on_device = 1,
                 .planned = planned };
    if (c->group.ranks == 1) return comm_open_self(c);
    if (d->time) return comm_open_virtual(c, m);
    c->way.nccl = 0;  // until NCCL is open
    ZERO_TRY(gpus_open(c, config, m));
    ZERO_TRY(comm_open_host(c, config, m));
    return config->comm.nccl && config->device == ZERO_CUDA ? open_nccl(c, config, m) : 0;
}

int comm_stage(comm *c, memory *m) {
    const memory_request *incoming = &c->planned[COMM_INCOMING];
    if (!incoming->blocks) return 0;
    c->incoming = memory_alloc(m, incoming);
    c->incoming_bytes = incoming->bytes / comm_slots(&c->way);
    return c->incoming ? 0 : ZERO_ERR_MEMORY;
}

void comm_close(comm *c, int clean) {
    if (c->f && c->f->close) c->f->close(c, clean);
    c->f = NULL;
}
