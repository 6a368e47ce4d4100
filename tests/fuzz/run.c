// In place of trainer/run.c: what would end the run comes back to the target, and nothing is printed.
#include <setjmp.h>
#include <stdarg.h>
#include "../../gpt2/gpt2_error.h"
#include "../../trainer/run.h"
#include "fuzz.h"

Run run = { .ranks = 1, .ranks_on_host = 1, .layers = &layers_cpu, .threads = 1, .step = -1, .saving = -1 };
double now(void) { return 0; }
void print0(const char *fmt, ...) { (void)fmt; }

static jmp_buf end;

// What a run that ends leaves allocated is no leak. Without ASan these are not there.
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

int fuzz_survives(void (*fn)(void *ctx), void *ctx) {
    if (__lsan_disable) __lsan_disable();
    volatile int survived = 0;
    if (!setjmp(end)) {
        fn(ctx);
        survived = 1;
    }
    if (__lsan_enable) __lsan_enable();
    return survived;
}

// The sentence is put together, since that may go wrong as well.
void die(const char *fmt, ...) {
    char sentence[20000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    longjmp(end, 1);
}

void die_of_plugin(const zero_failure *f, const char *more) { die("%s%s", f->sentence, more); }

void zero_check(int rc) {
    if (rc) die_of_plugin(zero_last_failure(), "");
}

void gpt2_check(int rc) {
    if (rc) die("%s", gpt2_last_error());
}

void *not_null(void *p) {
    zero_check(!p);
    return p;
}

void *malloc_check(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) die("out of memory: %zu bytes", bytes);
    return p;
}
