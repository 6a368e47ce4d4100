// The trainer's run.c, except that a run that ends returns to the target.
#include <setjmp.h>
#include <unistd.h>
#define zero_end_job fuzz_end_job
#define usleep(us) ((void)0)  // ranks pause before they exit; a fuzzer need not
#include "../../trainer/running/run.c"
#include "fuzz.h"

static jmp_buf end;

// Memory that a run leaves allocated when it ends is not a leak. Without ASan, these functions are NULL.
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

int fuzz_survives(void (*fn)(void *ctx), void *ctx) {
    if (__lsan_disable) __lsan_disable();
    volatile int survived = 0;
    run.rank = 1;  // prints nothing
    if (!setjmp(end)) {
        fn(ctx);
        survived = 1;
    }
    if (__lsan_enable) __lsan_enable();
    return survived;
}

void fuzz_end_job(zero *z, int status, const char *sentence) { longjmp(end, 1); }
