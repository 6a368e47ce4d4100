#include "trace.h"
#include "clock.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int trace_init(trace *t, int capacity, memory *m, const memory_request *planned) {
    *t = (trace){ .capacity = capacity, .start_s = clock_now() };
    if (!capacity) return 0;
    t->events = memory_alloc(m, planned);
    return t->events ? 0 : ZERO_ERR_MEMORY;
}

double trace_now(const trace *t) { return clock_now() - t->start_s; }

static void append(trace *t, const zero_event *e) {
    int i = __atomic_fetch_add(&t->used, 1, __ATOMIC_RELAXED);
    if (i < t->capacity) t->events[i] = *e;
}

void trace_add(trace *t, zero_event_kind kind, int unit, int thread, double start_s) {
    if (t->capacity) append(t, &(zero_event){ kind, unit, thread, start_s, trace_now(t) });
}

void trace_add_past(trace *t, zero_event_kind kind, int unit, int thread, double start_s, double end_s) {
    if (t->capacity) append(t, &(zero_event){ kind, unit, thread, start_s - t->start_s, end_s - t->start_s });
}

// A link of that name is not followed.
static FILE *create(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

int trace_write(const trace *t, const char *path, int rank, const char *const *unit_names, int units) {
    static const char *const kinds[] = { "forward", "backward", "gather", "reduce", "update",
                                         "wait",    "read",     "write",  "copy" };
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid()) >= (int)sizeof temporary)
        return zero_fail(ZERO_ERR_ARGUMENT, "%s: name too long", path);
    FILE *f = create(temporary);
    if (!f) return zero_fail(ZERO_ERR_IO, "%s: %s", temporary, strerror(errno));
    fprintf(f, "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}", rank,
            rank);
    for (int i = 0; i < t->used && i < t->capacity; i++) {
        const zero_event *e = &t->events[i];
        fprintf(f,
                ",\n{\"name\":\"%s "
                "%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                kinds[e->kind], e->unit >= 0 && e->unit < units ? unit_names[e->unit] : "", kinds[e->kind],
                rank, e->thread, e->start_s * 1e6, (e->end_s - e->start_s) * 1e6);
    }
    fprintf(f, "\n]\n");
    int bad = ferror(f);
    if (!fclose(f) && !bad && !rename(temporary, path)) return 0;
    zero_fail(ZERO_ERR_IO, "%s: not written: %s", path, strerror(errno));
    remove(temporary);
    return ZERO_ERR_IO;
}
