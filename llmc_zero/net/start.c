// Finds this process's rank, and connects it to the others over MPI, over TCP, or not at all, as the
// configuration or the launcher requires. Also zero_launched of zero_job.h.
#define XXH_INLINE_ALL
#include "net.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PORTS_FROM = 10000, PORTS = 20000 };  // below the ports that systems assign to outgoing connections

// -------- the launcher

// The environment variables in which each launcher passes a process its rank. The first pair is set by
// torchrun, which starts processes on each host, and by users' scripts.
typedef struct {
    const char *name, *rank, *ranks;
} launcher;
static const launcher own = { "RANK", "RANK", "WORLD_SIZE" };
static const launcher mpirun = { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" };
// 128 random bits per mpirun job, meant for networks that need a key. Slurm and torchrun provide no key.
static const char mpirun_key[] = "OMPI_MCA_orte_precondition_transports";
static const launcher srun = { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS" };

static const char *value(const char *name) {
    const char *v = name ? getenv(name) : NULL;
    return v && *v ? v : NULL;
}
// Returns the first of these variables that is set, or NULL.
#define FIRST_NAME(...) first_name((const char *const[]){ __VA_ARGS__, NULL })
static const char *first_name(const char *const *names) {
    while (*names && !value(*names)) names++;
    return *names;
}
#define FIRST_OF(...) value(FIRST_NAME(__VA_ARGS__))

static int number(const char *name, int least, int *n) {
    char *end;
    long l = strtol(value(name), &end, 10);
    if (*end || l < least || l > INT_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s is not a number of at least %d", name, value(name), least);
    *n = (int)l;
    return 0;
}

// Reads rank and number of ranks from a pair of variables, at least one of which is set.
static int numbers(const char *rank_name, const char *ranks_name, int *rank, int *ranks) {
    const char *set = value(rank_name) ? rank_name : ranks_name;
    const char *other = set == rank_name ? ranks_name : rank_name;
    if (!value(other))
        return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s, but no %s: set it in each process, or unset %s", set,
                         value(set), other, set);
    ZERO_TRY(number(rank_name, 0, rank));
    ZERO_TRY(number(ranks_name, 1, ranks));
    if (*rank < *ranks) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s=%d and %s=%d: with %d ranks the last one is %d", rank_name, *rank,
                     ranks_name, *ranks, *ranks, *ranks - 1);
}

// If a batch script exports RANK and WORLD_SIZE, all tasks of srun or mpirun inherit the same values and
// would take the same rank. torchrun, started once per host, sets separate ones for each process.
static int check_own(const rendezvous_settings *s, const launcher *by) {
    int task = 0, tasks = 1;
    if (!value(by->ranks) || !value(by->rank) || value("TORCHELASTIC_RUN_ID")) return 0;
    ZERO_TRY(numbers(by->rank, by->ranks, &task, &tasks));
    if (tasks == 1 || s->ranks > tasks || (s->ranks == tasks && s->rank == task)) return 0;
    return zero_fail(
        ZERO_ERR_ARGUMENT,
        "RANK=%d and WORLD_SIZE=%d, but %s started this as task %d of %d: unset both, since %s's "
        "numbers are enough, or set them in each task",
        s->rank, s->ranks, by->name, task, tasks, by->name);
}

// Returns a number for the job; 0: unknown. Uses the step only under srun: under mpirun it is the daemon's,
// and each of torchrun's agents may be a separate step.
static uint64_t job_number(const launcher *by) {
    const char *first = by == &own ? "TORCHELASTIC_RUN_ID" : "SLURM_JOB_ID", *step = value("SLURM_STEP_ID");
    const char *job = FIRST_OF(first, "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE",
                               "OMPI_MCA_ess_base_jobid");
    char id[256];
    if (!job) return 0;
    snprintf(id, sizeof id, "%.200s.%.40s", job, by == &srun && step ? step : "");
    uint64_t number = XXH3_64bits(id, strlen(id));
    return number ? number : 1;
}

// Returns the first of Slurm's hosts: node[08-11,3],other -> node08. Brackets may appear anywhere, more than
// once.
static const char *first_host(const char *list, char *host, size_t bytes) {
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
    return host;
}

// Rank 0 is on MASTER_ADDR, or on the first host of Slurm's step. torchrun's agent usually listens at
// MASTER_PORT itself, so all ranks compute a different port. It differs between steps of a Slurm job.
static int find_server(const launcher *by, const rendezvous_settings *s, char *server, size_t bytes) {
    const char *host = value("MASTER_ADDR"), *given = value("MASTER_PORT");
    const char *agent = value("TORCHELASTIC_USE_AGENT_STORE");
    const char *list = FIRST_OF("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST");
    char first[256], port[24];
    if (!host || !given) {
        host = list ? first_host(list, first, sizeof first) : value("SLURM_LAUNCH_NODE_IPADDR");
        if (by == &own || !value(srun.rank) || !s->job) host = NULL;
        snprintf(port, sizeof port, "%d", PORTS_FROM + (int)(s->job % PORTS));
    } else if (agent && !strcmp(agent, "True")) {
        int n = PORTS_FROM + (int)(XXH3_64bits_withSeed(given, strlen(given), s->job) % PORTS);
        snprintf(port, sizeof port, "%d", n == atoi(given) ? n + 1 : n);
    } else {
        snprintf(port, sizeof port, "%s", given);
    }
    if (!host || !*host)
        return zero_refuse(
            "start.server start.file",
            " is missing: the launcher has started %d ranks, but gives no address of rank 0: set it as "
            "host:port, or set MASTER_ADDR and MASTER_PORT, or start.file, a file that all ranks see",
            s->ranks);
    snprintf(server, bytes, strchr(host, ':') ? "[%.255s]:%s" : "%.255s:%s", host, port);
    return 0;
}

// Returns the launcher that started this process, or NULL.
static const launcher *around(void) { return value(mpirun.rank) ? &mpirun : value(srun.rank) ? &srun : NULL; }

// Under srun or mpirun, RANK and WORLD_SIZE count only if both are set: a batch script may export only
// WORLD_SIZE, and RANK alone may mean anything.
static const launcher *launched_by(void) {
    const launcher *by = around();
    int has_rank = value(own.rank) != NULL, has_ranks = value(own.ranks) != NULL;
    return (has_rank && has_ranks) || (!by && (has_rank || has_ranks)) ? &own : by;
}

int launched_read(rendezvous_settings *s) {
    static _Thread_local char server[320];
    rendezvous_settings found = *s;
    const launcher *by = launched_by();
    if (!by) return 0;
    const char *ranks = by == &srun && !value(by->ranks) ? "SLURM_NTASKS" : by->ranks;
    ZERO_TRY(numbers(by->rank, ranks, &found.rank, &found.ranks));
    if (by == &own && around()) ZERO_TRY(check_own(&found, around()));
    uint64_t job = job_number(by);
    if (job) found.job = job;
    if (by == &mpirun && !s->key) found.key = value(mpirun_key);
    if (!s->server && !s->file && found.ranks > 1) {
        ZERO_TRY(find_server(by, &found, server, sizeof server));
        found.server = server;
    }
    *s = found;
    return 1;
}

static int are_same(const char *one, const char *other) {
    const char *a = value(one), *b = value(other);
    return a && b && !strcmp(a, b);
}

// srun --mpi=pmi2 sets PMI_SIZE too, but Open MPI 5.0 and later cannot use it, and older versions only if
// built for it, so its tasks connect by TCP. torchrun's processes inherit their parent's variables.
int launched_by_mpi(void) {
    int slurm = are_same("PMI_SIZE", "SLURM_STEP_NUM_TASKS") && are_same("PMI_RANK", "SLURM_PROCID");
    if (value("TORCHELASTIC_RUN_ID")) return 0;
    return FIRST_OF(mpirun.ranks, "PMIX_RANK") || (value("PMI_SIZE") && !slurm);
}

// Without a launcher, MPI itself sets PMIX_RANK=0 but not the number of ranks.
static int read_mpi(int *rank, int *ranks) {
    const char *rank_name = FIRST_NAME(mpirun.rank, "PMIX_RANK", "PMI_RANK");
    const char *ranks_name = FIRST_NAME(mpirun.ranks, "PMI_SIZE", srun.ranks, "SLURM_NTASKS");
    if (!ranks_name && rank_name && !strcmp(value(rank_name), "0")) return 0;
    return numbers(rank_name ? rank_name : mpirun.rank, ranks_name ? ranks_name : mpirun.ranks, rank, ranks);
}

// Only srun sets SLURM_STEP_NUM_TASKS. SLURM_NTASKS is also set in batch scripts and in salloc's shell, where
// the user may want one process.
zero_launch zero_launched(void) {
    static const zero_launch alone = { 0, 1, 1 }, wrong = { 0, 0, 1 };
    rendezvous_settings s = { .ranks = 1, .file = "" };  // rank 0's address does not matter here
    const launcher *by = launched_by();
    int mpi = launched_by_mpi();
    if (!mpi && (!by || (by == &srun && !value(srun.ranks)))) return alone;
    if (mpi ? read_mpi(&s.rank, &s.ranks) : launched_read(&s) < 0) return wrong;
    const char *of_node = FIRST_OF("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE",
                                   "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE");
    int here = of_node ? atoi(of_node) : s.ranks;
    return (zero_launch){ s.rank, s.ranks, here > 0 && here < s.ranks ? here : s.ranks };
}

// -------- the start

static int connect_by_mpi(net *n, const zero_config *config, zero_launch launched) {
    const zero_start_config *s = &config->start;
    ZERO_TRY(net_open_mpi(n, config, launched));
    if ((launched_by_mpi() || launched.ranks > 1) && !s->mpi_comm && launched.ranks != n->ranks)
        return zero_fail_setting(
            ZERO_ERR_COMM, "start.method",
            " MPI: the launcher has started %d ranks, but MPI sees %d, so this MPI does not work with this "
            "launcher. Start with its own mpirun, under Slurm with srun --mpi=pmix, or let the ranks connect "
            "by TCP",
            launched.ranks, n->ranks);
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
                              .key = key && *key ? key : NULL,
                              .waiting = start->waiting };
    if (by_file && !s.file)
        return zero_refuse("start.file", ", a path visible to all ranks, is missing for the start by a file");
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

static zero_start method_of(const zero_start_config *start, zero_launch launched) {
    if (start->method != ZERO_START_AUTO) return start->method;
    if (start->mpi_comm || launched_by_mpi()) return ZERO_START_MPI;
    if (start->file) return ZERO_START_FILE;
    return start->server || launched.ranks > 1 ? ZERO_START_TCP : ZERO_START_AUTO;
}

int net_start(net *n, const zero_config *config) {
    const zero_start_config *start = &config->start;
    *n = (net){ .ranks = 1, .ranks_on_node = 1, .on_one_node = 1, .name = "self" };
    n->timeout_s = config->comm.timeout_s;
    zero_launch launched = zero_launched();
    if (start->rank < 0 && !start->mpi_comm && !launched.ranks) return zero_last_failure()->code;
    zero_start method = method_of(start, launched);
    if (method == ZERO_START_MPI) return connect_by_mpi(n, config, launched);
    if ((start->rank < 0) != (start->ranks < 1) || (start->rank >= 0 && start->rank >= start->ranks))
        return zero_refuse("start.rank start.ranks",
                           " %d of %d: give both, start.rank from 0 to start.ranks - 1, "
                           "or neither under a launcher",
                           start->rank, start->ranks);
    if (method != ZERO_START_AUTO) return connect_by_tcp(n, config, method == ZERO_START_FILE);
    if (start->ranks > 1)
        return zero_refuse("start.ranks start.server start.file",
                           " %d, but nothing defines how they find each other: no launcher, start.server or "
                           "start.file",
                           start->ranks);
    return 0;
}
