// Tests which rank a process gets from a launcher's environment, and which address rank 0 has.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "../llmc_zero/net/net.h"

static void set_only(const char *const *pairs) {
    clearenv();
    for (; *pairs; pairs += 2) setenv(pairs[0], pairs[1], 1);
}

#define RANK(r, n) "RANK", r, "WORLD_SIZE", n
#define MASTER(host) "MASTER_ADDR", host, "MASTER_PORT", "29500"
#define MPIRUN(r, n) "OMPI_COMM_WORLD_RANK", r, "OMPI_COMM_WORLD_SIZE", n
#define SRUN(r, n) "SLURM_PROCID", r, "SLURM_STEP_NUM_TASKS", n, "SLURM_JOB_ID", "7"
#define PMI(r, n) "PMI_RANK", r, "PMI_SIZE", n
#define BATCH(r, n) "SLURM_PROCID", r, "SLURM_NTASKS", n, "SLURM_JOB_ID", "9"
#define NOWHERE "but gives no address of rank 0"

static const struct {
    int mpi;            // MPI starts the ranks
    zero_launch here;   // ranks 0: the environment is refused
    const char *words;  // start of rank 0's address, or part of the error; NULL: there is no address
    const char *pairs[22];
} rows[] = {
    { 0, { 0, 1, 1 }, NULL, { NULL } },
    { 0, { 3, 8, 8 }, "big:29500", { RANK("3", "8"), MASTER("big") } },
    { 0, { 3, 8, 8 }, "[fe::1]:29500", { RANK("3", "8"), MASTER("fe::1") } },
    { 0, { 1, 2, 2 }, NOWHERE, { RANK("1", "2") } },
    // mpirun; mpirun in an allocation, where its daemon is a task of srun; MPI without a launcher
    { 1, { 1, 4, 2 }, NOWHERE, { MPIRUN("1", "4"), "OMPI_COMM_WORLD_LOCAL_SIZE", "2" } },
    { 1, { 1, 8, 4 }, NOWHERE, { MPIRUN("1", "8"), "OMPI_COMM_WORLD_LOCAL_SIZE", "4", SRUN("0", "2") } },
    { 1, { 0, 1, 1 }, NULL, { "PMIX_RANK", "0" } },
    // mpiexec of another MPI, without and within an allocation
    { 1, { 1, 2, 2 }, NULL, { PMI("1", "2") } },
    { 1, { 5, 8, 4 }, NOWHERE, { PMI("5", "8"), "MPI_LOCALNRANKS", "4", SRUN("1", "2") } },
    // srun with --mpi=pmix, =pmi2 and =none; srun with one task
    { 1,
      { 3, 4, 2 },
      NOWHERE,
      { "PMIX_RANK", "3", SRUN("3", "4"), "SLURM_NTASKS", "8", "SLURM_STEP_TASKS_PER_NODE", "2(x2)" } },
    { 0, { 3, 4, 2 }, NOWHERE, { PMI("3", "4"), SRUN("3", "4"), "SLURM_STEP_TASKS_PER_NODE", "2(x2)" } },
    { 0, { 3, 4, 4 }, NOWHERE, { SRUN("3", "4"), "SLURM_STEP_TASKS_PER_NODE", "4" } },
    { 0, { 0, 1, 1 }, "", { PMI("0", "1"), SRUN("0", "1") } },
    // torchrun started by srun --mpi=pmix
    { 0,
      { 3, 4, 2 },
      "a:29500",
      { RANK("3", "4"), MASTER("a"), "LOCAL_WORLD_SIZE", "2", "TORCHELASTIC_RUN_ID", "x", "PMIX_RANK", "1",
        "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "2" } },
    // a batch script, which may be one process even if SLURM_NTASKS is set; WORLD_SIZE alone is ignored
    { 0, { 0, 1, 1 }, "a:", { BATCH("5", "6"), "SLURM_JOB_NODELIST", "a", "SLURM_LAUNCH_NODE_IPADDR", "b" } },
    { 0, { 0, 1, 1 }, "b:", { BATCH("0", "2"), "SLURM_LAUNCH_NODE_IPADDR", "b" } },
    { 0, { 0, 1, 1 }, "b:", { "WORLD_SIZE", "2", BATCH("0", "2"), "SLURM_LAUNCH_NODE_IPADDR", "b" } },
    // Slurm's lists of hosts
    { 0, { 0, 1, 1 }, "node7:", { BATCH("1", "2"), "SLURM_NODELIST", "node7" } },
    { 0, { 0, 1, 1 }, "node7:", { BATCH("1", "2"), "SLURM_NODELIST", "node7,node8" } },
    { 0, { 0, 1, 1 }, "node01:", { BATCH("1", "2"), "SLURM_NODELIST", "node[01-03,7]" } },
    { 0, { 0, 1, 1 }, "node7:", { BATCH("1", "2"), "SLURM_NODELIST", "node[7],x" } },
    { 0, { 0, 1, 1 }, "n3-ib:", { BATCH("1", "2"), "SLURM_NODELIST", "n[3,5-9]-ib,m" } },
    { 0, { 0, 1, 1 }, "r01n10:", { BATCH("1", "2"), "SLURM_NODELIST", "r[01-02]n[10-20]" } },
    { 0, { 0, 1, 1 }, "a.b-c:", { BATCH("1", "2"), "SLURM_NODELIST", "a.b-c,d[1-2]" } },
    // impossible numbers
    { 0, { 0 }, "RANK=5 and WORLD_SIZE=2: with 2 ranks the last one is 1", { RANK("5", "2") } },
    { 0, { 0 }, "RANK=1 and WORLD_SIZE=1: with 1 ranks the last one is 0", { RANK("1", "1") } },
    { 0, { 0 }, "RANK=-1 is not a number of at least 0", { RANK("-1", "2") } },
    { 0, { 0 }, "RANK=x is not a number of at least 0", { RANK("x", "8") } },
    { 0, { 0 }, "WORLD_SIZE=0 is not a number of at least 1", { RANK("0", "0") } },
    { 0, { 0 }, "WORLD_SIZE=2x is not a number of at least 1", { RANK("0", "2x") } },
    { 0, { 0 }, "RANK=gold, but no WORLD_SIZE: set it in each process", { "RANK", "gold" } },
    { 0, { 0 }, "WORLD_SIZE=1, but no RANK: set it in each process", { "WORLD_SIZE", "1" } },
    { 1, { 0 }, "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=2: with 2", { MPIRUN("2", "2") } },
    { 1, { 0 }, "OMPI_COMM_WORLD_SIZE=2, but no OMPI_COMM_WORLD_RANK", { "OMPI_COMM_WORLD_SIZE", "2" } },
    { 0, { 0 }, "OMPI_COMM_WORLD_RANK=1, but no OMPI_COMM_WORLD_SIZE", { "OMPI_COMM_WORLD_RANK", "1" } },
    { 1, { 0 }, "PMI_RANK=2 and PMI_SIZE=2: with 2", { PMI("2", "2") } },
    { 0, { 0 }, "SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=2: with 2", { SRUN("2", "2") } },
    // RANK and WORLD_SIZE, exported by a script to all tasks
    { 1,
      { 1, 2, 2 },
      "RANK=0 and WORLD_SIZE=1, but mpirun started this as task 1 of 2: unset both",
      { RANK("0", "1"), MPIRUN("1", "2") } },
    { 0, { 0, 1, 1 }, "", { RANK("0", "1"), MPIRUN("1", "2"), "TORCHELASTIC_RUN_ID", "x" } },
    { 0,
      { 0 },
      "RANK=0 and WORLD_SIZE=1, but srun started this as task 1 of 2: unset both",
      { RANK("0", "1"), SRUN("1", "2") } },
};
static void environments(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rendezvous_settings s = { .rank = 9 };
        set_only(rows[i].pairs);
        int mpi = launched_by_mpi(), rc = launched_read(&s);
        zero_launch found = zero_launched(), here = rows[i].here;
        const char *is = rc == 1 && s.server ? s.server : zero_last_error();
        if (mpi != rows[i].mpi || found.rank != here.rank || found.ranks != here.ranks ||
            found.ranks_on_node != (here.ranks ? here.ranks_on_node : 1))
            fail_msg("row %zu: MPI %d, rank %d of %d, %d on the node", i, mpi, found.rank, found.ranks,
                     found.ranks_on_node);
        if (!rows[i].words && (rc || s.rank != 9)) fail_msg("row %zu: found a launcher, rank %d", i, s.rank);
        int is_known = rc == 1 || rc == ZERO_ERR_ARGUMENT || (mpi && !rc);
        if (rows[i].words && (!is_known || !strstr(is, rows[i].words)))
            fail_msg("row %zu: %d, \"%s\"", i, rc, is);
    }
}

static void settings_of_the_user(void **state) {
    rendezvous_settings s = { .server = "here:1" };
    set_only((const char *const[]){ MPIRUN("1", "2"), NULL });
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.server, "here:1");
    assert_true(s.rank == 1 && s.ranks == 2 && !s.key);
    setenv("OMPI_MCA_orte_precondition_transports", "random", 1);
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.key, "random");
    s.key = "the user's";
    assert_int_equal(launched_read(&s), 1);
    assert_string_equal(s.key, "the user's");
}

// Ranks of one job step must compute the same port; other steps and jobs must get different ports. With
// torchrun the port must depend only on the run, because srun may start an agent on each host. It must not be
// MASTER_PORT, because the agent listens there.
static int port_of(const char *job, const char *step, const char *torchrun) {
    rendezvous_settings s = { 0 };
    set_only((const char *const[]){ "SLURM_JOB_ID", job, "SLURM_STEP_ID", step,
                                    torchrun ? "RANK" : "SLURM_PROCID", "1",
                                    torchrun ? "WORLD_SIZE" : "SLURM_NTASKS", "6", NULL });
    if (torchrun)
        for (const char *const *p = (const char *const[]){ MASTER("big"), "TORCHELASTIC_RUN_ID", torchrun,
                                                           "TORCHELASTIC_USE_AGENT_STORE", "True", NULL };
             *p; p += 2)
            setenv(p[0], p[1], 1);
    else
        setenv("SLURM_NODELIST", "a", 1);
    assert_int_equal(launched_read(&s), 1);
    assert_true(s.job != 0);
    int port = atoi(strrchr(s.server, ':') + 1);
    assert_in_range(port, 10000, 30000);
    return port;
}
static void ports(void **state) {
    assert_int_equal(port_of("123", "0", NULL), port_of("123", "0", NULL));
    assert_int_not_equal(port_of("123", "0", NULL), port_of("123", "1", NULL));
    assert_int_not_equal(port_of("123", "0", NULL), port_of("124", "0", NULL));
    assert_int_equal(port_of("7", "0", "run"), port_of("7", "1", "run"));
    assert_int_not_equal(port_of("7", "0", "run"), port_of("7", "0", "other"));
    assert_int_not_equal(port_of("7", "0", "run"), 29500);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(environments),
                                        cmocka_unit_test(settings_of_the_user), cmocka_unit_test(ports) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
