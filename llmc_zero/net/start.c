// How the ranks come together: by MPI, by TCP, or not at all, as the configuration or the launcher says.
#include "net.h"
#include "../error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int env_int(const char *const *names, int fallback) {
    for (; *names; names++) {
        const char *v = getenv(*names);
        if (v && *v) return atoi(v);
    }
    return fallback;
}

zero_launch_info zero_launched(void) {
    static const char *const rank_names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL };
    static const char *const size_names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS",
                                              "SLURM_NTASKS", NULL };
    static const char *const local_names[] = { "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                               "LOCAL_WORLD_SIZE",           "SLURM_STEP_TASKS_PER_NODE",
                                               "SLURM_NTASKS_PER_NODE",      NULL };
    rendezvous_settings s = { .rank = 0, .ranks = 1, .file = "" };  // where rank 0 is does not matter here
    int mpi = comm_mpi_launched(), tcp = !mpi && rendezvous_launched() && rendezvous_from_env(&s) > 0;
    zero_launch_info info = { .rank = mpi ? env_int(rank_names, 0) : s.rank };
    info.ranks = mpi ? env_int(size_names, 1) : s.ranks;
    info.ranks_on_node = mpi || tcp ? env_int(local_names, info.ranks) : 1;
    return info;
}

static int connect_by_mpi(comm *c, const zero_config *config) {
    ZERO_TRY(comm_mpi_open(c, config));
    int ranks = zero_launched().ranks;
    if ((comm_mpi_launched() || rendezvous_launched()) && !config->start.mpi_comm && ranks != c->ranks)
        return zero_fail(ZERO_ERR_COMM,
                         "the launcher has started %d ranks, MPI knows of %d: this MPI does not work with "
                         "this launcher; start with "
                         "its own mpirun, under Slurm with srun --mpi=pmix, or connect by TCP (-pi tcp)",
                         ranks, c->ranks);
    if (config->start.ranks > 0 && config->start.ranks != c->ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "ranks %d: MPI has started %d", config->start.ranks, c->ranks);
    if (config->start.rank >= 0 && config->start.rank != c->rank)
        return zero_fail(ZERO_ERR_ARGUMENT, "rank %d: this is rank %d of MPI's %d", config->start.rank,
                         c->rank, c->ranks);
    return 0;
}

// Who this process is: as the configuration says, else as the launcher does.
static int start_settings(const zero_config *config, rendezvous_settings *s) {
    int by_file = config->start.method == ZERO_START_FILE;
    *s = (rendezvous_settings){ .rank = config->start.rank,
                                .ranks = config->start.ranks,
                                .timeout_s = config->comm.timeout_s,
                                .version = ZERO_VERSION,
                                .server = by_file ? NULL : config->start.server,
                                .file = by_file ? config->start.file : NULL };
    if (by_file && !s->file)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "start by a file: start_file (-pf), a path that all ranks see, is missing");
    if ((s->rank < 0) != (s->ranks < 1))
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "rank (-pr) %d, ranks (-pn) %d: both are needed, or neither under a launcher",
                         s->rank, s->ranks);
    if (s->rank < 0) {
        int found = rendezvous_from_env(s);
        if (!found)
            return zero_fail(ZERO_ERR_ARGUMENT, "no launcher says which rank this is (RANK and WORLD_SIZE, "
                                                "Slurm, or Open MPI): give rank (-pr) "
                                                "and ranks (-pn)");
        return found < 0 ? found : 0;
    }
    if (s->rank >= s->ranks)
        return zero_fail(ZERO_ERR_ARGUMENT, "rank (-pr) %d: of %d ranks (-pn) the last is %d", s->rank,
                         s->ranks, s->ranks - 1);
    if (!s->server && !s->file && s->ranks > 1)
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "start by TCP: server (-ps), the address of rank 0 as host:port, is missing");
    return 0;
}

static int connect_by_tcp(comm *c, const zero_config *config) {
    rendezvous_settings s;
    ZERO_TRY(start_settings(config, &s));
    if (s.ranks == 1) {
        strcpy(c->name, "self, one rank");
        return 0;
    }
    return comm_tcp_open(c, &s);
}

int comm_connect(comm *c, const zero_config *config) {
    *c = (comm){ .ranks = 1,
                 .ranks_on_node = 1,
                 .node_ranks_all = 1,
                 .timeout_s = config->comm.timeout_s,
                 .name = "self" };
    zero_config settled = *config;
    if (config->start.method == ZERO_START_AUTO)
        settled.start.method = config->start.mpi_comm || comm_mpi_launched()   ? ZERO_START_MPI
                               : config->start.file                            ? ZERO_START_FILE
                               : config->start.server || rendezvous_launched() ? ZERO_START_TCP
                                                                               : ZERO_START_AUTO;
    if (settled.start.method == ZERO_START_MPI) return connect_by_mpi(c, config);
    if (settled.start.method != ZERO_START_AUTO) return connect_by_tcp(c, &settled);
    if (config->start.ranks < 2 && (config->start.rank < 0) != (config->start.ranks < 1))
        return zero_fail(ZERO_ERR_ARGUMENT, "rank %d, ranks %d: both are needed, or neither (-pr, -pn)",
                         config->start.rank, config->start.ranks);
    if (config->start.ranks < 2) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "ranks %d: nothing says how they find each other: no launcher, no server (-ps), no start_file (-pf)",
        config->start.ranks);
}
