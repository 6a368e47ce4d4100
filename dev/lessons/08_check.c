// Lesson 8: passes small cases to `exposed`, and spans from traces of the library. Without overlap the
// library sends only while nothing is computed, so everything is exposed. With overlap the expected time is
// the sum of all intervals between two neighbouring events in which something is sent and nothing computed.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lesson.h"

enum { RANKS = 2, UNITS = 6, STEPS = 3, MOST = 2000 };
static const int64_t elems[UNITS] = { 40960, 20480, 20480, 61440, 20480, 102400 };

typedef struct {
    span all[MOST];
    int n;
} spans;

// -------- cases with known answers

static const char *text(const spans *s, char *buffer, size_t size) {
    size_t used = snprintf(buffer, size, s->n ? "" : " none");
    for (int i = 0; i < s->n && used < size; i++)
        used += snprintf(buffer + used, size - used, " %g-%g", s->all[i].begin, s->all[i].end);
    return buffer;
}

static void check_case(const char *name, double right, spans sends, spans computes) {
    char sent[100], computed[100];
    const double yours = exposed(sends.all, sends.n, computes.all, computes.n);
    if (fabs(yours - right) > 1e-9)
        lesson_off("you get %g microseconds; it is %g: sends%s; computes%s", yours, right,
                   text(&sends, sent, sizeof sent), text(&computes, computed, sizeof computed));
    lesson_check("%s", name);
}

static void check_cases(void) {
    const spans none = { .n = 0 }, one = { { { 10, 20 } }, 1 };
    const spans two = { { { 0, 8 }, { 30, 35 } }, 2 }, around = { { { 5, 31 } }, 1 };
    const spans pieces = { { { 0, 2 }, { 4, 6 }, { 6, 7 }, { 34, 40 } }, 4 };
    check_case("nothing is computed: all is exposed", 13, two, none);
    check_case("a computation within a send hides its own time", 16, around, one);
    check_case("a computation hides parts of two sends", 9, two, around);
    check_case("several computations during a send", 7, two, pieces);
}

// -------- traces

static float gradient(int rank, int micro, int unit, int64_t i) {
    return lesson_number((uint64_t)i) * (float)(1 + rank + micro + unit);
}

// Runs some steps at stage 3, and writes a trace. Buckets of one unit keep reductions apart.
static void run(int overlap, const char *path) {
    zero_hyper hyper = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f };
    zero_config config = zero_defaults();
    config.stage = 3;
    config.reduce_bucket_size = 1;
    config.overlap = overlap;
    config.debug.trace_events = MOST;
    zero *z = lesson_engine(&config, elems, UNITS);
    for (hyper.t = 1; hyper.t <= STEPS; hyper.t++) {
        lesson_micro_batch(z, 0, 1, &config, elems, UNITS, gradient);
        lesson_must(zero_step(z, &hyper, NULL));
    }
    lesson_must(zero_barrier(z));
    lesson_must(zero_trace_write(z, path));
    zero_destroy(z);
}

// Compares times, or spans by their begin.
static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Adds rank 0's gathers and reductions to sends, and its passes to computes. The file has an event on
// each line.
static void read_trace(const char *path, spans *sends, spans *computes) {
    char line[1000], kind[20];
    FILE *in = fopen(path, "r");
    while (in && fgets(line, sizeof line, in)) {
        const char *at = strstr(line, "\"cat\":\""), *times = strstr(line, "\"ts\":");
        int rank;
        double begin, duration;
        if (!at || !times) continue;
        if (sscanf(at, "\"cat\":\"%19[^\"]\",\"ph\":\"X\",\"pid\":%d", kind, &rank) != 2) continue;
        if (rank != 1 || sscanf(times, "\"ts\":%lf,\"dur\":%lf", &begin, &duration) != 2) continue;
        const int is_send = !strcmp(kind, "gather") || !strcmp(kind, "reduce");
        spans *to = is_send ? sends : computes;
        if (!is_send && strcmp(kind, "forward") != 0 && strcmp(kind, "backward") != 0) continue;
        if (to->n < MOST) to->all[to->n++] = (span){ begin, begin + duration };
    }
    if (in) fclose(in);
    qsort(sends->all, sends->n, sizeof(span), by_time);
    qsort(computes->all, computes->n, sizeof(span), by_time);
}

static int covers(const spans *s, double time) {
    for (int i = 0; i < s->n; i++)
        if (s->all[i].begin <= time && time < s->all[i].end) return 1;
    return 0;
}

// Nothing begins or ends between two neighbouring times, so it is enough to check the middle.
static double exposed_by_moments(const spans *sends, const spans *computes) {
    static double times[4 * MOST];
    double sum = 0;
    int n = 0;
    for (int k = 0; k < 2; k++) {
        const spans *s = k ? computes : sends;
        for (int i = 0; i < s->n; i++) {
            times[n++] = s->all[i].begin;
            times[n++] = s->all[i].end;
        }
    }
    qsort(times, n, sizeof *times, by_time);
    for (int i = 0; i + 1 < n; i++) {
        const double moment = (times[i] + times[i + 1]) / 2;
        if (covers(sends, moment) && !covers(computes, moment)) sum += times[i + 1] - times[i];
    }
    return sum;
}

// A time in the file is rounded to a nanosecond.
static void check_trace(int overlap, const char *path) {
    static spans sends, computes;
    double all = 0;
    sends.n = computes.n = 0;
    run(overlap, path);
    if (wire_rank() == 0) {
        read_trace(path, &sends, &computes);
        for (int i = 0; i < sends.n; i++) all += sends.all[i].end - sends.all[i].begin;
        const double right = overlap ? exposed_by_moments(&sends, &computes) : all;
        const double yours = exposed(sends.all, sends.n, computes.all, computes.n);
        if (!sends.n || !computes.n) lesson_off("the trace %s has no events", path);
        if (fabs(yours - right) > 0.01 * sends.n)
            lesson_off("you get %.2f microseconds; it is %.2f of %.2f sent", yours, right, all);
    }
    lesson_check("a trace of %d steps at stage 3, %s overlap", STEPS, overlap ? "with" : "without");
}

int main(int argc, char **argv) {
    char path[] = "/tmp/lesson8.XXXXXX";
    lesson_begin(argv, RANKS, 8, "when is it free?");
    const int file = wire_rank() == 0 ? mkstemp(path) : -1;
    check_cases();
    for (int overlap = 0; overlap <= 1; overlap++) check_trace(overlap, path);
    if (file >= 0) {
        close(file);
        unlink(path);
    }
    return lesson_end();
}
