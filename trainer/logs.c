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

static const char main_log[] = "main.log", metrics[] = "metrics.jsonl";

// --------
// writing

static void append(const char *name, const char *fmt, va_list args) {
    char path[OUTPUT_PATH];
    if (run.rank != 0 || !opt.output) return;
    output_path(path, "%s", name);
    FILE *f = append_to_file(path);
    int bad = vfprintf(f, fmt, args) < 0;
    if (fclose(f) || bad) die("%s: not written: %s", path, strerror(errno));
}

void log_main(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    append(main_log, fmt, args);
    va_end(args);
}

void log_metrics(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    append(metrics, fmt, args);
    va_end(args);
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

int logs_exist(void) { return opt.output && (has_lines(main_log) || has_lines(metrics)); }

static void kept_path(char path[OUTPUT_PATH], const char *name, int number) {
    output_path(path, "%s.%d", name, number);
}

static int is_used(int number) {
    char a[OUTPUT_PATH], b[OUTPUT_PATH];
    kept_path(a, main_log, number);
    kept_path(b, metrics, number);
    return file_is_there(a) || file_is_there(b);
}

// Returns a number that no kept log has.
static int free_number(void) {
    int number = 1;
    while (is_used(number)) number++;
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
    rename_log(main_log, number);
    rename_log(metrics, number);
    print0("the logs of an earlier run in %s are kept as main.log.%d and metrics.jsonl.%d\n", opt.output,
           number, number);
}

// --------
// cutting

typedef struct {
    int step, validates;
} Cut;

typedef int (*LineCheck)(const Cut *c, const char *line);

// "s:4 trl:.." belongs to the step after 4, "s:4 tel:.." to the validation at step 4.
static int keeps_main(const Cut *c, const char *line) {
    char kind[4];
    int n;
    if (sscanf(line, "s:%d %3[a-z]:", &n, kind) != 2) return 1;
    if (!strcmp(kind, "trl")) return n < c->step;
    return n < c->step || (n == c->step && !c->validates);
}

static int keeps_all(const Cut *c, const char *line) {
    (void)c;
    (void)line;
    return 1;
}

static int keeps_metrics(const Cut *c, const char *line) {
    int n;
    return sscanf(line, "{\"step\": %d,", &n) != 1 || n <= c->step;
}

// Copies the lines to keep. A line without an end was being written by a process that died.
static int copy_lines(FILE *from, FILE *to, const Cut *c, LineCheck keeps) {
    char *line = NULL;
    size_t room = 0;
    int cut = 0;
    for (ssize_t n = getline(&line, &room, from); n > 0; n = getline(&line, &room, from)) {
        if (line[n - 1] == '\n' && keeps(c, line))
            fwrite(line, 1, (size_t)n, to);
        else
            cut++;
    }
    free(line);
    return cut;
}

// Writes the lines to keep in place of a log, or to `to_path`. The new file is complete on disk before it
// gets the name.
static void cut_log(const char *name, const char *to_path, const Cut *c, LineCheck keeps) {
    char path[OUTPUT_PATH], temporary[OUTPUT_PATH];
    output_path(path, "%s", name);
    output_path(temporary, "%s.tmp", name);
    FILE *from = fopen(path, "r");
    if (!from && errno == ENOENT) return;
    if (!from) die("%s: %s", path, strerror(errno));
    FILE *to = create_file(temporary);
    int cut = copy_lines(from, to, c, keeps);
    if (ferror(from)) die("%s: cannot be read: %s", path, strerror(errno));
    fclose(from);  // nothing was written
    if (cut || to_path) {
        commit_file(to, temporary, to_path ? to_path : path);
        return;
    }
    fclose(to);  // the log stays as it is
    unlink(temporary);
}

static void copy_log(const char *name, int number) {
    char kept[OUTPUT_PATH];
    kept_path(kept, name, number);
    cut_log(name, kept, NULL, keeps_all);
}

// Both copies exist before any line is cut, so that none is lost.
static void keep_logs(void) {
    const int number = free_number();
    copy_log(main_log, number);
    copy_log(metrics, number);
    print0("the logs of the other course are kept as main.log.%d and metrics.jsonl.%d\n", number, number);
}

void logs_continue(int step, int validates, int keep) {
    const Cut c = { step, validates };
    if (run.rank != 0 || !logs_exist()) return;
    if (keep) keep_logs();
    cut_log(main_log, NULL, &c, keeps_main);
    cut_log(metrics, NULL, &c, keeps_metrics);
}
