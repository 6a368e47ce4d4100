// Checks for programs with several ranks. A rank goes on after a failed check, so that no other waits for it.
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/zero.h"

// Each setting is one test. It fails if one of its checks fails on any rank.
static struct {
    int rank, ranks, settings, failed, failed_here;
    long checks, printed;
    char setting[160];
    const char *skipped;     // why the program has no checks, or NULL
    char *const *arguments;  // of the program
} checks;

enum { CHECK_PRINTED = 20 };  // failures printed per rank; the rest are only counted

static inline void check_that(int ok, const char *expression, const char *file, int line) {
    checks.checks++;
    if (ok) return;
    checks.failed += !checks.failed_here;
    checks.failed_here = 1;
    if (checks.printed++ < CHECK_PRINTED)
        fprintf(stderr, "%s:%d: rank %d of %d: [%s] failed: %s\n", file, line, checks.rank, checks.ranks,
                checks.setting, expression);
}
#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)

// Checks a call that the rest of the test depends on. A failure ends all ranks.
static inline void check_must(int rc, const char *expression, const char *file, int line) {
    checks.checks++;
    if (!rc) return;
    fprintf(stderr, "%s:%d: rank %d of %d: [%s] %s returned %d: %s\n", file, line, checks.rank, checks.ranks,
            checks.setting, expression, rc, zero_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define MUST(call) check_must((call), #call, __FILE__, __LINE__)

#define CHECK_SETTING(...)                      \
    (checks.settings++, checks.failed_here = 0, \
     (void)snprintf(checks.setting, sizeof checks.setting, __VA_ARGS__))

// (collective) Waits for all ranks. Unlike MPI_Barrier it leaves the core to ranks that wait out a limit.
static inline void checks_meet(void) {
    MPI_Request all;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (int done = 0; !done; MPI_Test(&all, &done, MPI_STATUS_IGNORE)) clock_nap(1e-3);
}

// (collective) Returns the largest of the ranks' values.
static inline int check_any(int value) {
    int any = 0;
    MPI_Allreduce(&value, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return any;
}

// (collective) Rank 0 creates a new folder in `parent`, and all ranks get its name.
static inline void check_make_folder(char *folder, int room, const char *parent) {
    snprintf(folder, room, "%s/llmc_zero_test.XXXXXX", parent);
    CHECK_SETTING("folder");
    if (!checks.rank) CHECK(mkdtemp(folder));
    MPI_Bcast(folder, room, MPI_CHAR, 0, MPI_COMM_WORLD);
}

// (collective) The test fails if anything is left in the folder.
static inline void check_remove_folder(const char *folder) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (!checks.rank) CHECK(!rmdir(folder));
}

// (collective) Rank 0 prints the result. Returns the exit status.
static inline int checks_end(const char *program) {
    int failed = check_any(checks.failed);
    if (checks.skipped) {
        if (!checks.rank) printf("skip %s: %s\n0 passed, 0 failed, 1 skipped\n", program, checks.skipped);
        return 0;
    }
    if (!checks.rank)
        printf("%s np=%d: %ld checks per rank; settings: %d passed, %d failed\n", program, checks.ranks,
               checks.checks, checks.settings - failed, failed);
    return failed || !checks.settings;
}

// Implements main: starts MPI and runs body with the first command-line argument, or "".
static inline int checks_main(int argc, char **argv, const char *program, void (*body)(const char *asked)) {
    int provided;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &checks.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &checks.ranks);
    checks.arguments = argv;
    body(argc > 1 ? argv[1] : "");
    int status = checks_end(program);
    MPI_Finalize();
    return status;
}

#endif
