#include "logs.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "die.h"
#include "folder.h"
#include "options.h"
#include "run.h"

// --------
// writing

void log_line(const char *name, const char *fmt, ...) {
    char path[OUTPUT_PATH];
    va_list args;
    if (run.rank != 0 || !opt.output) return;
    output_path(path, "%s", name);
    FILE *f = append_to_file(path);
    va_start(args, fmt);
    int bad = vfprintf(f, fmt, args) < 0;
    va_end(args);
    if (fclose(f) || bad) die("%s: not written: %s", path, strerror(errno));
}

// --------
// logs of an earlier run

static int has_lines(const char *name) {
    char path[OUTPUT_PATH];
    struct stat st;
    output_path(path, "%s", name);
    if (!stat(path, &st)) return st.st_size > 0;
    if (errno != ENOENT) die("%s: %s", path, strerror(errno));
    return 0;
}

int logs_exist(void) { return opt.output && (has_lines(MAIN_LOG) || has_lines(METRICS)); }

static void kept_path(char path[OUTPUT_PATH], const char *name, int number) {
    output_path(path, "%s.%d", name, number);
}

// Returns a number that no kept log has.
static int free_number(void) {
    char a[OUTPUT_PATH], b[OUTPUT_PATH];
    int number = 0;
    do {
        number++;
        kept_path(a, MAIN_LOG, number);
        kept_path(b, METRICS, number);
    } while (file_is_there(a) || file_is_there(b));
    return number;
}

static void rename_log(const char *name, int number) {
    char path[OUTPUT_PATH], kept[OUTPUT_PATH];
    output_path(path, "%s", name);
    kept_path(kept, name, number);
    if (rename(path, kept) && errno != ENOENT)
        die("%s: cannot be renamed to %s: %s", path, kept, strerror(errno));
}

void logs_begin(void) {
    if (run.rank != 0 || !logs_exist()) return;
    const int number = free_number();
    rename_log(MAIN_LOG, number);
    rename_log(METRICS, number);
    print0("the logs of an earlier run in %s are kept as main.log.%d and metrics.jsonl.%d\n", opt.output,
           number, number);
}

// --------
// cutting

typedef struct {
    int step, validates;
} Cut;

// Whether the line stays. Of main.log "s:4 trl:.." belongs to the step after 4, "s:4 tel:.." to the
// validation at step 4.
static int keeps(const Cut *c, const char *line) {
    char kind[4];
    int n;
    if (sscanf(line, "{\"step\": %d,", &n) == 1) return n <= c->step;
    if (sscanf(line, "s:%d %3[a-z]:", &n, kind) != 2) return 1;
    return n < c->step || (n == c->step && !strcmp(kind, "tel") && !c->validates);
}

// Copies the lines to keep; c NULL: all. A line without an end was being written by a process that died.
static int copy_lines(FILE *from, FILE *to, const Cut *c) {
    char *line = NULL;
    size_t room = 0;
    int cut = 0;
    for (ssize_t n = getline(&line, &room, from); n > 0; n = getline(&line, &room, from)) {
        if (line[n - 1] == '\n' && (!c || keeps(c, line)))
            fwrite(line, 1, (size_t)n, to);
        else
            cut++;
    }
    free(line);
    return cut;
}

// Writes the lines to keep in place of a log, or with c NULL all of them to `to_path`. The new file is
// complete on disk before it gets the name.
static void copy_log(const char *name, const char *to_path, const Cut *c) {
    char path[OUTPUT_PATH], temporary[OUTPUT_PATH];
    output_path(path, "%s", name);
    output_path(temporary, "%s.tmp", name);
    FILE *from = fopen(path, "r");
    if (!from && errno == ENOENT) return;
    if (!from) die("%s: %s", path, strerror(errno));
    FILE *to = create_file(temporary);
    int cut = copy_lines(from, to, c);
    if (ferror(from)) die("%s: cannot be read: %s", path, strerror(errno));
    fclose(from);  // nothing was written
    if (cut || !c) {
        commit_file(to, temporary, c ? path : to_path);
        return;
    }
    fclose(to);  // the log stays as it is
    unlink(temporary);
}

// Both copies exist before any line is cut, so that none is lost.
static void keep_logs(void) {
    static const char *const names[] = { MAIN_LOG, METRICS };
    char kept[OUTPUT_PATH];
    const int number = free_number();
    for (int i = 0; i < 2; i++) {
        kept_path(kept, names[i], number);
        copy_log(names[i], kept, NULL);
    }
    print0("the logs of the other course are kept as main.log.%d and metrics.jsonl.%d\n", number, number);
}

void logs_continue(int step, int validates, int keep) {
    const Cut c = { step, validates };
    if (run.rank != 0 || !logs_exist()) return;
    if (keep) keep_logs();
    copy_log(MAIN_LOG, NULL, &c);
    copy_log(METRICS, NULL, &c);
}
