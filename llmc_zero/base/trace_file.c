#include "trace_file.h"
#include "error.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// -------- tracks

enum { TRACKS = 64, DEPTH = 16 };  // tracks per lane; nested events on a track
typedef struct {
    int64_t ends[DEPTH];  // of the events that contain the current time, the innermost last
    int open;
} track;

// Whole nanoseconds, so that rounding cannot make one event outlast the event that contains it.
static int64_t nanoseconds(double s) { return llround(s * 1e9); }

// Transfers run side by side: one that runs during another is not part of it.
static int may_nest(const trace_event *e) { return e->kind < EVENT_READ || e->kind > EVENT_TO_DEVICE; }

// Returns the first of the lane's tracks on which the event overlaps no other event, except that it may nest
// in events that contain it if may_nest allows it; -1: none. Call it for the events in by_lane's order.
static int track_of(track *tracks, const trace_event *e) {
    const int64_t start = nanoseconds(e->start_s), end = nanoseconds(e->end_s);
    for (int i = 0; i < TRACKS; i++) {
        track *t = &tracks[i];
        while (t->open && t->ends[t->open - 1] <= start) t->open--;
        const int fits = may_nest(e) && t->open < DEPTH && end <= t->ends[t->open ? t->open - 1 : 0];
        if (t->open && !fits) continue;
        t->ends[t->open++] = end;
        return i;
    }
    return -1;
}

static int compare(double a, double b) { return (a > b) - (a < b); }
static int by_lane(const void *a, const void *b) {
    const trace_event *x = a, *y = b;
    if (x->lane != y->lane) return (int)x->lane - (int)y->lane;
    return x->start_s != y->start_s ? compare(x->start_s, y->start_s) : compare(y->end_s, x->end_s);
}
static int by_end(const void *a, const void *b) {
    return compare(((const trace_event *)a)->end_s, ((const trace_event *)b)->end_s);
}

// -------- text

typedef struct {
    FILE *to;
    int process;  // rank + 1: viewers treat process 0 and thread 0 as idle
    double shift_s;
    const char *const *unit_names;
    int units;
} writer;

static void write_name(const writer *w, const char *what, int thread, const char *name, int number) {
    fprintf(w->to, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,", what, w->process);
    if (thread) fprintf(w->to, "\"tid\":%d,", thread);
    fprintf(w->to, "\"args\":{\"name\":\"%s", name);
    if (number >= 0) fprintf(w->to, " %d", number);
    fprintf(w->to, "\"}},\n");
}

// Track 0 of lane 0 has number 100, its track 1 has 101, track 0 of lane 1 has 200.
static int track_number(lane row, int i) { return 100 * ((int)row + 1) + i; }

static void write_slice(const writer *w, const trace_event *e, int on) {
    static const char *const kinds[EVENT_KINDS] = { "forward", "backward",  "gather",  "reduce",
                                                    "update",  "wait",      "read",    "write",
                                                    "to host", "to device", "squares", "step" };
    const char *kind = kinds[e->kind];
    const int64_t start = nanoseconds(e->start_s), length = nanoseconds(e->end_s) - start;
    fprintf(w->to, "{\"name\":\"%s", kind);
    if (e->kind == EVENT_STEP && e->unit)
        fprintf(w->to, " %d", e->unit);
    else if (e->kind == EVENT_STEP)
        fprintf(w->to, " discarded");
    else if (e->unit >= 0 && e->unit < w->units)
        fprintf(w->to, " %s", w->unit_names[e->unit]);
    fprintf(w->to, "\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,", kind, w->process,
            track_number(e->lane, on));
    fprintf(w->to, "\"ts\":%.3f,\"dur\":%.3f", (nanoseconds(w->shift_s) + start) * 1e-3, length * 1e-3);
    if (e->bytes) fprintf(w->to, ",\"args\":{\"bytes\":%lld}", (long long)e->bytes);
    fprintf(w->to, "},\n");
}

static void write_slices(const writer *w, trace_event *events, int n) {
    static const char *const lanes[TRACE_LANES] = { "forward and backward",
                                                    "collectives",
                                                    "fetches",
                                                    "reads of files",
                                                    "AdamW on the host",
                                                    "writes of files",
                                                    "copies to the host",
                                                    "copies to the device",
                                                    "squares of gradients",
                                                    "steps" };
    track tracks[TRACKS];
    lane row = TRACE_LANES;
    int named = 1;
    qsort(events, n, sizeof *events, by_lane);
    for (lane i = 0; i < TRACE_LANES; i++) write_name(w, "thread_name", track_number(i, 0), lanes[i], -1);
    for (int i = 0; i < n; i++) {
        const trace_event *e = &events[i];
        if (e->lane != row) {
            row = e->lane;
            named = 1;
            memset(tracks, 0, sizeof tracks);
        }
        const int on = track_of(tracks, e);
        if (on < 0) continue;
        for (; named <= on; named++)
            write_name(w, "thread_name", track_number(row, named), lanes[row], named + 1);
        write_slice(w, e, on);
    }
}

// Counters: the bytes moved since the start, by link, and the memory allocated at the end of each step.
static void write_counters(const writer *w, trace_event *events, int n) {
    static const char *const names[EVENT_KINDS] = {
        [EVENT_GATHER] = "bytes gathered", [EVENT_REDUCE] = "bytes reduced",
        [EVENT_READ] = "bytes read",       [EVENT_WRITE] = "bytes written",
        [EVENT_TO_HOST] = "bytes to host", [EVENT_TO_DEVICE] = "bytes to device",
        [EVENT_STEP] = "memory allocated"
    };
    int64_t totals[EVENT_KINDS] = { 0 };
    qsort(events, n, sizeof *events, by_end);
    for (int i = 0; i < n; i++) {
        const trace_event *e = &events[i];
        if (!e->bytes || !names[e->kind]) continue;
        totals[e->kind] = e->bytes + (e->kind == EVENT_STEP ? 0 : totals[e->kind]);
        fprintf(w->to, "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,", names[e->kind], w->process,
                (nanoseconds(w->shift_s) + nanoseconds(e->end_s)) * 1e-3);
        fprintf(w->to, "\"args\":{\"bytes\":%lld}},\n", (long long)totals[e->kind]);
    }
}

char *trace_text(trace *t, int rank, double shift_s, const char *const *unit_names, int units,
                 size_t *length) {
    char *text = NULL;
    writer w = { open_memstream(&text, length), rank + 1, shift_s, unit_names, units };
    if (w.to) {
        trace_complete(t);
        const int n = t->used < t->capacity ? t->used : t->capacity;
        write_name(&w, "process_name", 0, "rank", rank);
        if (n) write_slices(&w, t->events, n);
        if (n) write_counters(&w, t->events, n);
        const int bad = ferror(w.to);
        if (!fclose(w.to) && !bad) return text;
        free(text);
    }
    zero_fail(ZERO_ERR_MEMORY, "out of memory for the trace's text");
    return NULL;
}

// -------- the file

int trace_file_open(trace_file *f, const char *path) {
    *f = (trace_file){ .path = path };
    const int size = (int)sizeof f->temporary;
    if (snprintf(f->temporary, size, "%s.%ld.tmp", path, (long)getpid()) >= size)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: name too long", path);
    // The file is renamed into place. As root, that would replace a device node such as /dev/null.
    struct stat st;
    if (!lstat(path, &st) && !S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return zero_fail(ZERO_ERR_IO, "%s: exists and is not a regular file; name another one", path);
    f->to = fopen(f->temporary, "wxe");  // fails if the temporary name exists, even as a symlink
    if (!f->to) return zero_fail(ZERO_ERR_IO, "%s: %s", f->temporary, strerror(errno));
    fprintf(f->to, "[\n");
    return 0;
}

int trace_file_close(trace_file *f, int keep) {
    if (!f->to) return 0;
    // The last object of the list has no comma after it.
    fprintf(f->to, "{\"name\":\"end\",\"ph\":\"M\",\"pid\":1,\"args\":{}}\n]\n");
    const int bad = ferror(f->to), closed = !fclose(f->to);
    f->to = NULL;
    if (keep && closed && !bad && !rename(f->temporary, f->path)) return 0;
    if (keep) zero_fail(ZERO_ERR_IO, "%s: not written: %s", f->path, strerror(errno));
    remove(f->temporary);
    return keep ? ZERO_ERR_IO : 0;
}
