// Disks that fail: every n-th read, write and submission, until a run has fewer. The run says so and ends
// cleanly.
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H
#include <errno.h>
#include <string.h>
#include "check.h"
#include "outcome.h"
#include "../llmc_zero/tiers/file_folder.h"

static struct {
    file_operation kind;
    long left;
} fault;

static inline long fail_nth(file_operation what, size_t bytes) {
    if (what != fault.kind) return (long)bytes;
    return __atomic_sub_fetch(&fault.left, 1, __ATOMIC_RELAXED) == 0 ? -EIO : (long)bytes;
}

// Returns the first error of three steps and a digest. After one of the disk, which the sentence names,
// whatever comes fails as well: no update follows one that has failed.
static inline int run_with_fault(const zero_config *c, int of_disk) {
    char hex[17];
    zero_step_result result;
    toy t = { .z = NULL };
    int rc = outcome_create(&t, c);  // may fail in setting the values, and leaves the plugin then
    for (int step = 1; step <= 3 && !rc; step++) rc = toy_step(&t, c->micro_batches, step, &result);
    if (!rc) rc = zero_hash(t.z, 1, hex);
    if (rc && of_disk) CHECK(strstr(zero_last_error(), outcome_folder));
    if (rc && of_disk && t.z) CHECK(zero_hash(t.z, 1, hex));
    zero_destroy(t.z);
    return rc;
}

static inline void faults_of_files(const zero_config *c) {
    static const file_operation kinds[] = { FILE_READ, FILE_WRITE, FILE_SUBMIT };
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++) {
        int rc = -1;
        long n = 1;
        CHECK_SETTING("operation %d fails, the n-th for every n", (int)kinds[k]);
        for (; rc; n += 1 + n / 8) {
            fault.kind = kinds[k];
            fault.left = n;
            file_fault = fail_nth;
            rc = run_with_fault(c, 1);
            file_fault = NULL;
            CHECK(!rc || rc == ZERO_ERR_TIER);
        }
        CHECK(n > 20);
    }
}

#endif
