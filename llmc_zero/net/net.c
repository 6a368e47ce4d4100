// Which rank the launcher has made this process (also zero_launched of zero_job.h), and names for messages.
#define XXH_INLINE_ALL
#include "net.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

// -------- the launcher

static const char *value(const char *name) {
    const char *v = name ? getenv(name) : NULL;
    return v && *v ? v : NULL;
}
// Returns the first of these variables that is set, or NULL.
static const char *first_name(const char *a, const char *b, const char *c) {
    return value(a) ? a : value(b) ? b : value(c) ? c : NULL;
}

static int number(const char *name, const char *other, int least, int *n) {
    const char *v = value(name);
    char *end;
    if (!v) return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s, but no %s: set both", other, value(other), name);
    long l = strtol(v, &end, 10);
    if (*end || l < least || l > INT_MAX)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s=%s is not a number of at least %d", name, v, least);
    *n = (int)l;
    return 0;
}

// torchrun's processes inherit the variables of the task that runs it.
int launched_by_mpi(void) {
    return value("OMPI_COMM_WORLD_SIZE") || value("OMPI_COMM_WORLD_RANK") ||
           (value("PMIX_RANK") && !value("TORCHELASTIC_RUN_ID"));
}

// Without a launcher, MPI itself sets PMIX_RANK=0 but not the number of ranks.
static int read_mpi(zero_launch *l) {
    const char *rank = first_name("OMPI_COMM_WORLD_RANK", "PMIX_RANK", NULL);
    const char *ranks = first_name("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    if (!ranks && rank && !strcmp(value(rank), "0")) return 0;
    if (!rank) rank = "OMPI_COMM_WORLD_RANK";
    if (!ranks) ranks = "OMPI_COMM_WORLD_SIZE";
    ZERO_TRY(number(rank, ranks, 0, &l->rank));
    ZERO_TRY(number(ranks, rank, 1, &l->ranks));
    if (l->rank < l->ranks) return 0;
    return zero_fail(ZERO_ERR_ARGUMENT, "%s=%d and %s=%d: the last rank is %d", rank, l->rank, ranks,
                     l->ranks, l->ranks - 1);
}

// Other launchers, whose processes would all run as a job of one rank. Only srun sets SLURM_STEP_NUM_TASKS:
// SLURM_NTASKS is also set in a batch script. A script may export WORLD_SIZE alone.
static int refuse_others(void) {
    static const struct {
        const char *rank, *ranks, *name;
    } all[] = { { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "srun" },
                { "PMI_RANK", "PMI_SIZE", "another MPI's mpiexec" },
                { "RANK", "WORLD_SIZE", "torchrun or a script" } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *rank = value(all[i].rank), *ranks = value(all[i].ranks);
        if (rank && ranks && strcmp(ranks, "1"))
            return zero_fail(ZERO_ERR_ARGUMENT,
                             "%s=%s and %s=%s, set by %s: Open MPI starts the ranks: use mpirun -np N, under "
                             "Slurm srun --mpi=pmix or mpirun in the batch script; for one rank unset both",
                             all[i].rank, rank, all[i].ranks, ranks, all[i].name);
    }
    return 0;
}

zero_launch zero_launched(void) {
    zero_launch l = { 0, 1, 1 };
    if (launched_by_mpi() ? read_mpi(&l) : refuse_others()) return (zero_launch){ 0, 0, 1 };
    const char *of_node = first_name("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE",
                                     "SLURM_NTASKS_PER_NODE");
    int here = of_node ? atoi(value(of_node)) : l.ranks;
    l.ranks_on_node = here > 0 && here < l.ranks ? here : l.ranks;
    return l;
}

// -------- names for messages

uint64_t net_machine(char host[NET_NAME]) {
    char boot[64] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(boot, sizeof boot, f)) *boot = 0;
    if (f) fclose(f);
    memset(host, 0, NET_NAME);
    if (gethostname(host, NET_NAME - 1)) strcpy(host, "unknown");
    return XXH3_64bits_withSeed(host, strlen(host), XXH3_64bits(boot, strlen(boot)));
}

const char *net_host(const net *n, int rank) {
    return n->peers && *n->peers[rank].host ? n->peers[rank].host : "unknown";
}

const char *net_units(int unit, int units, char text[NET_UNITS]) {
    snprintf(text, NET_UNITS, units > 1 ? "units %d to %d" : "unit %d", unit, unit + units - 1);
    return text;
}

const char *net_where(net_use use, exchange_kind x, char text[NET_WHERE]) {
    static const char *const names[] = { [EXCHANGE_SCATTER] = "a reduce-scatter of ",
                                         [EXCHANGE_GATHER] = "an all-gather of ",
                                         [EXCHANGE_ROOT] = "a broadcast of ",
                                         [EXCHANGE_BARRIER] = "a barrier" };
    char units[NET_UNITS];
    const char *what = use.units ? net_units(use.unit, use.units, units) : "scalars";
    snprintf(text, NET_WHERE, "%s%s", names[x], x == EXCHANGE_BARRIER ? "" : what);
    return text;
}

int net_fail_unlike(const net *n, int other, const char *units) {
    return zero_fail(ZERO_ERR_COMM,
                     "rank %d and rank %d are in different collectives%s: all ranks must call the same hooks "
                     "in the same order, in validation and sampling too",
                     n->rank, other, units);
}

const char *net_list(const net *n, const char *chosen, char list[ZERO_LIST]) {
    return zero_list_ranks(list, n->ranks, chosen, n->peers ? n->peers->host : "unknown",
                           n->peers ? sizeof *n->peers : 0);
}
