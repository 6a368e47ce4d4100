// The trainer's run.c, except that a run that ends returns to the target.
#include <setjmp.h>
#include <unistd.h>
#define zero_end_job fuzz_end_job
#define usleep(us) ((void)0)  // ranks pause before they exit; a fuzzer need not
#include "../../trainer/running/run.c"
#include "fuzz.h"

static jmp_buf end;
static char said[MESSAGE + 100];  // the message of the last run that ended

// Memory that a run leaves allocated when it ends is not a leak. Without ASan, these functions are NULL.
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

const char *fuzz_survives(void (*fn)(void *ctx), void *ctx) {
    if (__lsan_disable) __lsan_disable();
    const char *volatile message = said;
    run.rank = 1;  // prints nothing
    if (!setjmp(end)) {
        fn(ctx);
        message = NULL;
    }
    if (__lsan_enable) __lsan_enable();
    return message;
}

void fuzz_end_job(zero *z, int status, const char *sentence) {
    snprintf(said, sizeof said, "%s", sentence);
    longjmp(end, 1);
}
