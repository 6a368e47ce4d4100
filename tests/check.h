/* Checks for programs of several ranks: a failed check is counted and the program goes on, so that no rank waits for another in vain. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H
#include <mpi.h>
#include <stdio.h>
#include "../llmc_zero/zero.h"

static struct { int rank, ranks; long passed, failed; char setting[160]; } checks;

enum { CHECK_PRINTED = 20 };       /* failures a rank prints; the rest is only counted */

static inline void check_that(int ok, const char *expression, const char *file, int line) {
    if (ok) { checks.passed++; return; }
    if (checks.failed++ < CHECK_PRINTED)
        fprintf(stderr, "%s:%d: rank %d of %d: [%s] failed: %s\n", file, line, checks.rank, checks.ranks, checks.setting, expression);
}
#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)

/* What must work for the test to go on at all: if it does not, all ranks end. */
static inline void check_must(int rc, const char *expression, const char *file, int line) {
    if (!rc) { checks.passed++; return; }
    fprintf(stderr, "%s:%d: rank %d of %d: [%s] %s returned %d: %s\n", file, line, checks.rank, checks.ranks, checks.setting, expression,
            rc, zero_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define MUST(call) check_must((call), #call, __FILE__, __LINE__)

#define CHECK_SETTING(...) ((void)snprintf(checks.setting, sizeof checks.setting, __VA_ARGS__))

static inline void checks_begin(void) {
    MPI_Comm_rank(MPI_COMM_WORLD, &checks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &checks.ranks);
}

/* (collective) The largest of the ranks' values, on all of them. */
static inline int check_any(int value) {
    int any = 0;
    MPI_Allreduce(&value, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return any;
}

/* (collective) Sums over the ranks, prints on rank 0, returns the exit status. */
static inline int checks_end(const char *program) {
    long mine[2] = { checks.passed, checks.failed }, all[2] = { 0, 0 };
    MPI_Allreduce(mine, all, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (!checks.rank) printf("%s np=%d: %ld passed, %ld failed\n", program, checks.ranks, all[0], all[1]);
    return all[1] || !all[0];
}

#endif
