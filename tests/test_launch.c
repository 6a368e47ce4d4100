// Tests which rank a launcher assigns to a process through its environment, and which launchers are refused.
#include "unit.h"
#include "../llmc_zero/net/net.h"

static void set_only(const char *const *pairs) {
    clearenv();
    for (; *pairs; pairs += 2) setenv(pairs[0], pairs[1], 1);
}

#define MPIRUN(r, n) "OMPI_COMM_WORLD_RANK", r, "OMPI_COMM_WORLD_SIZE", n
#define SRUN(r, n) "SLURM_PROCID", r, "SLURM_STEP_NUM_TASKS", n, "SLURM_JOB_ID", "7"
#define NODES "SLURM_STEP_TASKS_PER_NODE", "2(x2)"
#define PMI(r, n) "PMI_RANK", r, "PMI_SIZE", n
#define BATCH(r, n) "SLURM_PROCID", r, "SLURM_NTASKS", n, "SLURM_JOB_ID", "9"
#define RANK(r, n) "RANK", r, "WORLD_SIZE", n
#define TORCHRUN "TORCHELASTIC_RUN_ID", "x", "PMIX_RANK", "0"
#define INSTEAD "Open MPI starts the ranks: use mpirun -np N, under Slurm srun --mpi=pmix"

static const struct {
    int mpi;            // MPI starts the ranks
    zero_launch here;   // ranks 0: the environment is refused, with
    const char *words;  // in the message
    const char *pairs[22];
} rows[] = {
    { 0, { 0, 1, 1 }, NULL, { NULL } },
    // mpirun; mpirun in an allocation, where its daemon is a task of srun; MPI without a launcher
    { 1, { 1, 4, 2 }, NULL, { MPIRUN("1", "4"), "OMPI_COMM_WORLD_LOCAL_SIZE", "2" } },
    { 1, { 1, 8, 4 }, NULL, { MPIRUN("1", "8"), "OMPI_COMM_WORLD_LOCAL_SIZE", "4", SRUN("0", "2") } },
    { 1, { 1, 2, 2 }, NULL, { MPIRUN("1", "2"), RANK("0", "8") } },
    { 1, { 0, 1, 1 }, NULL, { "PMIX_RANK", "0" } },
    // srun with --mpi=pmix, and with one task
    { 1, { 3, 4, 2 }, NULL, { "PMIX_RANK", "3", SRUN("3", "4"), NODES, "SLURM_NTASKS", "8" } },
    { 0, { 0, 1, 1 }, NULL, { PMI("0", "1"), SRUN("0", "1") } },
    // a batch script, which is one process although SLURM_NTASKS is set; WORLD_SIZE alone is ignored
    { 0, { 0, 1, 1 }, NULL, { BATCH("5", "6"), "SLURM_JOB_NODELIST", "a" } },
    { 0, { 0, 1, 1 }, NULL, { "WORLD_SIZE", "2", BATCH("0", "2") } },
    { 0, { 0, 1, 1 }, NULL, { RANK("0", "1") } },
    // launchers whose processes Open MPI cannot connect
    { 0, { 0 }, "SLURM_PROCID=3 and SLURM_STEP_NUM_TASKS=4, set by srun: " INSTEAD, { SRUN("3", "4") } },
    { 0, { 0 }, "set by srun: " INSTEAD, { PMI("3", "4"), SRUN("3", "4") } },
    { 0, { 0 }, "PMI_RANK=1 and PMI_SIZE=2, set by another MPI's mpiexec: " INSTEAD, { PMI("1", "2") } },
    { 0, { 0 }, "RANK=3 and WORLD_SIZE=8, set by torchrun or a script: " INSTEAD, { RANK("3", "8") } },
    { 0, { 0 }, "RANK=3 and WORLD_SIZE=4, set by torchrun", { RANK("3", "4"), TORCHRUN, SRUN("0", "1") } },
    // impossible numbers
    { 1, { 0 }, "_RANK=2 and OMPI_COMM_WORLD_SIZE=2: the last rank is 1", { MPIRUN("2", "2") } },
    { 1, { 0 }, "OMPI_COMM_WORLD_RANK=-1 is not a number of at least 0", { MPIRUN("-1", "2") } },
    { 1, { 0 }, "OMPI_COMM_WORLD_SIZE=2x is not a number of at least 1", { MPIRUN("0", "2x") } },
    { 1, { 0 }, "OMPI_COMM_WORLD_SIZE=2, but no OMPI_COMM_WORLD_RANK", { "OMPI_COMM_WORLD_SIZE", "2" } },
    { 1, { 0 }, "_RANK=1, but no OMPI_COMM_WORLD_SIZE: set both", { "OMPI_COMM_WORLD_RANK", "1" } },
};
static void environments(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        set_only(rows[i].pairs);
        int mpi = launched_by_mpi();
        zero_launch found = zero_launched(), here = rows[i].here;
        if (mpi != rows[i].mpi || found.rank != here.rank || found.ranks != here.ranks ||
            found.ranks_on_node != (here.ranks ? here.ranks_on_node : 1))
            fail_msg("row %zu: MPI %d, rank %d of %d, %d on the node", i, mpi, found.rank, found.ranks,
                     found.ranks_on_node);
        if (rows[i].words && !strstr(zero_last_error(), rows[i].words))
            fail_msg("row %zu: \"%s\"", i, zero_last_error());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(environments) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
