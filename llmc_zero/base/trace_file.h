// The trace as a file: JSON for Perfetto and chrome://tracing, with the events of all ranks. Each rank is a
// process, and each lane has one or more tracks, because events on a track may overlap only by nesting.
#ifndef LLMC_ZERO_BASE_TRACE_FILE_H
#define LLMC_ZERO_BASE_TRACE_FILE_H
#include <stdio.h>
#include "trace.h"

// Returns a rank's part of the file, which the caller frees, and its length; NULL: out of memory, with the
// error set. Adds shift_s to all times. Sorts the trace's events.
char *trace_text(trace *t, int rank, double shift_s, const char *const *unit_names, int units,
                 size_t *length);

typedef struct {
    FILE *to;
    const char *path;
    char temporary[4096];
} trace_file;
// Begins the file under a temporary name. Returns 0, ZERO_ERR_IO or ZERO_ERR_ARGUMENT.
int trace_file_open(trace_file *f, const char *path);
// Renames the finished file into place; on failure, or if keep is 0, removes it. Returns 0 or ZERO_ERR_IO.
int trace_file_close(trace_file *f, int keep);

#endif
