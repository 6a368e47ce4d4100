// Simulates a disk that fails or hangs: injects faults through file_fault (llmc_zero/tiers/file_folder.h).
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include "../llmc_zero/base/clock.h"
#include "../llmc_zero/tiers/file_folder.h"

// The fault to inject. Change it only while no thread uses the disk.
static struct fault {
    file_operation what;
    int64_t at, times;  // the first operation of that kind to fail, counted from 1, and how many fail
    long outcome;       // what failing operations return
    int64_t most;       // if not 0, they do not fail, but transfer at most this many bytes
    double each_s;      // if not 0, they do not fail, but take this long, one after the other
} fault;
static _Atomic int64_t fault_seen;  // operations of that kind so far
static atomic_int fault_waits;      // 1: these operations wait until this is 0, for at most 120 s

static inline void fault_nap(double seconds) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    clock_nap(seconds);
    pthread_mutex_unlock(&lock);
}

static inline long fault_outcome(file_operation what, size_t bytes) {
    if (what == FILE_IN_MEMORY) return 0;
    if (what != fault.what) return (long)bytes;
    const int64_t n = ++fault_seen;
    for (int ms = 0; fault_waits && ms < 120000; ms++) clock_nap(1e-3);
    if (n < fault.at || n >= fault.at + fault.times) return (long)bytes;
    if (fault.each_s > 0) return fault_nap(fault.each_s), (long)bytes;
    if (fault.most) return (int64_t)bytes < fault.most ? (long)bytes : (long)fault.most;
    return fault.outcome;
}

static inline void set_fault(file_operation what, int64_t at, int64_t times, long outcome) {
    fault = (struct fault){ .what = what, .at = at, .times = times, .outcome = outcome };
    fault_seen = 0;
    file_fault = fault_outcome;
}

#endif
