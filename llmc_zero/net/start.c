// Which rank the launcher has made this process, and the connection to the others. Also zero_launched of
// zero_job.h.
#include "exchange.h"
#include "failure.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

// -------- the launcher

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
    return FIRST_NAME("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK") ||
           (value("PMIX_RANK") && !value("TORCHELASTIC_RUN_ID"));
}

// Without a launcher, MPI itself sets PMIX_RANK=0 but not the number of ranks.
static int read_mpi(zero_launch *l) {
    const char *rank = FIRST_NAME("OMPI_COMM_WORLD_RANK", "PMIX_RANK");
    const char *ranks = FIRST_NAME("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
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
    const char *of_node = FIRST_NAME("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE",
                                     "SLURM_NTASKS_PER_NODE");
    int here = of_node ? atoi(value(of_node)) : l.ranks;
    l.ranks_on_node = here > 0 && here < l.ranks ? here : l.ranks;
    return l;
}

// -------- the connection

static int alloc_tables(net *n) {
    n->peers = calloc((size_t)n->ranks, sizeof *n->peers);
    n->who = calloc((size_t)n->ranks, sizeof *n->who);
    if (!n->peers || !n->who)
        return zero_fail(ZERO_ERR_MEMORY, "out of memory for the table of %d ranks", n->ranks);
    pthread_mutex_init(&n->lock, NULL);
    if (n->ranks > 1) failure_watch(n);
    return 0;
}

// Returns 0 if nodes have different numbers of ranks, or ranks that are not consecutive.
static int count_hosts(const net *n) {
    int each = 0;
    while (each < n->ranks && n->who[each].node == n->who[0].node) each++;
    for (int r = 0; r < n->ranks; r++)
        for (int s = 0; s < r; s++)
            if ((n->who[r].node == n->who[s].node) != (r / each == s / each)) return 0;
    return n->ranks % each ? 0 : n->ranks / each;
}

static int find_places(net *n) {
    net_place mine;
    mine.node = net_machine(mine.host);
    ZERO_TRY(net_gather(n, &mine, n->who, sizeof mine));
    n->ranks_on_node = 0;
    for (int r = 0; r < n->ranks; r++) {
        int here = n->who[r].node == mine.node;
        n->ranks_on_node += here;
        n->node_rank += here && r < n->rank;
    }
    n->hosts = count_hosts(n);
    return 0;
}

static int check_numbers(const net *n, const zero_start_config *s, zero_launch launched) {
    if (!s->mpi_comm && launched.ranks != n->ranks)
        return zero_fail(ZERO_ERR_COMM,
                         "the launcher has started %d ranks, but MPI sees %d, so this MPI does not work with "
                         "this launcher: start with its own mpirun, or under Slurm with srun --mpi=pmix",
                         launched.ranks, n->ranks);
    if ((s->ranks > 0 && s->ranks != n->ranks) || (s->rank >= 0 && s->rank != n->rank))
        return zero_refuse("start.rank start.ranks", " %d of %d: this is rank %d of %d", s->rank, s->ranks,
                           n->rank, n->ranks);
    return 0;
}

// One rank of a job in virtual time, which has no link to the others.
static int start_virtual(net *n, const zero_config *config) {
    const int here = config->machine->ranks_on_host;
    n->name = "virtual";
    n->rank = config->start.rank > 0 ? config->start.rank : 0;
    n->ranks = config->start.ranks > 0 ? config->start.ranks : 1;
    n->ranks_on_node = here < n->ranks ? here : n->ranks;
    n->hosts = n->ranks % n->ranks_on_node ? 0 : n->ranks / n->ranks_on_node;
    return 0;
}

int net_start(net *n, const zero_config *config) {
    const zero_start_config *start = &config->start;
    *n = (net){ .ranks = 1, .ranks_on_node = 1, .hosts = 1, .name = "self", .reports = -1 };
    n->ended.root = -1;
    n->timeout_s = config->comm.timeout_s;
    if (config->machine) return start_virtual(n, config);
    zero_launch launched = zero_launched();
    if (!start->mpi_comm && !launched.ranks) return zero_last_failure()->code;
    if (!start->mpi_comm && !launched_by_mpi()) return check_numbers(n, start, launched);
    ZERO_TRY(link_open(n, config, launched));
    n->name = "mpi";
    ZERO_TRY(alloc_tables(n));
    ZERO_TRY(find_places(n));
    return check_numbers(n, start, launched);
}

void net_close(net *n, int clean) {
    if (n->link && n->peers && n->who) {
        failure_unwatch(n, clean);
        pthread_mutex_lock(&n->lock);
        link_close(n, clean && !n->failed);
        pthread_mutex_unlock(&n->lock);
        pthread_mutex_destroy(&n->lock);
    }
    free(n->peers);
    free(n->who);
    n->link = NULL;
    n->peers = NULL;
    n->who = NULL;
}
