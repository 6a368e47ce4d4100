// The lanes of a trace: what zero_trace_write has written, read as a viewer reads it.
#ifndef TESTS_LANES_H
#define TESTS_LANES_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "check.h"

enum { LANES_OF_TRACE = 9 };
typedef struct {
    const char *kind;
    int lane;
} lane_of_kind;
// What moves bytes has a lane of its own.
static const lane_of_kind moved_kinds[] = { { "read", 3 },      { "write", 5 },  { "to host", 6 },
                                            { "to device", 7 }, { "gather", 1 }, { "reduce", 1 } };
enum { MOVED_READ, MOVED_WRITTEN, MOVED_TO_HOST, MOVED_TO_DEVICE, MOVED_GATHER, MOVED_REDUCE, MOVED_KINDS };

typedef struct {
    long long bytes[MOVED_KINDS];
    int events[MOVED_KINDS], squares;
    int named;      // lanes that have a name
    int misplaced;  // events on another lane than their kind's, or that end before they begin
} trace_lanes;

static inline long long lanes_number(const char *line, const char *key) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "\"%s\":", key);
    const char *at = strstr(line, wanted);
    return at ? atoll(at + strlen(wanted)) : 0;
}

static inline void lanes_add(trace_lanes *l, const char *line, const char *kind) {
    l->squares += !strcmp(kind, "squares");
    l->misplaced += strstr(line, "\"dur\":-") || strstr(line, "\"ts\":-");
    for (int i = 0; i < MOVED_KINDS; i++) {
        if (strcmp(kind, moved_kinds[i].kind)) continue;
        l->bytes[i] += lanes_number(line, "bytes");
        l->events[i]++;
        l->misplaced += lanes_number(line, "tid") != moved_kinds[i].lane;
    }
}

// The events of this rank so far.
static inline trace_lanes lanes_of(zero *z) {
    trace_lanes l = { .named = 0 };
    char path[128], line[512], kind[32];
    snprintf(path, sizeof path, "/tmp/llmc_zero_lanes_%d.json", (int)getpid());
    MUST(zero_trace_write(z, path));
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    while (f && fgets(line, sizeof line, f)) {
        const char *cat = strstr(line, "\"cat\":\"");
        l.named += strstr(line, "thread_name") != NULL;
        if (cat && sscanf(cat, "\"cat\":\"%31[^\"]", kind) == 1) lanes_add(&l, line, kind);
    }
    if (f) fclose(f);
    remove(path);
    return l;
}

// What the plan says of one step is what the trace shows of it, link by link.
static inline void check_lanes(const trace_lanes *before, const trace_lanes *after, const zero_plan *plan) {
    const long long planned[MOVED_KINDS] = {
        plan->file_read,
        plan->file_written,
        plan->copied_down,
        plan->copied_up,
        plan->traffic.all_gather[ZERO_FOR_STEP],
        plan->traffic.reduce_scatter[ZERO_FOR_STEP],
    };
    for (int i = 0; i < MOVED_KINDS; i++) {
        const long long moved = after->bytes[i] - before->bytes[i];
        if (moved != planned[i])
            fprintf(stderr, "%s: the trace has %lld bytes, the plan %lld\n", moved_kinds[i].kind, moved,
                    planned[i]);
        CHECK(moved == planned[i]);
        CHECK((after->events[i] > before->events[i]) == (planned[i] > 0) || i >= MOVED_GATHER);
    }
    CHECK(after->squares > before->squares);
    CHECK(after->named == LANES_OF_TRACE && !after->misplaced);
}
#endif
