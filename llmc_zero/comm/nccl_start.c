// Checks whether these ranks can use NCCL, and connects their communicators. Ranks may have different
// libraries and GPUs, so they compare them before the first call that needs all ranks.
#ifdef ZERO_HAVE_NCCL
#include "nccl.h"
#include "nccl_state.h"
#include <stdio.h>
#include <stdlib.h>

enum {
    LEAST_VERSION = 22600,       // 2.26 introduced NCCL_LAUNCH_ORDER_IMPLICIT
    MULTI_RANK_VERSION = 23000,  // the first with NCCL_MULTI_RANK_GPU_ENABLE
    MOST_CTAS = 16               // NCCL's channels: each takes an SM from the trainer's kernels
};

// -------- can these ranks use NCCL?

// Sent by each rank to all others.
typedef struct {
    double version;
    double shares;  // 1: it lets NCCL put several ranks on one GPU
} introduction;

// 22809 is version 2.28.9.
#define VERSION "%d.%d.%d"
#define PARTS(version) (int)(version) / 10000, (int)(version) / 100 % 100, (int)(version) % 100

static int look_at_self(const zero_config *config, introduction *own) {
    int version;
    ZERO_TRY(nccl_load());
    ncclResult_t rc = nccl.GetVersion(&version);
    if (rc) return zero_fail(ZERO_ERR_COMM, "NCCL: ncclGetVersion: %s", nccl.GetErrorString(rc));
    own->version = version;
    if (version < LEAST_VERSION)
        return zero_fail(ZERO_ERR_COMM, "NCCL " VERSION " is too old; 2.26 or newer is needed",
                         PARTS(version));
    // Ranks that share a GPU wait for each other on it, so sharing must be requested.
    const char *v = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    own->shares = version >= MULTI_RANK_VERSION && (v && *v ? atoi(v) != 0 : config->comm.nccl > 0);
    return 0;
}

// Fails because rank r uses a lower rank's GPU. NCCL always refuses that before 2.30, and by default since.
static int refuse_sharing(const comm *c, double version, int r) {
    char tail[96], most[64] = "give each rank a separate GPU";
    int old = version < MULTI_RANK_VERSION, room = gpus_room(c, r);
    if (room) snprintf(most, sizeof most, "start at most %d rank%s there", room, room == 1 ? "" : "s");
    snprintf(tail, sizeof tail, ", and NCCL " VERSION " %s", PARTS(version),
             old ? "needs one for each" : "is not configured to share it");
    gpus_fail(c, ZERO_ERR_COMM, r, ON_GPU, tail);
    zero_failed_advice("%s, or send the data through the host (comm.nccl 0), or %s", most,
                       old ? "use NCCL 2.30 or newer, with NCCL_MULTI_RANK_GPU_ENABLE=1"
                           : "set NCCL_MULTI_RANK_GPU_ENABLE=1");
    return zero_failed_by_setting("comm.nccl");
}

static int compare(const comm *c, const introduction *all) {
    int sharing = 0, shares = 1, ranks = c->group.ranks;
    for (int r = 0; r < ranks; r++) shares &= all[r].shares != 0;
    for (int r = 0; r < ranks; r++) {
        if (all[r].version != all[0].version)
            return zero_fail(ZERO_ERR_COMM,
                             "rank 0 on %s has NCCL " VERSION " and rank %d on %s " VERSION
                             ": they must be the same",
                             net_host(c->net, 0), PARTS(all[0].version), r, net_host(c->net, r),
                             PARTS(all[r].version));
        if (gpus_first(c, r, ON_GPU) == r) continue;
        if (!shares) return refuse_sharing(c, all[r].version, r);
        sharing = 1;
    }
    if (sharing) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    return 0;
}

int comm_check_nccl(comm *c, const zero_config *config) {
    introduction own = { 0 }, all[c->group.ranks];
    const int count = sizeof own / sizeof(double);
    int rc = look_at_self(config, &own);
    if (rc) zero_failed_on(c->net->rank, net_host(c->net, c->net->rank));
    ZERO_TRY(net_agree(c->net, rc));
    ZERO_TRY(comm_share(c, comm_for_scalars, (double *)&own, (double *)all, count));
    return compare(c, all);
}

// -------- the communicators

int nccl_connect(nccl_state *n) {
    comm *c = n->c;
    communicator *all = &n->of[GATHERS];
    ncclUniqueId id;
    ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
    settings.blocking = 0;  // a blocking call has no time limit
    settings.maxCTAs = MOST_CTAS;
    // Makes all communicators' kernels run in the order in which all ranks' hosts queue them.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("NCCL_BUFFSIZE", "2097152", 0);  // for the memory: docs/internals/nccl.md
    if (!c->group.rank) ASK(n, GetUniqueId, &id);
    ZERO_TRY(net_agree(c->net, nccl_settle(n, all, NULL)));
    ZERO_TRY(comm_broadcast(c, comm_for_scalars, 0, &id, sizeof id));
    ASK(n, CommInitRankConfig, &all->comm, c->group.ranks, id, c->group.rank, &settings);
    ZERO_TRY(nccl_settle(n, all, NULL));
    for (communicator *k = n->of; k < n->of + COMMUNICATORS; k++) {
        const int gathers_with_all = k->on == all->on && k->of.ranks == all->of.ranks;
        if (gathers_with_all || k->of.ranks == 1) continue;
        ASK(n, CommSplit, all->comm, k->of.first, k->of.rank, &k->comm, &settings);
        ZERO_TRY(nccl_settle(n, all, NULL));
    }
    return 0;
}
#endif
