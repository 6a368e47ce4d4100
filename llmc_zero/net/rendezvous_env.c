// Who this process is, as its launcher says it in the environment.
#define XXH_INLINE_ALL
#include "../error.h"
#include "rendezvous.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PORTS_FROM = 10000, PORTS = 20000 };  // below those that systems give to outgoing connections

static const char *value(const char *name) {
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}
static const char *first_of(const char *const *names) {
    const char *v = NULL;
    while (*names && !(v = value(*names))) names++;
    return v;
}

static int number(const char *name, int *n) {
    const char *v = value(name);
    char *end = NULL;
    long l = v ? strtol(v, &end, 10) : -1;
    if (!v) return zero_fail(ZERO_ERR_ARGUMENT, "the launcher set its other variables, but not %s", name);
    if (*end || l < 0 || l > INT_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s: a number from 0 on", name, v);
    *n = (int)l;
    return 0;
}

// The first of Slurm's hosts: node[08-11,3],other -> node08. Groups of digits may stand anywhere, more than
// once.
static void first_host(const char *list, char *host, size_t bytes) {
    size_t n = 0;
    for (int inside = 0, first = 1; *list && (inside || *list != ','); list++) {
        if (*list == '[')
            inside = first = 1;
        else if (*list == ']')
            inside = 0;
        else if (inside && !isdigit((unsigned char)*list))
            first = 0;
        else if ((!inside || first) && n + 1 < bytes)
            host[n++] = *list;
    }
    host[n] = 0;
}

// Rank 0 is on the step's first host. Each step of a job has a port of its own.
static void slurm_server(char *server, size_t bytes, uint64_t job) {
    static const char *const lists[] = { "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST",
                                         NULL };
    const char *list = first_of(lists);
    char host[256] = "";
    if (list)
        first_host(list, host, sizeof host);
    else if (value("SLURM_LAUNCH_NODE_IPADDR"))
        snprintf(host, sizeof host, "%s", value("SLURM_LAUNCH_NODE_IPADDR"));
    if (*host)
        snprintf(server, bytes, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
                 PORTS_FROM + (int)(job % PORTS));
}

// SLURM_STEP_NUM_TASKS: srun's own. SLURM_NTASKS alone also stands in a batch script and in a shell of
// salloc, where one process may be meant.
int rendezvous_launched(void) {
    const char *world = value("WORLD_SIZE"), *tasks = value("SLURM_STEP_NUM_TASKS");
    return (world && atoi(world) > 1 && (value("RANK") || !value("SLURM_PROCID"))) ||
           (tasks && atoi(tasks) > 1 && value("SLURM_PROCID"));
}

// What a script has exported is the same in all that srun or mpirun starts: each would take itself for that
// one rank. torchrun, of which they start one a host, sets RANK and WORLD_SIZE for each of its own.
static int check_own(const rendezvous_settings *own, int mpi) {
    const char *rank = mpi ? "OMPI_COMM_WORLD_RANK" : "SLURM_PROCID",
               *ranks = mpi ? "OMPI_COMM_WORLD_SIZE" : "SLURM_STEP_NUM_TASKS";
    const char *launcher = mpi ? "mpirun" : "srun";
    int task = 0, tasks = 1;
    if (!value(ranks) || !value(rank) || value("TORCHELASTIC_RUN_ID")) return 0;
    ZERO_TRY(number(rank, &task));
    ZERO_TRY(number(ranks, &tasks));
    if (tasks == 1 || own->ranks > tasks || (own->ranks == tasks && own->rank == task)) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "RANK=%d and WORLD_SIZE=%d, but %s started this as task %d of %d: unset both, %s's numbers will "
        "do, or set them in each task",
        own->rank, own->ranks, launcher, task, tasks, launcher);
}

// Rank 0 is on MASTER_ADDR. With torchrun, its own agent mostly has the port there: then another, which all
// ranks can compute.
static void own_server(char *server, size_t bytes, const char *host, const char *port, uint64_t job) {
    char other[8];
    const char *agent = value("TORCHELASTIC_USE_AGENT_STORE");
    if (agent && !strcmp(agent, "True")) {
        int taken = atoi(port), n = PORTS_FROM + (int)(XXH3_64bits_withSeed(port, strlen(port), job) % PORTS);
        snprintf(other, sizeof other, "%d", n == taken ? n + 1 : n);
        port = other;
    }
    snprintf(server, bytes, strchr(host, ':') ? "[%.255s]:%.20s" : "%.255s:%.20s", host, port);
}

int rendezvous_from_env(rendezvous_settings *s) {
    static const char *const jobs[] = { "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE",
                                        "OMPI_MCA_ess_base_jobid", NULL };
    static _Thread_local char server[320];
    rendezvous_settings found = *s;
    *server = 0;
    int mpi = value("OMPI_COMM_WORLD_RANK") != NULL, slurm = value("SLURM_PROCID") != NULL;
    int own = value("WORLD_SIZE") && (value("RANK") || (!mpi && !slurm));
    if (!own && !mpi && !slurm) return 0;
    if (own && !value("RANK"))
        return zero_fail(ZERO_ERR_ARGUMENT,
                         "WORLD_SIZE=%s, but no RANK: set it in each process, or unset WORLD_SIZE",
                         value("WORLD_SIZE"));
    ZERO_TRY(number(own ? "RANK" : mpi ? "OMPI_COMM_WORLD_RANK" : "SLURM_PROCID", &found.rank));
    const char *tasks = value("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    ZERO_TRY(number(own ? "WORLD_SIZE" : mpi ? "OMPI_COMM_WORLD_SIZE" : tasks, &found.ranks));
    if (own) ZERO_TRY(check_own(&found, mpi));
    const char *torchrun = own ? value("TORCHELASTIC_RUN_ID") : NULL,
               *job = torchrun ? torchrun : first_of(jobs);
    const char *step = value("SLURM_STEP_ID"), *host = value("MASTER_ADDR"), *port = value("MASTER_PORT");
    char id[256];
    if (job) {
        // under mpirun the step is that of its daemon; each of torchrun's agents may be a step of its own
        snprintf(id, sizeof id, "%.200s.%.40s", job, step && !mpi && !own ? step : "");
        found.job = XXH3_64bits(id, strlen(id));
        if (!found.job) found.job = 1;  // 0 stands for none
    }
    if (!s->server && !s->file && found.ranks > 1) {
        if (host && port)
            own_server(server, sizeof server, host, port, found.job);
        else if (slurm && !own && job)
            slurm_server(server, sizeof server, found.job);
        if (!*server)
            return zero_fail_setting(
                ZERO_ERR_ARGUMENT, "start.server start.file",
                " is missing: the launcher has started %d ranks, but does not say where rank 0 is: give its "
                "address "
                "as host:port, or MASTER_ADDR and MASTER_PORT, or start.file, a file that all ranks see",
                found.ranks);
        found.server = server;
    }
    *s = found;
    return 1;
}
