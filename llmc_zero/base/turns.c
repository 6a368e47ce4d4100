#include "turns.h"
#ifdef __linux__
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// As in sched_setattr(2), which glibc has only since 2.41.
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;  // ns
} attributes;

// For SCHED_OTHER the runtime is the length of a turn. Older kernels ignore it or refuse the call.
void turns_short(void) {
    attributes a = { .size = sizeof a };
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || a.policy != SCHED_OTHER) return;
    a.runtime = 100 * 1000;  // the shortest that Linux allows
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}
#else
void turns_short(void) {}
#endif
