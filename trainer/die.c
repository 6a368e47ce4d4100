#include "die.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../gpt2/error.h"

// Exit status before the ranks have met. It tells who started them not to wait for the other ranks' messages.
enum { ALONE = 2 };

static int silent_before_create;

void die_silently_before_create(void) { silent_before_create = 1; }

// The rank that speaks ends this one during the wait. Before the ranks are connected the speaker may be the
// one that is missing, so they take turns.
static void leave_the_message_to_another_rank(void) {
    int turn = run.rank < 20 ? run.rank : 20;
    usleep(run.z ? 3000000 : 3000000 + 300000 * turn);
}

// What stands before the sentence. The plugin's sentences about ranks name them, and get the step instead.
static void name_the_place(char *place, size_t size, const char *sentence) {
    int names_ranks = strstr(sentence, "rank ") != NULL;
    *place = 0;
    if (names_ranks && run.step >= 0)
        snprintf(place, size, "step %d: ", run.step + 1);
    else if (!names_ranks && run.ranks > 1 && (run.z || run.rank))
        snprintf(place, size, "rank %d: ", run.rank);
}

void die(const char *fmt, ...) {
    char sentence[2048], place[32];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);

    int connecting = run.z || run.creating;
    int speaks = zero_first_to_fail(run.z) && (connecting || !silent_before_create);
    if (!speaks) leave_the_message_to_another_rank();
    // A rank that is still there without a plugin has failed alone, and most often so have all others.
    if (speaks || !run.z) {
        name_the_place(place, sizeof place, sentence);
        fflush(stdout);
        // One write, so that other ranks' output cannot come between. A bar keeps its line.
        fprintf(stderr, "%strain_gpt2_zero: %s%s\n", run.peak_flops > 0 ? "\n" : "", place, sentence);
    }
    zero_end_all(run.z, connecting ? EXIT_FAILURE : ALONE);
    abort();
}

void zero_check(int rc) {
    if (rc) die("%s", zero_last_error());
}

void gpt2_check(int rc) {
    if (rc) die("%s", gpt2_last_error());
}

void *not_null(void *p) {
    if (!p) die("%s", zero_last_error());
    return p;
}

void *malloc_check(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) die("out of memory: %zu bytes", bytes);
    return p;
}
