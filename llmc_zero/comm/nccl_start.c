// Checks whether these ranks can use NCCL, and connects their communicators. Ranks may have different
// libraries and GPUs, so they compare them before the first call that needs all ranks. If one rank fails, all
// fail at once with its error.
#ifdef ZERO_HAVE_NCCL
#include "../base/clock.h"
#include "gpus.h"
#include "host.h"
#include "nccl_state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaStream_t device_cuda_stream(device *d, device_stream s);

enum {
    // 2.26 introduced NCCL_LAUNCH_ORDER_IMPLICIT; aborting two communicators in one group needs 2.22
    LEAST_VERSION = 22600,
    MULTI_RANK_VERSION = 23000,  // the first with NCCL_MULTI_RANK_GPU_ENABLE
    MOST_CTAS = 16,
    LEAST_CTAS = 4
};

// -------- one rank

// Sent by each rank to all others.
typedef struct {
    double version;
    double shares;  // 1: it lets NCCL put several ranks on one GPU
} introduction;

static const char *host_of(const nccl_state *n, int rank) { return net_host(n->c->net, rank); }

static void version_name(char name[32], double version) {
    int v = (int)version;
    snprintf(name, 32, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

static int look_at_self(nccl_state *n, const zero_config *config, introduction *own) {
    char name[32];
    ZERO_TRY(nccl_load());
    ncclResult_t rc = nccl.GetVersion(&n->version);
    if (rc) return zero_fail(ZERO_ERR_COMM, "NCCL: ncclGetVersion: %s", nccl.GetErrorString(rc));
    own->version = n->version;
    version_name(name, n->version);
    if (n->version < LEAST_VERSION)
        return zero_fail(ZERO_ERR_COMM, "NCCL %s is too old; 2.26 or newer is needed", name);
    // Ranks that share a GPU wait for each other on it, so sharing must be requested.
    const char *v = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    own->shares = n->version >= MULTI_RANK_VERSION && (v && *v ? atoi(v) != 0 : config->comm.nccl > 0);
    return nccl_bytes_left(&n->left);
}

// -------- all ranks

// Fails because rank r uses a lower rank's GPU. NCCL always refuses that before 2.30, and by default since.
static int refuse_sharing(const nccl_state *n, int r) {
    char version[32], tail[96], most[64] = "give each rank a separate GPU";
    int old = n->version < MULTI_RANK_VERSION, room = gpus_room(n->c, r);
    version_name(version, n->version);
    if (room) snprintf(most, sizeof most, "start at most %d rank%s there", room, room == 1 ? "" : "s");
    snprintf(tail, sizeof tail, ", and NCCL %s %s", version,
             old ? "needs one for each" : "is not configured to share it");
    gpus_fail(n->c, ZERO_ERR_COMM, r, ON_GPU, tail);
    zero_failed_advice("%s, or send the data through the host (comm.nccl 0), or %s", most,
                       old ? "use NCCL 2.30 or newer, with NCCL_MULTI_RANK_GPU_ENABLE=1"
                           : "set NCCL_MULTI_RANK_GPU_ENABLE=1");
    return zero_failed_by_setting("comm.nccl");
}

static int refuse_versions(const nccl_state *n, const introduction *all, int r) {
    char first[32], other[32];
    version_name(first, all[0].version);
    version_name(other, all[r].version);
    return zero_fail(ZERO_ERR_COMM, "rank 0 on %s has NCCL %s and rank %d on %s %s: they must be the same",
                     host_of(n, 0), first, r, host_of(n, r), other);
}

static int compare(nccl_state *n, const introduction *all) {
    int sharing = 0, shares = 1, ranks = n->c->group.ranks;
    for (int r = 0; r < ranks; r++) shares &= all[r].shares != 0;
    for (int r = 0; r < ranks; r++) {
        if (all[r].version != all[0].version) return refuse_versions(n, all, r);
        if (gpus_first(n->c, r, ON_GPU) == r) continue;
        if (!shares) return refuse_sharing(n, r);
        sharing = 1;
    }
    if (sharing) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    return 0;
}

static int introduce(nccl_state *n, const zero_config *config) {
    comm *c = n->c;
    introduction own = { 0 }, all[c->group.ranks];
    const int count = sizeof own / sizeof(double);
    int rc = look_at_self(n, config, &own);
    if (rc) zero_failed_on(c->net->rank, net_host(c->net, c->net->rank));
    ZERO_TRY(net_agree(c->net, rc));
    ZERO_TRY(comm_share(c, comm_for_scalars, (double *)&own, (double *)all, count));
    return compare(n, all);
}

// -------- the communicators

// Rank 0 creates the ids that NCCL's ranks use to find each other.
static int make_ids(ncclUniqueId ids[LANES]) {
    ncclResult_t rc = ncclSuccess;
    for (int i = 0; i < LANES && !rc; i++) rc = nccl.GetUniqueId(&ids[i]);
    return rc ? zero_fail(ZERO_ERR_COMM, "NCCL: ncclGetUniqueId on rank 0: %s: %s", nccl.GetErrorString(rc),
                          nccl.GetLastError(NULL))
              : 0;
}

// Waits until the communicator is ready on all ranks. If one fails, all fail at once, with its error.
static int connect_together(nccl_state *n, const lane *l) {
    comm *c = n->c;
    double limit = clock_now() + c->net->timeout_s, worst = BUSY;
    int who = 0;
    for (; worst == BUSY; clock_nap(2e-3)) {
        ncclResult_t rc = nccl_progress_of(n, l);
        double mine = FAILED;
        if (!rc) mine = DONE;
        if (rc == ncclInProgress) mine = clock_now() < limit ? BUSY : LATE;
        ZERO_TRY(nccl_worst_of(c, mine, &worst, &who));
    }
    if (worst == DONE) return 0;
    return net_agree(c->net, who == c->group.rank ? nccl_fail_to_settle(n, l, n->rc) : 0);
}

// Limits NCCL's channels. Each is a CTA, which takes an SM from the trainer's kernels while a collective
// runs. Sends and receives connect every channel with every peer, and a connection over NVLink or PCIe has
// buffers of 0.5 + 4.7 MiB + NCCL_BUFFSIZE: 2.2 GiB for 8 GPUs with NCCL's defaults of up to 32 channels and
// 4 MiB. With 2 MiB (8 MiB per connection after the driver's rounding) and these limits it is 0.9 GiB for 8
// ranks of one NVLink domain, and 2 GiB for 64. Over a network the peers share a channel's buffers.
// NCCL_MAX_CTAS and NCCL_BUFFSIZE in the environment take precedence.
int nccl_most_ctas(int ranks, int is_ring) {
    int most = MOST_CTAS;
    for (int limit = 8; !is_ring && limit < ranks && most > LEAST_CTAS; limit *= 2) most /= 2;
    return most;
}

int nccl_connect(nccl_state *n, const zero_config *config) {
    static const device_stream streams[LANES] = { [REDUCE] = COMM, [GATHERING] = GATHER };
    comm *c = n->c;
    ncclUniqueId ids[LANES];
    ZERO_TRY(introduce(n, config));
    // Makes the kernels of both communicators run in the order in which the host queues them, which is the
    // same on all ranks.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    setenv("NCCL_BUFFSIZE", "2097152", 0);
    ZERO_TRY(net_agree(c->net, c->group.rank ? 0 : make_ids(ids)));
    ZERO_TRY(comm_broadcast(c, comm_for_scalars, 0, ids, sizeof ids));
    for (int i = 0; i < LANES; i++) {
        lane *l = &n->lanes[i];
        ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
        settings.blocking = 0;
        settings.maxCTAs = nccl_most_ctas(c->group.ranks, i != REDUCE || n->nccl_sums);
        l->stream = device_cuda_stream(c->device, streams[i]);
        ASK(n, CommInitRankConfig, &l->comm, c->group.ranks, ids[i], c->group.rank, &settings);
        ZERO_TRY(connect_together(n, l));
    }
    return 0;
}
#endif
