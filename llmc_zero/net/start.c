// Connects the ranks: by MPI, by TCP, or not at all, as the configuration or the launcher requires.
#include "net.h"
#include "../base/error.h"
#include "../zero_job.h"
#include "launch.h"
#include <stdlib.h>

static int connect_by_mpi(net *n, const zero_config *config) {
    const zero_start_config *s = &config->start;
    ZERO_TRY(net_open_mpi(n, config));
    int launched = zero_launched().ranks;
    if ((launched_by_mpi() || launched > 1) && !s->mpi_comm && launched != n->ranks)
        return zero_fail_setting(
            ZERO_ERR_COMM, "start.method",
            " MPI: the launcher has started %d ranks, but MPI knows of %d, so this MPI does "
            "not work with this launcher. Start with its own mpirun, under Slurm with srun "
            "--mpi=pmix, or let the ranks connect by TCP",
            launched, n->ranks);
    if ((s->ranks > 0 && s->ranks != n->ranks) || (s->rank >= 0 && s->rank != n->rank))
        return zero_refuse("start.rank start.ranks", " %d of %d: this is rank %d of MPI's %d", s->rank,
                           s->ranks, n->rank, n->ranks);
    return 0;
}

static int connect_by_tcp(net *n, const zero_config *config, int by_file) {
    const zero_start_config *start = &config->start;
    const char *key = getenv("ZERO_JOB_KEY");
    rendezvous_settings s = { .rank = start->rank,
                              .ranks = start->ranks,
                              .timeout_s = config->comm.timeout_s,
                              .version = ZERO_VERSION,
                              .server = by_file ? NULL : start->server,
                              .file = by_file ? start->file : NULL,
                              .key = key && *key ? key : NULL };
    if (by_file && !s.file)
        return zero_refuse("start.file", ", a path that all ranks see, is missing for the start by a file");
    int known = s.rank < 0 ? launched_read(&s) : 1;
    if (known < 0) return known;
    if (!known)
        return zero_refuse("start.rank start.ranks",
                           " and start.ranks are missing: no launcher says which rank "
                           "this is (RANK and WORLD_SIZE, Slurm, or Open MPI)");
    n->is_open = s.ranks > 1 && !s.key && !s.file;
    if (s.ranks > 1) return net_open_tcp(n, &s);
    n->name = "self, one rank";
    return 0;
}

static zero_start method_of(const zero_start_config *start) {
    if (start->method != ZERO_START_AUTO) return start->method;
    if (start->mpi_comm || launched_by_mpi()) return ZERO_START_MPI;
    if (start->file) return ZERO_START_FILE;
    return start->server || zero_launched().ranks > 1 ? ZERO_START_TCP : ZERO_START_AUTO;
}

int net_start(net *n, const zero_config *config) {
    const zero_start_config *start = &config->start;
    *n = (net){ .ranks = 1, .ranks_on_node = 1, .on_one_node = 1, .name = "self" };
    n->timeout_s = config->comm.timeout_s;
    if (start->rank < 0 && !start->mpi_comm && !zero_launched().ranks) return zero_last_failure()->code;
    zero_start method = method_of(start);
    if (method == ZERO_START_MPI) return connect_by_mpi(n, config);
    if ((start->rank < 0) != (start->ranks < 1) || (start->rank >= 0 && start->rank >= start->ranks))
        return zero_refuse("start.rank start.ranks",
                           " %d of %d: give both, start.rank from 0 to start.ranks - 1, "
                           "or neither under a launcher",
                           start->rank, start->ranks);
    if (method != ZERO_START_AUTO) return connect_by_tcp(n, config, method == ZERO_START_FILE);
    if (start->ranks > 1)
        return zero_refuse("start.ranks start.server start.file",
                           " %d, but nothing says how they find each other: there is no launcher, no "
                           "start.server, no start.file",
                           start->ranks);
    return 0;
}
